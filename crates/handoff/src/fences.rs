//! A pair of fences, of which one costs nothing and the other interrupts every core.
//!
//! Two threads that each store and then look at what the other stored both need a full fence in
//! between, or both may miss the other's store (Dekker's pattern). If one of them does it a million
//! times a second and the other one when it falls asleep, the latter can pay for both:
//! `membarrier(2)` with `PRIVATE_EXPEDITED` has every core that runs a thread of this process
//! execute a full fence. The frequent side is left with a fence for the compiler.

#[cfg(not(any(loom, miri)))]
use std::sync::OnceLock;

#[cfg(not(any(loom, miri)))]
use rustix::thread::MembarrierCommand;

use crate::sync::atomic::{Ordering, fence};

/// Which kind of pair there is: without `membarrier`, two real fences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fences {
    asymmetric: bool,
}

impl Fences {
    /// The best that this kernel lets the process have.
    pub(crate) fn new() -> Self {
        Self {
            asymmetric: register(),
        }
    }

    /// The one that works everywhere.
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

    /// For the rare side. False if it failed, so that [`Self::light`] was not paid for.
    pub(crate) fn heavy(self) -> bool {
        fence(Ordering::SeqCst);
        !self.asymmetric || interrupt_all()
    }
}

/// Prepares the process; whether the kernel has what it takes.
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
    fn either_kind_does_not_fail() {
        assert!(Fences::symmetric().heavy());
        assert!(Fences::new().heavy());
        Fences::new().light();
    }
}
