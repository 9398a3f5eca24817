//! Who the peers are whose requests came, for their handlers. The device is asked once for each.

use starling_call::{Peer, ProcessCredentials};
use starling_io::{PacketTx, PeerInfo, PeerProcess};
use starling_proto::PeerId;

use crate::convert::io_peer;

/// The peers that handlers have asked for, or could ask for, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Peers(Vec<Option<Peer>>);

impl Peers {
    /// A peer of the device.
    #[inline]
    pub(crate) fn of(&mut self, peer: PeerId, tx: &impl PacketTx) -> &Peer {
        let index = peer.0 as usize;
        if !matches!(self.0.get(index), Some(Some(_))) {
            self.insert(peer, tx);
        }
        match &self.0[index] {
            Some(peer) => peer,
            None => Peer::unknown(),
        }
    }

    #[cold]
    fn insert(&mut self, peer: PeerId, tx: &impl PacketTx) {
        let index = peer.0 as usize;
        if index >= self.0.len() {
            self.0.resize(index + 1, None);
        }
        self.0[index] = Some(call_peer(tx.peer_info(io_peer(peer))));
    }

    /// The device forgets a peer, and may use its number for another one.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        if let Some(peer) = self.0.get_mut(peer.0 as usize) {
            *peer = None;
        }
    }
}

/// A peer, as calls know it.
fn call_peer(info: PeerInfo) -> Peer {
    let process = |PeerProcess { pid, uid, gid }| ProcessCredentials { pid, uid, gid };
    let peer = Peer::new(info.address, info.socket_addr, info.process.map(process));
    let peer = peer.with_memory(info.memory);
    match info.target {
        Some(target) => peer.with_target(target),
        None => peer,
    }
}
