//! The thread that drives the loop for what nobody waits for. This file has its sleep; `shared_loop::background`
//! has what it does when awake.

#[cfg(not(any(loom, shuttle)))]
use std::sync::PoisonError;
use std::time::Duration;

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use crate::sync::{Condvar, SleepMutex, lock_to_sleep};

/// No timer is set.
const NEVER: u64 = u64::MAX;

#[derive(Default)]
struct Requests {
    /// Something is expected, and nobody drives.
    called: bool,
    stop: bool,
    /// The keeper sleeps.
    #[cfg(not(any(loom, shuttle)))]
    is_asleep: bool,
}

/// Why the keeper woke up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeReason {
    /// It was called to drive.
    Called,
    /// Its timer is due.
    TimerDue,
    Stop,
}

/// The keeper's alarm clock: calls of drivers that leave, and one timer.
pub(crate) struct Keeper {
    requests: SleepMutex<Requests>,
    wake: Condvar,
    /// When the keeper wakes up by itself, in nanoseconds of the loop's clock.
    timer_ns: AtomicU64,
    /// The keeper drives, and sleeps in the device, or is about to.
    is_in_device: AtomicBool,
}

impl Keeper {
    pub(crate) fn new() -> Self {
        Self {
            requests: SleepMutex::new(Requests::default()),
            wake: Condvar::new(),
            timer_ns: AtomicU64::new(NEVER),
            is_in_device: AtomicBool::new(false),
        }
    }

    /// Has the keeper drive soon.
    pub(crate) fn call(&self) {
        let mut requests = lock_to_sleep(&self.requests);
        requests.called = true;
        drop(requests);
        self.wake.notify_one();
    }

    pub(crate) fn stop(&self) {
        let mut requests = lock_to_sleep(&self.requests);
        requests.stop = true;
        drop(requests);
        self.wake.notify_one();
    }

    /// Has the keeper drive at this time at the latest. Wakes it only if it would sleep longer, so
    /// that timers which are put off, as most are, cost one load.
    pub(crate) fn set_timer(&self, at_ns: u64) {
        if at_ns >= self.timer_ns.load(Ordering::Relaxed) {
            return;
        }
        // The lock orders this with the keeper's step to sleep.
        let requests = lock_to_sleep(&self.requests);
        self.timer_ns.fetch_min(at_ns, Ordering::Relaxed);
        drop(requests);
        self.wake.notify_one();
    }

    // While the keeper drives, its sleep is in the device. Either it sees a grace timer before it sleeps, or whoever
    // sets one sees that it sleeps, and wakes it, also if an earlier timer was set: that one may be of a driver that
    // has left, which wakes nobody.

    /// The keeper is about to sleep in the device. Returns for how long at most.
    pub(crate) fn begin_sleep_in_device(&self, now_ns: impl Fn() -> u64) -> Option<Duration> {
        self.is_in_device.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let at_ns = self.timer_ns.load(Ordering::Relaxed);
        (at_ns != NEVER).then(|| Duration::from_nanos(at_ns.saturating_sub(now_ns())))
    }

    /// It has slept. Returns whether its timer was due.
    pub(crate) fn end_sleep_in_device(&self, now_ns: impl Fn() -> u64) -> bool {
        self.is_in_device.store(false, Ordering::Relaxed);
        let at_ns = self.timer_ns.load(Ordering::Relaxed);
        // Time does not pass in a model.
        let is_due = !cfg!(any(loom, shuttle)) && at_ns != NEVER && at_ns <= now_ns();
        if is_due {
            self.timer_ns.store(NEVER, Ordering::Relaxed);
        }
        is_due
    }

    /// Whether a timer that was set just now needs a wake-up of the device.
    pub(crate) fn sleeps_in_device(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is_in_device.load(Ordering::Relaxed)
    }

    /// Whether the keeper sleeps, and nobody has called it.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn is_idle(&self) -> bool {
        let requests = lock_to_sleep(&self.requests);
        requests.is_asleep && !requests.called
    }

    /// Sleeps until the keeper is called or its timer is due.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn sleep(&self, now_ns: impl Fn() -> u64) -> WakeReason {
        let mut requests = lock_to_sleep(&self.requests);
        loop {
            requests.is_asleep = false;
            let left_ns = match self.take_request(&mut requests, &now_ns) {
                Ok(reason) => return reason,
                Err(left_ns) => left_ns,
            };
            requests.is_asleep = true;
            requests = match left_ns {
                None => (self.wake.wait(requests)).unwrap_or_else(PoisonError::into_inner),
                Some(left_ns) => {
                    let left = Duration::from_nanos(left_ns);
                    let waited = self.wake.wait_timeout(requests, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// What the keeper is to do now, or how long it may sleep.
    #[cfg(not(any(loom, shuttle)))]
    fn take_request(
        &self,
        requests: &mut Requests,
        now_ns: impl Fn() -> u64,
    ) -> Result<WakeReason, Option<u64>> {
        if requests.stop {
            return Ok(WakeReason::Stop);
        }
        let at_ns = self.timer_ns.load(Ordering::Relaxed);
        let left_ns = (at_ns != NEVER).then(|| at_ns.saturating_sub(now_ns()));
        let called = std::mem::take(&mut requests.called);
        if !called && left_ns != Some(0) {
            return Err(left_ns);
        }
        // The driver sets the next one.
        self.timer_ns.store(NEVER, Ordering::Relaxed);
        Ok(match called {
            true => WakeReason::Called,
            false => WakeReason::TimerDue,
        })
    }

    /// What the keeper is to do now.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn poll(&self, now_ns: impl Fn() -> u64) -> Option<WakeReason> {
        let mut requests = lock_to_sleep(&self.requests);
        self.take_request(&mut requests, now_ns).ok()
    }

    /// When the keeper has something to do; 0: now.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let requests = lock_to_sleep(&self.requests);
        let at_ns = self.timer_ns.load(Ordering::Relaxed);
        match requests.called || requests.stop {
            true => Some(0),
            false => (at_ns != NEVER).then_some(at_ns),
        }
    }

    /// Time does not pass in a model: sleeps until the keeper is called.
    #[cfg(any(loom, shuttle))]
    pub(crate) fn sleep(&self, _: impl Fn() -> u64) -> WakeReason {
        let mut requests = lock_to_sleep(&self.requests);
        loop {
            if requests.stop {
                return WakeReason::Stop;
            }
            if std::mem::take(&mut requests.called) {
                return WakeReason::Called;
            }
            requests = self.wake.wait(requests).expect("a model does not panic");
        }
    }
}
