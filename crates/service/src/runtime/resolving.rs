//! Host names of targets and of addresses to listen at, which threads resolve: a name server may take long.

use std::collections::VecDeque;
use std::sync::Arc;

use starling_endpoint::Status;

use super::routes::{RouteId, RouteState};
use super::{Application, Command, Runtime};
use crate::device::DeviceKind;
use crate::publication::Publication;

/// Threads that resolve at once, at most. Further names wait.
const MAX_THREADS: usize = 8;

/// Those of one application, at most: its names may all take long.
const MAX_THREADS_OF_ONE: usize = MAX_THREADS / 2;

/// What wants the addresses of a name.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    /// A route, to call its target.
    ByRoute(RouteId),
    /// An application that listens there for the service, to be called at the name.
    ByApplication(String, Arc<Publication>),
}

/// A name that is to be resolved.
struct Name {
    wanted: Wanted,
    target: String,
    application: Application,
}

/// The names that threads resolve, and those that wait for one.
#[derive(Default)]
pub(super) struct Resolving {
    /// For each thread, whose name it resolves.
    threads: Vec<Application>,
    waiting: VecDeque<Name>,
}

impl Resolving {
    /// A route is gone.
    pub(super) fn forget(&mut self, route: RouteId) {
        let is_of_route = |name: &Name| matches!(name.wanted, Wanted::ByRoute(of) if of == route);
        self.waiting.retain(|name| !is_of_route(name));
    }

    /// The name that gets a thread next, if one is free: of the application that has the fewest.
    fn next(&mut self) -> Option<Name> {
        if self.threads.len() >= MAX_THREADS {
            return None;
        }
        let threads_of = |application| {
            let own = self.threads.iter().filter(|it| **it == application);
            own.count()
        };
        let waiting = self.waiting.iter().enumerate();
        let may_have = waiting
            .map(|(place, name)| (place, threads_of(name.application)))
            .filter(|(_, threads)| *threads < MAX_THREADS_OF_ONE);
        let (place, _) = may_have.min_by_key(|(_, threads)| *threads)?;
        self.waiting.remove(place)
    }

    /// A thread of an application has ended.
    fn end(&mut self, application: Application) {
        let place = self.threads.iter().position(|it| *it == application);
        if let Some(place) = place {
            self.threads.swap_remove(place);
        }
    }
}

fn resolve(target: &str) -> Result<Vec<String>, String> {
    let kind = DeviceKind::of(target).map_err(|error| error.to_string())?;
    kind.resolve(target).map_err(|error| error.to_string())
}

impl Runtime {
    /// Finds the addresses of a route's target, and connects to the first.
    pub(super) fn resolve(&mut self, id: RouteId) {
        let Some(route) = self.routes.get_mut(id) else {
            return;
        };
        let target = route.target.clone();
        match DeviceKind::of(&target) {
            Err(error) => self.fail_route(id, Status::invalid_argument(error.to_string())),
            Ok(kind) if kind.has_host_name(&target) => {
                route.state = RouteState::Resolving;
                let application = route.application;
                self.resolve_by_thread(Wanted::ByRoute(id), target, application);
            }
            Ok(_) => {
                route.addresses = [target].into();
                self.connect(id);
            }
        }
    }

    /// Has a thread resolve the host name of an address.
    pub(super) fn resolve_by_thread(
        &mut self,
        wanted: Wanted,
        target: String,
        application: Application,
    ) {
        self.resolving.waiting.push_back(Name {
            wanted,
            target,
            application,
        });
        self.start_resolvers();
    }

    fn start_resolvers(&mut self) {
        while let Some(name) = self.resolving.next() {
            let Name {
                wanted,
                target,
                application,
            } = name;
            if !self.is_wanted(&wanted, &target) {
                continue;
            }
            let (handle, by) = (self.handle.clone(), wanted.clone());
            let run = move || {
                // The threads are known by what they send.
                let result = std::panic::catch_unwind(|| resolve(&target))
                    .unwrap_or_else(|_| Err(format!("{target}: a resolver panicked")));
                handle.send(Command::Resolved {
                    wanted: by,
                    target,
                    application,
                    result,
                });
            };
            let thread = std::thread::Builder::new().name("starling-resolve".into());
            match thread.spawn(run) {
                Ok(_) => self.resolving.threads.push(application),
                Err(error) => {
                    let text = format!("the service has no thread to resolve a host name: {error}");
                    self.fail_wanted(wanted, text);
                }
            }
        }
    }

    fn fail_wanted(&mut self, wanted: Wanted, text: String) {
        match wanted {
            Wanted::ByRoute(id) => self.fail_route(id, Status::unavailable(text)),
            Wanted::ByApplication(_, publication) => {
                publication.begin(Err(Status::failed_precondition(text)));
            }
        }
    }

    fn is_wanted(&self, wanted: &Wanted, target: &str) -> bool {
        match wanted {
            Wanted::ByRoute(id) => self.waits_for(*id, target),
            Wanted::ByApplication(_, publication) => publication.is_wanted(),
        }
    }

    /// Whether a route waits for the addresses of a target: another one may have its number by now.
    fn waits_for(&self, id: RouteId, target: &str) -> bool {
        let route = self.routes.get(id);
        route.is_some_and(|route| {
            route.target == target && matches!(route.state, RouteState::Resolving)
        })
    }

    pub(super) fn handle_resolved(
        &mut self,
        wanted: Wanted,
        target: &str,
        application: Application,
        result: Result<Vec<String>, String>,
    ) {
        self.resolving.end(application);
        self.start_resolvers();
        if !self.is_wanted(&wanted, target) {
            return;
        }
        match (result, wanted) {
            (Err(text), wanted) => self.fail_wanted(wanted, text),
            (Ok(addresses), Wanted::ByRoute(id)) => {
                if let Some(route) = self.routes.get_mut(id) {
                    route.addresses = addresses.into();
                }
                self.connect(id);
            }
            (Ok(addresses), Wanted::ByApplication(application, publication)) => {
                self.publish_at_one(addresses, application, publication);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(process: u32, route: RouteId) -> Name {
        Name {
            wanted: Wanted::ByRoute(route),
            target: format!("udp://name-{route}:1"),
            application: Application::Process(process),
        }
    }

    #[test]
    fn an_application_with_many_names_leaves_threads_to_others() {
        let mut resolving = Resolving::default();
        resolving
            .waiting
            .extend((0..500).map(|route| name(1, route)));
        let begin = |resolving: &mut Resolving| {
            let next = resolving.next()?;
            resolving.threads.push(next.application);
            match next.wanted {
                Wanted::ByRoute(route) => Some(route),
                Wanted::ByApplication(..) => None,
            }
        };
        for route in 0..MAX_THREADS_OF_ONE {
            assert_eq!(begin(&mut resolving), Some(route));
        }
        assert_eq!(begin(&mut resolving), None, "it has its share");
        resolving.waiting.push_back(name(2, 777));
        assert_eq!(begin(&mut resolving), Some(777));
        // All threads are taken, by two with many names.
        resolving
            .waiting
            .extend((1000..1100).map(|route| name(3, route)));
        while begin(&mut resolving).is_some() {}
        assert_eq!(resolving.threads.len(), MAX_THREADS);
        resolving.waiting.push_back(name(4, 888));
        resolving.end(Application::Process(1));
        assert_eq!(begin(&mut resolving), Some(888), "it has none yet");
        let waiting = resolving.waiting.len();
        resolving.forget(4);
        assert_eq!(resolving.waiting.len(), waiting - 1);
    }
}
