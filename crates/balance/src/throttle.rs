//! Fewer attempts while many calls fail (gRPC A6, "Throttling Retry Attempts and Hedged RPCs").

use std::sync::atomic::{AtomicU32, Ordering};

/// A token is counted in thousandths.
const TOKEN: u32 = 1000;

/// How many failures a channel takes before it makes no more second attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttling {
    /// In thousandths.
    max_tokens: u32,
    /// In thousandths.
    ratio: u32,
}

impl Throttling {
    /// A channel begins with `max_tokens`, at most 1000. A failure takes one, a success returns `ratio` of
    /// one. With half of them or fewer there are no second attempts. None if one of the numbers is 0, too
    /// large or no number; thousandths of a token are the finest.
    pub fn new(max_tokens: u32, ratio: f64) -> Option<Self> {
        let is_valid = (1..=1000).contains(&max_tokens) && ratio > 0.0 && ratio.is_finite();
        let ratio = (ratio * f64::from(TOKEN))
            .floor()
            .min(f64::from(1000 * TOKEN));
        (is_valid && ratio >= 1.0).then_some(Self {
            max_tokens: max_tokens * TOKEN,
            ratio: ratio as u32,
        })
    }
}

/// The tokens of one channel.
#[derive(Debug)]
pub struct Throttle {
    settings: Throttling,
    tokens: AtomicU32,
}

impl Throttle {
    /// All tokens are there.
    pub fn new(settings: Throttling) -> Self {
        Self {
            settings,
            tokens: AtomicU32::new(settings.max_tokens),
        }
    }

    /// A call succeeded.
    pub fn record_success(&self) {
        let Throttling { max_tokens, ratio } = self.settings;
        // Mostly all are there, and a load is enough.
        if self.tokens.load(Ordering::Relaxed) < max_tokens {
            self.update(|tokens| tokens.saturating_add(ratio).min(max_tokens));
        }
    }

    /// An attempt failed with a code that asks for another one, or the server asked for no more.
    pub fn record_failure(&self) {
        self.update(|tokens| tokens.saturating_sub(TOKEN));
    }

    /// Whether second attempts may be made.
    pub fn allows(&self) -> bool {
        self.tokens.load(Ordering::Relaxed) > self.settings.max_tokens / 2
    }

    fn update(&self, next: impl Fn(u32) -> u32) {
        let update = |tokens| Some(next(tokens));
        // Never fails: the closure never returns `None`.
        let _ = (self.tokens).fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_stop_at_half_of_the_tokens_and_go_on_above() {
        let throttle = Throttle::new(Throttling::new(4, 0.5).expect("valid"));
        throttle.record_success();
        for allowed in [true, false, false] {
            throttle.record_failure();
            assert_eq!(throttle.allows(), allowed);
        }
        // One token is left, and two are half.
        for allowed in [false, false, true] {
            throttle.record_success();
            assert_eq!(throttle.allows(), allowed);
        }
    }

    #[test]
    fn tokens_stay_between_none_and_all() {
        let throttle = Throttle::new(Throttling::new(2, 0.001).expect("valid"));
        (0..10).for_each(|_| throttle.record_failure());
        (0..1000).for_each(|_| throttle.record_success());
        assert!(!throttle.allows(), "one token of two");
        throttle.record_success();
        assert!(throttle.allows());
        (0..10_000).for_each(|_| throttle.record_success());
        throttle.record_failure();
        assert!(!throttle.allows(), "no more than all were there");
    }

    #[test]
    fn settings_that_say_nothing_are_refused() {
        for (max, ratio) in [
            (0, 0.1),
            (1001, 0.1),
            (10, 0.0),
            (10, -1.0),
            (10, f64::NAN),
            (10, f64::INFINITY),
            (10, 0.0009),
        ] {
            assert_eq!(Throttling::new(max, ratio), None, "{max} {ratio}");
        }
        assert_eq!(Throttling::new(10, 0.5466), Throttling::new(10, 0.546));
    }
}
