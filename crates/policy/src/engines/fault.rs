//! `fault`: has a share of calls fail, or arrive later, to see how applications take it.

use serde::Deserialize;
use starling_call::{Code, Status};

use crate::engine::{PolicyEngine, PolicyRequest, Verdict};
use crate::random::Random;
use crate::saved::{RestoreError, Saved, SavedReader};
use crate::settings::{FailureCode, Share, Time};

/// The version of the saved state.
const VERSION: u16 = 1;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// The share of calls that fail.
    #[serde(default = "none")]
    fail: Share,
    /// With which code.
    #[serde(default = "unavailable")]
    code: FailureCode,
    /// The share of the others that arrive later.
    #[serde(default = "none")]
    delay: Share,
    /// By how much.
    #[serde(default = "no_time")]
    by: Time,
    /// What is drawn follows from this number.
    #[serde(default)]
    seed: u64,
}

fn none() -> Share {
    Share(0.0)
}

fn unavailable() -> FailureCode {
    FailureCode(Code::Unavailable)
}

fn no_time() -> Time {
    Time::from_millis(0)
}

/// Calls that are held back at once, at most: the others pass.
const MAX_HELD: usize = 10_000;

#[derive(Debug)]
pub(crate) struct Fault {
    settings: Settings,
    random: Random,
}

impl Fault {
    pub(crate) fn new(settings: Settings) -> Result<Self, String> {
        let random = Random(settings.seed);
        Ok(Self { settings, random })
    }

    /// Whether one of this share is drawn.
    fn draws(&mut self, share: Share) -> bool {
        ((self.random.next() >> 11) as f64) < share.0 * (1_u64 << 53) as f64
    }
}

impl PolicyEngine for Fault {
    fn on_request(&mut self, request: &mut PolicyRequest<'_>, held: usize) -> Verdict {
        if self.draws(self.settings.fail) {
            let text = "a fault that this service injects; the call did not run";
            return Verdict::Refuse(Status::new(self.settings.code.0, text));
        }
        match self.draws(self.settings.delay) && held < MAX_HELD {
            true => Verdict::Hold(request.now_ns + self.settings.by.as_ns()),
            false => Verdict::Pass,
        }
    }

    fn hears_ends(&self) -> bool {
        false
    }

    fn save(&self) -> Saved {
        Saved::new(VERSION).with_u64(self.random.0)
    }

    fn restore(&mut self, saved: &mut SavedReader<'_>) -> Result<(), RestoreError> {
        saved.check_version(VERSION)?;
        let drawn = saved.u64()?;
        saved.end()?;
        self.random = Random(drawn);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::testing::{ask, refusal, succeed};

    fn fault(fail: f64, delay: f64) -> Fault {
        let settings = Settings {
            fail: Share(fail),
            code: FailureCode(Code::Aborted),
            delay: Share(delay),
            by: Time::from_millis(3),
            seed: 1,
        };
        Fault::new(settings).expect("settings")
    }

    /// Of a thousand calls: how many fail, and how many come later.
    fn counts(engine: &mut Fault) -> (usize, usize) {
        let (mut failed, mut late) = (0, 0);
        for _ in 0..1000 {
            match ask(engine, 7) {
                Verdict::Hold(at_ns) => {
                    assert_eq!(at_ns, 3_000_007);
                    late += 1;
                }
                verdict => {
                    let code = refusal(verdict);
                    assert!(code.is_none_or(|code| code == Code::Aborted));
                    failed += usize::from(code.is_some());
                }
            }
        }
        (failed, late)
    }

    #[test]
    fn the_shares_are_kept() {
        assert_eq!(counts(&mut fault(0.0, 0.0)), (0, 0));
        assert_eq!(counts(&mut fault(1.0, 1.0)), (1000, 0));
        assert_eq!(counts(&mut fault(0.0, 1.0)), (0, 1000));
        let (failed, late) = counts(&mut fault(0.1, 0.5));
        assert!((70..130).contains(&failed), "{failed}");
        assert!((400..500).contains(&late), "{late}");
    }

    #[test]
    fn a_successor_draws_what_its_predecessor_would_have() {
        let mut engine = fault(0.5, 0.0);
        counts(&mut engine);
        let mut next = fault(0.5, 0.0);
        assert_ne!(counts(&mut next), counts(&mut engine), "from another state");
        succeed(&engine, &mut next);
        assert_eq!(counts(&mut next), counts(&mut engine));
    }
}
