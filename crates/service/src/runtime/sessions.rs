//! The sessions behind routes: how they open, and what follows from their end.

use starling_endpoint::{Peer, SessionError, SessionId, SessionState, Status};
use starling_io::Clock;

use super::Runtime;
use super::links::{LinkEntry, LinkId};
use super::routes::{Callers, Local, RouteId, RouteState};
use crate::ROOT;
use crate::device::DeviceKind;

impl Runtime {
    /// Begins to open a session at the next address that is left.
    pub(super) fn connect(&mut self, id: RouteId) {
        let mut failure = Status::unavailable("the host name has no address");
        while let Some(route) = self.routes.get_mut(id)
            && let Some(address) = route.addresses.pop_front()
        {
            // What cannot be reached within the service may be by the network.
            let opened = self.open_local(id, &address);
            match opened.or_else(|_| self.open(id, &address)) {
                Ok(()) => return,
                Err(status) => failure = status,
            }
        }
        self.fail_route(id, failure);
    }

    /// Begins to open a session with an application of this service, where it listens for the service: without the way
    /// by the network.
    fn open_local(&mut self, id: RouteId, address: &str) -> Result<(), Status> {
        let gone = || Status::unavailable("no application of this service is reached there");
        let route = self.routes.get(id).ok_or_else(gone)?;
        let user = route.identity.user;
        if matches!(route.callers, Callers::All(_)) {
            return Err(gone());
        }
        let local = self
            .shared
            .directory
            .find(address)
            .filter(|local| local.admits(user));
        let local = local.ok_or_else(gone)?;
        let process = local.identity.process;
        let own = local.address.clone();
        let link = self.aim(id, &own, Some(local))?;
        let session = self.begin_session(link, &own)?;
        // Another process may have the name by now.
        let listens = self.who_listens(link, session);
        if listens.is_none() || listens != process {
            self.close(link, session);
            return Err(gone());
        }
        self.set_connecting(id, session, own);
        Ok(())
    }

    /// The process at the other end of a session.
    pub(super) fn who_listens(&mut self, link: LinkId, session: SessionId) -> Option<u32> {
        let server = self.links.get_mut(link)?.link.server_of(session)?;
        server.process()?.pid
    }

    /// Begins to open a session at an address.
    fn open(&mut self, id: RouteId, address: &str) -> Result<(), Status> {
        let gone = || Status::unavailable("the service no longer reaches the server");
        let route = self.routes.get(id).ok_or_else(gone)?;
        let callers = route.callers;
        let link = match callers {
            Callers::All(_) => route.link,
            Callers::Peer(..) => self.aim(id, address, None)?,
        };
        let session = self.begin_session(link, address)?;
        if !self.may_reach(callers, link, session) {
            self.close(link, session);
            return Err(Status::permission_denied(format!(
                "{address}: it is another user's, whom only this service may reach"
            )));
        }
        self.set_connecting(id, session, address.to_owned());
        Ok(())
    }

    pub(super) fn begin_session(
        &mut self,
        link: LinkId,
        address: &str,
    ) -> Result<SessionId, Status> {
        let entry = self.links.awake(link);
        let entry = entry.ok_or_else(|| Status::unavailable("the service's device has failed"))?;
        let session = entry.link.connect(address);
        session.map_err(|error| Status::unavailable(error.to_string()))
    }

    pub(super) fn close(&mut self, link: LinkId, session: SessionId) {
        if let Some(entry) = self.links.awake(link) {
            entry.link.close(session);
        }
    }

    fn set_connecting(&mut self, id: RouteId, session: SessionId, address: String) {
        let Some(route) = self.routes.get_mut(id) else {
            return;
        };
        route.state = RouteState::Connecting(session);
        route.address = address;
        route.is_draining = false;
        if let Some(entry) = self.links.get_mut(route.link) {
            entry.connecting += 1;
        }
    }

    /// Has a route call by the link that its application has for such addresses. Returns the link.
    fn aim(&mut self, id: RouteId, address: &str, local: Option<Local>) -> Result<LinkId, Status> {
        let gone = || Status::unavailable("the service no longer reaches the server");
        let route = self.routes.get(id).ok_or_else(gone)?;
        let (application, before) = (route.application, route.link);
        let kind = DeviceKind::of(address);
        let kind = kind.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let link = self.adapter(application, &kind, address)?;
        let route = self.routes.get_mut(id).ok_or_else(gone)?;
        route.local = local;
        route.link = link;
        route.chain = self.policies.chain(route);
        if link != before {
            if let Some(entry) = self.links.get_mut(link) {
                entry.routes += 1;
            }
            self.leave_link(before);
        }
        Ok(link)
    }

    /// Whether callers may reach a server of this host that the service itself may: one of their own user. A service of
    /// root's, or for all users, must not lend them its rights.
    pub(super) fn may_reach(&mut self, callers: Callers, link: LinkId, session: SessionId) -> bool {
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
                    // Another server may have other schemas.
                    self.asking.forget(&std::mem::take(&mut route.known));
                    for arrived in std::mem::take(&mut route.waiting) {
                        self.admit(id, arrived);
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
            Callers::All(from) if error == SessionError::ConnectTimeout => {
                let reached = self.reach_application(id);
                // Without a session its clients leave already.
                let route = self.routes.get(id);
                if reached.is_err() && route.is_some_and(|route| route.session().is_some()) {
                    self.end_publication(from);
                }
            }
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
