//! The policies of a runtime, and the requests that pass them.
//!
//! ```text
//!  arrived ─▶ engine ─▶ engine ─▶ forward        answer ─▶ engine ─▶ engine ─▶ caller
//!               │ Hold                            (the last one passed first)
//!               ▼
//!             held, by time ─▶ the next engine
//! ```
//!
//! A request passes the policies that its route had when it arrived. One that is detached meanwhile lets go of what it
//! holds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::time::Duration;

use slab::Slab;
use starling_endpoint::{Code, MethodId, Status};
use starling_io::{Clock, MonotonicClock};
use starling_message::method_id;
use starling_policy::{PolicyEnd, PolicyEngine, PolicyRequest, PolicySpec, RestoreError, Verdict};

use super::Runtime;
use super::identity::Identity;
use super::routes::{Callers, Route, RouteId, RouteState};
use crate::datapath::{Chain, Passed, PolicyId};
use crate::link::Arrived;

/// Methods of the library itself: policies are for those of applications.
const INFRASTRUCTURE: &[&str] = &[
    "/starling.reflection.Reflection/Bind",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
];

/// A policy with its engine, as a runtime takes it.
pub(crate) struct Built {
    pub(crate) spec: PolicySpec,
    pub(crate) engine: Box<dyn PolicyEngine>,
    /// The engine takes its predecessor's place, also if the policy has not changed.
    pub(crate) upgrades: bool,
}

impl fmt::Debug for Built {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}

/// What a policy has done so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) delayed: u64,
    pub(crate) refused: u64,
    /// Requests that it holds now.
    pub(crate) held: usize,
}

struct Attached {
    id: u32,
    spec: PolicySpec,
    /// In order. Empty: all.
    methods: Vec<MethodId>,
    engine: Box<dyn PolicyEngine>,
    counts: Counts,
}

impl Attached {
    fn applies_to(&self, method: MethodId) -> bool {
        self.methods.is_empty() || self.methods.binary_search(&method).is_ok()
    }
}

/// A request that a policy holds back.
struct Held {
    until_ns: u64,
    /// Of those that are due at once, the first comes first.
    number: u64,
    by: PolicyId,
    since_ns: u64,
    route: RouteId,
    arrived: Arrived,
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.until_ns, self.number).cmp(&(other.until_ns, other.number))
    }
}

/// All policies of a runtime.
pub(super) struct Policies {
    table: Slab<Attached>,
    /// In the order in which requests pass them.
    order: Vec<PolicyId>,
    held: BinaryHeap<Reverse<Held>>,
    next: u32,
    numbers: u64,
    /// The time of the round: one reading of the clock for all calls of it.
    now_ns: u64,
    infrastructure: Vec<MethodId>,
}

impl Default for Policies {
    fn default() -> Self {
        let ids = INFRASTRUCTURE.iter().map(|path| MethodId(method_id(path)));
        Self {
            table: Slab::new(),
            order: Vec::new(),
            held: BinaryHeap::new(),
            next: 0,
            numbers: 0,
            now_ns: 0,
            infrastructure: ids.collect(),
        }
    }
}

impl Policies {
    fn get_mut(&mut self, of: PolicyId) -> Option<&mut Attached> {
        let attached = self.table.get_mut(of.place as usize);
        attached.filter(|attached| attached.id == of.id)
    }

    fn named(&self, name: &str) -> Option<PolicyId> {
        let is_named = |of: &&PolicyId| self.table[of.place as usize].spec.name == name;
        self.order.iter().find(is_named).copied()
    }

    /// The policies that the calls of a route pass: those of its callers, then those of a server behind this service.
    pub(super) fn chain(&self, route: &Route) -> Chain {
        let of_side = |identity: &Identity| {
            let is_in = |of: &&PolicyId| identity.is_in(&self.table[of.place as usize].spec.scope);
            self.order.iter().filter(is_in).copied().collect::<Vec<_>>()
        };
        let mut chain = of_side(&route.identity);
        if let Some(local) = &route.local {
            chain.extend(of_side(&local.identity));
        }
        chain.into()
    }

    /// The names of those of a chain that are still attached.
    pub(super) fn names(&self, chain: &Chain) -> Vec<String> {
        let attached = chain.iter().filter_map(|of| {
            let attached = self.table.get(of.place as usize);
            attached.filter(|attached| attached.id == of.id)
        });
        attached
            .map(|attached| attached.spec.name.clone())
            .collect()
    }

    /// What all have done so far, in order.
    pub(super) fn report(&self) -> Vec<(PolicySpec, Counts)> {
        let attached = self.order.iter().map(|of| &self.table[of.place as usize]);
        attached
            .map(|attached| (attached.spec.clone(), attached.counts))
            .collect()
    }

    /// Has this list take the place of all. Policies of the same name and kind go on with their state. On an error,
    /// nothing has changed.
    fn replace(&mut self, list: Vec<Built>) -> Result<(), (String, RestoreError)> {
        let mut prepared = Vec::new();
        for mut built in list {
            let old = self.named(&built.spec.name);
            let old = old.filter(|of| self.table[of.place as usize].spec.kind == built.spec.kind);
            if let Some(of) = old {
                let saved = self.table[of.place as usize].engine.save();
                let restored = built.engine.restore(&mut saved.reader());
                restored.map_err(|error| (built.spec.name.clone(), error))?;
            }
            prepared.push((old, built));
        }
        let before = std::mem::take(&mut self.order);
        for (old, built) in prepared {
            let of = match old {
                Some(of) => {
                    let attached = &mut self.table[of.place as usize];
                    if built.upgrades || attached.spec != built.spec {
                        attached.engine = built.engine;
                    }
                    attached.methods = methods_of(&built.spec);
                    attached.spec = built.spec;
                    of
                }
                None => self.insert(built),
            };
            self.order.push(of);
        }
        for of in before {
            if !self.order.contains(&of) {
                self.table.remove(of.place as usize);
            }
        }
        Ok(())
    }

    fn insert(&mut self, built: Built) -> PolicyId {
        self.next = self.next.wrapping_add(1);
        let id = self.next;
        let place = self.table.insert(Attached {
            id,
            methods: methods_of(&built.spec),
            spec: built.spec,
            engine: built.engine,
            counts: Counts::default(),
        });
        PolicyId {
            place: place as u32,
            id,
        }
    }

    /// A round begins.
    #[inline]
    pub(super) fn begin_round(&mut self, clock: &MonotonicClock) {
        if !self.order.is_empty() || !self.held.is_empty() {
            self.now_ns = clock.now_ns();
        }
    }

    /// When a request that is held is due.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.held.peek().map(|Reverse(held)| held.until_ns)
    }

    /// Takes out a request whose time has come.
    fn take_due(&mut self, now_ns: u64) -> Option<Held> {
        if self.due_ns()? > now_ns {
            return None;
        }
        let Reverse(held) = self.held.pop()?;
        if let Some(attached) = self.get_mut(held.by) {
            attached.counts.held -= 1;
        }
        Some(held)
    }

    /// Takes out the requests that are held for a reason, in order.
    fn take_held(&mut self, is_wanted: impl Fn(&Self, &Held) -> bool) -> Vec<Held> {
        let all = std::mem::take(&mut self.held).into_sorted_vec();
        let (mut taken, mut rest) = (Vec::new(), BinaryHeap::new());
        for Reverse(held) in all.into_iter().rev() {
            match is_wanted(self, &held) {
                true => taken.push(held),
                false => rest.push(Reverse(held)),
            }
        }
        self.held = rest;
        for held in &taken {
            if let Some(attached) = self.get_mut(held.by) {
                attached.counts.held -= 1;
            }
        }
        taken
    }

    /// A call is over: those that it has passed hear of it.
    pub(super) fn end(&mut self, passed: &Passed, end: &PolicyEnd) {
        for of in passed.reversed() {
            if let Some(attached) = self.get_mut(of)
                && attached.applies_to(end.method)
            {
                attached.engine.on_end(end);
            }
        }
    }
}

fn methods_of(spec: &PolicySpec) -> Vec<MethodId> {
    let mut methods = spec.scope.method_ids();
    methods.sort_unstable_by_key(|method| method.0);
    methods
}

impl Runtime {
    /// A request has arrived: it passes the policies of its route, and is handed on. Which these are is known when the
    /// route is open: until then it waits, and comes here again.
    pub(super) fn admit(&mut self, id: RouteId, mut arrived: Arrived) {
        let Some(route) = self.routes.get(id) else {
            return;
        };
        if matches!(route.state, RouteState::Open(_))
            && !route.chain.is_empty()
            && arrived.passed.is_fresh()
            && self.is_subject(&arrived, route.callers)
        {
            arrived.passed = Passed::none_of(&route.chain);
            return self.pass(id, arrived);
        }
        self.forward(id, arrived);
    }

    /// Whether policies are for this request. A stream is one call: its later requests pass as the first one did.
    fn is_subject(&self, arrived: &Arrived, callers: Callers) -> bool {
        let method = arrived.request.method;
        let is_reach = method == self.reach && matches!(callers, Callers::Peer(..));
        let stream = arrived.request.options.stream;
        !is_reach
            && stream.is_none_or(|position| position.number == 0)
            && !self.policies.infrastructure.contains(&method)
    }

    /// Has a request pass the policies that it has not passed.
    fn pass(&mut self, id: RouteId, mut arrived: Arrived) {
        let now_ns = self.policies.now_ns;
        while let Some(of) = arrived.passed.next() {
            let method = arrived.request.method;
            let attached = self.policies.get_mut(of);
            let Some(attached) = attached.filter(|attached| attached.applies_to(method)) else {
                arrived.passed.advance();
                continue;
            };
            let held = attached.counts.held;
            let (options, body) = arrived.request.parts_mut();
            let mut request = PolicyRequest {
                now_ns,
                method,
                options,
                body,
            };
            match attached.engine.on_request(&mut request, held) {
                Verdict::Pass => {
                    attached.counts.passed += 1;
                    arrived.passed.advance();
                }
                Verdict::Hold(until_ns) => {
                    attached.counts.delayed += 1;
                    attached.counts.held += 1;
                    self.policies.numbers += 1;
                    let number = self.policies.numbers;
                    // It has decided: the request goes on with the next one.
                    arrived.passed.advance();
                    let held = Held {
                        until_ns,
                        number,
                        by: of,
                        since_ns: now_ns,
                        route: id,
                        arrived,
                    };
                    return self.policies.held.push(Reverse(held));
                }
                Verdict::Refuse(status) => {
                    attached.counts.refused += 1;
                    let from = self.routes.get(id).map(|route| route.from());
                    if let Some(from) = from {
                        self.refuse(from, arrived, status);
                    }
                    return;
                }
            }
        }
        self.forward(id, arrived);
    }

    /// Has the requests go on whose time has come. Returns whether there were any.
    pub(super) fn release_held(&mut self) -> bool {
        let now_ns = self.policies.now_ns;
        let mut any = false;
        while let Some(held) = self.policies.take_due(now_ns) {
            any = true;
            self.resume(held);
        }
        any
    }

    fn resume(&mut self, held: Held) {
        let Held {
            since_ns,
            route,
            mut arrived,
            ..
        } = held;
        let took = Duration::from_nanos(self.policies.now_ns.saturating_sub(since_ns));
        let timeout = &mut arrived.request.options.timeout;
        *timeout = timeout.map(|timeout| timeout.saturating_sub(took));
        let is_late = *timeout == Some(Duration::ZERO);
        let over = match arrived.reply.cancellation().status() {
            // Its caller no longer waits.
            Some(why) => why,
            None if is_late => Status::deadline_exceeded(
                "the deadline came while a policy of the service held the call; it did not run",
            ),
            None => return self.pass(route, arrived),
        };
        if let Some(from) = self.routes.get(route).map(|route| route.from()) {
            self.refuse(from, arrived, over);
        }
    }

    /// The requests of a route that policies hold, which ends.
    pub(super) fn take_held_of(&mut self, route: RouteId) -> Vec<Arrived> {
        let of_route = |_: &Policies, held: &Held| held.route == route;
        let held = self.policies.take_held(of_route);
        held.into_iter().map(|held| held.arrived).collect()
    }

    /// Has a list of policies take the place of all. Those that are detached let go of what they hold.
    ///
    /// # Errors
    /// If one cannot go on with the state of its predecessor: its name, and why. Nothing has changed then.
    pub(super) fn set_policies(&mut self, list: Vec<Built>) -> Result<(), (String, RestoreError)> {
        self.policies.replace(list)?;
        self.policies.begin_round(&self.clock);
        for route in self.routes.iter_mut() {
            route.chain = self.policies.chain(route);
        }
        let is_detached = |policies: &Policies, held: &Held| !policies.order.contains(&held.by);
        for held in self.policies.take_held(is_detached) {
            self.resume(held);
        }
        Ok(())
    }

    /// Policies hear of the end of a call that they let pass.
    pub(super) fn end_of_policies(&mut self, passed: &Passed, method: MethodId, code: Code) {
        if passed.is_empty() {
            return;
        }
        let end = PolicyEnd {
            now_ns: self.policies.now_ns,
            method,
            code,
        };
        self.policies.end(passed, &end);
    }
}
