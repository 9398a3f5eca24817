//! Where a channel's connection stands, for all threads to see.

use std::sync::atomic::{AtomicU8, Ordering};

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
    /// The last attempt to connect failed, and the next one waits for its time. Calls fail at once
    /// unless they wait for the server.
    TransientFailure,
}

/// A channel's state: its driver writes it, all threads read it.
#[derive(Debug)]
pub(crate) struct StateCell(AtomicU8);

impl StateCell {
    pub(crate) fn new(state: ChannelState) -> Self {
        Self(AtomicU8::new(state as u8))
    }

    pub(crate) fn set(&self, state: ChannelState) {
        self.0.store(state as u8, Ordering::Relaxed);
    }

    pub(crate) fn state(&self) -> ChannelState {
        match self.0.load(Ordering::Relaxed) {
            1 => ChannelState::Connecting,
            2 => ChannelState::Ready,
            3 => ChannelState::TransientFailure,
            _ => ChannelState::Idle,
        }
    }
}
