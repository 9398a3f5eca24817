//! Whether every receive chunk is somewhere when a device ends, its workers included.
//!
//! ```text
//!   fill rings ─▶ kernel ─▶ rx rings ─▶ held, handed over, answered ─▶ fill ring
//!                              └─▶ tx rings ─▶ kernel ─▶ completion ring ─▶┘
//! ```
//!
//! What the kernel has nobody can count but by what went in and came out. Each part of a device says
//! at its end what went through it; the last one compares.

use std::sync::atomic::{AtomicU32, Ordering};

/// The sum of what the parts of a device know.
pub(crate) struct ChunkAccounting {
    all: u32,
    found: AtomicU32,
}

impl ChunkAccounting {
    pub(crate) fn new(all: usize) -> Self {
        Self {
            all: all as u32,
            found: AtomicU32::new(0),
        }
    }

    /// A part of the device ends: so many chunks are there, or were given to somebody.
    pub(crate) fn add(&self, count: u32) {
        self.found.fetch_add(count, Ordering::Relaxed);
    }

    /// So many were taken from somebody. As indices of rings do, counts go round.
    pub(crate) fn subtract(&self, count: u32) {
        self.found.fetch_sub(count, Ordering::Relaxed);
    }
}

impl Drop for ChunkAccounting {
    fn drop(&mut self) {
        debug_assert_eq!(
            *self.found.get_mut(),
            self.all,
            "receive chunks are conserved"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "are conserved")]
    fn one_that_is_nowhere_is_missed() {
        let chunks = ChunkAccounting::new(64);
        chunks.add(70);
        chunks.subtract(7);
    }
}
