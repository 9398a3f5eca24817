//! The connections of an endpoint that its event loop has to poll between two turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::Connection;

/// Connections that the event loop has to poll: they need a session, wait for one to open, or suspect
/// that theirs has ended.
#[derive(Default)]
pub(crate) struct PollQueue {
    connections: Mutex<Vec<Arc<Connection>>>,
    has_new: AtomicBool,
}

impl PollQueue {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.connections.lock().is_empty()
    }

    /// Whether a connection has come since the event loop took the queue.
    pub(crate) fn has_new(&self) -> bool {
        self.has_new.load(Ordering::Relaxed)
    }

    pub(super) fn push(&self, connection: &Arc<Connection>) {
        self.has_new.store(true, Ordering::Relaxed);
        let mut queued = self.connections.lock();
        if !queued.iter().any(|it| Arc::ptr_eq(it, connection)) {
            queued.push(Arc::clone(connection));
        }
    }

    pub(crate) fn take(&self) -> Vec<Arc<Connection>> {
        self.has_new.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.connections.lock())
    }

    /// Keeps a connection for the next poll. It is not new: the thread may sleep until then.
    pub(crate) fn keep(&self, connection: Arc<Connection>) {
        let mut queued = self.connections.lock();
        if !queued.iter().any(|it| Arc::ptr_eq(it, &connection)) {
            queued.push(connection);
        }
    }
}
