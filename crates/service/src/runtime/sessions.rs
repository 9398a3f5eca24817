//! The sessions behind routes: how they open, and what follows from their end.

use starling_endpoint::{Peer, SessionError, SessionId, SessionState, Status};
use starling_io::Clock;

use super::Runtime;
use super::links::{LinkEntry, LinkId};
use super::routes::{Callers, RouteId, RouteState};

/// The user who may reach all.
const ROOT: u32 = 0;

impl Runtime {
    /// Begins to open a session at the next address that is left.
    pub(super) fn connect(&mut self, id: RouteId) {
        let mut failure = Status::unavailable("the host name has no address");
        while let Some(route) = self.routes.get_mut(id)
            && let Some(address) = route.addresses.pop_front()
        {
            let (link, callers) = (route.link, route.callers);
            let Some(entry) = self.links.awake(link) else {
                break;
            };
            match entry.link.connect(&address) {
                Ok(session) if self.may_reach(callers, link, session) => {
                    if let (Some(route), Some(entry)) =
                        (self.routes.get_mut(id), self.links.get_mut(link))
                    {
                        route.state = RouteState::Connecting(session);
                        route.is_draining = false;
                        entry.connecting += 1;
                    }
                    return;
                }
                Ok(session) => {
                    if let Some(entry) = self.links.awake(link) {
                        entry.link.close(session);
                    }
                    failure = Status::permission_denied(format!(
                        "{address}: it is another user's, whom only this service may reach"
                    ));
                }
                Err(error) => failure = Status::unavailable(error.to_string()),
            }
        }
        self.fail_route(id, failure);
    }

    /// Whether callers may reach a server of this host that the service itself may: one of their own user. A service of
    /// root's, or for all users, must not lend them its rights.
    fn may_reach(&mut self, callers: Callers, link: LinkId, session: SessionId) -> bool {
        let Callers::Peer(from, peer) = callers else {
            return true;
        };
        let mut of = |link: LinkId, peer: &dyn Fn(&mut LinkEntry) -> Option<Peer>| {
            let peer = peer(self.links.awake(link)?)?;
            peer.process().map(|process| process.uid)
        };
        let server = of(link, &|entry| entry.link.server_of(session));
        let caller = of(from, &|entry| Some(entry.link.peer(peer)));
        match (server, caller) {
            // It is not of this host.
            (None, _) => true,
            (Some(server), Some(caller)) => {
                caller == Some(ROOT) || (caller.is_some() && caller == server)
            }
            (Some(_), None) => false,
        }
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
        if let Callers::All(_) = route.callers {
            // The application does not listen any more.
            return self.begin_leaving(id);
        }
        route.fail(now_ns, status.clone());
        let from = route.from();
        for arrived in std::mem::take(&mut route.waiting) {
            self.refuse(from, arrived, status.clone());
        }
    }
}
