//! Ends of routes and links: of what is lost with them, each caller hears.

use starling_endpoint::{Code, Status};

use super::Runtime;
use super::links::LinkId;
use super::routes::{Callers, RouteId, RouteState};

impl Runtime {
    /// The callers of a route are gone, or its server is for good.
    pub(super) fn remove_route(&mut self, id: RouteId) {
        self.end_trial(id, "its callers are gone");
        let Some(route) = self.routes.remove(id) else {
            return;
        };
        self.forget_previous(id);
        self.upgrading.forget(id);
        self.shared.placement.end(route.identity.process);
        self.leaving.retain(|leaving| leaving.route != id);
        self.resolving.forget(id);
        let from = route.from();
        self.asking.forget(&route.known);
        let held = self.take_held_of(id);
        let waiting = route.waiting.into_iter();
        let reading = route.reading.into_iter().map(|reading| reading.arrived);
        for arrived in waiting.chain(reading).chain(held) {
            let status =
                Status::unavailable("the service no longer reaches the server for this caller");
            self.refuse(from, arrived, status);
        }
        for previous in route.previous {
            self.close(previous.link, previous.session);
            self.leave_link(previous.link);
        }
        let Some(entry) = self.links.awake(route.link) else {
            return;
        };
        match route.state {
            RouteState::Connecting(session) => {
                entry.connecting -= 1;
                entry.link.close(session);
            }
            RouteState::Open(session) => entry.link.close(session),
            _ => {}
        }
        self.leave_link(route.link);
    }

    /// A route ends at a link no more.
    pub(super) fn leave_link(&mut self, id: LinkId) {
        let Some(entry) = self.links.get_mut(id) else {
            return;
        };
        entry.routes -= 1;
        if entry.routes == 0 {
            self.remove_link(id);
        }
    }

    /// A link of a route has failed.
    pub(super) fn end_route(&mut self, id: RouteId) {
        let Some(route) = self.routes.get(id) else {
            return;
        };
        match route.callers {
            Callers::All(from) => self.end_publication(from),
            Callers::Peer(from, peer) => {
                // What waits is refused before its session ends.
                self.remove_route(id);
                if let Some(entry) = self.links.awake(from) {
                    entry.link.end_sessions_of(peer);
                }
            }
        }
    }

    /// Ends a link that no route needs.
    pub(super) fn remove_link(&mut self, id: LinkId) {
        self.adapters.retain(|_, links| {
            links.retain(|adapter| adapter.link != id);
            !links.is_empty()
        });
        self.fail_calls_of(
            id,
            "the service no longer reaches the server; the call may have run",
        );
        self.calls.forget(id);
        let process = self.links.remove(id);
        if process.is_some() {
            self.shared.placement.end(process);
        }
    }

    /// A link's device has failed.
    pub(super) fn fail_link(&mut self, id: LinkId, failure: &str) {
        tracing::error!(
            failure,
            "a device of the service has failed, and all calls on it"
        );
        if let Some(entry) = self.links.get_mut(id) {
            // Its number is no other link's before it is removed here.
            entry.routes += 1;
        }
        self.fail_calls_of(id, failure);
        self.fail_trials_on(id, failure);
        self.lose_previous_on(id);
        for route in self.routes.of_link(id) {
            self.end_route(route);
        }
        self.remove_link(id);
    }

    pub(super) fn fail_calls_of(&mut self, id: LinkId, failure: &str) {
        for (on, call) in self.calls.take_of_link(id) {
            self.leave_previous(on, call.route);
            self.end_of_policies(&call.passed, call.method, Code::Unavailable);
            if call.from != id
                && let Some(entry) = self.links.awake(call.from)
            {
                entry
                    .link
                    .answer(call.reply, Err(Status::unavailable(failure.to_owned())));
            }
        }
    }
}
