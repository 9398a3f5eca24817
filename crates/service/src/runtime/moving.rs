//! Applications that move from one runtime to another, with all that is theirs: links, routes, calls in flight, what
//! waits. Nobody at either end of a call sees it.

use std::collections::HashMap;
use std::sync::Arc;

use slab::Slab;
use starling_endpoint::Code;

use super::calls::Forwarded;
use super::leaving::Leaving;
use super::links::{LinkEntry, LinkId};
use super::policies::Held;
use super::routes::{Callers, Route, RouteId, RouteState};
use super::upgrading::Adapter;
use super::{Application, Command, Runtime};
use crate::publication::Publication;

/// An application on its way to another runtime. Links and routes have the numbers of the one that it has left.
pub(crate) struct Handover {
    process: u32,
    links: Vec<(LinkId, LinkEntry, Slab<Forwarded>)>,
    /// Those of them by which it calls out.
    adapters: Vec<Adapter>,
    routes: Vec<(RouteId, Route)>,
    /// With the times until which policies hold them.
    held: Vec<(u64, Held)>,
    leaving: Vec<Leaving>,
    /// By the link at which clients come.
    publications: Vec<(LinkId, Arc<Publication>)>,
}

impl std::fmt::Debug for Handover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handover")
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

impl Runtime {
    /// Has an application move to another runtime, where it is placed already. Returns how many of its datapaths do.
    pub(super) fn move_application(&mut self, process: u32, to: usize) -> usize {
        let runtime = self.shared.runtimes().get(to).cloned();
        let Some(runtime) = runtime.filter(|_| to != self.own) else {
            return 0;
        };
        let Some(handover) = self.take_application(process) else {
            return 0;
        };
        let moved = handover.routes.len();
        runtime.send(Command::Adopt(Box::new(handover)));
        moved
    }

    /// Whether an application has connected by the link of those that have none of their own: so it cannot move.
    pub(super) fn shares_frontend(&self, process: u32) -> bool {
        let ids = self.routes.of_application(Application::Process(process));
        let from = |id: RouteId| self.routes.get(id).map(Route::from);
        ids.into_iter()
            .any(|id| from(id).is_some_and(|link| Some(link) == self.frontend))
    }

    /// Takes out an application. None: it has nothing here, or cannot move.
    fn take_application(&mut self, process: u32) -> Option<Handover> {
        if self.shares_frontend(process) {
            return None;
        }
        let application = Application::Process(process);
        let ids = self.routes.of_application(application);
        let is_tried = |runtime: &Self, id: &RouteId| {
            let route = runtime.routes.get(*id);
            route.is_some_and(|route| route.successor.is_some())
        };
        // What ends one may begin another.
        while let Some(id) = ids.iter().copied().find(|id| is_tried(self, id)) {
            self.fail_trial(id, "the application moves to another runtime");
        }
        let adapters = self.adapters.remove(&application).unwrap_or_default();
        let mut links = self.links.of_process(process);
        links.extend(adapters.iter().map(|adapter| adapter.link));
        let (mut routes, mut held, mut leaving) = (Vec::new(), Vec::new(), Vec::new());
        let mut publications = Vec::new();
        for id in ids {
            held.append(&mut self.policies.take_of_route(id));
            leaving.extend(self.leaving.extract_if(.., |leaving| leaving.route == id));
            self.resolving.forget(id);
            self.forget_previous(id);
            let Some(mut route) = self.routes.remove(id) else {
                continue;
            };
            // Whoever has it next asks again.
            self.asking.forget(&route.known);
            route.forget_asked();
            if let Callers::All(from) = route.callers {
                links.extend([from, route.link]);
                publications.extend(self.publications.remove(&from).map(|it| (from, it)));
            }
            routes.push((id, route));
        }
        let mut taken = Vec::new();
        for link in links {
            let calls = self.calls.take_table(link);
            if let Some(entry) = self.links.take(link) {
                taken.push((link, entry, calls));
            }
        }
        (!taken.is_empty()).then_some(Handover {
            process,
            links: taken,
            adapters,
            routes,
            held,
            leaving,
            publications,
        })
    }

    /// Goes on with an application that another runtime had.
    pub(super) fn adopt(&mut self, handover: Handover) {
        self.policies.look_at(&self.clock);
        let Handover {
            process,
            links,
            adapters,
            routes,
            held,
            leaving,
            publications,
        } = handover;
        let mut link_of = HashMap::new();
        let (mut tables, mut lost) = (Vec::new(), Vec::new());
        for (old, entry, calls) in links {
            match self.links.put(entry) {
                Ok(new) => {
                    link_of.insert(old, new);
                    tables.push((new, calls));
                }
                Err(entry) => lost.push((entry, calls)),
            }
        }
        let route_of = self.adopt_routes(process, routes, &link_of);
        let arrived = |adapter: Adapter| {
            let link = *link_of.get(&adapter.link)?;
            Some(Adapter { link, ..adapter })
        };
        let adapters: Vec<_> = adapters.into_iter().filter_map(arrived).collect();
        if !adapters.is_empty() {
            let application = Application::Process(process);
            self.adapters
                .entry(application)
                .or_default()
                .extend(adapters);
        }
        for (on, calls) in tables {
            self.adopt_calls(on, calls, &link_of, &route_of);
        }
        for id in route_of.values() {
            self.keep_previous(*id);
        }
        self.adopt_held(held, &route_of);
        // Policies may have changed on the way.
        self.let_go(&[]);
        let leaving = leaving.into_iter();
        let leaving = leaving.filter_map(|leaving| leaving.moved(&link_of, &route_of));
        self.leaving.extend(leaving);
        for (from, publication) in publications {
            self.adopt_publication(publication, link_of.get(&from).copied());
        }
        for (entry, calls) in lost {
            self.lose(process, *entry, calls);
        }
    }

    /// The system watches no more devices: one of an application's is gone. Whoever calls by it hears of it when the
    /// replies are dropped.
    #[cold]
    fn lose(&mut self, process: u32, mut entry: LinkEntry, calls: Slab<Forwarded>) {
        tracing::error!(
            process,
            "the system watches no more devices: an application has lost one"
        );
        for (_, call) in calls {
            self.end_of_policies(&call.passed, call.method, Code::Unavailable);
        }
        if entry.queue.is_some() {
            self.shared.placement.end(Some(process));
        }
        entry.link.end();
    }

    fn adopt_held(&mut self, held: Vec<(u64, Held)>, route_of: &HashMap<RouteId, RouteId>) {
        for (until_ns, held) in held {
            match route_of.get(&held.route).copied() {
                Some(route) => self.policies.hold(until_ns, Held { route, ..held }),
                None => {
                    let (passed, method) = (&held.arrived.passed, held.arrived.request.method);
                    self.end_of_policies(passed, method, Code::Unavailable);
                }
            }
        }
    }

    fn adopt_publication(&mut self, publication: Arc<Publication>, from: Option<LinkId>) {
        let Some(from) = from else {
            publication.end();
            return self.shared.directory.remove(publication.id);
        };
        let is_withdrawn = publication.is_withdrawn();
        self.publications.insert(from, publication);
        match self.routes.of_link(from).pop() {
            Some(route) if is_withdrawn => self.begin_leaving(route),
            Some(_) => {}
            // The way to the application was lost.
            None => self.end_publication(from),
        }
    }

    /// Goes on with the routes whose links are there. Returns their new numbers.
    fn adopt_routes(
        &mut self,
        process: u32,
        routes: Vec<(RouteId, Route)>,
        link_of: &HashMap<LinkId, LinkId>,
    ) -> HashMap<RouteId, RouteId> {
        let mut route_of = HashMap::new();
        for (old, mut route) in routes {
            let (Some(from), Some(to)) = (link_of.get(&route.from()), link_of.get(&route.link))
            else {
                self.shared.placement.end(Some(process));
                continue;
            };
            route.callers = route.callers.by(*from);
            route.link = *to;
            route.previous.retain_mut(|previous| {
                let link = link_of.get(&previous.link).copied();
                previous.link = link.unwrap_or(previous.link);
                link.is_some()
            });
            route.chain = self.policies.chain(&route);
            let is_resolving = matches!(route.state, RouteState::Resolving);
            let id = self.routes.insert(route);
            route_of.insert(old, id);
            self.asking.look_at(id);
            if is_resolving {
                self.resolve(id);
            }
        }
        route_of
    }

    fn adopt_calls(
        &mut self,
        on: LinkId,
        calls: Slab<Forwarded>,
        link_of: &HashMap<LinkId, LinkId>,
        route_of: &HashMap<RouteId, RouteId>,
    ) {
        let own = calls.into_iter().map(|(place, call)| {
            // What has no caller any more stays in its place until it is over: its number is outstanding.
            let from = link_of.get(&call.from).copied().unwrap_or(LinkId::MAX);
            let route = route_of.get(&call.route).copied().unwrap_or(RouteId::MAX);
            (
                place,
                Forwarded {
                    from,
                    route,
                    ..call
                },
            )
        });
        self.calls.put_table(on, own.collect());
    }
}
