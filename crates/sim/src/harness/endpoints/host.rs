//! A host with a whole endpoint on it, and the application that uses it as the scenario says.
//!
//! ```text
//!  turn:  tasks that are due ─▶ Endpoint::poll ─▶ news of handlers and continuations ─▶
//!         Endpoint::wait, if nothing was done ─▶ next turn: a task, the endpoint's own time
//! ```

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use starling_endpoint::{
    CallError, CallId, CallOptions, ContinuationId, DeferredReply, Endpoint, EndpointConfig,
    Handler, Idle, MethodId, Msgbuf, OpenError, Secrets, SessionId, SessionState, WorkerHandler,
};

use super::super::scenario::Runs;
use super::super::simulation::BusyWorker;
use super::super::{CallPlan, ChannelPlan, PlantedBug, Scenario, US};
use super::call_records::SharedCallRecords;
use crate::check::content::{self, Expected};
use crate::check::{Credits, Leftovers, Queues, Tag, Violation, granted_within};
use crate::cpu::Work;
use crate::fabric::{HostId, SharedFabric};
use crate::io::{SimClock, SimIo};
use crate::rng::Rng;
use crate::workers::Workers;

const INLINE: MethodId = MethodId(1);
const WORKER: MethodId = MethodId(2);
const DEFERRED: MethodId = MethodId(3);

/// A turn of a host that is never idle takes this long.
const MIN_TURN_NS: u64 = 2 * US;
/// An inline handler takes no longer.
const MAX_INLINE_US: u32 = 50;
/// Turns without anything done and without sleep, after which an endpoint is said to spin.
const MAX_IDLE_TURNS: u32 = 2_000;
/// How often a channel may fail to get an answer after everything has healed.
pub(super) const MAX_PROBES: u32 = 4;
/// How long endpoints that spin do so after work.
const SPIN: Duration = Duration::from_micros(50);

/// What the application is going to do.
pub(super) enum Task {
    Call(CallPlan),
    /// Asks for a sign of life.
    Probe {
        channel: usize,
        attempt: u32,
    },
    Close(usize),
    Cancel(Tag),
    /// Answers a request that was deferred.
    Complete(Deferred),
    /// The endpoint begins to shut down.
    Drain,
}

/// A request that is answered later.
pub(super) struct Deferred {
    reply: DeferredReply,
    expected: Expected,
}

/// What handlers and continuations leave for their host.
enum HandlerEvent {
    Ended {
        tag: Tag,
        answered: bool,
    },
    Deferred {
        deferred: Deferred,
        /// It is answered when a call on this channel has ended.
        via: Option<usize>,
    },
}

type HandlerEvents = Rc<RefCell<Vec<HandlerEvent>>>;

pub(super) struct Host {
    id: HostId,
    fabric: SharedFabric,
    records: SharedCallRecords,
    config: EndpointConfig,
    /// Threads and places in their queue.
    workers: (usize, usize),
    rng: Rng,
    channels: Vec<ChannelPlan>,
    process: Option<Process>,
    pub(super) incarnation: u32,
    schedule: BTreeMap<(u64, u64), Task>,
    entries: u64,
    idle_turns: u32,
    /// Channels that were not heard from since the probes began.
    pub(super) unheard: BTreeSet<usize>,
    tight: bool,
    retry_ns: u64,
}

/// What a crash takes away.
struct Process {
    endpoint: Endpoint<SimIo, SimClock>,
    continuation: ContinuationId,
    workers: Workers,
    handler_events: HandlerEvents,
    sessions: BTreeMap<usize, SessionId>,
    /// Those that took no call any more before they were said to be over.
    over: Vec<SessionId>,
    queues: Queues,
    calls: BTreeMap<Tag, CallId>,
    probes: BTreeMap<Tag, (usize, u32)>,
    plan_relay: BTreeMap<Tag, Deferred>,
}

impl Host {
    pub(super) fn new(
        fabric: &SharedFabric,
        records: &SharedCallRecords,
        id: HostId,
        scenario: &Scenario,
        mut rng: Rng,
    ) -> Self {
        let config = EndpointConfig {
            protocol: scenario.hosts[id.0 as usize].clone(),
            idle: rng.pick(&[Idle::Block, Idle::Block, Idle::Adaptive { spin: SPIN }]),
            batched_timestamps: rng.chance(700_000),
            ..EndpointConfig::default()
        };
        let mut host = Self {
            id,
            fabric: fabric.clone(),
            records: records.clone(),
            config,
            workers: (rng.range(1, 4) as usize, rng.log_range(0, 64) as usize),
            rng,
            channels: scenario.channels.clone(),
            process: None,
            incarnation: 0,
            schedule: BTreeMap::new(),
            entries: 0,
            idle_turns: 0,
            unheard: BTreeSet::new(),
            tight: scenario.tight,
            retry_ns: scenario.forgetting_ns(),
        };
        host.start();
        host
    }

    fn start(&mut self) {
        let mut cookie_key = [0; 16];
        cookie_key[..8].copy_from_slice(&self.rng.next_u64().to_le_bytes());
        let secrets = Secrets {
            token: self.rng.next_u64() as u32,
            cookie_key,
        };
        let (io, clock) = (
            SimIo::new(&self.fabric, self.id),
            SimClock::new(&self.fabric, self.id),
        );
        let endpoint = Endpoint::new(io, clock, self.config.clone(), secrets);
        let mut endpoint = endpoint.expect("scenarios draw sound configurations");
        let (id, handler_events) = (self.id, HandlerEvents::default());
        let (threads, queue) = self.workers;
        let seen = Seen::default();
        endpoint.register_worker(WORKER, worker_handler(&seen));
        let records = self.records.clone();
        let takes_ns = Box::new(move |_| {
            let (body, deadline_ns) = seen.lock().expect("one thread").take()?;
            let expected = records.borrow_mut().execute(id, &body, deadline_ns);
            Some(u64::from(expected.delay_us) * US)
        });
        let workers = Workers::new(&self.fabric, id, threads, queue, takes_ns);
        endpoint.set_dispatch(Box::new(workers.clone()));
        let (records, fabric) = (self.records.clone(), self.fabric.clone());
        let inline = Handler::inline(move |_, request, mut reply| {
            let expected =
                (records.borrow_mut()).execute(id, request.body(), request.deadline_ns());
            let takes_us = expected.delay_us.min(MAX_INLINE_US);
            // Where turns cost nothing, what they send leaves at once.
            if !fabric.borrow().config().cpu.is_free() {
                fabric.borrow_mut().spend(id, u64::from(takes_us) * US);
            }
            reply.buffer().extend_from_slice(&response(expected));
            reply.ok();
        });
        endpoint.register(INLINE, inline);
        let (records, news) = (self.records.clone(), handler_events.clone());
        let deferred = Handler::inline(move |_, request, reply| {
            let expected =
                (records.borrow_mut()).execute(id, request.body(), request.deadline_ns());
            let via = records.borrow().relay(expected);
            let reply = reply.defer();
            let deferred = Deferred { reply, expected };
            news.borrow_mut()
                .push(HandlerEvent::Deferred { deferred, via });
        });
        endpoint.register(DEFERRED, deferred);
        let (records, news) = (self.records.clone(), handler_events.clone());
        let continuation = endpoint.register_continuation(move |_, completion| {
            let tag = completion.tag;
            let result = completion.result.as_ref().map(|response| response.body());
            let mut records = records.borrow_mut();
            let answered = result.is_ok();
            if let Err(violation) = records.ended(id, tag, &result) {
                records.report_violation(violation);
            }
            news.borrow_mut()
                .push(HandlerEvent::Ended { tag, answered });
        });
        self.process = Some(Process {
            endpoint,
            continuation,
            workers,
            handler_events,
            sessions: BTreeMap::new(),
            over: Vec::new(),
            queues: Queues::default(),
            calls: BTreeMap::new(),
            probes: BTreeMap::new(),
            plan_relay: BTreeMap::new(),
        });
    }

    /// Puts a task on the agenda and sees to it that there is a turn for it.
    pub(super) fn plan(&mut self, at_ns: u64, task: Task) {
        self.entries += 1;
        self.schedule.insert((at_ns, self.entries), task);
        self.fabric.borrow_mut().wake_at(self.id, at_ns);
    }

    /// The process dies, and with it whoever waited for an answer.
    pub(super) fn crash(&mut self) {
        if self.process.take().is_none() {
            return;
        }
        self.records.borrow().record(self.id, "crashes", 0, 0);
        self.schedule
            .retain(|_, task| !matches!(task, Task::Complete(_) | Task::Drain));
        self.fabric.borrow_mut().crash(self.id);
        self.records.borrow_mut().abandon(self.id);
    }

    /// Another process takes its place.
    pub(super) fn restart(&mut self) {
        if self.process.is_some() {
            return;
        }
        self.records.borrow().record(self.id, "restarts", 0, 0);
        self.fabric.borrow_mut().restart(self.id);
        self.incarnation += 1;
        self.start();
        let now_ns = self.fabric.borrow().now_ns();
        self.wake_for_agenda(now_ns);
    }

    fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("only called within a turn")
    }

    /// One turn. Returns workers that began something.
    pub(super) fn turn(&mut self) -> Result<Vec<BusyWorker>, Violation> {
        if self.process.is_none() {
            return Ok(Vec::new());
        }
        let now_ns = self.fabric.borrow().now_ns();
        while let Some(entry) = self.schedule.first_entry() {
            if entry.key().0 > now_ns {
                break;
            }
            let task = entry.remove();
            self.work(task, now_ns)?;
        }
        let turn = self.process().endpoint.poll();
        let turn = turn.expect("the device has no errors");
        self.read_news(now_ns)?;
        let work = Work {
            rx_frames: turn.requests + turn.responses,
            handlers: turn.requests + turn.completions,
            ..Work::default()
        };
        let free_ns = self.fabric.borrow_mut().end_turn(self.id, work);
        let next_ns = free_ns.max(now_ns + MIN_TURN_NS);
        let process = self.process();
        let waits = process.endpoint.io().waits();
        if turn.is_idle() {
            let waited = process.endpoint.wait(None);
            waited.expect("the device has no errors");
        }
        let slept = process.endpoint.io().waits() > waits;
        if !slept {
            self.fabric.borrow_mut().wake_at(self.id, next_ns);
        }
        self.idle_turns = if slept || !turn.is_idle() {
            0
        } else {
            self.idle_turns + 1
        };
        if self.idle_turns > MAX_IDLE_TURNS {
            let text = format!("host {} neither works nor sleeps", self.id.0);
            return Err(Violation::new("progress", text));
        }
        self.wake_for_agenda(next_ns);
        self.check()?;
        Ok(self.busy())
    }

    fn wake_for_agenda(&mut self, least_ns: u64) {
        if let Some((at_ns, _)) = self.schedule.keys().next() {
            self.fabric
                .borrow_mut()
                .wake_at(self.id, least_ns.max(*at_ns));
        }
    }

    fn check(&mut self) -> Result<(), Violation> {
        if let Some(violation) = self.records.borrow_mut().broken.take() {
            return Err(violation);
        }
        let process = self.process();
        for session in std::mem::take(&mut process.over) {
            if let Some(SessionState::Connecting | SessionState::Connected) =
                process.endpoint.session_state(session)
            {
                let text =
                    format!("{session:?} takes no call, and nobody was told that it is over");
                return Err(Violation::new("nothing stays stuck", text));
            }
        }
        let limits = &self.config.protocol;
        let limit = limits.rx_queue_datagrams * limits.overcommit;
        let process = self.process.as_mut().expect("within a turn");
        let (protocol, grants) = (process.endpoint.protocol(), process.endpoint.io().grants());
        for &session in process.sessions.values() {
            if let Some(credits) = Credits::of(protocol, session, grants) {
                credits.check()?;
            }
        }
        let sessions = process.sessions.values().copied();
        process.queues.check(protocol, limits, sessions)?;
        granted_within(protocol, limit)
    }

    /// A worker's time is over, unless it died with its process.
    pub(super) fn finish(&mut self, busy: BusyWorker) -> Vec<BusyWorker> {
        match &self.process {
            Some(process) if busy.incarnation == self.incarnation => {
                process.workers.finish(busy.worker);
                self.busy()
            }
            _ => Vec::new(),
        }
    }

    /// Workers that began something since the last time.
    fn busy(&mut self) -> Vec<BusyWorker> {
        let begun = self.process().workers.take_begun();
        let busy = begun.into_iter().map(|(worker, until_ns)| BusyWorker {
            host: self.id,
            incarnation: self.incarnation,
            worker,
            until_ns,
        });
        busy.collect()
    }

    fn read_news(&mut self, now_ns: u64) -> Result<(), Violation> {
        let handler_events = self.process().handler_events.clone();
        let news: Vec<HandlerEvent> = handler_events.borrow_mut().drain(..).collect();
        for news in news {
            match news {
                HandlerEvent::Ended { tag, answered } => self.ended(tag, answered, now_ns)?,
                HandlerEvent::Deferred {
                    deferred,
                    via: Some(channel),
                } if self.channels[channel].client == self.id => {
                    match self.call(&CallPlan::short(now_ns, channel), None, now_ns)? {
                        Some(tag) => {
                            self.process().plan_relay.insert(tag, deferred);
                        }
                        None => self.plan(now_ns, Task::Complete(deferred)),
                    }
                }
                HandlerEvent::Deferred { deferred, .. } => {
                    let at_ns = now_ns + u64::from(deferred.expected.delay_us) * US;
                    self.plan(at_ns, Task::Complete(deferred));
                }
            }
        }
        Ok(())
    }

    fn ended(&mut self, tag: Tag, answered: bool, now_ns: u64) -> Result<(), Violation> {
        let (retry_ns, id) = (self.retry_ns, self.id);
        let process = self.process();
        process.calls.remove(&tag);
        let probe = process.probes.remove(&tag);
        if let Some(deferred) = process.plan_relay.remove(&tag) {
            self.plan(now_ns, Task::Complete(deferred));
        }
        match probe {
            Some((channel, _)) if answered => {
                self.unheard.remove(&channel);
            }
            Some((channel, MAX_PROBES)) if !self.tight => {
                let text = format!("host {} got no answer on channel {channel}", id.0);
                return Err(Violation::new("nothing stays stuck", text));
            }
            Some((channel, MAX_PROBES)) => {
                self.unheard.remove(&channel);
            }
            Some((channel, attempt)) => {
                let attempt = attempt + 1;
                self.plan(now_ns + retry_ns, Task::Probe { channel, attempt });
            }
            None => {}
        }
        Ok(())
    }

    fn work(&mut self, task: Task, now_ns: u64) -> Result<(), Violation> {
        match task {
            Task::Call(plan) => self.call(&plan, None, now_ns).map(|_| ()),
            Task::Probe { channel, attempt } => {
                let probe = Some(attempt);
                self.call(&CallPlan::short(now_ns, channel), probe, now_ns)
                    .map(|_| ())
            }
            Task::Close(channel) => {
                let id = self.id;
                let records = self.records.clone();
                let process = self.process();
                if let Some(session) = process.sessions.remove(&channel)
                    && !records.borrow_mut().bug_triggers(PlantedBug::LeakedSession)
                {
                    records.borrow_mut().record_close(id, channel);
                    process.endpoint.close(session);
                }
                Ok(())
            }
            Task::Cancel(tag) => self.cancel(tag),
            Task::Complete(Deferred {
                mut reply,
                expected,
            }) => {
                reply.buffer().extend_from_slice(&response(expected));
                self.process().endpoint.complete_with(reply, Ok(()));
                Ok(())
            }
            Task::Drain => {
                self.records.borrow().record(self.id, "drains", 0, 0);
                self.process().endpoint.start_drain();
                Ok(())
            }
        }
    }

    fn cancel(&mut self, tag: Tag) -> Result<(), Violation> {
        let records = self.records.clone();
        let process = self.process();
        let Some(&call) = process.calls.get(&tag) else {
            return Ok(());
        };
        records.borrow_mut().record_give_up(tag);
        // Its end may be among what the endpoint has not told yet.
        process.endpoint.cancel(call);
        if process.endpoint.cancel(call) {
            let text = format!("call {tag} was cancelled twice");
            return Err(Violation::new("every call ends", text));
        }
        Ok(())
    }

    /// Makes a call. `None`: the endpoint did not take it.
    fn call(
        &mut self,
        plan: &CallPlan,
        probe: Option<u32>,
        now_ns: u64,
    ) -> Result<Option<Tag>, Violation> {
        let Some(mut session) = self.session(plan.channel)? else {
            self.cannot_probe(plan.channel, probe, &"no room for a session")?;
            return Ok(None);
        };
        let id = self.id;
        let records = self.records.clone();
        let tag = records.borrow_mut().new_tag();
        let wanted = Expected {
            key: tag,
            response_len: plan.response_len,
            delay_us: plan.delay_us,
        };
        let (bytes, expected) = content::request(wanted, plan.request_len as usize);
        (records.borrow_mut()).issue(id, plan.channel, tag, expected, plan.timeout_ns);
        if let Some(channel) = plan.via {
            records.borrow_mut().plan_relay(expected, channel);
        }
        let forgets = records.borrow_mut().bug_forgets(plan.timeout_ns);
        let options = match plan.timeout_ns.filter(|_| !forgets) {
            Some(timeout_ns) => CallOptions::with_timeout(Duration::from_nanos(timeout_ns)),
            None => CallOptions::default(),
        };
        let method = match plan.runs {
            // Who calls on answers later.
            _ if plan.via.is_some() => DEFERRED,
            Runs::Inline => INLINE,
            Runs::Worker => WORKER,
            Runs::Deferred => DEFERRED,
        };
        let mut again = true;
        let called = loop {
            let process = self.process();
            let called = make(
                process,
                session,
                method,
                &options,
                &bytes,
                plan.tail_len,
                tag,
            );
            match called {
                // It ended since the last turn: the next one has to say so.
                Err(CallError::SessionOver) if std::mem::take(&mut again) => {
                    let process = self.process();
                    process.sessions.remove(&plan.channel);
                    process.over.push(session);
                    match self.session(plan.channel)? {
                        Some(other) => session = other,
                        None => break called,
                    }
                }
                _ => break called,
            }
        };
        match called {
            Ok(call) => {
                let process = self.process();
                process.calls.insert(tag, call);
                if let Some(attempt) = probe {
                    process.probes.insert(tag, (plan.channel, attempt));
                }
                if let Some(after_ns) = plan.cancel_after_ns {
                    self.plan(now_ns + after_ns, Task::Cancel(tag));
                }
                Ok(Some(tag))
            }
            Err(error) => {
                records.borrow_mut().rejected(id, tag)?;
                self.cannot_probe(plan.channel, probe, &error)?;
                Ok(None)
            }
        }
    }

    /// A call was not taken. If it was a probe, only limits that are tight can be why, and the
    /// channel is not waited for any more; if it was a late one of the scenario's own, its probe is
    /// still to come.
    fn cannot_probe(
        &mut self,
        channel: usize,
        probe: Option<u32>,
        why: &dyn fmt::Display,
    ) -> Result<(), Violation> {
        if probe.is_none() {
            return Ok(());
        }
        if !self.tight {
            let text = format!("host {} cannot ask on channel {channel}: {why}", self.id.0);
            return Err(Violation::new("nothing stays stuck", text));
        }
        self.unheard.remove(&channel);
        Ok(())
    }

    /// The channel's session, a new one if it has none.
    fn session(&mut self, channel: usize) -> Result<Option<SessionId>, Violation> {
        let server = self.channels[channel].server;
        let address = format!("sim://{}", self.fabric.borrow().address(server));
        let tight = self.tight;
        let process = self.process();
        if let Some(&session) = process.sessions.get(&channel) {
            let state = process.endpoint.session_state(session);
            if matches!(
                state,
                Some(SessionState::Connecting | SessionState::Connected)
            ) {
                return Ok(Some(session));
            }
        }
        match process.endpoint.connect(&address) {
            Ok(session) => {
                process.sessions.insert(channel, session);
                Ok(Some(session))
            }
            Err(OpenError::Session { .. }) if tight => Ok(None),
            Err(error) => Err(Violation::new("connect", error.to_string())),
        }
    }

    /// Channels to `server` that have a session here.
    pub(super) fn sessions_with(&self, server: HostId) -> usize {
        let sessions = self.process.iter().flat_map(|it| it.sessions.keys());
        let to_server = |&&channel: &&usize| self.channels[channel].server == server;
        sessions.filter(to_server).count()
    }

    /// Sessions that it serves.
    pub(super) fn server_sessions(&self) -> usize {
        let process = self.process.as_ref();
        process.map_or(0, |it| it.endpoint.protocol().session_counts().1)
    }

    /// What it still holds.
    pub(super) fn leftovers(&self) -> Leftovers {
        let endpoint = self.process.as_ref().map(|process| &process.endpoint);
        let protocol = endpoint.map(|it| (it.protocol(), it.io().peer_count()));
        let mut leftovers = Leftovers::of(self.id.0, protocol);
        if let Some(endpoint) = endpoint {
            let calls = endpoint.calls_outstanding() as u64;
            leftovers.counts.push(("calls", calls));
            let requests = endpoint.requests_pending() as u64;
            leftovers
                .counts
                .push(("requests that are worked on", requests));
        }
        leftovers
    }
}

fn make(
    process: &mut Process,
    session: SessionId,
    method: MethodId,
    options: &CallOptions,
    bytes: &[u8],
    tail_len: u32,
    tag: Tag,
) -> Result<CallId, CallError> {
    let Process {
        endpoint,
        continuation,
        ..
    } = process;
    if tail_len == 0 {
        let build = |buffer: &mut Vec<u8>| buffer.extend_from_slice(bytes);
        return endpoint.call(session, method, options, build, *continuation, tag);
    }
    let (body, tail) = bytes.split_at(bytes.len() - tail_len as usize);
    let mut head = vec![0; options.header_len()];
    head.extend_from_slice(body);
    let message = Msgbuf::from_parts(head, Some(tail.to_vec().into()));
    let called = endpoint.call_message(session, method, options, message, *continuation, tag);
    called.map_err(|rejected| rejected.error)
}

/// What a worker's handler was given last: the handler must be `Send`, so it leaves that here for
/// who has the books.
type Seen = Arc<Mutex<Option<(Vec<u8>, Option<u64>)>>>;

fn worker_handler(seen: &Seen) -> WorkerHandler {
    let seen = Arc::clone(seen);
    Arc::new(move |request, reply| {
        let expected = content::read_request(request.body());
        reply
            .buffer()
            .extend(expected.map(response).unwrap_or_default());
        let saw = (request.body().to_vec(), request.deadline_ns());
        *seen.lock().expect("one thread") = Some(saw);
    })
}

fn response(expected: Expected) -> Vec<u8> {
    let mut bytes = Vec::new();
    content::respond(expected, &mut bytes);
    bytes
}
