//! A host of the harness: the event loop that an endpoint would run, and an application that does
//! what the plan says.
//!
//! ```text
//!  turn:  rx bursts ─▶ handle_datagram, poll_incoming ─▶ events ─▶ tasks that are due ─▶ flush ─▶ events ─▶ device
//!         flush ─▶ peers released ─▶ invariants checked ─▶ next turn: a task, a timer, a datagram
//! ```

mod application;
mod receive;
mod workers;

use std::collections::{BTreeMap, BTreeSet};

use starling_io::{Clock, PacketIo, PacketTx};
use starling_proto::{
    Config, Msgbuf, PeerId, Prefix, Protocol, RequestId, RequestNumber, RespondReason, Secrets,
    SessionId,
};

use super::call_log::{CallLog, ext_of};
use super::schedule::{Schedule, Task};
use super::sink::{Sent, Sink};
use crate::check::content::{self, Expected};
use crate::check::{Credits, Leftovers, Queues, Tag, Violation, granted_within, memory_within};
use crate::cpu::Work;
use crate::fabric::{HostId, SharedFabric};
use crate::harness::host_set::{PlannedHost, PlannedTask, sessions_with_servers};
use crate::harness::{Branches, CallPlan, ChannelPlan, PlantedBug, RunPlan, US};
use crate::io::{SimClock, SimIo};
use crate::rng::Rng;
use workers::Workers;

/// Bursts read in one turn before the application gets its part.
const BURSTS_A_TURN: usize = 4;
/// A host that is never idle takes this long for a turn.
const MIN_TURN_NS: u64 = 2 * US;
/// Turns at one instant of the fabric's time after which a host counts as spinning.
const MAX_TURNS_AT_ONCE: u32 = 100;
/// Attempts of a probe after everything has healed. A client may first have to detect a dead
/// session, and a server may still have to drop state of dead clients.
const MAX_PROBES: u32 = 4;

pub(in crate::harness) struct Host {
    id: HostId,
    config: Config,
    fabric: SharedFabric,
    rng: Rng,
    channels: Vec<ChannelPlan>,
    /// The process, unless it crashed.
    process: Option<Process>,
    incarnation: u32,
    /// Those that former processes took.
    branches: Branches,
    schedule: Schedule,
    /// The time of the last turn, and how many there were at that time.
    turns: (u64, u32),
    /// Channels without an answer since the probes began.
    unheard: BTreeSet<usize>,
    /// Its processes have workers that claim requests.
    has_workers: bool,
    /// Calls that were not sent are made again.
    recalls: bool,
    /// Frames that the device takes in a turn, and until when.
    frames_a_turn: Option<(usize, u64)>,
    /// Refusals are allowed, because the servers have less room than the calls ask for.
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
    /// Those among them that are made again if they were not sent.
    recallable: BTreeMap<Tag, CallPlan>,
    /// The probes among them: channel and attempt.
    probes: BTreeMap<Tag, (usize, u32)>,
    /// The calls that handlers made, and the request that each handler then answers.
    relays: BTreeMap<Tag, Relay>,
    released: Vec<PeerId>,
    queues: Queues,
    sent: Sent,
    /// The workers that claim requests, if there are any.
    workers: Option<Workers>,
    /// A received datagram, copied out of the device's memory.
    datagram: Vec<u8>,
}

impl Process {
    fn start(fabric: &SharedFabric, id: HostId, config: &Config, rng: &mut Rng) -> Self {
        let clock = SimClock::new(fabric, id);
        let secrets = Secrets {
            cookie_key: rng.next_key(),
            token_key: rng.next_key(),
        };
        let protocol = Protocol::new(config.clone(), secrets, clock.now_ns())
            .expect("plans draw sound configurations");
        Self {
            io: SimIo::new(fabric, id),
            clock,
            protocol,
            sessions: BTreeMap::new(),
            calls: BTreeMap::new(),
            recallable: BTreeMap::new(),
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
    pub(super) fn new(fabric: &SharedFabric, id: HostId, plan: &RunPlan, mut rng: Rng) -> Self {
        let config = plan.hosts[id.0 as usize].clone();
        let mut process = Process::start(fabric, id, &config, &mut rng);
        if plan.workers {
            process.start_workers(rng.fork());
        }
        Self {
            has_workers: plan.workers,
            id,
            config,
            fabric: fabric.clone(),
            rng,
            channels: plan.channels.clone(),
            process: Some(process),
            incarnation: 0,
            branches: Branches::default(),
            schedule: Schedule::default(),
            turns: (0, 0),
            unheard: BTreeSet::new(),
            recalls: plan.recalls,
            frames_a_turn: plan.frames_a_turn.map(|frames| (frames, plan.heal_ns)),
            tight: plan.tight,
            retry_ns: plan.forgetting_ns(),
        }
    }

    /// Schedules a task and a turn of the host for it.
    pub(super) fn plan(&mut self, at_ns: u64, task: Task) {
        self.schedule.add(at_ns, task);
        self.fabric.lock().wake_at(self.id, at_ns);
    }

    /// The process tells its clients that it ends, as far as its device has room, and dies.
    pub(super) fn leave(&mut self, log: &mut CallLog) {
        if let Some(process) = &mut self.process {
            process.protocol.drain();
            let _ = process.protocol.announce_shutdown(&mut sink!(process, log));
            let flushed = process.io.split().1.flush();
            flushed.expect("the device has no errors");
        }
        self.crash(log);
    }

    /// The process dies, and its open calls with it.
    pub(super) fn crash(&mut self, log: &mut CallLog) {
        let Some(process) = self.process.take() else {
            return;
        };
        self.branches.add_stats(process.protocol.stats());
        log.record(self.id, "crashes", 0, 0);
        self.fabric.lock().crash(self.id);
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
        self.fabric.lock().restart(self.id);
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
        if let Some((frames, until_ns)) = self.frames_a_turn {
            let is_over = log.now_ns() >= until_ns;
            let frames = if is_over { usize::MAX } else { frames };
            self.fabric.lock().limit_frames(self.id, frames);
        }
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
        self.check_accounting()?;
        self.fabric.lock().end_turn(self.id, Work::default());
        self.schedule(log.now_ns());
        Ok(())
    }

    fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("only called within a turn")
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
                format!("host {} spins: {count} turns at one instant", self.id.0),
            ));
        }
        Ok(())
    }

    fn check_accounting(&mut self) -> Result<(), Violation> {
        let limit = self.config.rx_queue_datagrams * self.config.overcommit;
        let process = self.process.as_mut().expect("within a turn");
        let (protocol, grants) = (&process.protocol, process.io.grants());
        memory_within(protocol, &self.config)?;
        let sessions = process.sessions.values().copied();
        process.queues.check(protocol, &self.config, sessions)?;
        let sessions = process.sessions.values().copied();
        for session in sessions.flat_map(|first| protocol.group(first)) {
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
        let mut fabric = self.fabric.lock();
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
}

impl PlannedHost for Host {
    fn plan_task(&mut self, at_ns: u64, task: PlannedTask) {
        self.plan(at_ns, Task::Planned(task));
    }

    fn await_probe(&mut self, channel: usize) {
        self.unheard.insert(channel);
    }

    fn probes_ended(&self) -> bool {
        self.unheard.is_empty()
    }

    fn sessions_with(&self, server: HostId) -> usize {
        let Some(process) = &self.process else {
            return 0;
        };
        let channels = process.sessions.iter();
        let channels = channels.filter(|&(&channel, _)| self.channels[channel].server == server);
        let channels = channels.map(|(_, &session)| session);
        sessions_with_servers(&process.protocol, channels)
    }

    fn server_sessions(&self) -> usize {
        let process = self.process.as_ref();
        process.map_or(0, |process| process.protocol.session_counts().1)
    }

    fn branches(&self) -> Branches {
        let mut branches = self.branches.clone();
        if let Some(process) = &self.process {
            branches.add_stats(process.protocol.stats());
        }
        branches
    }

    fn leftovers(&self) -> Leftovers {
        let process = self.process.as_ref();
        let process = process.map(|process| (&process.protocol, process.io.peer_count()));
        let mut leftovers = Leftovers::of(self.id.0, process);
        leftovers.counts.push(("tasks", self.schedule.len() as u64));
        leftovers
    }
}

/// The extension bit of a call, on a message that is all body.
fn prefix_of(expected: Expected) -> Prefix {
    Prefix {
        ext: ext_of(expected),
        ..Prefix::NONE
    }
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
    let result = protocol.respond(now, id, &mut response, prefix_of(expected), sink);
    if let Err(RespondReason::TooLarge { .. }) = result {
        // Flipped bits of its connect had the client take less. Without flipped bits its checker finds this answer.
        response.head_mut().clear();
        let _ = protocol.respond(now, id, &mut response, prefix_of(expected), sink);
    }
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
