//! A host of the harness: the event loop that an endpoint would run, with the application's part
//! played by the scenario's plans.
//!
//! ```text
//!  turn:  rx bursts ─▶ open, next ─▶ events ─▶ tasks that are due ─▶ flush ─▶ events ─▶ device
//!         flush ─▶ peers released ─▶ invariants checked ─▶ next turn: a task, a timer, a datagram
//! ```

mod application;
mod workers;

use std::collections::{BTreeMap, BTreeSet};

use starling_io::{Clock, Ecn, IoEvent, PacketIo, PacketRx, PacketTx, PeerGone};
use starling_proto::{
    Body, Config, Event, Incoming, Msgbuf, PeerId, Protocol, RequestId, RequestNumber, Secrets,
    SessionId, Source,
};

use super::call_log::CallLog;
use super::schedule::{Schedule, Task};
use super::sink::{Sent, Sink};
use crate::check::content::{self, Expected};
use crate::check::{Credits, Leftovers, Queues, Tag, Violation, granted_within};
use crate::cpu::Work;
use crate::fabric::{HostId, SharedFabric};
use crate::harness::{ChannelPlan, PlantedBug, Scenario, US, planted_bug};
use crate::io::{SimClock, SimIo};
use crate::rng::Rng;
use application::prefix_of;
pub(super) use workers::Step;
use workers::Workers;

/// Bursts read in one turn before the application gets its part.
const BURSTS_A_TURN: usize = 4;
/// A host that is never idle takes this long for a turn.
const MIN_TURN_NS: u64 = 2 * US;
/// Turns without the fabric's time moving, after which a host is said to spin.
const MAX_TURNS_AT_ONCE: u32 = 100;
/// How often a channel may fail to get an answer after everything has healed: a session may have
/// to be found dead first, and a server may still have to drop what died before.
const MAX_PROBES: u32 = 4;

pub(super) struct Host {
    id: HostId,
    config: Config,
    fabric: SharedFabric,
    rng: Rng,
    channels: Vec<ChannelPlan>,
    /// The process, unless it crashed.
    process: Option<Process>,
    incarnation: u32,
    schedule: Schedule,
    /// The time of the last turn, and how many there were at that time.
    turns: (u64, u32),
    /// Channels without an answer since the probes began.
    pub(super) unheard: BTreeSet<usize>,
    /// Its processes have workers that claim requests.
    has_workers: bool,
    /// Refusals are in order: the servers have less room than is asked of them.
    tight: bool,
    /// Time between two probes of a channel, ns: dead sessions are forgotten meanwhile.
    retry_ns: u64,
}

/// The state that a crash takes away.
struct Process {
    io: SimIo,
    clock: SimClock,
    protocol: Protocol,
    sessions: BTreeMap<usize, SessionId>,
    /// Calls that did not end.
    calls: BTreeMap<Tag, (SessionId, RequestNumber)>,
    /// The probes among them: channel and attempt.
    probes: BTreeMap<Tag, (usize, u32)>,
    /// Those that handlers made, and what is to be answered when they have ended.
    relays: BTreeMap<Tag, Relay>,
    released: Vec<PeerId>,
    queues: Queues,
    sent: Sent,
    /// Those that claim requests, if there are any.
    workers: Option<Workers>,
    /// A received datagram, copied out of the device's memory.
    datagram: Vec<u8>,
}

impl Process {
    fn start(fabric: &SharedFabric, id: HostId, config: &Config, rng: &mut Rng) -> Self {
        let clock = SimClock::new(fabric, id);
        let mut cookie_key = [0; 16];
        cookie_key[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
        let secrets = Secrets {
            token: rng.next_u64() as u32,
            cookie_key,
        };
        let protocol = Protocol::new(config.clone(), secrets, clock.now_ns())
            .expect("scenarios draw sound configurations");
        Self {
            io: SimIo::new(fabric, id),
            clock,
            protocol,
            sessions: BTreeMap::new(),
            calls: BTreeMap::new(),
            probes: BTreeMap::new(),
            relays: BTreeMap::new(),
            released: Vec::new(),
            queues: Queues::default(),
            sent: Sent::default(),
            workers: None,
            datagram: Vec::new(),
        }
    }
}

/// A request whose handler waits for a call of its own.
struct Relay {
    id: RequestId,
    expected: Expected,
    response: Msgbuf,
}

impl Relay {
    /// The answer, now that the call has ended.
    fn task(self, incarnation: u32) -> Task {
        let Self {
            id,
            expected,
            response,
        } = self;
        Task::Respond {
            incarnation,
            id,
            expected,
            response,
        }
    }
}

/// The protocol and its sink, as a call into the protocol needs them.
macro_rules! sink {
    ($process:expr, $log:expr) => {
        Sink::new(
            $process.io.split().1,
            ($log.planted_bug == Some(PlantedBug::LostRetransmission))
                .then_some(&mut $process.sent),
        )
    };
}
use sink;

impl Host {
    pub(super) fn new(
        fabric: &SharedFabric,
        id: HostId,
        scenario: &Scenario,
        mut rng: Rng,
    ) -> Self {
        let config = scenario.hosts[id.0 as usize].clone();
        let mut process = Process::start(fabric, id, &config, &mut rng);
        if scenario.workers {
            process.start_workers(rng.fork());
        }
        Self {
            has_workers: scenario.workers,
            id,
            config,
            fabric: fabric.clone(),
            rng,
            channels: scenario.channels.clone(),
            process: Some(process),
            incarnation: 0,
            schedule: Schedule::default(),
            turns: (0, 0),
            unheard: BTreeSet::new(),
            tight: scenario.tight,
            retry_ns: scenario.forgetting_ns(),
        }
    }

    /// Schedules a task and a turn of the host for it.
    pub(super) fn plan(&mut self, at_ns: u64, task: Task) {
        self.schedule.add(at_ns, task);
        self.fabric.borrow_mut().wake_at(self.id, at_ns);
    }

    /// The process dies, and its open calls with it.
    pub(super) fn crash(&mut self, log: &mut CallLog) {
        let Some(process) = self.process.take() else {
            return;
        };
        log.record(self.id, "crashes", 0, 0);
        self.fabric.borrow_mut().crash(self.id);
        for &tag in process.calls.keys() {
            log.abandon(tag);
        }
    }

    /// Another process takes its place.
    pub(super) fn restart(&mut self, log: &CallLog) {
        if self.process.is_some() {
            return;
        }
        log.record(self.id, "restarts", 0, 0);
        self.fabric.borrow_mut().restart(self.id);
        self.incarnation += 1;
        let mut process = Process::start(&self.fabric, self.id, &self.config, &mut self.rng);
        if self.has_workers {
            process.start_workers(self.rng.fork());
        }
        self.process = Some(process);
    }

    /// One turn of the event loop.
    pub(super) fn turn(&mut self, log: &mut CallLog) -> Result<(), Violation> {
        if self.process.is_none() {
            return Ok(());
        }
        self.check_progress(log.now_ns())?;
        self.receive(log)?;
        self.drain_events(log)?;
        self.work(log)?;
        let process = self.process();
        let now = process.clock.now_ns();
        let mut sink = sink!(process, log);
        process.protocol.flush(now, &mut sink);
        self.drain_events(log)?;
        let process = self.process();
        process
            .io
            .split()
            .1
            .flush()
            .expect("the device has no errors");
        self.release_peers();
        self.check_books()?;
        self.fabric.borrow_mut().end_turn(self.id, Work::default());
        self.schedule(log.now_ns());
        Ok(())
    }

    fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("only called within a turn")
    }

    fn receive(&mut self, log: &mut CallLog) -> Result<(), Violation> {
        let process = self.process.as_mut().expect("within a turn");
        let now = process.clock.now_ns();
        if process.protocol.is_overdue(now) {
            process
                .protocol
                .handle_overdue(now, &mut sink!(process, log));
        }
        while let Some(IoEvent::PeerGone(peer, certainty)) = process.io.poll_event() {
            let mut sink = sink!(process, log);
            let certain = certainty == PeerGone::Certain;
            process
                .protocol
                .handle_peer_gone(now, PeerId(peer.0), certain, &mut sink);
        }
        for _ in 0..BURSTS_A_TURN {
            let process = self.process();
            let count = process.io.split().0.rx_burst().expect("no errors");
            for index in 0..count {
                self.receive_one(index, log)?;
            }
            if count == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Takes a datagram of the burst, unless it goes to a worker.
    fn receive_one(&mut self, index: usize, log: &mut CallLog) -> Result<(), Violation> {
        let process = self.process();
        let mut bytes = std::mem::take(&mut process.datagram);
        bytes.clear();
        let datagram = process.io.split().0.datagram(index);
        bytes.extend_from_slice(datagram.bytes);
        if log.planted_bug == Some(PlantedBug::CreditOffByOne) {
            planted_bug::give_one_more(&mut bytes, self.config.credits);
        }
        let process = self.process();
        let datagram = process.io.split().0.datagram(index);
        let source = match datagram.source {
            starling_io::Source::Peer(peer) => Source::Peer(PeerId(peer.0)),
            starling_io::Source::Unknown(address) => Source::Unknown(address),
        };
        let marked = datagram.ecn == Ecn::CongestionExperienced;
        let workers = process.workers.as_mut();
        if let Some(peer) = workers.and_then(|workers| workers.take(source, &bytes)) {
            let datagram = bytes.clone();
            let step = Step::Begin {
                peer,
                marked,
                datagram,
            };
            self.plan_step(0, step, log);
        } else {
            let before = log.outcomes.executed;
            self.take_datagram(source, marked, &bytes, log)?;
            if log.outcomes.executed > before
                && let Some(copy) = planted_bug::as_new_request(&bytes)
                && log.bug_triggers(PlantedBug::HandlerTwice)
            {
                self.take_datagram(source, marked, &copy, log)?;
            }
        }
        self.process().datagram = bytes;
        Ok(())
    }

    /// Gives a datagram to the protocol and handles the results.
    fn take_datagram(
        &mut self,
        source: Source,
        marked: bool,
        bytes: &[u8],
        log: &mut CallLog,
    ) -> Result<(), Violation> {
        let Self {
            id: host,
            channels,
            process,
            incarnation,
            schedule,
            unheard,
            ..
        } = self;
        let (host, incarnation) = (*host, *incarnation);
        let process = process.as_mut().expect("within a turn");
        let now = process.clock.now_ns();
        let tx = process.io.split().1;
        let lossy = log.planted_bug == Some(PlantedBug::LostRetransmission);
        let mut sink = Sink::new(tx, lossy.then_some(&mut process.sent));
        let opened = process
            .protocol
            .handle_datagram(now, source, marked, bytes, &mut sink);
        let Ok(mut frames) = opened else {
            return Ok(());
        };
        while let Some(incoming) = process.protocol.poll_incoming(now, &mut frames, &mut sink) {
            match incoming {
                Incoming::Request { id, ext, body, .. } => {
                    let response = process.protocol.buffer();
                    let expected = log.execute(host, body.bytes())?;
                    log.check_ext(expected, ext)?;
                    if let Body::Owned(buffer) = body {
                        process.protocol.recycle(buffer);
                    }
                    let onward = log.relay(expected);
                    // Flipped bits may name another caller's request.
                    if let Some(channel) = onward.filter(|&it| channels[it].client == host) {
                        let task = Task::Relay {
                            incarnation,
                            id,
                            expected,
                            response,
                            channel,
                        };
                        schedule.add(log.now_ns(), task);
                    } else if expected.delay_us > 0 {
                        let at_ns = log.now_ns() + u64::from(expected.delay_us) * US;
                        let task = Task::Respond {
                            incarnation,
                            id,
                            expected,
                            response,
                        };
                        schedule.add(at_ns, task);
                    } else {
                        respond(
                            &mut process.protocol,
                            now,
                            id,
                            expected,
                            response,
                            &mut sink,
                            log,
                        );
                    }
                }
                Incoming::Response { tag, ext, body, .. } => {
                    let tag = key_of(tag);
                    process.calls.remove(&tag);
                    if let Some((channel, _)) = process.probes.remove(&tag) {
                        unheard.remove(&channel);
                    }
                    if let Some(relay) = process.relays.remove(&tag) {
                        schedule.add(log.now_ns(), relay.task(incarnation));
                    }
                    log.answered(host, tag, ext, body.bytes())?;
                    if let Body::Owned(buffer) = body {
                        process.protocol.recycle(buffer);
                    }
                }
                // The handler cannot be stopped: no caller waits for its answer.
                Incoming::Cancelled { id } => log.record(host, "cancel heard", id.number(), 0),
            }
        }
        Ok(())
    }

    fn drain_events(&mut self, log: &mut CallLog) -> Result<(), Violation> {
        let retry_ns = self.retry_ns;
        let process = self.process.as_mut().expect("within a turn");
        while let Some(event) = process.protocol.poll_event() {
            match event {
                Event::Connected { session } => {
                    log.record(
                        self.id,
                        "connected: session",
                        u64::from(session.to_wire()),
                        0,
                    );
                }
                Event::SessionEnded { session, error } => {
                    if log.bug_triggers(PlantedBug::SilentEnd) {
                        continue;
                    }
                    log.session_ended(self.id, session, error)?;
                    process.sessions.retain(|_, open| *open != session);
                }
                Event::RequestFailed {
                    tag,
                    request,
                    error,
                    may_have_run,
                    ..
                } => {
                    let tag = key_of(tag);
                    process.calls.remove(&tag);
                    log.failed(self.id, tag, error, &request, may_have_run)?;
                    if log.bug_triggers(PlantedBug::DoubleFailure) {
                        log.failed(self.id, tag, error, &request, may_have_run)?;
                    }
                    process.protocol.recycle(request);
                    if let Some(relay) = process.relays.remove(&tag) {
                        let task = relay.task(self.incarnation);
                        self.schedule.add(log.now_ns(), task);
                    }
                    if let Some((channel, attempt)) = process.probes.remove(&tag) {
                        if attempt == MAX_PROBES {
                            let refused = self.tight.then_some(());
                            refused.ok_or_else(|| unhealed(self.id, channel, &error))?;
                            self.unheard.remove(&channel);
                            continue;
                        }
                        let at_ns = log.now_ns() + retry_ns;
                        let attempt = attempt + 1;
                        self.schedule.add(at_ns, Task::Probe { channel, attempt });
                    }
                }
                Event::RequestAbandoned { .. } => {}
                Event::PeerReleased { peer } => process.released.push(peer),
            }
        }
        Ok(())
    }

    /// Closes the peers that no session uses.
    fn release_peers(&mut self) {
        let process = self.process();
        for peer in std::mem::take(&mut process.released) {
            if !process.protocol.refers_to(peer) {
                process.io.close_peer(starling_io::PeerId(peer.0));
            }
        }
    }

    fn check_progress(&mut self, now_ns: u64) -> Result<(), Violation> {
        let (last_ns, count) = self.turns;
        let count = if last_ns == now_ns { count + 1 } else { 0 };
        self.turns = (now_ns, count);
        if count > MAX_TURNS_AT_ONCE {
            return Err(Violation::new(
                "progress",
                format!("host {} spins: {count} turns at one time", self.id.0),
            ));
        }
        Ok(())
    }

    fn check_books(&mut self) -> Result<(), Violation> {
        let limit = self.config.rx_queue_datagrams * self.config.overcommit;
        let process = self.process.as_mut().expect("within a turn");
        let (protocol, grants) = (&process.protocol, process.io.grants());
        let sessions = process.sessions.values().copied();
        process.queues.check(protocol, &self.config, sessions)?;
        for &session in process.sessions.values() {
            if let Some(credits) = Credits::of(protocol, session, grants) {
                credits.check()?;
            }
        }
        granted_within(protocol, limit)
    }

    /// Asks the fabric for the next turn.
    fn schedule(&mut self, now_ns: u64) {
        let process = self.process.as_mut().expect("within a turn");
        let timer_ns = process.protocol.poll_timeout();
        let mut fabric = self.fabric.borrow_mut();
        let timer_ns = timer_ns.map(|at_ns| fabric.when(self.id, at_ns));
        let soonest_ns = now_ns + fabric.config().poll_ns.max(MIN_TURN_NS);
        let (waiting, _) = fabric.receive_queue(self.id);
        if waiting > 0 {
            fabric.wake_at(self.id, soonest_ns);
        }
        if let Some(at_ns) = timer_ns {
            fabric.wake_at(self.id, at_ns.max(soonest_ns));
        }
        if let Some(at_ns) = self.schedule.next_ns() {
            fabric.wake_at(self.id, at_ns);
        }
    }

    /// Sessions that this host has open as a client of `server`.
    pub(super) fn sessions_with(&self, server: HostId) -> usize {
        let channels = self
            .process
            .iter()
            .flat_map(|process| process.sessions.keys());
        channels
            .filter(|&&channel| self.channels[channel].server == server)
            .count()
    }

    /// Sessions that others have open with this host, as far as it knows.
    pub(super) fn server_sessions(&self) -> usize {
        let process = self.process.as_ref();
        process.map_or(0, |process| process.protocol.session_counts().1)
    }

    /// The resources that are left at the end.
    pub(super) fn leftovers(&self) -> Leftovers {
        let process = self.process.as_ref();
        let process = process.map(|process| (&process.protocol, process.io.peer_count()));
        let mut leftovers = Leftovers::of(self.id.0, process);
        leftovers.counts.push(("tasks", self.schedule.len() as u64));
        leftovers
    }
}

/// The bit that the protocol carries unseen, as the harness sets it.
pub(super) fn ext_of(expected: Expected) -> bool {
    expected.key & 1 == 1
}

fn respond(
    protocol: &mut Protocol,
    now: u64,
    id: RequestId,
    expected: Expected,
    mut response: Msgbuf,
    sink: &mut Sink<'_>,
    log: &mut CallLog,
) {
    let mut said = expected;
    if log.bug_triggers(PlantedBug::ExchangedResponse) {
        said.key ^= 2;
    }
    content::respond(said, response.head_mut());
    if log.bug_triggers(PlantedBug::TruncatedResponse) {
        response.head_mut().pop();
    }
    // The caller may have given up; the buffer has to come back either way.
    let _ = protocol.respond(now, id, &mut response, prefix_of(expected), sink);
    protocol.recycle(response);
}

/// The call that the protocol means by a tag.
fn key_of(tag: starling_proto::Tag) -> Tag {
    Tag::try_from(tag).expect("tags are made of call numbers")
}

fn unhealed(host: HostId, channel: usize, error: &dyn std::fmt::Display) -> Violation {
    Violation::new(
        "nothing stays stuck",
        format!(
            "host {} got no answer on channel {channel} after everything had healed: {error}",
            host.0
        ),
    )
}
