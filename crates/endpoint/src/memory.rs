//! Memory that the endpoint held for its peers, and holds no more, goes back to the system.
//!
//! ```text
//!  held  │    ▄▆█▇▅▂
//!        │   ▟██████▖                      the pool keeps some       unused for a stretch:
//!        │  ▟████████▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▖  it is freed
//!        └──┴───────────┴───────────┴─────────────┴───────────┴─────────────┴───────▶ stretches
//!            the peak      the most of the stretch is far below it: what was freed goes back, and again
//! ```
//!
//! An allocator keeps what is freed, and cannot know that a burst is over. The endpoint knows: it counts what it
//! holds. If the most of a whole stretch is far below the peak, the difference was freed, and will not be wanted again
//! at once. So a load that comes and goes within seconds costs nothing. What it still held goes back when it ends.

use starling_io::return_freed_memory;

use crate::core::Core;

/// How long a stretch of time is. What was used within it stays.
const STRETCH_NS: u64 = 5_000_000_000;
/// The time from one step to the next in which the pool frees buffers.
const STEP_NS: u64 = 50_000_000;
/// It is worth the time to look through the allocator's memory if so much was freed.
const WORTH_BYTES: usize = 32 << 20;

/// The most memory that something held since this was last called.
pub type HeldMost = Box<dyn FnMut() -> usize + Send>;

pub(crate) struct MemoryReturn {
    is_enabled: bool,
    begun_ns: u64,
    /// When this stretch ends, or the pool frees more.
    due_ns: u64,
    /// The pool has more to free.
    frees: bool,
    /// The most that was held in a stretch since freed memory last went back.
    peak: usize,
    /// What holds memory beside the endpoint.
    others: Vec<HeldMost>,
}

impl MemoryReturn {
    pub(crate) fn new(is_enabled: bool, now_ns: u64) -> Self {
        Self {
            is_enabled,
            begun_ns: now_ns,
            due_ns: now_ns + STRETCH_NS,
            frees: false,
            peak: 0,
            others: Vec::new(),
        }
    }

    pub(crate) fn count(&mut self, held_most: HeldMost) {
        self.others.push(held_most);
    }

    /// Whether there is something to do now.
    #[inline]
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns
    }

    /// When there is something to do, for an endpoint that last had work at `active_ns`. None: it holds nothing
    /// that is worth it.
    pub(crate) fn next_ns(&self, active_ns: u64) -> Option<u64> {
        let may_hold = active_ns >= self.begun_ns || self.peak >= WORTH_BYTES || self.frees;
        may_hold.then_some(self.due_ns)
    }

    #[cold]
    pub(crate) fn handle_due<R>(&mut self, core: &mut Core<R>) {
        let now_ns = core.now_ns;
        if now_ns >= self.begun_ns + STRETCH_NS {
            self.begun_ns = now_ns;
            core.proto.begin_stretch(now_ns);
            let most = self.take_most_held(core);
            if self.end_stretch(most) && self.is_enabled {
                return_freed_memory();
            }
        }
        self.frees = core.proto.drop_unused();
        self.due_ns = self.begun_ns + STRETCH_NS;
        if self.frees {
            self.due_ns = self.due_ns.min(now_ns + STEP_NS);
        }
    }

    /// The most that the endpoint and others held in this stretch.
    fn take_most_held<R>(&mut self, core: &mut Core<R>) -> usize {
        let others: usize = self.others.iter_mut().map(|held_most| held_most()).sum();
        core.proto.take_most_held() + core.pending.take_most_held() + others
    }

    /// The endpoint is about to be dropped.
    pub(crate) fn note_end<R>(&mut self, core: &mut Core<R>) {
        self.peak = self.peak.max(self.take_most_held(core));
    }

    /// A stretch has ended in which so much was held at most. Returns whether what was freed is to go back.
    fn end_stretch(&mut self, most: usize) -> bool {
        let goes_back = self.peak.saturating_sub(most) >= WORTH_BYTES;
        self.peak = if goes_back { most } else { self.peak.max(most) };
        goes_back
    }
}

impl Drop for MemoryReturn {
    fn drop(&mut self) {
        if self.end_stretch(0) && self.is_enabled {
            return_freed_memory();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_back_once_when_a_whole_stretch_did_not_need_it() {
        let mut memory = MemoryReturn::new(true, 0);
        let mut goes_back = |mib: usize| memory.end_stretch(mib << 20);
        assert!(!goes_back(500) && !goes_back(400 + 100), "it is in use");
        assert!(!goes_back(469), "too little was freed");
        assert!(goes_back(128));
        assert!(!goes_back(128));
        assert!(goes_back(0) && !goes_back(0));
        // A load that needs it now and then in each stretch keeps it.
        for _ in 0..3 {
            assert!(!goes_back(500));
        }
        assert!(goes_back(10));
    }

    #[test]
    fn an_endpoint_that_holds_nothing_and_does_nothing_has_no_timer() {
        let mut memory = MemoryReturn::new(true, 10);
        assert_eq!(memory.next_ns(10), Some(10 + STRETCH_NS));
        memory.begun_ns = 11;
        assert_eq!(memory.next_ns(10), None);
        memory.end_stretch(WORTH_BYTES);
        assert!(memory.next_ns(10).is_some(), "what it holds may be freed");
        assert!(memory.end_stretch(0));
        assert_eq!(memory.next_ns(10), None);
        memory.frees = true;
        assert!(memory.next_ns(10).is_some());
    }
}
