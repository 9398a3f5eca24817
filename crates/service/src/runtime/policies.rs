//! The policies of a runtime, and the requests that pass them.
//!
//! ```text
//!  arrived ─▶ engine ─▶ engine ─▶ forward        answer ─▶ engine ─▶ engine ─▶ caller
//!               │ Hold                            (the last one passed first)
//!               ▼
//!             held, by time ─▶ the next engine
//! ```
//!
//! A request passes the policies that its open route has when it comes there. One that is detached meanwhile lets go of
//! what it holds.

mod held;
mod recorded;
mod retrying;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use slab::Slab;
use starling_endpoint::{MethodId, Status};
use starling_io::{Clock, MonotonicClock};
use starling_message::method_id;
use starling_policy::{
    PolicyEngine, PolicyMethod, PolicyRequest, PolicySpec, RestoreError, Retries, Verdict,
};

use self::held::{FIRST_TIMED, Held, HeldKey};
use super::Runtime;
use super::given_up::GivenUp;
use super::identity::Identity;
use super::paths::Paths;
use super::reading::{self, Readable, Scratch};
use super::routes::{Callers, Route, RouteId, RouteState};
use crate::datapath::{Chain, Passed, PolicyId, Step};
use crate::link::Arrived;
use crate::spans::SpanQueue;

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

impl Counts {
    /// A request passes that has to wait.
    fn hold(&mut self) {
        self.passed += 1;
        self.delayed += 1;
        self.held += 1;
    }
}

/// What becomes of a request that asks its policies.
enum Passage {
    /// They let it pass.
    On,
    Held {
        by: PolicyId,
        until_ns: u64,
    },
    /// The schema by which one reads it is not there yet.
    Unread,
    /// Its server shuts down.
    Leaves,
    Refused(Status),
}

struct Attached {
    id: u32,
    spec: PolicySpec,
    /// In order. Empty: all.
    methods: Vec<MethodId>,
    engine: Box<dyn PolicyEngine>,
    /// Whether it looks into requests.
    reads: bool,
    retries: Retries,
    counts: Counts,
}

impl Attached {
    /// The path of a method that its scope names.
    fn path_of(&self, method: MethodId) -> Option<String> {
        let paths = self
            .spec
            .scope
            .methods
            .iter()
            .map(|path| format!("/{path}"));
        paths.into_iter().find(|path| method_id(path) == method.0)
    }

    /// What its engine says of a request, whose next step it is. With a schema, it looks into it.
    fn ask(
        &mut self,
        now_ns: u64,
        arrived: &mut Arrived,
        by: Option<(&PolicyMethod, &mut Scratch)>,
    ) -> Verdict {
        let Some(step) = arrived.passed.next() else {
            return Verdict::Pass;
        };
        let held = self.counts.held;
        let (method, call) = (arrived.request.method, arrived.passed.call);
        let (options, body) = arrived.request.parts_mut();
        let message = by.map(|(schema, scratch)| reading::open(schema, options, body, scratch));
        let message = match message.transpose() {
            Ok(message) => message,
            Err(status) => return Verdict::Refuse(status),
        };
        let mut request = PolicyRequest {
            now_ns,
            call,
            method,
            datapath: &step.datapath,
            options,
            body,
            message,
        };
        self.engine.on_request(&mut request, held)
    }

    fn applies_to(&self, method: MethodId) -> bool {
        self.methods.is_empty() || self.methods.binary_search(&method).is_ok()
    }
}

/// All policies of a runtime.
pub(super) struct Policies {
    table: Slab<Attached>,
    /// In the order in which requests pass them.
    order: Vec<PolicyId>,
    held: BTreeMap<HeldKey, Held>,
    given_up: GivenUp<HeldKey>,
    next: u32,
    /// Of requests that were held, and of calls.
    numbers: u64,
    /// The time of the round: one reading of the clock for all calls of it.
    now_ns: u64,
    infrastructure: Vec<MethodId>,
    scratch: Scratch,
    /// The methods' names, for what policies record.
    paths: Paths,
    /// Where spans go.
    spans: Option<Arc<SpanQueue>>,
}

impl Default for Policies {
    fn default() -> Self {
        let ids = INFRASTRUCTURE.iter().map(|path| MethodId(method_id(path)));
        Self {
            table: Slab::new(),
            order: Vec::new(),
            held: BTreeMap::new(),
            given_up: GivenUp::default(),
            next: 0,
            numbers: 0,
            now_ns: 0,
            infrastructure: ids.collect(),
            scratch: Scratch::default(),
            paths: Paths::default(),
            spans: None,
        }
    }
}

impl Policies {
    fn get(&self, of: PolicyId) -> Option<&Attached> {
        let attached = self.table.get(of.place as usize);
        attached.filter(|attached| attached.id == of.id)
    }

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
            let steps = self.order.iter().filter(is_in).map(|of| Step {
                policy: *of,
                datapath: Arc::clone(&identity.datapath),
            });
            steps.collect::<Vec<_>>()
        };
        let mut chain = of_side(&route.identity);
        if let Some(local) = &route.local {
            chain.extend(of_side(&local.identity));
        }
        chain.into()
    }

    /// The names of those of a chain that are still attached.
    pub(super) fn names(&self, chain: &Chain) -> Vec<String> {
        let attached = chain.iter().filter_map(|step| self.get(step.policy));
        attached
            .map(|attached| attached.spec.name.clone())
            .collect()
    }

    /// Has this list take the place of all. Policies of the same name and kind go on with their state. Returns those
    /// that have changed. On an error, nothing has.
    fn replace(&mut self, list: Vec<Built>) -> Result<Vec<PolicyId>, (String, RestoreError)> {
        let mut prepared = Vec::new();
        for mut built in list {
            let old = self.named(&built.spec.name);
            let old = old.filter(|of| self.table[of.place as usize].spec.kind == built.spec.kind);
            let old_of = old.map(|of| &self.table[of.place as usize]);
            let replaced = old_of.filter(|old| built.upgrades || old.spec != built.spec);
            if let Some(attached) = replaced {
                let saved = attached.engine.save();
                let restored = built.engine.restore(&mut saved.reader());
                restored.map_err(|error| (built.spec.name.clone(), error))?;
            }
            prepared.push((old, built));
        }
        let before = std::mem::take(&mut self.order);
        let mut changed = Vec::new();
        for (old, built) in prepared {
            let of = match old {
                Some(of) => {
                    let attached = &mut self.table[of.place as usize];
                    if attached.spec != built.spec {
                        changed.push(of);
                    }
                    if built.upgrades || attached.spec != built.spec {
                        attached.reads = built.engine.reads_messages();
                        attached.retries = built.engine.retries();
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
        self.learn_scopes();
        Ok(changed)
    }

    fn insert(&mut self, built: Built) -> PolicyId {
        self.next = self.next.wrapping_add(1);
        let id = self.next;
        let place = self.table.insert(Attached {
            id,
            methods: methods_of(&built.spec),
            spec: built.spec,
            reads: built.engine.reads_messages(),
            retries: built.engine.retries(),
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

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
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
        self.policies.paths.look_at(&arrived.request);
        let Some(route) = self.routes.get(id) else {
            return;
        };
        // A stream in use is remembered, also if there is no policy yet.
        let is_looked_at = !route.chain.is_empty() || arrived.request.options.stream.is_some();
        if is_looked_at && matches!(route.state, RouteState::Open(_)) && arrived.passed.is_fresh() {
            let chain = route.chain.clone();
            if self.is_subject(id, &arrived) {
                let (number, now_ns) = (self.policies.number(), self.policies.now_ns);
                let bytes = arrived.request.body().len();
                arrived.passed = Passed::none_of(chain, number, now_ns, bytes);
                return self.pass(id, arrived);
            }
        }
        self.forward(id, arrived);
    }

    /// Whether policies are for this request. A stream is one call: its later requests pass as the first one did.
    fn is_subject(&mut self, id: RouteId, arrived: &Arrived) -> bool {
        let method = arrived.request.method;
        let Some(route) = self.routes.get(id) else {
            return false;
        };
        let is_reach = method == self.reach && matches!(route.callers, Callers::Peer(..));
        if is_reach || self.policies.infrastructure.contains(&method) {
            return false;
        }
        let Some(position) = arrived.request.options.stream else {
            return true;
        };
        let stream_key = self.stream_key(id, arrived.peer);
        let goes_on = |route: &mut Route| {
            position.number > 0 && route.streams.contains((method, position.id ^ stream_key))
        };
        !self.routes.get_mut(id).is_some_and(goes_on)
    }

    /// Has a request pass the policies that it has not passed.
    pub(super) fn pass(&mut self, id: RouteId, mut arrived: Arrived) {
        match self.ask_all(id, &mut arrived) {
            Passage::On => self.forward(id, arrived),
            Passage::Held { by, until_ns } => self.hold(id, by, until_ns, arrived),
            Passage::Unread => self.wait_for_schema(id, arrived),
            Passage::Leaves => {
                if let Some(from) = self.routes.get(id).map(|route| route.from()) {
                    self.refuse_leaving(from, arrived);
                }
            }
            Passage::Refused(status) => self.refuse_attempt(id, arrived, status),
        }
    }

    /// Asks the policies that a request has not passed, until one does not let it pass.
    fn ask_all(&mut self, id: RouteId, arrived: &mut Arrived) -> Passage {
        let (method, now_ns) = (arrived.request.method, self.policies.now_ns);
        while let Some(Step { policy: of, .. }) = arrived.passed.next() {
            let of = *of;
            let attached = self.policies.get_mut(of);
            let Some(attached) = attached.filter(|attached| attached.applies_to(method)) else {
                arrived.passed.advance();
                continue;
            };
            let verdict = match attached.reads {
                false => attached.ask(now_ns, arrived, None),
                true => match self.ask_reader(of, id, arrived) {
                    Ok(verdict) => verdict,
                    Err(passage) => return passage,
                },
            };
            let Some(attached) = self.policies.get_mut(of) else {
                continue;
            };
            let until_ns = match verdict {
                Verdict::Pass => {
                    attached.counts.passed += 1;
                    let retries = attached.retries != Retries::None;
                    arrived.passed.advance();
                    if retries {
                        arrived.begin_attempts(of, now_ns);
                    }
                    continue;
                }
                Verdict::Hold(until_ns) => {
                    // It has decided: the request goes on with the next one, at its deadline to hear that it is over.
                    let deadline = arrived.request.options.timeout;
                    let deadline_ns = deadline.map_or(u64::MAX, |timeout| {
                        now_ns.saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX))
                    });
                    until_ns.min(deadline_ns).max(FIRST_TIMED.0)
                }
                Verdict::Behind => 0,
                Verdict::Refuse(status) => {
                    attached.counts.refused += 1;
                    return Passage::Refused(status);
                }
            };
            attached.counts.hold();
            return Passage::Held { by: of, until_ns };
        }
        Passage::On
    }

    /// Asks a policy that looks into requests, if the schema is there.
    fn ask_reader(
        &mut self,
        of: PolicyId,
        id: RouteId,
        arrived: &mut Arrived,
    ) -> Result<Verdict, Passage> {
        let method = arrived.request.method;
        let now_ns = self.policies.now_ns;
        let readable = match self.readable(id, method, now_ns) {
            Readable::Unasked => {
                let attached = self.policies.get_mut(of);
                let path = attached.and_then(|attached| attached.path_of(method));
                self.ask_for_schema(id, method, path)
            }
            readable => readable,
        };
        let schema = match readable {
            Readable::By(schema) => schema,
            Readable::Later | Readable::Unasked => return Err(Passage::Unread),
            Readable::Leaves => return Err(Passage::Leaves),
            Readable::Never(status) => return Ok(Verdict::Refuse(status)),
        };
        let mut scratch = std::mem::take(&mut self.policies.scratch);
        let verdict = match self.policies.get_mut(of) {
            Some(attached) => attached.ask(now_ns, arrived, Some((&schema, &mut scratch))),
            None => Verdict::Pass,
        };
        scratch.trim();
        self.policies.scratch = scratch;
        Ok(verdict)
    }

    /// The policies of a runtime that has not begun.
    pub(crate) fn begin_with(&mut self, list: Vec<Built>) {
        for built in list {
            let of = self.policies.insert(built);
            self.policies.order.push(of);
        }
        self.policies.learn_scopes();
    }

    /// Has a list of policies take the place of all. Those that are detached let go of what they hold; those that have
    /// changed decide about it anew.
    ///
    /// # Errors
    /// If one cannot go on with the state of its predecessor: its name, and why. Nothing has changed then.
    pub(super) fn set_policies(&mut self, list: Vec<Built>) -> Result<(), (String, RestoreError)> {
        let changed = self.policies.replace(list)?;
        self.policies.begin_round(&self.clock);
        for route in self.routes.iter_mut() {
            route.chain = self.policies.chain(route);
        }
        // The policy for which a request waits may be gone.
        self.look_at_waiting();
        let is_let_go = |policies: &Policies, held: &Held| match held.failed {
            Some(_) => !policies.may_run_again(&held.arrived),
            None => !policies.order.contains(&held.by) || changed.contains(&held.by),
        };
        for mut held in self.policies.take_held(is_let_go) {
            if let Some(status) = held.failed.take() {
                self.end_attempts(held, status);
                continue;
            }
            if changed.contains(&held.by) {
                held.arrived.passed.step_back();
                if let Some(attached) = self.policies.get_mut(held.by) {
                    attached.counts.passed -= 1;
                    attached.counts.delayed -= 1;
                }
            }
            self.resume(held);
        }
        Ok(())
    }
}
