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

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::mpsc;

use starling_endpoint::{CallError, Code, EndpointConfig, MethodId, Status, unsent_message};
use starling_io::{Clock, MonotonicClock, PeerId};

use self::calls::{Calls, Forwarded};
use self::leaving::Leaving;
use self::links::{LinkId, Links};
use self::load::Load;
use self::policies::Policies;
use self::poller::Poller;
use self::reading::{Asking, is_own};
use self::resolving::Resolving;
use self::routes::{Callers, RouteId, RouteState, Routes};
use crate::error::ServiceError;
use crate::forwarded::{self, translate};
use crate::link::{Arrived, Ended, Events, Link};
use crate::publication::Publication;
use crate::shared::Shared;

pub(crate) use self::accounts::Accounts;
pub(crate) use self::command::{Command, RuntimeHandle};
pub(crate) use self::identity::Configured;
pub(crate) use self::paths::Paths;
pub(crate) use self::policies::Counts;
pub(crate) use self::report::Report;
pub(crate) use self::routes::Local;

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
    /// The links by which applications call out, by device.
    adapters: HashMap<Application, Vec<(String, LinkId)>>,
    /// Where applications connect that have no link of their own.
    frontend: Option<LinkId>,
    clock: MonotonicClock,
    config: EndpointConfig,
    commands: mpsc::Receiver<Command>,
    handle: RuntimeHandle,
    /// The method by which an application asks whether its server is reached.
    reach: MethodId,
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
        clock: MonotonicClock,
        config: EndpointConfig,
        shared: Arc<Shared>,
    ) -> Result<Self, ServiceError> {
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
            frontend,
            clock,
            config,
            commands,
            handle: RuntimeHandle::new(sender, waker),
            reach: MethodId(starling::managed::reach_method().id),
            resolving: Resolving::default(),
            leaving: Vec::new(),
            publications: HashMap::new(),
        })
    }

    /// A runtime that nobody reaches.
    #[cfg(test)]
    pub(crate) fn of_nobody() -> Self {
        let (clock, config) = (MonotonicClock::new(), EndpointConfig::default());
        let kind = crate::device::DeviceKind::of("shm://nobody").expect("an address");
        let link = kind.client("shm://nobody", &clock, &config);
        let quotas = crate::Quotas::default();
        let shared = Shared::new(1, Vec::new(), quotas, Arc::default(), clock.clone());
        let runtime = Self::new(
            0,
            Some(link.expect("a device")),
            clock,
            config,
            Arc::new(shared),
        );
        let runtime = runtime.expect("a poller");
        runtime.shared.set_runtimes(vec![runtime.handle()]);
        runtime
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
            if self.links.poller().waker().take() && !self.execute_commands() {
                return Ok(());
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
                    .chain(self.policies.due_ns());
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
        let is_idle = match entry.link.turn() {
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
        for arrived in events.arrived.drain(..) {
            // Nobody waits for the answer, and to ask who it was would name the next one that has the number.
            if !events.released.contains(&arrived.peer) {
                self.handle_request(id, arrived);
            }
        }
        for peer in events.released.drain(..) {
            if let Some(route) = self.routes.of_peer(id, peer) {
                self.remove_route(route);
            }
        }
        if sessions_changed || is_connecting {
            for route in self.routes.with_session_of(id) {
                self.check_session(route);
            }
        }
        Ok(is_idle)
    }

    // ---- requests ----

    fn handle_request(&mut self, from: LinkId, mut arrived: Arrived) {
        let route = match self.routes.of(from, arrived.peer) {
            Some(route) => route,
            None => match self.open_route(from, arrived.peer) {
                Ok(route) => route,
                Err(status) => return self.refuse(from, arrived, status),
            },
        };
        match self.charge(route, arrived.request.bytes()) {
            Ok(charge) => arrived.charge = charge,
            Err(status) => return self.refuse(from, arrived, status),
        }
        self.admit(route, arrived);
    }

    fn forward(&mut self, id: RouteId, mut arrived: Arrived) {
        if arrived.passed.may_have_run()
            && !self.may_run_again(&arrived.passed, arrived.request.method)
        {
            return self.refuse_again(id, arrived);
        }
        let now_ns = || self.clock.now_ns();
        let Some(route) = self.routes.get_mut(id) else {
            return;
        };
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
            RouteState::Open(session) => {
                let (session, from, to) = (*session, route.from(), route.link);
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
                request.options.stream = translate(request.options.stream, stream_key);
                let stream = request.options.stream.map(|position| position.id);
                let call = Forwarded {
                    from,
                    reply,
                    call: None,
                    stream_key,
                    method: request.method,
                    passed,
                    stream,
                    route: id,
                    charge,
                };
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

    // ---- ends of calls ----

    /// A call is over that was made on a link.
    fn finish(&mut self, on: LinkId, ended: Ended) {
        if is_own(&ended) {
            return self.handle_own(ended);
        }
        let Some(forwarded) = self.calls.remove(on, ended.tag) else {
            return;
        };
        let (forwarded, result) = match (ended.result, forwarded.passed.attempts.is_some()) {
            (Err(status), true) => match self.fail_attempt(forwarded, status) {
                Some((forwarded, status)) => (forwarded, Err(status)),
                None => return,
            },
            (result, _) => (forwarded, result),
        };
        let Forwarded {
            from,
            mut reply,
            stream_key,
            method,
            mut passed,
            route,
            stream,
            charge,
            ..
        } = forwarded;
        let Some(entry) = self.links.awake(from) else {
            return self.end_of_policies(&passed, method, Code::Cancelled);
        };
        let result = match (result, reply.cancellation().status()) {
            (Ok(response), _) => {
                // Another route may have its number by now.
                if let Some(id) = stream.filter(|_| response.stream().is_some())
                    && let Some(route) = self.routes.get_mut(route)
                    && route.from() == from
                {
                    route.streams.insert((method, id));
                }
                passed.set_response(response.body().len());
                if let Some(charge) = &charge {
                    charge.count_response(response.body().len() + response.fields().len());
                }
                forwarded::fill(&mut reply, response, stream_key);
                Ok(())
            }
            // The call was cancelled because its caller no longer waits.
            (Err(_), Some(why)) => Err(why),
            (Err(mut status), None) => {
                // Another route may have its number by now.
                let route = self.routes.get(route);
                if let Some(route) = route.filter(|route| route.from() == from) {
                    status = route.named_publicly(status);
                }
                if unsent_message(&mut status).is_some() {
                    // No server has it: the caller may make it elsewhere.
                    entry.link.refuse_draining(reply);
                    return self.end_of_policies(&passed, method, Code::Cancelled);
                }
                if !status.may_have_run() {
                    reply.set_refused();
                }
                Err(status)
            }
        };
        let code = result.as_ref().err().map_or(Code::Ok, Status::code);
        entry.link.answer(reply, result);
        self.end_of_policies(&passed, method, code);
    }

    /// Ends a call that did not run.
    fn fail(&mut self, on: LinkId, tag: u64, status: Status) {
        let result = Err(status.with_not_run());
        self.finish(on, Ended { tag, result });
    }

    /// The server of a call that was not made shuts down: the caller may make it elsewhere.
    fn refuse_draining(&mut self, on: LinkId, tag: u64) {
        if let Some(call) = self.calls.remove(on, tag) {
            self.make_elsewhere(call.from, call.reply, &call.passed, call.method);
        }
    }

    /// Cancels the calls whose callers no longer wait.
    fn cancel_given_up(&mut self) {
        for (link, call) in self.calls.take_cancelled() {
            if let Some(entry) = self.links.awake(link) {
                entry.link.cancel(call);
            }
        }
    }
}
