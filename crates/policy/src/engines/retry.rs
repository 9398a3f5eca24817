//! `retry`: makes calls again that have failed (gRPC A6), as many as its budget allows.
//!
//! ```text
//!  failed ─▶ one of the codes? ─▶ attempts left? ─▶ time left? ─▶ budget left? ─▶ after a pause, again
//!                                  └ the server says when, or never (pushback)
//! ```

mod budget;

use serde::Deserialize;
use starling_balance::{Failure, MAX_ATTEMPTS, Random, RetryPolicy};
use starling_call::Code;

use self::budget::Budget;
use crate::engine::{NextAttempt, PolicyEngine, PolicyFailure, PolicyRequest, Retries, Verdict};
use crate::saved::{RestoreError, Saved, SavedReader};
use crate::settings::{FailureCode, Share, Time};

/// The version of the saved state.
const VERSION: u16 = 1;
/// How much longer each pause is than the one before.
const MULTIPLIER: f64 = 2.0;
/// The highest floor, attempts a second.
const MAX_FLOOR: f64 = 1e6;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// The most attempts of a call, the first one included.
    #[serde(default = "three")]
    attempts: u32,
    /// The codes after which it is made again.
    #[serde(default = "unavailable")]
    codes: Vec<FailureCode>,
    /// Before the second attempt. Each further pause is twice as long.
    #[serde(default = "five_ms")]
    pause: Time,
    /// The longest pause.
    #[serde(default = "half_a_second")]
    longest: Time,
    /// Further attempts, as a share of calls.
    #[serde(default = "a_tenth")]
    budget: Share,
    /// Further attempts a second beside them.
    #[serde(default = "one")]
    floor: f64,
    /// Whether calls are made again that may have run.
    #[serde(default)]
    idempotent: bool,
}

fn three() -> u32 {
    3
}

fn unavailable() -> Vec<FailureCode> {
    vec![FailureCode(Code::Unavailable)]
}

fn five_ms() -> Time {
    Time::from_millis(5)
}

fn half_a_second() -> Time {
    Time::from_millis(500)
}

fn a_tenth() -> Share {
    Share(0.1)
}

fn one() -> f64 {
    1.0
}

#[derive(Debug)]
pub(crate) struct Retry {
    attempts: u32,
    policy: RetryPolicy,
    is_idempotent: bool,
    budget: Budget,
    random: Random,
}

impl Retry {
    pub(crate) fn new(settings: Settings) -> Result<Self, String> {
        let Settings {
            attempts,
            codes,
            pause,
            longest,
            budget,
            floor,
            idempotent,
        } = settings;
        if !(2..=MAX_ATTEMPTS).contains(&attempts) {
            return Err(format!(
                "attempts is {attempts}: write 2 to {MAX_ATTEMPTS}, the first one included"
            ));
        }
        if codes.is_empty() {
            return Err(
                "codes is empty: no call would be made again; write one at least".to_owned(),
            );
        }
        if pause.as_ns() == 0 || pause.as_ns() > longest.as_ns() {
            return Err(
                "pause is 0, or longer than longest: write a time from which pauses can grow"
                    .to_owned(),
            );
        }
        if !(0.0..=MAX_FLOOR).contains(&floor) {
            return Err(format!(
                "floor is {floor}: write attempts a second, from 0 to {MAX_FLOOR}"
            ));
        }
        let budget = Budget::new(budget.0, floor).ok_or(
            "budget is 0, and floor below 0.1: no call would be made again; raise one of them",
        )?;
        let policy = RetryPolicy::default()
            .max_attempts(attempts)
            .backoff(pause.0, longest.0, MULTIPLIER)
            .codes(codes.iter().map(|code| code.0));
        Ok(Self {
            attempts,
            policy,
            is_idempotent: idempotent,
            budget,
            random: Random::new(0),
        })
    }
}

impl PolicyEngine for Retry {
    fn on_request(&mut self, request: &mut PolicyRequest<'_>, _held: usize) -> Verdict {
        self.budget.add_call(request.now_ns);
        Verdict::Pass
    }

    fn retries(&self) -> Retries {
        match self.is_idempotent {
            true => Retries::All,
            false => Retries::NotRun,
        }
    }

    fn on_failure(
        &mut self,
        failure: &PolicyFailure<'_>,
        retry: &mut starling_balance::Retry,
    ) -> NextAttempt {
        let &PolicyFailure {
            now_ns,
            deadline_ns,
            status,
        } = failure;
        let failure = Failure::of(status);
        let pause_ns = retry.handle_failure(&self.policy, failure, None, &mut self.random);
        let at_ns = pause_ns.map(|pause_ns| now_ns.saturating_add(pause_ns));
        // What failed says more than that there was no time for another attempt.
        let is_early = |at_ns: &u64| deadline_ns.is_none_or(|deadline_ns| *at_ns < deadline_ns);
        let Some(at_ns) = at_ns.filter(is_early) else {
            return NextAttempt::None;
        };
        match self.budget.take(now_ns) {
            true => NextAttempt::At {
                at_ns,
                is_last: retry.failed() + 1 >= self.attempts,
            },
            false => NextAttempt::OverBudget,
        }
    }

    fn seed(&mut self, random: u64) {
        self.random = Random::new(random);
    }

    fn save(&self) -> Saved {
        let (tokens, at_ns) = self.budget.state();
        Saved::new(VERSION)
            .with_u64(tokens.to_bits())
            .with_u64(at_ns)
    }

    fn restore(&mut self, saved: &mut SavedReader<'_>) -> Result<(), RestoreError> {
        saved.check_version(VERSION)?;
        let state = (f64::from_bits(saved.u64()?), saved.u64()?);
        saved.end()?;
        match self.budget.restore(state) {
            true => Ok(()),
            false => Err(RestoreError::Broken),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use starling_balance::PUSHBACK_KEY;
    use starling_call::{Metadata, Status};

    use super::*;
    use crate::engines::testing::{MS, ask, succeed};

    type Attempts = starling_balance::Retry;

    fn new(settings: Value) -> Result<Retry, String> {
        let settings = serde_json::from_value(settings);
        Retry::new(settings.map_err(|error| error.to_string())?)
    }

    fn retry(settings: Value) -> Retry {
        new(settings).expect("settings")
    }

    /// What becomes of a call of which an attempt fails at a time.
    fn fail_with(
        engine: &mut Retry,
        attempts: &mut Attempts,
        now_ns: u64,
        status: &Status,
        deadline_ns: Option<u64>,
    ) -> NextAttempt {
        let failure = PolicyFailure {
            now_ns,
            deadline_ns,
            status,
        };
        engine.on_failure(&failure, attempts)
    }

    fn fail(engine: &mut Retry, attempts: &mut Attempts, now_ns: u64, code: Code) -> NextAttempt {
        let status = Status::new(code, "no");
        fail_with(engine, attempts, now_ns, &status, None)
    }

    fn pushback(value: &str) -> Status {
        let mut metadata = Metadata::new();
        metadata.insert(PUSHBACK_KEY, value).expect("there is room");
        Status::unavailable("later").with_metadata(metadata)
    }

    #[test]
    fn a_call_is_made_again_with_growing_pauses_until_its_attempts_are_used_up() {
        let settings = json!({"attempts": 5, "pause": "10ms", "longest": "25ms", "floor": 1000});
        let mut engine = retry(settings);
        let (mut first, mut seen) = (Vec::new(), [(u64::MAX, 0); 4]);
        for _ in 0..100 {
            let mut attempts = Attempts::default();
            for (number, seen) in seen.iter_mut().enumerate() {
                let next = fail(&mut engine, &mut attempts, 7 * MS, Code::Unavailable);
                let NextAttempt::At { at_ns, is_last } = next else {
                    panic!("{number}: {next:?}");
                };
                assert_eq!(is_last, number == 3);
                *seen = (seen.0.min(at_ns - 7 * MS), seen.1.max(at_ns - 7 * MS));
                if number == 0 {
                    first.push(at_ns);
                }
            }
            let over = fail(&mut engine, &mut attempts, 7 * MS, Code::Unavailable);
            assert_eq!(over, NextAttempt::None);
        }
        for ((least, most), ms) in seen.into_iter().zip([10, 20, 25, 25]) {
            assert!(least >= ms * MS * 8 / 10 && most <= ms * MS * 12 / 10);
        }
        first.dedup();
        assert!(first.len() > 90, "pauses are random");
    }

    #[test]
    fn other_codes_are_answers() {
        let mut engine = retry(json!({"codes": ["ABORTED", "INTERNAL"]}));
        for code in Code::ALL.into_iter().skip(1) {
            let next = fail(&mut engine, &mut Attempts::default(), MS, code);
            let is_meant = matches!(code, Code::Aborted | Code::Internal);
            assert_eq!(matches!(next, NextAttempt::At { .. }), is_meant, "{code}");
        }
    }

    #[test]
    fn more_than_the_budget_is_refused_and_counts_as_that() {
        let mut engine = retry(json!({"budget": 0.25, "floor": 0}));
        let mut made = 0;
        for _ in 0..100 {
            assert!(matches!(ask(&mut engine, MS), Verdict::Pass));
            match fail(&mut engine, &mut Attempts::default(), MS, Code::Unavailable) {
                NextAttempt::At { .. } => made += 1,
                next => assert_eq!(next, NextAttempt::OverBudget),
            }
        }
        assert_eq!(made, 25);
        // What is not made again anyhow takes nothing of it.
        (0..4).for_each(|_| assert!(matches!(ask(&mut engine, MS), Verdict::Pass)));
        fail(&mut engine, &mut Attempts::default(), MS, Code::NotFound);
        let late = Some(MS + 1);
        let status = Status::unavailable("no");
        fail_with(&mut engine, &mut Attempts::default(), MS, &status, late);
        let next = fail(&mut engine, &mut Attempts::default(), MS, Code::Unavailable);
        assert!(matches!(next, NextAttempt::At { .. }));
    }

    #[test]
    fn the_server_says_when_or_never_and_the_deadline_comes_first() {
        let mut engine = retry(json!({}));
        let mut next = |value, deadline_ns| {
            let status = pushback(value);
            fail_with(
                &mut engine,
                &mut Attempts::default(),
                MS,
                &status,
                deadline_ns,
            )
        };
        let at = |ms: u64| NextAttempt::At {
            at_ns: ms * MS,
            is_last: false,
        };
        assert_eq!(next("20", None), at(21));
        assert_eq!(next("20", Some(22 * MS)), at(21));
        assert_eq!(next("20", Some(21 * MS)), NextAttempt::None);
        assert_eq!(next("-1", None), NextAttempt::None);
        assert_eq!(next("soon", None), NextAttempt::None);
    }

    #[test]
    fn a_successor_goes_on_with_the_budget() {
        let settings = json!({"floor": 1, "budget": 0});
        let made = |engine: &mut Retry, now_ns| {
            let is_made = |_: &usize| {
                let next = fail(engine, &mut Attempts::default(), now_ns, Code::Unavailable);
                matches!(next, NextAttempt::At { .. })
            };
            (0..100).filter(is_made).count()
        };
        let mut engine = retry(settings.clone());
        assert_eq!(made(&mut engine, MS), 10);
        let mut next = retry(settings.clone());
        succeed(&engine, &mut next);
        assert_eq!(made(&mut next, MS), 0, "it is used up");
        assert!(made(&mut next, 20_000 * MS) > 5, "it comes back");
        for tokens in [f64::NAN, -1.0] {
            let broken = Saved::new(VERSION).with_u64(tokens.to_bits()).with_u64(0);
            let restored = next.restore(&mut broken.reader());
            assert_eq!(restored, Err(RestoreError::Broken));
        }
    }

    #[test]
    fn settings_that_cannot_be_are_refused_with_the_reason() {
        for (settings, expected) in [
            (json!({"attempts": 1}), "attempts is 1: write 2 to 5"),
            (json!({"attempts": 6}), "attempts is 6: write 2 to 5"),
            (json!({"codes": []}), "codes is empty"),
            (json!({"codes": ["OK"]}), "\"OK\" is no code of a failure"),
            (json!({"pause": "0ms"}), "pause is 0"),
            (json!({"pause": "2s"}), "longer than longest"),
            (json!({"budget": 1.5}), "1.5 is no share"),
            (
                json!({"budget": 0, "floor": 0}),
                "budget is 0, and floor below",
            ),
            (json!({"floor": -1}), "floor is -1"),
            (json!({"hedge": true}), "unknown field `hedge`"),
        ] {
            let error = new(settings.clone()).expect_err("no settings");
            assert!(error.contains(expected), "{settings}: {error}");
        }
        assert_eq!(retry(json!({})).retries(), Retries::NotRun);
        assert_eq!(retry(json!({"idempotent": true})).retries(), Retries::All);
    }
}
