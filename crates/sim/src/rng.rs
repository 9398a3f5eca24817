//! The one source of randomness of a simulation: xoshiro256** seeded through SplitMix64
//! (Blackman and Vigna, "Scrambled linear pseudorandom number generators", 2021).
//!
//! It is written out here, in integers only, because a seed has to mean the same run on every
//! machine and after every upgrade of a dependency.

/// One million: the denominator of every probability here (`ppm`, parts per million).
pub const PPM: u32 = 1_000_000;

/// A deterministic generator. Cloning it clones its future.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator that `seed` stands for.
    pub fn new(seed: u64) -> Self {
        let mut word = seed;
        let state = std::array::from_fn(|_| {
            word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(word)
        });
        Self { state }
    }

    /// An independent generator: the draws of one consumer do not change those of another.
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A key of 64 random bits.
    pub fn next_key(&mut self) -> [u8; 16] {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&self.next_u64().to_le_bytes());
        key
    }

    /// A number in `0..bound` (the bias of the multiplication, below 2^-32 here, is accepted).
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no random member");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `low..=high`.
    ///
    /// # Panics
    /// If `low` exceeds `high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "range {low}..={high} is empty");
        match (high - low).checked_add(1) {
            Some(width) => low + self.below(width),
            None => self.next_u64(),
        }
    }

    /// A number in `low..=high` whose order of magnitude is uniform: small ones are as likely
    /// as large ones.
    pub fn log_range(&mut self, low: u64, high: u64) -> u64 {
        let (low_bits, high_bits) = (bits(low), bits(high));
        let width = self.range(low_bits, high_bits);
        let floor = if width == 0 { 0 } else { 1u64 << (width - 1) };
        let ceiling = if width == 64 {
            u64::MAX
        } else {
            (1u64 << width) - 1
        };
        self.range(floor.max(low), ceiling.min(high))
    }

    /// True with a probability of `ppm` in a million.
    pub fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(u64::from(PPM)) < u64::from(ppm)
    }

    /// One member of `choices`.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// How many bits `value` takes.
fn bits(value: u64) -> u64 {
    u64::from(64 - value.leading_zeros())
}

/// SplitMix64's finaliser: a bijection that spreads every input bit over the whole word.
pub(crate) fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_the_published_one() {
        // From the authors' reference code: SplitMix64 seeded with 0 gives this first word.
        assert_eq!(Rng::new(0).state[0], 0xe220_a839_7b1d_cdaf);
        // And xoshiro256** from the state 1, 2, 3, 4 gives these.
        let mut rng = Rng {
            state: [1, 2, 3, 4],
        };
        let first: Vec<u64> = (0..4).map(|_| rng.next_u64()).collect();
        assert_eq!(first, [11520, 0, 1_509_978_240, 1_215_971_899_390_074_240]);
    }

    #[test]
    fn ranges_keep_their_bounds_and_reach_them() {
        let mut rng = Rng::new(7);
        let drawn: Vec<u64> = (0..1000).map(|_| rng.range(3, 6)).collect();
        assert_eq!(drawn.iter().min(), Some(&3));
        assert_eq!(drawn.iter().max(), Some(&6));
        let drawn: Vec<u64> = (0..5000).map(|_| rng.log_range(0, 1000)).collect();
        assert_eq!(drawn.iter().min(), Some(&0));
        assert!(drawn.iter().all(|&value| value <= 1000));
        assert!(drawn.iter().any(|&value| value > 900));
        assert!((0..100).all(|_| (5..=9).contains(&rng.log_range(5, 9))));
        assert_eq!(rng.log_range(0, 0), 0);
        rng.log_range(0, u64::MAX);
    }

    #[test]
    fn chances_match_their_probabilities() {
        let mut rng = Rng::new(1);
        let hits = (0..100_000).filter(|_| rng.chance(300_000)).count();
        assert!((29_000..31_000).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| !rng.chance(0) && rng.chance(PPM)));
    }

    #[test]
    fn forked_generators_are_independent() {
        let mut parent = Rng::new(3);
        let mut child = parent.fork();
        assert_ne!(parent.next_u64(), child.next_u64());
    }
}
