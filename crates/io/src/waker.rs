//! Wakes a sleeping thread from other threads, without a system call when it is awake.
//!
//! ```text
//!                 wake: no system call              wake: writes the eventfd
//!              ┌────────────────────────▶ WOKEN ◀────────────────────────┐
//!              │                            │                            │
//!            AWAKE ◀────────────────────────┘ end of wait                │
//!              │                                                         │
//!              └──────────────────── wait, then poll ────────────────▶ ASLEEP
//! ```
//!
//! No wake is lost. A wake before the sleeper's step to `ASLEEP` makes that step fail, and the
//! thread does not sleep. A wake after it writes the eventfd, which ends the poll, even one that
//! has not begun yet. If the sleeper has left for another reason, a late write ends the next wait
//! early, which is allowed.
//!
//! It is hand-made because the crates for this wake a task; this one ends a `poll` of several files.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::Wake;
use rustix::event::{EventfdFlags, eventfd};

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const WOKEN: u8 = 2;

/// State shared by the one thread that sleeps and all threads that may wake it.
pub struct EventfdWaker {
    state: AtomicU8,
    event: OwnedFd,
}

impl EventfdWaker {
    /// A waker that no thread sleeps with yet.
    ///
    /// # Errors
    /// If the process has reached its limit of open files.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            state: AtomicU8::new(AWAKE),
            event: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        })
    }

    /// The sleeper announces that it is about to poll. False if it was woken already and must not
    /// sleep. [`EventfdWaker::end_sleep`] follows in both cases.
    pub fn begin_sleep(&self) -> bool {
        self.state
            .compare_exchange(AWAKE, ASLEEP, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// The sleeper is awake; a later [`Wake::wake`] counts for the next sleep.
    pub fn end_sleep(&self) {
        // A swap, not a store: it acquires what a waking thread wrote before its wake.
        self.state.swap(AWAKE, Ordering::SeqCst);
    }

    /// The file to poll for readability; call [`EventfdWaker::drain`] when it is readable.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Makes the eventfd unreadable again.
    pub fn drain(&self) {
        // This fails only if the counter is zero, and then there is nothing to do.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

impl Wake for EventfdWaker {
    fn wake(&self) {
        if self.state.swap(WOKEN, Ordering::SeqCst) == ASLEEP {
            // This fails only if the counter is at its maximum, and then it is readable already.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(waker: &EventfdWaker) -> bool {
        rustix::io::read(&waker.event, &mut [0; 8]).is_ok()
    }

    #[test]
    fn waking_a_thread_that_is_awake_writes_nothing_and_ends_its_next_sleep() {
        let waker = EventfdWaker::new().expect("an eventfd");
        waker.wake();
        waker.wake();
        assert!(!is_readable(&waker));
        assert!(!waker.begin_sleep(), "woken already");
        waker.end_sleep();
        assert!(waker.begin_sleep(), "once only");
    }

    #[test]
    fn waking_a_sleeper_writes_once() {
        let waker = EventfdWaker::new().expect("an eventfd");
        assert!(waker.begin_sleep());
        waker.wake();
        waker.wake();
        assert!(is_readable(&waker));
        assert!(!is_readable(&waker));
    }
}
