//! Adapters that are replaced under load.
//!
//! ```text
//!  a new link ─▶ for each route: a second session ─▶ what the application has asked its server, once more
//!                     │ it does not open                 │ another answer      │ the same answers
//!                     ▼                                  ▼                     ▼
//!                     the route stays as it is, and the operator hears why     new calls go by the new session,
//!                                                        the one of before carries on what it has begun
//! ```
//!
//! An application writes its messages by what its server has said of each method. So another server that has the
//! address by now gets none of its calls.

mod previous;
#[cfg(test)]
mod tests;
mod trial;

use std::collections::HashMap;
use std::sync::{Arc, mpsc};

use starling_endpoint::SessionId;
use starling_io::Clock;

use super::links::LinkId;
use super::reading::QUESTIONS_OF_ONE;
use super::routes::{Route, RouteId, RouteState};
use super::{Application, Runtime};
use crate::adapter::AdapterSettings;
use crate::device::DeviceKind;
use crate::link::Link;

/// Sessions of before are looked at so often, while there are any.
const LOOK_NS: u64 = 1_000_000_000;

/// How long it may take to replace an adapter, for all its routes. The operator waits for longer.
const REPLACING_NS: u64 = 6_000_000_000;

const UNDER_WAY: &str = "another upgrade is under way";

/// A link by which an application calls.
pub(super) struct Adapter {
    /// That for which it was made.
    pub(super) address: String,
    pub(super) link: LinkId,
    pub(super) settings: Arc<AdapterSettings>,
    /// No route begins with it any more.
    pub(super) is_replaced: bool,
}

/// An adapter, for the operator.
#[derive(Debug)]
pub(crate) struct AdapterReport {
    pub(crate) application: Application,
    pub(crate) kind: DeviceKind,
    pub(crate) address: String,
    pub(crate) link: LinkId,
    pub(crate) local_address: String,
    pub(crate) settings: Arc<AdapterSettings>,
    pub(crate) datapaths: usize,
    pub(crate) in_flight: usize,
    pub(crate) is_replaced: bool,
}

/// A link that is to take the place of an adapter.
#[derive(Debug)]
pub(crate) struct Replacement {
    pub(crate) application: Application,
    /// The adapter, and the address for which it was made.
    pub(crate) old: LinkId,
    pub(crate) address: String,
    pub(crate) link: Box<dyn Link>,
    pub(crate) settings: Arc<AdapterSettings>,
}

/// What has become of some adapters.
#[derive(Debug, Default)]
pub(crate) struct Upgraded {
    pub(crate) adapters: usize,
    pub(crate) datapaths: usize,
    /// Routes that stay as they are, and why.
    pub(crate) stayed: Vec<String>,
}

/// A session that is to take the place of a route's.
#[derive(Debug)]
pub(super) struct Successor {
    pub(super) link: LinkId,
    session: SessionId,
    /// For which replacement, and which one of it.
    replacing: u64,
    trial: u64,
    is_open: bool,
    /// Questions that are not answered.
    asked: usize,
    until_ns: u64,
}

/// An adapter that is being replaced. Both count as used meanwhile.
struct Replacing {
    number: u64,
    application: Application,
    address: String,
    old: LinkId,
    new: LinkId,
    settings: Arc<AdapterSettings>,
    /// When it is over, whatever became of it.
    until_ns: u64,
    /// The routes that were to have a session by it. So many of them wait for it, have it, and stay without.
    tried: Vec<RouteId>,
    waiting: usize,
    moved: usize,
    stayed: usize,
}

/// What the operator has asked for at once.
struct Operation {
    replacing: Vec<Replacing>,
    outcome: Upgraded,
    reply: mpsc::SyncSender<Upgraded>,
}

/// See the head of this file.
#[derive(Default)]
pub(super) struct Upgrading {
    operations: Vec<Operation>,
    numbers: u64,
    /// By tag: the route and the trial that a question is of.
    questions: HashMap<u64, (RouteId, u64, Box<[u8]>)>,
    /// Routes with sessions of before.
    draining: Vec<RouteId>,
    /// Those of them that have no call left in one.
    quiet: Vec<RouteId>,
    looked_ns: u64,
}

/// The adapters whose routes try the successor of one: it, and those that were replaced before and had to stay.
fn sources_of(adapters: &HashMap<Application, Vec<Adapter>>, replacing: &Replacing) -> Vec<LinkId> {
    let own = adapters.get(&replacing.application);
    let Ok(kind) = DeviceKind::of(&replacing.address) else {
        return Vec::new();
    };
    let is_like = |of: &&Adapter| {
        DeviceKind::of(&of.address).is_ok_and(|it| it.scheme() == kind.scheme())
            && kind.reaches(&replacing.address, &of.address)
    };
    let is_source = |of: &&Adapter| of.link == replacing.old || (of.is_replaced && is_like(of));
    let sources = own.into_iter().flatten().filter(is_source);
    sources.map(|of| of.link).collect()
}

impl Upgrading {
    /// Those of the service's runtime with this number, whose questions no other one has.
    pub(super) fn new(own: usize) -> Self {
        Self {
            numbers: (own as u64) << QUESTIONS_OF_ONE,
            ..Self::default()
        }
    }

    /// A route is gone: its number is another's soon.
    pub(super) fn forget(&mut self, id: RouteId) {
        let replacing = self.operations.iter_mut().flat_map(|it| &mut it.replacing);
        for replacing in replacing {
            replacing.tried.retain(|tried| *tried != id);
        }
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut Replacing> {
        let mut all = self.operations.iter_mut().flat_map(|it| &mut it.replacing);
        all.find(|replacing| replacing.number == number)
    }

    /// Whether nothing is under way.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.operations.is_empty() && self.draining.is_empty()
    }

    /// When something is to be looked at.
    pub(super) fn due_ns(&self) -> Option<u64> {
        (!self.is_idle()).then_some(self.looked_ns + LOOK_NS)
    }
}

impl Runtime {
    /// The links by which applications call.
    pub(super) fn report_adapters(&mut self) -> Vec<AdapterReport> {
        let mut reports = Vec::new();
        for (application, adapters) in &self.adapters {
            for adapter in adapters {
                let entry = self.links.get_mut(adapter.link);
                let (Some(entry), Ok(kind)) = (entry, DeviceKind::of(&adapter.address)) else {
                    continue;
                };
                reports.push(AdapterReport {
                    application: *application,
                    kind,
                    address: adapter.address.clone(),
                    link: adapter.link,
                    local_address: entry.link.local_address(),
                    settings: Arc::clone(&adapter.settings),
                    datapaths: entry.routes,
                    in_flight: self.calls.len(adapter.link),
                    is_replaced: adapter.is_replaced,
                });
            }
        }
        reports
    }

    /// Has links take the places of adapters. The answer comes when it is known for each route.
    pub(super) fn replace_adapters(
        &mut self,
        list: Vec<Replacement>,
        reply: mpsc::SyncSender<Upgraded>,
    ) {
        let mut operation = Operation {
            replacing: Vec::new(),
            outcome: Upgraded::default(),
            reply,
        };
        for replacement in list {
            match self.begin_replacing(replacement) {
                Ok(replacing) => operation.replacing.extend(replacing),
                Err(problem) => operation.outcome.stayed.push(problem),
            }
        }
        let numbers = operation.replacing.iter().map(|replacing| replacing.number);
        let numbers: Vec<u64> = numbers.collect();
        self.upgrading.looked_ns = self.clock.now_ns();
        self.upgrading.operations.push(operation);
        for number in numbers {
            self.go_on_replacing(number);
        }
        self.answer_operations();
    }

    /// None: the adapter is gone, or has been replaced.
    fn begin_replacing(&mut self, of: Replacement) -> Result<Option<Replacing>, String> {
        let adapters = self.adapters.get(&of.application);
        let is_same = |adapter: &Adapter| {
            adapter.link == of.old && adapter.address == of.address && !adapter.is_replaced
        };
        if !adapters.is_some_and(|adapters| adapters.iter().any(is_same)) {
            return Ok(None);
        }
        let operations = self.upgrading.operations.iter();
        let mut under_way = operations.flat_map(|it| &it.replacing);
        if under_way.any(|replacing| replacing.old == of.old) {
            return Err(format!("{}: {UNDER_WAY}", of.address));
        }
        let new = self.links.insert(of.link);
        let new = new.map_err(|error| format!("{}: {error}", of.address))?;
        for link in [of.old, new] {
            if let Some(entry) = self.links.get_mut(link) {
                entry.routes += 1;
            }
        }
        Ok(Some(Replacing {
            number: self.upgrading.number(),
            application: of.application,
            address: of.address,
            old: of.old,
            new,
            settings: of.settings,
            until_ns: self.clock.now_ns() + REPLACING_NS,
            tried: Vec::new(),
            waiting: 0,
            moved: 0,
            stayed: 0,
        }))
    }

    /// Has the routes of an adapter try its successor that have not, and comes to an end when all have.
    fn go_on_replacing(&mut self, number: u64) {
        loop {
            let Some(replacing) = self.upgrading.get_mut(number) else {
                return;
            };
            let sources = sources_of(&self.adapters, replacing);
            let is_untried = |id: &RouteId| {
                let route = self.routes.get(*id).filter(|route| !route.is_draining);
                let is_open = route.is_some_and(|it| matches!(it.state, RouteState::Open(_)));
                is_open && !replacing.tried.contains(id)
            };
            let mut routes = sources
                .iter()
                .flat_map(|link| self.routes.by_adapter(*link));
            let Some(id) = routes.find(is_untried) else {
                break;
            };
            replacing.tried.push(id);
            let (new, until_ns) = (replacing.new, replacing.until_ns);
            match self.begin_trial(number, id, new, until_ns) {
                Ok(()) => {
                    if let Some(replacing) = self.upgrading.get_mut(number) {
                        replacing.waiting += 1;
                    }
                }
                Err(status) => self.note_stayed(number, id, status.message()),
            }
        }
        let waiting = self.upgrading.get_mut(number).map(|it| it.waiting);
        if waiting == Some(0) {
            self.conclude(number);
        }
    }

    fn note_stayed(&mut self, number: u64, id: RouteId, why: &str) {
        let name = |route: &Route| match route.identity.process {
            Some(process) => format!("process {process} to {}", route.target),
            None => format!("an application to {}", route.target),
        };
        let name = self.routes.get(id).map_or_else(String::new, name);
        let has = |operation: &&mut Operation| {
            let mut replacing = operation.replacing.iter();
            replacing.any(|replacing| replacing.number == number)
        };
        if let Some(operation) = self.upgrading.operations.iter_mut().find(has) {
            operation.outcome.stayed.push(format!("{name}: {why}"));
        }
        if let Some(replacing) = self.upgrading.get_mut(number) {
            replacing.stayed += 1;
        }
    }

    /// All routes of an adapter have tried its successor. If all stay, so does the adapter.
    fn conclude(&mut self, number: u64) {
        let mut found = None;
        for operation in &mut self.upgrading.operations {
            let is_it = |replacing: &mut Replacing| replacing.number == number;
            if let Some(replacing) = operation.replacing.extract_if(.., is_it).next() {
                let is_used = replacing.moved > 0 || replacing.stayed == 0;
                operation.outcome.adapters += usize::from(is_used);
                operation.outcome.datapaths += replacing.moved;
                found = Some((replacing, is_used));
            }
        }
        if let Some((replacing, is_used)) = found {
            let (old, new) = (replacing.old, replacing.new);
            let sources = sources_of(&self.adapters, &replacing);
            if is_used && self.put_in_place(replacing) {
                for source in sources {
                    self.aim_idle(source, new);
                }
            }
            self.leave_link(old);
            self.leave_link(new);
        }
        self.answer_operations();
    }

    /// Whoever of the application calls by such an adapter from now on has the new one. False: it has none any more.
    fn put_in_place(&mut self, replacing: Replacing) -> bool {
        let Some(adapters) = self.adapters.get_mut(&replacing.application) else {
            return false;
        };
        let mut before = adapters.iter_mut();
        if let Some(before) = before.find(|adapter| adapter.link == replacing.old) {
            before.is_replaced = true;
        }
        adapters.push(Adapter {
            address: replacing.address,
            link: replacing.new,
            settings: replacing.settings,
            is_replaced: false,
        });
        true
    }

    /// Has the routes without a session leave an adapter for its successor.
    fn aim_idle(&mut self, old: LinkId, new: LinkId) {
        for id in self.routes.by_adapter(old) {
            let is_used = self.calls.has(old, |call| call.route == id);
            let Some(route) = self.routes.get_mut(id).filter(|_| !is_used) else {
                continue;
            };
            match route.state {
                RouteState::Open(_) => {}
                RouteState::Connecting(session) => {
                    route.state = RouteState::Idle;
                    if let Some(entry) = self.links.awake(old) {
                        entry.connecting -= 1;
                        entry.link.close(session);
                    }
                    // From its target on: an application of this service is known by that alone.
                    self.resolve(id);
                }
                _ => {
                    route.link = new;
                    if let Some(entry) = self.links.get_mut(new) {
                        entry.routes += 1;
                    }
                    self.leave_link(old);
                }
            }
        }
    }

    fn answer_operations(&mut self) {
        let is_over = |operation: &mut Operation| operation.replacing.is_empty();
        for operation in self.upgrading.operations.extract_if(.., is_over) {
            // Who asked may have given up.
            let _ = operation.reply.send(operation.outcome);
        }
    }
}
