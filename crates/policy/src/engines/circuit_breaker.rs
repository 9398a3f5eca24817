//! `circuit-breaker`: after failures in a row, refuses calls for a while with `UNAVAILABLE`, then tries one
//! (Nygard, Release It!, 2007).
//!
//! ```text
//!           failures in a row                pause over: one call
//!   closed ───────────────────▶ open ───────────────────────────▶ half open
//!     ▲                           ▲            it fails               │ │
//!     │                           └───────────────────────────────────┘ │
//!     └─────────────────────────────────────── it succeeds ─────────────┘
//! ```

use serde::Deserialize;
use starling_call::{Code, Status};

use crate::engine::{PolicyEnd, PolicyEngine, PolicyRequest, Verdict};
use crate::saved::{RestoreError, Saved, SavedReader};
use crate::settings::Time;

/// The version of the saved state.
const VERSION: u16 = 1;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// Failures in a row after which it opens, at least 1.
    failures: u32,
    /// How long it refuses calls then.
    pause: Time,
}

#[derive(Debug)]
pub(crate) struct CircuitBreaker {
    settings: Settings,
    in_a_row: u32,
    /// Since when it is open, if it is: calls are refused for a pause from then on.
    open_since_ns: Option<u64>,
    /// The call that tries, whose end decides.
    trying: Option<u64>,
}

impl CircuitBreaker {
    pub(crate) fn new(settings: Settings) -> Result<Self, String> {
        if settings.failures == 0 {
            return Err("failures is 0: no call could pass; write 1 at least".to_owned());
        }
        Ok(Self {
            settings,
            in_a_row: 0,
            open_since_ns: None,
            trying: None,
        })
    }
}

/// Whether a call that ended so says that its server is not well.
fn is_failure(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Internal
            | Code::Unknown
            | Code::DataLoss
    )
}

impl PolicyEngine for CircuitBreaker {
    fn on_request(&mut self, request: &mut PolicyRequest<'_>, _held: usize) -> Verdict {
        let Some(since_ns) = &mut self.open_since_ns else {
            return Verdict::Pass;
        };
        // A state may be of another clock.
        *since_ns = request.now_ns.min(*since_ns);
        if request.now_ns < since_ns.saturating_add(self.settings.pause.as_ns()) {
            return Verdict::Refuse(Status::unavailable(
                "the circuit breaker of this service is open after failures in a row; the call did not run",
            ));
        }
        // The next one tries after a pause, if this one has not ended then.
        self.open_since_ns = Some(request.now_ns);
        self.trying = Some(request.call);
        Verdict::Pass
    }

    fn on_end(&mut self, end: &PolicyEnd<'_>) {
        let was_trying = self.trying == Some(end.call);
        if was_trying {
            self.trying = None;
        }
        let is_open = self.open_since_ns.is_some();
        match end.code {
            // It says nothing of the server: the next one tries.
            Code::Cancelled if was_trying => self.open_since_ns = Some(0),
            Code::Cancelled => {}
            // While it is open, only the call that tries decides: others are from before.
            _ if is_open && !was_trying => {}
            code if is_failure(code) => {
                self.in_a_row = self.in_a_row.saturating_add(1);
                if was_trying || self.in_a_row >= self.settings.failures {
                    self.open_since_ns = Some(end.now_ns);
                }
            }
            _ => {
                self.in_a_row = 0;
                self.open_since_ns = None;
            }
        }
    }

    fn save(&self) -> Saved {
        // The call that tries ends at the successor, which does not know its number's meaning: another one tries.
        Saved::new(VERSION)
            .with_u64(self.in_a_row.into())
            .with_u64(self.open_since_ns.is_some().into())
            .with_u64(self.open_since_ns.unwrap_or(0))
    }

    fn restore(&mut self, saved: &mut SavedReader<'_>) -> Result<(), RestoreError> {
        saved.check_version(VERSION)?;
        let in_a_row = u32::try_from(saved.u64()?).map_err(|_| RestoreError::Broken)?;
        let (is_open, since_ns) = (saved.u64()? != 0, saved.u64()?);
        saved.end()?;
        self.in_a_row = in_a_row;
        self.open_since_ns = is_open.then_some(since_ns);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use starling_call::CallOptions;

    use super::*;
    use crate::engines::testing::{MS, ask_for, end, refusal, succeed};

    fn breaker(pause_ms: u64) -> CircuitBreaker {
        let settings = Settings {
            failures: 3,
            pause: Time::from_millis(pause_ms),
        };
        CircuitBreaker::new(settings).expect("settings")
    }

    fn passes(engine: &mut CircuitBreaker, call: u64, now_ns: u64) -> bool {
        match ask_for(engine, call, now_ns, &mut CallOptions::default(), 0) {
            Verdict::Pass => true,
            verdict => {
                assert_eq!(refusal(verdict), Some(Code::Unavailable));
                false
            }
        }
    }

    /// One that opens after calls 1 to 3.
    fn open(now_ns: u64) -> CircuitBreaker {
        let mut engine = breaker(10);
        for call in 1..=3 {
            assert!(passes(&mut engine, call, now_ns));
            end(&mut engine, call, now_ns, Code::Unavailable);
        }
        engine
    }

    #[test]
    fn it_opens_after_failures_in_a_row_only() {
        let mut engine = breaker(10);
        for call in 0..9 {
            // An answer, though not the one that was hoped for; and what was given up says nothing.
            let codes = [Code::Unavailable, Code::DeadlineExceeded, Code::NotFound];
            end(&mut engine, call, 0, codes[call as usize % 3]);
            end(&mut engine, call, 0, Code::Cancelled);
        }
        assert!(passes(&mut engine, 9, 0));
        for call in 10..13 {
            end(&mut engine, call, 0, Code::Cancelled);
            end(&mut engine, call, 0, Code::Internal);
        }
        assert!(!passes(&mut engine, 13, 0));
    }

    #[test]
    fn the_call_that_tries_decides_and_no_other() {
        let mut engine = open(0);
        assert!(!passes(&mut engine, 4, 9 * MS));
        assert!(passes(&mut engine, 5, 10 * MS));
        assert!(!passes(&mut engine, 6, 11 * MS), "one at a time");
        // Those from before it opened.
        end(&mut engine, 1, 11 * MS, Code::Ok);
        end(&mut engine, 2, 15 * MS, Code::Unavailable);
        assert!(!passes(&mut engine, 7, 16 * MS));
        end(&mut engine, 5, 17 * MS, Code::Unavailable);
        assert!(!passes(&mut engine, 8, 26 * MS));
        assert!(passes(&mut engine, 9, 27 * MS));
        end(&mut engine, 9, 28 * MS, Code::Ok);
        assert!(passes(&mut engine, 10, 28 * MS) && passes(&mut engine, 11, 28 * MS));
    }

    #[test]
    fn a_call_that_tries_and_is_given_up_or_never_ends_does_not_keep_it_open() {
        let mut engine = open(0);
        assert!(passes(&mut engine, 4, 10 * MS));
        end(&mut engine, 4, 11 * MS, Code::Cancelled);
        assert!(passes(&mut engine, 5, 11 * MS));
        assert!(!passes(&mut engine, 6, 20 * MS));
        assert!(passes(&mut engine, 7, 21 * MS));
        end(&mut engine, 5, 22 * MS, Code::Ok);
        assert!(!passes(&mut engine, 8, 22 * MS), "another tries by now");
    }

    #[test]
    fn a_successor_is_as_open_as_its_predecessor_for_its_own_pause() {
        let engine = open(5 * MS);
        for pause_ms in [10, 20] {
            let mut next = breaker(pause_ms);
            succeed(&engine, &mut next);
            assert!(!passes(&mut next, 4, (4 + pause_ms) * MS));
            assert!(passes(&mut next, 5, (5 + pause_ms) * MS));
        }
    }

    #[test]
    fn one_that_opened_in_the_future_is_open_for_a_pause_from_now_on() {
        let engine = open(1000 * MS);
        let mut next = breaker(10);
        succeed(&engine, &mut next);
        assert!(!passes(&mut next, 4, 5 * MS));
        assert!(!passes(&mut next, 5, 14 * MS));
        assert!(passes(&mut next, 6, 15 * MS));
    }
}
