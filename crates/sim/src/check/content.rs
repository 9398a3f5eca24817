//! The content of a simulation's messages. A few numbers determine every byte, so either side can
//! tell a whole message from a broken or exchanged one.
//!
//! ```text
//!  request   key (8) │ response length (4) │ handler's delay in us (4) │ stream of the key and length
//!  response  stream of the request's key, complemented
//! ```
//!
//! A request shorter than that header has the beginning of the stream only. Its key is made of
//! its bytes, and its response is short and immediate.

use super::Violation;
use crate::rng::mix;

/// Bytes of a request's header: its instructions to the server.
pub const HEADER: usize = 16;

/// The longest response to a request without that header, bytes.
pub const LONGEST_SHORT: u32 = 23;

/// Marks the keys of requests too short to have one of their own.
const SHORT: u64 = 1 << 63;

/// The instructions of a request to its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Names the request; for a request shorter than [`HEADER`], all those of the same bytes.
    pub key: u64,
    /// Length of the response, bytes.
    pub response_len: u32,
    /// How long the handler takes, us.
    pub delay_us: u32,
}

/// The bytes of a request of `len` bytes. Returns them with the instructions that a server will
/// read, which differ from `expected` if `len` is too short for the header.
pub fn request(expected: Expected, len: usize) -> (Vec<u8>, Expected) {
    debug_assert_eq!(expected.key & SHORT, 0, "the top bit marks short requests");
    let mut bytes = vec![0; len];
    if len < HEADER {
        stream(expected.key, &mut bytes);
        let expected = short_expected(&bytes);
        return (bytes, expected);
    }
    bytes[..8].copy_from_slice(&expected.key.to_le_bytes());
    bytes[8..12].copy_from_slice(&expected.response_len.to_le_bytes());
    bytes[12..16].copy_from_slice(&expected.delay_us.to_le_bytes());
    stream(request_seed(expected, len), &mut bytes[HEADER..]);
    (bytes, expected)
}

/// Reads a request as the server does.
pub fn read_request(bytes: &[u8]) -> Result<Expected, Violation> {
    if bytes.len() < HEADER {
        return Ok(short_expected(bytes));
    }
    let word = |at: usize| -> [u8; 4] { bytes[at..at + 4].try_into().expect("four bytes") };
    let expected = Expected {
        key: u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")),
        response_len: u32::from_le_bytes(word(8)),
        delay_us: u32::from_le_bytes(word(12)),
    };
    match first_difference(request_seed(expected, bytes.len()), &bytes[HEADER..]) {
        None => Ok(expected),
        Some(at) => Err(violation(format!(
            "request {:#x} of {} bytes is wrong from byte {} on",
            expected.key,
            bytes.len(),
            HEADER + at
        ))),
    }
}

/// The response to `expected`, written into `bytes`.
pub fn respond(expected: Expected, bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.resize(expected.response_len as usize, 0);
    stream(!expected.key, bytes);
}

/// Whether `bytes` are the response to `expected`.
pub fn check_response(expected: Expected, bytes: &[u8]) -> Result<(), Violation> {
    if bytes.len() != expected.response_len as usize {
        return Err(violation(format!(
            "the response to {:#x} has {} bytes instead of {}",
            expected.key,
            bytes.len(),
            expected.response_len
        )));
    }
    match first_difference(!expected.key, bytes) {
        None => Ok(()),
        Some(at) => Err(violation(format!(
            "the response to {:#x} of {} bytes is wrong from byte {at} on",
            expected.key,
            bytes.len()
        ))),
    }
}

/// The item of a stream that `seed` stands for.
pub fn item(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    stream(seed, &mut bytes);
    bytes
}

/// Whether requests of this key can be told apart.
pub fn is_unique(key: u64) -> bool {
    key & SHORT == 0
}

fn short_expected(bytes: &[u8]) -> Expected {
    let mut padded = [0; 16];
    padded[..bytes.len()].copy_from_slice(bytes);
    let hash = mix(mix(u128::from_le_bytes(padded) as u64)
        ^ (u128::from_le_bytes(padded) >> 64) as u64
        ^ bytes.len() as u64);
    Expected {
        key: hash | SHORT,
        response_len: (hash % (u64::from(LONGEST_SHORT) + 1)) as u32,
        delay_us: 0,
    }
}

fn request_seed(expected: Expected, len: usize) -> u64 {
    mix(expected.key)
        ^ mix(u64::from(expected.response_len) << 32 | u64::from(expected.delay_us))
        ^ len as u64
}

fn stream(seed: u64, bytes: &mut [u8]) {
    for (index, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&stream_word(seed, index)[..chunk.len()]);
    }
}

fn first_difference(seed: u64, bytes: &[u8]) -> Option<usize> {
    for (index, chunk) in bytes.chunks(8).enumerate() {
        let word = stream_word(seed, index);
        if *chunk != word[..chunk.len()] {
            let within = chunk.iter().zip(word).position(|(&a, b)| a != b);
            return Some(index * 8 + within.unwrap_or(0));
        }
    }
    None
}

fn stream_word(seed: u64, index: usize) -> [u8; 8] {
    mix(seed.wrapping_add((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le_bytes()
}

fn violation(detail: String) -> Violation {
    Violation::new("content", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: Expected = Expected {
        key: 17,
        response_len: 100,
        delay_us: 3,
    };

    #[test]
    fn whole_messages_pass_at_every_length() {
        for len in 0..200 {
            let (bytes, expected) = request(ORDER, len);
            assert_eq!(bytes.len(), len);
            assert_eq!(read_request(&bytes), Ok(expected));
            assert_eq!(is_unique(expected.key), len >= HEADER);
            let mut response = vec![9; 3];
            respond(expected, &mut response);
            assert_eq!(check_response(expected, &response), Ok(()));
        }
    }

    #[test]
    fn a_broken_request_is_found() {
        let (good, _) = request(ORDER, 100);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(read_request(&bad).is_err(), "byte {at}");
        }
        assert!(read_request(&good[..99]).is_err(), "cut");
        let mut swapped = good.clone();
        swapped[32..64].rotate_left(16);
        assert!(read_request(&swapped).is_err(), "fragments exchanged");
    }

    #[test]
    fn a_broken_or_exchanged_response_is_found() {
        let mut response = Vec::new();
        respond(ORDER, &mut response);
        let other = Expected { key: 18, ..ORDER };
        assert!(
            check_response(other, &response).is_err(),
            "the response of another call"
        );
        assert!(check_response(ORDER, &response[..99]).is_err(), "cut");
        response[99] ^= 1;
        let found = check_response(ORDER, &response).unwrap_err();
        assert!(found.detail.contains("from byte 99"), "{found}");
    }

    #[test]
    fn short_requests_of_the_same_bytes_share_a_key() {
        let (a, order_a) = request(ORDER, 1);
        let (b, order_b) = request(Expected { key: 18, ..ORDER }, 1);
        assert_eq!(order_a.key == order_b.key, a == b);
        assert_ne!(request(ORDER, 0).1.key, request(ORDER, 1).1.key);
    }
}
