//! `rate-limit`: lets so many calls a second pass, after a token bucket. A call without a token waits until there is
//! one; when the queue is full, or its deadline comes earlier, it is refused with `RESOURCE_EXHAUSTED`.
//!
//! The calls that wait have reserved their tokens: the bucket has less than none then. It fills when it is looked at.

use std::ops::RangeInclusive;

use serde::Deserialize;
use starling_call::Status;

use crate::engine::{PolicyEngine, PolicyRequest, Verdict};
use crate::saved::{RestoreError, Saved, SavedReader};

const NS_PER_S: f64 = 1e9;
/// Calls a second.
const RATES: RangeInclusive<f64> = 1e-6..=1e9;
/// The version of the saved state.
const VERSION: u16 = 1;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// Calls a second, above 0. Missing: no limit.
    rate: Option<f64>,
    /// So many may pass at once after a pause.
    #[serde(default = "one")]
    burst: u32,
    /// So many may wait.
    #[serde(default)]
    queue: u32,
}

fn one() -> u32 {
    1
}

#[derive(Debug)]
pub(crate) struct RateLimit {
    /// Nanoseconds from one token to the next. 0: no limit.
    interval_ns: f64,
    burst: f64,
    queue: usize,
    /// What the bucket had, and when. Below 0: calls wait for so many.
    tokens: f64,
    at_ns: u64,
}

impl RateLimit {
    pub(crate) fn new(settings: Settings) -> Result<Self, String> {
        let interval_ns = match settings.rate {
            None => 0.0,
            Some(rate) if RATES.contains(&rate) => NS_PER_S / rate,
            Some(rate) => {
                return Err(format!(
                    "rate is {rate}: write calls a second, from {} to {}, or leave it out for no limit",
                    RATES.start(),
                    RATES.end()
                ));
            }
        };
        if settings.burst == 0 {
            return Err("burst is 0: no call could pass; write 1 at least".to_owned());
        }
        Ok(Self {
            interval_ns,
            burst: settings.burst.into(),
            queue: settings.queue as usize,
            tokens: settings.burst.into(),
            at_ns: 0,
        })
    }
}

impl PolicyEngine for RateLimit {
    fn on_request(&mut self, request: &mut PolicyRequest<'_>, held: usize) -> Verdict {
        if self.interval_ns == 0.0 {
            return Verdict::Pass;
        }
        let passed_ns = request.now_ns.saturating_sub(self.at_ns) as f64;
        self.tokens = (self.tokens + passed_ns / self.interval_ns).min(self.burst);
        self.at_ns = request.now_ns.max(self.at_ns);
        let wait_ns = (1.0 - self.tokens) * self.interval_ns;
        if wait_ns < 1.0 {
            self.tokens -= 1.0;
            return Verdict::Pass;
        }
        let timeout = request.options.timeout;
        if timeout.is_some_and(|timeout| (timeout.as_nanos() as f64) < wait_ns) {
            return Verdict::Refuse(Status::resource_exhausted(
                "the rate limit of this service would let the call pass after its deadline; it did not run",
            ));
        }
        if held >= self.queue {
            return Verdict::Refuse(Status::resource_exhausted(
                "the rate limit of this service is reached; the call did not run",
            ));
        }
        self.tokens -= 1.0;
        Verdict::Hold(request.now_ns.saturating_add(wait_ns as u64))
    }

    fn hears_ends(&self) -> bool {
        false
    }

    fn save(&self) -> Saved {
        Saved::new(VERSION)
            .with_u64(self.tokens.to_bits())
            .with_u64(self.at_ns)
    }

    fn restore(&mut self, saved: &mut SavedReader<'_>) -> Result<(), RestoreError> {
        saved.check_version(VERSION)?;
        let (tokens, at_ns) = (f64::from_bits(saved.u64()?), saved.u64()?);
        saved.end()?;
        if !tokens.is_finite() {
            return Err(RestoreError::Broken);
        }
        // Those that wait are asked again, or keep their times.
        self.tokens = tokens.clamp(0.0, self.burst);
        self.at_ns = at_ns;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use starling_call::{CallOptions, Code};

    use super::*;
    use crate::engines::testing::{MS, ask, ask_with, refusal, succeed};

    fn limit(rate: f64, burst: u32, queue: u32) -> RateLimit {
        let settings = Settings {
            rate: Some(rate),
            burst,
            queue,
        };
        RateLimit::new(settings).expect("settings")
    }

    /// How many of a number of calls pass at a time.
    fn passed(engine: &mut RateLimit, now_ns: u64, calls: usize) -> usize {
        let passes = |_: &usize| matches!(ask(engine, now_ns), Verdict::Pass);
        (0..calls).filter(passes).count()
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let mut engine = limit(1000.0, 10, 0);
        assert_eq!(passed(&mut engine, 5 * MS, 50), 10);
        for ms in 6..100 {
            assert_eq!(passed(&mut engine, ms * MS, 3), 1, "{ms}");
        }
        assert_eq!(passed(&mut engine, 1000 * MS, 50), 10, "the bucket is full");
        assert_eq!(
            refusal(ask(&mut engine, 1000 * MS)),
            Some(Code::ResourceExhausted)
        );
    }

    #[test]
    fn calls_wait_for_their_token_in_order_unless_their_deadline_is_earlier() {
        let mut engine = limit(1000.0, 1, 2);
        assert!(matches!(ask(&mut engine, 0), Verdict::Pass));
        let mut options = CallOptions::with_timeout(Duration::from_micros(1500));
        for (held, at_ms) in [(0, 1), (1, 2)] {
            let verdict = ask_with(&mut engine, 0, &mut CallOptions::default(), held);
            assert!(
                matches!(verdict, Verdict::Hold(at_ns) if at_ns == at_ms * MS),
                "{verdict:?}"
            );
            let late = ask_with(&mut engine, 0, &mut options, 0);
            assert_eq!(
                refusal(late),
                Some(Code::ResourceExhausted),
                "2 ms are too late"
            );
        }
        assert!(refusal(ask_with(&mut engine, 0, &mut CallOptions::default(), 2)).is_some());
        // None of those that were refused has taken a token.
        let next = ask_with(&mut engine, MS, &mut options, 1);
        assert!(refusal(next).is_some());
        let next = ask_with(&mut engine, MS, &mut CallOptions::default(), 1);
        assert!(
            matches!(next, Verdict::Hold(at_ns) if at_ns == 3 * MS),
            "{next:?}"
        );
    }

    #[test]
    fn a_successor_with_another_rate_goes_on_with_the_bucket() {
        let mut engine = limit(1000.0, 10, 0);
        assert_eq!(passed(&mut engine, 0, 50), 10);
        let mut faster = limit(2000.0, 10, 0);
        succeed(&engine, &mut faster);
        assert_eq!(passed(&mut faster, 0, 50), 0, "it is as empty as before");
        assert_eq!(passed(&mut faster, 2 * MS, 50), 4, "it fills faster");
        let broken = Saved::new(VERSION).with_u64(f64::NAN.to_bits()).with_u64(0);
        let restored = faster.restore(&mut broken.reader());
        assert_eq!(restored, Err(RestoreError::Broken));
    }

    #[test]
    fn without_a_rate_all_pass_and_a_wrong_one_is_refused() {
        let new = |rate, burst| {
            RateLimit::new(Settings {
                rate,
                burst,
                queue: 0,
            })
        };
        let mut unlimited = new(None, 1).expect("settings");
        assert_eq!(passed(&mut unlimited, 0, 1000), 1000);
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(new(Some(rate), 1).is_err(), "{rate}");
        }
        assert!(new(Some(1.0), 0).is_err());
    }
}
