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
use std::sync::Arc;

use starling_endpoint::{MethodId, Status};
use starling_io::{Clock, MonotonicClock};
use starling_message::method_id;
use starling_policy::{PolicyMethod, PolicyRequest, PolicySpec, Retries, Verdict};

use self::held::{FIRST_TIMED, HeldKey};
use super::Runtime;
use super::given_up::GivenUp;
use super::identity::Identity;
use super::reading::{self, Readable, Scratch};
use super::routes::{Callers, Route, RouteId, RouteState};
use crate::attached::{AttachedPolicy, SharedEngine};
use crate::datapath::{Chain, Passed, PolicyId, Step};
use crate::link::Arrived;

pub(super) use self::held::Held;

/// Methods of the library itself: policies are for those of applications.
const INFRASTRUCTURE: &[&str] = &[
    "/starling.reflection.Reflection/Bind",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
];

/// The first number of the calls of runtime `own`: calls of different runtimes have different numbers.
const NUMBERS_OF_ONE: u32 = 48;

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
    /// With those of another runtime.
    pub(crate) fn add(&mut self, other: Self) {
        // What is taken back in one may have been counted in the other.
        self.passed = self.passed.wrapping_add(other.passed);
        self.delayed = self.delayed.wrapping_add(other.delayed);
        self.refused += other.refused;
        self.held += other.held;
    }

    /// A request passes that has to wait.
    fn delay(&mut self) {
        self.passed += 1;
        self.delayed += 1;
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
    /// One is changing: it is asked in a moment.
    Again {
        by: PolicyId,
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
    engine: Arc<SharedEngine>,
    /// Whether it looks into requests.
    reads: bool,
    /// Whether it hears of the ends of calls.
    hears_ends: bool,
    retries: Retries,
    /// That of the engine for these settings.
    version: u64,
    scope_id: u32,
    counts: Counts,
}

impl Attached {
    /// Another engine may have taken the place of its own.
    fn look_at_engine(&mut self) {
        let engine = &self.engine.lock().engine;
        self.reads = engine.reads_messages();
        self.hears_ends = engine.hears_ends();
        self.retries = engine.retries();
    }

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

    /// What its engine says of a request, whose next step it is. With a schema, it looks into it. None: the engine is
    /// one for other settings, of which this runtime hears in a moment.
    fn ask(
        &mut self,
        now_ns: u64,
        arrived: &mut Arrived,
        by: Option<(&PolicyMethod, &mut Scratch)>,
    ) -> Option<Verdict> {
        let Some(step) = arrived.passed.next() else {
            return Some(Verdict::Pass);
        };
        let held = self.engine.held();
        let (method, call) = (arrived.request.method, arrived.passed.call);
        let (options, body) = arrived.request.parts_mut();
        let message = by.map(|(schema, scratch)| reading::open(schema, options, body, scratch));
        let message = match message.transpose() {
            Ok(message) => message,
            Err(status) => return Some(Verdict::Refuse(status)),
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
        let mut engine = self.engine.lock();
        (engine.version == self.version).then(|| engine.engine.on_request(&mut request, held))
    }

    fn applies_to(&self, method: MethodId) -> bool {
        self.methods.is_empty() || self.methods.binary_search(&method).is_ok()
    }
}

/// All policies of a runtime.
pub(super) struct Policies {
    /// By place.
    table: Vec<Option<Attached>>,
    /// In the order in which requests pass them.
    order: Vec<PolicyId>,
    held: BTreeMap<HeldKey, Held>,
    given_up: GivenUp<HeldKey>,
    /// Of requests that were held, and of calls.
    numbers: u64,
    /// The time of the round: one reading of the clock for all calls of it.
    now_ns: u64,
    infrastructure: Vec<MethodId>,
    scratch: Scratch,
}

impl Policies {
    /// Those of the service's runtime with this number.
    pub(super) fn new(own: usize) -> Self {
        let ids = INFRASTRUCTURE.iter().map(|path| MethodId(method_id(path)));
        Self {
            table: Vec::new(),
            order: Vec::new(),
            held: BTreeMap::new(),
            given_up: GivenUp::default(),
            numbers: (own as u64) << NUMBERS_OF_ONE,
            now_ns: 0,
            infrastructure: ids.collect(),
            scratch: Scratch::default(),
        }
    }

    fn get(&self, of: PolicyId) -> Option<&Attached> {
        let attached = self.table.get(of.place as usize)?.as_ref();
        attached.filter(|attached| attached.id == of.id)
    }

    fn get_mut(&mut self, of: PolicyId) -> Option<&mut Attached> {
        let attached = self.table.get_mut(of.place as usize)?.as_mut();
        attached.filter(|attached| attached.id == of.id)
    }

    /// The policies that the calls of a route pass: those of its callers, then those of a server behind this service.
    pub(super) fn chain(&self, route: &Route) -> Chain {
        let of_side = |identity: &Identity| {
            let is_in = |of: &&PolicyId| {
                let attached = self.get(**of);
                attached.is_some_and(|attached| identity.is_in(&attached.spec.scope))
            };
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

    /// Has this list take the place of all. Returns those that have changed.
    fn replace(&mut self, list: Vec<AttachedPolicy>) -> Vec<PolicyId> {
        let order: Vec<PolicyId> = list.iter().map(|policy| policy.id).collect();
        let mut changed = Vec::new();
        for policy in list {
            let of = policy.id;
            let Some(attached) = self.get_mut(of) else {
                self.insert(policy);
                continue;
            };
            attached.look_at_engine();
            (attached.version, attached.scope_id) = (policy.version, policy.scope_id);
            if attached.spec != policy.spec {
                changed.push(of);
                attached.methods = methods_of(&policy.spec);
                attached.spec = policy.spec;
            }
        }
        for place in &mut self.table {
            place.take_if(|attached| !order.iter().any(|of| of.id == attached.id));
        }
        self.order = order;
        changed
    }

    fn insert(&mut self, policy: AttachedPolicy) {
        let AttachedPolicy {
            id,
            spec,
            engine,
            version,
            scope_id,
        } = policy;
        let place = id.place as usize;
        if place >= self.table.len() {
            self.table.resize_with(place + 1, || None);
        }
        let mut attached = Attached {
            id: id.id,
            methods: methods_of(&spec),
            spec,
            engine,
            reads: false,
            hears_ends: false,
            retries: Retries::None,
            version,
            scope_id,
            counts: Counts::default(),
        };
        attached.look_at_engine();
        self.table[place] = Some(attached);
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
        self.shared.paths.look_at(&arrived.request);
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
        let key = (method, position.id ^ stream_key);
        let goes_on = |route: &mut Route| {
            position.number > 0
                && (route.streams.contains(key) || route.previous_with(key).is_some())
        };
        !self.routes.get_mut(id).is_some_and(goes_on)
    }

    /// Has a request pass the policies that it has not passed.
    pub(super) fn pass(&mut self, id: RouteId, mut arrived: Arrived) {
        match self.ask_all(id, &mut arrived) {
            Passage::On => self.forward(id, arrived),
            Passage::Held { by, until_ns } => self.hold(id, by, until_ns, arrived),
            Passage::Again { by } => self.put_off(id, by, arrived),
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
            let Some(verdict) = verdict else {
                return Passage::Again { by: of };
            };
            let Some(attached) = self.policies.get_mut(of) else {
                continue;
            };
            let until_ns = match verdict {
                Verdict::Pass => {
                    attached.counts.passed += 1;
                    let retries = attached.retries != Retries::None;
                    let scope_id = attached.scope_id;
                    arrived.passed.advance();
                    if retries {
                        arrived.begin_attempts(of, scope_id, now_ns);
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
            attached.counts.delay();
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
    ) -> Result<Option<Verdict>, Passage> {
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
            Readable::Never(status) => return Ok(Some(Verdict::Refuse(status))),
        };
        let mut scratch = std::mem::take(&mut self.policies.scratch);
        let verdict = match self.policies.get_mut(of) {
            Some(attached) => attached.ask(now_ns, arrived, Some((&schema, &mut scratch))),
            None => Some(Verdict::Pass),
        };
        scratch.trim();
        self.policies.scratch = scratch;
        Ok(verdict)
    }

    /// Has a list of policies take the place of all. Those that are detached let go of what they hold; those that have
    /// changed decide about it anew.
    pub(crate) fn set_policies(&mut self, list: Vec<AttachedPolicy>) {
        let changed = self.policies.replace(list);
        self.policies.begin_round(&self.clock);
        for route in self.routes.iter_mut() {
            route.chain = self.policies.chain(route);
        }
        // The policy for which a request waits may be gone.
        self.look_at_waiting();
        self.let_go(&changed);
    }

    /// Has requests go on that policies do not hold any more: they are gone, or these, which have changed.
    pub(super) fn let_go(&mut self, changed: &[PolicyId]) {
        let is_let_go = |policies: &Policies, held: &Held| match held.failed {
            Some(_) => !policies.may_run_again(&held.arrived),
            None => !policies.order.contains(&held.by) || changed.contains(&held.by),
        };
        for mut held in self.policies.take_held(is_let_go) {
            if let Some(status) = held.failed.take() {
                self.end_attempts(held, status);
                continue;
            }
            if changed.contains(&held.by) && held.is_asked {
                held.arrived.passed.step_back();
                if let Some(attached) = self.policies.get_mut(held.by) {
                    // They may have been counted in another runtime.
                    attached.counts.passed = attached.counts.passed.wrapping_sub(1);
                    attached.counts.delayed = attached.counts.delayed.wrapping_sub(1);
                }
            }
            self.resume(held);
        }
    }
}
