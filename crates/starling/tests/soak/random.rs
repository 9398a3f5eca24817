//! Random choices from a seed: splitmix64 (Steele, Lea, Flood: OOPSLA 2014).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut state: u64) -> u64 {
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// The choices of one thread or task.
pub(crate) struct Random(u64);

impl Random {
    /// The choices of an actor that has this number.
    pub(crate) fn new(seed: u64, actor: u64) -> Self {
        Self(mix(seed ^ mix(actor.wrapping_mul(STEP))))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Less than `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn micros(&mut self, bound: u64) -> Duration {
        Duration::from_micros(self.below(bound))
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// For somebody else.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.next())
    }
}

/// Choices that threads share: one atomic, so that a signal handler and a waker may use it.
pub(crate) struct SharedRandom(AtomicU64);

impl SharedRandom {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn seed(&self, seed: u64) {
        self.0.store(seed, Ordering::Relaxed);
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        mix(self.0.fetch_add(STEP, Ordering::Relaxed)) % bound
    }
}
