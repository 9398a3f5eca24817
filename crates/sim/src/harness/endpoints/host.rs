//! A host with a whole endpoint on it, and the application that uses it as the plan says.
//!
//! ```text
//!  turn:  tasks that are due ─▶ Endpoint::poll ─▶ events of handlers and continuations ─▶
//!         Endpoint::wait, if nothing was done ─▶ next turn: a task, the endpoint's own time
//! ```

mod client_streams;
mod server_streams;
mod stream_user;
mod threads;
mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use starling_endpoint::{
    CallError, CallOptions, EndpointConfig, Idle, OpenError, Secrets, SessionId, SessionState,
};

use super::super::host_set::{PlannedHost, PlannedTask, sessions_with_servers};
use super::super::plan::Runs;

use super::super::{Branches, CallPlan, ChannelPlan, PlantedBug, RunPlan, US};
use super::call_records::SharedCallRecords;
use super::process::{DEFERRED, Deferred, HandlerEvent, INLINE, Process, WORKER, response};
use crate::check::content::{self, Expected};
use crate::check::{Leftovers, Tag, Violation};
use crate::fabric::{HostId, SharedFabric};
use crate::rng::Rng;

pub(super) use client_streams::ClientEnd;
pub(super) use server_streams::ServerEnd;
use stream_user::StreamTask;
pub(super) use threads::{Call, Threads};

/// Attempts of a probe, once all faults have healed.
pub(super) const MAX_PROBES: u32 = 4;
/// How long a spinning endpoint spins after its last work.
const SPIN: Duration = Duration::from_micros(50);

/// An action of the application.
pub(super) enum Task {
    /// An action of the plan, or the repetition of a probe.
    Planned(PlannedTask),
    Cancel(Tag),
    /// Answers a request that was deferred.
    Complete(Deferred),
    /// The user of a stream acts.
    Stream(StreamTask),
    /// Streams whose clients are gone end.
    Sweep,
    /// A thread gets the signal that it waits for.
    Signal(Arc<Call>),
    /// The endpoint begins to shut down.
    Drain,
}

pub(in crate::harness) struct Host {
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
    /// Those that former processes took.
    branches: Branches,
    schedule: BTreeMap<(u64, u64), Task>,
    entries: u64,
    idle_turns: u32,
    /// Channels without an answer since the probes began.
    unheard: BTreeSet<usize>,
    tight: bool,
    retry_ns: u64,
    /// Threads share the endpoint.
    has_threads: bool,
    /// The hosts themselves suffer no faults.
    is_steady: bool,
}

impl Host {
    pub(super) fn new(
        fabric: &SharedFabric,
        records: &SharedCallRecords,
        id: HostId,
        plan: &RunPlan,
        mut rng: Rng,
    ) -> Self {
        let config = EndpointConfig {
            protocol: plan.hosts[id.0 as usize].clone(),
            idle: rng.pick(&[Idle::Block, Idle::Block, Idle::Adaptive { spin: SPIN }]),
            batched_timestamps: rng.chance(700_000),
            returns_memory: false,
            ..EndpointConfig::default()
        };
        let mut host = Self {
            id,
            fabric: fabric.clone(),
            records: records.clone(),
            config,
            workers: (rng.range(1, 4) as usize, rng.log_range(0, 64) as usize),
            rng,
            channels: plan.channels.clone(),
            process: None,
            incarnation: 0,
            branches: Branches::default(),
            schedule: BTreeMap::new(),
            entries: 0,
            idle_turns: 0,
            unheard: BTreeSet::new(),
            tight: plan.tight,
            retry_ns: plan.forgetting_ns(),
            has_threads: plan.has_threads(id),
            is_steady: plan.host_faults.is_empty(),
        };
        host.start();
        host
    }

    fn start(&mut self) {
        let secrets = Secrets {
            cookie_key: self.rng.next_key(),
            token_key: self.rng.next_key(),
        };
        let process = Process::start(
            &self.fabric,
            &self.records,
            self.id,
            self.config.clone(),
            secrets,
            self.workers,
            self.has_threads.then(|| self.rng.fork()),
        );
        self.process = Some(process);
    }

    /// Schedules a task and a turn of the host for it.
    pub(super) fn plan(&mut self, at_ns: u64, task: Task) {
        self.entries += 1;
        self.schedule.insert((at_ns, self.entries), task);
        self.fabric.lock().wake_at(self.id, at_ns);
    }

    /// The process dies, and its open calls with it.
    pub(super) fn crash(&mut self) {
        let Some(process) = self.process.take() else {
            return;
        };
        self.branches.add_stats(process.endpoint.protocol().stats());
        self.records.lock().record(self.id, "crashes", 0, 0);
        for &id in process.server_streams.keys() {
            self.records.lock().streams.server_over(id);
        }
        drop(process);
        self.schedule
            .retain(|_, task| matches!(task, Task::Planned(_) | Task::Cancel(_)));
        self.fabric.lock().crash(self.id);
        self.records.lock().abandon(self.id);
    }

    /// Another process takes its place.
    pub(super) fn restart(&mut self) {
        if self.process.is_some() {
            return;
        }
        self.records.lock().record(self.id, "restarts", 0, 0);
        self.fabric.lock().restart(self.id);
        self.incarnation += 1;
        self.start();
        let now_ns = self.fabric.lock().now_ns();
        self.wake_for_tasks(now_ns);
    }

    fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("only called within a turn")
    }

    fn handle_events(&mut self, now_ns: u64) -> Result<(), Violation> {
        let handler_events = self.process().handler_events.clone();
        let events: Vec<HandlerEvent> = handler_events.lock().drain(..).collect();
        for event in events {
            match event {
                HandlerEvent::Ended { tag, answered } => self.ended(tag, answered, now_ns)?,
                HandlerEvent::Deferred {
                    deferred,
                    via: Some(channel),
                } if self.channels[channel].client == self.id => {
                    match self.call(&CallPlan::short(now_ns, channel), None, now_ns)? {
                        Some(tag) => {
                            self.process().relays.insert(tag, deferred);
                        }
                        None => self.plan(now_ns, Task::Complete(deferred)),
                    }
                }
                HandlerEvent::Deferred { deferred, .. } => {
                    let at_ns = now_ns + u64::from(deferred.expected.delay_us) * US;
                    self.plan(at_ns, Task::Complete(deferred));
                }
                HandlerEvent::StreamRequest(request) => self.stream_request(request, now_ns)?,
                HandlerEvent::StreamResponse { tag, result } => {
                    self.stream_response(tag, result, now_ns)?;
                }
            }
        }
        Ok(())
    }

    fn ended(&mut self, tag: Tag, answered: bool, now_ns: u64) -> Result<(), Violation> {
        let (retry_ns, id) = (self.retry_ns, self.id);
        let records = self.records.clone();
        let process = self.process();
        process.calls.remove(&tag);
        if let Some(call) = process.waiting.remove(&tag)
            && !records.lock().bug_triggers(PlantedBug::ForgottenWake)
        {
            call.finish();
        }
        let probe = process.probes.remove(&tag);
        if let Some(deferred) = process.relays.remove(&tag) {
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
                let probe = PlannedTask::Probe { channel, attempt };
                self.plan_task(now_ns + retry_ns, probe);
            }
            None => {}
        }
        Ok(())
    }

    fn work(&mut self, task: Task, now_ns: u64) -> Result<(), Violation> {
        match task {
            Task::Planned(PlannedTask::Call(plan)) => self.call(&plan, None, now_ns).map(|_| ()),
            Task::Planned(PlannedTask::Stream(plan)) => {
                self.begin_stream(plan, now_ns);
                Ok(())
            }
            Task::Stream(task) => self.act(task, now_ns),
            Task::Sweep => self.sweep_streams(now_ns),
            Task::Planned(PlannedTask::Probe { channel, attempt }) => {
                let probe = Some(attempt);
                self.call(&CallPlan::short(now_ns, channel), probe, now_ns)
                    .map(|_| ())
            }
            Task::Planned(PlannedTask::Close(channel)) => {
                let id = self.id;
                let records = self.records.clone();
                let process = self.process();
                if let Some(session) = process.sessions.remove(&channel)
                    && !records.lock().bug_triggers(PlantedBug::LeakedSession)
                {
                    records.lock().record_close(id, channel);
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
            Task::Signal(call) => {
                call.finish();
                Ok(())
            }
            Task::Drain => {
                self.records.lock().record(self.id, "drains", 0, 0);
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
        records.lock().record_give_up(tag);
        // The call may have ended already, with its completion still to be delivered.
        process.endpoint.cancel(call);
        if process.endpoint.cancel(call) {
            let text = format!("call {tag} was cancelled twice");
            return Err(Violation::new("every call ends", text));
        }
        Ok(())
    }

    /// Makes a call. `None`: the endpoint did not make it.
    fn call(
        &mut self,
        plan: &CallPlan,
        probe: Option<u32>,
        now_ns: u64,
    ) -> Result<Option<Tag>, Violation> {
        let Some(mut session) = self.session(plan.channel, false)? else {
            self.cannot_probe(plan.channel, probe, &"no room for a session")?;
            return Ok(None);
        };
        let id = self.id;
        let records = self.records.clone();
        let tag = records.lock().new_tag();
        let wanted = Expected {
            key: tag,
            response_len: plan.response_len,
            delay_us: plan.delay_us,
        };
        let (bytes, expected) = content::request(wanted, plan.request_len as usize);
        (records.lock()).issue(id, plan.channel, tag, expected, plan.timeout_ns);
        if let Some(channel) = plan.via {
            records.lock().plan_relay(expected, channel);
        }
        let forgets = records.lock().bug_forgets(plan.timeout_ns);
        let options = match plan.timeout_ns.filter(|_| !forgets) {
            Some(timeout_ns) => CallOptions::with_timeout(Duration::from_nanos(timeout_ns)),
            None => CallOptions::default(),
        };
        let method = match plan.runs {
            // A handler that makes a call of its own answers later.
            _ if plan.via.is_some() => DEFERRED,
            Runs::Inline => INLINE,
            Runs::Worker => WORKER,
            Runs::Deferred => DEFERRED,
        };
        let mut again = true;
        let called = loop {
            let process = self.process();
            let called = process.call(session, method, &options, &bytes, plan.tail_len, tag);
            match called {
                // Since the last turn the session ended, which the next turn must report, or its server shuts
                // down.
                Err(CallError::SessionOver | CallError::Draining) if std::mem::take(&mut again) => {
                    process.sessions.remove(&plan.channel);
                    match called {
                        Err(CallError::Draining) => {
                            process.draining.insert(plan.channel, session);
                        }
                        _ => process.over.push(session),
                    }
                    match self.session(plan.channel, false)? {
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
                records.lock().not_made(id, tag)?;
                self.cannot_probe(plan.channel, probe, &error)?;
                Ok(None)
            }
        }
    }

    /// The endpoint did not make a call. For a probe, only tight limits can be the reason, and the
    /// host stops waiting for the channel. For a late call of the plan, the channel's
    /// probe is still to come.
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
            let text = format!("host {} cannot probe channel {channel}: {why}", self.id.0);
            return Err(Violation::new("nothing stays stuck", text));
        }
        self.unheard.remove(&channel);
        Ok(())
    }

    /// The channel's session, a new one if it has none. `continues`: for a stream that has begun, which goes on
    /// in a session whose server shuts down.
    fn session(&mut self, channel: usize, continues: bool) -> Result<Option<SessionId>, Violation> {
        let server = self.channels[channel].server;
        let address = format!("sim://{}", self.fabric.lock().address(server));
        let tight = self.tight;
        let process = self.process();
        let state = |session: Option<&SessionId>| process.endpoint.session_state(*session?);
        let draining = process.draining.get(&channel);
        if continues && state(draining) == Some(SessionState::Draining) {
            return Ok(draining.copied());
        }
        if let Some(&session) = process.sessions.get(&channel) {
            match state(Some(&session)) {
                Some(SessionState::Connecting | SessionState::Connected) => {
                    return Ok(Some(session));
                }
                Some(SessionState::Draining) if continues => return Ok(Some(session)),
                Some(SessionState::Draining) => {
                    process.draining.insert(channel, session);
                }
                _ => {}
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
        let protocol = process.endpoint.protocol();
        let channels = process.sessions.iter();
        let channels = channels.filter(|&(&channel, _)| self.channels[channel].server == server);
        sessions_with_servers(protocol, channels.map(|(_, &session)| session))
    }

    fn server_sessions(&self) -> usize {
        let process = self.process.as_ref();
        process.map_or(0, |it| it.endpoint.protocol().session_counts().1)
    }

    fn branches(&self) -> Branches {
        let mut branches = self.branches.clone();
        if let Some(process) = &self.process {
            branches.add_stats(process.endpoint.protocol().stats());
        }
        branches
    }

    fn leftovers(&self) -> Leftovers {
        let endpoint = self.process.as_ref().map(|process| &process.endpoint);
        let protocol = endpoint.map(|it| (it.protocol(), it.io().peer_count()));
        let mut leftovers = Leftovers::of(self.id.0, protocol);
        if let Some(process) = &self.process {
            let (clients, servers) = (process.client_streams.len(), process.server_streams.len());
            (leftovers.counts).push(("clients' ends of streams", clients as u64));
            (leftovers.counts).push(("servers' ends of streams", servers as u64));
            let calls = process.stream_calls.len() as u64;
            leftovers.counts.push(("calls of streams", calls));
            let waiting = process.threads.as_ref().map_or(0, Threads::waiting);
            leftovers.counts.push(("threads that wait", waiting as u64));
            let left = process.threads.as_ref().map_or(0, Threads::left);
            leftovers
                .counts
                .push(("commands that are left", left as u64));
        }
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
