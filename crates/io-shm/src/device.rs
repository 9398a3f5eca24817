//! The device: its links to peers, what happens on them, and sleeping.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use starling_io::{
    Capabilities, DeviceReport, Fault, IoError, IoEvent, PacketIo, PeerGone, PeerId, Wake,
};

use crate::config::ShmConfig;
use crate::handshake::{ANSWER_BYTES, Answer, Hello, socket_name};
use crate::lobby::{self, Guest, Lobby};
use crate::map::{Region, Ring, Side, Words, line_ring_bytes};
use crate::ring::{Consumer, Heads, LINE, Producer};
use crate::rx::ShmRx;
use crate::sleep::{EPOCH_STEP, SLEEPING, SleepWords, WANTS_SPACE};
use crate::sys::{self, Poller, Waker};
use crate::tx::ShmTx;

/// Poller key of the waker. Keys below it are peers' numbers.
const WAKER_KEY: u64 = 1 << 61;

/// A busy device reads the clock once in so many turns (a few nanoseconds each, if idle) ...
const TURNS_PER_CLOCK: u64 = 256;

/// ... and looks at its sockets this often.
const LOOK_INTERVAL: Duration = Duration::from_micros(100);

/// Messages taken from one socket in one go.
const MAX_MESSAGES: usize = 16;

/// The longest sleep if the kernel refuses the fence that makes longer ones safe.
const UNFENCED_SLEEP: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkState {
    /// We opened it; the peer has not answered yet. Datagrams flow already.
    Greeting,
    /// Both ends know each other.
    Open,
    /// The peer is gone; what it has published is being delivered.
    Draining,
    /// Nothing more will come.
    Over,
}

/// The connection to one peer.
struct Link {
    socket: Arc<OwnedFd>,
    region: Arc<Region>,
    words: Words,
    side: Side,
    state: LinkState,
    /// What it was opened as, if this end opened it.
    opened: Option<Box<str>>,
    /// How it is gone, or will be.
    gone: PeerGone,
}

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
/// Peers that connect get a number as soon as they have; a datagram is the first sign of them. One
/// that leaves without ever having sent a datagram leaves without an event, its number is free
/// again. Every other one stays until [`PacketIo::close_peer`].
pub struct ShmIo {
    rx: ShmRx,
    tx: ShmTx,
    links: Vec<Option<Link>>,
    lobby: Lobby,
    poller: Poller,
    waker: Arc<Waker>,
    config: ShmConfig,
    capabilities: Capabilities,
    address: String,
    /// At most one for each peer.
    events: VecDeque<IoEvent>,
    /// Links in the state of that name.
    draining: Vec<u32>,
    /// Peers that there was no number for, and that broke their rings, so far.
    refused: u64,
    cut_off: u64,
    /// The number of the last sleep, as it stands in a sleep word.
    epoch: u64,
    /// Calls of `poll_event`.
    calls: u64,
    /// Turns and calls so far when the clock was read for the last time.
    clock_read_at: u64,
    last_look: Instant,
}

impl ShmIo {
    /// A device that peers reach at `address`: `shm://name`, with a name of 1 to 80 letters,
    /// digits, dots, dashes and underscores. Names belong to the host, or to the network
    /// namespace in it.
    ///
    /// # Errors
    /// The address is malformed, a setting makes no sense, the name is taken, or the process has
    /// no file descriptors left.
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

    /// A device without a name: it opens peers, and nobody opens it.
    ///
    /// # Errors
    /// A setting makes no sense, or the process has no file descriptors left.
    pub fn client(config: ShmConfig) -> Result<Self, IoError> {
        let attempt = "make a shm client";
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
        let setup = || {
            let poller = Poller::new()?;
            let waker = Waker::new()?;
            poller.add(waker.bell(), WAKER_KEY)?;
            let lobby = Lobby::new(listener, &poller)?;
            Ok((poller, waker, lobby))
        };
        let (poller, waker, lobby) = setup().map_err(|error| host_error(attempt, error))?;
        let capabilities = Capabilities {
            scheme: "shm",
            reliable: true,
            ecn: false,
            rx_queue_bytes: config.ring_bytes * config.max_peers,
            // Each has its head in a line of the line ring.
            rx_queue_datagrams: line_ring_bytes() / LINE * config.max_peers,
            max_datagram: config.max_datagram_on(config.ring_bytes),
        };
        Ok(Self {
            rx: ShmRx::new(),
            tx: ShmTx::default(),
            links: Vec::new(),
            lobby,
            poller,
            waker: Arc::new(waker),
            config,
            capabilities,
            address,
            events: VecDeque::new(),
            draining: Vec::new(),
            refused: 0,
            cut_off: 0,
            epoch: 0,
            calls: 0,
            clock_read_at: 0,
            last_look: Instant::now(),
        })
    }

    /// The number of the next peer; `None` if there are as many as may be.
    fn free_number(&self) -> Option<u32> {
        let free = self.links.iter().position(|link| link.is_none());
        let number = free.unwrap_or(self.links.len());
        (number < self.config.max_peers).then_some(number as u32)
    }

    /// The live peer that was opened by this address: any number of sessions share one pair of
    /// rings.
    fn opened_as(&self, address: &str) -> Option<u32> {
        let live = |link: &Link| matches!(link.state, LinkState::Greeting | LinkState::Open);
        let found = self.links.iter().position(|link| {
            link.as_ref()
                .is_some_and(|link| live(link) && link.opened.as_deref() == Some(address))
        });
        found.map(|number| number as u32)
    }

    fn insert(
        &mut self,
        number: u32,
        side: Side,
        socket: OwnedFd,
        region: Arc<Region>,
        hello: Hello,
        opened: Option<&str>,
    ) -> rustix::io::Result<()> {
        self.poller.add(&socket, number.into())?;
        let socket = Arc::new(socket);
        let words = Words::new(&region, side);
        let max_sent = self
            .config
            .max_datagram_on(region.bulk_bytes())
            .min(hello.max_datagram);
        let outgoing = Ring::produced_by(&region, side);
        let zeroed = (region.line_bytes() / LINE - 1) as u64;
        let producer = Producer::new(outgoing, max_sent, Heads::default(), zeroed);
        let incoming = Ring::consumed_by(&region, side);
        let consumer = Consumer::new(incoming, hello.max_datagram, Heads::default());
        self.tx
            .insert(number, producer, words.clone(), Arc::clone(&socket));
        self.rx
            .insert(number, consumer, words.clone(), Arc::clone(&socket));
        let link = Link {
            socket,
            region,
            words,
            side,
            state: match side {
                Side::Connector => LinkState::Greeting,
                Side::Acceptor => LinkState::Open,
            },
            opened: opened.map(Into::into),
            gone: PeerGone::Certain,
        };
        let index = number as usize;
        if index == self.links.len() {
            self.links.push(Some(link));
        } else {
            self.links[index] = Some(link);
        }
        Ok(())
    }

    /// Makes a peer of a connection that somebody opened.
    fn admit(&mut self, guest: Guest) {
        let Some(number) = self.free_number() else {
            self.refused += 1;
            // If it cannot be told, it sees the connection close.
            let _ = sys::send(&guest.socket, &Answer::Full.encode());
            return;
        };
        let has_membarrier = sys::register_membarrier();
        if has_membarrier && guest.hello.has_membarrier {
            guest.region.use_asymmetric_fences();
        }
        // A peer that cannot be told has gone already, and that is seen at the next look.
        let _ = sys::send(&guest.socket, &Answer::Welcome { has_membarrier }.encode());
        // If the kernel has no memory left for another file to poll, the guest sees a hang-up.
        let _ = self.insert(
            number,
            Side::Acceptor,
            guest.socket,
            guest.region,
            guest.hello,
            None,
        );
    }

    /// Looks at all sockets, without waiting.
    fn look_around(&mut self, now: Instant) -> rustix::io::Result<()> {
        self.last_look = now;
        for ready in self.poller.ready()? {
            match ready.key {
                WAKER_KEY => self.waker.silence(),
                key if key >= lobby::FIRST_KEY => {
                    let guests = self
                        .lobby
                        .handle_ready(key, now, &self.poller, &self.config);
                    for guest in guests {
                        self.admit(guest);
                    }
                }
                number => self.listen_to(number as u32, ready.hung_up),
            }
        }
        self.lobby.handle_time(now, &self.poller);
        self.settle();
        Ok(())
    }

    /// Takes messages of a peer's socket.
    fn listen_to(&mut self, number: u32, mut hung_up: bool) {
        let Some(Some(link)) = self.links.get_mut(number as usize) else {
            return;
        };
        for _ in 0..MAX_MESSAGES {
            let mut message = [0; ANSWER_BYTES];
            match sys::receive(&link.socket, &mut message) {
                Ok(length) if length != 0 && link.state == LinkState::Greeting => {
                    let answer = Answer::decode(&message[..length]);
                    let Some(Answer::Welcome { has_membarrier }) = answer else {
                        link.gone = PeerGone::Refused(Answer::refusal(answer));
                        hung_up = true;
                        break;
                    };
                    link.state = LinkState::Open;
                    if has_membarrier && sys::register_membarrier() {
                        link.region.use_asymmetric_fences();
                    }
                }
                // A bell: it has done its work by being there.
                Ok(1..) => {}
                Err(Errno::AGAIN | Errno::INTR) => break,
                // It left without having read all. What it said before is still there.
                Err(Errno::CONNRESET) => hung_up = true,
                Ok(0) | Err(_) => {
                    hung_up = true;
                    break;
                }
            }
        }
        if hung_up {
            self.hung_up(number);
        }
    }

    /// The peer is gone. What it has published before is still to be delivered.
    fn hung_up(&mut self, number: u32) {
        let Some(Some(link)) = self.links.get_mut(number as usize) else {
            return;
        };
        if matches!(link.state, LinkState::Draining | LinkState::Over) {
            return;
        }
        link.state = LinkState::Draining;
        sys::hang_up(&link.socket);
        self.poller.remove(link.socket.as_fd());
        self.tx.remove(number);
        self.rx.finish(number, link.region.line_bytes());
        self.draining.push(number);
    }

    /// Ends the links of peers that broke their rings, and of gone ones that are drained.
    fn settle(&mut self) {
        let mut broken = self.rx.take_faults();
        broken.extend(self.tx.take_faults());
        broken.sort_unstable();
        broken.dedup();
        for &number in &broken {
            self.cut_off += 1;
            self.hung_up(number);
        }
        let mut index = 0;
        while let Some(&number) = self.draining.get(index) {
            if broken.contains(&number) || self.rx.is_drained(number) {
                self.draining.swap_remove(index);
                self.end(number);
            } else {
                index += 1;
            }
        }
    }

    /// Nothing more will come from a peer: tells so, or forgets one that nobody knows of.
    fn end(&mut self, number: u32) {
        let Some(Some(link)) = self.links.get_mut(number as usize) else {
            return;
        };
        link.state = LinkState::Over;
        let unknown = link.side == Side::Acceptor && !self.rx.spoke(number);
        self.rx.remove(number);
        if unknown {
            self.links[number as usize] = None;
        } else {
            let gone = IoEvent::PeerGone(PeerId(number), link.gone);
            self.events.push_back(gone);
        }
    }

    /// Tells all peers that this device sleeps, or that it is awake.
    fn tell_sleep(&self, asleep: bool) {
        for (number, link) in (0u32..).zip(&self.links) {
            let Some(link) = link else {
                continue;
            };
            let word = if !asleep {
                0
            } else if self.tx.wants_room(number) {
                self.epoch | SLEEPING | WANTS_SPACE
            } else {
                self.epoch | SLEEPING
            };
            link.words.store_own(word);
        }
    }

    /// Sleeps, if nothing is there to be done.
    fn sleep(&mut self, timeout: Option<Duration>) -> rustix::io::Result<()> {
        self.epoch += EPOCH_STEP;
        self.tell_sleep(true);
        let fenced = sys::heavy_fence();
        if self.rx.is_ready() || self.tx.take_room_news() {
            return Ok(());
        }
        let until_lobby = self
            .lobby
            .next_time()
            .map(|time| time.saturating_duration_since(Instant::now()));
        let unfenced = (!fenced).then_some(UNFENCED_SLEEP);
        let timeout = [timeout, until_lobby, unfenced].into_iter().flatten().min();
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

    /// Makes a peer of the device that is bound to `shm://name`, or returns the one that it
    /// already is.
    ///
    /// # Errors
    /// The address is malformed; nobody has the name; its owner is another user's process; too
    /// many others are connecting; this device has as many peers as it may; no file descriptors or
    /// memory.
    fn open_peer(&mut self, address: &str) -> Result<PeerId, IoError> {
        let attempt = format!("open {address}");
        let name = socket_name(&attempt, address)?;
        if let Some(number) = self.opened_as(address) {
            // It may just have gone, and somebody else have its name.
            self.listen_to(number, false);
            if self.opened_as(address) == Some(number) {
                return Ok(PeerId(number));
            }
        }
        let number = self.free_number().ok_or_else(|| {
            IoError::new(
                Fault::Host,
                &attempt,
                format!("there are {} peers already", self.config.max_peers),
                "close some, or raise max_peers",
            )
        })?;
        let peer_error = |error: Errno, remedy: &str| {
            IoError::from_os(Fault::Peer, &attempt, error.into(), remedy)
        };
        let socket = sys::connect(&name).map_err(|error| match error {
            Errno::CONNREFUSED => peer_error(
                error,
                "nobody has this name on this host: start the server, or check the name",
            ),
            Errno::AGAIN => peer_error(error, "too many others are connecting: try again"),
            Errno::PROTOTYPE => peer_error(error, "the name is not a Starling server's"),
            _ => host_error(&attempt, error),
        })?;
        if !self.config.allow_other_users && !sys::peer_is_ours_or_root(&socket).unwrap_or(false) {
            return Err(IoError::new(
                Fault::Peer,
                &attempt,
                "another user's process has this name",
                "run both as one user, or set allow_other_users",
            ));
        }
        let ring_bytes = self.config.ring_bytes;
        let hello = Hello {
            has_membarrier: sys::register_membarrier(),
            max_datagram: self.config.max_datagram_on(ring_bytes),
            ring_bytes,
        };
        let (region, file) =
            Region::create(ring_bytes).map_err(|error| host_error(&attempt, error))?;
        sys::send_with_file(&socket, &hello.encode(), file.as_fd())
            .map_err(|error| peer_error(error, "the server has just gone: start it again"))?;
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
        Ok(PeerId(number))
    }

    /// A peer that opened this device, and lives, keeps its rings: only who opened a link hangs it
    /// up. Otherwise this end could do so just when the other one begins to use it again, and what
    /// that sends would be lost. Like one that has just connected it is a peer again with its next
    /// datagram, and leaves without an event if none comes.
    fn close_peer(&mut self, peer: PeerId) {
        let Some(place) = self.links.get_mut(peer.0 as usize) else {
            return;
        };
        if let Some(link) = place
            && link.side == Side::Acceptor
            && link.state == LinkState::Open
        {
            self.rx.forget_speech(peer.0);
            return;
        }
        let Some(link) = place.take() else {
            return;
        };
        sys::hang_up(&link.socket);
        self.poller.remove(link.socket.as_fd());
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

    #[inline]
    fn poll_event(&mut self) -> Option<IoEvent> {
        self.calls += 1;
        let turns = self.calls + self.rx.turns();
        if turns - self.clock_read_at >= TURNS_PER_CLOCK {
            self.clock_read_at = turns;
            self.settle();
            let now = Instant::now();
            if now.saturating_duration_since(self.last_look) >= LOOK_INTERVAL {
                self.look_around(now)
                    .expect("polling our own epoll set cannot fail");
            }
        }
        self.events.pop_front()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), IoError> {
        self.settle();
        let slept = if self.events.is_empty() && self.waker.fall_asleep() {
            let slept = self.sleep(timeout);
            self.tell_sleep(false);
            slept
        } else {
            Ok(())
        };
        self.waker.wake_up();
        slept
            .and_then(|()| self.look_around(Instant::now()))
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
                ("peers_refused", self.refused),
                ("peers_cut_off", self.cut_off),
            ],
        }
    }
}

/// An error of the host, for whatever reason.
fn host_error(attempt: &str, error: Errno) -> IoError {
    let remedy = match error {
        Errno::MFILE | Errno::NFILE => "raise the limit of open files (ulimit -n)",
        Errno::NOMEM | Errno::NOBUFS => "free memory, or set a smaller ring_bytes",
        _ => "check that this process may use memfd, epoll and Unix sockets",
    };
    IoError::from_os(Fault::Host, attempt, error.into(), remedy)
}
