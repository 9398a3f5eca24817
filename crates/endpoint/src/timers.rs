//! Timers: a binary heap from which nothing is removed early.
//!
//! Most deadlines never fire, because the call is over first. Such a dead entry stays until its
//! time comes or until dead entries outnumber the live ones; then the heap is rebuilt without them.
//! So the heap has at most twice as many entries as are armed, at an amortised cost of O(1) per
//! entry.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The time of a deadline that never comes.
pub(crate) const NEVER: u64 = u64::MAX;

/// This many dead entries are not worth a rebuild.
const SLACK: usize = 64;

/// Keys, ordered by the time (in nanoseconds) at which they are due.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(u64, u64)>>,
    armed: usize,
}

impl Timers {
    /// Adds a key. `is_live` tells whether another key is still armed.
    pub(crate) fn arm(&mut self, at_ns: u64, key: u64, is_live: impl Fn(u64) -> bool) {
        if self.heap.len() > 2 * self.armed + SLACK {
            self.heap.retain(|Reverse((_, key))| is_live(*key));
        }
        self.heap.push(Reverse((at_ns, key)));
        self.armed += 1;
    }

    /// Counts an armed key as dead.
    pub(crate) fn disarm(&mut self) {
        debug_assert!(self.armed > 0, "armed before");
        self.armed -= 1;
    }

    /// When the next key is due. Drops dead entries that come before it.
    pub(crate) fn next(&mut self, is_live: impl Fn(u64) -> bool) -> Option<u64> {
        while let Some(Reverse((at_ns, key))) = self.heap.peek() {
            if is_live(*key) {
                return Some(*at_ns);
            }
            self.heap.pop();
        }
        None
    }

    /// When [`Timers::pop_due`] next returns a key, dead or live; [`NEVER`] if there is none.
    pub(crate) fn earliest_ns(&self) -> u64 {
        self.heap.peek().map_or(NEVER, |Reverse((at_ns, _))| *at_ns)
    }

    /// Whether [`Timers::pop_due`] would return a key.
    #[inline]
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        matches!(self.heap.peek(), Some(Reverse((at_ns, _))) if *at_ns <= now_ns)
    }

    /// A key that is due, dead or live. The caller disarms live ones.
    pub(crate) fn pop_due(&mut self, now_ns: u64) -> Option<u64> {
        if self.is_due(now_ns) {
            self.heap.pop().map(|Reverse((_, key))| key)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_in_order_of_time() {
        let mut timers = Timers::default();
        for (at_ns, key) in [(30, 1), (10, 2), (20, 3)] {
            timers.arm(at_ns, key, |_| true);
        }
        assert_eq!(timers.next(|key| key != 2), Some(20));
        assert_eq!(timers.pop_due(19), None);
        assert_eq!(timers.pop_due(30), Some(3));
        assert_eq!(timers.pop_due(30), Some(1));
        assert_eq!(timers.pop_due(30), None);
    }

    #[test]
    fn dead_entries_do_not_pile_up() {
        let mut timers = Timers::default();
        for key in 0..10_000 {
            timers.arm(1 << 40, key, |k| k + 10 > key);
            if key >= 10 {
                timers.disarm();
            }
            assert!(timers.heap.len() <= 2 * timers.armed + SLACK + 1);
        }
    }
}
