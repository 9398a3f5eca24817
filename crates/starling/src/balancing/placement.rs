//! Where a call of a balanced channel is: its cell notes the backend that has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use starling_endpoint::{Metadata, MetadataView, Status};

use super::backend::Backend;
use crate::plane::{CallResult, Reply};

/// Where a call is. A call of a channel to one server has none.
#[derive(Default)]
pub(crate) struct Placement {
    /// The backend that has the call, or had it last. 0: none.
    backend: AtomicU64,
    /// Never contended: only whoever owes the result uses it.
    attempt: Mutex<Option<Attempt>>,
}

impl Placement {
    pub(crate) fn set(&self, attempt: Attempt) {
        self.backend.store(attempt.backend.id, Ordering::Relaxed);
        let former = self.attempt.lock().replace(attempt);
        debug_assert!(former.is_none(), "one backend has the call at a time");
    }

    pub(crate) fn take(&self) -> Option<Attempt> {
        self.attempt.lock().take()
    }

    pub(crate) fn backend(&self) -> u64 {
        self.backend.load(Ordering::Relaxed)
    }

    /// No backend has the call: it waits for one.
    pub(super) fn leave(&self) {
        self.backend.store(0, Ordering::Relaxed);
    }

    /// Whether another backend may make the call if this one does not run it.
    pub(crate) fn may_go_elsewhere(&self) -> bool {
        let attempt = self.attempt.lock();
        attempt.as_ref().is_some_and(|attempt| !attempt.is_pinned)
    }

    /// The cell is used for another call.
    pub(crate) fn clear(&mut self) {
        *self.backend.get_mut() = 0;
        debug_assert!(self.attempt.get_mut().is_none(), "a call that is over");
    }
}

/// What a call has with it from backend to backend. Boxed: almost no call has it.
#[derive(Default)]
pub(super) struct Routing {
    /// Backends that others are better than.
    pub(super) avoid: Vec<u64>,
    /// The ids of backends that have given the call back.
    pub(super) tried: Vec<u64>,
    /// The call begins a stream, whose other calls go to the same backend.
    pub(super) pin: Option<Pin>,
}

/// Where a stream is, if a backend has it. It counts as outstanding there until it ends.
#[derive(Clone, Default)]
pub(super) struct Pin(Arc<Mutex<Option<Attempt>>>);

impl Pin {
    pub(super) fn set(&self, backend: &Arc<Backend>) {
        let former = self.0.lock().replace(Attempt::begin(backend));
        // Without the lock: it may be the last reference to a backend.
        drop(former);
    }

    /// The stream looks for a backend.
    pub(super) fn leave(&self) {
        let former = self.0.lock().take();
        drop(former);
    }

    /// The client has given the stream up. The backend still has to hear of it.
    pub(super) fn give_up(&self) {
        if let Some(attempt) = &mut *self.0.lock() {
            attempt.end();
        }
    }

    pub(super) fn backend(&self) -> Option<Arc<Backend>> {
        let attempt = self.0.lock();
        attempt.as_ref().map(|attempt| Arc::clone(&attempt.backend))
    }

    /// Takes in how the stream ended there.
    pub(super) fn handle_end(&self, is_ok: bool, trailers: MetadataView<'_>) {
        if let Some(attempt) = &mut *self.0.lock()
            && attempt.end()
        {
            attempt.backend.handle_end(is_ok, trailers);
        }
    }
}

/// A call at a backend. It counts as outstanding there until it ends.
pub(crate) struct Attempt {
    backend: Arc<Backend>,
    routing: Option<Box<Routing>>,
    /// The call is for this backend only.
    is_pinned: bool,
    has_ended: bool,
}

impl Attempt {
    pub(super) fn begin(backend: &Arc<Backend>) -> Self {
        backend.begin_call();
        Self {
            backend: Arc::clone(backend),
            routing: None,
            is_pinned: false,
            has_ended: false,
        }
    }

    /// Of a call that may go on to other backends with this.
    pub(super) fn with_routing(mut self, routing: Option<Box<Routing>>) -> Self {
        self.routing = routing;
        self
    }

    /// Of a call that is for this backend only.
    pub(super) fn pinned(mut self) -> Self {
        self.is_pinned = true;
        self
    }

    /// Takes in how the call ended. A call that its caller gave up says nothing of the backend.
    pub(crate) fn handle_end(&mut self, result: &CallResult) {
        self.end();
        // A stream counts by its end, not by its first response.
        if self.pin().is_none() {
            let (is_ok, metadata) = match result {
                Ok((response, _)) => (true, response.metadata()),
                Err(status) => (
                    false,
                    status.metadata().map(Metadata::view).unwrap_or_default(),
                ),
            };
            self.backend.handle_end(is_ok, metadata);
        }
    }

    /// The place of the stream that the call begins.
    fn pin(&self) -> Option<&Pin> {
        self.routing.as_ref()?.pin.as_ref()
    }

    /// False if it has ended before.
    fn end(&mut self) -> bool {
        let is_first = !std::mem::replace(&mut self.has_ended, true);
        if is_first {
            self.backend.end_call();
        }
        is_first
    }

    /// The call did not run here: has it made at another backend, if that may help.
    pub(crate) fn give_back(mut self, reply: Reply, status: Status) {
        if let Some(pin) = self.pin() {
            pin.leave();
        }
        let mut routing = self.routing.take().unwrap_or_default();
        routing.tried.push(self.backend.id);
        let balancer = match self.is_pinned {
            true => None,
            false => self.backend.balancer.upgrade(),
        };
        drop(self);
        match balancer {
            Some(balancer) => balancer.go_elsewhere(reply, routing, status),
            None => reply.finish(Err(status)),
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.end();
    }
}
