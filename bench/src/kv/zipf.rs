//! Zipf's distribution of ranks: where the key of an operation is drawn.
//!
//! Rank k is record number k. As in YCSB's scrambled Zipfian distribution, popular records are
//! scattered over the order of keys: [`record::key`](starling_sample_services::kv::record::key)
//! does that, by a permutation, so no two ranks share a record.

use super::random::Random;

/// Ranks 0 to n-1, rank k with a probability in proportion to 1 / (k + 1)^theta: the approximation
/// of Gray et al., "Quickly generating billion-record synthetic databases" (SIGMOD'94), section 5,
/// which YCSB uses too. Hand-made for that reason: `rand_distr::Zipf` draws the exact distribution,
/// so its figures would not compare with YCSB's.
#[derive(Clone, Debug)]
pub struct Zipf {
    ranks: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
    second: f64,
}

impl Zipf {
    /// The distribution over `ranks` ranks, at least 2, with 0 < `theta` < 1. Takes a time in
    /// proportion to `ranks`.
    pub fn new(ranks: u64, theta: f64) -> Self {
        assert!(ranks >= 2 && theta > 0.0 && theta < 1.0);
        let zeta: f64 = (1..=ranks).map(|k| (k as f64).powf(-theta)).sum();
        let second = 1.0 + 0.5f64.powf(theta);
        let ranks = ranks as f64;
        Self {
            ranks,
            alpha: 1.0 / (1.0 - theta),
            zeta,
            eta: (1.0 - (2.0 / ranks).powf(1.0 - theta)) / (1.0 - second / zeta),
            second,
        }
    }

    /// One rank.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> u64 {
        let unit = random.unit();
        let scaled = unit * self.zeta;
        if scaled < 1.0 {
            0
        } else if scaled < self.second {
            1
        } else {
            let rank = self.ranks * (self.eta * unit - self.eta + 1.0).powf(self.alpha);
            (rank as u64).min(self.ranks as u64 - 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_the_frequencies_of_zipfs_law() {
        const RANKS: u64 = 1000;
        const DRAWS: u64 = 200_000;
        let theta = 0.99;
        let zipf = Zipf::new(RANKS, theta);
        let mut random = Random::new(3);
        let mut counts = vec![0u64; RANKS as usize];
        for _ in 0..DRAWS {
            counts[zipf.draw(&mut random) as usize] += 1;
        }
        let zeta: f64 = (1..=RANKS).map(|k| (k as f64).powf(-theta)).sum();
        // The first two ranks are exact; for the others the method is an approximation.
        for (rank, tolerance) in [(0, 0.02), (1, 0.03), (9, 0.25), (99, 0.25)] {
            let expected = DRAWS as f64 / ((rank + 1) as f64).powf(theta) / zeta;
            let actual = counts[rank] as f64;
            assert!(
                (actual / expected - 1.0).abs() < tolerance,
                "rank {rank}: {actual} draws, expected about {expected:.0}"
            );
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_ranks() {
        let zipf = Zipf::new(1_000, 0.99);
        let draws = |seed| {
            let mut random = Random::new(seed);
            (0..50).map(|_| zipf.draw(&mut random)).collect::<Vec<_>>()
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
    }
}
