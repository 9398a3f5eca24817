//! When to flush within a burst.
//!
//! The frames that a burst causes leave at its end, which is cheapest. But handlers and
//! continuations may take long; then both sides would work in turns, each asleep over an empty
//! queue while the other one works. So the loop flushes after about every [`FLUSH_NS`] of work. It
//! reads the clock for that every [`MAX_STRIDE`] frames, more often if frames take longer, and
//! never in a burst of fewer frames.

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
    /// When the work began that is not flushed.
    since_ns: u64,
    /// Frames of the burst that began then, as far as the clock was read.
    frames: usize,
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
    }

    /// Counts a handled frame. True: read the clock for [`FlushCadence::end_stride`].
    #[inline]
    pub(crate) fn reads_clock(&mut self) -> bool {
        self.left -= 1;
        self.left == 0
    }

    /// How many frames of the burst that began then are handled; and whether to flush now.
    pub(crate) fn end_stride(&mut self, burst_ns: u64, now_ns: u64) -> (usize, bool) {
        // Here and not when it begins: most bursts have fewer frames than a stride.
        if std::mem::replace(&mut self.burst_ns, burst_ns) != burst_ns {
            self.frames = 0;
        }
        self.frames += self.stride as usize;
        let elapsed_ns = now_ns.saturating_sub(self.since_ns);
        let due = elapsed_ns >= FLUSH_NS;
        if due {
            self.since_ns = now_ns;
        }
        self.stride = if elapsed_ns >= 2 * FLUSH_NS {
            (self.stride / 2).max(1)
        } else {
            (self.stride + u32::from(!due)).min(MAX_STRIDE)
        };
        self.left = self.stride;
        (self.frames, due)
    }
}
