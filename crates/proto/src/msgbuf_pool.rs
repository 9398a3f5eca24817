//! The pool of message buffers.

use std::ops::RangeInclusive;

use starling_msgbuf::Msgbuf;

use crate::large_buffers::LargeBuffers;

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
///
/// What lies below the fewest buffers that a stretch of time left was not used in that time.
/// [`Pool::begin_stretch`] ends a stretch, and [`Pool::drop_unused`] frees so many, the lowest ones, a few at a
/// time: freeing takes time.
#[derive(Debug)]
pub(crate) struct Pool {
    small: Stack,
    pub(crate) large: LargeBuffers,
}

#[derive(Debug, Default)]
pub(crate) struct Stack {
    buffers: Vec<Msgbuf>,
    /// The fewest buffers of this stretch that one came to; or it has the fewest now. So taking one costs nothing.
    fewest: usize,
    /// Those of the last stretch, but for what was dropped since.
    unused: usize,
}

impl Stack {
    fn new(buffers: Vec<Msgbuf>) -> Self {
        Self {
            buffers,
            fewest: 0,
            unused: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.buffers.len()
    }

    #[inline]
    pub(crate) fn push(&mut self, buffer: Msgbuf) {
        self.fewest = self.fewest.min(self.buffers.len());
        self.buffers.push(buffer);
    }

    /// The last one with such a capacity.
    pub(crate) fn take(&mut self, capacity: RangeInclusive<usize>) -> Option<Msgbuf> {
        let fits = |buffer: &Msgbuf| capacity.contains(&buffer.capacity());
        let fitting = self.buffers.iter().rposition(fits)?;
        Some(self.buffers.remove(fitting))
    }

    pub(crate) fn pop(&mut self) -> Option<Msgbuf> {
        self.buffers.pop()
    }

    /// The lowest one.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn take_oldest(&mut self) -> Msgbuf {
        self.unused = self.unused.saturating_sub(1);
        self.fewest = self.fewest.saturating_sub(1);
        self.buffers.remove(0)
    }

    pub(crate) fn begin_stretch(&mut self) {
        self.unused = self.fewest.min(self.buffers.len());
        self.fewest = self.buffers.len();
    }

    /// Whether the last stretch did not use some.
    pub(crate) fn has_unused(&self) -> bool {
        self.unused > 0
    }

    /// Takes out unused buffers, at most so many.
    pub(crate) fn drain_unused(&mut self, at_most: usize) -> std::vec::Drain<'_, Msgbuf> {
        let count = self.unused.min(at_most).min(self.buffers.len());
        self.unused -= self.unused.min(at_most);
        self.fewest = self.fewest.saturating_sub(count);
        self.buffers.drain(..count)
    }
}

/// A buffer with more memory than this is kept apart, so that a large message does not end up
/// as the preallocated response of a small one.
const SMALL_BYTES: usize = 4096;
/// Small buffers kept: 4096 of at most 4 KiB are at most 16 MiB.
const SMALL_KEPT: usize = 4096;
/// Small buffers that one step frees.
const SMALL_STEP: usize = 64;
/// Memory of a fresh buffer: a small RPC with its header.
pub(crate) const FRESH_BYTES: usize = 96;

impl Pool {
    pub(crate) fn new() -> Self {
        Self {
            small: Stack::new(Vec::with_capacity(SMALL_KEPT)),
            large: LargeBuffers::default(),
        }
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Msgbuf {
        match self.small.buffers.pop() {
            Some(buffer) => buffer,
            None => Msgbuf::from_vec(Vec::with_capacity(FRESH_BYTES)),
        }
    }

    /// A buffer with room for `bytes`, for a message that does not fit one packet.
    pub(crate) fn take_large(&mut self, bytes: usize) -> Msgbuf {
        self.large.take(bytes)
    }

    #[inline]
    pub(crate) fn put(&mut self, mut buffer: Msgbuf) {
        buffer.clear();
        let capacity = buffer.capacity();
        if capacity <= SMALL_BYTES {
            if capacity > 0 && self.small.buffers.len() < SMALL_KEPT {
                self.small.push(buffer);
            }
        } else {
            self.large.put(buffer);
        }
    }

    /// The stretch of time is over in which what was not used is unused.
    pub(crate) fn begin_stretch(&mut self, now: u64) {
        self.small.begin_stretch();
        self.large.begin_stretch(now);
    }

    /// Frees some buffers that were not used in the stretch before this one. Returns whether more are left.
    pub(crate) fn drop_unused(&mut self) -> bool {
        drop(self.small.drain_unused(SMALL_STEP));
        self.large.drop_unused() | self.small.has_unused()
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
        assert_eq!(pool.small.buffers.len(), SMALL_KEPT);
    }

    #[test]
    fn what_a_stretch_of_time_does_not_use_is_freed_step_by_step() {
        let mut pool = Pool::new();
        for _ in 0..1000 {
            pool.put(Msgbuf::from_vec(Vec::with_capacity(64)));
        }
        pool.begin_stretch(0);
        assert!(!pool.drop_unused(), "all of them are new");
        // A hundred are in use now and then.
        for _ in 0..3 {
            let small: Vec<Msgbuf> = (0..100).map(|_| pool.take()).collect();
            small.into_iter().for_each(|buffer| pool.put(buffer));
        }
        pool.begin_stretch(0);
        let mut steps = 1;
        while pool.drop_unused() {
            assert_eq!(pool.small.buffers.len(), 1000 - steps * SMALL_STEP);
            steps += 1;
        }
        assert_eq!(steps, 900_usize.div_ceil(SMALL_STEP));
        assert_eq!(pool.small.buffers.len(), 100);
        // Nothing is used any more.
        for _ in 0..2 {
            pool.begin_stretch(0);
            while pool.drop_unused() {}
        }
        assert_eq!(pool.small.buffers.len(), 0);
    }

    #[test]
    fn buffers_that_are_used_again_meanwhile_are_not_freed() {
        let mut pool = Pool::new();
        let fill = |pool: &mut Pool| {
            (0..1000).for_each(|_| pool.put(Msgbuf::from_vec(Vec::with_capacity(64))));
        };
        fill(&mut pool);
        pool.begin_stretch(0);
        pool.begin_stretch(0);
        // All are unused, and then all are taken.
        let taken: Vec<Msgbuf> = (0..1000).map(|_| pool.take()).collect();
        assert!(pool.drop_unused(), "steps are left that find nothing");
        drop(taken);
        while pool.drop_unused() {}
        fill(&mut pool);
        assert!(!pool.drop_unused());
        assert_eq!(pool.small.buffers.len(), 1000);
        // The stretch in which all were taken leaves nothing unused.
        pool.begin_stretch(0);
        assert!(!pool.drop_unused());
        assert_eq!(pool.small.buffers.len(), 1000);
    }
}
