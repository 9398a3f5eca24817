//! Durations, shares and codes in settings: how operators write them, and what is refused.

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use starling_call::Code;

/// A duration: a number and a unit, `250us`, `10ms`, `1.5s`, `2m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time(pub(crate) Duration);

/// The longest.
const MAX: Duration = Duration::from_secs(24 * 3600);

impl Time {
    pub(crate) const fn from_millis(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }

    pub(crate) fn as_ns(self) -> u64 {
        self.0.as_nanos() as u64
    }
}

/// Reads a number and a unit, `250us`, `10ms`, `1.5s`, `2m`, of a day at most. `None`: it is something else.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(digits);
    let unit_s = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return None,
    };
    let seconds = number.parse::<f64>().ok()? * unit_s;
    let time = Duration::try_from_secs_f64(seconds).ok()?;
    (time <= MAX).then_some(time)
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text).map(Self).ok_or_else(|| {
            D::Error::custom(format!(
                "{text:?} is no duration: write a number and a unit up to a day, like 250us, 10ms, 1.5s, 2m"
            ))
        })
    }
}

/// A share of calls, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share(pub(crate) f64);

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let share = f64::deserialize(deserializer)?;
        match (0.0..=1.0).contains(&share) {
            true => Ok(Self(share)),
            false => Err(D::Error::custom(format!(
                "{share} is no share of calls: write a number from 0 to 1"
            ))),
        }
    }
}

/// The code of a failure, by gRPC's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailureCode(pub(crate) Code);

impl<'de> Deserialize<'de> for FailureCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let mut codes = Code::ALL.iter().skip(1);
        let code = codes.find(|code| code.name() == name);
        code.copied().map(Self).ok_or_else(|| {
            D::Error::custom(format!(
                "{name:?} is no code of a failure: write one of gRPC's, like UNAVAILABLE"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_number_and_a_unit() {
        let parse = |text| parse_duration(text).map(|time| time.as_nanos());
        assert_eq!(parse("250us"), Some(250_000));
        assert_eq!(parse("1.5s"), Some(1_500_000_000));
        assert_eq!(parse("2m"), Some(120_000_000_000));
        assert_eq!(parse("0ms"), Some(0));
        for text in [
            "", "5", "ms", "-1s", "1h", "1e9s", "1.2.3s", "1441m", " 1s", "1ns",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn shares_and_codes_are_checked() {
        let share = |text| {
            serde_json::from_str::<Share>(text)
                .map(|share| share.0)
                .ok()
        };
        assert_eq!(
            (share("0"), share("0.25"), share("1")),
            (Some(0.0), Some(0.25), Some(1.0))
        );
        assert_eq!(
            (share("1.01"), share("-0.1"), share("\"1\"")),
            (None, None, None)
        );
        let code = |text| {
            serde_json::from_str::<FailureCode>(text)
                .map(|code| code.0)
                .ok()
        };
        assert_eq!(code("\"ABORTED\""), Some(Code::Aborted));
        assert_eq!(
            (code("\"OK\""), code("\"aborted\""), code("10")),
            (None, None, None)
        );
    }
}
