//! What a simulator needs, to run the code of this crate in threads of its own: one runs at a time, and time is the
//! simulator's.

use starling_io::Clock;

use crate::keeper::WakeReason;
use crate::shared_loop::{Command, SharedLoop};

/// A thread of a simulator. [`Waiter::of_simulated`](crate::Waiter::of_simulated) has it wait for calls.
pub trait SimulatedThread: Send + Sync {
    /// Whether it is the one that runs.
    fn is_current(&self) -> bool;

    /// It sleeps until an unpark since the last sleep. May return early. By the thread itself.
    fn park(&self);

    /// Ends its sleep, or the next one at once.
    fn unpark(&self);

    /// Others may run first. By the thread itself.
    fn yield_now(&self);
}

/// The keeper of a loop, whose sleeps are the simulator's: instead of [`SharedLoop::keep`].
#[derive(Debug, Default)]
pub struct SimulatedKeeper {
    seen_turns: u64,
}

impl SimulatedKeeper {
    /// When the keeper has something to do, in nanoseconds of the loop's clock; 0: at once.
    pub fn due_ns<C: Command>(shared: &SharedLoop<C>) -> Option<u64> {
        shared.keeper.due_ns()
    }

    /// Does what is due. False: the loop has ended.
    pub fn act<C: Command>(&mut self, shared: &SharedLoop<C>) -> bool {
        match shared.keeper.poll(|| shared.clock.now_ns()) {
            // Its driver leaves first.
            Some(WakeReason::Stop) if shared.role.is_locked() => true,
            Some(reason) => shared.keep_once(reason, &mut self.seen_turns),
            None => true,
        }
    }
}
