//! Calls that are made several times at once.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use starling_balance::{Failure, Hedging, HedgingPolicy, HedgingStep};
use starling_endpoint::Status;

use super::attempts::with_attempts;
use super::buffer::Kept;
use super::throttle_of;
use crate::channel_call::{DeadlineTimer, RawCall, Shared};
use crate::plane::{CallResult, Operation};

/// The attempts of a call.
struct Attempts {
    shared: Arc<Shared>,
    kept: Option<Kept>,
    policy: HedgingPolicy,
    hedging: Hedging,
    begun: Instant,
    deadline: Option<Instant>,
    /// Those that are not over.
    calls: Vec<RawCall>,
    last: Option<Status>,
    /// One of those that are over.
    may_have_run: bool,
    timer: (u64, DeadlineTimer),
}

/// A call that is made once more after each delay without an answer. The first success ends it.
pub(super) async fn hedge(
    shared: Arc<Shared>,
    first: RawCall,
    kept: Option<Kept>,
    policy: HedgingPolicy,
    deadline: Option<Instant>,
) -> CallResult {
    let begun = shared.time.now();
    let mut attempts = Attempts {
        shared,
        kept,
        policy,
        hedging: Hedging::default(),
        begun,
        deadline,
        calls: vec![first],
        last: None,
        may_have_run: false,
        timer: (0, DeadlineTimer::default()),
    };
    // It begins now, not when it is first polled.
    let step = attempts.hedging.poll(&attempts.policy, 0, None);
    debug_assert_eq!(step, HedgingStep::Attempt);
    if attempts.kept.is_none() {
        attempts.hedging.stop();
    }
    poll_fn(|cx| attempts.poll(cx)).await
}

impl Attempts {
    /// The time so many nanoseconds after the call has begun.
    fn time_of(&self, at_ns: u64) -> Option<Instant> {
        self.begun.checked_add(Duration::from_nanos(at_ns))
    }

    fn is_too_late(&self, at_ns: u64) -> bool {
        let deadline = self.deadline;
        deadline.is_some_and(|deadline| self.time_of(at_ns).is_none_or(|until| until >= deadline))
    }

    fn now_ns(&self) -> u64 {
        let passed = (self.shared.time.now()).saturating_duration_since(self.begun);
        u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<CallResult> {
        loop {
            if let Poll::Ready(result) = self.poll_calls(cx) {
                return Poll::Ready(result);
            }
            let (now, throttle) = (self.now_ns(), throttle_of(&self.shared));
            match self.hedging.poll(&self.policy, now, throttle) {
                HedgingStep::Attempt => self.make_another(),
                HedgingStep::Wait => return Poll::Pending,
                HedgingStep::Over => {
                    let last = self.last.take();
                    let status = last.unwrap_or_else(|| Status::internal("no attempt was made"));
                    return Poll::Ready(Err(status));
                }
                // What failed says more than that there was no time for another attempt.
                HedgingStep::WaitUntil(at) if self.calls.is_empty() && self.is_too_late(at) => {
                    self.hedging.stop();
                }
                HedgingStep::WaitUntil(at) => {
                    if self.timer.0 != at {
                        self.timer = (at, DeadlineTimer::default());
                    }
                    let until = self.time_of(at);
                    if self.timer.1.poll(until, &self.shared, cx).is_pending() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    /// Looks at all attempts. Ready: one of them decides the call.
    fn poll_calls(&mut self, cx: &mut Context<'_>) -> Poll<CallResult> {
        let mut at = 0;
        while let Some(call) = self.calls.get_mut(at) {
            match call.poll(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(Ok(response)) => {
                    if let Some(throttle) = throttle_of(&self.shared) {
                        throttle.record_success();
                    }
                    // The others are cancelled now, not when the caller drops the future.
                    self.calls.clear();
                    return Poll::Ready(Ok(response));
                }
                Poll::Ready(Err(status)) => {
                    self.calls.remove(at);
                    let (now, throttle) = (self.now_ns(), throttle_of(&self.shared));
                    let failure = Failure::of(&status);
                    let is_final =
                        (self.hedging).handle_failure(&self.policy, now, failure, throttle);
                    // Those that are cancelled may have run, too.
                    self.may_have_run |= status.may_have_run();
                    let others = is_final && !self.calls.is_empty();
                    let status = with_attempts(status, self.may_have_run || others);
                    if is_final {
                        self.calls.clear();
                        return Poll::Ready(Err(status));
                    }
                    self.last = Some(status);
                }
            }
        }
        Poll::Pending
    }

    /// Makes another attempt, at another backend if there is one. A channel that is full makes none beside others: an
    /// attempt is worth less than another caller's call.
    fn make_another(&mut self) {
        let another = self.kept.as_ref().and_then(|kept| {
            let operation = || {
                let avoid = self.calls.iter().map(RawCall::backend).collect();
                Operation::Call(kept.again(self.hedging.made() - 1, avoid))
            };
            match self.calls.is_empty() {
                true => RawCall::again(&self.shared, operation()),
                false => RawCall::at_once(&self.shared, operation),
            }
        });
        match another {
            Some(call) => self.calls.push(call),
            None => self.hedging.withdraw(),
        }
    }
}
