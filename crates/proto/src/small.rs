//! The bytes of a small message, in one cache line of their slot.
//!
//! A message is kept for the case that it has to be sent again. A small one is copied for that:
//! the copy costs no more than an exchange of buffers, needs no memory beside the slot's, and the
//! buffer that messages are built in stays the same one, in the first-level cache.

/// The longest message that is kept so.
const SMALL_BYTES: usize = 63;

/// In place of the length of a message that is kept elsewhere.
const ELSEWHERE: u8 = u8::MAX;

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Small {
    len: u8,
    bytes: [u8; SMALL_BYTES],
}

impl Default for Small {
    fn default() -> Self {
        Self {
            len: ELSEWHERE,
            bytes: [0; SMALL_BYTES],
        }
    }
}

impl Small {
    /// Keeps a copy of `message`. False: it is too long, and is to be kept elsewhere.
    #[inline]
    pub(crate) fn keep(&mut self, message: &[u8]) -> bool {
        let Some(bytes) = self.bytes.get_mut(..message.len()) else {
            self.len = ELSEWHERE;
            return false;
        };
        self.len = message.len() as u8;
        match (message.first_chunk(), message.last_chunk()) {
            // Two copies of fixed size that overlap take less than a call for one of any size.
            (Some(first), Some(last)) => {
                *bytes
                    .first_chunk_mut::<32>()
                    .expect("as long as the message") = *first;
                *bytes
                    .last_chunk_mut::<32>()
                    .expect("as long as the message") = *last;
            }
            _ => bytes.copy_from_slice(message),
        }
        true
    }

    /// The message is kept elsewhere from now on, or not at all.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.len = ELSEWHERE;
    }

    /// The message, if it is kept here.
    #[inline]
    pub(crate) fn get(&self) -> Option<&[u8]> {
        self.bytes.get(..self.len.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_here_or_elsewhere() {
        let mut small = Small::default();
        assert_eq!(size_of::<Small>(), 64);
        assert_eq!(small.get(), None);
        for len in 0..=SMALL_BYTES {
            let message: Vec<u8> = (0..len).map(|i| (i * 5 + len) as u8).collect();
            assert!(small.keep(&message));
            assert_eq!(small.get(), Some(&*message));
        }
        assert!(!small.keep(&[0; SMALL_BYTES + 1]));
        assert_eq!(small.get(), None);
        small.keep(&[1]);
        small.clear();
        assert_eq!(small.get(), None);
    }
}
