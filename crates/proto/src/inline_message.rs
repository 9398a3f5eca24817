//! The bytes of a small message, in one cache line of its slot.
//!
//! A message is kept for the case that it has to be sent again. A small message is copied into the
//! slot. The copy costs no more than an exchange of buffers and needs no memory beside the slot's.
//! Messages are built in one buffer, which so stays in the first-level cache.

/// The longest message that fits.
const INLINE_BYTES: usize = 63;

/// In place of the length: the message, if there is one, is in the slot's cold state.
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
    /// Stores a copy of `message`. False: it is too long, and the caller stores it elsewhere.
    #[inline]
    pub(crate) fn store(&mut self, message: &[u8]) -> bool {
        let Some(bytes) = self.bytes.get_mut(..message.len()) else {
            self.len = NOT_INLINE;
            return false;
        };
        self.len = message.len() as u8;
        match (message.first_chunk(), message.last_chunk()) {
            // Two overlapping copies of fixed size cost less than a call for a copy of any size.
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

    /// The message is stored elsewhere from now on, or not at all.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.len = NOT_INLINE;
    }

    /// The message, if it is stored here.
    #[inline]
    pub(crate) fn get(&self) -> Option<&[u8]> {
        self.bytes.get(..self.len.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_up_to_63_bytes_is_stored_inline() {
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
