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
mod passing;
mod recorded;
mod retrying;

use std::collections::BTreeMap;
use std::sync::Arc;

use starling_endpoint::MethodId;
use starling_io::{Clock, MonotonicClock};
use starling_message::method_id;
use starling_policy::{PolicySpec, Retries};

use self::held::HeldKey;
use super::Runtime;
use super::given_up::GivenUp;
use super::identity::Identity;
use super::reading::Scratch;
use super::routes::Route;
use crate::attached::{AttachedPolicy, SharedEngine};
use crate::datapath::{Chain, PolicyId, Step};

pub(super) use self::held::Held;
pub(super) use self::passing::{Passage, Routed};

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

    /// A request passes that is held until its time.
    fn delay(&mut self) {
        self.passed += 1;
        self.delayed += 1;
        self.held += 1;
    }
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
    /// The time of the turn whose calls they see, or of the round: one reading of the clock for all of them.
    now_ns: u64,
    infrastructure: Vec<MethodId>,
    /// One that is none of them: most requests have the method of the one before.
    other: Option<MethodId>,
    scratch: Scratch,
    /// Memory for those of one turn.
    pub(super) routed: Vec<Routed>,
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
            other: None,
            scratch: Scratch::default(),
            routed: Vec::new(),
        }
    }

    /// Whether policies are for no requests of this method.
    #[inline]
    fn is_infrastructure(&mut self, method: MethodId) -> bool {
        if self.other == Some(method) {
            return false;
        }
        let is_infrastructure = self.infrastructure.contains(&method);
        if !is_infrastructure {
            self.other = Some(method);
        }
        is_infrastructure
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
        let mut is_remembered = false;
        let mut of_side = |identity: &Identity| {
            let mut steps = Vec::new();
            for of in &self.order {
                let attached = self.get(*of);
                let Some(attached) = attached.filter(|it| identity.is_in(&it.spec.scope)) else {
                    continue;
                };
                is_remembered |= attached.hears_ends || attached.retries != Retries::None;
                steps.push(Step {
                    policy: *of,
                    datapath: Arc::clone(&identity.datapath),
                });
            }
            steps
        };
        let mut steps = of_side(&route.identity);
        if let Some(local) = &route.local {
            steps.extend(of_side(&local.identity));
        }
        Chain {
            steps: steps.into(),
            is_remembered,
        }
    }

    /// The names of those of a chain that are still attached.
    pub(super) fn names(&self, chain: &Chain) -> Vec<String> {
        let attached = (chain.steps.iter()).filter_map(|step| self.get(step.policy));
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

    /// A round begins, in which requests may go on that are held.
    #[inline]
    pub(super) fn begin_round(&mut self, clock: &MonotonicClock) {
        if !self.held.is_empty() {
            self.look_at(clock);
        }
    }

    pub(super) fn look_at(&mut self, clock: &MonotonicClock) {
        self.now_ns = self.now_ns.max(clock.now_ns());
    }

    /// A link has taken a turn, at this time.
    #[inline]
    pub(super) fn begin_turn(&mut self, turn_ns: impl FnOnce() -> u64) {
        if !self.order.is_empty() || !self.held.is_empty() {
            self.now_ns = self.now_ns.max(turn_ns());
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
    /// Has a list of policies take the place of all. Those that are detached let go of what they hold; those that have
    /// changed decide about it anew.
    pub(crate) fn set_policies(&mut self, list: Vec<AttachedPolicy>) {
        let changed = self.policies.replace(list);
        self.policies.look_at(&self.clock);
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
