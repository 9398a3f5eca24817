//! Whether the event loop sleeps, for the threads that leave work for it.
//!
//! No work is lost: a thread that leaves work publishes it and then reads the flag; the loop sets the
//! flag and then looks for work. Both steps are sequentially consistent, so at least one of the two
//! sees the other's write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use starling_io::Wake;

pub(crate) struct SleepState {
    /// Whether the loop sleeps, or is about to check whether it may. Otherwise it finds work by
    /// itself, and nobody needs to wake the device.
    sleeping: AtomicBool,
    device: Arc<dyn Wake>,
}

impl SleepState {
    pub(crate) fn new(device: Arc<dyn Wake>) -> Arc<Self> {
        Arc::new(Self {
            sleeping: AtomicBool::new(false),
            device,
        })
    }

    /// Announces a sleep. The loop then looks for work, and sleeps only if there is none.
    pub(crate) fn begin(&self) {
        self.sleeping.store(true, Ordering::SeqCst);
    }

    pub(crate) fn end(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Wakes the loop if it sleeps, after work was published with a sequentially consistent store.
    pub(crate) fn wake(&self) {
        if self.sleeping.load(Ordering::SeqCst) {
            self.device.wake();
        }
    }
}
