//! The memory of large messages: what the links of the service share, and the heaps out of which applications copy.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use starling::Bytes;
use starling_endpoint::LargeBuffers;
use starling_io::{LARGE_BYTES, PeerMemory};

/// Links that make requests in a heap, at most. A heap keeps the pages that it has used, up to 64 MiB, which count for
/// no application; other links send by their rings.
const MOST_HEAPS: usize = 8;

/// Of all links: they hand messages on to one another.
static BUFFERS: LazyLock<LargeBuffers> = LazyLock::new(LargeBuffers::default);

/// Links that do so now.
static HEAPS: AtomicUsize = AtomicUsize::new(0);

/// Of one link.
#[derive(Debug, Default)]
pub(crate) struct LargeMemory {
    /// The address of all its sessions as a client, if that is one.
    address: Option<Box<str>>,
    heap: PeerMemory,
    is_counted: bool,
}

impl LargeMemory {
    /// The buffers of all links.
    pub(crate) fn buffers() -> &'static LargeBuffers {
        &BUFFERS
    }

    /// The link opens a session. Only a link with one address makes requests in a heap.
    pub(crate) fn note_address(&mut self, address: &str, heap: impl FnOnce() -> PeerMemory) {
        match &self.address {
            None => {
                self.address = Some(address.into());
                self.heap = heap();
            }
            Some(one) if **one == *address => {}
            Some(_) => self.heap = PeerMemory::default(),
        }
    }

    /// A copy of a request in the heap, if it is large and there is room.
    pub(crate) fn copy(&mut self, request: &[u8]) -> Option<Bytes> {
        if request.len() < LARGE_BYTES || !self.heap.is_of_device() {
            return None;
        }
        if !self.is_counted {
            let more = |heaps| (heaps < MOST_HEAPS).then_some(heaps + 1);
            let set = Ordering::Relaxed;
            self.is_counted = HEAPS.fetch_update(set, set, more).is_ok();
        }
        match self.is_counted {
            true => self.heap.copy(request),
            false => None,
        }
    }
}

impl Drop for LargeMemory {
    fn drop(&mut self) {
        if self.is_counted {
            HEAPS.fetch_sub(1, Ordering::Relaxed);
        }
        // The links that are left may sleep, and free nothing.
        BUFFERS.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use starling_io::{MessageMemory, PacketMemory};

    use super::*;

    struct Heap;

    impl PacketMemory for Heap {
        fn make(&self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Option<Bytes> {
            let mut bytes = vec![0; len];
            fill(&mut bytes);
            Some(bytes.into())
        }

        fn of_peer(&self, _: &str) -> Option<Arc<dyn PacketMemory>> {
            Some(Arc::new(Self))
        }
    }

    fn link(addresses: &[&str]) -> LargeMemory {
        let memory = MessageMemory::of_device(Arc::new(Heap));
        let mut link = LargeMemory::default();
        for address in addresses {
            link.note_address(address, || memory.of_peer(address));
        }
        link
    }

    #[test]
    fn links_with_one_address_make_large_requests_in_heaps_as_many_as_there_may_be() {
        let large = vec![7; LARGE_BYTES];
        assert!(link(&["shm://a", "shm://b"]).copy(&large).is_none());
        assert!(link(&[]).copy(&large).is_none());
        let mut links: Vec<_> = (0..MOST_HEAPS)
            .map(|_| link(&["shm://a", "shm://a"]))
            .collect();
        for link in &mut links {
            assert!(link.copy(&large[1..]).is_none(), "it is small");
            assert_eq!(link.copy(&large).as_deref(), Some(&*large));
        }
        let mut late = link(&["shm://a"]);
        assert!(late.copy(&large).is_none(), "there are too many");
        links.pop();
        assert!(late.copy(&large).is_some());
    }
}
