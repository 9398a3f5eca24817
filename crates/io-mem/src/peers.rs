//! The devices that a device sends to and hears from.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use slab::Slab;
use starling_io::PeerId;

use crate::port::{Datagram, Link, Port, Room};

/// A peer, with the datagrams that are to be sent to it.
pub(crate) struct Peer {
    pub(crate) port: Arc<Port>,
    pub(crate) link: Arc<Link>,
    /// The open datagram, with its room.
    pub(crate) open: Option<(Vec<u8>, Room)>,
    /// Closed datagrams, until the next flush.
    pub(crate) ready: Vec<Datagram>,
    /// Whether it is in the list of peers to flush.
    pub(crate) is_begun: bool,
    pub(crate) is_reported_gone: bool,
}

/// The table of peers, which both halves of a device use.
#[derive(Default)]
pub(crate) struct Peers {
    pub(crate) slab: Slab<Peer>,
    by_port: HashMap<u64, usize>,
    /// Memory of datagrams that were received, for datagrams to send.
    spare: Vec<Vec<u8>>,
}

/// Datagrams whose memory is kept.
const SPARE: usize = 64;
/// The most memory of a datagram that is kept, in bytes.
const SPARE_BYTES: usize = 4096;

#[derive(Clone, Default)]
pub(crate) struct SharedPeers(Arc<Mutex<Peers>>);

impl SharedPeers {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Peers> {
        self.0.lock()
    }
}

impl Peers {
    /// The peer at a port, which becomes one if it is none.
    pub(crate) fn of_port(&mut self, own: &Arc<Port>, port: &Arc<Port>) -> PeerId {
        let index = *self.by_port.entry(port.id).or_insert_with(|| {
            self.slab.insert(Peer {
                port: Arc::clone(port),
                link: Link::new(own),
                open: None,
                ready: Vec::new(),
                is_begun: false,
                is_reported_gone: false,
            })
        });
        PeerId(index as u32)
    }

    pub(crate) fn get_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.slab.get_mut(peer.0 as usize)
    }

    pub(crate) fn remove(&mut self, peer: PeerId) {
        if let Some(peer) = self.slab.try_remove(peer.0 as usize) {
            self.by_port.remove(&peer.port.id);
        }
    }

    /// Empty memory for a datagram.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps memory for a later datagram.
    pub(crate) fn recycle(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE && buffer.capacity() <= SPARE_BYTES {
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}
