//! Sleeps that reactors do: an executor's own, in which the device's descriptor is registered, waits for the
//! driver task of the executor, and no other thread is involved.
//!
//! ```text
//!  driver task: nothing to do ─▶ begin_wait, PARKED ─▶ the executor sleeps in its reactor
//!                     ▲                                            │ descriptor readable
//!                     └────────────── polled again ◀──────────────┘
//! ```
//!
//! No event is lost: the task first has the reactor watch for the next change, and then begins the wait, which
//! looks for what came before.

use starling_io::ReactorWait;

use super::{Command, Role, SharedLoop};

use crate::driver_task::TaskState;
use crate::sync::atomic::{AtomicU8, Ordering};
use crate::sync::{Arc, lock};

/// What reactors do for a loop that nobody drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reactors {
    /// Nothing: no task has parked, or not all that have parked have a reactor.
    None,
    /// They wait for the device.
    Wait,
    /// Something has arrived: their tasks are to drive.
    Ready,
    /// Somebody else is to drive, perhaps.
    NotAsked,
}

/// The reactors wait for the device.
const WAIT: u8 = 1;
/// A reactor has said that something has arrived.
const ARRIVED: u8 = 2;

/// Whether the wait for the device is the reactors', and what they have said. Either whoever begins the wait sees
/// what a reactor says, or the reactor's task sees that the wait is its own.
#[derive(Default)]
pub(super) struct WaitOfReactors(AtomicU8);

impl WaitOfReactors {
    /// By whoever has the role, and is about to give it up.
    fn begin(&self) {
        self.0.fetch_or(WAIT, Ordering::SeqCst);
    }

    /// By whoever has the role, before a turn, which sees what has arrived.
    #[inline]
    pub(super) fn end(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.swap(0, Ordering::SeqCst);
        }
    }

    /// By a reactor's task. Returns whether the wait is the reactors'.
    fn arrive(&self) -> bool {
        self.0.fetch_or(ARRIVED, Ordering::SeqCst) & WAIT != 0
    }

    /// By whoever has given up the role.
    pub(super) fn has_arrived(&self) -> bool {
        self.0.load(Ordering::SeqCst) & ARRIVED != 0
    }
}

impl<C: Command> SharedLoop<C> {
    /// Whether nobody has to sleep in the device: all that wait are driver tasks with reactors.
    pub(super) fn reactors_suffice(&self) -> bool {
        let parked = lock(&self.parked);
        let have_reactors = !parked.is_empty() && parked.iter().all(|task| task.has_reactor());
        drop(parked);
        have_reactors && self.watched.load(Ordering::Relaxed) == 0
    }

    /// Has reactors wait for the device when nobody drives any more.
    pub(super) fn leave_to_reactors(&self, role: &mut Role<'_, C>) -> Reactors {
        if self.has_waiting() {
            return Reactors::NotAsked;
        }
        if !self.reactors_suffice() {
            return Reactors::None;
        }
        match role.as_mut().map(|event_loop| event_loop.begin_wait()) {
            Some(Ok(ReactorWait::Begun)) => {
                self.wait.begin();
                Reactors::Wait
            }
            // The next turn has the error again.
            Some(Ok(ReactorWait::Ready) | Err(_)) => Reactors::Ready,
            Some(Ok(ReactorWait::Unsupported)) | None => Reactors::None,
        }
    }

    /// The role, for a task whose reactor says that something has arrived. If the wait is not the reactors', it
    /// may be a wake-up that is meant for whoever sleeps in the device, and who drives then. A task that took
    /// the role from under them would have them come back, and so on.
    pub(super) fn take_role_for_arrival(&self) -> Option<Role<'_, C>> {
        // If another thread has the role, that one sees what has arrived.
        self.wait.arrive().then(|| self.try_take_role()).flatten()
    }

    /// Has the tasks that have parked drive. False if there are none any more.
    pub(super) fn wake_parked(&self) -> bool {
        let parked: Vec<Arc<TaskState>> = std::mem::take(&mut *lock(&self.parked));
        let mut any = false;
        for task in parked {
            any |= task.wake();
        }
        any
    }
}
