//! Queues that devices of this process have. The kernel decides who gets a queue; of one that is
//! taken it does not say by whom, and what to do about it depends on that.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::socket::Place;

/// Network namespace, interface and queue.
type Key = (u64, u32, u32);

/// One entry for each device. There may be two of a queue: that of a device whose interface went
/// away and came back is the first to be no use any more, and the last to know.
static TAKEN: Mutex<Vec<Key>> = Mutex::new(Vec::new());

/// A device has a queue, as long as this lives.
pub(crate) struct Taken(Key);

impl Taken {
    /// The device has opened its socket there.
    pub(crate) fn new(place: &Place<'_>) -> Self {
        lock().push(key(place));
        Self(key(place))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut taken = lock();
        let at = taken.iter().position(|key| *key == self.0);
        taken.swap_remove(at.expect("it was entered"));
    }
}

/// Whether a device of this process has the queue.
pub(crate) fn is_ours(place: &Place<'_>) -> bool {
    lock().contains(&key(place))
}

fn key(place: &Place<'_>) -> Key {
    (place.namespace, place.index, place.queue)
}

fn lock() -> MutexGuard<'static, Vec<Key>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_ours_until_the_last_device_on_it_has_gone() {
        let on = |namespace, index, queue| Place {
            interface: "eth0",
            namespace,
            index,
            queue,
            mode: None,
            is_generic: false,
            memory: 0,
        };
        // A namespace that nobody has.
        let place = on(u64::MAX, 2, 0);
        assert!(!is_ours(&place));
        let first = Taken::new(&place);
        let second = Taken::new(&place);
        assert!(is_ours(&place));
        for other in [
            on(u64::MAX, 2, 1),
            on(u64::MAX, 3, 0),
            on(u64::MAX - 1, 2, 0),
        ] {
            assert!(!is_ours(&other), "{other:?}");
        }
        drop(first);
        assert!(is_ours(&place));
        drop(second);
        assert!(!is_ours(&place));
    }
}
