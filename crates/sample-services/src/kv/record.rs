//! Keys and values that a reader can check.
//!
//! [`mix`] gives record number `id` its *place* in the order of keys, so that records of similar
//! popularity lie far apart. The key is the place in 16 hexadecimal digits. A value holds the id, the
//! version of the write that stored it, and six words that are computed from both. So a reader notices
//! another record's value, a value of two writes, and a value of an earlier write.

use super::mix::{mix, unmix};

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;

/// Bytes of a value.
pub const VALUE_BYTES: usize = 64;

/// A key.
pub type Key = [u8; KEY_BYTES];

/// A value.
pub type Value = [u8; VALUE_BYTES];

/// The place of record `id` in the order of keys.
pub fn place(id: u64) -> u64 {
    mix(id)
}

/// The record at a place.
pub fn id_at(place: u64) -> u64 {
    unmix(place)
}

/// The key at a place.
pub fn key_at(place: u64) -> Key {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    std::array::from_fn(|digit| DIGITS[(place >> (60 - 4 * digit)) as usize & 15])
}

/// The key of a record.
pub fn key(id: u64) -> Key {
    key_at(place(id))
}

/// The place of a key. `None`: [`key_at`] makes no such key.
pub fn place_of(key: &[u8]) -> Option<u64> {
    if key.len() != KEY_BYTES {
        return None;
    }
    let mut place = 0;
    let mut all = 0;
    for digit in key {
        let value = DIGIT_VALUES[usize::from(*digit)];
        all |= value;
        place = place << 4 | u64::from(value & 15);
    }
    (all < 16).then_some(place)
}

/// The value of each byte as a hexadecimal digit; 255 if it is none. This is a table and no branch,
/// because the digits look random and the processor would mispredict every other branch.
const DIGIT_VALUES: [u8; 256] = {
    let mut values = [255; 256];
    let mut value = 0;
    while value < 16 {
        values[b"0123456789abcdef"[value as usize] as usize] = value;
        value += 1;
    }
    values
};

/// The value that write number `version` of record `id` stores.
pub fn value(id: u64, version: u32) -> Value {
    let version = u64::from(version);
    let seed = mix(id ^ version.rotate_left(40));
    let mut value = [0; VALUE_BYTES];
    for (index, word) in value.chunks_exact_mut(8).enumerate() {
        let number = match index {
            0 => id,
            1 => version,
            _ => mix(seed ^ index as u64),
        };
        word.copy_from_slice(&number.to_le_bytes());
    }
    value
}

/// The version of the write of record `id` that stored `bytes`. `None`: no write stores them.
pub fn version_of(id: u64, bytes: &[u8]) -> Option<u32> {
    let word = bytes.get(8..16)?.try_into().ok()?;
    let version = u32::try_from(u64::from_le_bytes(word)).ok()?;
    (bytes == value(id, version)).then_some(version)
}

/// The `count` records that a store starts with, at [`FIRST_VERSION`], in no order.
pub fn initial(count: u64) -> impl Iterator<Item = (Key, Value)> {
    (0..count).map(|id| (key(id), value(id, FIRST_VERSION)))
}

/// The version of the records that a store starts with. Version 0 stands for no record.
pub const FIRST_VERSION: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_order_of_their_places_and_determine_them() {
        let mut places: Vec<u64> = (0..1000).map(place).collect();
        places.sort_unstable();
        let keys: Vec<Key> = places.iter().copied().map(key_at).collect();
        assert!(keys.is_sorted());
        for (place, key) in places.iter().zip(&keys) {
            assert_eq!(place_of(key), Some(*place));
            assert!(id_at(*place) < 1000);
        }
    }

    #[test]
    fn bytes_that_are_not_16_digits_have_no_place() {
        assert_eq!(place_of(b"0123456789abcdeF"), None);
        assert_eq!(place_of(b"0123456789abcde"), None);
        assert_eq!(place_of(b""), None);
        assert_eq!(place_of(&[0xff; KEY_BYTES]), None);
    }

    #[test]
    fn a_value_determines_the_write_that_stored_it() {
        let bytes = value(42, 7);
        assert_eq!(version_of(42, &bytes), Some(7));
        assert_eq!(version_of(43, &bytes), None);
        assert_eq!(version_of(42, &bytes[..63]), None);
        for index in 0..VALUE_BYTES {
            let mut damaged = bytes;
            damaged[index] ^= 1;
            assert_eq!(version_of(42, &damaged), None, "byte {index}");
        }
        // The first half is of one write, the second half of another.
        let mut torn = value(42, 8);
        torn[32..].copy_from_slice(&bytes[32..]);
        assert_eq!(version_of(42, &torn), None);
    }
}
