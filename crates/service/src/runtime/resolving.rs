//! Host names of targets, which threads resolve: a name server may take long.

use std::collections::VecDeque;

use starling_endpoint::Status;

use super::routes::{RouteId, RouteState};
use super::{Command, Runtime};
use crate::device::DeviceKind;

/// Threads that resolve at once, at most. Further names wait.
const MAX_THREADS: usize = 8;

/// The names that threads resolve, and those that wait for one.
#[derive(Default)]
pub(super) struct Resolving {
    threads: usize,
    waiting: VecDeque<(RouteId, String)>,
}

impl Resolving {
    /// A route is gone.
    pub(super) fn forget(&mut self, route: RouteId) {
        self.waiting.retain(|(waiting, _)| *waiting != route);
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
                self.resolving.waiting.push_back((id, target));
                self.start_resolvers();
            }
            Ok(_) => {
                route.addresses = [target].into();
                self.connect(id);
            }
        }
    }

    fn start_resolvers(&mut self) {
        while self.resolving.threads < MAX_THREADS
            && let Some((id, target)) = self.resolving.waiting.pop_front()
        {
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
                    result,
                });
            };
            let thread = std::thread::Builder::new().name("starling-resolve".into());
            match thread.spawn(run) {
                Ok(_) => self.resolving.threads += 1,
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
        result: Result<Vec<String>, String>,
    ) {
        self.resolving.threads -= 1;
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
