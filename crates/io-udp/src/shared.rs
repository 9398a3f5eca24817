//! What the two halves of a device have in common.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use socket2::Socket;
use starling_io::PeerId;

use crate::sys::addr::{Family, RawAddr};

/// Who the peers of a [`UdpIo`](crate::UdpIo) are, by address.
#[derive(Clone)]
pub struct Directory(pub(crate) Arc<Shared>);

impl Directory {
    /// The peer at `address`, if it is one.
    pub fn find(&self, address: SocketAddr) -> Option<PeerId> {
        self.0.find(&RawAddr::new(address, self.0.family)?)
    }

    /// A number that changes whenever a peer comes or goes: as long as it is the same, what was
    /// found before is still true.
    #[inline]
    pub fn version(&self) -> u32 {
        self.0.version()
    }
}

/// The socket, which peers are known, and hints from one half to the other. The halves belong to
/// one thread, so the lock and the atomics are never contended: they only make sharing safe.
pub(crate) struct Shared {
    pub(crate) socket: Socket,
    pub(crate) family: Family,
    known: Mutex<HashMap<RawAddr, PeerId>>,
    /// Grows with each change of `known`, so that a cached look-up can be trusted without it.
    version: AtomicU32,
    /// Some path may merge datagrams or mark them: take each with its control messages.
    pub(crate) wants_control: AtomicBool,
    /// A system call failed with what may be a report about a datagram sent earlier.
    pub(crate) errors_waiting: AtomicBool,
}

impl Shared {
    pub(crate) fn new(socket: Socket, family: Family) -> Self {
        Self {
            socket,
            family,
            known: Mutex::default(),
            version: AtomicU32::new(0),
            wants_control: AtomicBool::new(false),
            errors_waiting: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The peer at `address`, if it is one.
    pub(crate) fn find(&self, address: &RawAddr) -> Option<PeerId> {
        self.known().get(address).copied()
    }

    pub(crate) fn insert(&self, address: RawAddr, peer: PeerId) {
        let previous = self.known().insert(address, peer);
        assert_eq!(previous, None, "one peer for each address");
        self.version.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn remove(&self, address: &RawAddr) {
        let removed = self.known().remove(address);
        assert!(removed.is_some(), "a peer is removed once");
        self.version.fetch_add(1, Ordering::Release);
    }

    #[inline]
    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<RawAddr, PeerId>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
