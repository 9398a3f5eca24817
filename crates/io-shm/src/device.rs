//! The device: opening it, sleeping, and the [`PacketIo`] over its halves and connections.

mod accept_queue;
mod admission;
mod connections;

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use starling_io::{
    Capabilities, DeviceReport, EventfdWaker, Fault, IoError, IoEvent, MessageMemory, PacketIo,
    PeerId, ReactorWait, Wake,
};

pub use self::accept_queue::{AcceptQueue, AcceptQueues};
use self::accept_queue::{Assign, OwnQueue};
pub use self::admission::PeersBudget;
use self::admission::{AdmissionCounts, Places};
use self::connections::{Connection, ConnectionState, PeerHeap};
use crate::address::{ShmAddress, socket_name};
use crate::client_heaps::ClientHeaps;
use crate::closer::{Closer, PeerSocket};
use crate::config::ShmConfig;
use crate::handshake::{Abilities, Hello};
use crate::heap::MessageHeap;
use crate::map::{Region, Side, line_ring_bytes};
use crate::pending::{self, PendingHandshakes};
use crate::ring::LINE;
use crate::rx::ShmRx;
use crate::sleep::{EPOCH_STEP, SLEEPING, SleepWords, WANTS_SPACE};
use crate::sys::{self, Poller, Ready};
use crate::tx::{Heaps, ShmTx};
use crate::users;

/// Poller key of the waker. Keys below it are peers' numbers.
const WAKER_KEY: u64 = 1 << 61;

/// A busy device reads the clock once in so many turns (an idle turn takes a few nanoseconds) ...
const TURNS_PER_CLOCK_READ: u64 = 256;

/// ... and polls its sockets this often.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// The longest sleep if the kernel refuses the fence that makes longer sleeps safe.
const UNFENCED_SLEEP: Duration = Duration::from_millis(1);

/// Packet I/O over shared memory, for one thread.
///
/// ```
/// use starling_io::{PacketIo, PacketRx, PacketTx};
/// use starling_io_shm::{ShmConfig, ShmIo};
///
/// # fn main() -> Result<(), starling_io::IoError> {
/// let name = format!("shm://doc-{}", std::process::id());
/// let mut server = ShmIo::bind(&name, ShmConfig::default())?;
/// let mut client = ShmIo::client(ShmConfig::default())?;
///
/// let peer = client.open_peer(&name)?;
/// let (_, tx) = client.split();
/// tx.append(peer, b"preamble", b"head", b"body", b"tail").unwrap();
/// tx.flush()?;
///
/// server.wait(None)?;
/// let (rx, _) = server.split();
/// assert_eq!(rx.rx_burst()?, 1);
/// assert_eq!(rx.datagram(0).bytes, b"preambleheadbodytail");
/// # Ok(())
/// # }
/// ```
///
/// A peer that connects gets a number at once; its first datagram makes it known. A peer that leaves
/// without having sent a datagram causes no event, and its number is free again. Every other peer
/// stays until [`PacketIo::close_peer`].
pub struct ShmIo {
    rx: ShmRx,
    tx: ShmTx,
    /// By peer number. `rx` and `tx` have tables with the same numbers, so no one `slab` owns them.
    connections: Vec<Option<Connection>>,
    handshakes: PendingHandshakes,
    /// Says which device gets a connection that comes to the name.
    assign: Option<Box<Assign>>,
    /// The way by which connections come from the device that listens.
    queue: Option<OwnQueue>,
    closer: Closer,
    poller: Poller,
    waker: Arc<EventfdWaker>,
    config: ShmConfig,
    capabilities: Capabilities,
    address: String,
    /// At most one for each peer.
    events: VecDeque<IoEvent>,
    /// Peers whose connections are in [`ConnectionState::Draining`].
    draining: Vec<u32>,
    places: Places,
    counts: AdmissionCounts,
    /// Peers that became silent, so far.
    silences: u64,
    /// Peers that broke their rings, so far.
    cut_off: u64,
    /// The number of the last sleep, in the form of a sleep word.
    epoch: u64,
    /// Calls of `poll_event`.
    calls: u64,
    /// Turns and calls when the clock was last read.
    clock_read_at: u64,
    last_poll: Instant,
}

impl ShmIo {
    /// A device that peers reach at `address`: `shm://name`, with a name of 1 to 80 letters,
    /// digits, dots, dashes and underscores. Names belong to the host, or to the network
    /// namespace in it.
    ///
    /// # Errors
    /// If the address is malformed, a setting is invalid, the name is taken, or the process has no
    /// file descriptors left.
    pub fn bind(address: &str, config: ShmConfig) -> Result<Self, IoError> {
        let attempt = format!("bind {address}");
        let name = socket_name(&attempt, address)?;
        config.check(&attempt)?;
        let listener = sys::listen(&name).map_err(|error| match error {
            Errno::ADDRINUSE => IoError::from_os(
                Fault::Host,
                &attempt,
                error.into(),
                match sys::listener_process(&name) {
                    Some(id) => {
                        format!("choose another name, or end process {id}, which has this one")
                    }
                    None => "choose another name, or end the process that has this one".into(),
                },
            ),
            _ => host_error(&attempt, error),
        })?;
        Self::new(&attempt, Some(listener), address.to_owned(), config)
    }

    /// A device without a name: it opens peers, and no peer can open it.
    ///
    /// # Errors
    /// If a setting is invalid, or the process has no file descriptors left.
    pub fn client(config: ShmConfig) -> Result<Self, IoError> {
        let attempt = "open a shm client";
        config.check(attempt)?;
        Self::new(attempt, None, "shm://(unnamed)".to_owned(), config)
    }

    fn new(
        attempt: &str,
        listener: Option<OwnedFd>,
        address: String,
        config: ShmConfig,
    ) -> Result<Self, IoError> {
        sys::register_membarrier();
        let is_client = listener.is_none();
        let closer = Closer::new();
        let places = Places::new(&config, !is_client);
        let setup = || {
            let poller = Poller::new()?;
            let waker = EventfdWaker::new()
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            poller.add(waker.as_fd(), WAKER_KEY)?;
            let handshakes = PendingHandshakes::new(listener, &closer, &poller)?;
            Ok((poller, waker, handshakes))
        };
        let heaps = match config.heap_bytes {
            0 => Heaps::None,
            bytes if is_client => Heaps::Opened(MessageHeap::new(bytes)),
            bytes => Heaps::Clients(ClientHeaps::new(bytes, places.own_heaps)),
        };
        let (poller, waker, handshakes) = setup().map_err(|error| host_error(attempt, error))?;
        let capabilities = Capabilities {
            scheme: "shm",
            reliable: true,
            ecn: false,
            rx_queue_bytes: config.ring_bytes * config.max_peers,
            // Each datagram has a record of at least one line in the line ring.
            rx_queue_datagrams: line_ring_bytes() / LINE * config.max_peers,
            max_datagram: config.max_datagram_on(config.ring_bytes),
        };
        Ok(Self {
            rx: ShmRx::new(),
            tx: ShmTx::new(heaps),
            connections: Vec::new(),
            handshakes,
            assign: None,
            queue: None,
            closer,
            poller,
            waker: Arc::new(waker),
            config,
            capabilities,
            address,
            events: VecDeque::new(),
            draining: Vec::new(),
            places,
            counts: AdmissionCounts::default(),
            silences: 0,
            cut_off: 0,
            epoch: 0,
            calls: 0,
            clock_read_at: 0,
            last_poll: Instant::now(),
        })
    }

    /// Polls all sockets without waiting.
    fn poll_sockets(&mut self, now: Instant) -> rustix::io::Result<()> {
        self.last_poll = now;
        let ready = self.poller.ready()?;
        // Peers first: one that connects may get the number of another.
        for ready in &ready {
            match ready.key {
                WAKER_KEY => self.waker.drain(),
                key if key >= pending::FIRST_KEY => {}
                number => self.handle_messages(number as u32, ready.hung_up),
            }
        }
        let handshakes = |ready: &&Ready| ready.key >= pending::FIRST_KEY;
        for Ready { key, .. } in ready.iter().filter(handshakes) {
            let completed = self
                .handshakes
                .handle_ready(*key, now, &self.poller, &self.config);
            for handshake in completed {
                self.accept_or_give(handshake);
            }
        }
        self.handshakes.handle_timeout(now, &self.poller);
        self.reap_connections();
        Ok(())
    }

    /// Stores in all sleep words whether this device sleeps.
    fn publish_sleep(&self, asleep: bool) {
        for (number, connection) in (0u32..).zip(&self.connections) {
            let Some(connection) = connection else {
                continue;
            };
            let word = if !asleep {
                0
            } else if self.tx.wants_room(number) {
                self.epoch | SLEEPING | WANTS_SPACE
            } else {
                self.epoch | SLEEPING
            };
            connection.words.store_own(word);
        }
    }

    /// Announces a sleep to all peers. Returns whether it can last: without the kernel's fence a peer may see
    /// the announcement late.
    fn announce_sleep(&mut self) -> bool {
        self.epoch += EPOCH_STEP;
        self.publish_sleep(true);
        sys::heavy_fence()
    }

    /// Whether something came before the announcement was seen.
    fn is_ready(&mut self) -> bool {
        self.rx.is_ready() || self.tx.poll_room()
    }

    /// Sleeps, unless there is something to do.
    fn sleep(&mut self, timeout: Option<Duration>) -> rustix::io::Result<()> {
        let fenced = self.announce_sleep();
        if self.is_ready() {
            return Ok(());
        }
        let until_handshake = self
            .handshakes
            .poll_timeout()
            .map(|time| time.saturating_duration_since(Instant::now()));
        let unfenced = (!fenced).then_some(UNFENCED_SLEEP);
        let timeout = [timeout, until_handshake, unfenced]
            .into_iter()
            .flatten()
            .min();
        self.poller.sleep(timeout)
    }
}

impl PacketIo for ShmIo {
    type Rx = ShmRx;
    type Tx = ShmTx;

    #[inline]
    fn split(&mut self) -> (&mut ShmRx, &mut ShmTx) {
        (&mut self.rx, &mut self.tx)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_address(&self) -> String {
        self.address.clone()
    }

    /// Makes a peer of the device that is bound to `shm://name`, or returns the peer that it
    /// already is.
    ///
    /// # Errors
    /// If the address is malformed; if no device is bound to the name, or one of another user's
    /// process; if too many others are connecting; if this device has as many peers as it may; if
    /// the process is out of file descriptors or memory. What the device at the other end refuses is an
    /// event, [`PeerGone::Refused`](starling_io::PeerGone::Refused).
    fn open_peer(&mut self, address: &str) -> Result<PeerId, IoError> {
        let attempt = format!("open {address}");
        let address = ShmAddress::parse(address)?;
        let (name, target) = (socket_name(&attempt, address.bare)?, address.target);
        let opened = address.of_peer();
        let address = &*opened;
        if let Some(number) = self.find_opened(address) {
            // The peer may just have gone, and another device have its name.
            self.handle_messages(number, false);
            if self.find_opened(address) == Some(number) {
                return Ok(PeerId(number));
            }
        }
        let number = self.free_number().ok_or_else(|| {
            IoError::new(
                Fault::Host,
                &attempt,
                format!("there are {} peers already", self.places.peers),
                "close some, or raise ShmConfig::max_peers (shm://NAME?peers=N) or the limit of open files",
            )
        })?;
        let peer_error = |error: Errno, remedy: &str| {
            IoError::from_os(Fault::Peer, &attempt, error.into(), remedy)
        };
        let socket = sys::connect(&name).map_err(|error| match error {
            Errno::CONNREFUSED => peer_error(
                error,
                "no device has this name on this host: start the server, or check the name",
            ),
            Errno::AGAIN => peer_error(error, "too many others are connecting: try again"),
            Errno::PROTOTYPE => peer_error(error, "the name is not a Starling server's"),
            _ => host_error(&attempt, error),
        })?;
        let socket = PeerSocket::new(socket, &self.closer);
        if !users::is_admitted(&socket, &self.config) {
            return Err(IoError::new(
                Fault::Peer,
                &attempt,
                "another user's process has this name",
                "run both as one user, or set ShmConfig::other_user or allow_other_users (shm://NAME?users=UID, \
                 ?users=any) at both ends",
            ));
        }
        let ring_bytes = self.config.ring_bytes;
        let heap = self.heap_for(None);
        let hello = Hello {
            abilities: Abilities::own(&self.config, heap == PeerHeap::Awaited),
            max_datagram: self.config.max_datagram_on(ring_bytes),
            ring_bytes,
            target: target.map(Into::into),
        };
        let (region, file) =
            Region::create(ring_bytes).map_err(|error| host_error(&attempt, error))?;
        let sent = sys::send_with_file(&socket, &hello.encode(), file.as_fd());
        // A server that has refused this end hung up, and said why: an event for the caller.
        if let Err(error) = sent
            && !sys::has_message(&socket)
        {
            return Err(match error {
                Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => {
                    peer_error(error, "the server has just gone: start it again")
                }
                _ => host_error(&attempt, error),
            });
        }
        let region = Arc::new(region);
        self.insert(
            number,
            Side::Connector,
            socket,
            region,
            hello,
            Some(address),
        )
        .map_err(|error| host_error(&attempt, error))?;
        if let Some(Some(connection)) = self.connections.get_mut(number as usize) {
            connection.heap = heap;
        }
        Ok(PeerId(number))
    }

    /// A living peer that opened this device keeps its rings: only the end that opened a connection closes
    /// it. Otherwise this end could close it just when the other one uses it again, and its
    /// datagrams would be lost. The peer is then like one that has just connected: its next datagram
    /// makes it known again, and it leaves without an event if none comes.
    fn close_peer(&mut self, peer: PeerId) {
        let Some(place) = self.connections.get_mut(peer.0 as usize) else {
            return;
        };
        if let Some(connection) = place
            && connection.side == Side::Acceptor
            && connection.state == ConnectionState::Open
        {
            self.set_silent(peer);
            return;
        }
        let Some(connection) = place.take() else {
            return;
        };
        self.forget(&connection);
        sys::hang_up(&connection.socket);
        self.poller.remove(connection.socket.as_fd());
        self.tx.remove(peer.0);
        self.rx.remove(peer.0);
        self.draining.retain(|&other| other != peer.0);
        self.events
            .retain(|&IoEvent::PeerGone(gone, _)| gone != peer);
    }

    fn max_datagram(&self, peer: PeerId) -> usize {
        let known = self.tx.max_datagram(peer.0);
        known.unwrap_or(self.capabilities.max_datagram)
    }

    fn memory(&self) -> MessageMemory {
        let heap = self.tx.heap().cloned();
        heap.map_or_else(MessageMemory::default, |heap| {
            MessageMemory::of_device(Arc::new(heap))
        })
    }

    #[inline]
    fn poll_event(&mut self) -> Option<IoEvent> {
        self.calls += 1;
        let turns = self.calls + self.rx.turns();
        if turns - self.clock_read_at >= TURNS_PER_CLOCK_READ {
            self.clock_read_at = turns;
            self.reap_connections();
            let now = Instant::now();
            if now.saturating_duration_since(self.last_poll) >= POLL_INTERVAL {
                self.poll_sockets(now)
                    .expect("polling the device's own epoll set cannot fail");
            }
        }
        self.events.pop_front()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), IoError> {
        self.reap_connections();
        let slept = if self.events.is_empty() && self.waker.begin_sleep() {
            let slept = self.sleep(timeout);
            self.publish_sleep(false);
            slept
        } else {
            Ok(())
        };
        self.waker.end_sleep();
        slept
            .and_then(|()| self.poll_sockets(Instant::now()))
            .map_err(|error| host_error(&format!("wait on {}", self.address), error))
    }

    fn descriptor(&mut self) -> Option<OwnedFd> {
        self.poller.descriptor().ok()
    }

    fn begin_wait(&mut self) -> Result<ReactorWait, IoError> {
        self.reap_connections();
        if !self.events.is_empty() || !self.waker.begin_sleep() {
            self.waker.end_sleep();
            return Ok(ReactorWait::Ready);
        }
        let lasts = self.announce_sleep() && self.handshakes.poll_timeout().is_none();
        let wait = match (self.is_ready(), lasts) {
            (true, _) => ReactorWait::Ready,
            (false, true) => return Ok(ReactorWait::Begun),
            (false, false) => ReactorWait::Unsupported,
        };
        self.publish_sleep(false);
        self.waker.end_sleep();
        Ok(wait)
    }

    fn end_wait(&mut self) -> Result<(), IoError> {
        self.publish_sleep(false);
        self.waker.end_sleep();
        self.poll_sockets(Instant::now())
            .map_err(|error| host_error(&format!("wait on {}", self.address), error))
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.waker) as Arc<dyn Wake>
    }

    fn report(&self) -> DeviceReport {
        DeviceReport {
            mode: None,
            counts: vec![
                ("rx_ring", self.rx.received()),
                ("tx_gathered", self.tx.gathered()),
                ("peers_refused", self.counts.refused),
                ("peers_refused_files", self.handshakes.refused_files),
                ("peers_evicted", self.counts.evicted),
                ("peers_not_permitted", self.handshakes.not_permitted),
                ("peers_cut_off", self.cut_off),
            ],
        }
    }
}

/// An error of the host, with a remedy by its kind.
fn host_error(attempt: &str, error: Errno) -> IoError {
    let remedy = match error {
        Errno::MFILE | Errno::NFILE => "raise the limit of open files (ulimit -n)",
        Errno::NOMEM | Errno::NOBUFS => "free memory, or set a smaller ring_bytes",
        _ => "check that this process may use memfd, epoll and Unix sockets",
    };
    IoError::from_os(Fault::Host, attempt, error.into(), remedy)
}
