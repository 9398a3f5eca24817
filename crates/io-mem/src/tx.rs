//! The sending half.

use std::net::SocketAddr;
use std::sync::Arc;

use starling_io::{Fault, IoError, PacketTx, PeerId, PeerInfo, PeerProcess, TxError};

use crate::MAX_DATAGRAM;
use crate::peers::{Peer, SharedPeers};
use crate::port::{Datagram, Link, Port};

/// The sending half of a [`MemIo`](crate::MemIo).
pub struct MemTx {
    port: Arc<Port>,
    peers: SharedPeers,
    /// Peers with something to send.
    begun: Vec<PeerId>,
    pub(crate) sent: u64,
}

impl MemTx {
    pub(crate) fn new(port: &Arc<Port>, peers: &SharedPeers) -> Self {
        Self {
            port: Arc::clone(port),
            peers: peers.clone(),
            begun: Vec::new(),
            sent: 0,
        }
    }
}

/// Closes the open datagram.
fn close_open(own: &Arc<Port>, peer: &mut Peer) {
    if let Some((bytes, room)) = peer.open.take() {
        let from = Arc::clone(own);
        peer.ready.push(Datagram { from, bytes, room });
    }
}

impl PacketTx for MemTx {
    fn append(
        &mut self,
        peer: PeerId,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), TxError> {
        let mut peers = self.peers.lock();
        let mut buffer = peers.buffer();
        let peer_state = peers.get_mut(peer).ok_or(TxError::Gone)?;
        if peer_state.is_reported_gone {
            return Err(TxError::Gone);
        }
        let frame = head.len() + body.len() + tail.len();
        if let Some((open, _)) = &peer_state.open
            && open.len() + frame > MAX_DATAGRAM
        {
            close_open(&self.port, peer_state);
        }
        match &mut peer_state.open {
            Some((open, room)) => {
                if !room.grow(frame) {
                    return Err(TxError::Full);
                }
                open.extend_from_slice(head);
                open.extend_from_slice(body);
                open.extend_from_slice(tail);
            }
            None => {
                let room = Link::take_room(&peer_state.link, preamble.len() + frame);
                let room = room.ok_or(TxError::Full)?;
                for part in [preamble, head, body, tail] {
                    buffer.extend_from_slice(part);
                }
                peer_state.open = Some((std::mem::take(&mut buffer), room));
            }
        }
        if !std::mem::replace(&mut peer_state.is_begun, true) {
            self.begun.push(peer);
        }
        if buffer.capacity() > 0 {
            peers.recycle(buffer);
        }
        Ok(())
    }

    fn seal(&mut self, peer: PeerId) {
        if let Some(peer) = self.peers.lock().get_mut(peer) {
            close_open(&self.port, peer);
        }
    }

    fn flush(&mut self) -> Result<(), IoError> {
        for peer in self.begun.drain(..) {
            let mut peers = self.peers.lock();
            let Some(peer) = peers.get_mut(peer) else {
                continue;
            };
            peer.is_begun = false;
            close_open(&self.port, peer);
            let (port, mut ready) = (Arc::clone(&peer.port), std::mem::take(&mut peer.ready));
            drop(peers);
            self.sent += ready.len() as u64;
            // A closed port is an event of its own.
            let _ = port.deliver(&mut ready);
        }
        Ok(())
    }

    /// There are no unknown senders: each device of the process is known by its port.
    fn send_to_unknown(&mut self, _to: SocketAddr, _datagram: &[u8]) {}

    fn accept_peer(&mut self, address: SocketAddr) -> Result<PeerId, IoError> {
        Err(IoError::new(
            Fault::Caller,
            format!("make a peer of {address}"),
            "a device of this process has no such address",
            "this is a bug of the caller: its peers are known when they send",
        ))
    }

    fn peer_info(&self, peer: PeerId) -> PeerInfo {
        let mut peers = self.peers.lock();
        let port = peers.get_mut(peer).map(|peer| Arc::clone(&peer.port));
        let Some(port) = port else {
            return PeerInfo::default();
        };
        PeerInfo {
            address: match &port.name {
                Some(name) => format!("mem://{name}"),
                None => format!("mem://port:{}", port.id),
            },
            socket_addr: None,
            process: Some(PeerProcess::own()),
            ..PeerInfo::default()
        }
    }

    fn max_datagram(&self, _peer: PeerId) -> usize {
        MAX_DATAGRAM
    }
}
