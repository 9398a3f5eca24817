//! The bytes of a small message, in one cache line of their slot.
//!
//! A message is kept for the case that it has to be sent again. A small one is copied for that:
//! the copy costs no more than an exchange of buffers, needs no memory beside the slot's, and the
//! buffer that messages are built in stays the same one, in the first-level cache.

/// The longest message that is kept so.
const INLINE_BYTES: usize = 63;

/// In place of the length of a message that is kept elsewhere.
const NOT_INLINE: u8 = u8::MAX;

#[derive(Debug)]
#[repr(C)]
pub(crate) struct InlineMessage {
    len: u8,
    bytes: [u8; INLINE_BYTES],
}

impl Default for InlineMessage {
    fn default() -> Self {
        Self {
            len: NOT_INLINE,
            bytes: [0; INLINE_BYTES],
        }
    }
}

impl InlineMessage {
    /// Keeps a copy of `message`. False: it is too long, and is to be kept elsewhere.
    #[inline]
    pub(crate) fn store(&mut self, message: &[u8]) -> bool {
        let Some(bytes) = self.bytes.get_mut(..message.len()) else {
            self.len = NOT_INLINE;
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
        self.len = NOT_INLINE;
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
        let mut inline = InlineMessage::default();
        assert_eq!(size_of::<InlineMessage>(), 64);
        assert_eq!(inline.get(), None);
        for len in 0..=INLINE_BYTES {
            let message: Vec<u8> = (0..len).map(|i| (i * 5 + len) as u8).collect();
            assert!(inline.store(&message));
            assert_eq!(inline.get(), Some(&*message));
        }
        assert!(!inline.store(&[0; INLINE_BYTES + 1]));
        assert_eq!(inline.get(), None);
        inline.store(&[1]);
        inline.clear();
        assert_eq!(inline.get(), None);
    }
}
