//! What the two halves of a device have in common.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use socket2::Socket;
use starling_io::PeerId;

use crate::sys::addr::{Family, RawAddr};

/// Who the peers of a [`UdpIo`](crate::UdpIo) are, by address. It may outlive the device, and does
/// not keep its socket.
#[derive(Clone)]
pub struct Directory(Arc<Peers>);

/// Written by the device's own thread. Others that have the directory look peers up, and only anew
/// when the version has changed: the lock is hardly ever contended.
struct Peers {
    family: Family,
    known: Mutex<HashMap<RawAddr, PeerId>>,
    /// Grows with each change of `known`, so that a cached look-up can be trusted without it.
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

    /// The peer at `address`, if it is one.
    pub fn find(&self, address: SocketAddr) -> Option<PeerId> {
        self.find_raw(&RawAddr::new(address, self.family())?)
    }

    /// A number that changes whenever a peer comes or goes: as long as it is the same, what was
    /// found before is still true.
    #[inline]
    pub fn version(&self) -> u32 {
        self.0.version.load(Ordering::Acquire)
    }

    pub(crate) fn family(&self) -> Family {
        self.0.family
    }

    /// The peer at `address`, if it is one.
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

/// The socket, which peers are known, and hints from one half to the other. The halves belong to
/// one thread: the atomics only make sharing safe.
pub(crate) struct Shared {
    pub(crate) socket: Socket,
    pub(crate) directory: Directory,
    /// Some path may merge datagrams or mark them: take each with its control messages.
    pub(crate) wants_control: AtomicBool,
    /// A system call failed with what may be a report about a datagram sent earlier.
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
