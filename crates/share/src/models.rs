//! Models of callers, driver tasks and the keeper. The code under test is the code that ships, over the
//! locks, atomics and threads of a checker: loom tries all interleavings of few threads, shuttle random
//! ones of many.
//!
//! A caller or a driver that nobody wakes is a deadlock, which both report. Time does not pass, so no timer
//! hides a wake-up that was lost.

#[cfg(loom)]
mod interleavings;
#[cfg(shuttle)]
mod schedules;

use crate::Waiter;
use crate::sync::Arc;

/// Has the thread of a waiter poll its driver task.
struct PollTask(Arc<Waiter>);

impl std::task::Wake for PollTask {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.offer();
    }
}
