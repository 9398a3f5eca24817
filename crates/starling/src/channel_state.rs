//! Where a channel's connection stands, for all threads to see.

use std::sync::atomic::{AtomicU8, Ordering};
use std::task::Waker;

use parking_lot::Mutex;
use starling_endpoint::Status;

/// Where a channel's connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ChannelState {
    /// Not connected, and no call has asked for a connection.
    Idle,
    /// Being connected. Calls wait.
    Connecting,
    /// Connected.
    Ready,
    /// The last attempt to connect failed, and the next one waits for its time; or the server is shutting down.
    /// Calls fail at once unless they wait for the server.
    TransientFailure,
}

/// A channel's state: its driver writes it, all threads read it.
#[derive(Debug)]
pub(crate) struct StateCell {
    state: AtomicU8,
    watcher: Mutex<Option<Waker>>,
    /// Why the last attempt to connect failed.
    failure: Mutex<Option<Status>>,
}

impl StateCell {
    pub(crate) fn new(state: ChannelState) -> Self {
        Self {
            state: AtomicU8::new(state as u8),
            watcher: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    /// Takes in the state, and tells the watcher if it is another one.
    pub(crate) fn set(&self, state: ChannelState, failure: Option<&Status>) {
        if let Some(failure) = failure {
            *self.failure.lock() = Some(failure.clone());
        }
        if self.state.swap(state as u8, Ordering::Relaxed) != state as u8 {
            let watcher = self.watcher.lock().clone();
            if let Some(watcher) = watcher {
                watcher.wake();
            }
        }
    }

    /// Wakes this each time the state changes.
    pub(crate) fn watch(&self, watcher: Waker) {
        let former = self.watcher.lock().replace(watcher);
        drop(former);
    }

    pub(crate) fn failure(&self) -> Option<Status> {
        self.failure.lock().clone()
    }

    pub(crate) fn state(&self) -> ChannelState {
        match self.state.load(Ordering::Relaxed) {
            1 => ChannelState::Connecting,
            2 => ChannelState::Ready,
            3 => ChannelState::TransientFailure,
            _ => ChannelState::Idle,
        }
    }
}
