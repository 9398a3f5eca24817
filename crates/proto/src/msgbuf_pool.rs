//! The pool of message buffers.

use starling_msgbuf::Msgbuf;

/// The most memory that a slot keeps for its next message.
pub(crate) const KEPT_BYTES: usize = 512;

/// Whether a buffer has more memory than a slot keeps for its next message.
#[inline]
pub(crate) fn is_bulky(message: &Msgbuf) -> bool {
    message.has_tail() || message.capacity() > KEPT_BYTES
}

/// The memory that a kept message counts for. A vector that grew has up to twice the bytes of its message,
/// which a large one does not touch; a buffer that was used before has up to [`SMALL_BYTES`].
pub(crate) fn memory_of(message: &Msgbuf) -> usize {
    message.len().max(message.capacity().min(SMALL_BYTES))
}

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
