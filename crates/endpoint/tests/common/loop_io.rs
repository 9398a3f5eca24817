//! Devices in memory: any number of them on one wire, in one thread, in time set by hand.
//! Once its buffers exist the wire does not allocate.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use starling_io::{
    Capabilities, Clock, Datagram, Ecn, Fault, IoError, IoEvent, MAX_BURST, PacketIo, PacketRx,
    PacketTx, PeerGone, PeerId, Source, TxError, Wake,
};

const MAX_DATAGRAM: usize = 1472;

/// Time that a test sets. May be read in any thread.
#[derive(Clone, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

type Queue = VecDeque<(usize, Vec<u8>)>;

#[derive(Default)]
struct Ports {
    queues: Vec<Queue>,
    free: Vec<Vec<u8>>,
}

/// What the devices are plugged into.
#[derive(Clone, Default)]
pub struct Wire {
    ports: Rc<RefCell<Ports>>,
    cut: Rc<Cell<bool>>,
    full: Rc<Cell<bool>>,
    clock: ManualClock,
}

impl Wire {
    /// Loses everything from now on, or no longer does.
    pub fn cut(&self, cut: bool) {
        self.cut.set(cut);
    }

    /// Devices have no room for anything from now on, or have it again.
    pub fn fill(&self, full: bool) {
        self.full.set(full);
    }

    pub fn clock(&self) -> ManualClock {
        self.clock.clone()
    }

    pub fn device(&self) -> LoopIo {
        let mut ports = self.ports.borrow_mut();
        let port = ports.queues.len();
        ports.queues.push(VecDeque::with_capacity(4096));
        LoopIo {
            capabilities: Capabilities {
                scheme: "loop",
                reliable: true,
                ecn: false,
                rx_queue_bytes: 64 << 20,
                rx_queue_datagrams: 1 << 16,
                max_datagram: MAX_DATAGRAM,
            },
            wire: self.clone(),
            rx: LoopRx {
                wire: self.clone(),
                port,
                burst: Vec::with_capacity(MAX_BURST),
                peers: Rc::default(),
            },
            tx: LoopTx {
                wire: self.clone(),
                port,
                open: Vec::new(),
                peers: Rc::default(),
            },
            gone: VecDeque::new(),
            waker: Arc::default(),
        }
        .join()
    }
}

/// The port of each peer.
type Peers = Rc<RefCell<Vec<usize>>>;

fn peer_of(peers: &Peers, port: usize) -> Option<PeerId> {
    let index = peers.borrow().iter().position(|p| *p == port)?;
    Some(PeerId(index as u32))
}

fn add_peer(peers: &Peers, port: usize) -> PeerId {
    peer_of(peers, port).unwrap_or_else(|| {
        let mut peers = peers.borrow_mut();
        peers.push(port);
        PeerId(peers.len() as u32 - 1)
    })
}

fn address(port: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port as u16))
}

/// Stands for a port that nobody has: a closed peer.
const NOWHERE: usize = usize::MAX;

pub struct LoopIo {
    capabilities: Capabilities,
    wire: Wire,
    rx: LoopRx,
    tx: LoopTx,
    gone: VecDeque<PeerId>,
    waker: Arc<LoopWaker>,
}

impl LoopIo {
    fn join(mut self) -> Self {
        self.tx.peers = self.rx.peers.clone();
        self
    }

    /// Peers that are not closed.
    pub fn open_peers(&self) -> usize {
        let peers = self.rx.peers.borrow();
        peers.iter().filter(|port| **port != NOWHERE).count()
    }

    /// A sleeper's view of the waker.
    pub fn parker(&self) -> Arc<LoopWaker> {
        self.waker.clone()
    }
}

#[derive(Default)]
pub struct LoopWaker {
    awake: Mutex<bool>,
    changed: Condvar,
}

impl LoopWaker {
    /// Sleeps, in real time, until another thread uses the waker.
    pub fn park(&self) {
        let awake = self.awake.lock().unwrap();
        let limit = Duration::from_secs(60);
        let (mut awake, timeout) = self
            .changed
            .wait_timeout_while(awake, limit, |awake| !*awake)
            .unwrap();
        assert!(!timeout.timed_out(), "nobody used the waker");
        *awake = false;
    }

    pub fn is_awake(&self) -> bool {
        *self.awake.lock().unwrap()
    }
}

impl Wake for LoopWaker {
    fn wake(&self) {
        *self.awake.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl PacketIo for LoopIo {
    type Rx = LoopRx;
    type Tx = LoopTx;

    fn split(&mut self) -> (&mut LoopRx, &mut LoopTx) {
        (&mut self.rx, &mut self.tx)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_address(&self) -> String {
        format!("loop://{}", self.rx.port)
    }

    fn open_peer(&mut self, address: &str) -> Result<PeerId, IoError> {
        let port = address
            .strip_prefix("loop://")
            .and_then(|port| port.parse().ok())
            .ok_or_else(|| {
                let attempt = format!("open {address}");
                IoError::new(
                    Fault::Caller,
                    attempt,
                    "no such port",
                    "write loop://NUMBER",
                )
            })?;
        Ok(add_peer(&self.rx.peers, port))
    }

    fn close_peer(&mut self, peer: PeerId) {
        self.rx.peers.borrow_mut()[peer.0 as usize] = NOWHERE;
    }

    fn max_datagram(&self, _peer: PeerId) -> usize {
        MAX_DATAGRAM
    }

    fn poll_event(&mut self) -> Option<IoEvent> {
        let peer = self.gone.pop_front()?;
        Some(IoEvent::PeerGone(peer, PeerGone::Certain))
    }

    /// A sleep with an end makes time pass instead; one without waits for another thread.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), IoError> {
        let waiting = !self.wire.ports.borrow().queues[self.rx.port].is_empty();
        if waiting {
            return Ok(());
        }
        match timeout {
            None => self.waker.park(),
            Some(timeout) => {
                if !std::mem::take(&mut *self.waker.awake.lock().unwrap()) {
                    self.wire.clock.advance(timeout);
                }
            }
        }
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.waker.clone()
    }
}

pub struct LoopRx {
    wire: Wire,
    port: usize,
    peers: Peers,
    burst: Vec<(usize, Vec<u8>)>,
}

impl PacketRx for LoopRx {
    fn rx_burst(&mut self) -> Result<usize, IoError> {
        let ports = &mut *self.wire.ports.borrow_mut();
        for (_, mut bytes) in self.burst.drain(..) {
            bytes.clear();
            ports.free.push(bytes);
        }
        let queue = &mut ports.queues[self.port];
        let count = queue.len().min(MAX_BURST);
        self.burst.extend(queue.drain(..count));
        Ok(count)
    }

    fn datagram(&self, index: usize) -> Datagram<'_> {
        let (from, bytes) = &self.burst[index];
        Datagram {
            source: match peer_of(&self.peers, *from) {
                Some(peer) => Source::Peer(peer),
                None => Source::Unknown(address(*from)),
            },
            ecn: Ecn::NotCapable,
            bytes,
        }
    }
}

pub struct LoopTx {
    wire: Wire,
    port: usize,
    peers: Peers,
    /// The datagram open for each peer; empty if none is.
    open: Vec<Vec<u8>>,
}

impl LoopTx {
    fn send(&mut self, to: usize, bytes: Vec<u8>) {
        let ports = &mut *self.wire.ports.borrow_mut();
        match ports.queues.get_mut(to) {
            Some(queue) if !self.wire.cut.get() => queue.push_back((self.port, bytes)),
            _ => {}
        }
    }

    fn close(&mut self, index: usize) {
        let fresh = self.wire.ports.borrow_mut().free.pop();
        let fresh = fresh.unwrap_or_else(|| Vec::with_capacity(MAX_DATAGRAM));
        let bytes = std::mem::replace(&mut self.open[index], fresh);
        let to = self.peers.borrow()[index];
        self.send(to, bytes);
    }
}

impl PacketTx for LoopTx {
    fn append(
        &mut self,
        peer: PeerId,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), TxError> {
        let index = peer.0 as usize;
        if self.peers.borrow()[index] == NOWHERE {
            return Err(TxError::Gone);
        }
        if self.wire.full.get() {
            return Err(TxError::Full);
        }
        while self.open.len() <= index {
            self.open.push(Vec::with_capacity(MAX_DATAGRAM));
        }
        let size = head.len() + body.len() + tail.len();
        assert!(preamble.len() + size <= MAX_DATAGRAM);
        if self.open[index].len() + size > MAX_DATAGRAM {
            self.close(index);
        }
        let open = &mut self.open[index];
        if open.is_empty() {
            open.extend_from_slice(preamble);
        }
        for part in [head, body, tail] {
            open.extend_from_slice(part);
        }
        Ok(())
    }

    fn seal(&mut self, peer: PeerId) {
        let index = peer.0 as usize;
        if self.open.get(index).is_some_and(|open| !open.is_empty()) {
            self.close(index);
        }
    }

    fn flush(&mut self) -> Result<(), IoError> {
        for index in 0..self.open.len() {
            self.seal(PeerId(index as u32));
        }
        Ok(())
    }

    fn send_to_unknown(&mut self, to: SocketAddr, datagram: &[u8]) {
        self.send(usize::from(to.port()), datagram.to_vec());
    }

    fn accept_peer(&mut self, address: SocketAddr) -> Result<PeerId, IoError> {
        Ok(add_peer(&self.peers, usize::from(address.port())))
    }

    fn max_datagram(&self, _peer: PeerId) -> usize {
        MAX_DATAGRAM
    }
}
