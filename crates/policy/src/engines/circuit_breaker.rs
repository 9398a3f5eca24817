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
    /// Open until then, if it is.
    open_until_ns: Option<u64>,
    /// The call that tries is not over.
    is_trying: bool,
}

impl CircuitBreaker {
    pub(crate) fn new(settings: Settings) -> Result<Self, String> {
        if settings.failures == 0 {
            return Err("failures is 0: no call could pass; write 1 at least".to_owned());
        }
        Ok(Self {
            settings,
            in_a_row: 0,
            open_until_ns: None,
            is_trying: false,
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
        let Some(until_ns) = self.open_until_ns else {
            return Verdict::Pass;
        };
        if request.now_ns < until_ns {
            return Verdict::Refuse(Status::unavailable(
                "the circuit breaker of this service is open after failures in a row; the call did not run",
            ));
        }
        // The next one, if this one gets no end in this time.
        self.open_until_ns = Some(request.now_ns + self.settings.pause.as_ns());
        self.is_trying = true;
        Verdict::Pass
    }

    fn on_end(&mut self, end: &PolicyEnd) {
        if !is_failure(end.code) {
            // Calls from before it opened say nothing of how the server is now.
            if self.open_until_ns.is_none() || self.is_trying {
                self.in_a_row = 0;
                self.open_until_ns = None;
                self.is_trying = false;
            }
            return;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        let opens = self.open_until_ns.is_none() && self.in_a_row >= self.settings.failures;
        if opens || self.is_trying {
            self.open_until_ns = Some(end.now_ns + self.settings.pause.as_ns());
            self.is_trying = false;
        }
    }

    fn save(&self) -> Saved {
        Saved::new(VERSION)
            .with_u64(self.in_a_row.into())
            .with_u64(self.open_until_ns.map_or(0, |until_ns| until_ns.max(1)))
            .with_u64(self.is_trying.into())
    }

    fn restore(&mut self, saved: &mut SavedReader<'_>) -> Result<(), RestoreError> {
        saved.check_version(VERSION)?;
        let in_a_row = u32::try_from(saved.u64()?).map_err(|_| RestoreError::Broken)?;
        let (until_ns, is_trying) = (saved.u64()?, saved.u64()? != 0);
        saved.end()?;
        self.in_a_row = in_a_row;
        self.open_until_ns = (until_ns != 0).then_some(until_ns);
        self.is_trying = is_trying;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::testing::{MS, ask, end, refusal, succeed};

    fn breaker() -> CircuitBreaker {
        let settings = Settings {
            failures: 3,
            pause: Time::from_millis(10),
        };
        CircuitBreaker::new(settings).expect("settings")
    }

    fn passes(engine: &mut CircuitBreaker, now_ns: u64) -> bool {
        match ask(engine, now_ns) {
            Verdict::Pass => true,
            verdict => {
                assert_eq!(refusal(verdict), Some(Code::Unavailable));
                false
            }
        }
    }

    fn open(now_ns: u64) -> CircuitBreaker {
        let mut engine = breaker();
        for _ in 0..3 {
            assert!(passes(&mut engine, now_ns));
            end(&mut engine, now_ns, Code::Unavailable);
        }
        engine
    }

    #[test]
    fn it_opens_after_failures_in_a_row_only() {
        let mut engine = breaker();
        for _ in 0..3 {
            end(&mut engine, 0, Code::Unavailable);
            end(&mut engine, 0, Code::DeadlineExceeded);
            // An answer, though not the one that was hoped for.
            end(&mut engine, 0, Code::NotFound);
        }
        assert!(passes(&mut engine, 0));
        for _ in 0..3 {
            end(&mut engine, 0, Code::Internal);
        }
        assert!(!passes(&mut engine, 0));
    }

    #[test]
    fn one_call_tries_and_decides() {
        let mut engine = open(0);
        // One from before it opened.
        end(&mut engine, MS, Code::Ok);
        assert!(!passes(&mut engine, 9 * MS));
        assert!(passes(&mut engine, 10 * MS));
        assert!(!passes(&mut engine, 11 * MS), "one at a time");
        end(&mut engine, 12 * MS, Code::Unavailable);
        assert!(!passes(&mut engine, 21 * MS));
        assert!(passes(&mut engine, 22 * MS));
        end(&mut engine, 23 * MS, Code::Ok);
        assert!(passes(&mut engine, 23 * MS) && passes(&mut engine, 23 * MS));
    }

    #[test]
    fn a_call_that_tries_and_never_ends_does_not_keep_it_open() {
        let mut engine = open(0);
        assert!(passes(&mut engine, 10 * MS));
        assert!(!passes(&mut engine, 19 * MS));
        assert!(passes(&mut engine, 20 * MS));
    }

    #[test]
    fn a_successor_is_as_open_as_its_predecessor() {
        let engine = open(5 * MS);
        let mut next = breaker();
        succeed(&engine, &mut next);
        assert!(!passes(&mut next, 14 * MS));
        assert!(passes(&mut next, 15 * MS));
    }
}
