//! Devices of this process that share a port: what one hears from a peer of another it passes on.
//!
//! ```text
//!   a stranger of one device ─ a peer of another? ─ yes ─▶ the other's inbox ─▶ its next burst
//! ```
//!
//! A flow may change its queue: a sender moves from its kernel's socket to a queue of its own, or
//! the card's table of queues is changed. And what the XDP program leaves to the kernel, on whatever
//! queue it came, gets to the socket that the kernel's hash of the addresses picks. Who knows nothing
//! of the sender's sessions would answer that they do not exist, and so end them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crossbeam_queue::ArrayQueue;
use starling_io::{Ecn, Wake};
use starling_io_udp::Directory;

/// Datagrams that wait for one device; what is beyond is dropped, as it is in a queue of the card's.
const INBOX: usize = 1024;

/// A datagram on its way from one device to another.
pub(crate) struct Stray {
    pub(crate) source: SocketAddr,
    pub(crate) ecn: Ecn,
    pub(crate) bytes: Box<[u8]>,
}

struct Member {
    directory: Directory,
    inbox: ArrayQueue<Stray>,
    waker: Arc<dyn Wake>,
}

/// Those that share a port.
type Group = Mutex<Vec<Weak<Member>>>;

/// One group for each port that is shared: its network namespace, its address, who has it.
static GROUPS: Mutex<Vec<(u64, SocketAddr, Weak<Group>)>> = Mutex::new(Vec::new());

/// A device's place among those that share its port.
pub(crate) struct Siblings {
    own: Arc<Member>,
    group: Arc<Group>,
}

impl Siblings {
    /// A device at `local`, which others of the same network namespace may have, too.
    pub(crate) fn join(
        namespace: u64,
        local: SocketAddr,
        directory: Directory,
        waker: Arc<dyn Wake>,
    ) -> Self {
        let own = Arc::new(Member {
            directory,
            inbox: ArrayQueue::new(INBOX),
            waker,
        });
        let mut groups = lock(&GROUPS);
        groups.retain(|(.., group)| group.strong_count() > 0);
        let known = groups
            .iter()
            .find(|(in_namespace, at, _)| (*in_namespace, *at) == (namespace, local));
        let known = known.and_then(|(.., group)| group.upgrade());
        let group = known.unwrap_or_else(|| {
            let group = Arc::default();
            groups.push((namespace, local, Arc::downgrade(&group)));
            group
        });
        drop(groups);
        let mut members = lock(&group);
        members.retain(|member| member.strong_count() > 0);
        members.push(Arc::downgrade(&own));
        drop(members);
        Self { own, group }
    }

    /// Gives a datagram to the device whose peer has sent it. False: it is nobody else's.
    pub(crate) fn pass_on(&self, source: SocketAddr, ecn: Ecn, bytes: &[u8]) -> bool {
        let members = lock(&self.group);
        let mut others = members
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|member| !Arc::ptr_eq(member, &self.own));
        let Some(other) = others.find(|member| member.directory.find(source).is_some()) else {
            return false;
        };
        let bytes = bytes.into();
        // What there is no room for is lost, and sent again.
        let _ = other.inbox.push(Stray { source, ecn, bytes });
        other.waker.wake();
        true
    }

    /// What another device has passed on.
    pub(crate) fn receive(&self) -> Option<Stray> {
        self.own.inbox.pop()
    }

    /// Something was passed on.
    pub(crate) fn has_received(&self) -> bool {
        !self.own.inbox.is_empty()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
