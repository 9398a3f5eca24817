//! Asymmetric fences: the light fence costs nothing, the heavy fence interrupts every core.
//!
//! Two threads each store a value and then load the other's (Dekker's pattern). Both need a full
//! fence in between, or both may miss the other's store. Here the dispatcher does this a million
//! times a second, and a worker only when it goes to sleep. So the worker pays for both: with
//! `membarrier(2)` and `PRIVATE_EXPEDITED`, every core that runs a thread of this process executes a
//! full fence. The dispatcher needs only a compiler fence.

#[cfg(not(any(loom, miri)))]
use std::sync::OnceLock;

#[cfg(not(any(loom, miri)))]
use rustix::thread::MembarrierCommand;

use crate::sync::atomic::{Ordering, fence};

/// The kind of pair: with `membarrier`, or two full fences without it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fences {
    asymmetric: bool,
}

impl Fences {
    /// The best pair that this kernel allows.
    pub(crate) fn new() -> Self {
        Self {
            asymmetric: register(),
        }
    }

    /// The pair that works everywhere.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn symmetric() -> Self {
        Self { asymmetric: false }
    }

    /// For the frequent side.
    #[inline]
    pub(crate) fn light(self) {
        #[cfg(not(loom))]
        if self.asymmetric {
            return std::sync::atomic::compiler_fence(Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// For the rare side. False: it failed, and there is no order with [`Self::light`].
    pub(crate) fn heavy(self) -> bool {
        fence(Ordering::SeqCst);
        !self.asymmetric || interrupt_all()
    }
}

/// Registers the process. False: the kernel has no such `membarrier`.
#[cfg(not(any(loom, miri)))]
fn register() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| {
        rustix::thread::membarrier_query().contains_command(MembarrierCommand::PrivateExpedited)
            && rustix::thread::membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
    })
}

#[cfg(not(any(loom, miri)))]
fn interrupt_all() -> bool {
    rustix::thread::membarrier(MembarrierCommand::PrivateExpedited).is_ok()
}

#[cfg(any(loom, miri))]
fn register() -> bool {
    false
}

#[cfg(any(loom, miri))]
fn interrupt_all() -> bool {
    false
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_fences_execute() {
        assert!(Fences::symmetric().heavy());
        assert!(Fences::new().heavy());
        Fences::new().light();
    }
}
