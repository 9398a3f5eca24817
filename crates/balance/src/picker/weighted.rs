//! A schedule in which each entry comes as often as its weight says (gRPC A58; the static stride scheduler of
//! gRPC in place of an earliest-deadline-first queue, which would need a lock).
//!
//! A counter goes round all entries, once in each *generation*. An entry is taken in as many of the
//! generations as its weight says, evenly spread, and left out in the others. The entry with the largest
//! weight is taken in every one, so a pick looks at each entry once at most.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::random::Random;

/// The weight of an entry that is taken in every generation.
const MAX: usize = u16::MAX as usize;
/// Weights are at most so many times the mean of all, and at least the mean divided by it: one odd report
/// neither takes all calls nor starves a backend.
const RATIO: f64 = 10.0;

#[derive(Debug)]
pub(super) struct Weighted {
    /// 1 to `MAX`, and one of them is `MAX`.
    weights: Vec<u16>,
    next: AtomicUsize,
    /// The first of those with the largest weight.
    heaviest: usize,
}

impl Weighted {
    /// A schedule of entries with these weights. Those without one (0) get the mean of the others. If fewer
    /// than two have one, all are equal.
    pub(super) fn new(weights: &[f64], random: &mut Random) -> Self {
        let known: Vec<f64> = weights.iter().copied().filter(|it| *it > 0.0).collect();
        let equal = vec![u16::MAX; weights.len()];
        let weights = match known.len() {
            0 | 1 => equal,
            _ => {
                let mean = known.iter().sum::<f64>() / known.len() as f64;
                let bounded = weights.iter().map(|weight| match *weight > 0.0 {
                    true => weight.clamp(mean / RATIO, mean * RATIO),
                    false => mean,
                });
                let bounded: Vec<f64> = bounded.collect();
                let max = bounded.iter().copied().fold(0.0, f64::max);
                let scaled = |weight: &f64| (weight / max * MAX as f64).round().max(1.0) as u16;
                match mean.is_finite() {
                    true => bounded.iter().map(scaled).collect(),
                    false => equal,
                }
            }
        };
        let max = weights.iter().max();
        let heaviest = weights.iter().position(|weight| Some(weight) == max);
        Self {
            heaviest: heaviest.unwrap_or_default(),
            weights,
            next: AtomicUsize::new(random.next_u64() as u32 as usize),
        }
    }

    /// The next entry; 0 if there is none.
    pub(super) fn next(&self) -> usize {
        let len = self.weights.len();
        for _ in 0..=len {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(index) = at.checked_rem(len) else {
                return 0;
            };
            let (generation, weight) = (at / len, usize::from(self.weights[index]));
            // Entries of equal weight are not all left out in the same generation.
            let offset = MAX / 2 * index;
            let step = weight.wrapping_mul(generation).wrapping_add(offset) % MAX;
            if step >= MAX - weight {
                return index;
            }
        }
        // Other threads took the entries that this one would have taken. This one can take the most.
        self.heaviest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(weights: &[f64]) -> Vec<f64> {
        let schedule = Weighted::new(weights, &mut Random::new(9));
        let mut counts = vec![0.0; weights.len()];
        for _ in 0..100_000 {
            counts[schedule.next()] += 1.0;
        }
        counts.iter().map(|count| count / 100_000.0).collect()
    }

    fn assert_near(shares: &[f64], expected: &[f64]) {
        let near = |(a, b): (&f64, &f64)| (a - b).abs() < 0.005;
        let all = shares.iter().zip(expected).all(near);
        assert!(
            all && shares.len() == expected.len(),
            "{shares:?} {expected:?}"
        );
    }

    #[test]
    fn each_entry_comes_as_often_as_its_weight_says() {
        assert_near(&shares(&[1.0, 2.0, 5.0]), &[0.125, 0.25, 0.625]);
        assert_near(&shares(&[7e9, 7e9]), &[0.5, 0.5]);
        assert_near(&shares(&[1e-9, 3e-9]), &[0.25, 0.75]);
    }

    #[test]
    fn entries_without_a_weight_get_the_mean_and_alone_all_are_equal() {
        assert_near(&shares(&[1.0, 3.0, 0.0]), &[1.0 / 6.0, 0.5, 1.0 / 3.0]);
        assert_near(&shares(&[0.0, 0.0, 9.0]), &[1.0 / 3.0; 3]);
        assert_near(&shares(&[0.0; 4]), &[0.25; 4]);
        assert_near(&shares(&[3.0]), &[1.0]);
    }

    #[test]
    fn an_odd_weight_neither_takes_all_nor_gets_nothing() {
        // The mean is 250.75, so that nothing counts as less than 25.
        let small = 25.075 / (1000.0 + 3.0 * 25.075);
        assert_near(
            &shares(&[1000.0, 1.0, 1.0, 1.0]),
            &[1.0 - 3.0 * small, small, small, small],
        );
        assert_near(&shares(&[f64::MAX, f64::MAX, 1.0]), &[1.0 / 3.0; 3]);
    }

    #[test]
    fn a_small_weight_is_spread_over_time() {
        let schedule = Weighted::new(&[1.0, 1.0, 0.25], &mut Random::new(2));
        let picks: Vec<usize> = (0..900).map(|_| schedule.next()).collect();
        for window in picks.chunks(90) {
            let small = window.iter().filter(|index| **index == 2).count();
            assert!((9..=11).contains(&small), "{small}");
        }
    }

    #[test]
    fn no_entries_are_no_trouble() {
        assert_eq!(Weighted::new(&[], &mut Random::new(1)).next(), 0);
    }
}
