//! Message buffers and their pool.
//!
//! The ownership rule of eRPC (NSDI'19, section 4.2.2) is that no transmission queue refers to a
//! request's msgbuf once its response is processed. Here moves keep the rule: a request's buffer
//! moves into its slot, frames are copied out of it (or sent from it) within one call, and the buffer
//! moves back with the response. No queue of references could outlive it.

use bytes::Bytes;

/// One message: contiguous bytes, then an optional segment that is held by reference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Msgbuf {
    head: Vec<u8>,
    // Boxed because it is rare: so a slot stays small.
    tail: Option<Box<Bytes>>,
}

impl Msgbuf {
    /// An empty message without memory.
    pub const fn new() -> Self {
        Self {
            head: Vec::new(),
            tail: None,
        }
    }

    /// A message that is `head`.
    pub fn from_vec(head: Vec<u8>) -> Self {
        Self { head, tail: None }
    }

    /// A message that is `head`, then `tail`. `tail` is gathered at transmission, not copied.
    pub fn from_parts(head: Vec<u8>, tail: Option<Bytes>) -> Self {
        Self {
            head,
            tail: tail.filter(|tail| !tail.is_empty()).map(Box::new),
        }
    }

    /// The parts.
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

    /// Whether it has more memory than a slot keeps for its next message.
    #[inline]
    pub(crate) fn is_bulky(&self) -> bool {
        self.head.capacity() > KEPT_BYTES || self.tail.is_some()
    }

    /// The range `[from, to)` as at most two slices.
    #[inline]
    pub(crate) fn range(&self, from: usize, to: usize) -> (&[u8], &[u8]) {
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

/// The most memory that a slot keeps for its next message.
const KEPT_BYTES: usize = 512;

/// Empty buffers to use again: last in, first out, so that the next one is still in the cache.
#[derive(Debug)]
pub(crate) struct Pool {
    small: Vec<Msgbuf>,
    large: Vec<Msgbuf>,
    large_bytes: usize,
}

/// A buffer with more memory than this is kept apart, so that a large message does not end up
/// as the preallocated response of a small one.
const SMALL_BYTES: usize = 4096;
/// Small buffers kept: 4096 of at most 4 KiB are at most 16 MiB.
const SMALL_KEPT: usize = 4096;
/// Memory of large buffers kept.
const LARGE_KEPT_BYTES: usize = 128 << 20;
/// Memory of a fresh buffer: a small RPC with its header.
pub(crate) const FRESH_BYTES: usize = 96;

impl Pool {
    pub(crate) fn new() -> Self {
        Self {
            small: Vec::with_capacity(SMALL_KEPT),
            large: Vec::new(),
            large_bytes: 0,
        }
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Msgbuf {
        match self.small.pop() {
            Some(buffer) => buffer,
            None => Msgbuf::from_vec(Vec::with_capacity(FRESH_BYTES)),
        }
    }

    /// A buffer with room for `bytes`, for a message that does not fit one packet.
    pub(crate) fn take_large(&mut self, bytes: usize) -> Msgbuf {
        let fitting = self.large.iter().rposition(|b| b.capacity() >= bytes);
        match fitting {
            Some(index) => {
                let buffer = self.large.swap_remove(index);
                self.large_bytes -= buffer.capacity();
                buffer
            }
            None => Msgbuf::from_vec(Vec::with_capacity(bytes)),
        }
    }

    #[inline]
    pub(crate) fn put(&mut self, mut buffer: Msgbuf) {
        buffer.clear();
        let capacity = buffer.capacity();
        if capacity <= SMALL_BYTES {
            if capacity > 0 && self.small.len() < SMALL_KEPT {
                self.small.push(buffer);
            }
        } else {
            self.put_large(buffer, capacity);
        }
    }

    #[cold]
    fn put_large(&mut self, buffer: Msgbuf, capacity: usize) {
        if self.large_bytes + capacity <= LARGE_KEPT_BYTES && self.large.len() < 64 {
            self.large_bytes += capacity;
            self.large.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn the_pool_keeps_small_and_large_apart_and_is_bounded() {
        let mut pool = Pool::new();
        let mut large = pool.take_large(1 << 20);
        large.head_mut().resize(1 << 20, 7);
        pool.put(large);
        assert!(pool.take().capacity() <= SMALL_BYTES);
        assert!(pool.take_large(1 << 19).capacity() >= 1 << 20);
        for _ in 0..3 * SMALL_KEPT {
            pool.put(Msgbuf::from_vec(Vec::with_capacity(64)));
        }
        assert_eq!(pool.small.len(), SMALL_KEPT);
    }
}
