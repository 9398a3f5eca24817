//! Time stamps, and the clock that takes them.
//!
//! An event loop calls [`Clock::mark`] at points of a turn. The clock that ships ignores it; this
//! one takes a stamp. The measured loop is the code that ships, compiled with another clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use starling_io::{Clock, Mark, MonotonicClock};

/// The indices of the loop's stamps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) sending: usize,
    pub(super) sent: usize,
    pub(super) receiving: usize,
    pub(super) received: usize,
    pub(super) taken: usize,
}

/// Takes stamps, `N` for each call; the last call's are kept.
#[derive(Clone, Debug)]
pub(super) struct Stamping<const N: usize> {
    clock: MonotonicClock,
    shared: Arc<Shared<N>>,
}

/// The state of a call: loops flush in turns without anything to send, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Call {
    None,
    ToBeSent,
    Sent,
}

#[derive(Debug)]
struct Shared<const N: usize> {
    counter: quanta::Clock,
    places: Places,
    stamps: [AtomicU64; N],
    takes_stamps: AtomicBool,
    /// A [`Call`].
    call: AtomicU8,
}

impl<const N: usize> Shared<N> {
    #[inline(always)]
    fn is(&self, call: Call) -> bool {
        self.call.load(Ordering::Relaxed) == call as u8
    }

    #[inline(always)]
    fn set(&self, call: Call) {
        self.call.store(call as u8, Ordering::Relaxed);
    }
}

impl<const N: usize> Stamping<N> {
    pub(super) fn new(places: Places) -> Self {
        Self {
            clock: MonotonicClock::new(),
            shared: Arc::new(Shared {
                counter: quanta::Clock::new(),
                places,
                stamps: [const { AtomicU64::new(0) }; N],
                takes_stamps: AtomicBool::new(false),
                call: AtomicU8::new(Call::None as u8),
            }),
        }
    }

    /// Whether a call was sent since the last call of this.
    #[inline]
    pub(super) fn take_sent(&self) -> bool {
        let sent = self.shared.is(Call::Sent);
        if sent {
            self.shared.set(Call::None);
        }
        sent
    }

    pub(super) fn stamps(&self) -> [u64; N] {
        self.shared
            .stamps
            .each_ref()
            .map(|stamp| stamp.load(Ordering::Relaxed))
    }

    /// Nanoseconds per tick.
    pub(super) fn ns_of_tick(&self) -> f64 {
        const TICKS: u64 = 1 << 32;
        self.shared.counter.delta_as_nanos(0, TICKS) as f64 / TICKS as f64
    }

    /// Turns stamps on or off.
    pub(super) fn take_stamps(&self, taken: bool) {
        self.shared.takes_stamps.store(taken, Ordering::Relaxed);
    }

    /// Takes stamp number `at`, if stamps are on.
    #[inline(always)]
    pub(super) fn stamp(&self, at: usize) {
        if self.shared.takes_stamps.load(Ordering::Relaxed) {
            self.stamp_always(at);
        }
    }

    /// Takes stamp number `at`, whether stamps are on or off.
    #[inline(always)]
    pub(super) fn stamp_always(&self, at: usize) {
        self.shared.stamps[at].store(self.shared.counter.raw(), Ordering::Relaxed);
    }

    /// Declares that the next send is the call's.
    #[inline(always)]
    pub(super) fn expect_sending(&self) {
        self.shared.set(Call::ToBeSent);
    }
}

impl<const N: usize> Clock for Stamping<N> {
    #[inline]
    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    #[inline(always)]
    fn mark(&self, point: Mark) {
        let places = &self.shared.places;
        match point {
            Mark::Receiving => self.stamp(places.receiving),
            Mark::Received => self.stamp(places.received),
            Mark::Taken => self.stamp(places.taken),
            Mark::Sending => {
                if self.shared.is(Call::ToBeSent) {
                    self.stamp(places.sending);
                }
            }
            Mark::Sent => {
                if self.shared.is(Call::ToBeSent) {
                    self.stamp(places.sent);
                    self.shared.set(Call::Sent);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: Places = Places {
        sending: 0,
        sent: 1,
        receiving: 2,
        received: 3,
        taken: 4,
    };

    #[test]
    fn only_the_first_send_of_a_call_has_a_stamp() {
        let clock = Stamping::<5>::new(PLACES);
        clock.take_stamps(true);
        clock.mark(Mark::Sending);
        clock.mark(Mark::Sent);
        assert_eq!(clock.stamps(), [0; 5], "no call yet");
        clock.expect_sending();
        clock.mark(Mark::Sending);
        assert!(!clock.take_sent());
        clock.mark(Mark::Sent);
        assert!(clock.take_sent());
        assert!(!clock.take_sent(), "reported once");
        let first = clock.stamps();
        assert!(0 < first[0] && first[0] <= first[1]);
        clock.mark(Mark::Sending);
        clock.mark(Mark::Sent);
        assert_eq!(clock.stamps(), first);
        clock.mark(Mark::Receiving);
        clock.mark(Mark::Received);
        clock.mark(Mark::Taken);
        let [_, sent, receiving, received, taken] = clock.stamps();
        assert!(sent <= receiving && receiving <= received && received <= taken);
    }

    #[test]
    fn stamps_are_taken_only_when_turned_on() {
        let clock = Stamping::<5>::new(PLACES);
        clock.stamp(0);
        assert_eq!(clock.stamps(), [0; 5]);
        clock.stamp_always(0);
        clock.take_stamps(true);
        clock.stamp(1);
        let [always, wanted, ..] = clock.stamps();
        assert!(0 < always && always <= wanted);
        assert!(clock.ns_of_tick() > 0.0);
    }
}
