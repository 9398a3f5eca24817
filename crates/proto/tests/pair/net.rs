//! Two or more protocols on the simulator's network. A test decides which datagrams the network loses,
//! delays and marks.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use starling_io::{Ecn, PacketIo, PacketRx, PacketTx, TxError};
use starling_proto::{
    Body, Config, Event, FrameSink, Incoming, Msgbuf, Origin, PeerId, Prefix, Protocol,
    RequestError, RequestId, Secrets, SessionError, SessionId, SinkError, Source, Tag, Tail,
};
use starling_sim::{
    Departure, Fabric, FabricConfig, HostId, LinkConfig, ReceiveLimits, SharedFabric, SimIo, Step,
    Treatment,
};

/// Time that a datagram is on its way.
pub(crate) const FLIGHT_NS: u64 = 5_000;

/// When a test begins.
const START_NS: u64 = 1_000_000_000;

/// A host's device. Its protocol knows host `n` as peer `n`.
pub(crate) struct Wire {
    io: SimIo,
    /// Hosts that are peers, and the device's numbers for them.
    peers: Vec<(usize, starling_io::PeerId)>,
    pub(crate) mtu: usize,
    /// The largest datagram that the peers take, as the protocol says.
    pub(crate) limit: Option<usize>,
    /// Frames that the sink takes before it is full.
    pub(crate) room: usize,
    /// The origins of the first hosts; each other host is of its own.
    pub(crate) origins: Vec<u64>,
}

fn address(host: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host as u8], 4000))
}

fn host_at(address: SocketAddr) -> usize {
    let SocketAddr::V4(address) = address else {
        panic!("{address} is not of this network")
    };
    usize::from(address.ip().octets()[3])
}

impl Wire {
    fn new(fabric: &SharedFabric, host: usize) -> Self {
        Self {
            io: SimIo::new(fabric, HostId(host as u32)),
            peers: Vec::new(),
            mtu: 1500,
            limit: None,
            room: usize::MAX,
            origins: Vec::new(),
        }
    }

    /// The device's number for `host`, if that is a peer.
    fn number(&self, host: usize) -> Option<starling_io::PeerId> {
        let mut peers = self.peers.iter();
        peers.find(|(of, _)| *of == host).map(|(_, number)| *number)
    }

    fn open_peer(&mut self, host: usize) -> PeerId {
        if self.number(host).is_none() {
            let url = format!("sim://{}", address(host));
            let number = self.io.open_peer(&url).expect("a host of this network");
            self.io.split().1.limit_datagram(number, self.mtu);
            self.peers.push((host, number));
        }
        PeerId(host as u32)
    }

    fn close_peer(&mut self, host: usize) {
        if let Some(number) = self.number(host) {
            self.io.close_peer(number);
            self.peers.retain(|(of, _)| *of != host);
        }
    }

    /// The datagrams that have arrived: the sender, whether it is marked, and the bytes.
    fn receive(&mut self) -> Vec<(usize, bool, Vec<u8>)> {
        let mut received = Vec::new();
        let (rx, _) = self.io.split();
        while let count @ 1.. = rx.rx_burst().expect("the simulator does not fail") {
            for index in 0..count {
                let datagram = rx.datagram(index);
                let from = match datagram.source {
                    starling_io::Source::Unknown(address) => host_at(address),
                    starling_io::Source::Peer(number) => {
                        let mut peers = self.peers.iter();
                        peers.find(|(_, of)| *of == number).expect("a peer").0
                    }
                };
                let marked = datagram.ecn == Ecn::CongestionExperienced;
                received.push((from, marked, datagram.bytes.to_vec()));
            }
        }
        received
    }
}

impl FrameSink for Wire {
    fn push(
        &mut self,
        peer: PeerId,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), SinkError> {
        if self.room == 0 {
            return Err(SinkError::Full);
        }
        self.room -= 1;
        let len = head.len() + body.len() + tail.len();
        let width = self.limit.unwrap_or(self.mtu).min(self.mtu);
        assert!(preamble.len() + len <= width, "frame of {len} bytes");
        let number = self.number(peer.0 as usize).ok_or(SinkError::Gone)?;
        let (_, tx) = self.io.split();
        tx.append(number, preamble, head, body, tail)
            .map_err(|error| match error {
                TxError::Full => SinkError::Full,
                TxError::Gone => SinkError::Gone,
            })
    }

    fn seal(&mut self, peer: PeerId) {
        if let Some(number) = self.number(peer.0 as usize) {
            self.io.split().1.seal(number);
        }
    }

    fn reply(&mut self, to: SocketAddr, datagram: &[u8]) {
        self.io.split().1.send_to_unknown(to, datagram);
    }

    fn accept_peer(&mut self, address: SocketAddr) -> Option<PeerId> {
        Some(self.open_peer(host_at(address)))
    }

    fn origin(&self, peer: PeerId) -> Origin {
        let own = u64::from(peer.0);
        Origin(self.origins.get(peer.0 as usize).copied().unwrap_or(own))
    }

    fn address(&self, peer: PeerId) -> Option<SocketAddr> {
        Some(address(peer.0 as usize))
    }

    fn limit_datagram(&mut self, peer: PeerId, bytes: usize) {
        self.limit = Some(bytes.min(self.limit.unwrap_or(bytes)));
        if let Some(number) = self.number(peer.0 as usize) {
            self.io.split().1.limit_datagram(number, bytes);
        }
    }

    fn max_datagram(&self, _: PeerId) -> usize {
        self.mtu
    }
}

/// An event that a host's application saw.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Connected(SessionId),
    Draining(SessionId),
    Ended(SessionId, SessionError),
    Answer(Tag, Vec<u8>),
    Failed(Tag, RequestError),
    Abandoned(RequestId),
    Standstill(SessionId),
    Released(PeerId),
}

pub(crate) struct Host {
    pub(crate) protocol: Protocol,
    pub(crate) wire: Wire,
    pub(crate) seen: Vec<Seen>,
    /// The sessions of its answered requests.
    pub(crate) answered_on: HashSet<SessionId>,
    /// Requests that were handed over, in order, with their bodies.
    pub(crate) ran: Vec<(RequestId, Vec<u8>)>,
    /// Requests that failed and cannot have run.
    pub(crate) not_run: Vec<Tag>,
    /// Answer at once, with the request's bytes reversed.
    pub(crate) echo: bool,
    pub(crate) alive: bool,
    /// Datagrams to it have a congestion mark.
    pub(crate) marked: bool,
}

/// Decides how many copies of datagram number `n` from one host to another arrive.
type Fate = Box<dyn FnMut(u64, usize, usize) -> usize + Send>;

/// How much longer than others a datagram of a host is on its way, ns.
type Delay = Box<dyn FnMut(usize, &[u8]) -> u64 + Send>;

/// The faults that the network applies to datagrams, and the datagrams that it saw.
struct Faults {
    fate: Fate,
    delay: Delay,
    /// Which hosts receive every datagram with a congestion mark.
    marked: Vec<bool>,
    log: Vec<(usize, Vec<u8>)>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            fate: Box::new(|_, _, _| 1),
            delay: Box::new(|_, _| 0),
            marked: Vec::new(),
            log: Vec::new(),
        }
    }
}

impl Faults {
    fn treat(&mut self, departure: Departure<'_>) -> Treatment {
        let (from, to) = (departure.from.0 as usize, departure.to.0 as usize);
        self.log.push((from, departure.bytes.to_vec()));
        Treatment {
            copies: (self.fate)(departure.number, from, to),
            delay_ns: (self.delay)(from, departure.bytes),
            marked: self.marked.get(to).is_some_and(|marked| *marked),
        }
    }
}

pub(crate) struct Net {
    pub(crate) now: u64,
    pub(crate) hosts: Vec<Host>,
    pub(crate) fate: Fate,
    pub(crate) delay: Delay,
    /// All datagrams that were sent, with their senders, so that a test can replay them.
    pub(crate) log: Vec<(usize, Vec<u8>)>,
    fabric: SharedFabric,
    faults: Arc<Mutex<Faults>>,
}

impl Host {
    fn new(fabric: &SharedFabric, index: usize, config: Config, incarnation: u32) -> Self {
        let secrets = Secrets {
            token_key: [(10 * incarnation) as u8 + index as u8; 16],
            cookie_key: [index as u8; 16],
        };
        let now = fabric.lock().now_ns();
        Self {
            protocol: Protocol::new(config, secrets, now).expect("a sound configuration"),
            wire: Wire::new(fabric, index),
            seen: Vec::new(),
            answered_on: HashSet::new(),
            ran: Vec::new(),
            not_run: Vec::new(),
            echo: true,
            alive: true,
            marked: false,
        }
    }

    pub(crate) fn connect(&mut self, now: u64, to: usize) -> SessionId {
        let peer = self.wire.open_peer(to);
        self.protocol
            .connect(now, peer, &mut self.wire)
            .expect("room for a session")
    }

    pub(crate) fn request(&mut self, now: u64, session: SessionId, tag: Tag, body: &[u8]) -> u64 {
        let message = Msgbuf::from_vec(body.to_vec());
        self.protocol
            .request(now, session, message, Prefix::NONE, tag, &mut self.wire)
            .expect("taken")
    }

    pub(crate) fn respond(&mut self, now: u64, id: RequestId, body: &[u8]) -> bool {
        let mut message = Msgbuf::from_vec(body.to_vec());
        self.protocol
            .respond(now, id, &mut message, Prefix::NONE, &mut self.wire)
            .is_ok()
    }

    /// Whom the device takes host `from` for now.
    fn source(&self, from: usize) -> Source {
        match self.wire.number(from) {
            Some(_) => Source::Peer(PeerId(from as u32)),
            None => Source::Unknown(address(from)),
        }
    }

    /// Takes a datagram of host `from`, with a congestion mark or without.
    pub(crate) fn take(&mut self, now: u64, from: usize, marked: bool, datagram: &[u8]) {
        self.take_from(now, self.source(from), marked, datagram);
    }

    fn take_from(&mut self, now: u64, source: Source, marked: bool, datagram: &[u8]) {
        let opened = self
            .protocol
            .handle_datagram(now, source, marked, datagram, &mut self.wire);
        let Ok(mut frames) = opened else {
            return;
        };
        while let Some(incoming) = self
            .protocol
            .poll_incoming(now, &mut frames, &mut self.wire)
        {
            self.handle(now, incoming);
        }
    }

    /// Takes a datagram of host `from` whose end is in that host's memory.
    pub(crate) fn take_tailed(&mut self, now: u64, from: usize, head: &[u8], tail: &dyn Tail) {
        let source = self.source(from);
        let frames = (self.protocol)
            .handle_datagram(now, source, false, head, &mut self.wire)
            .expect("a datagram of a peer");
        let incoming = (self.protocol).handle_tailed(now, frames, tail, &mut self.wire);
        if let Some(incoming) = incoming {
            let (Incoming::Request { body, .. } | Incoming::Response { body, .. }) = &incoming
            else {
                panic!("no message: {incoming:?}");
            };
            assert!(matches!(body, Body::Owned(_)), "it can stay where it is");
            self.handle(now, incoming);
        }
    }

    fn handle(&mut self, now: u64, incoming: Incoming<'_>) {
        match incoming {
            Incoming::Request { id, body, .. } => {
                let body = owned(body);
                if self.echo {
                    let mut reply = self.protocol.buffer();
                    reply.head_mut().extend(body.iter().rev());
                    self.protocol
                        .respond(now, id, &mut reply, Prefix::NONE, &mut self.wire)
                        .expect("the client waits");
                    assert!(reply.is_empty(), "for the next response");
                    self.protocol.recycle(reply);
                }
                self.ran.push((id, body));
            }
            Incoming::Response {
                session, tag, body, ..
            } => {
                self.answered_on.insert(session);
                self.seen.push(Seen::Answer(tag, owned(body)));
            }
            Incoming::Cancelled { .. } => {}
        }
    }

    /// Makes one turn: takes the datagrams that have arrived, and sends those that are due.
    fn turn(&mut self, now: u64) {
        // The device names the senders of a burst before the protocol sees the first datagram of it.
        let burst = self.wire.receive();
        let sources: Vec<Source> = burst.iter().map(|(from, ..)| self.source(*from)).collect();
        for (source, (_, marked, datagram)) in sources.into_iter().zip(burst) {
            self.take_from(now, source, marked, &datagram);
        }
        self.protocol.flush(now, &mut self.wire);
        while let Some(event) = self.protocol.poll_event() {
            self.seen.push(match event {
                Event::Connected { session } => Seen::Connected(session),
                Event::SessionDraining { session } => Seen::Draining(session),
                Event::SessionEnded { session, error } => Seen::Ended(session, error),
                Event::RequestFailed {
                    tag,
                    error,
                    may_have_run,
                    ..
                } => {
                    self.not_run.extend((!may_have_run).then_some(tag));
                    Seen::Failed(tag, error)
                }
                Event::RequestAbandoned { id } => Seen::Abandoned(id),
                Event::Standstill { session } => Seen::Standstill(session),
                Event::PeerReleased { peer } => {
                    self.wire.close_peer(peer.0 as usize);
                    Seen::Released(peer)
                }
            });
        }
        let (_, tx) = self.wire.io.split();
        tx.flush().expect("the simulator does not fail");
    }
}

fn owned(body: Body<'_>) -> Vec<u8> {
    body.bytes().to_vec()
}

impl Net {
    /// How the datagrams of a host begin for another one, whose token it has learned.
    pub(crate) fn preamble(&self, from: usize, to: usize) -> Vec<u8> {
        let token = self.hosts[from].protocol.incarnation(PeerId(to as u32));
        assert_ne!(token, 0, "host {from} has no session with host {to}");
        token.to_le_bytes().to_vec()
    }

    /// Host 0 is the client, host 1 the server.
    pub(crate) fn new(configs: impl IntoIterator<Item = Config>) -> Self {
        let fabric = Fabric::shared(FabricConfig {
            max_datagram: 1 << 20,
            link: LinkConfig {
                rate_bps: u64::MAX,
                propagation_ns: FLIGHT_NS,
                queue_bytes: u64::MAX,
            },
            receive: ReceiveLimits {
                datagrams: usize::MAX,
                bytes: usize::MAX,
            },
            poll_ns: 0,
            ..FabricConfig::default()
        });
        let faults = Arc::new(Mutex::new(Faults::default()));
        let hook = faults.clone();
        fabric
            .lock()
            .set_departure_hook(Some(Box::new(move |departure| {
                hook.lock().treat(departure)
            })));
        let mut net = Self {
            now: START_NS,
            hosts: Vec::new(),
            fate: Faults::default().fate,
            delay: Faults::default().delay,
            log: Vec::new(),
            fabric,
            faults,
        };
        net.catch_up();
        for (index, config) in configs.into_iter().enumerate() {
            net.fabric.lock().add_host();
            let host = Host::new(&net.fabric, index, config, 1);
            net.hosts.push(host);
        }
        net
    }

    /// Replaces a host by its next incarnation, which has no state of the former one.
    pub(crate) fn restart(&mut self, host: usize, config: Config) {
        let id = HostId(host as u32);
        self.fabric.lock().crash(id);
        self.fabric.lock().restart(id);
        self.hosts[host] = Host::new(&self.fabric, host, config, 2);
    }

    pub(crate) fn pair() -> Self {
        Self::new([Config::default(), Config::default()])
    }

    /// Sends a datagram with any contents as if from `from`.
    pub(crate) fn inject(&mut self, from: usize, to: usize, datagram: Vec<u8>) {
        let mut fabric = self.fabric.lock();
        let at = self.now + FLIGHT_NS;
        fabric.inject(at, address(from), HostId(to as u32), datagram);
    }

    /// Brings the network to the test's time, without a turn of any host.
    fn catch_up(&mut self) {
        let mut fabric = self.fabric.lock();
        fabric.set_timer(self.now, 0);
        while let Some(Step::Turn(_)) = fabric.step() {}
    }

    /// Hands the test's faults to the network, or takes them back.
    fn exchange_faults(&mut self) {
        let mut faults = self.faults.lock();
        std::mem::swap(&mut faults.fate, &mut self.fate);
        std::mem::swap(&mut faults.delay, &mut self.delay);
        faults.marked = self.hosts.iter().map(|host| host.marked).collect();
        self.log.append(&mut faults.log);
    }

    fn turns(&mut self) {
        for host in &mut self.hosts {
            if host.alive {
                host.turn(self.now);
            } else {
                host.wire.receive();
            }
        }
    }

    /// Lets time pass until `until`, from event to event.
    pub(crate) fn run_until(&mut self, until: u64) {
        self.exchange_faults();
        self.catch_up();
        self.fabric.lock().set_timer(until, 0);
        loop {
            self.turns();
            let mut fabric = self.fabric.lock();
            for (index, host) in self.hosts.iter().enumerate() {
                if let (true, Some(timeout)) = (host.alive, host.protocol.poll_timeout()) {
                    // A timer may be due now: it takes a turn, and time moves by a little all the
                    // same.
                    fabric.wake_at(HostId(index as u32), timeout.max(self.now + 100));
                }
            }
            let step = fabric.step();
            self.now = fabric.now_ns();
            if !matches!(step, Some(Step::Turn(_))) {
                break;
            }
        }
        self.turns();
        self.exchange_faults();
    }

    pub(crate) fn run_ms(&mut self, ms: u64) {
        self.run_until(self.now + ms * 1_000_000);
    }

    pub(crate) fn connect(&mut self, from: usize, to: usize) -> SessionId {
        let now = self.now;
        self.hosts[from].connect(now, to)
    }

    pub(crate) fn request(
        &mut self,
        from: usize,
        session: SessionId,
        tag: Tag,
        body: &[u8],
    ) -> u64 {
        let now = self.now;
        self.hosts[from].request(now, session, tag, body)
    }

    /// Datagrams sent so far.
    pub(crate) fn datagrams(&self) -> u64 {
        self.fabric.lock().counters().sent
    }
}
