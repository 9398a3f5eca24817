//! Two or more protocols joined by a wire that a test can cut, in virtual time.

use std::collections::VecDeque;
use std::net::SocketAddr;

use starling_proto::{
    Body, Config, Event, FrameSink, Incoming, Msgbuf, PeerId, Prefix, Protocol, RequestError,
    RequestId, Secrets, SessionError, SessionId, SinkError, Source, Tag,
};

/// Time that a datagram is on its way.
pub(crate) const FLIGHT_NS: u64 = 5_000;

/// What a host says to its peers: peer `n` is host `n`.
#[derive(Default)]
pub(crate) struct Wire {
    me: usize,
    open: Vec<(usize, Vec<u8>)>,
    sent: Vec<(usize, Vec<u8>)>,
    pub(crate) mtu: usize,
    /// What the peers take, as the protocol says.
    pub(crate) limit: Option<usize>,
    /// Frames that are taken before the sink is full.
    pub(crate) room: usize,
    /// Hosts that were admitted as peers.
    known: Vec<usize>,
}

fn address(host: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host as u8], 1))
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
        let host = peer.0 as usize;
        let len = head.len() + body.len() + tail.len();
        let width = self.limit.unwrap_or(self.mtu).min(self.mtu);
        assert!(preamble.len() + len <= width, "frame of {len} bytes");
        let at = self.open.iter().position(|(to, _)| *to == host);
        let fits = at.is_some_and(|at| self.open[at].1.len() + len <= width);
        if !fits {
            self.seal(peer);
            self.open.push((host, preamble.to_vec()));
        }
        let at = self.open.iter().position(|(to, _)| *to == host).unwrap();
        for part in [head, body, tail] {
            self.open[at].1.extend_from_slice(part);
        }
        Ok(())
    }

    fn seal(&mut self, peer: PeerId) {
        let host = peer.0 as usize;
        if let Some(at) = self.open.iter().position(|(to, _)| *to == host) {
            self.sent.push(self.open.remove(at));
        }
    }

    fn reply(&mut self, to: SocketAddr, datagram: &[u8]) {
        let SocketAddr::V4(to) = to else {
            panic!("an address of this net")
        };
        self.sent
            .push((usize::from(to.ip().octets()[3]), datagram.to_vec()));
    }

    fn accept_peer(&mut self, address: SocketAddr) -> Option<PeerId> {
        let SocketAddr::V4(address) = address else {
            panic!("an address of this net")
        };
        let host = usize::from(address.ip().octets()[3]);
        self.known.push(host);
        Some(PeerId(host as u32))
    }

    fn limit_datagram(&mut self, _: PeerId, bytes: usize) {
        self.limit = Some(bytes.min(self.limit.unwrap_or(bytes)));
    }

    fn max_datagram(&self, _: PeerId) -> usize {
        self.mtu
    }
}

/// What a host's application saw.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Connected(SessionId),
    Ended(SessionId, SessionError),
    Answer(Tag, Vec<u8>),
    Failed(Tag, RequestError),
    Abandoned(RequestId),
    Released(PeerId),
}

pub(crate) struct Host {
    pub(crate) protocol: Protocol,
    pub(crate) wire: Wire,
    pub(crate) seen: Vec<Seen>,
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

type Delay = dyn FnMut(usize, &[u8]) -> u64;

pub(crate) struct Net {
    pub(crate) now: u64,
    pub(crate) hosts: Vec<Host>,
    flying: VecDeque<(u64, usize, usize, Vec<u8>)>,
    /// Decides the fate of datagram number `n` from one host to another: how many copies arrive.
    pub(crate) fate: Box<dyn FnMut(u64, usize, usize) -> usize>,
    /// How much longer than others a datagram of a host is on its way.
    pub(crate) delay: Box<Delay>,
    count: u64,
    /// All that was sent, with its sender: for replays.
    pub(crate) log: Vec<(usize, Vec<u8>)>,
}

impl Host {
    pub(crate) fn new(index: usize, config: Config, incarnation: u32, now: u64) -> Self {
        let secrets = Secrets {
            token: 1000 * incarnation + index as u32 + 1,
            cookie_key: [index as u8; 16],
        };
        Self {
            protocol: Protocol::new(config, secrets, now).expect("a sound configuration"),
            wire: Wire {
                me: index,
                mtu: 1500,
                room: usize::MAX,
                ..Wire::default()
            },
            seen: Vec::new(),
            ran: Vec::new(),
            not_run: Vec::new(),
            echo: true,
            alive: true,
            marked: false,
        }
    }

    pub(crate) fn connect(&mut self, now: u64, to: usize) -> SessionId {
        self.wire.known.push(to);
        self.protocol
            .connect(now, PeerId(to as u32), &mut self.wire)
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

    pub(crate) fn take(&mut self, now: u64, from: usize, datagram: &[u8]) {
        let source = if self.wire.known.contains(&from) {
            Source::Peer(PeerId(from as u32))
        } else {
            Source::Unknown(address(from))
        };
        let opened =
            self.protocol
                .handle_datagram(now, source, self.marked, datagram, &mut self.wire);
        let Ok(mut frames) = opened else {
            return;
        };
        while let Some(incoming) = self
            .protocol
            .poll_incoming(now, &mut frames, &mut self.wire)
        {
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
                Incoming::Response { tag, body, .. } => {
                    self.seen.push(Seen::Answer(tag, owned(body)));
                }
                Incoming::Cancelled { .. } => {}
            }
        }
    }

    fn finish_turn(&mut self, now: u64) {
        self.protocol.flush(now, &mut self.wire);
        while let Some(event) = self.protocol.poll_event() {
            self.seen.push(match event {
                Event::Connected { session } => Seen::Connected(session),
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
                Event::PeerReleased { peer } => {
                    self.wire.known.retain(|known| *known != peer.0 as usize);
                    Seen::Released(peer)
                }
            });
        }
    }
}

fn owned(body: Body<'_>) -> Vec<u8> {
    body.bytes().to_vec()
}

impl Net {
    /// Host 0 is the client, host 1 the server.
    pub(crate) fn new(configs: impl IntoIterator<Item = Config>) -> Self {
        Self {
            now: 1_000_000_000,
            hosts: configs
                .into_iter()
                .enumerate()
                .map(|(index, config)| Host::new(index, config, 1, 1_000_000_000))
                .collect(),
            flying: VecDeque::new(),
            fate: Box::new(|_, _, _| 1),
            delay: Box::new(|_, _| 0),
            count: 0,
            log: Vec::new(),
        }
    }

    pub(crate) fn pair() -> Self {
        Self::new([Config::default(), Config::default()])
    }

    /// Sends a datagram as if from `from`, whatever is in it.
    pub(crate) fn inject(&mut self, from: usize, to: usize, datagram: Vec<u8>) {
        self.flying
            .push_back((self.now + FLIGHT_NS, from, to, datagram));
    }

    fn send_all(&mut self) {
        for host in &mut self.hosts {
            let mut sent = std::mem::take(&mut host.wire.sent);
            sent.append(&mut host.wire.open);
            for (to, datagram) in sent {
                self.count += 1;
                self.log.push((host.wire.me, datagram.clone()));
                let copies = (self.fate)(self.count, host.wire.me, to);
                let at = self.now + FLIGHT_NS + (self.delay)(host.wire.me, &datagram);
                for _ in 0..copies {
                    let behind = self.flying.partition_point(|flying| flying.0 <= at);
                    let flying = (at, host.wire.me, to, datagram.clone());
                    self.flying.insert(behind, flying);
                }
            }
        }
    }

    /// Lets time pass until `until`, from event to event.
    pub(crate) fn run_until(&mut self, until: u64) {
        loop {
            for host in self.hosts.iter_mut().filter(|host| host.alive) {
                host.finish_turn(self.now);
            }
            self.send_all();
            let arrival = self.flying.front().map(|(at, ..)| *at);
            let timeouts = self
                .hosts
                .iter()
                .filter(|host| host.alive)
                .filter_map(|host| host.protocol.poll_timeout());
            let next = timeouts.chain(arrival).min().unwrap_or(u64::MAX);
            // A timer may be due now: it takes a turn, and time moves by a little all the same.
            self.now = next.max(self.now + 100).min(until.max(self.now));
            if next > until || self.now >= until {
                self.now = until.max(self.now);
                return;
            }
            while self.flying.front().is_some_and(|(at, ..)| *at <= self.now) {
                let (_, from, to, datagram) = self.flying.pop_front().unwrap();
                let now = self.now;
                if let Some(host) = self.hosts.get_mut(to).filter(|host| host.alive) {
                    host.take(now, from, &datagram);
                }
            }
        }
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
        self.count
    }
}
