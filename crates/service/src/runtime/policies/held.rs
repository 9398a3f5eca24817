//! The requests that policies hold, and how they go on.

use std::time::Duration;

use starling_endpoint::Status;

use super::{Policies, Runtime};
use crate::datapath::PolicyId;
use crate::link::Arrived;
use crate::runtime::routes::RouteId;

/// When a request is due, and its number among those that are due then: the first comes first. Those that go behind
/// others are due at 0.
pub(super) type HeldKey = (u64, u64);
/// The first key of requests that do not go behind others.
pub(super) const FIRST_TIMED: HeldKey = (1, 0);
/// So many bytes of requests go on each round that go behind others, and at least one request.
const BYTES_BEHIND: usize = 64 << 10;

/// A request that a policy holds back.
pub(in crate::runtime) struct Held {
    pub(in crate::runtime) by: PolicyId,
    pub(in crate::runtime) since_ns: u64,
    pub(in crate::runtime) route: RouteId,
    pub(in crate::runtime) arrived: Arrived,
    /// Whether the policy has decided about it: else it is asked when the request goes on.
    pub(in crate::runtime) is_asked: bool,
    /// How its last attempt has ended, if it waits for the next one.
    pub(in crate::runtime) failed: Option<Status>,
}

impl Policies {
    /// When a request that is held is due.
    pub(in crate::runtime) fn due_ns(&self) -> Option<u64> {
        let ((due_ns, _), _) = self.held.first_key_value()?;
        Some(*due_ns)
    }

    /// Keeps a request until a time.
    pub(in crate::runtime) fn hold(&mut self, until_ns: u64, held: Held) {
        if let Some(attached) = self.get_mut(held.by) {
            attached.counts.held += 1;
            attached.engine.hold();
        }
        self.keep(until_ns, held);
    }

    /// The same for one that its policy counts already.
    fn keep(&mut self, until_ns: u64, mut held: Held) {
        let key = (until_ns, self.number());
        let waker = self.given_up.waker(key);
        self.given_up.watch(&mut held.arrived.reply, &waker, key);
        self.held.insert(key, held);
    }

    fn take(&mut self, key: HeldKey) -> Option<Held> {
        let held = self.held.remove(&key)?;
        self.end_hold(held.by);
        Some(held)
    }

    /// A policy holds a request less.
    pub(in crate::runtime) fn end_hold(&mut self, by: PolicyId) {
        if let Some(attached) = self.get_mut(by) {
            attached.counts.held -= 1;
            attached.engine.let_go();
        }
    }

    /// Takes out a request whose time has come, or whose caller has given up.
    fn take_over(&mut self) -> Option<Held> {
        while let Some(key) = self.given_up.pop() {
            // It may have gone on already.
            if let Some(held) = self.take(key) {
                return Some(held);
            }
        }
        let (key, _) = self.held.range(FIRST_TIMED..).next()?;
        match *key {
            key if key.0 <= self.now_ns => self.take(key),
            _ => None,
        }
    }

    /// Takes out a request that goes behind all others.
    fn take_behind(&mut self) -> Option<Held> {
        let (key, _) = self.held.range(..FIRST_TIMED).next()?;
        self.take(*key)
    }

    /// Takes out the requests of a route, with the times until which they are held.
    pub(in crate::runtime) fn take_of_route(&mut self, route: RouteId) -> Vec<(u64, Held)> {
        let of_route = self.held.iter().filter(|(_, held)| held.route == route);
        let keys: Vec<HeldKey> = of_route.map(|(key, _)| *key).collect();
        let taken = keys.into_iter().map(|key| (key.0, self.take(key)));
        taken
            .filter_map(|(until_ns, held)| Some((until_ns, held?)))
            .collect()
    }

    /// Takes out the requests that are held for a reason, in order.
    pub(super) fn take_held(&mut self, is_wanted: impl Fn(&Self, &Held) -> bool) -> Vec<Held> {
        let wanted = self.held.iter().filter(|(_, held)| is_wanted(self, held));
        let keys: Vec<HeldKey> = wanted.map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| self.take(key)).collect()
    }
}

impl Runtime {
    /// A policy holds a request, until a time, and counts it.
    pub(super) fn hold(
        &mut self,
        route: RouteId,
        by: PolicyId,
        until_ns: u64,
        mut arrived: Arrived,
    ) {
        arrived.passed.advance();
        let held = Held {
            by,
            since_ns: self.policies.now_ns,
            route,
            arrived,
            is_asked: true,
            failed: None,
        };
        self.policies.keep(until_ns, held);
    }

    /// A policy is asked about a request in the next round.
    pub(super) fn put_off(&mut self, route: RouteId, by: PolicyId, arrived: Arrived) {
        let now_ns = self.policies.now_ns;
        let held = Held {
            by,
            since_ns: now_ns,
            route,
            arrived,
            is_asked: false,
            failed: None,
        };
        self.policies.hold(now_ns + 1, held);
    }

    /// Has the requests go on whose time has come, and ends those whose callers have given up. Returns whether there
    /// were any.
    pub(in crate::runtime) fn release_held(&mut self) -> bool {
        if self.policies.held.is_empty() {
            return false;
        }
        let mut any = false;
        while let Some(held) = self.policies.take_over() {
            any = true;
            self.resume(held);
        }
        let mut bytes = 0;
        while bytes < BYTES_BEHIND
            && let Some(held) = self.policies.take_behind()
        {
            any = true;
            bytes += held.arrived.request.body().len();
            self.resume(held);
        }
        any
    }

    pub(super) fn resume(&mut self, held: Held) {
        self.go_on(held.route, held.since_ns, held.arrived, held.failed);
    }

    /// Has a request go on with the next policy, that has waited since a time: unless it is late, or its caller has
    /// given up. `failed`: how its last attempt has ended.
    pub(in crate::runtime) fn go_on(
        &mut self,
        route: RouteId,
        since_ns: u64,
        mut arrived: Arrived,
        failed: Option<Status>,
    ) {
        let took = Duration::from_nanos(self.policies.now_ns.saturating_sub(since_ns));
        let timeout = &mut arrived.request.options.timeout;
        *timeout = timeout.map(|timeout| timeout.saturating_sub(took));
        let is_late = *timeout == Some(Duration::ZERO);
        let over = match arrived.reply.cancellation().status() {
            // Its caller no longer waits.
            Some(why) => why,
            None if is_late => arrived.passed.end_with(failed.unwrap_or_else(|| {
                Status::deadline_exceeded(
                    "the deadline came while a policy of the service held the call",
                )
                .with_not_run()
            })),
            None => return self.pass(route, arrived),
        };
        if let Some(from) = self.routes.get(route).map(|route| route.from()) {
            self.refuse(from, arrived, over);
        }
    }

    /// The requests of a route that policies hold, which ends.
    pub(in crate::runtime) fn take_held_of(&mut self, route: RouteId) -> Vec<Arrived> {
        let held = self.policies.take_of_route(route).into_iter();
        held.map(|(_, held)| held.arrived).collect()
    }
}
