//! The message of a slot: a small one lies in the slot itself, in one cache line, a larger one in a buffer.
//!
//! A slot keeps its message for the case that it has to be sent again. A small message is copied into the
//! slot. The copy costs no more than an exchange of buffers and needs no memory beside the slot's.
//! Messages are built in one buffer, which so stays in the first-level cache.
//!
//! A slot whose message is over keeps the buffer for its next message, which is exchanged for it. A small
//! message needs none, so the slots of requests that are outstanding for long have no more than their line.
use starling_msgbuf::Msgbuf;

use crate::msgbuf_pool::{Pool, is_bulky};

/// The longest message that fits.
const INLINE_BYTES: usize = 62;

#[derive(Debug)]
pub(crate) enum SlotMessage {
    Inline(Inline),
    Buffer(Msgbuf),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Inline {
    len: u8,
    bytes: [u8; INLINE_BYTES],
}

const _: () = assert!(size_of::<SlotMessage>() == 64);

impl Inline {
    const EMPTY: Self = Self {
        len: 0,
        bytes: [0; INLINE_BYTES],
    };

    /// A copy of a message, if it is small.
    #[inline]
    fn of(message: &[u8]) -> Option<Self> {
        let mut inline = Self::EMPTY;
        let bytes = inline.bytes.get_mut(..message.len())?;
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
        inline.len = message.len() as u8;
        Some(inline)
    }

    #[inline]
    fn get(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

impl Default for SlotMessage {
    fn default() -> Self {
        Self::Inline(Inline::EMPTY)
    }
}

impl SlotMessage {
    /// Stores a contiguous message, and leaves a buffer that is free: its own, the one that was here, or one of
    /// the pool.
    #[inline]
    pub(crate) fn store(&mut self, message: &mut Msgbuf, pool: &mut Pool) {
        debug_assert!(!message.has_tail(), "it is contiguous");
        match Inline::of(message.head()) {
            Some(inline) => {
                message.head_mut().clear();
                if let Self::Buffer(former) = std::mem::replace(self, Self::Inline(inline)) {
                    give_back(former, pool);
                }
            }
            None => {
                self.store_buffer(message);
                if message.capacity() == 0 {
                    *message = pool.take();
                }
            }
        }
    }

    /// Stores a message together with its buffer, in exchange for the one that was here, or for none.
    #[inline(never)]
    pub(crate) fn store_buffer(&mut self, message: &mut Msgbuf) {
        let message_here = Self::Buffer(std::mem::take(message));
        if let Self::Buffer(mut former) = std::mem::replace(self, message_here) {
            former.clear();
            *message = former;
        }
    }

    /// The message, as two parts.
    #[inline]
    pub(crate) fn parts(&self) -> (&[u8], &[u8]) {
        match self {
            Self::Inline(inline) => (inline.get(), &[]),
            Self::Buffer(message) => (message.head(), message.tail()),
        }
    }

    /// A range of the message, as two parts.
    pub(crate) fn range(&self, from: usize, to: usize) -> (&[u8], &[u8]) {
        match self {
            Self::Inline(inline) => (&inline.get()[from..to], &[]),
            Self::Buffer(message) => message.range(from, to),
        }
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        let (head, tail) = self.parts();
        head.len() + tail.len()
    }

    /// Whether the message lies in the slot itself.
    #[inline]
    pub(crate) fn is_inline(&self) -> bool {
        matches!(self, Self::Inline(_))
    }

    /// Whether the message has more memory than a slot keeps for its next message.
    #[inline]
    pub(crate) fn is_bulky(&self) -> bool {
        match self {
            Self::Inline(_) => false,
            Self::Buffer(message) => is_bulky(message),
        }
    }

    /// Takes the message out, in a buffer.
    pub(crate) fn take(&mut self) -> Msgbuf {
        match std::mem::take(self) {
            Self::Inline(inline) => Msgbuf::from_vec(inline.get().to_vec()),
            Self::Buffer(message) => message,
        }
    }

    /// Forgets the message. Returns its buffer, if it has one.
    #[inline]
    pub(crate) fn clear(&mut self) -> Option<Msgbuf> {
        match std::mem::take(self) {
            Self::Inline(_) => None,
            Self::Buffer(message) => Some(message),
        }
    }
}

#[cold]
fn give_back(former: Msgbuf, pool: &mut Pool) {
    pool.put(former);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(len: usize) -> Msgbuf {
        Msgbuf::from_vec((0..len).map(|i| (i * 5 + len) as u8).collect())
    }

    #[test]
    fn a_message_of_up_to_62_bytes_needs_no_buffer() {
        let (mut slot, mut pool) = (SlotMessage::default(), Pool::new());
        assert_eq!(slot.parts(), (&[][..], &[][..]));
        for len in 0..=INLINE_BYTES {
            let mut buffer = message(len);
            slot.store(&mut buffer, &mut pool);
            assert!(slot.is_inline() && buffer.is_empty());
            assert_eq!(slot.parts(), (message(len).head(), &[][..]));
            assert_eq!(slot.len(), len);
        }
        assert_eq!(slot.take(), message(INLINE_BYTES));
        assert_eq!(slot.len(), 0);
    }

    #[test]
    fn buffers_are_exchanged_and_a_small_message_gives_its_own_back() {
        let (mut slot, mut pool) = (SlotMessage::default(), Pool::new());
        let larger = INLINE_BYTES + 1;
        let mut buffer = message(larger);
        let at = buffer.head().as_ptr();
        slot.store(&mut buffer, &mut pool);
        assert!(!slot.is_inline() && buffer.is_empty() && buffer.capacity() > 0);
        assert_eq!(slot.parts().0, message(larger).head());
        let mut next = message(larger + 1);
        slot.store(&mut next, &mut pool);
        assert_eq!(next.head().as_ptr(), at, "the buffer of the former message");
        assert!(next.is_empty());
        next.head_mut().push(7);
        slot.store(&mut next, &mut pool);
        assert!(slot.is_inline());
        assert_eq!(pool.take().capacity(), larger + 1, "what the slot had");
        assert_eq!(slot.clear(), None);
    }
}
