//! Which workers sleep. The dispatcher learns this without a fence, as in an event count.
//!
//! ```text
//!   the dispatcher pushes an item         a worker goes to sleep
//!   -----------------------------         ----------------------
//!   the item is in its slot               asleep[me] := true, count += 1
//!   (light fence)                         (heavy fence)
//!   count > 0? find a sleeper, wake it    an item in a slot? do not sleep
//! ```
//!
//! One of the two sees the other's store: see [`fences`](crate::fences). While all workers are
//! awake, the dispatcher reads one line that no thread writes.

use std::fmt;
use std::ops::Range;

use crossbeam_utils::CachePadded;

use crate::fences::Fences;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// Which threads sleep, or are about to sleep and look for items for the last time.
pub struct Sleepers {
    count: CachePadded<AtomicUsize>,
    asleep: Box<[CachePadded<AtomicBool>]>,
    fences: Fences,
}

impl fmt::Debug for Sleepers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleepers")
            .field("count", &self.count.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl Sleepers {
    /// All of `threads` are awake.
    pub fn new(threads: usize) -> Self {
        Self::with(threads, Fences::new())
    }

    fn with(threads: usize, fences: Fences) -> Self {
        let awake = || CachePadded::new(AtomicBool::new(false));
        Self {
            count: CachePadded::new(AtomicUsize::new(0)),
            asleep: std::iter::repeat_with(awake).take(threads).collect(),
            fences,
        }
    }

    /// Whether a thread sleeps that may have missed the item that this thread has just pushed. If
    /// so, this call has executed a full fence.
    #[inline]
    pub fn any(&self) -> bool {
        self.fences.light();
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        fence(Ordering::SeqCst);
        true
    }

    /// Marks a sleeping thread as awake: the caller must wake it. False: it does not sleep, or
    /// another thread wakes it.
    #[inline]
    pub fn mark_awake(&self, thread: usize) -> bool {
        let asleep = &self.asleep[thread];
        asleep.load(Ordering::Relaxed) && asleep.swap(false, Ordering::Release)
    }

    /// As [`Sleepers::mark_awake`], for the first of several threads that sleeps.
    pub fn mark_one_awake(&self, mut threads: Range<usize>) -> Option<usize> {
        threads.find(|thread| self.mark_awake(*thread))
    }

    /// Goes to sleep, unless `look` finds an item. `park` returns once the thread was woken. Its
    /// argument is false if the kernel refused the heavy fence: then a wake-up may be missed, and
    /// `park` must return after a while by itself.
    pub fn sleep<R>(
        &self,
        thread: usize,
        look: impl FnOnce() -> Option<R>,
        park: impl FnOnce(bool),
    ) -> Option<R> {
        // An exchange: it is ordered after a late `mark_awake` of the sleep before.
        self.asleep[thread].swap(true, Ordering::Acquire);
        // Release: a thread that sees the count sees, after its full fence, which thread sleeps.
        self.count.fetch_add(1, Ordering::Release);
        let ordered = self.fences.heavy();
        let found = look();
        if found.is_none() {
            park(ordered);
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.asleep[thread].store(false, Ordering::Relaxed);
        found
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_is_woken_once() {
        for fences in [Fences::new(), Fences::symmetric()] {
            let sleepers = Sleepers::with(2, fences);
            assert!(!sleepers.any());
            let found: Option<()> = sleepers.sleep(
                1,
                || None,
                |ordered| {
                    assert!(ordered);
                    assert!(sleepers.any());
                    assert!(!sleepers.mark_awake(0));
                    assert_eq!(sleepers.mark_one_awake(0..2), Some(1));
                    assert_eq!(sleepers.mark_one_awake(0..2), None);
                },
            );
            assert!(found.is_none() && !sleepers.any());
        }
    }

    #[test]
    fn a_thread_that_finds_an_item_does_not_sleep() {
        let sleepers = Sleepers::new(1);
        let found = sleepers.sleep(0, || Some(7), |_| panic!("it should not sleep"));
        assert_eq!(found, Some(7));
        assert!(!sleepers.any() && !sleepers.mark_awake(0));
    }
}
