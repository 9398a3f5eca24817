//! Notes which requests' callers have given up.

use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use parking_lot::Mutex;
use starling_endpoint::DeferredReply;

/// The keys of requests whose callers have given up, and that were not looked at.
#[derive(Debug)]
pub(super) struct GivenUp<K>(Arc<Mutex<Vec<K>>>);

impl<K> Default for GivenUp<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Copy + Send + Sync + 'static> GivenUp<K> {
    /// A waker that notes this key.
    pub(super) fn waker(&self, key: K) -> Waker {
        let keys = Arc::clone(&self.0);
        Arc::new(Watcher { key, keys }).into()
    }

    /// Has a reply note its key by a waker of it, when its caller gives up or if it has.
    pub(super) fn watch(&self, reply: &mut DeferredReply, waker: &Waker, key: K) {
        if reply
            .poll_cancelled(&mut Context::from_waker(waker))
            .is_ready()
        {
            self.0.lock().push(key);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    pub(super) fn pop(&self) -> Option<K> {
        self.0.lock().pop()
    }

    pub(super) fn take(&self) -> Vec<K> {
        std::mem::take(&mut *self.0.lock())
    }
}

struct Watcher<K> {
    key: K,
    keys: Arc<Mutex<Vec<K>>>,
}

impl<K: Copy + Send + Sync + 'static> Wake for Watcher<K> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.keys.lock().push(self.key);
    }
}
