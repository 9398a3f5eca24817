//! Who sleeps, so that whoever has something for them knows without a fence.
//!
//! ```text
//!   gives something                       falls asleep
//!   ---------------                       ------------
//!   the item is in its slot               asleep[me] := true, count += 1
//!   (light fence)                         (heavy fence)
//!   count > 0? look who, and wake one     anything in a slot? do not sleep
//! ```
//!
//! One of the two sees the other's store: see [`fences`](crate::fences). While nobody sleeps, the
//! giving side reads one line that nobody writes.

use std::fmt;
use std::ops::Range;

use crossbeam_utils::CachePadded;

use crate::fences::Fences;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// Which of so many threads sleep, or are about to and look for the last time.
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

    /// Whether anybody sleeps who may have missed what this thread has just given. A full fence
    /// has been executed if so.
    #[inline]
    pub fn any(&self) -> bool {
        self.fences.light();
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        fence(Ordering::SeqCst);
        true
    }

    /// Has a thread that sleeps counted as awake: the caller wakes it. False if it does not sleep
    /// or somebody else wakes it.
    #[inline]
    pub fn mark_awake(&self, thread: usize) -> bool {
        let asleep = &self.asleep[thread];
        asleep.load(Ordering::Relaxed) && asleep.swap(false, Ordering::Release)
    }

    /// The same for the first one of several.
    pub fn mark_one_awake(&self, mut threads: Range<usize>) -> Option<usize> {
        threads.find(|thread| self.mark_awake(*thread))
    }

    /// Falls asleep, unless `look` finds something. `park` returns once the thread was called; its
    /// argument is false if the kernel refused to order this sleep with what others give, so that
    /// `park` must return after a while by itself.
    pub fn sleep<R>(
        &self,
        thread: usize,
        look: impl FnOnce() -> Option<R>,
        park: impl FnOnce(bool),
    ) -> Option<R> {
        // An exchange, which comes after a call of the sleep before that is late: see `call`.
        self.asleep[thread].swap(true, Ordering::Acquire);
        // Release: who sees the count sees, after its full fence, who it is.
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
    fn a_sleeper_is_called_once() {
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
    fn who_finds_something_does_not_sleep() {
        let sleepers = Sleepers::new(1);
        let found = sleepers.sleep(0, || Some(7), |_| panic!("it should not sleep"));
        assert_eq!(found, Some(7));
        assert!(!sleepers.any() && !sleepers.mark_awake(0));
    }
}
