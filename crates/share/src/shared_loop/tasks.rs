//! Driver tasks: how they get the role, and give it up.

use super::{Candidate, Command, Driving, Role, SharedLoop, Step};
use crate::driver_task::{Next, Progress, TaskHandle, TaskState};
use crate::sync::atomic::{Ordering, fence};
use crate::sync::{Arc, lock};

impl<C: Command> SharedLoop<C> {
    /// Executes a command of a task now, if the loop is between two turns of driver tasks; else leaves it in
    /// the inbox. `task` is the driver task of the task's executor; it has begun the call.
    pub fn submit(&self, command: C, task: &TaskHandle) {
        if let Some(command) = self.execute_between_turns(command) {
            self.push(command);
        }
        task.wake();
    }

    /// Returns the command if it was not executed.
    #[inline]
    fn execute_between_turns(&self, command: C) -> Option<C> {
        // Commands keep their order.
        if !self.is_between_turns.load(Ordering::Relaxed) || !self.inbox.is_empty() {
            return Some(command);
        }
        let Some(mut role) = self.role.try_lock() else {
            return Some(command);
        };
        let event_loop = match &mut *role {
            // Again, for now nobody else changes it.
            Some(event_loop) if self.is_between_turns.load(Ordering::Relaxed) => event_loop,
            _ => return Some(command),
        };
        let driving = Driving::begin();
        event_loop.execute(command);
        drop(driving);
        drop(role);
        // As in `release`.
        fence(Ordering::SeqCst);
        if self.has_waiting() || !self.inbox.is_empty() {
            self.pass_on();
        }
        None
    }

    /// Drives one turn for a task, if nobody else drives. `is_readable` asks the task's reactor about the device,
    /// and has it wake the task when that changes.
    pub(crate) fn drive_in_task(
        &self,
        task: &Arc<TaskState>,
        was: Progress,
        is_readable: impl FnMut() -> bool,
    ) -> Next {
        if was == Progress::Rested {
            self.unpark(task);
        }
        if self.is_stopping() {
            return Next::End;
        }
        match self.take_role_or_list(task) {
            Some(role) => self.drive_turn(role, task, was, is_readable),
            None => Next::Park,
        }
    }

    /// The same for a task that has parked, and whose reactor has found the device readable.
    pub(crate) fn drive_arrived(
        &self,
        task: &Arc<TaskState>,
        mut is_readable: impl FnMut() -> bool,
    ) -> Option<Next> {
        let role = loop {
            if !is_readable() {
                return None;
            }
            // Whoever has the role sees what has arrived, in the next turn or when it gives the role up.
            if let Some(role) = self.take_role_for_arrival() {
                break role;
            }
        };
        task.unpark();
        self.unpark(task);
        if self.is_stopping() {
            self.release(role);
            return Some(Next::End);
        }
        Some(self.drive_turn(role, task, Progress::Rested, is_readable))
    }

    /// Takes a turn for a task.
    fn drive_turn(
        &self,
        mut role: Role<'_, C>,
        task: &Arc<TaskState>,
        was: Progress,
        mut is_readable: impl FnMut() -> bool,
    ) -> Next {
        let driving = Driving::begin();
        if was == Progress::Rested {
            self.begin(&mut role);
        }
        let step = self.step(&mut role);
        self.task_turns.fetch_add(1, Ordering::Relaxed);
        drop(driving);
        let next = match (step, role.as_mut()) {
            (Some(Step::Busy), _) => Next::Again(Progress::Driving),
            (Some(Step::Idle), Some(event_loop))
                if event_loop.is_expecting() && task.has_calls() =>
            {
                // The executor's other tasks may have run for long since the last turn that did
                // something: only the time counts in which turns found no work.
                match event_loop.spins() {
                    true => Next::Again(Progress::Driving),
                    false => Next::Park,
                }
            }
            (Some(Step::Idle), _) => Next::Park,
            (None, _) => {
                self.release(role);
                return Next::End;
            }
        };
        if next != Next::Park {
            return self.let_others_drive(role, task).unwrap_or(next);
        }
        let had_calls = task.has_calls();
        if had_calls && is_readable() {
            // Perhaps it came after the turn.
            let next = Next::Again(was);
            return self.let_others_drive(role, task).unwrap_or(next);
        }
        // First: whoever takes it from the list wakes it, after which it is polled again.
        task.park();
        if had_calls {
            lock(&self.parked).push(Arc::clone(task));
        }
        self.release_parked(role, task, had_calls)
    }

    /// Gives up the role, to those that wait for it: the executor may not run this task again for long.
    fn let_others_drive(&self, role: Role<'_, C>, task: &Arc<TaskState>) -> Option<Next> {
        let _transit = self.handovers.begin();
        self.is_between_turns.store(true, Ordering::Relaxed);
        drop(role);
        // As in `release`.
        fence(Ordering::SeqCst);
        if !self.has_waiting() {
            return None;
        }
        task.park();
        if task.has_calls() {
            self.list(Candidate::Task(Arc::clone(task)));
        }
        self.pass_on();
        Some(Next::Park)
    }

    fn unpark(&self, task: &Arc<TaskState>) {
        lock(&self.parked).retain(|parked| !Arc::ptr_eq(parked, task));
    }

    pub(super) fn has_parked(&self) -> bool {
        !lock(&self.parked).is_empty()
    }

    /// Has the tasks that have parked drive next. False if there are none any more.
    pub(super) fn list_parked(&self) -> bool {
        let parked = std::mem::take(&mut *lock(&self.parked));
        let any = !parked.is_empty();
        for task in parked {
            self.list(Candidate::Task(task));
        }
        any
    }

    /// The role, or the task's place among those that wait for it.
    fn take_role_or_list(&self, task: &Arc<TaskState>) -> Option<Role<'_, C>> {
        if let Some(role) = self.try_take_role() {
            if self.has_waiting() {
                self.unlist(|candidate| candidate.is_task(task));
            }
            return Some(role);
        }
        task.park();
        self.unlist(|candidate| candidate.is_task(task));
        if task.has_calls() {
            self.list(Candidate::Task(Arc::clone(task)));
        }
        self.wake_driver();
        let role = self.try_take_role()?;
        task.unpark();
        self.unlist(|candidate| candidate.is_task(task));
        Some(role)
    }

    /// Gives up the role for a task that has parked. What calls have come is looked at after that.
    fn release_parked(&self, role: Role<'_, C>, task: &Arc<TaskState>, had_calls: bool) -> Next {
        if !self.inbox.is_empty() || (!had_calls && task.has_calls()) {
            self.unpark(task);
            task.unpark();
            let parked = self.let_others_drive(role, task);
            return parked.unwrap_or(Next::Again(Progress::Driving));
        }
        self.release(role);
        Next::Park
    }

    /// A driver task is gone, perhaps one that was offered the role.
    pub(crate) fn leave(&self, task: &Arc<TaskState>) {
        self.unpark(task);
        self.unlist(|candidate| candidate.is_task(task));
        self.pass_on();
    }
}
