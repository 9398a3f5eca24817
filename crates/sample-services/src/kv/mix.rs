//! A permutation that scatters the 64-bit numbers, and its inverse.

/// A permutation that scatters the 64-bit numbers: the output function of SplitMix64 (Steele, Lea and
/// Flood, "Fast splittable pseudorandom number generators", OOPSLA'14).
pub const fn mix(number: u64) -> u64 {
    let z = (number ^ (number >> 30)).wrapping_mul(MIX_A);
    let z = (z ^ (z >> 27)).wrapping_mul(MIX_B);
    z ^ (z >> 31)
}

/// The inverse of [`mix`].
pub const fn unmix(mixed: u64) -> u64 {
    // The inverse of x ^ (x >> s) is x ^ (x >> s) ^ (x >> 2s) ^ ..., for all shifts below 64.
    let z = mixed ^ (mixed >> 31) ^ (mixed >> 62);
    let z = z.wrapping_mul(inverse(MIX_B));
    let z = z ^ (z >> 27) ^ (z >> 54);
    let z = z.wrapping_mul(inverse(MIX_A));
    z ^ (z >> 30) ^ (z >> 60)
}

const MIX_A: u64 = 0xbf58_476d_1ce4_e5b9;
const MIX_B: u64 = 0x94d0_49bb_1331_11eb;

/// The inverse of an odd number modulo 2^64, by Newton's iteration. The start is right in its lowest
/// three bits, and each step doubles their number.
const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut bits = 3;
    while bits < 64 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        bits *= 2;
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmix_is_the_inverse_of_mix() {
        let mixed = (0..1000).map(mix);
        for number in (0..1000).chain(mixed).chain([u64::MAX]) {
            assert_eq!(unmix(mix(number)), number);
        }
    }
}
