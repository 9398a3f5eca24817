//! A caller that sleeps until its call is over, or until it is offered the driver role.

use std::fmt;

use starling_io::Wake;

use crate::sync::atomic::{AtomicU8, Ordering};
use crate::sync::{Arc, Mutex, Parker, lock};

/// The call is over, or has to be looked at: its future was woken.
const NOTIFIED: u8 = 1;
/// A driver gave up the role, and this caller is to take it.
const OFFERED: u8 = 2;
/// The caller drives a loop: if it sleeps, then in the loop's device.
const DRIVING: u8 = 4;

/// One thread that waits. Reused for all waits of the thread.
pub struct Waiter {
    state: AtomicU8,
    thread: Parker,
    /// The device of the loop that the thread drives, or drove last.
    device: Mutex<Option<std::sync::Arc<dyn Wake>>>,
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waiter(..)")
    }
}

impl Waiter {
    /// The waiter of this thread.
    pub fn of_this_thread() -> Arc<Self> {
        Self::of(Parker::of_this_thread())
    }

    /// The waiter of a simulator's thread.
    #[cfg(not(any(loom, shuttle)))]
    pub fn of_simulated(thread: Arc<dyn crate::SimulatedThread>) -> Arc<Self> {
        Self::of(Parker::Simulated(thread))
    }

    fn of(thread: Parker) -> Arc<Self> {
        Arc::new(Self {
            state: AtomicU8::new(0),
            thread,
            device: Mutex::new(None),
        })
    }

    /// Ends the wait: what the thread waits for has happened.
    pub fn notify(&self) {
        self.set(NOTIFIED);
    }

    /// Whether the wait was ended since the last [`Waiter::take_notified`].
    pub fn is_notified(&self) -> bool {
        self.state.load(Ordering::Acquire) & NOTIFIED != 0
    }

    /// The same, and resets it.
    pub fn take_notified(&self) -> bool {
        self.take(NOTIFIED)
    }

    /// Has the thread try to take the role.
    pub(crate) fn offer(&self) {
        self.set(OFFERED);
    }

    /// Whether the thread was offered the role since the last call of this function.
    pub(crate) fn take_offered(&self) -> bool {
        self.take(OFFERED)
    }

    /// The thread drives from now on. What happens before its next look at the state may have
    /// found it not driving, and is seen by that look.
    pub(crate) fn begin_driving(&self, device: &std::sync::Arc<dyn Wake>) {
        let mut driven = lock(&self.device);
        if !matches!(&*driven, Some(driven) if std::sync::Arc::ptr_eq(driven, device)) {
            *driven = Some(std::sync::Arc::clone(device));
        }
        drop(driven);
        self.state.fetch_or(DRIVING, Ordering::AcqRel);
    }

    pub(crate) fn end_driving(&self) {
        self.state.fetch_and(!DRIVING, Ordering::AcqRel);
    }

    fn set(&self, bit: u8) {
        let before = self.state.fetch_or(bit, Ordering::AcqRel);
        if before & bit != 0 {
            return;
        }
        if before & DRIVING == 0 {
            self.thread.unpark();
        } else if !self.thread.is_of_this_thread() {
            // A driver that completes its own call is awake.
            if let Some(device) = &*lock(&self.device) {
                device.wake();
            }
        }
    }

    fn take(&self, bit: u8) -> bool {
        // A load first: the flag is mostly clear, and a load costs nothing.
        self.state.load(Ordering::Relaxed) & bit != 0
            && self.state.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Lets others of the core run.
    pub(crate) fn yield_now(&self) {
        self.thread.yield_now();
    }

    /// Sleeps until one of the two. May return early.
    pub fn park(&self) {
        if self.state.load(Ordering::Acquire) & (NOTIFIED | OFFERED) == 0 {
            self.thread.park();
        }
    }
}

#[cfg(not(any(loom, shuttle)))]
impl std::task::Wake for Waiter {
    fn wake(self: Arc<Self>) {
        self.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notify();
    }
}
