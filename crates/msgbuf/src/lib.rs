//! Message buffers: what a message lies in while it is built, sent and kept.
//!
//! The ownership rule of eRPC (NSDI'19, section 4.2.2) is that no transmission queue refers to a
//! request's msgbuf once its response is processed. Here moves keep the rule: a request's buffer
//! moves into its slot, frames are copied out of it (or sent from it) within one call, and the buffer
//! moves back with the response. No queue of references could outlive it.

#![forbid(unsafe_code)]

mod memory;
pub mod spare;

pub use memory::{LARGE_BYTES, MessageMemory, PacketMemory, PeerMemory};

use bytes::Bytes;

/// One message: contiguous bytes (the head), then an optional part that is held by reference (the tail).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Msgbuf {
    head: Vec<u8>,
    // Boxed because it is rare: so a slot stays small.
    tail: Option<Box<Bytes>>,
}

impl Msgbuf {
    /// An empty message without memory.
    #[inline]
    pub const fn new() -> Self {
        Self {
            head: Vec::new(),
            tail: None,
        }
    }

    /// A message that is `head`.
    #[inline]
    pub fn from_vec(head: Vec<u8>) -> Self {
        Self { head, tail: None }
    }

    /// A message that is `head`, then `tail`. `tail` is gathered at transmission, not copied.
    #[inline]
    pub fn from_parts(head: Vec<u8>, tail: Option<Bytes>) -> Self {
        Self {
            head,
            tail: tail.filter(|tail| !tail.is_empty()).map(Box::new),
        }
    }

    /// The parts.
    #[inline]
    pub fn into_parts(self) -> (Vec<u8>, Option<Bytes>) {
        (self.head, self.tail.map(|tail| *tail))
    }

    /// The contiguous part.
    #[inline]
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// The contiguous part, to write.
    #[inline]
    pub fn head_mut(&mut self) -> &mut Vec<u8> {
        &mut self.head
    }

    /// The part held by reference; empty if there is none.
    #[inline]
    pub fn tail(&self) -> &[u8] {
        match &self.tail {
            None => &[],
            Some(tail) => tail,
        }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.tail().len()
    }

    /// Whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives the message another number of bytes in front of its body, which is where a header goes. What is
    /// in them is undefined.
    ///
    /// # Panics
    /// If the message has fewer than `before` bytes in its contiguous part.
    pub fn set_headroom(&mut self, before: usize, after: usize) {
        let len = self.head.len();
        assert!(before <= len, "the body begins within the message");
        if after > before {
            self.head.resize(len + after - before, 0);
            self.head.copy_within(before..len, after);
        } else if after < before {
            self.head.copy_within(before.., after);
            self.head.truncate(len - (before - after));
        }
    }

    /// Drops the contents and keeps the memory of the contiguous part.
    #[inline]
    pub fn clear(&mut self) {
        self.head.clear();
        self.tail = None;
    }

    /// Bytes of memory that the contiguous part holds on to.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.head.capacity()
    }

    /// Whether it has a part that is held by reference.
    #[inline]
    pub fn has_tail(&self) -> bool {
        self.tail.is_some()
    }

    /// The range `[from, to)` as at most two slices.
    #[inline]
    pub fn range(&self, from: usize, to: usize) -> (&[u8], &[u8]) {
        let split = self.head.len();
        if to <= split {
            return (&self.head[from..to], &[]);
        }
        let tail = self.tail();
        if from >= split {
            return (&[], &tail[from - split..to - split]);
        }
        (&self.head[from..], &tail[..to - split])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_moves_for_another_headroom() {
        let mut message = Msgbuf::from_parts(b"..body".to_vec(), Some(Bytes::from_static(b"tail")));
        for (before, after) in [(2, 2), (2, 7), (7, 1), (1, 0), (0, 4)] {
            message.set_headroom(before, after);
            assert_eq!(&message.head()[after..], b"body");
            assert_eq!(message.tail(), b"tail");
        }
        let mut empty = Msgbuf::new();
        empty.set_headroom(0, 3);
        assert_eq!(empty.len(), 3);
    }

    #[test]
    fn a_range_may_span_both_parts() {
        let message = Msgbuf::from_parts(vec![0, 1, 2], Some(Bytes::from_static(&[3, 4, 5])));
        assert_eq!(message.len(), 6);
        for from in 0..=6 {
            for to in from..=6 {
                let (a, b) = message.range(from, to);
                let joined: Vec<u8> = a.iter().chain(b).copied().collect();
                let expected: Vec<u8> = (from as u8..to as u8).collect();
                assert_eq!(joined, expected);
            }
        }
    }
}
