//! The bytes of a datagram. Those of a small datagram lie in the packet itself, so a prefetch of
//! the packet brings them too.

use std::ops::{Deref, DerefMut, Range};

/// Bytes that fit: a request or response of 32 B with its headers.
const SMALL: usize = 62;

#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Payload {
    small: [u8; SMALL],
    small_len: u16,
    /// All bytes, if they do not fit.
    large: Vec<u8>,
}

impl Payload {
    /// Takes the bytes out of `memory`, and `memory` itself if it has to.
    #[inline]
    pub(crate) fn take(memory: &mut Vec<u8>) -> Self {
        let mut payload = Self {
            small: [0; SMALL],
            small_len: 0,
            large: Vec::new(),
        };
        if memory.len() <= SMALL {
            payload.small[..memory.len()].copy_from_slice(memory);
            payload.small_len = memory.len() as u16;
            memory.clear();
        } else {
            payload.large = std::mem::take(memory);
        }
        payload
    }

    /// Keeps the first `len` bytes, if there are more.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.large.truncate(len);
        self.small_len = len.min(self.small_len.into()) as u16;
    }

    /// Keeps these bytes alone.
    ///
    /// # Panics
    /// If the range exceeds the payload.
    pub(crate) fn keep(&mut self, range: Range<usize>) {
        let len = range.len();
        self.copy_within(range, 0);
        self.truncate(len);
    }

    /// The memory that it has on the heap.
    pub(crate) fn into_memory(self) -> Vec<u8> {
        self.large
    }
}

impl Deref for Payload {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        if self.large.is_empty() {
            &self.small[..self.small_len.into()]
        } else {
            &self.large
        }
    }
}

impl DerefMut for Payload {
    fn deref_mut(&mut self) -> &mut [u8] {
        if self.large.is_empty() {
            &mut self.small[..self.small_len.into()]
        } else {
            &mut self.large
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_of_any_length_is_kept() {
        for len in [0, 1, SMALL, SMALL + 1, 1500] {
            let bytes: Vec<u8> = (0..len).map(|index| index as u8).collect();
            let mut memory = bytes.clone();
            let mut payload = Payload::take(&mut memory);
            assert_eq!(payload[..], bytes);
            assert_eq!(memory.capacity() > 0, (1..=SMALL).contains(&len), "{len}");
            if let Some(first) = payload.first_mut() {
                *first ^= 1;
                assert_eq!(payload[0], bytes[0] ^ 1);
            }
            assert_eq!(payload.into_memory().is_empty(), len <= SMALL);
        }
    }

    #[test]
    fn a_range_of_a_payload_is_kept() {
        for len in [0, 1, 8, SMALL, SMALL + 1, 1500] {
            let bytes: Vec<u8> = (0..len).map(|index| index as u8).collect();
            for range in [0..0, 0..len, len / 2..len, len / 3..len / 2] {
                let mut payload = Payload::take(&mut bytes.clone());
                payload.keep(range.clone());
                assert_eq!(payload[..], bytes[range]);
            }
        }
    }
}
