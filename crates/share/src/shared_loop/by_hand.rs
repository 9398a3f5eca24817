//! A loop whose time a test moves by hand: it is woken when time has moved, and says whether it is at rest.

use starling_io::Wake;

use super::{Command, SharedLoop};
use crate::sync::atomic::Ordering;

impl<C: Command> Wake for SharedLoop<C> {
    /// Has a turn taken soon: by a driver that sleeps, else by the keeper.
    fn wake(&self) {
        self.wake_driver();
        self.keeper.call();
    }

    fn at_rest(&self) -> Option<u64> {
        if self.role.is_locked() {
            let asleep = self.is_asleep.load(Ordering::SeqCst);
            return asleep.then(|| self.device.at_rest()).flatten();
        }
        // Nobody drives. What arrives meanwhile is nobody's concern.
        let is_idle = self.keeper.is_idle() && self.inbox.is_empty() && !self.has_waiting();
        is_idle.then_some(0)
    }
}
