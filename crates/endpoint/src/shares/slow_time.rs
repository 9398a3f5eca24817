//! How much of the thread's time slow work takes.
//!
//! Single runs that take long say little: in a virtual machine a timer's interrupt may take 60 us, 250 times a
//! second, and now and then the processor is away for a millisecond, and the kernel does not tell. So slow work
//! fills two buckets that leak, and counts when one of them is full: a small one, which is full soon, and of which
//! a single piece fills half; and a large one for pieces that come with pauses between them.

use starling_io::{Clock, ThreadWait};

/// The small bucket is full with so much.
const MUCH_NS: u64 = 200_000;
/// So is the large one.
const OFTEN_NS: u64 = 4_000_000;
/// A single piece of slow work that takes so long fills the small bucket, too.
const ALONE_NS: u64 = 2_000_000;
/// The buckets leak this part of the time that is not slow work's: slow work that takes less has no backlog.
const LEAK: u64 = 8;
/// While time is shared, the kernel is asked at most so often whether the thread was stopped: that takes some
/// microseconds.
const LOOK_AGAIN_NS: u64 = 5_000_000;

#[derive(Default)]
pub(super) struct SlowTime {
    small_ns: u64,
    large_ns: u64,
    /// Since when the buckets leak.
    leaked_ns: u64,
    /// The time before this is accounted for: it was slow, or the thread was stopped.
    accounted_ns: u64,
    /// How long the thread had waited for a processor when that was last read, and when that was.
    waited: Option<ThreadWait>,
    looked_ns: u64,
}

impl SlowTime {
    /// Work has lasted so long until now. Returns for how much of it the kernel had stopped the thread, while it
    /// could run, as far as it was not asked before.
    pub(super) fn away_ns(
        &mut self,
        clock: &impl Clock,
        now_ns: u64,
        lasted_ns: u64,
        is_shared: bool,
    ) -> u64 {
        if is_shared && now_ns.saturating_sub(self.looked_ns) < LOOK_AGAIN_NS {
            return 0;
        }
        self.looked_ns = now_ns;
        let now = clock.thread_wait();
        let before = std::mem::replace(&mut self.waited, now);
        let away_ns = match (before, now) {
            (Some(before), Some(now)) if before.thread == now.thread => {
                now.waited_ns.saturating_sub(before.waited_ns)
            }
            _ => 0,
        };
        if away_ns > 0 {
            // As if it had been stopped at first.
            let worked_ns = lasted_ns.saturating_sub(away_ns);
            self.accounted_ns = self.accounted_ns.max(now_ns.saturating_sub(worked_ns));
        }
        away_ns
    }

    /// The work that began then is slow. Returns whether slow work takes much of the time.
    pub(super) fn add(&mut self, began_ns: u64, now_ns: u64) -> bool {
        let slow_ns = now_ns.saturating_sub(began_ns.max(self.accounted_ns));
        let leaked_ns = now_ns.saturating_sub(self.leaked_ns + slow_ns) / LEAK;
        self.leaked_ns = now_ns;
        self.accounted_ns = now_ns;
        let piece_ns = match slow_ns {
            ALONE_NS.. => MUCH_NS,
            _ => slow_ns.min(MUCH_NS / 2),
        };
        // They hold no more than twice what is much: what was slow is soon forgotten.
        let small_ns = self.small_ns.saturating_sub(leaked_ns) + piece_ns;
        let large_ns = self.large_ns.saturating_sub(leaked_ns) + slow_ns;
        self.small_ns = small_ns.min(2 * MUCH_NS);
        self.large_ns = large_ns.min(2 * OFTEN_NS);
        self.small_ns >= MUCH_NS || self.large_ns >= OFTEN_NS
    }
}
