//! Requests pass the policies of their route: those of one caller that have come in one turn together, so that an
//! engine is locked once for all of them.

use std::slice::from_mut;

use parking_lot::MutexGuard;
use starling_endpoint::{MethodId, Status};
use starling_policy::{Datapath, PolicyMethod, PolicyRequest, Retries, Verdict};

use super::held::FIRST_TIMED;
use super::{Attached, Policies, Runtime};
use crate::attached::{Engine, SharedEngine};
use crate::datapath::{PolicyId, Step};
use crate::link::Arrived;
use crate::runtime::reading::{
    self, Known, KnownMethods, READ_WHILE_LOCKED, Scratch, Wanted, work_of,
};
use crate::runtime::routes::{Callers, Route, RouteId, RouteState};

/// What becomes of a request that asks its policies.
#[derive(Debug)]
pub(in crate::runtime) enum Passage {
    /// They let it pass, or are not for it.
    On,
    /// One holds it, and counts it.
    Held {
        by: PolicyId,
        until_ns: u64,
    },
    /// One is changing: it is asked in a moment.
    Again {
        by: PolicyId,
    },
    /// One looks into it, and the schema for that is not there.
    Unread {
        by: PolicyId,
    },
    Refused(Status),
}

/// The route of a request that has arrived, and what its policies say.
#[derive(Debug)]
pub(in crate::runtime) struct Routed {
    /// None: there was none yet.
    pub(in crate::runtime) route: Option<RouteId>,
    pub(in crate::runtime) passage: Passage,
}

impl Routed {
    /// One of a route that has asked no policy.
    fn on(route: RouteId) -> Self {
        Self {
            route: Some(route),
            passage: Passage::On,
        }
    }
}

impl Policies {
    /// Asks those of a chain that requests have not passed, until one does not let them pass. All have passed the same
    /// ones; those that have not begun to are left out.
    fn ask_all(
        &mut self,
        chain: &[Step],
        known: &KnownMethods,
        requests: &mut [Arrived],
        routed: &mut [Routed],
    ) {
        let passed = requests.iter().find(|it| it.passed.is_begun());
        let passed = passed.map_or(chain.len(), |it| it.passed.count());
        for step in chain.iter().skip(passed) {
            // As `get_mut`, but the memory to read requests is used beside it.
            let attached = self.table.get_mut(step.policy.place as usize);
            let attached = attached.and_then(Option::as_mut);
            let attached = attached.filter(|attached| attached.id == step.policy.id);
            let asked = requests.iter_mut().zip(&mut *routed);
            let asked = asked.map(|(arrived, routed)| (arrived, &mut routed.passage));
            let asked = asked.filter(|(arrived, passage)| {
                arrived.passed.is_begun() && matches!(passage, Passage::On)
            });
            match attached {
                Some(attached) => {
                    attached.ask(step, self.now_ns, known, &mut self.scratch, asked);
                }
                None => asked.for_each(|(arrived, _)| arrived.passed.advance()),
            }
        }
        self.scratch.trim();
    }
}

impl Attached {
    /// Asks it about requests whose next step it is.
    fn ask<'a>(
        &mut self,
        step: &Step,
        now_ns: u64,
        known: &KnownMethods,
        scratch: &mut Scratch,
        requests: impl Iterator<Item = (&'a mut Arrived, &'a mut Passage)>,
    ) {
        let by = step.policy;
        let (mut locked, mut read, mut last) = (None, None, None);
        for (arrived, passage) in requests {
            let method = arrived.request.method;
            if last != Some(method) && !self.applies_to(method) {
                arrived.passed.advance();
                continue;
            }
            last = Some(method);
            let schema = match self.reads {
                false => None,
                true => {
                    let last = read.filter(|(of, _)| *of == method);
                    read = last.or_else(|| schema_of(known, method));
                    let Some((_, schema)) = read else {
                        *passage = Passage::Unread { by };
                        continue;
                    };
                    Some((schema, &mut *scratch))
                }
            };
            let asked = Asked {
                now_ns,
                datapath: &step.datapath,
                schema,
            };
            let verdict = asked.verdict_on(arrived, &self.engine, self.version, &mut locked);
            let Some(verdict) = verdict else {
                *passage = Passage::Again { by };
                continue;
            };
            let until_ns = match verdict {
                Verdict::Pass => {
                    self.counts.passed += 1;
                    arrived.passed.advance();
                    if self.retries != Retries::None {
                        arrived.begin_attempts(by, self.scope_id, now_ns);
                    }
                    continue;
                }
                // It has decided: the request goes on with the next one, at its deadline to hear that it is over.
                Verdict::Hold(until_ns) => {
                    let deadline = arrived.request.options.timeout;
                    let deadline_ns = deadline.map_or(u64::MAX, |timeout| {
                        now_ns.saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX))
                    });
                    until_ns.min(deadline_ns).max(FIRST_TIMED.0)
                }
                Verdict::Behind => 0,
                Verdict::Refuse(status) => {
                    self.counts.refused += 1;
                    *passage = Passage::Refused(status);
                    continue;
                }
            };
            // The next one is asked before this one is put aside.
            self.counts.delay();
            self.engine.hold();
            *passage = Passage::Held { by, until_ns };
        }
    }
}

/// A method, with its schema if that is there.
fn schema_of(known: &KnownMethods, method: MethodId) -> Option<(MethodId, &PolicyMethod)> {
    match known.get(&method) {
        Some(Known::Is(schema)) => Some((method, schema)),
        _ => None,
    }
}

/// How an engine is asked about a request.
struct Asked<'a> {
    now_ns: u64,
    datapath: &'a Datapath,
    /// It looks into the request by this one.
    schema: Option<(&'a PolicyMethod, &'a mut Scratch)>,
}

impl Asked<'_> {
    /// What the engine of this version says. It stays locked for the next request. None: another one has taken its
    /// place, with other settings, of which this runtime hears in a moment.
    fn verdict_on<'e>(
        self,
        arrived: &mut Arrived,
        engine: &'e SharedEngine,
        version: u64,
        locked: &mut Option<MutexGuard<'e, Engine>>,
    ) -> Option<Verdict> {
        if self.schema.is_some() && work_of(arrived) > READ_WHILE_LOCKED {
            // Other runtimes do not wait meanwhile.
            *locked = None;
        }
        let (method, call) = (arrived.request.method, arrived.passed.call);
        let (options, body) = arrived.request.parts_mut();
        let open = |(schema, scratch)| reading::open(schema, options, body, scratch);
        let message = self.schema.map(open).transpose();
        let locked = locked.get_or_insert_with(|| engine.lock());
        if locked.version != version {
            return None;
        }
        let message = match message {
            Ok(message) => message,
            Err(status) => return Some(Verdict::Refuse(status)),
        };
        let mut request = PolicyRequest {
            now_ns: self.now_ns,
            call,
            method,
            datapath: self.datapath,
            options,
            body,
            message,
        };
        Some((locked.engine).on_request(&mut request, engine.held()))
    }
}

impl Runtime {
    /// Requests have arrived for a route: they pass its policies. Which these are is known when it is open: until then
    /// requests wait, and come here again. Those of whom it is said that they do not go on are left out.
    pub(in crate::runtime) fn admit_all(
        &mut self,
        id: RouteId,
        requests: &mut [Arrived],
        routed: &mut [Routed],
    ) {
        let Some(route) = self.routes.get(id) else {
            return;
        };
        let is_open = matches!(route.state, RouteState::Open(_));
        let has_policies = !route.chain.steps.is_empty();
        let is_from_peer = matches!(route.callers, Callers::Peer(..));
        let mut any = false;
        for (arrived, routed) in requests.iter_mut().zip(&*routed) {
            self.shared.paths.look_at(&arrived.request);
            // A stream in use is remembered, also if there is no policy yet.
            let is_looked_at = has_policies || arrived.request.options.stream.is_some();
            let is_new = !arrived.passed.is_begun() && matches!(routed.passage, Passage::On);
            if is_looked_at && is_open && is_new && self.is_subject(id, is_from_peer, arrived) {
                let (number, now_ns) = (self.policies.number(), self.policies.now_ns);
                let bytes = arrived.request.body().len();
                arrived.passed.begin(number, now_ns, bytes);
                any = true;
            }
        }
        let Some(route) = self.routes.get(id).filter(|_| any && has_policies) else {
            return;
        };
        let chain = &route.chain;
        (self.policies).ask_all(&chain.steps, &route.known, requests, routed);
        for (arrived, routed) in requests.iter_mut().zip(routed) {
            let is_over = matches!(routed.passage, Passage::On) && !chain.is_remembered;
            if !is_over && arrived.passed.is_begun() {
                arrived.passed.remember(chain);
            }
        }
    }

    /// The same for one, which is handed on then.
    pub(in crate::runtime) fn admit(&mut self, id: RouteId, mut arrived: Arrived) {
        let mut routed = Routed::on(id);
        self.admit_all(id, from_mut(&mut arrived), from_mut(&mut routed));
        self.take_passage(id, routed.passage, arrived);
    }

    /// Has a request pass the policies that it has not passed.
    pub(super) fn pass(&mut self, id: RouteId, mut arrived: Arrived) {
        let Some(route) = self.routes.get(id) else {
            return;
        };
        let mut routed = Routed::on(id);
        if let Some(chain) = arrived.passed.chain() {
            let (requests, all) = (from_mut(&mut arrived), from_mut(&mut routed));
            (self.policies).ask_all(&chain.steps, &route.known, requests, all);
        }
        self.take_passage(id, routed.passage, arrived);
    }

    #[inline]
    pub(in crate::runtime) fn take_passage(
        &mut self,
        id: RouteId,
        passage: Passage,
        arrived: Arrived,
    ) {
        match passage {
            Passage::On => self.forward(id, arrived),
            Passage::Held { by, until_ns } => self.hold(id, by, until_ns, arrived),
            Passage::Again { by } => self.put_off(id, by, arrived),
            Passage::Unread { by } => self.wait_for_schema(id, by, arrived),
            Passage::Refused(status) => self.refuse_attempt(id, arrived, status),
        }
    }

    /// The schema is not there by which a policy looks into a request: it waits, if there will be one.
    fn wait_for_schema(&mut self, id: RouteId, by: PolicyId, arrived: Arrived) {
        let method = arrived.request.method;
        let attached = self.policies.get(by);
        let path = attached.and_then(|attached| attached.path_of(method));
        match self.ask_for_schema(id, method, path) {
            Wanted::Later => self.wait_to_be_read(id, arrived),
            Wanted::Leaves => {
                if let Some(from) = self.routes.get(id).map(|route| route.from()) {
                    self.refuse_leaving(from, arrived);
                }
            }
            Wanted::Never(status) => {
                if let Some(attached) = self.policies.get_mut(by) {
                    attached.counts.refused += 1;
                }
                self.refuse_attempt(id, arrived, status);
            }
        }
    }

    /// Whether policies are for this request. A stream is one call: its later requests pass as the first one did.
    fn is_subject(&mut self, id: RouteId, is_from_peer: bool, arrived: &Arrived) -> bool {
        let method = arrived.request.method;
        if method == self.reach && is_from_peer || self.policies.is_infrastructure(method) {
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
}
