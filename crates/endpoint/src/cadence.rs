//! When to flush within a burst.
//!
//! The frames that a burst causes leave at its end, which is cheapest. But handlers and
//! continuations may take long; then both sides would work in turns, each asleep over an empty
//! queue while the other one works. So the loop flushes after about every [`FLUSH_NS`] of work. It
//! reads the clock for that every [`MAX_STRIDE`] frames, more often if frames take longer, and
//! never in a burst of fewer frames.

use crate::shares::{SLICE_NS, SLOW_NS};

/// A burst is flushed before its end after so much work.
pub(crate) const FLUSH_NS: u64 = 20_000;
/// Frames between two readings of the clock within a burst, at most.
const MAX_STRIDE: u32 = 16;

/// When to flush within a burst.
#[derive(Debug)]
pub(crate) struct FlushCadence {
    /// Frames between two readings of the clock: 1 to [`MAX_STRIDE`]. Kept from burst to burst.
    stride: u32,
    /// Frames until the next reading.
    left: u32,
    /// When the work began that is not flushed, and how many frames it has.
    since_ns: u64,
    frames: u32,
    /// When the burst began.
    burst_ns: u64,
}

impl Default for FlushCadence {
    fn default() -> Self {
        Self {
            stride: MAX_STRIDE,
            left: MAX_STRIDE,
            since_ns: 0,
            frames: 0,
            burst_ns: 0,
        }
    }
}

impl FlushCadence {
    pub(crate) fn begin_burst(&mut self, now_ns: u64) {
        self.left = self.stride;
        self.since_ns = now_ns;
        self.frames = 0;
        self.burst_ns = now_ns;
    }

    /// Counts a handled frame. True: read the clock for [`FlushCadence::end_stride`].
    #[inline]
    pub(crate) fn reads_clock(&mut self) -> bool {
        self.left -= 1;
        self.left == 0
    }

    /// The end of a stride. `away_ns` says for how much of such a time the kernel had stopped the thread.
    pub(crate) fn end_stride(
        &mut self,
        now_ns: u64,
        away_ns: impl FnOnce(u64) -> u64,
    ) -> StrideEnd {
        let mut elapsed_ns = now_ns.saturating_sub(self.since_ns);
        let is_flush_due = elapsed_ns >= FLUSH_NS;
        if elapsed_ns >= 2 * FLUSH_NS {
            elapsed_ns = elapsed_ns.saturating_sub(away_ns(elapsed_ns));
        }
        self.frames += self.stride;
        let is_slow = is_flush_due
            && elapsed_ns >= u64::from(self.frames) * SLOW_NS
            && now_ns.saturating_sub(self.burst_ns) >= SLICE_NS;
        if is_flush_due {
            self.since_ns = now_ns;
            self.frames = 0;
        }
        self.stride = if elapsed_ns >= 2 * FLUSH_NS {
            (self.stride / 2).max(1)
        } else {
            (self.stride + u32::from(!is_flush_due)).min(MAX_STRIDE)
        };
        self.left = self.stride;
        StrideEnd {
            is_flush_due,
            slow_since_ns: is_slow.then_some(self.burst_ns),
        }
    }
}

/// What to do at the end of a stride.
pub(crate) struct StrideEnd {
    pub(crate) is_flush_due: bool,
    /// When the burst began, if it takes long, and its frames do.
    pub(crate) slow_since_ns: Option<u64>,
}
