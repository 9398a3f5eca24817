//! The sending half: it builds Ethernet frames where the kernel takes them from.
//!
//! Bytes that are appended for a peer are copied into a slot of the packet memory, after room for
//! the headers. Large parts that lie in packet memory already are gathered where they lie
//! (`tx/gather.rs`). A flush writes the headers, hands the slots to the kernel, and wakes it with
//! one system call for all.
//!
//! Some datagrams leave by the kernel's socket instead of the ring: `tx/ring_or_socket.rs` decides.

mod completion;
mod gather;
mod ring_or_socket;
mod run;

use std::net::SocketAddr;
use std::sync::Arc;

use starling_ethernet::{Mac, Template};
use starling_io::{IoError, PacketTx, PeerId, PeerInfo, TxError};
use starling_io_udp::UdpTx;

use crate::chunk_accounting::ChunkAccounting;
use crate::exchange::Exchange;
use crate::memory::Messages;
use crate::neighbour::{NextHop, Target};
use crate::netlink::Netlink;
use crate::ring::{CONTINUED, Consumer, Descriptor, Producer};
use crate::shared::Shared;
use crate::socket::kick;
use crate::umem::SLOT_MARGIN;
use gather::Gathered;
use run::RunOutcome;

pub(crate) use ring_or_socket::TransmitPolicy;

/// Index of a slot.
type Slot = u16;

/// No slot.
const NONE: Slot = Slot::MAX;

/// The sending half of an [`XdpIo`](crate::XdpIo).
pub struct XdpTx {
    shared: Arc<Shared>,
    pub(crate) udp: UdpTx,
    pub(crate) netlink: Netlink,
    tx: Producer<Descriptor>,
    completion: Consumer<u64>,
    slots: Vec<SlotState>,
    free: Vec<Slot>,
    /// Slots with something to send, oldest first.
    queue: Vec<Slot>,
    peers: Vec<Option<Peer>>,
    /// Datagrams given to the kernel by the ring so far.
    pub(crate) sent: u64,
    /// Those among them with a gathered part.
    pub(crate) sent_gathered: u64,
    /// The queues between the device and workers, if there are any.
    exchange: Option<Arc<Exchange>>,
    /// Receive chunks that this half has given to the kernel, less those that came back.
    foreign: u32,
    /// Where this half reports them at the end.
    chunks: Arc<ChunkAccounting>,
    /// Messages in packet memory.
    messages: Messages,
    policy: TransmitPolicy,
    /// Large datagrams that go by the ring before the device tries the socket again.
    socket_rest: u32,
    /// Descriptors of messages that are queued or at the kernel.
    gathered: u32,
}

#[derive(Clone, Copy, Default)]
struct SlotState {
    peer: u32,
    /// Bytes of payload.
    len: u32,
    next_hop: Mac,
    /// Descriptors that the kernel has not given back.
    at_kernel: u8,
    /// The part that leaves from another place, if it has bytes.
    gathered: Gathered,
}

struct Peer {
    template: Template,
    hop: Arc<NextHop>,
    /// The slot that frames are appended to.
    open: Slot,
    /// Datagrams that went by the socket since the last lookup of the next hop.
    sends_unresolved: u8,
}

impl XdpTx {
    pub(crate) fn new(
        shared: Arc<Shared>,
        udp: UdpTx,
        netlink: Netlink,
        tx: Producer<Descriptor>,
        completion: Consumer<u64>,
        chunks: Arc<ChunkAccounting>,
        policy: TransmitPolicy,
    ) -> Self {
        let slots = shared.umem.layout.tx_slots;
        Self {
            messages: Messages::new(Arc::clone(&shared.umem)),
            policy,
            socket_rest: 0,
            gathered: 0,
            shared,
            udp,
            netlink,
            tx,
            completion,
            slots: vec![SlotState::default(); slots],
            free: (0..slots as Slot).rev().collect(),
            queue: Vec::with_capacity(slots),
            peers: Vec::new(),
            sent: 0,
            sent_gathered: 0,
            exchange: None,
            foreign: 0,
            chunks,
        }
    }

    /// The memory for messages that are sent from where they lie.
    pub(crate) fn messages(&self) -> &Messages {
        &self.messages
    }

    /// From now on the device has workers.
    pub(crate) fn share_with_workers(&mut self, exchange: Arc<Exchange>) {
        self.exchange = Some(exchange);
    }

    /// Whether something waits for the kernel to have room, or would wait if it were appended.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.queue.is_empty() || self.free.is_empty() || !self.tx.is_consumed()
    }

    /// Makes a peer of the socket a peer of this half. With `now` it looks up the next hop at once,
    /// which takes some system calls.
    pub(crate) fn add_peer(&mut self, id: PeerId, address: SocketAddr, now: bool) {
        let index = id.0 as usize;
        if self.peers.len() <= index {
            self.peers.resize_with(index + 1, || None);
        }
        if self.peers[index].is_some() {
            return;
        }
        let shared = &self.shared;
        let target = Target {
            interface: shared.index,
            source: shared.local.ip(),
            destination: address.ip(),
        };
        self.peers[index] = Some(Peer {
            template: Template::new(shared.mac, &shared.local, &address, shared.ecn),
            hop: shared
                .neighbours
                .hop(target, now.then_some(&mut self.netlink)),
            open: NONE,
            sends_unresolved: 0,
        });
    }

    /// Forgets a peer, and drops what waits to be sent to it.
    pub(crate) fn remove_peer(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id.0 as usize) else {
            return;
        };
        *peer = None;
        let mut queue = std::mem::take(&mut self.queue);
        queue.retain(|&slot| {
            let keep = self.slots[usize::from(slot)].peer != id.0;
            if !keep {
                self.give_up(slot);
            }
            keep
        });
        self.queue = queue;
    }

    /// Frees a queued slot whose content does not leave by the ring.
    fn give_up(&mut self, slot: Slot) {
        let part = &self.slots[usize::from(slot)].gathered;
        self.messages
            .take_all_back(part.address as usize, part.chunks.into());
        self.gathered -= u32::from(part.chunks);
        self.free.push(slot);
    }

    /// Where the payload of a slot begins.
    #[inline]
    fn payload(&self, slot: Slot) -> usize {
        let layout = &self.shared.umem.layout;
        layout.tx_start() + usize::from(slot) * layout.slot() + SLOT_MARGIN
    }

    #[inline]
    fn push(&mut self, slot: Slot, parts: [&[u8]; 4]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let state = &mut self.slots[usize::from(slot)];
        let end = state.len as usize;
        state.len += len as u32;
        assert!(
            state.len as usize <= self.shared.largest,
            "the caller looked"
        );
        let start = self.payload(slot) + end;
        // SAFETY: a slot in the queue is ours alone, and this reference is the only one.
        let mut room = unsafe { self.shared.umem.bytes_mut(start, len) };
        for part in parts {
            if !part.is_empty() {
                let (here, rest) = room.split_at_mut(part.len());
                here.copy_from_slice(part);
                room = rest;
            }
        }
    }

    pub(crate) fn ring(&mut self) -> &mut Producer<Descriptor> {
        &mut self.tx
    }

    /// Where the slots begin. The chunks before them are the receiving half's.
    #[inline]
    pub(crate) fn start(&self) -> u64 {
        self.shared.umem.layout.tx_start() as u64
    }

    /// So many more receive chunks are in the ring.
    #[inline]
    pub(crate) fn lend(&mut self, count: u32) {
        self.foreign = self.foreign.wrapping_add(count);
    }

    /// A free slot, if there is one or can be made one.
    fn take_slot(&mut self) -> Option<Slot> {
        if self.free.is_empty() {
            self.reclaim();
        }
        if self.free.is_empty() {
            // The receiving half reports an interface that was removed.
            let _ = self.send_queued();
        }
        self.free.pop()
    }

    /// Hands the queue to the kernel, as far as it has room.
    fn send_queued(&mut self) -> Result<(), IoError> {
        let mut done = 0;
        let mut is_sent = true;
        while done < self.queue.len() {
            let run = self.run_at(done);
            // A run must not overtake the datagrams before it: they would be taken for lost.
            if run > 0 && is_sent {
                is_sent = self.is_sent();
            }
            if run > 0 && is_sent {
                match self.send_run(done, run) {
                    RunOutcome::Sent => {
                        done += run;
                        continue;
                    }
                    RunOutcome::Later => break,
                    RunOutcome::ByRing => {}
                }
            }
            if !self.post(self.queue[done]) {
                break;
            }
            self.sent += 1;
            done += 1;
        }
        if done == self.queue.len() {
            self.queue.clear();
        } else {
            self.keep_queued(done);
        }
        self.tx.publish();
        let kicked = self.kick();
        self.reclaim();
        kicked
    }

    /// Keeps the datagrams in the queue that there was no room for, and closes them: nothing more is
    /// appended to them.
    #[cold]
    fn keep_queued(&mut self, done: usize) {
        self.queue.drain(..done);
        for &slot in &self.queue {
            let peer = self.slots[usize::from(slot)].peer as usize;
            if let Some(Some(peer)) = self.peers.get_mut(peer) {
                peer.open = NONE;
            }
        }
    }

    /// Completes a frame and describes it to the kernel. False if there is no room.
    #[inline]
    fn post(&mut self, slot: Slot) -> bool {
        let SlotState {
            peer,
            len,
            next_hop,
            gathered,
            ..
        } = self.slots[usize::from(slot)];
        if gathered.len > 0 {
            return self.post_gathered(slot);
        }
        let peer = self.peers[peer as usize].as_mut();
        let peer = peer.expect("slots of closed peers are not in the queue");
        let headers = peer.template.len();
        let layout = self.shared.umem.layout;
        let base = layout.tx_start() + usize::from(slot) * layout.slot();
        let mut begin = base + SLOT_MARGIN - headers;
        let end = base + SLOT_MARGIN + len as usize;
        let parts = layout.chunk_at(end - base - 1) + 1;
        if (self.tx.room(parts as u32) as usize) < parts {
            return false;
        }
        // SAFETY: as in `push`.
        let frame = unsafe { self.shared.umem.bytes_mut(begin, end - begin) };
        peer.template.write(next_hop, frame);
        if peer.open == slot {
            peer.open = NONE;
        }
        for part in 1..=parts {
            let part_end = end.min(base + part * layout.chunk);
            self.tx.push(Descriptor {
                address: begin as u64,
                len: (part_end - begin) as u32,
                options: if part < parts { CONTINUED } else { 0 },
            });
            begin = part_end;
        }
        self.slots[usize::from(slot)].at_kernel = parts as u8;
        true
    }

    /// Whether `frame` bytes can be appended to a slot, in a datagram of up to `limit`.
    #[inline]
    fn has_room(&self, slot: Slot, frame: usize, limit: usize) -> bool {
        let state = &self.slots[usize::from(slot)];
        let len = state.len as usize + frame;
        match state.gathered.len {
            0 => len <= limit,
            // After the gathered part there is at most one more descriptor.
            gathered => {
                len + gathered as usize <= limit
                    && SLOT_MARGIN + len <= self.shared.umem.layout.chunk
                    && usize::from(state.gathered.chunks) + 2 <= self.policy.max_parts
            }
        }
    }

    /// Appends a frame by copying all of it.
    #[inline]
    fn copy(
        &mut self,
        id: PeerId,
        preamble: &[u8; 8],
        [head, body, tail]: [&[u8]; 3],
    ) -> Result<(), TxError> {
        let frame = head.len() + body.len() + tail.len();
        let Some(Some(peer)) = self.peers.get(id.0 as usize) else {
            return Err(TxError::Gone);
        };
        if peer.open != NONE {
            let slot = peer.open;
            let limit = self.udp.max_datagram(id).min(self.shared.largest);
            if self.has_room(slot, frame, limit) {
                self.push(slot, [head, body, tail, &[]]);
                return Ok(());
            }
        }
        let Some(slot) = self.begin(id)? else {
            return self.udp.append(id, preamble, head, body, tail);
        };
        self.push(slot, [preamble, head, body, tail]);
        Ok(())
    }

    /// Wakes the kernel, and returns whether it has taken all that is in the ring.
    fn is_sent(&mut self) -> bool {
        self.tx.publish();
        // Sending the rest reports an interface that is gone.
        let _ = self.kick();
        self.tx.is_consumed()
    }

    /// Wakes the kernel, until it has taken everything or has no room.
    #[inline]
    pub(crate) fn kick(&self) -> Result<(), IoError> {
        kick(&self.shared.socket.fd, &self.tx).map_err(|_| self.shared.gone())
    }
}

impl PacketTx for XdpTx {
    /// # Panics
    /// If the frame and its preamble are larger than any datagram of this device can be.
    #[inline]
    fn append(
        &mut self,
        id: PeerId,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), TxError> {
        let frame = head.len() + body.len() + tail.len();
        assert!(
            preamble.len() + frame <= self.shared.largest,
            "a frame of {frame} bytes fits no datagram of this device"
        );
        if tail.len() >= self.policy.gather_from
            && let Some(address) = self.messages.find(tail)
        {
            return self.gather(id, preamble, [head, body, tail], address);
        }
        self.copy(id, preamble, [head, body, tail])
    }

    #[inline]
    fn seal(&mut self, id: PeerId) {
        if let Some(Some(peer)) = self.peers.get_mut(id.0 as usize) {
            peer.open = NONE;
        }
        self.udp.seal(id);
    }

    /// Keeps the datagrams that the kernel has no room for.
    ///
    /// # Errors
    /// If the interface was removed or changed.
    #[inline]
    fn flush(&mut self) -> Result<(), IoError> {
        if !self.queue.is_empty() || !self.tx.is_consumed() {
            self.send_queued()?;
        } else if self.exchange.is_some() || self.gathered > 0 {
            self.reclaim();
        }
        self.udp.flush()
    }

    fn send_to_unknown(&mut self, to: SocketAddr, datagram: &[u8]) {
        self.udp.send_to_unknown(to, datagram);
    }

    fn accept_peer(&mut self, address: SocketAddr) -> Result<PeerId, IoError> {
        let id = self.udp.accept_peer(address)?;
        self.add_peer(id, address, false);
        Ok(id)
    }

    fn address(&self, id: PeerId) -> Option<SocketAddr> {
        self.udp.address(id)
    }

    fn peer_info(&self, id: PeerId) -> PeerInfo {
        self.udp.peer_info(id)
    }

    fn limit_datagram(&mut self, id: PeerId, bytes: usize) {
        self.udp.limit_datagram(id, bytes);
    }

    /// Zero for a peer that is closed.
    #[inline]
    fn max_datagram(&self, id: PeerId) -> usize {
        self.udp.max_datagram(id).min(self.shared.largest)
    }
}

impl Drop for XdpTx {
    /// Gives the kernel what was appended, as far as it has room, and checks that no slot is lost.
    fn drop(&mut self) {
        let _ = self.flush();
        let at_kernel = self.slots.iter().filter(|slot| slot.at_kernel > 0).count();
        let known = self.free.len() + self.queue.len() + at_kernel;
        debug_assert_eq!(known, self.slots.len(), "slots are conserved");
        debug_assert_eq!(self.gathered, self.messages.out(), "messages are conserved");
        self.chunks.add(self.foreign);
    }
}

#[cfg(test)]
mod tests;
