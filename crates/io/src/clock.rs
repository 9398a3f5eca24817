//! Time as an argument: who needs it holds a [`Clock`].

/// A clock that never goes back, in nanoseconds since some fixed point.
pub trait Clock {
    /// Nanoseconds since the clock's origin.
    fn now_ns(&self) -> u64;

    /// An event loop is at a point of its turn. Nothing comes of it, and it costs nothing, unless
    /// the clock is one that finds out where time goes.
    #[inline(always)]
    fn mark(&self, point: Mark) {
        let _ = point;
    }
}

/// A point of an event loop's turn, see [`Clock::mark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The device is asked for datagrams.
    Receiving,
    /// It had some.
    Received,
    /// The protocol has taken a message, a request or a response, out of a datagram, and gives it
    /// to whoever it is for.
    Taken,
    /// What was appended is handed to the device.
    Sending,
    /// The device has it.
    Sent,
}

/// The machine's monotonic clock, counted from the moment of creation.
///
/// Reads the processor's time stamp counter where it ticks evenly, which takes a third of the time
/// of asking the system: an event loop reads its clock while a round trip over shared memory
/// waits. To make one takes about a millisecond the first time, for calibration.
#[derive(Clone, Debug)]
pub struct MonotonicClock {
    source: quanta::Clock,
    origin: u64,
}

impl MonotonicClock {
    /// A clock that reads about zero now.
    pub fn new() -> Self {
        let source = quanta::Clock::new();
        let origin = source.raw();
        Self { source, origin }
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for MonotonicClock {
    #[inline]
    fn now_ns(&self) -> u64 {
        self.source.delta_as_nanos(self.origin, self.source.raw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_go_back() {
        let clock = MonotonicClock::new();
        let mut last = clock.now_ns();
        for _ in 0..1000 {
            let now = clock.now_ns();
            assert!(now >= last);
            last = now;
        }
    }
}
