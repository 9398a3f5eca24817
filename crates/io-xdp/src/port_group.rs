//! Devices of this process that share a port: each forwards datagrams of another device's peer.
//!
//! ```text
//!   unknown to one device ─ a peer of another? ─ yes ─▶ the other's inbox ─▶ its next burst
//! ```
//!
//! A flow may change its queue: a sender moves from its kernel's socket to a queue of its own, or
//! somebody changes the card's table of queues. And a datagram that the XDP program leaves to the
//! kernel, from any queue, reaches the socket that the kernel's hash of the addresses picks. A
//! device that does not know the sender would answer that the sender's sessions do not exist, and
//! so end them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crossbeam_queue::ArrayQueue;
use starling_io::{Ecn, Wake};
use starling_io_udp::Directory;

/// Datagrams that wait for one device at most. More are dropped, as in a queue of the card.
const INBOX: usize = 1024;

/// A datagram on its way from one device to another.
pub(crate) struct MisroutedDatagram {
    pub(crate) source: SocketAddr,
    pub(crate) ecn: Ecn,
    pub(crate) bytes: Box<[u8]>,
}

/// The fate of a datagram from an unknown address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForwardOutcome {
    /// Its sender is no peer of another device.
    NoOwner,
    /// The other device has it.
    Forwarded,
    /// The other device has no room. The datagram is lost, and its sender sends it again.
    Lost,
}

struct Member {
    directory: Directory,
    inbox: ArrayQueue<MisroutedDatagram>,
    waker: Arc<dyn Wake>,
}

/// The devices that share a port.
type Group = Mutex<Vec<Weak<Member>>>;

/// One group for each shared port, by network namespace and address.
static GROUPS: Mutex<Vec<(u64, SocketAddr, Weak<Group>)>> = Mutex::new(Vec::new());

/// A device's membership in the group of its port.
pub(crate) struct PortGroup {
    own: Arc<Member>,
    group: Arc<Group>,
}

impl PortGroup {
    /// Joins the group of the port `local` in the network namespace.
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

    /// Gives a datagram to the device whose peer sent it.
    pub(crate) fn forward(&self, source: SocketAddr, ecn: Ecn, bytes: &[u8]) -> ForwardOutcome {
        let members = lock(&self.group);
        let mut others = members
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|member| !Arc::ptr_eq(member, &self.own));
        let Some(other) = others.find(|member| member.directory.find(source).is_some()) else {
            return ForwardOutcome::NoOwner;
        };
        let bytes = bytes.into();
        let pushed = other.inbox.push(MisroutedDatagram { source, ecn, bytes });
        other.waker.wake();
        match pushed {
            Ok(()) => ForwardOutcome::Forwarded,
            Err(_) => ForwardOutcome::Lost,
        }
    }

    /// The next datagram that another device forwarded.
    pub(crate) fn receive(&self) -> Option<MisroutedDatagram> {
        self.own.inbox.pop()
    }

    /// Whether another device has forwarded something.
    pub(crate) fn has_received(&self) -> bool {
        !self.own.inbox.is_empty()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use starling_io::PacketIo;
    use starling_io_udp::{UdpConfig, UdpIo};

    use super::*;

    #[test]
    fn a_datagram_without_room_in_the_inbox_counts_as_lost() {
        let device = || UdpIo::bind("udp://127.0.0.1:0", UdpConfig::default()).expect("a socket");
        let (own, mut other) = (device(), device());
        let peer = SocketAddr::from(([127, 0, 0, 1], 9));
        other.open_peer(&format!("udp://{peer}")).expect("room");
        // No device has port 0 of a namespace with that cookie.
        let join = |device: UdpIo| {
            let control = device.into_parts().2;
            let local = SocketAddr::from(([127, 0, 0, 1], 0));
            PortGroup::join(u64::MAX, local, control.directory(), control.waker())
        };
        let (own, other) = (join(own), join(other));
        let unknown = SocketAddr::from(([127, 0, 0, 1], 10));
        let forward = |from| own.forward(from, Ecn::NotCapable, b"misrouted");
        assert_eq!(forward(unknown), ForwardOutcome::NoOwner);
        assert!((0..INBOX).all(|_| forward(peer) == ForwardOutcome::Forwarded));
        assert_eq!(forward(peer), ForwardOutcome::Lost);
        assert_eq!(other.receive().expect("it has some").source, peer);
        assert_eq!(forward(peer), ForwardOutcome::Forwarded);
    }
}
