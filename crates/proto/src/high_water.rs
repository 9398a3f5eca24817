//! The most of an amount in a stretch of time.

/// The most that an amount was since it was last asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct HighWater(usize);

impl HighWater {
    /// The amount is this now. To be called when it has become more.
    #[inline]
    pub fn note(&mut self, now: usize) {
        self.0 = self.0.max(now);
    }

    /// The most that it was, `now` included, with which the next stretch begins.
    pub fn take(&mut self, now: usize) -> usize {
        std::mem::replace(&mut self.0, now).max(now)
    }
}
