//! Which way a datagram leaves: by the AF_XDP ring, or by the kernel's UDP socket of the same port.
//!
//! | datagram | leaves by | decided in |
//! |---|---|---|
//! | to an unknown address | socket | [`PacketTx::send_to_unknown`](starling_io::PacketTx::send_to_unknown) |
//! | to a peer whose next hop has no known MAC address | socket: the kernel resolves it | `XdpTx::begin` |
//! | large, in a run to one peer, where the policy says so | socket: one system call for the run | `XdpTx::run_at` |
//! | any other | ring | |
//!
//! For received datagrams the XDP program decides (`bpf/steer.bpf.c`), and [`crate::rx`] decides
//! when to poll the socket.

use starling_io::{PeerId, TxError};
use starling_io_udp::UdpTx;

use super::{Slot, SlotState, XdpTx};

/// When something else is better than a copy by the ring.
pub(crate) struct TransmitPolicy {
    /// The least part that is gathered rather than copied, in bytes.
    pub(crate) gather_from: usize,
    /// The most descriptors of a frame.
    pub(crate) max_parts: usize,
    /// Runs of large datagrams leave by the kernel's socket.
    pub(crate) runs_by_socket: bool,
}

/// After so many datagrams to a peer by the kernel's socket the device itself looks up the next
/// hop: the thread that should do it may have no core.
pub(super) const SENDS_BEFORE_LOOKUP: u8 = 32;

/// The smallest datagram of a run, in bytes.
const LEAST: usize = 1024;

/// The least bytes of several datagrams together, and of a single one, that leave by the socket.
const TOGETHER: usize = 4 << 10;
const ALONE: usize = 16 << 10;

impl XdpTx {
    /// A new slot for a peer. `None`: the next hop is unknown, and the datagram leaves by the
    /// socket.
    #[inline]
    pub(super) fn begin(&mut self, id: PeerId) -> Result<Option<Slot>, TxError> {
        let Some(Some(peer)) = self.peers.get(id.0 as usize) else {
            return Err(TxError::Gone);
        };
        let Some(next_hop) = peer.hop.mac() else {
            self.handle_unknown_hop(id);
            return Ok(None);
        };
        let Some(slot) = self.take_slot() else {
            return Err(TxError::Full);
        };
        self.slots[usize::from(slot)] = SlotState {
            peer: id.0,
            next_hop,
            ..SlotState::default()
        };
        self.queue.push(slot);
        let peer = self.peers[id.0 as usize].as_mut();
        peer.expect("it was there").open = slot;
        Ok(Some(slot))
    }

    /// The next hop is unknown: looks it up if no other thread does. While the thread does a
    /// lookup for any hop, the kernel may answer no one. Then the sender does not wait, and
    /// continues by the socket.
    #[cold]
    fn handle_unknown_hop(&mut self, id: PeerId) {
        let Some(Some(peer)) = self.peers.get_mut(id.0 as usize) else {
            return;
        };
        if peer.hop.was_looked_up() {
            return;
        }
        peer.sends_unresolved += 1;
        if peer.sends_unresolved >= SENDS_BEFORE_LOOKUP {
            peer.sends_unresolved = 0;
            if self.shared.neighbours.is_looking_up() {
                // The list of requests may have been full before.
                self.shared.neighbours.request(&peer.hop);
            } else {
                peer.hop.refresh(&mut self.netlink, false);
            }
        }
    }

    /// Bytes of a slot's payload.
    #[inline]
    fn payload_len(&self, slot: Slot) -> usize {
        let state = &self.slots[usize::from(slot)];
        (state.len + state.gathered.len) as usize
    }

    /// The number of datagrams from this place of the queue on that are worth sending by the socket
    /// together. Zero: the ring is better.
    #[inline]
    pub(super) fn run_at(&mut self, index: usize) -> usize {
        let segment = self.payload_len(self.queue[index]);
        if segment < LEAST || !self.policy.runs_by_socket {
            return 0;
        }
        if self.socket_rest > 0 {
            self.socket_rest -= 1;
            return 0;
        }
        self.run_of(index, segment)
    }

    fn run_of(&self, index: usize, segment: usize) -> usize {
        let peer = self.slots[usize::from(self.queue[index])].peer;
        let (max_count, max_bytes) = UdpTx::MAX_RUN;
        let (mut total, mut count) = (segment, 1);
        for &slot in self.queue[index + 1..].iter().take(max_count - 1) {
            let len = self.payload_len(slot);
            let is_of_run = self.slots[usize::from(slot)].peer == peer && len <= segment;
            if !is_of_run || total + len > max_bytes {
                break;
            }
            total += len;
            count += 1;
            if len < segment {
                break;
            }
        }
        let least = if count > 1 { TOGETHER } else { ALONE };
        if total >= least { count } else { 0 }
    }
}
