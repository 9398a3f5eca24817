//! Time as an argument: code that needs it holds a [`Clock`].

/// A clock that never goes back, in nanoseconds since some fixed point.
pub trait Clock {
    /// Nanoseconds since the clock's origin.
    fn now_ns(&self) -> u64;

    /// An event loop is at a point of its turn. Does nothing and costs nothing, unless the clock
    /// measures where time goes.
    #[inline(always)]
    fn mark(&self, point: Mark) {
        let _ = point;
    }
}

/// A point of an event loop's turn, see [`Clock::mark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The event loop polls the device for datagrams.
    Receiving,
    /// The device had some.
    Received,
    /// The protocol has taken a message out of a datagram and hands it to its recipient.
    Taken,
    /// The event loop hands what was appended to the device.
    Sending,
    /// The device has it.
    Sent,
}

/// The machine's monotonic clock, counted from the moment of creation.
///
/// Reads the processor's time stamp counter where it ticks evenly. That takes a third of the time
/// of a system call, and an event loop reads its clock while a round trip over shared memory waits.
/// The first clock of a process takes about a millisecond to make, for calibration.
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
