//! Whether work was left for the event loop, and whether the loop sleeps: for the futures and threads that
//! leave work.
//!
//! ```text
//!  whoever leaves work                      the loop, before it sleeps
//!  -------------------                      --------------------------
//!  work := there                            sleeping := true
//!  left := true                             left? do not sleep
//!  sleeping? wake the device
//! ```
//!
//! No work is lost: the steps are sequentially consistent, so at least one of the two sees the other's
//! write. A turn of the loop reads one flag for all kinds of work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use starling_io::Wake;

pub(crate) struct SleepState {
    /// Work was left since the loop last looked for it.
    left: AtomicBool,
    /// Whether the loop sleeps, or is about to check whether it may. Otherwise it finds work by
    /// itself, and nobody needs to wake the device.
    sleeping: AtomicBool,
    device: Arc<dyn Wake>,
}

impl SleepState {
    pub(crate) fn new(device: Arc<dyn Wake>) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            device,
        })
    }

    /// Has the loop look for work, which was put where the loop finds it; wakes the loop if it sleeps.
    pub(crate) fn leave_work(&self) {
        self.left.store(true, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) {
            self.device.wake();
        }
    }

    /// As [`SleepState::leave_work`], and wakes the device in any case: its owner may sleep on it without
    /// this loop, and does not know of this work.
    pub(crate) fn leave_unexpected_work(&self) {
        self.left.store(true, Ordering::SeqCst);
        self.device.wake();
    }

    /// Whether work may have been left.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// The loop looks for all kinds of work after this.
    pub(crate) fn begin_work(&self) {
        self.left.swap(false, Ordering::AcqRel);
    }

    /// Announces a sleep. False if work was left.
    pub(crate) fn may_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        !self.left.load(Ordering::SeqCst)
    }

    /// Ends the sleep.
    pub(crate) fn end_sleep(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }
}
