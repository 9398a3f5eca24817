//! Time as an argument: code that needs it holds a [`Clock`].

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::{ThreadWait, Wake};

/// A clock that never goes back, in nanoseconds since some fixed point.
pub trait Clock {
    /// Nanoseconds since the clock's origin.
    fn now_ns(&self) -> u64;

    /// How long the calling thread has waited for a processor, to tell long work from a thread that was stopped.
    /// May take microseconds. None: not known, or by this clock threads are never stopped.
    fn thread_wait(&self) -> Option<ThreadWait> {
        None
    }

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

/// The machine's monotonic clock, counted from the moment of creation. For tests, one that stands still
/// until its [`ManualTime`] is moved.
///
/// Reads the processor's time stamp counter where it ticks evenly. That takes a third of the time
/// of a system call, and an event loop reads its clock while a round trip over shared memory waits.
/// The first clock of a process takes about a millisecond to make, for calibration.
#[derive(Clone, Debug)]
pub struct MonotonicClock {
    // It reads manual time, too, so that a real clock pays no branch for that.
    source: quanta::Clock,
    origin: u64,
    /// What the clock read at its origin.
    offset_ns: u64,
    /// A test moves it.
    is_manual: bool,
}

impl MonotonicClock {
    /// A clock that reads less than a second now: the clocks of a host begin with full seconds at the same time. So
    /// what different processes do at intervals wakes those that they talk to together, until the clocks are apart.
    pub fn new() -> Self {
        // Calibrated before the time is read.
        let mut clock = Self::starting_at(0);
        let host = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        clock.origin = clock.source.raw();
        clock.offset_ns = host.tv_nsec as u64;
        clock
    }

    /// A clock that reads about so much now.
    pub fn starting_at(offset_ns: u64) -> Self {
        let source = quanta::Clock::new();
        let origin = source.raw();
        Self {
            source,
            origin,
            offset_ns,
            is_manual: false,
        }
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
        let passed_ns = self.source.delta_as_nanos(self.origin, self.source.raw());
        self.offset_ns + passed_ns
    }

    fn thread_wait(&self) -> Option<ThreadWait> {
        match self.is_manual {
            true => None,
            false => ThreadWait::now(),
        }
    }
}

/// Time that a test moves by hand, for any number of clocks.
///
/// ```text
///  test ── advance ──▶ ManualTime ──▶ clocks: now_ns, instant
///                          └────────▶ wakers of the event loops that sleep by it
/// ```
///
/// An event loop that sleeps until a time sleeps by real time. So each one has its waker here, is woken
/// when time has moved, and looks at its timers.
pub struct ManualTime {
    mock: Arc<quanta::Mock>,
    clock: quanta::Clock,
    origin: Instant,
    sleepers: Mutex<Vec<Weak<dyn Wake>>>,
}

impl ManualTime {
    /// Time that stands still.
    pub fn new() -> Arc<Self> {
        let (clock, mock) = quanta::Clock::mock();
        Arc::new(Self {
            mock,
            clock,
            origin: Instant::now(),
            sleepers: Mutex::default(),
        })
    }

    /// A clock that moves when this time is moved.
    pub fn clock(&self) -> MonotonicClock {
        MonotonicClock {
            source: self.clock.clone(),
            origin: 0,
            offset_ns: 0,
            is_manual: true,
        }
    }

    /// The time now, as the standard library has it: that of creation, and what it was moved since.
    pub fn instant(&self) -> Instant {
        self.origin + Duration::from_nanos(self.mock.value())
    }

    /// Moves the time, and wakes all that sleep by it.
    ///
    /// # Panics
    /// If it was moved by more than 292 years (2^63 ns) in all.
    pub fn advance(&self, by: Duration) {
        let by_ns = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let after_ns = self.mock.value().saturating_add(by_ns);
        assert!(after_ns < 1 << 63, "time was moved by more than 292 years");
        self.mock.increment(by_ns);
        self.sleepers().iter().for_each(|sleeper| sleeper.wake());
    }

    /// Has this waker used whenever time has moved, while somebody else holds it.
    pub fn wake_at_moves(&self, sleeper: &Arc<dyn Wake>) {
        self.lock().push(Arc::downgrade(sleeper));
    }

    /// What each of those that sleep by this time says of its rest; see [`Wake::at_rest`].
    pub fn rests(&self) -> Vec<Option<u64>> {
        let sleepers = self.sleepers();
        sleepers.iter().map(|sleeper| sleeper.at_rest()).collect()
    }

    /// Those that are not gone. To be used without the lock: one of these may be the last reference.
    fn sleepers(&self) -> Vec<Arc<dyn Wake>> {
        let mut sleepers = self.lock();
        sleepers.retain(|sleeper| sleeper.strong_count() > 0);
        sleepers.iter().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<dyn Wake>>> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ManualTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualTime")
            .field("moved", &Duration::from_nanos(self.mock.value()))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

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

    #[derive(Default)]
    struct Wakes(AtomicU64);

    impl Wake for Wakes {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_manual_clock_moves_by_hand_and_wakes_those_that_sleep_by_it() {
        let time = ManualTime::new();
        let (clock, wakes) = (time.clock(), Arc::new(Wakes::default()));
        let (before, sleeper): (_, Arc<dyn Wake>) = (time.instant(), Arc::clone(&wakes) as _);
        time.wake_at_moves(&sleeper);
        assert_eq!(clock.now_ns(), 0);
        time.advance(Duration::from_secs(3600));
        assert_eq!(clock.now_ns(), 3_600_000_000_000);
        assert_eq!(time.instant() - before, Duration::from_secs(3600));
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        let running = MonotonicClock::starting_at(clock.now_ns());
        assert!(running.now_ns() >= clock.now_ns());
        drop((sleeper, wakes));
        time.advance(Duration::from_nanos(1));
        assert!(time.lock().is_empty(), "a sleeper that is gone is kept");
    }
}
