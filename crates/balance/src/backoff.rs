//! Pauses that grow with each failure.

use std::time::Duration;

use crate::random::Random;

/// Pauses between attempts: the first is `initial`, each next one `multiplier` times as long, at most `max`;
/// each give or take a share of it at random, so that many clients do not come back at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The first pause.
    pub initial: Duration,
    /// The longest pause, before the jitter.
    pub max: Duration,
    /// How much longer each pause is than the one before.
    pub multiplier: f64,
    /// The largest share of a pause that is added or taken away, 0 to 1.
    pub jitter: f64,
}

impl Backoff {
    /// The pause after so many failures in a row before this one, in nanoseconds.
    pub fn pause_ns(&self, failures: u32, random: &mut Random) -> u64 {
        let (initial, max) = (self.initial.as_secs_f64(), self.max.as_secs_f64());
        let exponent = i32::try_from(failures).unwrap_or(i32::MAX);
        // Beyond the range of numbers it is infinite, and `min` bounds it.
        let pause = (initial * self.multiplier.powi(exponent)).min(max);
        let factor = 1.0 + self.jitter * (2.0 * random.fraction() - 1.0);
        // `as` bounds what does not fit.
        (pause * factor * 1e9) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff {
        initial: Duration::from_millis(100),
        max: Duration::from_secs(1),
        multiplier: 2.0,
        jitter: 0.2,
    };

    #[test]
    fn pauses_double_up_to_the_longest_give_or_take_a_fifth() {
        let mut random = Random::new(3);
        for (failures, ms) in [
            (0, 100),
            (1, 200),
            (2, 400),
            (3, 800),
            (4, 1000),
            (99, 1000),
        ] {
            let mut seen = (u64::MAX, 0);
            for _ in 0..1000 {
                let pause_ns = BACKOFF.pause_ns(failures, &mut random);
                seen = (seen.0.min(pause_ns), seen.1.max(pause_ns));
            }
            let exact_ns = ms * 1_000_000;
            assert!(seen.0 >= exact_ns * 8 / 10 && seen.1 <= exact_ns * 12 / 10);
            assert!(seen.0 < exact_ns * 82 / 100 && seen.1 > exact_ns * 118 / 100);
        }
    }

    #[test]
    fn extreme_settings_give_a_pause_all_the_same() {
        let mut random = Random::new(3);
        let none = Backoff {
            jitter: 0.0,
            ..BACKOFF
        };
        assert_eq!(none.pause_ns(0, &mut random), 100_000_000);
        let shrinking = Backoff {
            multiplier: 0.5,
            ..none
        };
        assert_eq!(shrinking.pause_ns(u32::MAX, &mut random), 0);
        let endless = Backoff {
            max: Duration::MAX,
            ..none
        };
        assert_eq!(endless.pause_ns(u32::MAX, &mut random), u64::MAX);
    }
}
