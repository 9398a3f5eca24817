//! What the keeper's thread does when it is awake.

use starling_io::Clock;

use crate::keeper::WakeReason;
use crate::sync::atomic::{Ordering, fence};
use crate::sync::lock;

use super::{Candidate, Command, Driving, Role, SharedLoop, Step};

/// The keeper executes a call that nobody waits for, or not yet, this long after it was made.
const GRACE_NS: u64 = 5_000_000;

impl<C: Command> SharedLoop<C> {
    /// Has the background take a turn soon, if nobody drives: a task of the loop was woken from elsewhere.
    pub fn call_background(&self) {
        self.keeper.call();
        self.wake_driver();
    }

    /// What the keeper's thread runs, until [`SharedLoop::stop`].
    pub fn keep(&self) {
        let mut seen_turns = 0;
        loop {
            let reason = self.keeper.sleep(|| self.clock.now_ns());
            if !self.keep_once(reason, &mut seen_turns) {
                return;
            }
        }
    }

    /// What the keeper does when it has woken up. `seen_turns`: the turns of driver tasks until the last time. False:
    /// the loop has ended.
    pub(crate) fn keep_once(&self, reason: WakeReason, seen_turns: &mut u64) -> bool {
        if reason == WakeReason::Stop {
            let driving = Driving::begin();
            let mut role = self.role.lock();
            self.end::<()>(&mut role, None);
            drop(driving);
            self.release(role);
            return false;
        }
        let turns = self.task_turns.load(Ordering::Relaxed);
        let tasks_drive = std::mem::replace(seen_turns, turns) != turns;
        // While calls are made, the timer stays set, so that they need not set it.
        if self.take_active() || tasks_drive {
            self.set_grace_timer_again();
        }
        if tasks_drive && reason == WakeReason::TimerDue {
            return true;
        }
        let at_rest = self.handovers.at_rest();
        if let Some(role) = self.try_take_role() {
            self.check_handover(&role, at_rest);
            self.drive_in_background(role);
        } else if !self.inbox.is_empty() {
            // Those who left it do not wait, and its driver may sleep for as long as its own call takes.
            self.wake_driver();
        }
        true
    }

    /// Has the keeper drive soon, if nobody else does.
    #[cold]
    pub(super) fn set_grace_timer(&self) {
        self.is_active.store(true, Ordering::Relaxed);
        // See `take_active`.
        fence(Ordering::SeqCst);
        self.set_grace_timer_again();
    }

    /// For the keeper, whose timer has gone off: whether a command was pushed since the last one. Either this sees what
    /// [`SharedLoop::set_grace_timer`] has set, or that one sees that there is no timer any more, and sets it.
    fn take_active(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is_active.swap(false, Ordering::Relaxed)
    }

    fn set_grace_timer_again(&self) {
        let at_ns = self.clock.now_ns() + GRACE_NS;
        self.keeper.set_timer(at_ns);
        if self.keeper.sleeps_in_device() {
            self.wake_driver();
        }
    }

    /// Sleeps in the device until something arrives, a caller waits, or what was left without a wait is to be executed.
    /// Returns whether it slept until then: what is left is then to be executed, and nothing may have arrived.
    fn sleep_in_background(&self, role: &mut Role<'_, C>) -> Option<bool> {
        let limit = self.keeper.begin_sleep_in_device(|| self.clock.now_ns());
        let slept = self.sleep(role, limit, || self.has_waiting());
        let is_due = self.keeper.end_sleep_in_device(|| self.clock.now_ns());
        if is_due && self.take_active() {
            self.set_grace_timer_again();
        }
        slept.map(|()| is_due)
    }

    /// The keeper found the role free. `at_rest` is of before that.
    ///
    /// # Panics
    /// If a thread waits for a driver, and nobody was about to become one.
    fn check_handover(&self, role: &Role<'_, C>, at_rest: Option<usize>) {
        // The loop is asked in every build, so that a simulated run is the same in all of them.
        if !role.as_ref().is_some_and(|it| it.is_expecting()) || at_rest.is_none() {
            return;
        }
        let waits = |candidate: &Candidate| matches!(candidate, Candidate::Thread(waiter) if !waiter.is_notified());
        let waits = lock(&self.waiting).iter().any(waits);
        assert!(
            !waits || self.handovers.at_rest() != at_rest,
            "threads wait, nobody drives, and nobody is about to: a hand-over was lost"
        );
    }

    /// Drives while something is expected and no caller waits for the role.
    fn drive_in_background(&self, mut role: Role<'_, C>) {
        let driving = Driving::begin();
        // Callers that wait while no call is expected are not offered the role: what they wait for may be
        // a task of the loop, which a timer wakes. Nobody else takes that turn.
        if self.has_waiting() && role.as_ref().is_some_and(|it| !it.is_expecting()) {
            self.step(&mut role);
        }
        while !self.has_waiting() && !self.is_stopping() {
            let expects = role.as_ref().is_some_and(|it| it.is_expecting());
            if expects && self.inbox.is_empty() && self.has_parked() && !self.reactors_suffice() {
                // The task takes the turn after the sleep. If the keeper did, it would wake the
                // executor's other tasks from outside, and these then run after all others.
                let Some(is_due) = self.sleep_in_background(&mut role) else {
                    break;
                };
                // If somebody wants the role, nothing has arrived for the others. After the timer nothing has,
                // either: a task would take a turn in vain, and have the keeper sleep again until its timer.
                if self.has_waiting() || (!is_due && self.list_parked()) {
                    break;
                }
            }
            match self.step(&mut role) {
                Some(Step::Busy) => {}
                // The sleep is the reactors'.
                Some(Step::Idle) if self.reactors_suffice() => break,
                Some(Step::Idle) if role.as_ref().is_some_and(|it| it.is_expecting()) => {
                    if !self.has_parked() && self.sleep_in_background(&mut role).is_none() {
                        break;
                    }
                }
                Some(Step::Idle) | None => break,
            }
        }
        drop(driving);
        self.release(role);
    }
}
