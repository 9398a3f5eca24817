//! How the event loop sleeps, and the loops that are made of turns and waits.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use starling_io::{Clock, IoError, PacketIo, ReactorWait};

use crate::endpoint::Endpoint;
use crate::schedule::TurnSchedule;
use crate::shares::SLICE_NS;
use crate::stats::Turn;

/// A full device sends no event when it has room again. So after its last work the endpoint polls
/// it for this long before sleeping (unless [`Idle::Spin`](crate::Idle::Spin)).
const FULL_SPIN_NS: u64 = 100_000;
/// Then it sleeps for this long: no longer than a device takes for 200 kB at 25 Gb/s.
const FULL_SLEEP_NS: u64 = 50_000;

impl<I: PacketIo, C: Clock> Endpoint<I, C> {
    /// Waits for work as [`Idle`](crate::Idle) says, at most until the next timeout or deadline, and at most
    /// `limit`. May return early.
    ///
    /// # Errors
    /// If the device fails. The error is final.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<(), IoError> {
        if self.between_turns || self.has_work() {
            return Ok(());
        }
        if self.spins() {
            // Callers that wait beside each other yield by themselves before one of them drives.
            if self.calls_outstanding() <= 1 {
                self.yield_core();
            }
            return Ok(());
        }
        self.return_memory();
        // The next turn skips nothing and reads the clock.
        self.schedule = TurnSchedule::default();
        let next_ns = self.next_timer_ns();
        // The clock is read again because the turn may have taken long; before a sleep its cost
        // does not matter.
        let now_ns = self.parts.clock.now_ns();
        if now_ns.saturating_sub(self.parts.core.now_ns) >= SLICE_NS {
            self.record_long_turn(now_ns - self.parts.core.now_ns);
        }
        self.parts.core.proto.caught_up(now_ns);
        let until = next_ns.map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(now_ns)));
        let timeout = match (until, limit) {
            (Some(until), Some(limit)) => Some(until.min(limit)),
            (until, limit) => until.or(limit),
        };
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Ok(());
        }
        let slept = if self.parts.core.sleep.may_sleep() {
            self.spin.record_sleep();
            self.io.wait(timeout)
        } else {
            Ok(())
        };
        self.parts.core.sleep.end_sleep();
        self.schedule.set_slept();
        slept
    }

    /// Lets others run that wait for this core, if the loop has spun for a while: whoever is to answer may be one of
    /// them. For an owner that does not wait by [`Endpoint::wait`].
    #[inline]
    pub fn yield_core(&mut self) {
        if self.spin.yields(self.parts.core.now_ns) {
            let before_ns = self.parts.clock.now_ns();
            std::thread::yield_now();
            let after_ns = self.parts.clock.now_ns();
            self.spin.record_yield(before_ns, after_ns);
        }
    }

    /// A descriptor for a reactor that waits in place of a thread; see [`PacketIo::descriptor`].
    pub fn descriptor(&mut self) -> Option<OwnedFd> {
        self.io.descriptor()
    }

    /// Has a reactor wait, if there is no work. [`Endpoint::end_wait`] has to come before anything else.
    /// Timeouts and deadlines are the caller's: see [`Endpoint::next_timer_ns`].
    ///
    /// # Errors
    /// If the device fails. The error is final.
    pub fn begin_wait(&mut self) -> Result<ReactorWait, IoError> {
        if self.between_turns || self.has_work() {
            return Ok(ReactorWait::Ready);
        }
        self.return_memory();
        let now_ns = self.parts.clock.now_ns();
        self.parts.core.proto.caught_up(now_ns);
        let wait = match self.parts.core.sleep.may_sleep() {
            true => {
                self.spin.record_sleep();
                self.io.begin_wait()
            }
            false => Ok(ReactorWait::Ready),
        };
        if !matches!(wait, Ok(ReactorWait::Begun)) {
            self.parts.core.sleep.end_sleep();
        }
        wait
    }

    /// Ends a wait that has begun.
    ///
    /// # Errors
    /// If the device fails. The error is final.
    pub fn end_wait(&mut self) -> Result<(), IoError> {
        self.parts.core.sleep.end_sleep();
        // The next turn skips nothing and reads the clock.
        self.schedule = TurnSchedule::default();
        self.schedule.set_slept();
        self.io.end_wait()
    }

    /// The owner has done other things since the last turn, such as turns of other endpoints: no handler of this
    /// endpoint took that time.
    #[inline]
    pub fn handle_other_work(&mut self) {
        self.schedule.set_other_work();
    }

    /// Whether an owner whose last turn did nothing takes another one before it waits by [`Endpoint::begin_wait`], as
    /// [`Idle`](crate::Idle) says.
    #[inline]
    pub fn spins(&mut self) -> bool {
        let core = &self.parts.core;
        let keepalives = core.proto.stats().keepalives;
        let others = core.stats.datagrams.saturating_sub(keepalives);
        // A peer that only asks whether this end lives sends nothing more for long.
        let is_keepalive = self.active_ns == core.proto.keepalive_at() && others == self.spun_for.1;
        if !is_keepalive {
            self.spun_for = (self.active_ns, others);
        }
        self.spin.spins(self.spun_for.0, core.now_ns)
    }

    /// When the next turn is due although nothing arrives, in nanoseconds of the endpoint's clock.
    pub fn next_timer_ns(&mut self) -> Option<u64> {
        if self.between_turns || self.has_work() {
            return Some(self.parts.core.now_ns);
        }
        // A full device may have room again at any time: soon after work it is polled at once.
        let proto = &self.parts.core.proto;
        let room_ns = proto.has_unsent().then(|| {
            let busy = self.parts.core.now_ns - self.active_ns < FULL_SPIN_NS;
            let at_once = busy || proto.has_rest();
            self.parts.core.now_ns + if at_once { 0 } else { FULL_SLEEP_NS }
        });
        let memory_ns = self.held.next_ns(self.active_ns);
        if memory_ns.is_none() {
            self.parts.core.proto.large_buffers().rest();
        }
        let timers = [
            room_ns,
            self.parts.core.proto.poll_timer(),
            self.parts.core.next_deadline(),
            self.parts.core.local.next_sleep(),
            memory_ns,
        ];
        timers.into_iter().flatten().min()
    }

    /// One turn, and a wait if the turn did nothing.
    pub fn run_once(&mut self) -> Result<Turn, IoError> {
        let turn = self.poll()?;
        if turn.is_idle() {
            self.wait(None)?;
        }
        Ok(turn)
    }

    /// Takes turns until `done` returns true. It is called after each turn.
    pub fn run_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) -> Result<(), IoError> {
        loop {
            let turn = self.poll()?;
            if done(self) {
                return Ok(());
            }
            if turn.is_idle() {
                self.wait(None)?;
            }
        }
    }

    /// Runs the endpoint until `future` is ready. The future may use [`Endpoint::local`].
    pub fn block_on<F: Future>(&mut self, future: F) -> Result<F::Output, IoError> {
        let mut future = pin!(future);
        let waker = self.executor.main();
        let mut cx = TaskContext::from_waker(&waker);
        waker.wake_by_ref();
        loop {
            let turn = self.poll()?;
            if self.executor.take_main_woken() {
                self.begin_owner_work();
                if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                    return Ok(output);
                }
            } else if turn.is_idle() {
                self.wait(None)?;
            }
        }
    }
}
