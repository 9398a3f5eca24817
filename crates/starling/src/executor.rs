//! Services for the futures of one endpoint's thread: tasks, timers, the clock and random numbers.

use std::cell::Cell;
use std::rc::Rc;

use starling_endpoint::LocalHandle;
use starling_io::{Clock, MonotonicClock};

pub(crate) struct Executor {
    pub(crate) local: LocalHandle,
    clock: MonotonicClock,
    /// State of the generator for jitter.
    random: Cell<u64>,
}

impl Executor {
    pub(crate) fn new(local: LocalHandle, clock: MonotonicClock, seed: u64) -> Rc<Self> {
        Rc::new(Self {
            local,
            clock,
            random: Cell::new(seed | 1),
        })
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// A number for jitter: xorshift64 (Marsaglia, 2003).
    pub(crate) fn random(&self) -> u64 {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        x
    }
}
