//! Buffers of large messages, to use again: to get so much memory from the system takes longer than to fill it. What
//! hands messages on from one endpoint to others has them share their buffers, for they go where the messages go.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use starling_msgbuf::Msgbuf;

use crate::msgbuf_pool::Stack;

/// Memory of buffers that are kept, at most.
const KEPT_BYTES: usize = 128 << 20;
/// Buffers that are kept, at most.
const KEPT: usize = 64;
/// Buffers that one step frees.
const STEP: usize = 1;
/// A message gets a buffer of so many times its size at most.
const ROOMIEST: usize = 2;
/// The least time in which a buffer was not used before it is freed.
const STRETCH_NS: u64 = 4_000_000_000;

/// Clones share the buffers.
#[derive(Clone, Debug, Default)]
pub struct LargeBuffers(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Memory of those that are kept. Changed with the lock.
    bytes: AtomicUsize,
    /// Nobody looks after those that come back, until the next one is taken.
    rests: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    stack: Stack,
    stretch_begun: u64,
}

impl LargeBuffers {
    /// An empty buffer with room for so many bytes.
    pub fn take(&self, bytes: usize) -> Msgbuf {
        let taken = {
            let mut state = self.lock();
            self.0.rests.store(false, Ordering::Relaxed);
            let taken = (state.stack).take(bytes..=bytes.saturating_mul(ROOMIEST));
            self.subtract(taken.as_slice());
            taken
        };
        taken.unwrap_or_else(|| Msgbuf::from_vec(Vec::with_capacity(bytes)))
    }

    /// The bytes of a message that came. Their memory comes back when nobody has them any more, if somebody uses these
    /// buffers then.
    pub fn lend(&self, message: Vec<u8>) -> Bytes {
        Bytes::from_owner(Lent {
            message,
            home: Arc::downgrade(&self.0),
        })
    }

    /// An endpoint that uses them is at rest. What comes back is freed until one is taken.
    pub fn rest(&self) {
        self.0.rests.store(true, Ordering::Relaxed);
    }

    /// Frees all.
    pub fn clear(&self) {
        let freed = {
            let mut state = self.lock();
            let freed: Vec<Msgbuf> = std::iter::from_fn(|| state.stack.pop()).collect();
            self.subtract(&freed);
            freed
        };
        drop(freed);
    }

    /// Keeps an empty buffer. The one that was used least lately goes if there are too many.
    #[cold]
    pub(crate) fn put(&self, buffer: Msgbuf) {
        self.put_locked(self.lock(), buffer);
    }

    fn put_locked(&self, mut state: MutexGuard<'_, State>, buffer: Msgbuf) {
        let capacity = buffer.capacity();
        if capacity > KEPT_BYTES {
            return;
        }
        // Freed without the lock.
        let mut freed = Vec::new();
        self.0.bytes.fetch_add(capacity, Ordering::Relaxed);
        state.stack.push(buffer);
        while self.bytes() > KEPT_BYTES || state.stack.len() > KEPT {
            let oldest = state.stack.take_oldest();
            self.subtract(std::slice::from_ref(&oldest));
            freed.push(oldest);
        }
        drop(state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let state = self.0.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    fn subtract(&self, taken: &[Msgbuf]) {
        let bytes = taken.iter().map(Msgbuf::capacity).sum();
        self.0.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Memory of those that are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// A stretch of time is over, unless another endpoint has just said so.
    pub(crate) fn begin_stretch(&self, now: u64) {
        let mut state = self.lock();
        if now.saturating_sub(state.stretch_begun) >= STRETCH_NS {
            state.stretch_begun = now;
            state.stack.begin_stretch();
        }
    }

    /// Frees some that the last stretch did not use. Returns whether more are left.
    pub(crate) fn drop_unused(&self) -> bool {
        let mut state = self.lock();
        let freed: Vec<Msgbuf> = state.stack.drain_unused(STEP).collect();
        self.subtract(&freed);
        let more = state.stack.has_unused();
        drop(state);
        drop(freed);
        more
    }
}

/// A message that somebody has.
struct Lent {
    message: Vec<u8>,
    home: Weak<Shared>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.message
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(home) = self.home.upgrade().map(LargeBuffers) else {
            return;
        };
        let mut message = mem::take(&mut self.message);
        message.clear();
        // In the child of a fork a thread that is not there may have the lock.
        let state = home.0.state.try_lock();
        if let Ok(state) = state
            && !home.0.rests.load(Ordering::Relaxed)
        {
            home.put_locked(state, Msgbuf::from_vec(message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(bytes: usize) -> Msgbuf {
        Msgbuf::from_vec(Vec::with_capacity(bytes))
    }

    #[test]
    fn a_buffer_comes_back_to_whoever_shares_it() {
        let (one, other) = (LargeBuffers::default(), LargeBuffers::default());
        let sharing = one.clone();
        one.put(buffer(1 << 20));
        assert_eq!(other.take(1 << 19).capacity(), 1 << 19);
        assert_eq!(sharing.take(1 << 19).capacity(), 1 << 20);
        assert_eq!((one.bytes(), sharing.bytes()), (0, 0));
    }

    #[test]
    fn what_is_lent_comes_back_with_its_last_reference() {
        let buffers = LargeBuffers::default();
        let lent = buffers.lend(vec![7; 1 << 20]);
        let part = lent.slice(5..9);
        drop(lent);
        assert_eq!((&part[..], buffers.bytes()), (&[7; 4][..], 0));
        drop(part);
        let again = buffers.take(1 << 20);
        assert!(again.is_empty() && again.capacity() == 1 << 20);
    }

    #[test]
    fn what_comes_back_is_freed_where_nobody_would_free_it_later() {
        let buffers = LargeBuffers::default();
        let [first, second, third] = [0; 3].map(|_| buffers.lend(vec![7; 1 << 20]));
        buffers.rest();
        drop(first);
        assert_eq!(buffers.bytes(), 0);
        drop(buffers.take(5000));
        drop(second);
        assert_eq!(buffers.bytes(), 1 << 20, "somebody uses them again");
        let watched = Arc::downgrade(&buffers.0);
        drop(buffers);
        assert!(watched.upgrade().is_none(), "nor are they kept for it");
        drop(third);
    }

    #[test]
    fn a_small_message_leaves_large_buffers_to_others() {
        let buffers = LargeBuffers::default();
        buffers.put(buffer(8 << 20));
        assert_eq!(buffers.take(9 << 10).capacity(), 9 << 10);
        assert_eq!(buffers.take(4 << 20).capacity(), 8 << 20);
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let buffers = LargeBuffers::default();
        buffers.put(buffer(100 << 20));
        buffers.put(buffer(20 << 20));
        buffers.put(buffer(10 << 20));
        assert_eq!(buffers.bytes(), 30 << 20);
        buffers.put(buffer(KEPT_BYTES + 1));
        assert_eq!(buffers.bytes(), 30 << 20);
        for _ in 0..2 * KEPT {
            buffers.put(buffer(5000));
        }
        assert_eq!(buffers.bytes(), KEPT * 5000);
    }

    #[test]
    fn what_a_stretch_did_not_use_is_freed_step_by_step() {
        let buffers = LargeBuffers::default();
        let mut now = STRETCH_NS;
        buffers.begin_stretch(now);
        for _ in 0..3 {
            buffers.put(buffer(1 << 20));
        }
        now += STRETCH_NS;
        buffers.begin_stretch(now);
        assert!(!buffers.drop_unused(), "all of them are new");
        let used = buffers.take(1 << 20);
        buffers.put(used);
        buffers.begin_stretch(now + STRETCH_NS - 1);
        assert!(!buffers.drop_unused(), "the stretch is not over");
        buffers.begin_stretch(now + STRETCH_NS);
        assert!(buffers.drop_unused() && !buffers.drop_unused());
        assert_eq!(buffers.bytes(), 1 << 20);
    }
}
