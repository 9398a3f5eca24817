//! Several attempts at once (gRPC A6, "Hedging Policy").
//!
//! ```text
//!  0        delay     2 delay
//!  attempt 1 ─────────────────────────▶ the first success ends the call and cancels the others
//!           attempt 2 ────────▶ a failure that is not fatal: the next attempt begins at once
//!                     attempt 3 ──▶
//! ```

use std::time::Duration;

use starling_call::Code;

use crate::code_set::CodeSet;
use crate::pushback::Pushback;
use crate::retry::{Failure, MAX_ATTEMPTS};
use crate::throttle::Throttle;

/// When a call is made once more although no attempt has failed. Only for methods that may run more than
/// once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HedgingPolicy {
    max_attempts: u32,
    delay_ns: u64,
    non_fatal: CodeSet,
}

impl HedgingPolicy {
    /// Another attempt after each `delay` without an answer, at most so many in all: 2 to 5; others are taken
    /// for the nearest of these. Without a delay all begin at once.
    pub fn new(max_attempts: u32, delay: Duration) -> Self {
        Self {
            max_attempts: max_attempts.clamp(2, MAX_ATTEMPTS),
            delay_ns: u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX),
            non_fatal: CodeSet::EMPTY,
        }
    }

    /// The codes of a failed attempt after which the others go on. Any other one ends the call.
    #[must_use]
    pub fn non_fatal(mut self, codes: impl IntoIterator<Item = Code>) -> Self {
        self.non_fatal = CodeSet::of(codes);
        self
    }

    pub(crate) fn non_fatal_set(mut self, codes: CodeSet) -> Self {
        self.non_fatal = codes;
        self
    }
}

/// What a hedged call does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HedgingStep {
    /// It makes another attempt.
    Attempt,
    /// It waits for its attempts, and at this time it may make another one.
    WaitUntil(u64),
    /// It waits for its attempts.
    Wait,
    /// All attempts have failed, and there are no others: it ends as the last one did.
    Over,
}

/// The attempts of one hedged call. Times are nanoseconds of any clock that does not go back.
#[derive(Debug, Default)]
pub struct Hedging {
    made: u32,
    failed: u32,
    /// When the next attempt may begin.
    next_at: u64,
    /// No attempt follows.
    stopped: bool,
}

impl Hedging {
    /// Attempts that were made.
    pub fn made(&self) -> u32 {
        self.made
    }

    /// What to do now. An attempt counts as made when this says so.
    pub fn poll(
        &mut self,
        policy: &HedgingPolicy,
        now: u64,
        throttle: Option<&Throttle>,
    ) -> HedgingStep {
        let is_first = self.made == 0;
        if self.made >= policy.max_attempts {
            self.stopped = true;
        }
        if !self.stopped && (is_first || now >= self.next_at) {
            if is_first || throttle.is_none_or(Throttle::allows) {
                self.made += 1;
                self.next_at = now.saturating_add(policy.delay_ns);
                return HedgingStep::Attempt;
            }
            self.stopped = true;
        }
        match (self.stopped, self.failed == self.made) {
            (true, true) => HedgingStep::Over,
            (true, false) => HedgingStep::Wait,
            (false, _) => HedgingStep::WaitUntil(self.next_at),
        }
    }

    /// No attempt follows those that were made.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// The attempt that [`Hedging::poll`] asked for last was not made, and none follows.
    pub fn withdraw(&mut self) {
        self.made -= 1;
        self.stopped = true;
    }

    /// Takes in that an attempt failed. True: the call ends with this failure, and its other attempts are
    /// cancelled.
    pub fn handle_failure(
        &mut self,
        policy: &HedgingPolicy,
        now: u64,
        failure: Failure,
        throttle: Option<&Throttle>,
    ) -> bool {
        self.failed += 1;
        let is_fatal = !policy.non_fatal.contains(failure.code);
        let is_forbidden = failure.pushback == Pushback::Never;
        if let Some(throttle) = throttle
            && (!is_fatal || is_forbidden)
        {
            throttle.record_failure();
        }
        match failure.pushback {
            Pushback::Never => self.stopped = true,
            Pushback::AfterNs(pause_ns) => self.next_at = now.saturating_add(pause_ns),
            Pushback::None => self.next_at = now,
        }
        is_fatal
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::throttle::Throttling;

    const DELAY: u64 = 500;

    fn policy() -> HedgingPolicy {
        HedgingPolicy::new(3, Duration::from_nanos(DELAY)).non_fatal([Code::Unavailable])
    }

    fn fails(pushback: Pushback) -> Failure {
        let code = Code::Unavailable;
        Failure { code, pushback }
    }

    #[test]
    fn an_attempt_follows_after_each_delay_until_all_are_made() {
        let mut call = Hedging::default();
        let mut poll = |now| call.poll(&policy(), now, None);
        assert_eq!(poll(0), HedgingStep::Attempt);
        assert_eq!(poll(0), HedgingStep::WaitUntil(DELAY));
        assert_eq!(poll(DELAY - 1), HedgingStep::WaitUntil(DELAY));
        assert_eq!(poll(DELAY), HedgingStep::Attempt);
        assert_eq!(poll(DELAY + 5), HedgingStep::WaitUntil(2 * DELAY));
        assert_eq!(poll(2 * DELAY + 7), HedgingStep::Attempt);
        assert_eq!(poll(9 * DELAY), HedgingStep::Wait);
    }

    #[test]
    fn without_a_delay_all_attempts_begin_at_once() {
        let policy = HedgingPolicy::new(4, Duration::ZERO);
        let mut call = Hedging::default();
        for _ in 0..4 {
            assert_eq!(call.poll(&policy, 9, None), HedgingStep::Attempt);
        }
        assert_eq!(call.poll(&policy, 9, None), HedgingStep::Wait);
        assert_eq!(call.made(), 4);
    }

    #[test]
    fn a_failure_that_is_not_fatal_has_the_next_attempt_begin_at_once() {
        let mut call = Hedging::default();
        assert_eq!(call.poll(&policy(), 0, None), HedgingStep::Attempt);
        assert!(!call.handle_failure(&policy(), 10, fails(Pushback::None), None));
        assert_eq!(call.poll(&policy(), 10, None), HedgingStep::Attempt);
        // The one after it waits for its delay.
        assert_eq!(
            call.poll(&policy(), 11, None),
            HedgingStep::WaitUntil(10 + DELAY)
        );
        assert!(!call.handle_failure(&policy(), 20, fails(Pushback::None), None));
        assert_eq!(call.poll(&policy(), 20, None), HedgingStep::Attempt);
        assert_eq!(call.poll(&policy(), 21, None), HedgingStep::Wait);
        assert!(!call.handle_failure(&policy(), 30, fails(Pushback::None), None));
        assert_eq!(call.poll(&policy(), 30, None), HedgingStep::Over);
    }

    #[test]
    fn a_fatal_failure_ends_the_call() {
        let mut call = Hedging::default();
        call.poll(&policy(), 0, None);
        let fatal = Failure {
            code: Code::InvalidArgument,
            pushback: Pushback::None,
        };
        assert!(call.handle_failure(&policy(), 10, fatal, None));
    }

    #[test]
    fn the_server_says_when_the_next_attempt_may_begin_or_that_none_may() {
        let mut call = Hedging::default();
        call.poll(&policy(), 0, None);
        assert!(!call.handle_failure(&policy(), 10, fails(Pushback::AfterNs(100)), None));
        assert_eq!(call.poll(&policy(), 10, None), HedgingStep::WaitUntil(110));
        assert_eq!(call.poll(&policy(), 110, None), HedgingStep::Attempt);
        assert!(!call.handle_failure(&policy(), 120, fails(Pushback::Never), None));
        assert_eq!(call.poll(&policy(), 9999, None), HedgingStep::Over);
    }

    #[test]
    fn a_server_that_wants_no_more_does_not_end_what_is_under_way() {
        let mut call = Hedging::default();
        call.poll(&policy(), 0, None);
        call.poll(&policy(), DELAY, None);
        assert!(!call.handle_failure(&policy(), 600, fails(Pushback::Never), None));
        assert_eq!(call.poll(&policy(), 9999, None), HedgingStep::Wait);
    }

    #[test]
    fn a_channel_on_which_much_fails_makes_only_first_attempts() {
        let throttle = Throttle::new(Throttling::new(2, 1.0).expect("valid"));
        throttle.record_failure();
        let mut call = Hedging::default();
        let mut poll = |now| call.poll(&policy(), now, Some(&throttle));
        assert_eq!(poll(0), HedgingStep::Attempt);
        assert_eq!(poll(DELAY), HedgingStep::Wait);
        throttle.record_success();
        assert_eq!(poll(2 * DELAY), HedgingStep::Wait, "it was decided");
    }

    #[test]
    fn without_room_the_attempts_that_were_made_are_all() {
        let mut call = Hedging::default();
        call.poll(&policy(), 0, None);
        call.stop();
        assert_eq!(call.poll(&policy(), DELAY, None), HedgingStep::Wait);
        let mut call = Hedging::default();
        call.poll(&policy(), 0, None);
        assert_eq!(call.poll(&policy(), DELAY, None), HedgingStep::Attempt);
        call.withdraw();
        assert_eq!(call.made(), 1);
        assert!(!call.handle_failure(&policy(), 600, fails(Pushback::None), None));
        assert_eq!(call.poll(&policy(), 600, None), HedgingStep::Over);
    }
}
