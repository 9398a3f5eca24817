//! A check that no receive chunk is lost when a device and its workers end.
//!
//! ```text
//!   fill rings ─▶ kernel ─▶ rx rings ─▶ held, handed over, answered ─▶ fill ring
//!                              └─▶ tx rings ─▶ kernel ─▶ completion ring ─▶┘
//! ```
//!
//! The chunks at the kernel can only be counted by what went in and what came out. Each part of a
//! device reports at its end what went through it. The last one compares.

use std::sync::atomic::{AtomicU32, Ordering};

/// The sum of what the parts of a device report.
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

    /// A part of the device ends: it has so many chunks, or has given them away.
    pub(crate) fn add(&self, count: u32) {
        self.found.fetch_add(count, Ordering::Relaxed);
    }

    /// A part of the device has received so many chunks. Counts wrap, as the indices of rings do.
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
    fn a_lost_chunk_is_noticed() {
        let chunks = ChunkAccounting::new(64);
        chunks.add(70);
        chunks.subtract(7);
    }
}
