//! Memory that a burst took goes back: what was held at most, and what the pool did not use.

use super::Protocol;
use crate::LargeBuffers;

impl Protocol {
    /// The most memory that messages, sessions and the pool held since this was last asked, and now. What the
    /// caller has of messages that came does not count.
    pub fn take_most_held(&mut self) -> usize {
        let now = self.shared.held();
        self.shared.held_most.take(now)
    }

    /// A stretch of time is over: buffers of the pool that were not used in it are to be freed.
    pub fn begin_stretch(&mut self, now: u64) {
        self.shared.pool.begin_stretch(now);
    }

    /// The large buffers that this endpoint uses.
    pub fn large_buffers(&self) -> &LargeBuffers {
        &self.shared.pool.large
    }

    /// From now on this endpoint uses these large buffers, which others may share.
    pub fn share_large_buffers(&mut self, buffers: &LargeBuffers) {
        self.shared.pool.large = buffers.clone();
    }

    /// Frees some of those buffers, few enough for one turn. Returns whether more are left.
    pub fn drop_unused(&mut self) -> bool {
        self.shared.pool.drop_unused()
    }
}
