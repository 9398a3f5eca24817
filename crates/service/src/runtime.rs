//! A runtime: a thread that drives links and hands calls on from one to another.
//!
//! ```text
//!  applications ─▶ link of the service ─▶ route ─▶ link of the application ─▶ servers
//!  clients ──────▶ published link ──────▶ route ─▶ link to the application ─▶ the application
//! ```
//!
//! One round: each link that is not parked takes a turn, and what came of it is handed on. When all turns did nothing,
//! links park, and when all are parked, the thread sleeps.
//!
//! A link belongs to one application (a process), so that a server knows the calls of each by their peer, and none
//! can disturb another's streams or sessions.

mod accounts;
mod answering;
mod bindings;
mod calls;
mod command;
mod ends;
mod given_up;
mod identity;
mod leaving;
mod links;
mod load;
mod moving;
mod opening;
mod paths;
mod policies;
mod poller;
mod publish;
mod reading;
mod report;
mod resolving;
mod routes;
mod sessions;
mod streams;
mod upgrading;

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::mpsc;

use starling::reflection::REFLECTION_SERVICE;
use starling_endpoint::{CallError, MethodId, SessionId, Status, StreamFlags};
use starling_io::{Clock, MonotonicClock, PeerId};

use self::calls::{Calls, Forwarded};
use self::leaving::Leaving;
use self::links::{LinkId, Links};
use self::load::Load;
use self::policies::{Passage, Policies, Routed};
use self::poller::Poller;
use self::reading::Asking;
use self::resolving::Resolving;
use self::routes::{Callers, RouteId, RouteState, Routes};
use self::upgrading::{Adapter, Upgrading};
use crate::error::ServiceError;
use crate::forwarded::translate;
use crate::link::{Arrived, Events, Link};
use crate::publication::Publication;
use crate::shared::Shared;

pub(crate) use self::accounts::Accounts;
pub(crate) use self::command::{Command, RuntimeHandle};
pub(crate) use self::identity::Configured;
pub(crate) use self::paths::Paths;
pub(crate) use self::policies::Counts;
pub(crate) use self::report::Report;
pub(crate) use self::routes::Local;
pub(crate) use self::upgrading::{AdapterReport, Replacement, Upgraded};

/// While links are busy or spin, the parked ones are looked at once in so many rounds.
const ROUNDS_PER_LOOK: u32 = 16;

/// Whose a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Application {
    /// A process.
    Process(u32),
    /// A peer whose process the kernel does not say.
    Peer(LinkId, PeerId),
}

/// See the head of this file.
pub(crate) struct Runtime {
    /// Its number in the service.
    own: usize,
    links: Links,
    routes: Routes,
    calls: Calls,
    policies: Policies,
    asking: Asking,
    load: Load,
    shared: Arc<Shared>,
    /// The links by which applications call out.
    adapters: HashMap<Application, Vec<Adapter>>,
    upgrading: Upgrading,
    /// Where applications connect that have no link of their own.
    frontend: Option<LinkId>,
    clock: MonotonicClock,
    commands: mpsc::Receiver<Command>,
    handle: RuntimeHandle,
    /// The method by which an application asks whether its server is reached.
    reach: MethodId,
    /// That by which it asks its server of a method.
    bind: MethodId,
    resolving: Resolving,
    /// Callers whose server is gone.
    leaving: Vec<Leaving>,
    /// By the link that listens.
    publications: HashMap<LinkId, Arc<Publication>>,
}

impl Runtime {
    /// The service's runtime with this number, for the applications that come by this link and those that get another.
    pub(crate) fn new(
        own: usize,
        frontend: Option<Box<dyn Link>>,
        shared: Arc<Shared>,
    ) -> Result<Self, ServiceError> {
        let clock = shared.clock.clone();
        let mut links = Links::new(clock.clone(), Poller::new()?);
        let frontend = frontend.map(|link| links.insert(link)).transpose()?;
        let (sender, commands) = mpsc::channel();
        let waker = Arc::clone(links.poller().waker());
        Ok(Self {
            own,
            links,
            routes: Routes::default(),
            calls: Calls::default(),
            policies: Policies::new(own),
            asking: Asking::new(own),
            load: Load::default(),
            shared,
            adapters: HashMap::new(),
            upgrading: Upgrading::new(own),
            frontend,
            clock,
            commands,
            handle: RuntimeHandle::new(sender, waker),
            reach: MethodId(starling::managed::reach_method().id),
            bind: MethodId(REFLECTION_SERVICE.methods[0].id),
            resolving: Resolving::default(),
            leaving: Vec::new(),
            publications: HashMap::new(),
        })
    }

    /// A runtime that nobody reaches.
    #[cfg(test)]
    pub(crate) fn of_nobody() -> Self {
        let (clock, config) = (
            MonotonicClock::new(),
            starling_endpoint::EndpointConfig::default(),
        );
        let kind = crate::device::DeviceKind::of("shm://nobody").expect("an address");
        let link = kind.client("shm://nobody", &clock, &config, &Default::default());
        let quotas = crate::Quotas::default();
        let shared = Shared::new(1, Vec::new(), quotas, Arc::default(), clock, config);
        let frontend = link.expect("a device");
        let runtime = Self::new(0, Some(frontend), Arc::new(shared)).expect("a poller");
        runtime.shared.set_runtimes(vec![runtime.handle()]);
        runtime
    }

    /// Ends it, for whoever does in its place what it is told.
    #[cfg(test)]
    pub(crate) fn into_commands(self) -> (RuntimeHandle, mpsc::Receiver<Command>) {
        (self.handle, self.commands)
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn handle(&self) -> RuntimeHandle {
        self.handle.clone()
    }

    /// Takes rounds until it is told to stop.
    ///
    /// # Errors
    /// If the link by which applications come fails, or the system does.
    pub(crate) fn run(&mut self) -> Result<(), ServiceError> {
        let (mut active, mut events) = (Vec::new(), Events::default());
        let mut rounds_since_look = 0;
        loop {
            self.policies.begin_round(&self.clock);
            if self.links.poller().waker().take() {
                // Some of them end calls, of which policies hear.
                self.policies.look_at(&self.clock);
                if !self.execute_commands() {
                    return Ok(());
                }
            }
            let mut is_idle = true;
            self.links.active(&mut active);
            for link in &active {
                is_idle &= self.turn(*link, &mut events)?;
            }
            if self.calls.has_cancelled() {
                is_idle = false;
                self.cancel_given_up();
            }
            if !self.leaving.is_empty() {
                is_idle &= !self.end_left();
            }
            if !self.upgrading.is_idle() {
                self.look_at_upgrades();
            }
            is_idle &= !self.release_held();
            is_idle &= !self.release_read();
            rounds_since_look += 1;
            self.load.note(!is_idle, &self.clock);
            if !is_idle && rounds_since_look < ROUNDS_PER_LOOK {
                continue;
            }
            self.show_load();
            let may_sleep = self.links.park()? && is_idle;
            let may_sleep = !self.remove_deserted() && may_sleep;
            if is_idle && !may_sleep {
                self.yield_core();
            }
            if may_sleep || rounds_since_look >= ROUNDS_PER_LOOK {
                rounds_since_look = 0;
                let until_ns = self
                    .leaving_until_ns()
                    .into_iter()
                    .chain(self.policies.due_ns())
                    .chain(self.upgrades_due_ns());
                self.links.look(may_sleep, until_ns.min())?;
                if may_sleep {
                    self.load.begin_round(self.clock.now_ns());
                }
            }
        }
    }

    /// Some links spin: lets those run that they wait for.
    fn yield_core(&mut self) {
        if let Some(link) = self.links.spinning()
            && let Some(entry) = self.links.get_mut(link)
        {
            entry.link.yield_core();
        }
    }

    /// False: it has to stop.
    fn execute_commands(&mut self) -> bool {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Resolved {
                    wanted,
                    target,
                    application,
                    result,
                } => self.handle_resolved(wanted, &target, application, result),
                Command::Publish {
                    address,
                    application,
                    publication,
                } => self.begin_publication(address, application, publication),
                Command::Unpublish(id) => self.unpublish(id),
                Command::Admit {
                    process,
                    link,
                    queue,
                } => self.admit_application(process, link, queue),
                Command::Move { process, to, reply } => {
                    let can_move = to == self.own || !self.shares_frontend(process);
                    let _ = reply.send(can_move.then(|| self.move_application(process, to)));
                }
                Command::Adopt(handover) => self.adopt(*handover),
                // Who asked may have given up.
                Command::SetPolicies { list, reply } => {
                    self.set_policies(list);
                    let _ = reply.send(());
                }
                Command::Adapters { reply } => {
                    let _ = reply.send(self.report_adapters());
                }
                Command::ReplaceAdapters { list, reply } => self.replace_adapters(list, reply),
                Command::Report { reply } => {
                    let _ = reply.send(self.report());
                }
                Command::Counts { reply } => {
                    let _ = reply.send(self.policies.counts());
                }
                Command::Stop => {
                    self.links.end_all();
                    // Applications hear of it by their calls that hold them.
                    self.publications
                        .values()
                        .for_each(|publication| publication.end());
                    return false;
                }
            }
        }
        true
    }

    /// A turn of one link. Returns whether it did nothing.
    fn turn(&mut self, id: LinkId, events: &mut Events) -> Result<bool, ServiceError> {
        // An earlier link's events may have ended this one.
        let Some(entry) = self.links.get_mut(id) else {
            return Ok(true);
        };
        let turned = entry.link.turn();
        self.policies.begin_turn(|| entry.link.turn_ns());
        let is_idle = match turned {
            Ok(is_idle) => is_idle,
            Err(error) if Some(id) == self.frontend => return Err(error.into()),
            Err(error) => {
                self.fail_link(id, &error.to_string());
                return Ok(false);
            }
        };
        entry.link.take_events(events);
        let changes = entry.link.sessions_changed();
        let sessions_changed = std::mem::replace(&mut entry.sessions_seen, changes) != changes;
        let is_connecting = entry.connecting > 0;
        for ended in events.ended.drain(..) {
            self.finish(id, ended);
        }
        // Nobody waits for their answers, and to ask who it was would name the next one that has the number.
        if !events.released.is_empty() {
            let released = &events.released;
            (events.arrived).retain(|arrived| !released.contains(&arrived.peer));
        }
        self.handle_requests(id, &mut events.arrived);
        for peer in events.released.drain(..) {
            if let Some(route) = self.routes.of_peer(id, peer) {
                self.remove_route(route);
            }
        }
        if sessions_changed || is_connecting {
            for route in self.routes.with_session_of(id) {
                self.check_session(route);
            }
            for route in self.routes.with_successor_on(id) {
                self.check_successor(route);
            }
        }
        if sessions_changed {
            self.end_previous_on(id);
        }
        self.end_quiet();
        Ok(is_idle)
    }

    // ---- requests ----

    /// Requests have come by a link. Those of one caller that stand together pass policies together.
    fn handle_requests(&mut self, from: LinkId, requests: &mut Vec<Arrived>) {
        if requests.is_empty() {
            return;
        }
        let mut all = std::mem::take(&mut self.policies.routed);
        for run in requests.chunk_by_mut(|one, next| one.peer == next.peer) {
            let (first, route) = (all.len(), self.routes.of(from, run[0].peer));
            for arrived in run.iter_mut() {
                let charged = route.map_or(Ok(()), |route| self.charge(route, arrived));
                let passage = charged.map_or_else(Passage::Refused, |()| Passage::On);
                all.push(Routed { route, passage });
            }
            if let Some(route) = route {
                self.admit_all(route, run, &mut all[first..]);
            }
        }
        let changes = self.routes.changes();
        for (mut arrived, routed) in requests.drain(..).zip(all.drain(..)) {
            let Routed { route, passage } = routed;
            // What became of an earlier one may have ended the route.
            let is_there = |route: &RouteId| {
                self.routes.changes() == changes
                    || self.routes.of(from, arrived.peer) == Some(*route)
            };
            match route.filter(is_there) {
                Some(route) => self.take_passage(route, passage, arrived),
                None if arrived.passed.is_begun() => {
                    if let Passage::Held { by, .. } = passage {
                        self.policies.end_hold(by);
                        arrived.passed.advance();
                    }
                    let gone = "the service no longer reaches the server for this caller";
                    self.refuse(from, arrived, Status::unavailable(gone));
                }
                None => {
                    arrived.charge = None;
                    self.handle_first(from, arrived);
                }
            }
        }
        self.policies.routed = all;
    }

    /// A request has come for which there may be no route.
    fn handle_first(&mut self, from: LinkId, mut arrived: Arrived) {
        let route = match self.routes.of(from, arrived.peer) {
            Some(route) => route,
            None => match self.open_route(from, arrived.peer) {
                Ok(route) => route,
                Err(status) => return self.refuse(from, arrived, status),
            },
        };
        match self.charge(route, &mut arrived) {
            Ok(()) => self.admit(route, arrived),
            Err(status) => self.refuse(from, arrived, status),
        }
    }

    #[inline]
    fn forward(&mut self, id: RouteId, arrived: Arrived) {
        if arrived.passed.may_have_run()
            && !self.may_run_again(&arrived.passed, arrived.request.method)
        {
            return self.refuse_again(id, arrived);
        }
        let now_ns = || self.clock.now_ns();
        let Some(route) = self.routes.get_mut(id) else {
            return;
        };
        if let Some(position) = arrived.request.options.stream
            && position.number > 0
            && let Some((link, session)) =
                route.previous_with((arrived.request.method, position.id))
        {
            return self.make(id, link, session, arrived);
        }
        match &route.state {
            RouteState::Open(_)
                if arrived.request.method == self.reach
                    && matches!(route.callers, Callers::Peer(..)) =>
            {
                let from = route.from();
                if let Some(entry) = self.links.awake(from) {
                    entry.link.answer(arrived.reply, Ok(()));
                }
            }
            // It is known soon which server answers.
            RouteState::Open(_)
                if route.successor.is_some() && arrived.request.method == self.bind =>
            {
                route.waiting.push(arrived);
            }
            RouteState::Open(session) => {
                let (session, link) = (*session, route.link);
                self.make(id, link, session, arrived);
            }
            RouteState::Down { until_ns, status } if now_ns() < *until_ns => {
                let (from, status) = (route.from(), status.clone());
                self.refuse(from, arrived, status);
            }
            RouteState::Connecting(_) | RouteState::Resolving => route.waiting.push(arrived),
            RouteState::Leaving => {
                let from = route.from();
                self.refuse_leaving(from, arrived);
            }
            RouteState::Idle | RouteState::Down { .. } => {
                route.waiting.push(arrived);
                self.resolve(id);
            }
        }
    }

    /// Makes a call of a route, in one of its sessions.
    fn make(&mut self, id: RouteId, to: LinkId, session: SessionId, mut arrived: Arrived) {
        let stream_key = match arrived.request.options.stream {
            Some(_) => self.stream_key(id, arrived.peer),
            None => 0,
        };
        arrived.keep();
        let Arrived {
            reply,
            mut request,
            passed,
            charge,
            ..
        } = arrived;
        let Some(route) = self.routes.get_mut(id) else {
            return;
        };
        let asks = request.method == self.bind && matches!(route.callers, Callers::Peer(..));
        let question = asks.then(|| route.bindings.question(request.body()));
        request.options.stream = translate(request.options.stream, stream_key);
        let stream = request.options.stream;
        let call = Forwarded {
            from: route.from(),
            reply,
            call: None,
            stream_key,
            method: request.method,
            passed,
            stream: stream.map(|position| position.id),
            route: id,
            question: question.flatten(),
            charge,
        };
        if let Some(position) = stream
            && position.flags.has(StreamFlags::CANCEL)
            && let Some(streams) = route.streams_on(to)
        {
            streams.end((request.method, position.id));
        }
        if let Some(previous) = route.previous_on(to) {
            previous.outstanding += 1;
            previous.quiet_since_ns = None;
        }
        let tag = self.calls.insert(to, call);
        let Some(entry) = self.links.awake(to) else {
            let status = Status::unavailable("the service's device has failed");
            return self.fail(to, tag, status);
        };
        match entry.link.call(session, request, tag) {
            Ok(call) => self.calls.made(to, tag, call),
            Err(CallError::Draining) => self.refuse_draining(to, tag),
            Err(error) => self.fail(to, tag, self.not_made(id, error)),
        }
    }

    /// The policy is gone that allowed a call to run again.
    #[cold]
    fn refuse_again(&mut self, id: RouteId, arrived: Arrived) {
        if let Some(from) = self.routes.get(id).map(|route| route.from()) {
            let text = "the policy that made the call again is gone";
            let status = Status::unavailable(text).with_not_run();
            let status = arrived.passed.end_with(status);
            self.refuse(from, arrived, status);
        }
    }

    /// The text of a call that was not made, with whom it was for.
    fn not_made(&self, route: RouteId, error: CallError) -> Status {
        let target = self.routes.get(route).map_or("", |route| &route.target);
        let status = Status::from(error);
        Status::new(status.code(), format!("{target}: {}", status.message())).with_not_run()
    }

    /// Answers a request that was not handed on.
    fn refuse(&mut self, from: LinkId, arrived: Arrived, status: Status) {
        let mut reply = arrived.reply;
        self.end_of_policies(&arrived.passed, arrived.request.method, status.code());
        if !arrived.passed.may_have_run() {
            reply.set_refused();
        }
        if let Some(entry) = self.links.awake(from) {
            entry.link.answer(reply, Err(status));
        }
    }

    /// Has a caller make a request elsewhere: its server is gone, and only the service has it.
    fn refuse_leaving(&mut self, from: LinkId, arrived: Arrived) {
        let method = arrived.request.method;
        self.make_elsewhere(from, arrived.reply, &arrived.passed, method);
    }

    /// What tells the streams of one caller of a route from those of others.
    fn stream_key(&self, route: RouteId, peer: PeerId) -> u64 {
        let route = self.routes.get(route);
        match route.is_some_and(|route| matches!(route.callers, Callers::All(_))) {
            true => self.shared.stream_keys.hash_one(peer.0),
            false => 0,
        }
    }
}
