//! One attempt after the other (gRPC A6, "Retry Policy").

use std::time::Duration;

use starling_call::{Code, Status};

use crate::backoff::Backoff;
use crate::code_set::CodeSet;
use crate::pushback::{PUSHBACK_KEY, Pushback};
use crate::random::Random;
use crate::throttle::Throttle;

/// The most attempts of one call. A policy that asks for more gets these, as in gRPC.
pub const MAX_ATTEMPTS: u32 = 5;

/// The key of the metadata in which an attempt says how many came before it.
pub const PREVIOUS_ATTEMPTS_KEY: &str = "grpc-previous-rpc-attempts";

/// How an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its code.
    pub code: Code,
    /// What the server says about another attempt.
    pub pushback: Pushback,
}

impl Failure {
    /// What the status of an attempt says.
    pub fn of(status: &Status) -> Self {
        let metadata = status.metadata();
        Self {
            code: status.code(),
            pushback: Pushback::parse(metadata.and_then(|it| it.value(PUSHBACK_KEY))),
        }
    }
}

/// When a call that failed is made again. Only for methods that may run more than once: an attempt that
/// failed may have run.
///
/// A stream that fails begins again only if its server has answered nothing of it. Until then its client sends one
/// request: a message and then the end are two. A server answers the first one at once if more may follow. So a
/// stream of responses begins again until its first response; a stream of requests, mostly, only if the server could
/// not take it.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    max_attempts: u32,
    backoff: Backoff,
    codes: CodeSet,
}

impl Default for RetryPolicy {
    /// Four attempts, 5 ms, 10 ms and 20 ms apart, after UNAVAILABLE.
    fn default() -> Self {
        Self {
            max_attempts: 4,
            backoff: Backoff {
                initial: Duration::from_millis(5),
                max: Duration::from_millis(500),
                multiplier: 2.0,
                jitter: 0.2,
            },
            codes: CodeSet::of([Code::Unavailable]),
        }
    }
}

impl RetryPolicy {
    /// The most attempts, the first one included: 2 to 5; others are taken for the nearest of these.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.clamp(2, MAX_ATTEMPTS);
        self
    }

    /// The pause before the second attempt, the longest pause, and how much longer each is than the one
    /// before. Each pause is up to a fifth longer or shorter, at random. A multiplier that is no positive
    /// number counts as 1.
    #[must_use]
    pub fn backoff(mut self, initial: Duration, max: Duration, multiplier: f64) -> Self {
        self.backoff.initial = initial;
        self.backoff.max = max;
        self.backoff.multiplier = match multiplier.is_finite() && multiplier > 0.0 {
            true => multiplier,
            false => 1.0,
        };
        self
    }

    /// The codes after which a call is made again, in place of UNAVAILABLE.
    #[must_use]
    pub fn codes(mut self, codes: impl IntoIterator<Item = Code>) -> Self {
        self.codes = CodeSet::of(codes);
        self
    }

    pub(crate) fn code_set(mut self, codes: CodeSet) -> Self {
        self.codes = codes;
        self
    }
}

/// The attempts of one call that has a retry policy.
#[derive(Debug, Default)]
pub struct Retry {
    failed: u32,
    /// Since the server last said when to come back.
    pauses: u32,
}

impl Retry {
    /// Attempts that have failed.
    pub fn failed(&self) -> u32 {
        self.failed
    }

    /// Takes in that an attempt failed. Returns how many nanoseconds later the next one begins, if there is
    /// one.
    pub fn handle_failure(
        &mut self,
        policy: &RetryPolicy,
        failure: Failure,
        throttle: Option<&Throttle>,
        random: &mut Random,
    ) -> Option<u64> {
        self.failed += 1;
        let is_retryable = policy.codes.contains(failure.code);
        let is_forbidden = failure.pushback == Pushback::Never;
        if let Some(throttle) = throttle
            && (is_retryable || is_forbidden)
        {
            throttle.record_failure();
        }
        if !is_retryable
            || is_forbidden
            || self.failed >= policy.max_attempts
            || throttle.is_some_and(|throttle| !throttle.allows())
        {
            return None;
        }
        if let Pushback::AfterNs(pause_ns) = failure.pushback {
            self.pauses = 0;
            return Some(pause_ns);
        }
        let pause_ns = policy.backoff.pause_ns(self.pauses, random);
        self.pauses += 1;
        Some(pause_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::throttle::Throttling;

    fn failure(code: Code) -> Failure {
        let pushback = Pushback::None;
        Failure { code, pushback }
    }

    fn policy() -> RetryPolicy {
        let backoff = (Duration::from_millis(10), Duration::from_millis(25), 2.0);
        RetryPolicy::default()
            .max_attempts(5)
            .backoff(backoff.0, backoff.1, backoff.2)
            .codes([Code::Unavailable, Code::Aborted])
    }

    fn about(pause_ns: Option<u64>, ms: u64) -> bool {
        let exact_ns = ms * 1_000_000;
        pause_ns.is_some_and(|ns| (exact_ns * 8 / 10..=exact_ns * 12 / 10).contains(&ns))
    }

    #[test]
    fn a_call_is_made_again_with_growing_pauses_until_its_attempts_are_used_up() {
        let (mut retry, mut random) = (Retry::default(), Random::new(1));
        let mut fail = |code| retry.handle_failure(&policy(), failure(code), None, &mut random);
        for (code, ms) in [
            (Code::Unavailable, 10),
            (Code::Aborted, 20),
            (Code::Unavailable, 25),
            (Code::Unavailable, 25),
        ] {
            let pause_ns = fail(code);
            assert!(about(pause_ns, ms), "{pause_ns:?} beside {ms} ms");
        }
        assert_eq!(fail(Code::Unavailable), None, "five attempts are the most");
    }

    #[test]
    fn other_codes_end_the_call_at_once() {
        for code in Code::ALL {
            let (mut retry, mut random) = (Retry::default(), Random::new(1));
            let next = retry.handle_failure(&policy(), failure(code), None, &mut random);
            let is_retryable = matches!(code, Code::Unavailable | Code::Aborted);
            assert_eq!(next.is_some(), is_retryable, "{code}");
        }
    }

    #[test]
    fn the_server_says_when_and_the_pauses_then_begin_anew() {
        let (mut retry, mut random) = (Retry::default(), Random::new(1));
        let mut fail = |pushback| {
            let code = Code::Unavailable;
            let failure = Failure { code, pushback };
            retry.handle_failure(&policy(), failure, None, &mut random)
        };
        assert!(about(fail(Pushback::None), 10));
        assert!(about(fail(Pushback::None), 20));
        assert_eq!(fail(Pushback::AfterNs(7)), Some(7));
        assert!(about(fail(Pushback::None), 10));
        // The attempts count all the same.
        assert_eq!(fail(Pushback::AfterNs(7)), None);
    }

    #[test]
    fn a_server_that_wants_no_more_gets_no_more() {
        let (mut retry, mut random) = (Retry::default(), Random::new(1));
        let failure = Failure {
            code: Code::Unavailable,
            pushback: Pushback::Never,
        };
        let next = retry.handle_failure(&policy(), failure, None, &mut random);
        assert_eq!(next, None);
    }

    #[test]
    fn a_channel_on_which_much_fails_makes_no_second_attempts() {
        let throttle = Throttle::new(Throttling::new(4, 1.0).expect("valid"));
        let mut random = Random::new(1);
        let mut fail = |code, pushback| {
            let failure = Failure { code, pushback };
            let mut retry = Retry::default();
            retry.handle_failure(&policy(), failure, Some(&throttle), &mut random)
        };
        // A failure that says nothing of the server's health does not count.
        for _ in 0..10 {
            assert_eq!(fail(Code::InvalidArgument, Pushback::None), None);
        }
        assert!(fail(Code::Unavailable, Pushback::None).is_some());
        assert!(
            fail(Code::Unavailable, Pushback::None).is_none(),
            "half are left"
        );
        throttle.record_success();
        throttle.record_success();
        assert!(fail(Code::NotFound, Pushback::Never).is_none());
        assert!(
            fail(Code::Unavailable, Pushback::None).is_none(),
            "that counted"
        );
    }

    #[test]
    fn settings_out_of_range_are_taken_for_the_nearest_ones() {
        let day = Duration::from_secs(86_400);
        assert_eq!(policy().max_attempts(0), policy().max_attempts(2));
        assert_eq!(policy().max_attempts(99), policy().max_attempts(5));
        for multiplier in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let (odd, one) = (policy(), policy().backoff(day, day, 1.0));
            assert_eq!(odd.backoff(day, day, multiplier), one);
        }
    }
}
