//! The Internet checksum (RFC 1071): a one's complement sum of 16-bit words.
//!
//! The sum comes out right in whatever byte order the words are read, if it is stored in the same
//! (section 2 of the RFC), so everything here is in the processor's own order: what is added comes
//! from memory as it lies there, and the result goes back with `to_ne_bytes`. Carries are put off:
//! 32 bits at a time are added to 64-bit sums, several side by side so that the compiler can use
//! vector instructions.

/// Sums side by side.
const LANES: usize = 8;

/// Bytes that are added in one step.
const STEP: usize = LANES * 4;

/// The sum of `bytes`, not folded. An odd last byte counts as if a zero followed it.
#[inline]
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let mut lanes = [0_u64; LANES];
    let mut steps = bytes.chunks_exact(STEP);
    for step in &mut steps {
        for (lane, word) in lanes.iter_mut().zip(step.chunks_exact(4)) {
            *lane += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        }
    }
    let mut total = lanes.iter().sum::<u64>();
    let mut words = steps.remainder().chunks_exact(2);
    for word in &mut words {
        total += u64::from(u16::from_ne_bytes([word[0], word[1]]));
    }
    if let [last] = words.remainder() {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    total
}

/// What a 16-bit number, in the processor's order, adds to a sum of words in the network's.
#[inline]
pub(crate) fn word(value: u16) -> u64 {
    u64::from(value.to_be())
}

/// A sum as one word, its carries added to it.
#[inline]
pub(crate) fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The RFC's own way, word for word.
    fn by_the_book(bytes: &[u8]) -> u16 {
        let mut sum = 0_u32;
        for pair in bytes.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            sum += u32::from(u16::from_be_bytes([pair[0], low]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn the_example_of_the_rfc() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(&bytes)).to_ne_bytes(), [0xdd, 0xf2]);
    }

    #[test]
    fn the_largest_sums_fold() {
        let bytes = vec![0xff; 1 << 16];
        assert_eq!(fold(sum(&bytes)), 0xffff);
        assert_eq!(fold(u64::MAX), 0xffff);
        assert_eq!(fold(0), 0);
    }

    proptest! {
        #[test]
        fn it_is_the_sum_of_all_words(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let expected = by_the_book(&bytes).to_be();
            prop_assert_eq!(fold(sum(&bytes)), expected);
        }

        #[test]
        fn a_number_counts_as_its_bytes_do(value: u16) {
            prop_assert_eq!(word(value), sum(&value.to_be_bytes()));
        }
    }
}
