//! A network for tests that drive endpoints by hand: time moves only when the test or a sleeping
//! endpoint moves it, and datagrams arrive in the instant in which they leave.
//!
//! It is a [`Fabric`] with ideal links. A device brings the fabric up to the present before it
//! reads, so a test polls its endpoints in any order and needs no loop over [`Fabric::step`]. A
//! wait with a timeout advances the clock instead of sleeping; a wait without one sleeps in real
//! time until another thread wakes the device. Once its buffers exist the network does not
//! allocate.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use starling_io::{
    Capabilities, Clock, Datagram, IoError, IoEvent, PacketIo, PacketRx, PacketTx, PeerId, Wake,
};

use crate::fabric::{
    Fabric, FabricConfig, HostId, LinkConfig, ReceiveLimits, SharedFabric, Treatment,
};
use crate::io::{SimIo, SimRx, SimTx};

/// How long a device waits for another thread before the test fails.
const WAKE_LIMIT: Duration = Duration::from_secs(60);

/// Datagrams whose memory exists from the beginning.
const RESERVED_DATAGRAMS: usize = 256;

/// The time that a test sets. Any thread may read it.
#[derive(Clone, Debug, Default)]
pub struct SteppedClock(Arc<AtomicU64>);

impl SteppedClock {
    /// Advances the time.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for SteppedClock {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A network of devices that share one stepped clock.
#[derive(Clone)]
pub struct SteppedNetwork {
    fabric: SharedFabric,
    clock: SteppedClock,
}

impl Default for SteppedNetwork {
    fn default() -> Self {
        Self::with_round_trip(Duration::ZERO)
    }
}

impl SteppedNetwork {
    /// A network in which a datagram and its answer are on their way for so long.
    pub fn with_round_trip(time: Duration) -> Self {
        let config = FabricConfig {
            link: LinkConfig {
                rate_bps: u64::MAX,
                propagation_ns: time.as_nanos() as u64 / 2,
                queue_bytes: u64::MAX,
            },
            receive: ReceiveLimits {
                datagrams: 1 << 16,
                bytes: 64 << 20,
            },
            poll_ns: 0,
            ..FabricConfig::default()
        };
        let fabric = Fabric::shared(config);
        fabric.lock().reserve(RESERVED_DATAGRAMS);
        Self {
            fabric,
            clock: SteppedClock::default(),
        }
    }

    /// A device on a new host: the first is at `sim://10.0.0.0:4000`, the second at
    /// `sim://10.0.0.1:4000`.
    pub fn device(&self) -> SteppedIo {
        let host = self.fabric.lock().add_host();
        let device = SimIo::new(&self.fabric, host);
        let capabilities = Capabilities {
            reliable: true,
            ecn: false,
            ..device.capabilities().clone()
        };
        let (rx, mut tx) = device.into_halves();
        tx.reserve(RESERVED_DATAGRAMS);
        SteppedIo {
            network: self.clone(),
            host,
            capabilities,
            rx: SteppedRx {
                rx,
                network: self.clone(),
            },
            tx,
            waker: Arc::default(),
        }
    }

    /// The clock of all devices.
    pub fn clock(&self) -> SteppedClock {
        self.clock.clone()
    }

    /// Loses every datagram that leaves from now on, or no longer does.
    pub fn lose_all(&self, lost: bool) {
        let mut fabric = self.fabric.lock();
        if lost {
            fabric.set_departure_hook(Some(Box::new(|_| Treatment::LOSE)));
        } else {
            fabric.set_departure_hook(None);
        }
    }

    /// Every device is full from now on, or has room again.
    pub fn set_full(&self, full: bool) {
        let mut fabric = self.fabric.lock();
        let frames = if full { 0 } else { usize::MAX };
        for host in 0..fabric.host_count() {
            fabric.limit_frames(HostId(host), frames);
        }
    }

    /// Delivers the datagrams that are due at the clock's time.
    fn deliver(&self) {
        let now_ns = self.clock.now_ns();
        self.fabric.lock().advance_to(now_ns);
    }
}

/// A device of a [`SteppedNetwork`].
pub struct SteppedIo {
    network: SteppedNetwork,
    host: HostId,
    capabilities: Capabilities,
    rx: SteppedRx,
    tx: SimTx,
    waker: Arc<ThreadWaker>,
}

impl SteppedIo {
    /// How many peers are open.
    pub fn open_peers(&self) -> usize {
        self.network.fabric.lock().host(self.host).peers.len()
    }

    /// The device's waker, on which a thread can sleep.
    pub fn thread_waker(&self) -> Arc<ThreadWaker> {
        self.waker.clone()
    }
}

/// A waker that one thread sleeps on while others use it. Its locks are the standard library's, which
/// never allocate: tests count allocations.
#[derive(Debug, Default)]
pub struct ThreadWaker {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl ThreadWaker {
    /// Sleeps, in real time, until another thread uses the waker.
    ///
    /// # Panics
    /// If that takes a minute.
    pub fn park(&self) {
        let woken = self.woken.lock().expect("no thread panicked");
        let (mut woken, timeout) = self
            .changed
            .wait_timeout_while(woken, WAKE_LIMIT, |woken| !*woken)
            .expect("no thread panicked");
        assert!(
            !timeout.timed_out(),
            "no thread used the waker for {WAKE_LIMIT:?}"
        );
        *woken = false;
    }

    /// Whether the next wait returns at once.
    pub fn is_woken(&self) -> bool {
        *self.woken.lock().expect("no thread panicked")
    }

    fn take(&self) -> bool {
        std::mem::take(&mut *self.woken.lock().expect("no thread panicked"))
    }
}

impl Wake for ThreadWaker {
    fn wake(&self) {
        *self.woken.lock().expect("no thread panicked") = true;
        self.changed.notify_all();
    }
}

impl PacketIo for SteppedIo {
    type Rx = SteppedRx;
    type Tx = SimTx;

    fn split(&mut self) -> (&mut SteppedRx, &mut SimTx) {
        (&mut self.rx, &mut self.tx)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_address(&self) -> String {
        format!("sim://{}", self.network.fabric.lock().address(self.host))
    }

    fn open_peer(&mut self, address: &str) -> Result<PeerId, IoError> {
        self.tx.open_peer(address)
    }

    fn close_peer(&mut self, peer: PeerId) {
        self.tx.close_peer(peer);
    }

    fn max_datagram(&self, peer: PeerId) -> usize {
        self.tx.max_datagram(peer)
    }

    fn poll_event(&mut self) -> Option<IoEvent> {
        let mut fabric = self.network.fabric.lock();
        fabric.host_mut(self.host).events.pop_front()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), IoError> {
        self.network.deliver();
        let (waiting, _) = self.network.fabric.lock().receive_queue(self.host);
        if waiting > 0 {
            return Ok(());
        }
        match timeout {
            None => self.waker.park(),
            Some(timeout) => {
                if !self.waker.take() {
                    self.network.clock.advance(timeout);
                }
            }
        }
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.waker.clone()
    }
}

/// The receiving half of a [`SteppedIo`].
pub struct SteppedRx {
    rx: SimRx,
    network: SteppedNetwork,
}

impl PacketRx for SteppedRx {
    fn rx_burst(&mut self) -> Result<usize, IoError> {
        self.network.deliver();
        self.rx.rx_burst()
    }

    fn datagram(&self, index: usize) -> Datagram<'_> {
        self.rx.datagram(index)
    }
}
