//! The Internet checksum (RFC 1071): a one's complement sum of 16-bit words.
//!
//! The byte order of the words does not matter if the sum is stored in the same order (section 2 of
//! the RFC). So everything here is in the processor's own order: words come from memory as they lie
//! there, and the result goes back with `to_ne_bytes`. Few bytes are added eight at a time, with
//! end-around carry. For many, carries are deferred: words of 32 bits are added to several 64-bit
//! sums side by side, so that the compiler can use vector instructions.

/// Sums side by side.
const LANES: usize = 8;

/// Bytes that are added in one step.
const STEP: usize = LANES * 4;

/// From so many bytes on, sums side by side are worth combining at the end.
const MANY: usize = 256;

/// The sum of `bytes`, in 34 bits. An odd last byte counts as if a zero followed it.
#[inline]
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (mut total, rest) = match bytes.len() {
        MANY.. => sum_of_many(bytes),
        _ => (0, bytes),
    };
    let mut words = rest.chunks_exact(8);
    for word in &mut words {
        let word = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
        let (sum, carry) = u64::overflowing_add(total, word);
        total = sum + u64::from(carry);
    }
    let mut rest = words.remainder();
    let mut total = u64::from(halve(total));
    if let Some((&word, behind)) = rest.split_first_chunk() {
        total += u64::from(u32::from_ne_bytes(word));
        rest = behind;
    }
    if let Some((&word, behind)) = rest.split_first_chunk() {
        total += u64::from(u16::from_ne_bytes(word));
        rest = behind;
    }
    if let [last] = rest {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    total
}

/// The sum of all whole steps, and the bytes after them.
#[inline]
fn sum_of_many(bytes: &[u8]) -> (u64, &[u8]) {
    let mut lanes = [0_u64; LANES];
    let mut steps = bytes.chunks_exact(STEP);
    for step in &mut steps {
        for (lane, word) in lanes.iter_mut().zip(step.chunks_exact(4)) {
            *lane += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        }
    }
    (lanes.iter().sum(), steps.remainder())
}

/// What `bytes` add to the sum of the bytes in front of them. After an odd number of these, each
/// byte is in the other half of its word.
#[inline]
pub(crate) fn sum_behind(in_front: usize, bytes: &[u8]) -> u64 {
    let sum = sum(bytes);
    match in_front % 2 {
        0 => sum,
        _ => u64::from(fold(sum).swap_bytes()),
    }
}

/// What a 16-bit number in the processor's order adds to a sum of words in network order.
#[inline]
pub(crate) fn word(value: u16) -> u64 {
    u64::from(value.to_be())
}

/// The upper and the lower half of a sum, added with end-around carry.
#[inline]
fn halve(sum: u64) -> u32 {
    (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32
}

/// A sum as one word, with its carries added.
#[inline]
pub(crate) fn fold(sum: u64) -> u16 {
    let sum = halve(sum);
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The sum word by word, as the RFC defines it.
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
        fn it_is_the_sum_of_its_parts(
            bytes in proptest::collection::vec(any::<u8>(), 0..600),
            cut in 0_usize..600,
        ) {
            let (front, behind) = bytes.split_at(cut.min(bytes.len()));
            let parts = sum(front) + sum_behind(front.len(), behind);
            prop_assert_eq!(fold(parts), fold(sum(&bytes)));
        }

        #[test]
        fn a_number_counts_as_its_bytes_do(value: u16) {
            prop_assert_eq!(word(value), sum(&value.to_be_bytes()));
        }
    }
}
