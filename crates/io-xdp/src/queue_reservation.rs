//! Queues that devices of this process have.
//!
//! The kernel decides which socket gets a queue. It does not say which process has a queue that is
//! taken, and the remedy depends on that.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A queue of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueId {
    /// The cookie of the network namespace.
    pub(crate) namespace: u64,
    /// The interface's number.
    pub(crate) interface: u32,
    pub(crate) queue: u32,
}

/// One entry for each device. A queue may have two entries: a device whose interface went away and
/// came back keeps its entry until it is dropped.
static RESERVED: Mutex<Vec<QueueId>> = Mutex::new(Vec::new());

/// A device has a queue, as long as this lives.
pub(crate) struct QueueReservation(QueueId);

impl QueueReservation {
    /// The device has opened its socket on the queue.
    pub(crate) fn new(id: QueueId) -> Self {
        lock().push(id);
        Self(id)
    }
}

impl Drop for QueueReservation {
    fn drop(&mut self) {
        let mut reserved = lock();
        let at = reserved.iter().position(|id| *id == self.0);
        reserved.swap_remove(at.expect("it was entered"));
    }
}

/// Whether a device of this process has the queue.
pub(crate) fn is_reserved_here(id: QueueId) -> bool {
    lock().contains(&id)
}

fn lock() -> MutexGuard<'static, Vec<QueueId>> {
    RESERVED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_reserved_until_the_last_device_on_it_has_gone() {
        let on = |namespace, interface, queue| QueueId {
            namespace,
            interface,
            queue,
        };
        // No namespace has this cookie.
        let id = on(u64::MAX, 2, 0);
        assert!(!is_reserved_here(id));
        let first = QueueReservation::new(id);
        let second = QueueReservation::new(id);
        assert!(is_reserved_here(id));
        for other in [
            on(u64::MAX, 2, 1),
            on(u64::MAX, 3, 0),
            on(u64::MAX - 1, 2, 0),
        ] {
            assert!(!is_reserved_here(other), "{other:?}");
        }
        drop(first);
        assert!(is_reserved_here(id));
        drop(second);
        assert!(!is_reserved_here(id));
    }
}
