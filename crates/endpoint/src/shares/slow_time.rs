//! How much of the thread's time slow work takes.
//!
//! Single runs that take long say little: in a virtual machine a timer's interrupt may take 60 us, 250 times a
//! second, and now and then the processor is away for a millisecond, and the kernel does not tell. So slow work
//! fills a bucket that leaks, and counts when the bucket is full.

use starling_io::{Clock, ThreadWait};

/// Slow work of so long, one after the other, is much.
const MUCH_NS: u64 = 200_000;
/// The bucket holds no more: what was slow is soon forgotten.
const MOST_NS: u64 = 2 * MUCH_NS;
/// A single piece of slow work fills half the bucket at most, unless it takes so long.
const ALONE_NS: u64 = 2_000_000;
/// The bucket leaks this part of the time of other work: slow work that takes less keeps nobody waiting.
const LEAK: u64 = 8;
/// While time is shared, the kernel is asked at most so often whether the thread was stopped: that takes some
/// microseconds.
const LOOK_AGAIN_NS: u64 = 5_000_000;

#[derive(Default)]
pub(super) struct SlowTime {
    /// What is in the bucket.
    level_ns: u64,
    /// Since when the bucket leaks.
    leaked_ns: u64,
    /// The time before this is accounted for: it was slow, or it was not.
    accounted_ns: u64,
    /// How long the thread had waited for a processor when that was last read, and when that was.
    waited: Option<ThreadWait>,
    looked_ns: u64,
}

impl SlowTime {
    /// How long the kernel had stopped the thread, while it could run, since this was last asked. The time until
    /// now is accounted for by whoever asks.
    pub(super) fn away_ns(&mut self, clock: &impl Clock, now_ns: u64, is_shared: bool) -> u64 {
        self.accounted_ns = now_ns;
        if is_shared && now_ns.saturating_sub(self.looked_ns) < LOOK_AGAIN_NS {
            return 0;
        }
        self.looked_ns = now_ns;
        let now = clock.thread_wait();
        let before = std::mem::replace(&mut self.waited, now);
        match (before, now) {
            (Some(before), Some(now)) if before.thread == now.thread => {
                now.waited_ns.saturating_sub(before.waited_ns)
            }
            _ => 0,
        }
    }

    /// Of the time since then, the part that is not accounted for.
    pub(super) fn since(&self, began_ns: u64, now_ns: u64) -> u64 {
        now_ns.saturating_sub(began_ns.max(self.accounted_ns))
    }

    /// Slow work has taken so long. Returns whether slow work takes much of the time.
    pub(super) fn add(&mut self, slow_ns: u64, now_ns: u64) -> bool {
        let others_ns = now_ns.saturating_sub(self.leaked_ns + slow_ns);
        self.leaked_ns = now_ns;
        self.accounted_ns = now_ns;
        let piece_ns = match slow_ns {
            ALONE_NS.. => MOST_NS,
            _ => slow_ns.min(MUCH_NS / 2),
        };
        let left_ns = self.level_ns.saturating_sub(others_ns / LEAK);
        self.level_ns = (left_ns + piece_ns).min(MOST_NS);
        self.level_ns >= MUCH_NS
    }
}
