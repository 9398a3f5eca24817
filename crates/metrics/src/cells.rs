//! Numbers that one thread or many write and any thread reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many threads write to a recorder at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// One at a time: each sees what the one before has written.
    One,
    /// Several.
    Many,
}

/// A number that others may read while it is written.
#[derive(Debug, Default)]
pub(crate) struct Cell(AtomicU64);

impl Cell {
    /// Adds to a number with one writer: no locked instruction.
    #[inline(always)]
    pub(crate) fn add_alone(&self, more: u64) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(more);
        self.0.store(sum, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn add(&self, more: u64, writers: Writers) {
        match writers {
            Writers::One => self.add_alone(more),
            Writers::Many => {
                self.0.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    #[inline]
    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets a number with one writer, by this one.
    #[inline]
    pub(crate) fn set_alone(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Takes the value. Of a number with one writer, by this one.
    #[inline]
    pub(crate) fn take_alone(&self) -> u64 {
        let value = self.value();
        self.set_alone(0);
        value
    }
}
