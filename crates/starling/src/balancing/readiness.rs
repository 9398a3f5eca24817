//! A backend of the list: whether it can take calls, and what it needs to be able to.

use std::sync::Arc;

use starling_balance::{Readiness, Resolved};
use starling_endpoint::Status;

use super::backend::{Backend, Record};
use crate::channel_state::ChannelState;
use crate::health::BackendHealth;

/// A backend that could not even be begun is tried again after so long.
const OPEN_PAUSE_NS: u64 = 1_000_000_000;

/// A replacement for an old connection that could not be made is tried again after this share of the age.
const AGAIN_SHARE: u64 = 10;

/// A backend that the resolver has named and that the channel uses.
pub(super) struct Listed {
    /// Of the resolver's answers: it stays while the address does.
    pub(super) id: u64,
    pub(super) resolved: Resolved,
    pub(super) record: Arc<Record>,
    /// None: `pick_first` has not come to it, or it could not be begun.
    pub(super) backend: Option<Arc<Backend>>,
    /// Why it could not be begun, and when that is tried again.
    pub(super) failure: Option<(Status, u64)>,
    /// Takes its place when it is ready: the connection is old.
    pub(super) replacement: Option<Arc<Backend>>,
    /// It has failed and has not been ready since. It counts as failed while it tries (gRPC A48).
    has_failed: bool,
    /// Since when it is ready, in nanoseconds.
    pub(super) ready_since: Option<u64>,
    pub(super) readiness: Readiness,
}

impl Listed {
    pub(super) fn new(id: u64, resolved: Resolved) -> Self {
        Self {
            id,
            resolved,
            record: Arc::default(),
            backend: None,
            failure: None,
            replacement: None,
            has_failed: false,
            ready_since: None,
            readiness: Readiness::Pending,
        }
    }

    /// Takes in whether it could be begun.
    pub(super) fn handle_begun(&mut self, now: u64, begun: Result<Arc<Backend>, Status>) {
        match begun {
            Ok(backend) => {
                self.backend = Some(backend);
                self.failure = None;
                self.connect(now);
            }
            Err(status) => self.failure = Some((status, now + OPEN_PAUSE_NS)),
        }
    }

    fn connect(&mut self, now: u64) {
        let Some(Err(ended)) = self.backend.as_ref().map(|backend| backend.connect()) else {
            return;
        };
        self.give_up();
        self.failure = Some((ended, now + OPEN_PAUSE_NS));
    }

    /// Gives its connection up.
    pub(super) fn give_up(&mut self) {
        for backend in [self.backend.take(), self.replacement.take()]
            .into_iter()
            .flatten()
        {
            backend.stop_connecting();
        }
        self.ready_since = None;
        self.has_failed = false;
        self.failure = None;
    }

    /// Looks at its connection, which is to be there. Returns whether it has just failed.
    pub(super) fn update(&mut self, now: u64) -> bool {
        if self
            .backend
            .as_ref()
            .is_some_and(|it| it.transport.state() == ChannelState::Idle)
        {
            self.connect(now);
        }
        let Some(backend) = &self.backend else {
            self.readiness = match self.failure {
                Some(_) => Readiness::Failed,
                None => Readiness::Pending,
            };
            return false;
        };
        let state = backend.transport.state();
        match state {
            ChannelState::Ready => {
                self.has_failed = false;
                if self.ready_since.is_none() {
                    self.ready_since = Some(now);
                    backend.handle_connected();
                }
            }
            ChannelState::Idle | ChannelState::Connecting | ChannelState::TransientFailure => {}
        }
        let was_ready = state != ChannelState::Ready && self.ready_since.take().is_some();
        let fails = state == ChannelState::TransientFailure;
        let has_just_failed = was_ready || fails && !self.has_failed;
        self.has_failed |= fails;
        self.readiness = match (state, backend.health()) {
            (ChannelState::Ready, _) if backend.is_ejected() => Readiness::Failed,
            (ChannelState::Ready, BackendHealth::Pending) => Readiness::Pending,
            (ChannelState::Ready, BackendHealth::NotServing | BackendHealth::CheckFailed) => {
                Readiness::Failed
            }
            (ChannelState::Ready, _) => Readiness::Ready,
            _ if self.has_failed => Readiness::Failed,
            _ => Readiness::Pending,
        };
        has_just_failed
    }

    /// Has its replacement take its place when that can, or gives it up if it fails: then the next one comes a
    /// part of `age` later, in nanoseconds.
    pub(super) fn take_replacement(&mut self, now: u64, age: u64) {
        let Some(replacement) = &self.replacement else {
            return;
        };
        if replacement.is_usable() {
            // Calls of the former one end where they are.
            self.backend = self.replacement.take();
            self.ready_since = Some(now);
        } else if replacement.has_failed() {
            replacement.stop_connecting();
            self.replacement = None;
            self.ready_since = Some(now.saturating_sub(age - age / AGAIN_SHARE));
        }
    }

    /// Why it cannot take calls.
    pub(super) fn reason(&self) -> String {
        let address = &self.resolved.address;
        if let Some((failure, _)) = &self.failure {
            return format!("{address}: {}", failure.message());
        }
        let Some(backend) = &self.backend else {
            return format!("{address}: not tried yet");
        };
        if backend.transport.state() == ChannelState::Ready {
            return match backend.health() {
                _ if backend.is_ejected() => {
                    format!("{address}: ejected, for too many of its calls failed")
                }
                BackendHealth::CheckFailed => format!(
                    "{address}: it refuses to be asked for its health: let calls of \
                     grpc.health.v1.Health through there, or do not check it"
                ),
                _ => format!("{address}: it says that it is not serving"),
            };
        }
        match backend.transport.failure() {
            // Most texts name the address themselves.
            Some(failure) if failure.message().contains(address.as_str()) => {
                failure.message().to_owned()
            }
            Some(failure) => format!("{address}: {}", failure.message()),
            None => format!("{address}: the server is shutting down, or the connection ended"),
        }
    }
}
