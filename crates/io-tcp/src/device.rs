//! The device: opening it, sleeping, and the [`PacketIo`] over its halves and connections.

mod admission;
mod connections;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use starling_io::{
    Capabilities, DeviceReport, EventfdWaker, Fault, HostPort, IoError, IoEvent, Origin, PacketIo,
    PacketTx, PeerId, ReactorSet, ReactorWait, Wake, forks,
};

use self::admission::AdmissionCounts;
use self::connections::Connection;
use crate::config::{PeersBudget, TcpConfig};
use crate::poller::{Interest, Poller, Timer};
use crate::rx::{LISTENER_KEY, TIMER_KEY, TcpRx};
use crate::sockets;
use crate::tx::TcpTx;

/// Bytes on the way from one peer, for the size of the receive queue: what kernels keep for a connection by default.
const PEER_BYTES: usize = 1 << 20;

/// The size of a small datagram, for the same.
const SMALL_DATAGRAM: usize = 64;

/// Packet I/O over TCP connections, for one thread.
///
/// ```
/// use starling_io::{PacketIo, PacketRx, PacketTx};
/// use starling_io_tcp::{TcpConfig, TcpIo};
///
/// # fn main() -> Result<(), starling_io::IoError> {
/// let mut server = TcpIo::bind("tcp://127.0.0.1:0", TcpConfig::default())?;
/// let mut client = TcpIo::client(TcpConfig::default())?;
///
/// let peer = client.open_peer(&server.local_address())?;
/// let (_, tx) = client.split();
/// tx.append(peer, b"preamble", b"head", b"body", b"tail").unwrap();
/// tx.flush()?;
///
/// while server.split().0.rx_burst()? == 0 {
///     // The first connects, the second accepts.
///     client.wait(Some(std::time::Duration::from_millis(1)))?;
///     server.wait(Some(std::time::Duration::from_millis(1)))?;
/// }
/// # use starling_io::Datagram;
/// let datagram: Datagram<'_> = server.split().0.datagram(0);
/// assert_eq!(datagram.bytes, b"preambleheadbodytail");
/// # Ok(())
/// # }
/// ```
///
/// A peer that connects gets a number at once; its first datagram makes it known. A peer that leaves without having
/// sent a datagram causes no event, and its number is free again. Every other peer stays until
/// [`PacketIo::close_peer`].
pub struct TcpIo {
    rx: TcpRx,
    tx: TcpTx,
    poller: Arc<Poller>,
    listener: Option<OwnedFd>,
    /// Accepting pauses until the timer rings.
    is_paused: bool,
    timer: Timer,
    /// By peer number. `rx` and `tx` have tables with the same numbers, so no one `slab` owns them.
    connections: Vec<Option<Connection>>,
    free_numbers: Vec<u32>,
    /// Accepted peers by host.
    held: HashMap<Origin, usize>,
    /// At most one for each peer.
    events: VecDeque<IoEvent>,
    places: PeersBudget,
    counts: AdmissionCounts,
    waker: Arc<EventfdWaker>,
    reactor: ReactorSet,
    config: TcpConfig,
    capabilities: Capabilities,
    address: String,
    /// The process that made it; see [`forks`].
    process: u32,
}

impl TcpIo {
    /// A device at `address`, such as `tcp://127.0.0.1:9000`. Port 0 stands for any free port, `0.0.0.0` and `[::]`
    /// for all interfaces; `[::]` also accepts IPv4.
    ///
    /// # Errors
    /// If the address is malformed, its name is unknown, or it is not an address of this host; if a setting is
    /// invalid; if the port is in use or not permitted; if the process has no file descriptors left.
    pub fn bind(address: &str, config: TcpConfig) -> Result<Self, IoError> {
        let attempt = format!("bind {address}");
        config.check(&attempt)?;
        // A name may also have addresses of other hosts: the first that can be bound is used.
        let mut result = Err(io::ErrorKind::AddrNotAvailable.into());
        for candidate in HostPort::parse("tcp", address)?.resolve()? {
            result = sockets::listen(candidate, config.reuse_port);
            if result.is_ok() {
                break;
            }
        }
        let (listener, own) = result.map_err(|error| bind_error(&attempt, error))?;
        Self::new(&attempt, Some(listener), format!("tcp://{own}"), config)
    }

    /// A device that opens peers, and that no peer can open.
    ///
    /// # Errors
    /// If a setting is invalid, or the process has no file descriptors left.
    pub fn client(config: TcpConfig) -> Result<Self, IoError> {
        let attempt = "open a tcp client";
        config.check(attempt)?;
        Self::new(attempt, None, "tcp://(unnamed)".to_owned(), config)
    }

    fn new(
        attempt: &str,
        listener: Option<OwnedFd>,
        address: String,
        config: TcpConfig,
    ) -> Result<Self, IoError> {
        let setup = || {
            let (poller, timer) = (Poller::new()?, Timer::new()?);
            poller.add(&timer, TIMER_KEY, Interest::Read)?;
            if let Some(listener) = &listener {
                poller.add(listener, LISTENER_KEY, Interest::Read)?;
            }
            Ok::<_, Errno>((Arc::new(poller), timer))
        };
        let (poller, timer) = setup().map_err(|error| host_error(attempt, error.into()))?;
        let waker = EventfdWaker::new().map_err(|error| host_error(attempt, error))?;
        let places = PeersBudget::new(&config, listener.is_some());
        Ok(Self {
            rx: TcpRx::new(&poller),
            tx: TcpTx::new(&poller, config.max_datagram),
            poller,
            listener,
            is_paused: false,
            timer,
            connections: Vec::new(),
            free_numbers: Vec::new(),
            held: HashMap::new(),
            events: VecDeque::new(),
            places,
            counts: AdmissionCounts::default(),
            waker: Arc::new(waker),
            reactor: ReactorSet::default(),
            capabilities: Capabilities {
                scheme: "tcp",
                reliable: true,
                ecn: false,
                rx_queue_bytes: PEER_BYTES * config.max_peers,
                rx_queue_datagrams: PEER_BYTES / SMALL_DATAGRAM * config.max_peers,
                max_datagram: config.max_datagram,
            },
            config,
            address,
            process: forks(),
        })
    }

    /// Does what the receiving half has found that there is to do.
    #[cold]
    fn handle_notices(&mut self) {
        while let Some(notices) = self.rx.notices() {
            if let Some(number) = notices.writable.pop() {
                self.tx.handle_writable(number);
            } else if let Some((number, why)) = notices.ended.pop() {
                self.end(number, why);
            } else if mem::take(&mut notices.has_rung) {
                self.handle_timer();
            } else if mem::take(&mut notices.is_connecting) {
                self.accept();
            }
        }
    }

    /// Looks for what has happened, after a wait.
    fn look(&mut self) -> Result<(), IoError> {
        self.rx.look().map_err(|error| self.wait_error(error))?;
        self.handle_notices();
        Ok(())
    }

    fn wait_error(&self, error: Errno) -> IoError {
        host_error(&format!("wait on {}", self.address), error.into())
    }
}

impl Drop for TcpIo {
    /// Gives appended frames to the kernel, as far as it has room, and ends all connections.
    fn drop(&mut self) {
        if self.process != forks() {
            // The connections are the parent's.
            return;
        }
        if let Some(listener) = &self.listener {
            sockets::hang_up(listener);
        }
        for (number, connection) in (0..).zip(&self.connections) {
            let socket = connection.as_ref().and_then(|it| it.socket.as_ref());
            if let Some(socket) = socket {
                self.tx.finish(number);
                sockets::end_sending(socket, self.rx.scratch());
            }
        }
    }
}

impl PacketIo for TcpIo {
    type Rx = TcpRx;
    type Tx = TcpTx;

    #[inline]
    fn split(&mut self) -> (&mut TcpRx, &mut TcpTx) {
        (&mut self.rx, &mut self.tx)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_address(&self) -> String {
        self.address.clone()
    }

    /// Begins to connect to an address, or returns the peer that is there already. What becomes of the connection is
    /// an event, or a datagram.
    ///
    /// # Errors
    /// If the address is malformed or its name unknown; if the kernel knows at once that nothing can be sent there;
    /// if this device has as many peers as it may; if the process is out of file descriptors.
    fn open_peer(&mut self, address: &str) -> Result<PeerId, IoError> {
        let found = HostPort::parse("tcp", address)?.resolve()?;
        let attempt = format!("open {address}");
        let mut first_error = None;
        // The first of a name's addresses that the kernel has a route to.
        for candidate in found {
            match self.open(&attempt, candidate) {
                Ok(number) => return Ok(PeerId(number)),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.expect("a name has at least one address"))
    }

    /// Forgets a peer. The connection of a peer that connected stays: if it were closed here, what the peer sends
    /// meanwhile would be lost. The peer is then like one that has just connected: its next datagram makes it known
    /// again, and it leaves without an event if none comes.
    fn close_peer(&mut self, peer: PeerId) {
        self.close(peer.0);
    }

    #[inline]
    fn max_datagram(&self, peer: PeerId) -> usize {
        self.tx.max_datagram(peer)
    }

    #[inline]
    fn poll_event(&mut self) -> Option<IoEvent> {
        if self.rx.notices().is_some() {
            self.handle_notices();
        }
        self.events.pop_front()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), IoError> {
        self.handle_notices();
        if !self.events.is_empty() || self.rx.has_pending() {
            return Ok(());
        }
        let slept = match self.waker.begin_sleep() {
            true => self.poller.sleep(self.waker.as_fd(), timeout),
            false => Ok(false),
        };
        self.waker.end_sleep();
        if slept.map_err(|error| self.wait_error(error))? {
            self.waker.drain();
        }
        self.look()
    }

    fn descriptor(&mut self) -> Option<OwnedFd> {
        self.reactor.descriptor().ok()
    }

    fn begin_wait(&mut self) -> Result<ReactorWait, IoError> {
        self.handle_notices();
        if !self.events.is_empty() || self.rx.has_pending() {
            return Ok(ReactorWait::Ready);
        }
        let wait = match self.waker.begin_sleep() {
            false => ReactorWait::Ready,
            true => match self.reactor.arm([self.poller.as_fd(), self.waker.as_fd()]) {
                Ok(()) => return Ok(ReactorWait::Begun),
                Err(_) => ReactorWait::Unsupported,
            },
        };
        self.waker.end_sleep();
        Ok(wait)
    }

    fn end_wait(&mut self) -> Result<(), IoError> {
        self.waker.end_sleep();
        self.waker.drain();
        self.look()
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.waker) as Arc<dyn Wake>
    }

    fn report(&self) -> DeviceReport {
        DeviceReport {
            mode: None,
            counts: vec![
                ("rx_socket", self.rx.received()),
                ("tx_socket", self.tx.sent()),
                ("peers_refused", self.counts.refused),
                ("peers_evicted", self.counts.evicted),
                ("peers_timed_out", self.counts.timed_out),
                ("peers_cut_off", self.counts.cut_off),
            ],
        }
    }
}

fn bind_error(attempt: &str, error: io::Error) -> IoError {
    let (fault, remedy) = match error.kind() {
        io::ErrorKind::AddrInUse => (
            Fault::Host,
            "stop the process that has the port, or use another; `ss -tlpn` shows who has it",
        ),
        io::ErrorKind::PermissionDenied => (
            Fault::Host,
            "use a port above 1023, or run with CAP_NET_BIND_SERVICE",
        ),
        io::ErrorKind::AddrNotAvailable => (
            Fault::Caller,
            "use an address of this host; `ip address` lists them",
        ),
        _ => return host_error(attempt, error),
    };
    IoError::from_os(fault, attempt, error, remedy)
}

/// An error of the host, with a remedy by its kind.
fn host_error(attempt: &str, error: io::Error) -> IoError {
    let remedy = match Errno::from_io_error(&error) {
        Some(Errno::MFILE | Errno::NFILE) => "raise the limit of open files (ulimit -n)",
        Some(Errno::NOMEM | Errno::NOBUFS) => "free some memory of this host",
        _ => "check this host's network set-up",
    };
    IoError::from_os(Fault::Host, attempt, error, remedy)
}
