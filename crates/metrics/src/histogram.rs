//! Histograms of fixed memory.
//!
//! Durations have log-linear buckets: four for each power of two, so a quantile is off by an eighth at most
//! (HdrHistogram's idea, with two significant bits). Sizes have one bucket for each power of two. A value that
//! equals the bound of a bucket is in it, as Prometheus has it.
//!
//! ```text
//!  ns   128   160   192   224   256   320   384   448   512 ...  2^36
//!      ──┤─────┤─────┤─────┤─────┤─────┤─────┤─────┤─────┤──   ──┤ beyond
//! ```

use crate::cells::{Cell, Writers};

/// Buckets for each power of two: 2 to the power of this.
const SUB_BITS: u32 = 2;
/// The first bucket of durations ends at 2 to the power of this, in nanoseconds.
const FIRST_BITS: u32 = 7;
/// The last one but one ends at 2 to the power of this: 69 s.
const LAST_BITS: u32 = 36;
/// Buckets of a histogram of durations.
pub(crate) const DURATIONS: usize = (((LAST_BITS - FIRST_BITS) << SUB_BITS) + 2) as usize;
/// Buckets of a histogram of sizes: up to 0 or 1 byte, 2, 4, ... 2^32, and beyond.
const SIZES: usize = 34;

/// The bucket of a duration.
#[inline(always)]
pub(crate) fn duration_bucket(ns: u64) -> usize {
    // One less, so that a bucket's bound is in it.
    let value = ns.saturating_sub(1).max((1 << FIRST_BITS) - 1);
    if value < 1 << FIRST_BITS {
        return 0;
    }
    let bits = u64::BITS - 1 - value.leading_zeros();
    let sub = (value >> (bits - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    let bucket = (((bits - FIRST_BITS) << SUB_BITS) as usize) + sub as usize + 1;
    bucket.min(DURATIONS - 1)
}

/// The largest duration in a bucket; `None`: it has no bound.
const fn duration_bound_ns(bucket: usize) -> Option<u64> {
    if bucket + 1 >= DURATIONS {
        return None;
    }
    let (octave, sub) = (bucket as u32 >> SUB_BITS, bucket as u64 & 3);
    Some(((1 << SUB_BITS) + sub) << (FIRST_BITS + octave - SUB_BITS))
}

/// The bucket of a size.
#[inline(always)]
fn size_bucket(bytes: usize) -> usize {
    let bits = u64::BITS - (bytes as u64).saturating_sub(1).leading_zeros();
    (bits as usize).min(SIZES - 1)
}

/// The bounds by which durations are exported: each power of two, from 256 ns to 69 s.
pub const DURATION_BOUNDS_NS: [u64; (LAST_BITS - FIRST_BITS) as usize] = {
    let mut bounds = [0; (LAST_BITS - FIRST_BITS) as usize];
    let mut at = 0;
    while at < bounds.len() {
        bounds[at] = 1 << (FIRST_BITS as usize + 1 + at);
        at += 1;
    }
    bounds
};

/// The bounds by which sizes are exported: each power of four, from 16 bytes to 4 GiB.
pub const SIZE_BOUNDS: [u64; 15] = {
    let mut bounds = [0; 15];
    let mut at = 0;
    while at < bounds.len() {
        bounds[at] = 1 << (4 + 2 * at);
        at += 1;
    }
    bounds
};

/// Durations in nanoseconds.
#[derive(Debug)]
pub(crate) struct Durations {
    buckets: [Cell; DURATIONS],
    sum_ns: Cell,
}

impl Default for Durations {
    fn default() -> Self {
        Self {
            buckets: std::array::from_fn(|_| Cell::default()),
            sum_ns: Cell::default(),
        }
    }
}

impl Durations {
    /// Records so many calls that took so long each.
    #[inline(always)]
    pub(crate) fn record(&self, ns: u64, calls: u64, writers: Writers) {
        let sum_ns = ns.saturating_mul(calls);
        self.record_sum(duration_bucket(ns), calls, sum_ns, writers);
    }

    /// Records so many calls whose durations are of one bucket and have this sum.
    #[inline(always)]
    pub(crate) fn record_sum(&self, bucket: usize, calls: u64, sum_ns: u64, writers: Writers) {
        self.buckets[bucket].add(calls, writers);
        self.sum_ns.add(sum_ns, writers);
    }

    pub(crate) fn totals(&self) -> HistogramTotals {
        HistogramTotals::of(&self.buckets, &self.sum_ns)
    }

    pub(crate) fn cells(&self) -> (&[Cell], &Cell) {
        (&self.buckets, &self.sum_ns)
    }
}

/// Sizes in bytes.
#[derive(Debug)]
pub(crate) struct Sizes {
    buckets: [Cell; SIZES],
    sum: Cell,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            buckets: std::array::from_fn(|_| Cell::default()),
            sum: Cell::default(),
        }
    }
}

impl Sizes {
    #[inline(always)]
    pub(crate) fn record(&self, bytes: usize, messages: u64, writers: Writers) {
        self.buckets[size_bucket(bytes)].add(messages, writers);
        self.sum
            .add((bytes as u64).saturating_mul(messages), writers);
    }

    pub(crate) fn totals(&self) -> HistogramTotals {
        HistogramTotals::of(&self.buckets, &self.sum)
    }

    pub(crate) fn cells(&self) -> (&[Cell], &Cell) {
        (&self.buckets, &self.sum)
    }
}

/// The counts of a histogram at one moment, or a sum of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramTotals {
    /// Values by bucket. Empty if there are none.
    buckets: Vec<u64>,
    sum: u64,
}

impl HistogramTotals {
    fn of(buckets: &[Cell], sum: &Cell) -> Self {
        Self {
            buckets: buckets.iter().map(Cell::value).collect(),
            sum: sum.value(),
        }
    }

    /// Adds another one of the same kind.
    pub(crate) fn add(&mut self, other: &Self) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (own, other) in self.buckets.iter_mut().zip(&other.buckets) {
            *own += other;
        }
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Their sum, in nanoseconds or bytes.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// How many durations are within each of [`DURATION_BOUNDS_NS`].
    pub fn within_durations(&self) -> impl Iterator<Item = (u64, u64)> {
        let bounds = DURATION_BOUNDS_NS.into_iter();
        bounds.map(|bound| (bound, self.within(duration_bucket(bound))))
    }

    /// How many sizes are within each of [`SIZE_BOUNDS`].
    pub fn within_sizes(&self) -> impl Iterator<Item = (u64, u64)> {
        let bounds = SIZE_BOUNDS.into_iter();
        bounds.map(|bound| (bound, self.within(size_bucket(bound as usize))))
    }

    /// How many values are in the buckets up to this one.
    fn within(&self, bucket: usize) -> u64 {
        self.buckets.iter().take(bucket + 1).sum()
    }

    /// A duration that this share of the values (0 to 1) does not exceed, in nanoseconds: the bound of its
    /// bucket. `None` if there are no values; `u64::MAX` beyond the last bound.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let count = self.count();
        let rank = ((count as f64 * share).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|values| {
            seen += values;
            seen >= rank
        })?;
        Some(duration_bound_ns(bucket).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bounds_are_in_their_buckets_and_grow() {
        let mut last = 0;
        for bucket in 0..DURATIONS - 1 {
            let bound = duration_bound_ns(bucket).expect("a bound");
            assert!(bound > last);
            assert_eq!(
                (duration_bucket(bound), duration_bucket(bound + 1)),
                (bucket, bucket + 1)
            );
            last = bound;
        }
        assert_eq!(last, 1 << LAST_BITS);
        assert_eq!(duration_bucket(u64::MAX), DURATIONS - 1);
        for (bytes, bucket) in [
            (0, 0),
            (1, 0),
            (2, 1),
            (3, 2),
            (4, 2),
            (5, 3),
            (1 << 32, 32),
        ] {
            assert_eq!(size_bucket(bytes), bucket, "{bytes}");
        }
        assert_eq!(size_bucket(usize::MAX), SIZES - 1);
        assert_eq!((SIZE_BOUNDS[0], SIZE_BOUNDS[14]), (16, 1 << 32));
    }

    proptest! {
        #[test]
        fn a_quantile_is_at_most_a_quarter_above_the_value(
            mut values in proptest::collection::vec(128_u64..1 << LAST_BITS, 1..200),
            share in 0.0..=1.0_f64,
        ) {
            let durations = Durations::default();
            for value in &values {
                durations.record(*value, 1, Writers::One);
            }
            values.sort_unstable();
            let rank = ((values.len() as f64 * share).ceil() as usize).clamp(1, values.len());
            let (exact, totals) = (values[rank - 1], durations.totals());
            let found = totals.quantile_ns(share).expect("values");
            prop_assert!(found >= exact && found <= exact + exact / 4 + 1, "{found} {exact}");
            prop_assert_eq!(totals.count(), values.len() as u64);
            prop_assert_eq!(totals.sum(), values.iter().sum::<u64>());
            for (bound, within) in totals.within_durations() {
                let exact = values.iter().filter(|value| **value <= bound).count() as u64;
                prop_assert_eq!(within, exact);
            }
        }

        #[test]
        fn sizes_are_counted_by_their_bounds(values in proptest::collection::vec(0_usize..1 << 34, 0..100)) {
            let sizes = Sizes::default();
            for (index, value) in values.iter().enumerate() {
                let writers = [Writers::One, Writers::Many][index % 2];
                sizes.record(*value, 1, writers);
            }
            let totals = sizes.totals();
            prop_assert_eq!(totals.sum(), values.iter().map(|value| *value as u64).sum::<u64>());
            for (bound, within) in totals.within_sizes() {
                let exact = values.iter().filter(|value| **value as u64 <= bound).count() as u64;
                prop_assert_eq!(within, exact);
            }
        }
    }

    #[test]
    fn nothing_has_no_quantile() {
        assert_eq!(HistogramTotals::default().quantile_ns(0.5), None);
        assert_eq!(Durations::default().totals().quantile_ns(0.5), None);
    }
}
