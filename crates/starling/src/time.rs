//! The time of a channel, a server or an endpoint: the machine's, or one that a test moves by hand.
//!
//! Event loops read a clock in nanoseconds. Users see deadlines as the standard library's `Instant`s. Both
//! come from here, so that they agree.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use starling_io::{Clock, ManualTime, MonotonicClock, Wake};

/// Where the time comes from. None: from the machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Time(Option<Arc<ManualTime>>);

impl Time {
    pub(crate) fn manual(time: Arc<ManualTime>) -> Self {
        Self(Some(time))
    }

    pub(crate) fn is_manual(&self) -> bool {
        self.0.is_some()
    }

    #[inline]
    pub(crate) fn now(&self) -> Instant {
        match &self.0 {
            None => Instant::now(),
            Some(time) => time.instant(),
        }
    }

    /// Whether this deadline has come.
    pub(crate) fn is_over(&self, deadline: Option<Instant>) -> bool {
        deadline.is_some_and(|deadline| deadline <= self.now())
    }

    /// The time after this much more. None if there is no limit.
    #[inline]
    pub(crate) fn after(&self, left: Option<Duration>) -> Option<Instant> {
        // What the standard library cannot hold is no limit either.
        left.and_then(|left| self.now().checked_add(left))
    }

    /// A clock for an event loop.
    pub(crate) fn clock(&self) -> MonotonicClock {
        match &self.0 {
            None => MonotonicClock::new(),
            Some(time) => time.clock(),
        }
    }

    /// A clock that goes on by itself, for an event loop that ends: nobody has to move time for that.
    pub(crate) fn running_clock(&self) -> Option<MonotonicClock> {
        let time = self.0.as_ref()?;
        Some(MonotonicClock::starting_at(time.clock().now_ns()))
    }

    /// Has this waker used whenever a test has moved the time, while somebody else holds it.
    pub(crate) fn wake_at_moves(&self, waker: &Arc<dyn Wake>) {
        if let Some(time) = &self.0 {
            time.wake_at_moves(waker);
        }
    }
}

/// An endpoint that its owner runs now and then, as a test's time sees it.
pub(crate) struct OwnersEndpoint {
    device: Arc<dyn Wake>,
    runs: AtomicBool,
}

impl OwnersEndpoint {
    /// None if time is not moved by hand.
    pub(crate) fn new(time: &Time, device: Arc<dyn Wake>) -> Option<Arc<Self>> {
        time.is_manual().then(|| {
            let endpoint = Arc::new(Self {
                device,
                runs: AtomicBool::new(false),
            });
            let sleeper: Arc<dyn Wake> = Arc::<Self>::clone(&endpoint);
            time.wake_at_moves(&sleeper);
            endpoint
        })
    }

    /// Its owner runs it, while this lives.
    pub(crate) fn run(&self) -> Running<'_> {
        self.runs.store(true, Ordering::SeqCst);
        Running(self)
    }
}

impl Wake for OwnersEndpoint {
    fn wake(&self) {
        self.device.wake();
    }

    fn at_rest(&self) -> Option<u64> {
        match self.runs.load(Ordering::SeqCst) {
            true => self.device.at_rest(),
            false => Some(0),
        }
    }
}

/// See [`OwnersEndpoint::run`].
pub(crate) struct Running<'a>(&'a OwnersEndpoint);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.runs.store(false, Ordering::SeqCst);
    }
}
