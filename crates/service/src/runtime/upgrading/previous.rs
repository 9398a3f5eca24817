//! The sessions that others have replaced, until what they have begun is over.

use starling_endpoint::SessionState;
use starling_io::Clock;

use super::{LinkId, Runtime};
use crate::runtime::routes::{Previous, RouteId};

/// A server that has had no request of a stream for so long has ended it.
const QUIET_NS: u64 = 10_000_000_000;

impl Runtime {
    /// A route may have sessions of before.
    pub(in crate::runtime) fn keep_previous(&mut self, id: RouteId) {
        let route = self.routes.get(id);
        if route.is_none_or(|route| route.previous.is_empty()) {
            return;
        }
        if !self.upgrading.draining.contains(&id) {
            self.upgrading.draining.push(id);
        }
        self.end_previous_of(id);
    }

    /// A route is gone from here.
    pub(in crate::runtime) fn forget_previous(&mut self, id: RouteId) {
        self.upgrading.draining.retain(|of| *of != id);
    }

    /// A call of a route is over that was made on a link.
    #[inline]
    pub(in crate::runtime) fn leave_previous(&mut self, on: LinkId, id: RouteId) {
        if self.upgrading.draining.is_empty() {
            return;
        }
        let route = self.routes.get_mut(id);
        if let Some(previous) = route.and_then(|route| route.previous_on(on)) {
            previous.outstanding -= 1;
            if previous.outstanding == 0 {
                self.upgrading.quiet.push(id);
            }
        }
    }

    /// What ran in a session of before may be over: a link had its turn, and is not used any more.
    pub(in crate::runtime) fn end_quiet(&mut self) {
        while let Some(id) = self.upgrading.quiet.pop() {
            self.end_previous_of(id);
        }
    }

    /// Sessions on a link have changed: one of before may have ended.
    pub(in crate::runtime) fn end_previous_on(&mut self, link: LinkId) {
        if self.upgrading.draining.is_empty() {
            return;
        }
        let is_on = |id: &RouteId| {
            let route = self.routes.get(*id);
            route.is_some_and(|route| route.previous.iter().any(|it| it.link == link))
        };
        let draining = self.upgrading.draining.iter().copied();
        let of_link: Vec<RouteId> = draining.filter(is_on).collect();
        for id in of_link {
            self.end_previous_of(id);
        }
    }

    /// Looks at what is under way, if it is time.
    pub(in crate::runtime) fn look_at_upgrades(&mut self) {
        let now_ns = self.clock.now_ns();
        if self.upgrading.due_ns().is_none_or(|due_ns| now_ns < due_ns) {
            return;
        }
        self.upgrading.looked_ns = now_ns;
        self.end_late_trials(now_ns);
        for id in self.upgrading.draining.clone() {
            self.end_previous_of(id);
        }
    }

    /// Ends the sessions of before of a route in which nothing runs any more.
    fn end_previous_of(&mut self, id: RouteId) {
        let now_ns = self.clock.now_ns();
        let Some(route) = self.routes.get_mut(id) else {
            return;
        };
        let mut ended = Vec::new();
        route.previous.retain_mut(|previous| {
            let Previous { link, session, .. } = *previous;
            let state = self
                .links
                .get_mut(link)
                .and_then(|it| it.link.state(session));
            let is_open = matches!(
                state,
                Some(SessionState::Connected | SessionState::Draining)
            );
            let is_used = previous.outstanding > 0;
            let goes_on = match (is_used, is_open && previous.streams.any_runs()) {
                (true, _) => {
                    previous.quiet_since_ns = None;
                    true
                }
                (false, false) => false,
                (false, true) => {
                    let since_ns = *previous.quiet_since_ns.get_or_insert(now_ns);
                    now_ns.saturating_sub(since_ns) < QUIET_NS
                }
            };
            if !goes_on {
                ended.push((link, session));
            }
            goes_on
        });
        if route.previous.is_empty() {
            self.forget_previous(id);
        }
        for (link, session) in ended {
            self.close(link, session);
            self.leave_link(link);
        }
    }

    /// A device has failed, and all sessions on it. Its link is removed by who says so.
    pub(in crate::runtime) fn lose_previous_on(&mut self, link: LinkId) {
        for id in self.upgrading.draining.clone() {
            if let Some(route) = self.routes.get_mut(id) {
                route.previous.retain(|previous| previous.link != link);
                if route.previous.is_empty() {
                    self.forget_previous(id);
                }
            }
        }
    }

    /// When something is to be looked at.
    pub(in crate::runtime) fn upgrades_due_ns(&self) -> Option<u64> {
        self.upgrading.due_ns()
    }
}
