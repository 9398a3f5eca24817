//! The sessions behind routes: how they open, and what follows from their end.

use starling_endpoint::{SessionError, SessionState, Status};
use starling_io::Clock;

use super::routes::{Callers, RouteId, RouteState};
use super::{Command, Runtime};
use crate::device::DeviceKind;

impl Runtime {
    /// Finds the addresses of a route's target, and connects to the first.
    pub(super) fn resolve(&mut self, id: RouteId) {
        let Some(route) = self.routes.get_mut(id) else {
            return;
        };
        let target = route.target.clone();
        let kind = match DeviceKind::of(&target) {
            Ok(kind) => kind,
            Err(error) => return self.fail_route(id, Status::invalid_argument(error.to_string())),
        };
        if !kind.has_host_name(&target) {
            route.addresses = [target].into();
            return self.connect(id);
        }
        route.state = RouteState::Resolving;
        let handle = self.handle.clone();
        let resolve = move || {
            let result = kind.resolve(&target).map_err(|error| error.to_string());
            handle.send(Command::Resolved {
                route: id,
                target,
                result,
            });
        };
        let begun = std::thread::Builder::new()
            .name("starling-resolve".into())
            .spawn(resolve);
        if let Err(error) = begun {
            let text = format!("the service has no thread to resolve a host name: {error}");
            self.fail_route(id, Status::unavailable(text));
        }
    }

    pub(super) fn handle_resolved(
        &mut self,
        id: RouteId,
        target: &str,
        result: Result<Vec<String>, String>,
    ) {
        let Some(route) = self.routes.get_mut(id) else {
            return;
        };
        // Another route may have the number by now.
        if route.target != target || !matches!(route.state, RouteState::Resolving) {
            return;
        }
        match result {
            Ok(addresses) => {
                route.addresses = addresses.into();
                self.connect(id);
            }
            Err(text) => self.fail_route(id, Status::unavailable(text)),
        }
    }

    /// Begins to open a session at the next address that is left.
    fn connect(&mut self, id: RouteId) {
        let mut failure = String::from("the host name has no address");
        while let Some(route) = self.routes.get_mut(id)
            && let Some(address) = route.addresses.pop_front()
        {
            let Some(entry) = self.links.awake(route.link) else {
                break;
            };
            match entry.link.connect(&address) {
                Ok(session) => {
                    route.state = RouteState::Connecting(session);
                    entry.connecting += 1;
                    return;
                }
                Err(error) => failure = error.to_string(),
            }
        }
        self.fail_route(id, Status::unavailable(failure));
    }

    /// Takes in how a route's session is.
    pub(super) fn check_session(&mut self, id: RouteId) {
        let Some(route) = self.routes.get_mut(id) else {
            return;
        };
        let (Some(session), Some(entry)) = (route.session(), self.links.get_mut(route.link)) else {
            return;
        };
        let state = entry.link.state(session);
        let is_opening = matches!(route.state, RouteState::Connecting(_));
        if state == Some(SessionState::Connecting) {
            return;
        }
        entry.connecting -= usize::from(is_opening);
        if !matches!(
            state,
            Some(SessionState::Connected | SessionState::Draining)
        ) {
            route.state = RouteState::Idle;
        }
        match state {
            Some(SessionState::Ended(error)) if is_opening => self.handle_not_opened(id, error),
            Some(SessionState::Ended(_)) | None => self.begin_leaving(id),
            Some(state) => {
                let callers = route.callers;
                let drains = state == SessionState::Draining && !route.is_draining;
                route.is_draining |= drains;
                if is_opening {
                    route.open(session);
                    for arrived in std::mem::take(&mut route.waiting) {
                        self.forward(id, arrived);
                    }
                }
                if drains {
                    self.drain_callers(callers);
                }
            }
        }
    }

    /// No session was opened at the address that was tried.
    fn handle_not_opened(&mut self, id: RouteId, error: SessionError) {
        let Some(route) = self.routes.get_mut(id) else {
            return;
        };
        match route.callers {
            // It listens, and does not serve yet.
            Callers::All(_) if error == SessionError::ConnectTimeout => self.resolve(id),
            Callers::All(_) => self.begin_leaving(id),
            Callers::Peer(..) if !route.addresses.is_empty() => self.connect(id),
            Callers::Peer(..) => {
                let text = format!("connect {}: {error}; the call did not run", route.target);
                self.fail_route(id, Status::unavailable(text));
            }
        }
    }

    /// No session can be opened: the requests that wait fail.
    pub(super) fn fail_route(&mut self, id: RouteId, status: Status) {
        let now_ns = self.clock.now_ns();
        let Some(route) = self.routes.get_mut(id) else {
            return;
        };
        route.fail(now_ns, status.clone());
        let from = route.from();
        for arrived in std::mem::take(&mut route.waiting) {
            self.refuse(from, arrived, status.clone());
        }
    }
}
