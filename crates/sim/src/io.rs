//! A host's device: [`PacketIo`] over the fabric, and its clock.
//!
//! It behaves as a UDP socket does: one address, a bounded receive queue, bundling per peer, a
//! send queue that fills when the link is slower than its user. Two things differ because virtual
//! time stands still during a turn: [`PacketIo::wait`] returns at once, after telling the
//! fabric when the host wants its next turn; and nothing arrives between two calls of one turn.

mod sink;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use starling_io::{
    Capabilities, Clock, Datagram, Ecn, Fault, IoError, IoEvent, MAX_BURST, PacketIo, PacketRx,
    PacketTx, PeerId, ReactorWait, Source, TxError, Wake,
};
use starling_prefetch::prefetch;

use crate::check::Grants;
use crate::fabric::{HostId, SharedFabric};
use crate::net::Payload;

pub(crate) use sink::{FrameHook, FrameParts, SimSink};

/// Datagrams that a device holds for a link whose queue is full.
const SEND_QUEUE_DATAGRAMS: usize = 256;

/// A host's device.
pub struct SimIo {
    fabric: SharedFabric,
    host: HostId,
    capabilities: Capabilities,
    rx: SimRx,
    tx: SimTx,
    waker: Arc<SimWaker>,
    waits: u64,
    /// When the last wait ends by itself, ns.
    wait_ends_ns: u64,
}

impl SimIo {
    /// The device of `host`. A host has one device at a time: after a crash, drop the old one and
    /// make a new one.
    pub fn new(fabric: &SharedFabric, host: HostId) -> Self {
        let config = fabric.lock().config().clone();
        let waker = Arc::new(SimWaker::default());
        Self {
            fabric: fabric.clone(),
            host,
            capabilities: Capabilities {
                scheme: "sim",
                reliable: false,
                ecn: true,
                rx_queue_bytes: config.receive.bytes,
                rx_queue_datagrams: config.receive.datagrams,
                max_datagram: config.max_datagram,
            },
            rx: SimRx {
                fabric: fabric.clone(),
                host,
                burst: Vec::with_capacity(MAX_BURST),
                grants: Grants::default(),
            },
            tx: SimTx {
                fabric: fabric.clone(),
                host,
                max_datagram: config.max_datagram,
                open: Vec::new(),
                begun: Vec::new(),
                ready: VecDeque::new(),
            },
            waker,
            waits: 0,
            wait_ends_ns: 0,
        }
    }

    /// The device's two halves.
    pub(crate) fn into_halves(self) -> (SimRx, SimTx) {
        (self.rx, self.tx)
    }

    /// The host whose device this is.
    pub fn host(&self) -> HostId {
        self.host
    }

    /// How often [`PacketIo::wait`] was called: the device slept, or would have.
    pub fn waits(&self) -> u64 {
        self.waits
    }

    /// Whether a thread that waits in the device is to wake up.
    pub(crate) fn ends_wait(&self) -> bool {
        self.arrivals() > 0 || self.fabric.lock().now_ns() >= self.wait_ends_ns
    }

    /// When the last wait ends by itself, ns.
    pub(crate) fn wait_ends_ns(&self) -> u64 {
        self.wait_ends_ns
    }

    /// How much there is that wakes a thread: datagrams, events, and one for the waker.
    pub(crate) fn arrivals(&self) -> usize {
        let fabric = self.fabric.lock();
        let woken = usize::from(self.waker.0.load(Ordering::Relaxed));
        fabric.receive_queue(self.host).0 + fabric.host(self.host).events.len() + woken
    }

    /// The credits that its sessions were given, as a checker sees them.
    pub fn grants(&self) -> &Grants {
        &self.rx.grants
    }

    /// How many peers are open. Checkers find leaked peers by this count.
    pub fn peer_count(&self) -> usize {
        self.fabric.lock().host(self.host).peers.len()
    }
}

impl PacketIo for SimIo {
    type Rx = SimRx;
    type Tx = SimTx;

    fn split(&mut self) -> (&mut SimRx, &mut SimTx) {
        (&mut self.rx, &mut self.tx)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_address(&self) -> String {
        format!("sim://{}", self.fabric.lock().address(self.host))
    }

    fn open_peer(&mut self, address: &str) -> Result<PeerId, IoError> {
        self.tx.open_peer(address)
    }

    fn close_peer(&mut self, peer: PeerId) {
        self.tx.close_peer(peer);
    }

    fn max_datagram(&self, _peer: PeerId) -> usize {
        self.capabilities.max_datagram
    }

    fn poll_event(&mut self) -> Option<IoEvent> {
        let mut fabric = self.fabric.lock();
        fabric.host_mut(self.host).events.pop_front()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), IoError> {
        self.waits += 1;
        let mut fabric = self.fabric.lock();
        let now_ns = fabric.now_ns();
        let awake = self.waker.0.swap(false, Ordering::Relaxed);
        let (waiting, _) = fabric.receive_queue(self.host);
        if awake || waiting > 0 || !fabric.host(self.host).events.is_empty() {
            self.wait_ends_ns = now_ns + fabric.config().poll_ns;
            fabric.wake_at(self.host, self.wait_ends_ns);
        } else if let Some(timeout) = timeout {
            let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
            self.wait_ends_ns = now_ns.saturating_add(timeout_ns);
            fabric.wake_at(self.host, self.wait_ends_ns);
        } else {
            self.wait_ends_ns = u64::MAX;
        }
        Ok(())
    }

    /// What arrives from now on wakes the host for a turn, as it always does.
    fn begin_wait(&mut self) -> Result<ReactorWait, IoError> {
        let arrived = self.arrivals() > 0;
        self.waker.0.store(false, Ordering::Relaxed);
        Ok(match arrived {
            true => ReactorWait::Ready,
            false => ReactorWait::Begun,
        })
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.waker.clone()
    }
}

/// Ends the next wait of its host, or that of a thread of its that sleeps in the device.
#[derive(Default)]
struct SimWaker(AtomicBool);

impl Wake for SimWaker {
    fn wake(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The receiving half of a [`SimIo`].
pub struct SimRx {
    fabric: SharedFabric,
    host: HostId,
    burst: Vec<(Source, Ecn, Payload)>,
    grants: Grants,
}

impl SimRx {
    /// Frees the datagrams of the last burst. Their memory is used again while it is in a cache.
    pub(crate) fn release(&mut self) {
        let mut fabric = self.fabric.lock();
        for (.., bytes) in self.burst.drain(..) {
            fabric.recycle(bytes.into_memory());
        }
    }
}

impl PacketRx for SimRx {
    fn rx_burst(&mut self) -> Result<usize, IoError> {
        self.release();
        let mut fabric = self.fabric.lock();
        while self.burst.len() < MAX_BURST {
            let Some((source, ecn, is_genuine, bytes)) = fabric.read(self.host) else {
                break;
            };
            // A client has no credits by a forged frame.
            if is_genuine {
                self.grants.record(&bytes);
            }
            self.burst.push((source, ecn, bytes));
        }
        let work = &mut fabric.host_mut(self.host).work;
        work.rx_packets += self.burst.len() as u64;
        let bytes = self.burst.iter().map(|(.., bytes)| bytes.len() as u64);
        work.rx_bytes += bytes.sum::<u64>();
        Ok(self.burst.len())
    }

    fn datagram(&self, index: usize) -> Datagram<'_> {
        let (source, ecn, bytes) = &self.burst[index];
        Datagram {
            source: *source,
            ecn: *ecn,
            bytes,
        }
    }
}

/// The open datagram of a peer.
#[repr(align(64))]
struct Open {
    /// `None`: the number is free.
    address: Option<SocketAddr>,
    /// The largest datagram that the peer takes, bytes.
    max_datagram: usize,
    /// Empty: no datagram is open.
    bytes: Vec<u8>,
}

/// The sending half of a [`SimIo`].
pub struct SimTx {
    fabric: SharedFabric,
    host: HostId,
    max_datagram: usize,
    /// The datagram open for each peer, by number.
    open: Vec<Open>,
    /// Peers that have an open datagram, and maybe some that had one.
    begun: Vec<PeerId>,
    /// Closed datagrams in their order.
    ready: VecDeque<(SocketAddr, Vec<u8>)>,
}

impl SimTx {
    fn open_socket(&mut self, address: SocketAddr) -> PeerId {
        let mut fabric = self.fabric.lock();
        let peer = fabric.host_mut(self.host).peers.open(address);
        let needed = peer.0 as usize + 1;
        if self.open.len() < needed {
            self.open.resize_with(needed, || Open {
                address: None,
                max_datagram: 0,
                bytes: Vec::new(),
            });
        }
        let open = &mut self.open[peer.0 as usize];
        if open.address.is_none() {
            open.address = Some(address);
            open.max_datagram = self.max_datagram;
        }
        peer
    }

    /// Allocates the queues of `datagrams` datagrams.
    pub(crate) fn reserve(&mut self, datagrams: usize) {
        self.ready.reserve(datagrams);
        let mut fabric = self.fabric.lock();
        fabric.host_mut(self.host).queue.reserve(datagrams);
    }

    /// [`PacketIo::open_peer`].
    pub(crate) fn open_peer(&mut self, address: &str) -> Result<PeerId, IoError> {
        let socket: Option<SocketAddr> = address
            .strip_prefix("sim://")
            .and_then(|socket| socket.parse().ok());
        let socket = socket.ok_or_else(|| {
            IoError::new(
                Fault::Caller,
                format!("open {address}"),
                "not an address of a simulated host",
                "write sim://10.x.y.z:port",
            )
        })?;
        Ok(self.open_socket(socket))
    }

    /// [`PacketIo::close_peer`].
    pub(crate) fn close_peer(&mut self, peer: PeerId) {
        let mut fabric = self.fabric.lock();
        let Some(address) = fabric.host_mut(self.host).peers.close(peer) else {
            return;
        };
        if let Some(open) = self.open.get_mut(peer.0 as usize) {
            open.address = None;
            open.bytes.clear();
        }
        self.ready.retain(|(to, _)| *to != address);
    }

    /// Asks for the memory that a datagram for `peer` will need.
    pub(crate) fn prefetch(&self, peer: PeerId) {
        if let Some(open) = self.open.get(peer.0 as usize) {
            prefetch(open);
        }
    }
}

impl PacketTx for SimTx {
    fn append(
        &mut self,
        peer: PeerId,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), TxError> {
        let Some(open) = self.open.get_mut(peer.0 as usize) else {
            return Err(TxError::Gone);
        };
        let Some(address) = open.address else {
            return Err(TxError::Gone);
        };
        let size = head.len() + body.len() + tail.len();
        assert!(
            preamble.len() + size <= self.max_datagram,
            "a frame of {size} bytes does not fit a datagram of {}",
            self.max_datagram
        );
        let mut fabric = self.fabric.lock();
        if fabric.host(self.host).tx_frames_left == 0 {
            return Err(TxError::Full);
        }
        if !open.bytes.is_empty() && open.bytes.len() + size > open.max_datagram {
            let bytes = std::mem::take(&mut open.bytes);
            self.ready.push_back((address, bytes));
        }
        if open.bytes.is_empty() {
            if self.ready.len() >= SEND_QUEUE_DATAGRAMS {
                return Err(TxError::Full);
            }
            if open.bytes.capacity() == 0 {
                open.bytes = fabric.buffer();
            }
            open.bytes.extend_from_slice(preamble);
            self.begun.push(peer);
        }
        let state = fabric.host_mut(self.host);
        state.work.tx_frames += 1;
        state.tx_frames_left -= 1;
        open.bytes.extend_from_slice(head);
        open.bytes.extend_from_slice(body);
        open.bytes.extend_from_slice(tail);
        Ok(())
    }

    fn seal(&mut self, peer: PeerId) {
        let Some(open) = self.open.get_mut(peer.0 as usize) else {
            return;
        };
        if let (Some(address), false) = (open.address, open.bytes.is_empty()) {
            let bytes = std::mem::take(&mut open.bytes);
            self.ready.push_back((address, bytes));
        }
    }

    fn flush(&mut self) -> Result<(), IoError> {
        let mut begun = std::mem::take(&mut self.begun);
        for peer in begun.drain(..) {
            self.seal(peer);
        }
        self.begun = begun;
        let mut fabric = self.fabric.lock();
        while let Some((to, bytes)) = self.ready.pop_front() {
            // The fabric says when there is room again.
            if let Err(bytes) = fabric.send(self.host, to, Ecn::Capable, bytes) {
                self.ready.push_front((to, bytes));
                break;
            }
        }
        fabric.flushed(self.host);
        Ok(())
    }

    fn send_to_unknown(&mut self, to: SocketAddr, datagram: &[u8]) {
        // Best effort: without room on the link the datagram is lost, as in a kernel.
        let mut fabric = self.fabric.lock();
        let _ = fabric.send(self.host, to, Ecn::NotCapable, datagram.to_vec());
    }

    fn accept_peer(&mut self, address: SocketAddr) -> Result<PeerId, IoError> {
        Ok(self.open_socket(address))
    }

    fn address(&self, peer: PeerId) -> Option<SocketAddr> {
        self.open.get(peer.0 as usize).and_then(|open| open.address)
    }

    fn limit_datagram(&mut self, peer: PeerId, bytes: usize) {
        if let Some(open) = self.open.get_mut(peer.0 as usize) {
            open.max_datagram = open.max_datagram.min(bytes);
        }
    }

    fn max_datagram(&self, peer: PeerId) -> usize {
        let open = self.open.get(peer.0 as usize);
        open.map_or(self.max_datagram, |open| open.max_datagram)
    }
}

/// A host's monotonic clock.
#[derive(Clone)]
pub struct SimClock {
    fabric: SharedFabric,
    host: HostId,
}

impl SimClock {
    /// The clock of `host`.
    pub fn new(fabric: &SharedFabric, host: HostId) -> Self {
        Self {
            fabric: fabric.clone(),
            host,
        }
    }
}

impl Clock for SimClock {
    fn now_ns(&self) -> u64 {
        self.fabric.lock().host_now_ns(self.host)
    }
}

#[cfg(test)]
mod tests;
