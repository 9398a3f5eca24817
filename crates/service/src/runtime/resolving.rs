//! Host names of targets, which threads resolve: a name server may take long.

use std::collections::VecDeque;

use starling_endpoint::Status;

use super::routes::{RouteId, RouteState};
use super::{Application, Command, Runtime};
use crate::device::DeviceKind;

/// Threads that resolve at once, at most. Further names wait.
const MAX_THREADS: usize = 8;

/// Those of one application, at most: its names may all take long.
const MAX_THREADS_OF_ONE: usize = MAX_THREADS / 2;

/// A name that is to be resolved.
struct Name {
    route: RouteId,
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
        self.waiting.retain(|waiting| waiting.route != route);
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
                self.resolving.waiting.push_back(Name {
                    route: id,
                    target,
                    application,
                });
                self.start_resolvers();
            }
            Ok(_) => {
                route.addresses = [target].into();
                self.connect(id);
            }
        }
    }

    fn start_resolvers(&mut self) {
        while let Some(name) = self.resolving.next() {
            let Name {
                route: id,
                target,
                application,
            } = name;
            if !self.waits_for(id, &target) {
                continue;
            }
            let handle = self.handle.clone();
            let run = move || {
                // The count of threads goes by what they send.
                let result = std::panic::catch_unwind(|| resolve(&target))
                    .unwrap_or_else(|_| Err(format!("{target}: a resolver panicked")));
                handle.send(Command::Resolved {
                    route: id,
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
                    self.fail_route(id, Status::unavailable(text));
                }
            }
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
        id: RouteId,
        target: &str,
        application: Application,
        result: Result<Vec<String>, String>,
    ) {
        self.resolving.end(application);
        self.start_resolvers();
        if !self.waits_for(id, target) {
            return;
        }
        match result {
            Ok(addresses) => {
                if let Some(route) = self.routes.get_mut(id) {
                    route.addresses = addresses.into();
                }
                self.connect(id);
            }
            Err(text) => self.fail_route(id, Status::unavailable(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(process: u32, route: RouteId) -> Name {
        Name {
            route,
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
            Some(next.route)
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
        resolving.forget(4);
        assert!(resolving.waiting.iter().all(|name| name.route != 4));
    }
}
