//! `timeout`: gives calls a deadline, if theirs is later or missing. A call that is not over then ends with
//! `DEADLINE_EXCEEDED`, and its server is told.

use std::time::Duration;

use serde::Deserialize;

use crate::engine::{PolicyEngine, PolicyRequest, Verdict};
use crate::settings::Time;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// The longest time of a call, at least 1 us.
    at_most: Time,
}

#[derive(Debug)]
pub(crate) struct Timeout {
    at_most: Duration,
}

impl Timeout {
    pub(crate) fn new(settings: Settings) -> Result<Self, String> {
        let Time(at_most) = settings.at_most;
        match at_most >= Duration::from_micros(1) {
            true => Ok(Self { at_most }),
            false => Err("at_most has to be 1us at least: no call could end in less".to_owned()),
        }
    }
}

impl PolicyEngine for Timeout {
    fn on_request(&mut self, request: &mut PolicyRequest<'_>, _held: usize) -> Verdict {
        let timeout = &mut request.options.timeout;
        *timeout = Some(timeout.map_or(self.at_most, |own| own.min(self.at_most)));
        Verdict::Pass
    }

    fn hears_ends(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use starling_call::CallOptions;

    use super::*;
    use crate::engines::testing::ask_with;

    #[test]
    fn the_earlier_deadline_counts() {
        let settings = |ms| Settings {
            at_most: Time::from_millis(ms),
        };
        let mut engine = Timeout::new(settings(10)).expect("settings");
        for (own, expected) in [(None, 10), (Some(3), 3), (Some(11), 10)] {
            let mut options = CallOptions {
                timeout: own.map(Duration::from_millis),
                ..CallOptions::default()
            };
            let verdict = ask_with(&mut engine, 0, &mut options, 0);
            assert!(matches!(verdict, Verdict::Pass));
            assert_eq!(options.timeout, Some(Duration::from_millis(expected)));
        }
        assert!(Timeout::new(settings(0)).is_err());
    }
}
