//! What a balanced channel knows of a backend's health.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll, Waker};

use atomic_waker::AtomicWaker;
use parking_lot::Mutex;

/// What a server says of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BackendHealth {
    /// It has not said anything yet, in this connection: no calls go there.
    Pending,
    /// It can be called.
    Serving,
    /// It should not be called.
    NotServing,
    /// It is not asked, or cannot say: it counts as one that can be called.
    Unchecked,
    /// Asking it failed, as by an interceptor that wants a token. It is asked again, and should not be called
    /// meanwhile.
    CheckFailed,
}

impl BackendHealth {
    /// Whether it can be called, as far as is known.
    pub(crate) fn is_well(self) -> bool {
        matches!(self, Self::Serving | Self::Unchecked)
    }
}

/// The health of a backend: its transport writes it ([`Transport::watch_health`]), its channel reads it.
///
/// [`Transport::watch_health`]: crate::plane::Transport::watch_health
#[derive(Debug)]
pub struct HealthCell {
    health: AtomicU8,
    watcher: Mutex<Option<Waker>>,
    is_closed: AtomicBool,
    writer: AtomicWaker,
}

impl HealthCell {
    /// One for a backend that says nothing yet. Wakes this each time its health changes.
    pub(crate) fn new(health: BackendHealth, watcher: Option<Waker>) -> Self {
        Self {
            health: AtomicU8::new(health as u8),
            watcher: Mutex::new(watcher),
            is_closed: AtomicBool::new(false),
            writer: AtomicWaker::new(),
        }
    }

    /// What is known.
    pub fn health(&self) -> BackendHealth {
        match self.health.load(Ordering::Relaxed) {
            0 => BackendHealth::Pending,
            1 => BackendHealth::Serving,
            2 => BackendHealth::NotServing,
            3 => BackendHealth::Unchecked,
            _ => BackendHealth::CheckFailed,
        }
    }

    /// Takes in what the server says.
    pub fn set(&self, health: BackendHealth) {
        if self.health.swap(health as u8, Ordering::Relaxed) != health as u8 {
            let watcher = self.watcher.lock().clone();
            if let Some(watcher) = watcher {
                watcher.wake();
            }
        }
    }

    /// Nobody reads it any more.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let watcher = self.watcher.lock().take();
        drop(watcher);
        self.writer.wake();
    }

    /// Ready when nobody reads it any more. Wakes the task that polled last.
    pub fn poll_closed(&self, cx: &Context<'_>) -> Poll<()> {
        self.writer.register(cx.waker());
        match self.is_closed.load(Ordering::Acquire) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}
