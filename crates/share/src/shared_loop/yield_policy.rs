//! When a thread that begins to wait yields its core first, so that the calls of the core's threads leave
//! together.
//!
//! A thread that drives keeps the core until its own call is over, and begins its next call before any
//! other thread of the core has run. So each call would leave by itself, and the others would wait for
//! the scheduler: milliseconds. A thread that begins to wait therefore yields the core first, if others
//! wait, too. Each of them makes its call and yields in turn. When the first one runs again, it drives
//! for all of them, and nobody has to be woken.
//!
//! A yield costs some two microseconds with the switch. A call that takes less by itself is cheaper
//! alone: then a thread makes calls for [`BURST_NS`] before it yields again.
//!
//! A thread that finds another one driving yields a few times, too, before it sleeps: the kernel may have stopped the
//! driver in its favour.

use starling_io::{Clock, MonotonicClock};

use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::waiter::Waiter;

/// A call that is over sooner, by itself, is not worth a yield.
const CHEAP_NS: u64 = 3_000;
/// How long a thread makes such calls before it yields.
const BURST_NS: u64 = 20_000;
/// A call that takes longer says nothing about the cost of calls: its server works, or is far.
const SLOW_NS: u64 = 100_000;
/// After so many yields a thread makes calls alone, to measure them.
const SAMPLE_EVERY: u64 = 1024;
/// A yield that takes longer and brings no call has given the core to another program, for a slice of the
/// scheduler; an interrupt takes less.
const LONG_YIELD_NS: u64 = 500_000;
/// How long threads do not yield after such a yield.
const PAUSE_NS: u64 = 10_000_000;
/// How often a thread yields to the driver before it sleeps.
const YIELDS_TO_DRIVER: u32 = 8;

/// When a thread that begins to wait yields first. All of it is a matter of speed: any value is right.
#[derive(Default)]
pub(super) struct YieldPolicy {
    /// Threads that wait.
    threads: AtomicUsize,
    /// How often a thread began to wait beside others.
    entries: AtomicU64,
    /// Nobody yields before this time.
    from_ns: AtomicU64,
    yields: AtomicU64,
    /// How long a drive takes that has only its own call to make: a moving average.
    alone_ns: AtomicU64,
}

/// A thread that waits.
pub(super) struct Entered<'a>(&'a YieldPolicy);

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, Ordering::Relaxed);
    }
}

impl YieldPolicy {
    /// A thread begins to wait. It waits until the returned value is dropped. If others wait, too, lets
    /// those of this core make their calls, unless its own is over.
    #[inline]
    pub(super) fn enter(&self, clock: &MonotonicClock, waiter: &Waiter) -> Entered<'_> {
        // A model has no time.
        if self.threads.fetch_add(1, Ordering::Relaxed) > 0 && !cfg!(any(loom, shuttle)) {
            self.let_others_push(clock, waiter);
        }
        Entered(self)
    }

    fn let_others_push(&self, clock: &MonotonicClock, waiter: &Waiter) {
        let entries = self.entries.fetch_add(1, Ordering::Relaxed) + 1;
        let began_ns = clock.now_ns();
        if waiter.is_notified() || began_ns < self.from_ns.load(Ordering::Relaxed) {
            return;
        }
        waiter.yield_now();
        let now_ns = clock.now_ns();
        let is_of_use = waiter.is_notified() || self.entries.load(Ordering::Relaxed) != entries;
        self.record_yield(now_ns, now_ns.saturating_sub(began_ns), is_of_use);
    }

    /// Another thread drives, perhaps one that the kernel has stopped in favour of this one. Lets it drive on, which
    /// costs less than to sleep and be woken. False if this thread has done so often enough.
    pub(super) fn wait_for_driver(
        &self,
        clock: &MonotonicClock,
        waiter: &Waiter,
        yields: &mut u32,
    ) -> bool {
        if *yields == YIELDS_TO_DRIVER
            || cfg!(any(loom, shuttle))
            || clock.now_ns() < self.from_ns.load(Ordering::Relaxed)
        {
            return false;
        }
        *yields += 1;
        let began_ns = clock.now_ns();
        waiter.yield_now();
        let now_ns = clock.now_ns();
        if now_ns.saturating_sub(began_ns) > LONG_YIELD_NS {
            // Nobody knows of this thread while it yields.
            *yields = YIELDS_TO_DRIVER;
            self.pause_until(now_ns + PAUSE_NS);
        }
        true
    }

    /// A yield has taken so long. `is_of_use`: other threads have made calls meanwhile.
    fn record_yield(&self, now_ns: u64, took_ns: u64, is_of_use: bool) {
        if !is_of_use && took_ns > LONG_YIELD_NS {
            self.pause_until(now_ns + PAUSE_NS);
        } else {
            let is_cheap = self.alone_ns.load(Ordering::Relaxed) < CHEAP_NS;
            // Threads that always yield never make a call alone: now and then one is to be measured.
            let yields = self.yields.fetch_add(1, Ordering::Relaxed);
            let is_sample = yields.is_multiple_of(SAMPLE_EVERY);
            if is_cheap || is_sample {
                self.pause_until(now_ns + BURST_NS);
            }
        }
    }

    fn pause_until(&self, from_ns: u64) {
        self.from_ns.fetch_max(from_ns, Ordering::Relaxed);
    }

    /// A thread begins to drive, with so many calls to send. Returns the time if the drive is to be
    /// measured.
    #[inline]
    pub(super) fn begin_drive(&self, clock: &MonotonicClock, calls: usize) -> Option<u64> {
        let is_measured = calls <= 1 && self.threads.load(Ordering::Relaxed) > 1;
        (is_measured && !cfg!(any(loom, shuttle))).then(|| clock.now_ns())
    }

    #[inline]
    pub(super) fn end_drive(&self, clock: &MonotonicClock, began_ns: Option<u64>) {
        if let Some(began_ns) = began_ns {
            self.record_drive(clock.now_ns().saturating_sub(began_ns));
        }
    }

    fn record_drive(&self, took_ns: u64) {
        if took_ns > SLOW_NS {
            return;
        }
        let before_ns = self.alone_ns.load(Ordering::Relaxed);
        // One that was interrupted counts for little: the next one may be measured long after.
        let took_ns = took_ns.min(2 * before_ns + CHEAP_NS / 2);
        let mean_ns = before_ns - before_ns / 8 + took_ns / 8;
        self.alone_ns.store(mean_ns, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::SimulatedThread;

    /// A thread that counts how often it yields.
    #[derive(Default)]
    struct Yields(AtomicU32);

    impl SimulatedThread for Yields {
        fn is_current(&self) -> bool {
            true
        }

        fn park(&self) {}

        fn unpark(&self) {}

        fn yield_now(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Enters, and returns how often the thread yielded.
    fn enter(policy: &YieldPolicy, is_over: bool) -> (Entered<'_>, u32) {
        let yields = Arc::new(Yields::default());
        let waiter = Waiter::of_simulated(yields.clone());
        if is_over {
            waiter.notify();
        }
        let entered = policy.enter(&MonotonicClock::new(), &waiter);
        (entered, yields.0.load(Ordering::Relaxed))
    }

    #[test]
    fn a_long_yield_ends_the_yields_for_a_while_only_if_nobody_made_a_call() {
        let policy = YieldPolicy::default();
        policy.record_yield(5, 2 * LONG_YIELD_NS, true);
        assert!(policy.from_ns.load(Ordering::Relaxed) < PAUSE_NS);
        policy.record_yield(5, LONG_YIELD_NS / 2, false);
        assert!(policy.from_ns.load(Ordering::Relaxed) < PAUSE_NS);
        policy.record_yield(5, 2 * LONG_YIELD_NS, false);
        assert_eq!(policy.from_ns.load(Ordering::Relaxed), 5 + PAUSE_NS);
    }

    #[test]
    fn a_thread_yields_if_others_wait_and_its_call_is_not_over() {
        let policy = YieldPolicy::default();
        let (first, yields) = enter(&policy, false);
        assert_eq!(yields, 0, "a thread alone yields to nobody");
        let (second, yields) = enter(&policy, true);
        assert_eq!(yields, 0, "its call is over");
        drop(second);
        let (second, yields) = enter(&policy, false);
        assert_eq!(yields, 1);
        drop((first, second));
        assert_eq!(enter(&policy, false).1, 0, "all have left");
    }

    #[test]
    fn a_thread_yields_to_the_driver_a_few_times_unless_yields_pause() {
        let (policy, clock) = (YieldPolicy::default(), MonotonicClock::new());
        let (thread, mut count) = (Arc::new(Yields::default()), 0);
        let waiter = Waiter::of_simulated(thread.clone());
        while policy.wait_for_driver(&clock, &waiter, &mut count) {}
        // Fewer on a machine with so much other work that one of them takes long.
        let yields = thread.0.load(Ordering::Relaxed);
        assert!((1..=YIELDS_TO_DRIVER).contains(&yields), "{yields}");
        policy.pause_until(u64::MAX);
        assert!(!policy.wait_for_driver(&clock, &waiter, &mut 0));
    }

    #[test]
    fn an_interrupt_does_not_make_cheap_calls_expensive() {
        let policy = YieldPolicy::default();
        let alone_ns = || policy.alone_ns.load(Ordering::Relaxed);
        (0..100).for_each(|_| policy.record_drive(1_500));
        policy.record_drive(70_000);
        assert!((1_000..CHEAP_NS).contains(&alone_ns()), "{}", alone_ns());
        // Calls that take longer are seen, from nothing, too.
        (0..50).for_each(|_| policy.record_drive(12_000));
        assert!(alone_ns() > 10_000, "{}", alone_ns());
    }

    #[test]
    fn only_drives_beside_others_are_measured_and_slow_calls_are_left_out() {
        let (policy, clock) = (YieldPolicy::default(), MonotonicClock::new());
        let _first = enter(&policy, false);
        assert_eq!(policy.begin_drive(&clock, 1), None, "it is alone");
        let _second = enter(&policy, false);
        assert_eq!(policy.begin_drive(&clock, 2), None, "it drives for others");
        assert!(policy.begin_drive(&clock, 1).is_some());
        std::thread::sleep(std::time::Duration::from_nanos(2 * SLOW_NS));
        policy.end_drive(&clock, Some(0));
        assert_eq!(policy.alone_ns.load(Ordering::Relaxed), 0);
    }
}
