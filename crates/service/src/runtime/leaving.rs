//! Callers whose server is gone, and who have to bind anew: they are told to make no new calls, and their sessions end
//! when they have none outstanding.
//!
//! ```text
//!  server gone ─▶ DRAIN to its callers ─▶ what they send is refused, and goes elsewhere ─▶ all have left: RESET
//! ```
//!
//! So no call that only the service has got counts as one that may have run.

use std::collections::HashMap;

use starling_endpoint::{Code, DeferredReply, MethodId, Status};
use starling_io::{Clock, PeerId};

use super::Runtime;
use super::links::LinkId;
use super::routes::{Callers, RouteId, RouteState};
use crate::datapath::Passed;

/// How long callers may take to leave: those that do not answer are ended.
const LEAVE_NS: u64 = 1_000_000_000;

/// Callers of a route that leave.
pub(super) struct Leaving {
    pub(super) route: RouteId,
    pub(super) callers: Callers,
    until_ns: u64,
}

impl Leaving {
    /// The same in another runtime, with the numbers that its link and route have there.
    pub(super) fn moved(
        self,
        links: &HashMap<LinkId, LinkId>,
        routes: &HashMap<RouteId, RouteId>,
    ) -> Option<Self> {
        Some(Self {
            route: *routes.get(&self.route)?,
            callers: self.callers.by(*links.get(&self.callers.link())?),
            until_ns: self.until_ns,
        })
    }
}

impl Runtime {
    /// Has the callers of a route leave, whose server is gone.
    pub(super) fn begin_leaving(&mut self, id: RouteId) {
        let Some(route) = self.routes.get_mut(id) else {
            return;
        };
        if matches!(route.state, RouteState::Leaving) {
            return;
        }
        route.state = RouteState::Leaving;
        self.end_trial(id, "its server is gone");
        let Some(route) = self.routes.get_mut(id) else {
            return;
        };
        let callers = route.callers;
        if let Some(publication) = self.publications.get(&callers.link()) {
            self.shared.directory.begin_leaving(publication.id);
        }
        let waiting = std::mem::take(&mut route.waiting);
        let reading = std::mem::take(&mut route.reading).into_iter();
        let reading = reading.map(|reading| reading.arrived);
        self.drain_callers(callers);
        let held = self.take_held_of(id);
        for arrived in waiting.into_iter().chain(reading).chain(held) {
            self.refuse_leaving(callers.link(), arrived);
        }
        self.leaving.push(Leaving {
            route: id,
            callers,
            until_ns: self.clock.now_ns() + LEAVE_NS,
        });
    }

    /// Has a caller make a call elsewhere that no server has: unless it may have run before, and may not again.
    pub(super) fn make_elsewhere(
        &mut self,
        from: LinkId,
        reply: DeferredReply,
        passed: &Passed,
        method: MethodId,
    ) {
        let may_run_again = self.may_run_again(passed, method);
        if let Some(entry) = self.links.awake(from) {
            match may_run_again {
                true => entry.link.refuse_draining(reply),
                false => entry.link.answer(
                    reply,
                    Err(Status::unavailable(
                        "the server shuts down, or is gone; an earlier attempt may have run",
                    )),
                ),
            }
        }
        self.end_of_policies(passed, method, Code::Cancelled);
    }

    /// Tells the callers of a server that shuts down to make no new calls.
    pub(super) fn drain_callers(&mut self, callers: Callers) {
        let Some(entry) = self.links.awake(callers.link()) else {
            return;
        };
        match callers {
            Callers::All(_) => entry.link.start_drain(),
            Callers::Peer(_, peer) => entry.link.drain_peer(peer),
        }
    }

    /// Ends the sessions of callers that have left. Returns whether there were any.
    pub(super) fn end_left(&mut self) -> bool {
        let now_ns = self.clock.now_ns();
        let links = &mut self.links;
        let mut has_left = |leaving: &mut Leaving| {
            let Some(entry) = links.get_mut(leaving.callers.link()) else {
                return true;
            };
            let has_left = match leaving.callers {
                Callers::All(_) => entry.link.is_left(),
                Callers::Peer(_, peer) => entry.link.has_left(peer),
            };
            has_left || leaving.until_ns <= now_ns
        };
        let left: Vec<Leaving> = self.leaving.extract_if(.., |it| has_left(it)).collect();
        let any = !left.is_empty();
        for Leaving { route, callers, .. } in left {
            match callers {
                // Numbers may be those of others by now.
                _ if !self.is_left_by(route, callers) => {}
                Callers::All(from) => self.end_publication(from),
                Callers::Peer(from, peer) => self.end_sessions(route, from, peer),
            }
        }
        any
    }

    /// Whether these are the callers of a route, and leave it.
    fn is_left_by(&self, route: RouteId, callers: Callers) -> bool {
        let route = self.routes.get(route);
        route.is_some_and(|route| {
            route.callers == callers && matches!(route.state, RouteState::Leaving)
        })
    }

    fn end_sessions(&mut self, route: RouteId, from: LinkId, peer: PeerId) {
        if let Some(route) = self.routes.get_mut(route) {
            route.state = RouteState::Idle;
        }
        if let Some(entry) = self.links.awake(from) {
            entry.link.end_sessions_of(peer);
        }
    }

    /// When callers that do not answer are ended.
    pub(super) fn leaving_until_ns(&self) -> Option<u64> {
        self.leaving.iter().map(|leaving| leaving.until_ns).min()
    }
}
