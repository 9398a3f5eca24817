//! A host of a cluster: the event loop of one thread around the protocol that ships.
//!
//! ```text
//!  turn:  device events ─▶ one burst: handle_datagram, poll_incoming ─▶ calls ─▶ events ─▶ flush ─▶
//!         cost of the turn ─▶ next turn: the queue, a timer, a datagram
//! ```

mod process;
mod sink;

use std::collections::HashMap;

use starling_io::Clock;
use starling_proto::{
    Config, Msgbuf, Prefix, Protocol, RequestError, RequestId, Secrets, SessionId, Stats,
};

use super::capture::Capture;
use super::monitor::{Direction, Monitor, enforce, head, header_of};
use crate::check::{Credits, Leftovers, Queues, granted_within};
use crate::cpu::Work;
use crate::fabric::{HostId, SharedFabric};
use crate::io::{SimClock, SimIo};
use crate::rng::Rng;
use sink::CapturingSink;

/// A request longer than this is sent from memory that all calls share.
const COPIED_BYTES: usize = 1024;

/// A host without a cost model is given one turn in so many ns.
const MIN_TURN_NS: u64 = 100;

/// A host with more channels than this checks a session's credits once in so many turns, and asks
/// for its sessions' memory ahead.
const PREFETCH_MIN_HOSTS: usize = 64;
const CROWD_TURNS: u32 = 16;

/// The applications on all hosts.
pub(super) trait Application {
    /// `host` runs a request. Returns the answer's length, and the handler's extra time.
    fn serve(&mut self, host: HostId, now_ns: u64, request: &[u8]) -> Answer {
        let _ = (host, now_ns, request);
        Answer {
            len: 32,
            extra_ns: 0,
        }
    }

    /// `host` may make its first calls on `channel`: its session is open (again).
    fn connected(&mut self, host: HostId, channel: usize, now_ns: u64, calls: &mut Vec<Call>) {
        let _ = (host, channel, now_ns, calls);
    }

    /// A call of `host` ended.
    fn ended(
        &mut self,
        host: HostId,
        tag: u64,
        result: Result<&[u8], RequestError>,
        now_ns: u64,
        calls: &mut Vec<Call>,
    );

    /// A timer expired. Each call is made by the host beside it.
    fn handle_timer(&mut self, word: u64, now_ns: u64, calls: &mut Vec<(HostId, Call)>) {
        let _ = (word, now_ns, calls);
    }

    /// Whether the run can end.
    fn is_done(&self) -> bool {
        false
    }
}

/// How a request is answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// Length of the answer, bytes, at least that of a head: the request's, with which it begins.
    pub(super) len: usize,
    /// Time beyond the cost model's time of a handler, ns.
    pub(super) extra_ns: u64,
}

/// A call to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// The caller's channel.
    pub(super) channel: usize,
    /// The caller's identifier: the first eight bytes of the request.
    pub(super) tag: u64,
    /// Length of the request, at least that of its head.
    pub(super) len: usize,
}

/// A client's relation to one server.
#[derive(Clone, Copy, Debug)]
struct Channel {
    server: HostId,
    session: Option<SessionId>,
    /// The device's number for the server, if there is a session.
    peer: starling_io::PeerId,
}

/// One host.
pub(super) struct Machine {
    pub(super) id: HostId,
    fabric: SharedFabric,
    config: Config,
    rng: Rng,
    channels: Vec<Channel>,
    process: Option<Process>,
    /// A capture, if one is wanted.
    pub(super) capture: Option<Capture>,
    /// Calls that other hosts have queued for this host's next turn.
    pub(super) wanted: Vec<Call>,
    /// Channels to be opened in the next turn.
    pub(super) opening: Vec<usize>,
    /// Requests run.
    pub(super) executed: u64,
    /// Its calls are to be cancelled, or its sessions closed, in the next turn.
    pub(super) cancels: bool,
    pub(super) closes: bool,
    /// The channel whose credits were checked last.
    audited: usize,
    turns: u32,
    /// For how long its core is taken away in the middle of its next turn, ns.
    pub(super) away_ns: u64,
}

/// The state that a crash takes away.
struct Process {
    io: SimIo,
    clock: SimClock,
    protocol: Protocol,
    channel_of: HashMap<SessionId, usize>,
    answer: Msgbuf,
    queues: Queues,
}

/// A turn that is being run.
struct Turn<'a, A: ?Sized> {
    host: HostId,
    now_ns: u64,
    app: &'a mut A,
    monitor: &'a mut Monitor,
    calls: Vec<Call>,
    work: Work,
    executed: u64,
}

impl Machine {
    pub(super) fn new(fabric: &SharedFabric, id: HostId, config: Config, rng: Rng) -> Self {
        let mut machine = Self {
            id,
            fabric: fabric.clone(),
            config,
            rng,
            channels: Vec::new(),
            process: None,
            capture: None,
            wanted: Vec::new(),
            opening: Vec::new(),
            executed: 0,
            cancels: false,
            closes: false,
            audited: 0,
            turns: 0,
            away_ns: 0,
        };
        machine.start();
        machine
    }

    /// Starts the process with a new token.
    pub(super) fn start(&mut self) {
        let secrets = Secrets {
            cookie_key: self.rng.next_key(),
            token_key: self.rng.next_key(),
        };
        let clock = SimClock::new(&self.fabric, self.id);
        let protocol = Protocol::new(self.config.clone(), secrets, clock.now_ns());
        self.process = Some(Process {
            io: SimIo::new(&self.fabric, self.id),
            clock,
            protocol: protocol.expect("scenarios have sound configurations"),
            channel_of: HashMap::new(),
            answer: Msgbuf::new(),
            queues: Queues::default(),
        });
    }

    /// The process ends at once.
    pub(super) fn crash(&mut self) {
        self.process = None;
        self.wanted.clear();
        for channel in &mut self.channels {
            channel.session = None;
        }
    }

    /// A channel to `server`; its session is opened by the first call, or before.
    pub(super) fn plan_open(&mut self, server: HostId) -> usize {
        self.channels.push(Channel {
            server,
            session: None,
            peer: starling_io::PeerId(u32::MAX),
        });
        self.channels.len() - 1
    }

    /// How many channels it has.
    pub(super) fn channel_count(&self) -> usize {
        self.channels.len()
    }

    /// Whether its process runs.
    pub(super) fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// The protocol's counters.
    pub(super) fn stats(&self) -> Stats {
        let process = self.process.as_ref();
        process.map_or_else(Stats::default, |process| *process.protocol.stats())
    }

    /// Sessions: `(opened by this host, opened by others)`.
    pub(super) fn session_counts(&self) -> (usize, usize) {
        let process = self.process.as_ref();
        process.map_or((0, 0), |process| process.protocol.session_counts())
    }

    /// One turn of the event loop.
    pub(super) fn turn<A: Application + ?Sized>(&mut self, app: &mut A, monitor: &mut Monitor) {
        let Some(process) = &mut self.process else {
            return;
        };
        let now_ns = process.clock.now_ns();
        let mut turn = Turn {
            host: self.id,
            now_ns,
            app,
            monitor,
            calls: std::mem::take(&mut self.wanted),
            work: Work::default(),
            executed: 0,
        };
        process.take_events(&mut turn, &mut self.capture);
        process.receive(&mut turn, &mut self.capture);
        for channel in std::mem::take(&mut self.opening) {
            process.session(
                &mut turn,
                &mut self.channels[channel],
                channel,
                &mut self.capture,
            );
        }
        process.drain(&mut turn, &mut self.channels);
        while !turn.calls.is_empty() {
            process.prefetch(&turn.calls, &self.channels);
            for call in std::mem::take(&mut turn.calls) {
                process.call(&mut turn, &mut self.channels, call, &mut self.capture);
            }
            process.drain(&mut turn, &mut self.channels);
        }
        if std::mem::take(&mut self.cancels) {
            process.cancel_all(&mut turn);
        }
        if std::mem::take(&mut self.closes) {
            process.close_all(now_ns, &mut self.channels);
        }
        process.flush(now_ns, &mut self.capture);
        process.drain(&mut turn, &mut self.channels);
        // Calls that the last events asked for wait for the next turn.
        self.wanted = turn.calls;
        self.executed += turn.executed;
        turn.work.extra_ns += std::mem::take(&mut self.away_ns);
        let (work, busy) = (turn.work, !self.wanted.is_empty());
        process.schedule(self.id, &self.fabric, work, busy);
        self.audit();
    }

    /// The checks of every turn, and the credits of one session: where there are many,
    /// once in so many turns.
    fn audit(&mut self) {
        self.turns = self.turns.wrapping_add(1);
        if self.channels.len() > PREFETCH_MIN_HOSTS && !self.turns.is_multiple_of(CROWD_TURNS) {
            return;
        }
        self.audited = (self.audited + 1) % self.channels.len().max(1);
        let channel = self.channels.get(self.audited);
        let session = channel.and_then(|channel| channel.session);
        let Some(process) = &mut self.process else {
            return;
        };
        enforce(
            process
                .queues
                .check(&process.protocol, &self.config, session),
        );
        let limit = self.config.rx_queue_datagrams * self.config.overcommit;
        enforce(granted_within(&process.protocol, limit));
        let credits = session
            .and_then(|session| Credits::of(&process.protocol, session, process.io.grants()));
        if let Some(credits) = credits {
            enforce(credits.check());
        }
    }

    /// The resources that it still holds.
    pub(super) fn leftovers(&self) -> Leftovers {
        let process = self.process.as_ref();
        let process = process.map(|process| (&process.protocol, process.io.peer_count()));
        Leftovers::of(self.id.0, process)
    }
}

impl<A: Application + ?Sized> Turn<'_, A> {
    fn serve(
        &mut self,
        protocol: &mut Protocol,
        answer: &mut Msgbuf,
        id: RequestId,
        request: &[u8],
        sink: &mut CapturingSink<'_>,
    ) {
        self.executed += 1;
        self.work.handlers += 1;
        enforce(self.monitor.executed(request));
        let Answer { len, extra_ns } = self.app.serve(self.host, self.now_ns, request);
        self.work.extra_ns += extra_ns;
        let buffer = answer.head_mut();
        buffer.clear();
        let (tag, serial) = header_of(request).expect("the monitor has read it");
        buffer.extend_from_slice(&head(tag, serial, len));
        buffer.extend_from_slice(self.monitor.rest(Direction::Response, serial, len));
        // The caller may have given up.
        let _ = protocol.respond(self.now_ns, id, answer, Prefix::NONE, sink);
    }

    fn ended(&mut self, tag: u128, result: Result<&[u8], RequestError>) {
        self.work.handlers += 1;
        let (host, now_ns) = (self.host, self.now_ns);
        let (tag, serial) = (tag as u64, (tag >> 64) as u64);
        let response = result.as_ref().ok().copied();
        enforce(self.monitor.ended(host, serial, response, now_ns));
        self.app.ended(host, tag, result, now_ns, &mut self.calls);
    }
}
