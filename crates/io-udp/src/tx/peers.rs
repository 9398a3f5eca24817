//! Peers of the sending half: their addresses, and the largest datagram that each path takes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use starling_io::{Fault, IoError, PeerId};

use super::{MAX_SEGMENTED_BYTES, NONE, UdpTx};
use crate::connected::ConnectedSocket;
use crate::staging::Slot;
use crate::sys::addr::RawAddr;
use crate::sys::socket;

#[derive(Clone, Copy)]
pub(super) struct TxPeer {
    pub(super) address: RawAddr,
    pub(super) max_datagram: u32,
    /// The slot that frames are appended to.
    pub(super) open: Slot,
    /// Queued slots for this peer, with the open one.
    pub(super) queued: u16,
    pub(super) live: bool,
    /// At least two of its full datagrams fit into one GSO message.
    pub(super) segmented: bool,
}

impl TxPeer {
    /// Lowers the largest datagram to `max_datagram` bytes, if it was larger.
    pub(super) fn lower(&mut self, max_datagram: usize) {
        self.max_datagram = self.max_datagram.min(max_datagram as u32);
        self.segmented = 2 * self.max_datagram as usize <= MAX_SEGMENTED_BYTES;
    }
}

impl UdpTx {
    /// The peer at `address`; a new one if there is none yet.
    pub(crate) fn add_peer(&mut self, address: SocketAddr) -> Result<PeerId, IoError> {
        let attempt = || format!("make a peer of udp://{address}");
        let refuse =
            |problem: String, remedy| IoError::new(Fault::Caller, attempt(), problem, remedy);
        if address.port() == 0 || address.ip().is_unspecified() {
            let problem = "nothing can be sent there".to_owned();
            return Err(refuse(problem, "use the peer's own address and port"));
        }
        let raw = RawAddr::new(address, self.shared.directory.family()).ok_or_else(|| {
            let problem = "an IPv4 socket cannot reach an IPv6 address".to_owned();
            refuse(problem, "bind this end to udp://[::]:0")
        })?;
        let raw = raw.with_interface(self.interface).ok_or_else(|| {
            let problem = "a link-local address needs an interface, and this one has none";
            let remedy = "append the interface of this host: udp://[fe80::1%eth0]:9000";
            refuse(problem.to_owned(), remedy)
        })?;
        if let Some(peer) = self.shared.directory.find_raw(&raw) {
            return Ok(peer);
        }
        if self.free_ids.is_empty() && self.peers.len() == self.max_peers {
            let problem = format!("there are {} peers already", self.max_peers);
            return Err(refuse(problem, "close some, or use another endpoint"));
        }
        let max_datagram = self.probe_path(raw)?;
        let peer = TxPeer {
            address: raw,
            max_datagram: max_datagram as u32,
            open: NONE,
            queued: 0,
            live: true,
            segmented: 2 * max_datagram <= MAX_SEGMENTED_BYTES,
        };
        let number = match self.free_ids.pop() {
            Some(number) => {
                self.peers[number as usize] = peer;
                number
            }
            None => {
                self.peers.push(peer);
                self.peers.len() as u32 - 1
            }
        };
        self.shared.directory.insert(raw, PeerId(number));
        Ok(PeerId(number))
    }

    /// Removes a peer and drops its queued datagrams. Does nothing if it is not a peer.
    pub(crate) fn remove_peer(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id.0 as usize).filter(|peer| peer.live) else {
            return;
        };
        peer.live = false;
        self.connected = self
            .connected
            .take()
            .filter(|connected| connected.peer != id);
        self.shared.directory.remove(&peer.address);
        self.staging.release_all_of(id.0);
        self.free_ids.push(id.0);
    }

    /// The address of a peer, if it is one.
    pub(crate) fn address_of(&self, id: PeerId) -> Option<RawAddr> {
        let peer = self.peers.get(id.0 as usize).filter(|peer| peer.live);
        peer.map(|peer| peer.address)
    }

    /// Sets the connected socket, by which datagrams to its peer leave from now on.
    pub(crate) fn set_connected(&mut self, connected: Option<Arc<ConnectedSocket>>) {
        self.connected = connected;
    }

    /// Asks the kernel again for the largest datagram to a peer, and returns it.
    pub(crate) fn update_max_datagram(&mut self, id: PeerId) -> usize {
        let measured = self.probe_path(self.peers[id.0 as usize].address);
        let peer = &mut self.peers[id.0 as usize];
        // Without a route, the peer's datagrams are dropped for another reason than their size.
        if let Ok(max_datagram) = measured {
            peer.lower(max_datagram);
        }
        peer.max_datagram as usize
    }

    /// The largest datagram to `address`. If its path may merge or mark datagrams, the device
    /// receives all datagrams with their control messages from now on.
    fn probe_path(&self, address: RawAddr) -> Result<usize, IoError> {
        let payload = self.probe.largest_payload(address)?;
        if 2 * payload <= MAX_SEGMENTED_BYTES && (self.gro || self.ecn) {
            let first = !self.shared.wants_control.swap(true, Ordering::Relaxed);
            if first && self.gro {
                // A kernel without GRO for UDP refuses, and merges nothing.
                let connected = self.connected.as_ref().map(|connected| connected.fd());
                for fd in [Some(self.shared.fd()), connected].into_iter().flatten() {
                    let _ = socket::set_int(fd, libc::SOL_UDP, libc::UDP_GRO, 1);
                }
            }
        }
        Ok(payload.min(self.largest))
    }
}
