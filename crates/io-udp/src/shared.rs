//! The state that the two halves of a device share.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use socket2::Socket;
use starling_io::PeerId;

use crate::sys::addr::{Family, RawAddr};

/// The peers of a [`UdpIo`](crate::UdpIo), by address. It may outlive the device, and does not keep
/// the socket open.
#[derive(Clone)]
pub struct Directory(Arc<Peers>);

/// The device's own thread writes it. Other threads with the directory look peers up, and again
/// only when the version has changed, so the lock is hardly ever contended.
struct Peers {
    family: Family,
    known: Mutex<HashMap<RawAddr, PeerId>>,
    /// Grows with each change of `known`. While it is unchanged, a cached lookup is valid.
    version: AtomicU32,
}

impl Directory {
    fn new(family: Family) -> Self {
        Self(Arc::new(Peers {
            family,
            known: Mutex::default(),
            version: AtomicU32::new(0),
        }))
    }

    /// The peer at `address`, if there is one.
    pub fn find(&self, address: SocketAddr) -> Option<PeerId> {
        self.find_raw(&RawAddr::new(address, self.family())?)
    }

    /// A number that changes whenever a peer is added or removed. While it stays the same, earlier
    /// lookups remain valid.
    #[inline]
    pub fn version(&self) -> u32 {
        self.0.version.load(Ordering::Acquire)
    }

    pub(crate) fn family(&self) -> Family {
        self.0.family
    }

    /// The peer at `address`, if there is one.
    pub(crate) fn find_raw(&self, address: &RawAddr) -> Option<PeerId> {
        self.known().get(address).copied()
    }

    pub(crate) fn insert(&self, address: RawAddr, peer: PeerId) {
        let previous = self.known().insert(address, peer);
        assert_eq!(previous, None, "one peer for each address");
        self.0.version.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn remove(&self, address: &RawAddr) {
        let removed = self.known().remove(address);
        assert!(removed.is_some(), "a peer is removed once");
        self.0.version.fetch_add(1, Ordering::Release);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<RawAddr, PeerId>> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The socket, the peers, and hints from one half to the other. Both halves belong to one thread;
/// the atomics only make sharing safe.
pub(crate) struct Shared {
    pub(crate) socket: Socket,
    pub(crate) directory: Directory,
    /// Some path may merge or mark datagrams: receive each with its control messages.
    pub(crate) wants_control: AtomicBool,
    /// A system call failed, perhaps with a late report about an earlier datagram.
    pub(crate) errors_waiting: AtomicBool,
}

impl Shared {
    pub(crate) fn new(socket: Socket, family: Family) -> Self {
        Self {
            socket,
            directory: Directory::new(family),
            wants_control: AtomicBool::new(false),
            errors_waiting: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
