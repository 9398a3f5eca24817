//! Calls that a policy makes again when they have failed.
//!
//! ```text
//!  passes `retry` ─▶ policies behind it ─▶ forward: the request is kept ─▶ server
//!        ▲                  │ refuse                                       │ fails
//!        └── held ◀─────────┴──────── the policy says when ◀───────────────┘
//! ```
//!
//! No call runs twice unless a policy allows it for its method: that is looked at here, whatever an engine says.

use starling_endpoint::{MethodId, Status, unsent_message};
use starling_policy::{NextAttempt, PolicyFailure, Retries};

use super::held::{FIRST_TIMED, Held};
use super::{Policies, Runtime};
use crate::attempts::Attempts;
use crate::datapath::Passed;
use crate::link::Arrived;
use crate::runtime::calls::Forwarded;
use crate::runtime::routes::{RouteId, RouteState};
use crate::shared::Shared;

impl Policies {
    /// Whether the policy that makes a call again still does, also if an attempt may have run.
    fn makes_again(&self, attempts: &Attempts, method: MethodId) -> bool {
        let attached = self.get(attempts.by);
        attached.is_some_and(|attached| {
            let retries = match attempts.may_have_run {
                // In this very scope, which names methods: another one may leave the call out.
                true => {
                    attached.retries == Retries::All
                        && attached.scope_id == attempts.scope_id
                        && !attached.methods.is_empty()
                }
                false => attached.retries != Retries::None,
            };
            retries && attached.applies_to(method)
        })
    }

    /// Whether a call may run again that waits for its next attempt.
    pub(super) fn may_run_again(&self, arrived: &Arrived) -> bool {
        let attempts = arrived.passed.attempts.as_deref();
        attempts.is_some_and(|it| self.makes_again(it, arrived.request.method))
    }

    /// When a call is made again of which an attempt has failed. `None`: it is not.
    fn next_attempt(
        &mut self,
        attempts: &mut Attempts,
        method: MethodId,
        status: &Status,
    ) -> Option<u64> {
        attempts.may_have_run |= status.may_have_run();
        if attempts.is_last || !self.makes_again(attempts, method) {
            return None;
        }
        let failure = PolicyFailure {
            now_ns: self.now_ns,
            deadline_ns: attempts.deadline_ns,
            status,
        };
        let attached = self.get_mut(attempts.by)?;
        let next = {
            let mut engine = attached.engine.lock();
            if engine.version != attached.version && attempts.may_have_run {
                // Other settings may not allow it.
                return None;
            }
            engine.engine.on_failure(&failure, &mut attempts.retry)
        };
        match next {
            NextAttempt::None => None,
            NextAttempt::OverBudget => {
                attached.counts.refused += 1;
                None
            }
            NextAttempt::At { at_ns, is_last } => {
                attached.counts.delayed += 1;
                attempts.is_last = is_last;
                Some(at_ns.max(FIRST_TIMED.0))
            }
        }
    }

    /// Has a call wait for its next attempt. Of the last one, the policies hear that saw it.
    fn hold_attempt(
        &mut self,
        route: RouteId,
        at_ns: u64,
        mut arrived: Arrived,
        failed: Status,
        shared: &Shared,
    ) {
        let Some(attempts) = &arrived.passed.attempts else {
            return;
        };
        let (by, beyond) = (attempts.by, attempts.passed);
        let (method, code) = (arrived.request.method, failed.code());
        self.end(&arrived.passed, beyond, method, code, shared);
        arrived.renew(self.now_ns, at_ns);
        let held = Held {
            by,
            since_ns: self.now_ns,
            route,
            arrived,
            is_asked: true,
            failed: Some(failed),
        };
        self.hold(at_ns, held);
    }
}

impl Runtime {
    /// Whether a call may be made again, here or elsewhere: no attempt may have run, or a policy allows it.
    pub(in crate::runtime) fn may_run_again(&self, passed: &Passed, method: MethodId) -> bool {
        let attempts = passed.attempts.as_deref();
        attempts.is_none_or(|it| !it.may_have_run || self.policies.makes_again(it, method))
    }

    /// An attempt has failed. Returns the call with its end, unless it is made again.
    pub(in crate::runtime) fn fail_attempt(
        &mut self,
        mut forwarded: Forwarded,
        mut status: Status,
    ) -> Option<(Forwarded, Status)> {
        let Forwarded {
            from,
            method,
            route,
            ..
        } = forwarded;
        let is_awaited = !forwarded.reply.is_cancelled();
        if unsent_message(&mut status).is_some() && is_awaited {
            self.make_elsewhere(from, forwarded.reply, &forwarded.passed, method);
            return None;
        }
        let Some(attempts) = forwarded.passed.attempts.as_deref_mut() else {
            return Some((forwarded, status));
        };
        let kept = attempts.take_kept();
        // Another route may have its number by now.
        let of = kept
            .as_ref()
            .and_then(|(peer, _)| self.routes.of(from, *peer));
        let may_go_on = is_awaited && of == Some(route);
        let at_ns = may_go_on.then(|| self.policies.next_attempt(attempts, method, &status));
        let (Some(at_ns), Some((peer, request))) = (at_ns.flatten(), kept) else {
            attempts.may_have_run |= status.may_have_run();
            let status = attempts.end_with(status);
            return Some((forwarded, status));
        };
        let Forwarded {
            reply,
            passed,
            charge,
            ..
        } = forwarded;
        let arrived = Arrived {
            peer,
            reply,
            request,
            passed,
            charge,
        };
        let shared = &self.shared;
        (self.policies).hold_attempt(route, at_ns, arrived, status, shared);
        let state = self.routes.get(route).map(|route| &route.state);
        if matches!(state, Some(RouteState::Leaving)) {
            for arrived in self.take_held_of(route) {
                self.refuse_leaving(from, arrived);
            }
        }
        None
    }

    /// A policy refuses a request: the call is over, unless one makes it again that it has passed.
    pub(super) fn refuse_attempt(&mut self, id: RouteId, mut arrived: Arrived, status: Status) {
        let Some(from) = self.routes.get(id).map(|route| route.from()) else {
            return;
        };
        let method = arrived.request.method;
        let mut status = status.with_not_run();
        if let Some(attempts) = arrived.passed.attempts.as_deref_mut() {
            if !arrived.reply.is_cancelled()
                && let Some(at_ns) = self.policies.next_attempt(attempts, method, &status)
            {
                let shared = &self.shared;
                return (self.policies).hold_attempt(id, at_ns, arrived, status, shared);
            }
            status = attempts.end_with(status);
        }
        self.refuse(from, arrived, status);
    }

    /// The policy no longer allows the next attempt for which a call waits: it is over, as its last one has ended.
    pub(super) fn end_attempts(&mut self, held: Held, failed: Status) {
        if let Some(from) = self.routes.get(held.route).map(|route| route.from()) {
            let failed = held.arrived.passed.end_with(failed);
            self.refuse(from, held.arrived, failed);
        }
    }
}
