//! The receiving half: all peers' consumers, and the private memory that datagrams are copied to.
//!
//! A turn polls all *hot* peers and a few of the *cold* ones. A peer is hot when it has sent
//! something recently, or when there are few peers. So a thousand silent peers cost a busy one
//! almost nothing, and a silent peer that begins to send is found within some hundred turns.
//!
//! A peer that was idle is polled once a turn: after its datagram, the next header is prefetched
//! and not waited for, unless the sender said that more follow. If the first poll of a turn finds
//! something twice in a row, datagrams arrive faster than turns, and the peer's ring is drained as
//! far as the burst goes.

mod burst;

use std::sync::Arc;

use starling_io::{Datagram, IoError, PacketRx};

use self::burst::Burst;
use crate::closer::PeerSocket;
use crate::map::{ForeignHeap, MappedSleepWords, Ring};
use crate::ring::{Consumer, Heads, HeapRange, Published, ReceiveError};
use crate::sleep::{Doorbell, WANTS_SPACE};
use crate::tx::ring;

/// Up to so many peers are all polled in each turn.
const ALWAYS_HOT: usize = 16;

/// With more peers, one is cold after so many turns without a datagram.
const COLD_AFTER: u64 = 1024;

/// Cold peers polled in each turn.
const COLD_PER_TURN: usize = 4;

/// A turn with datagrams counts as so many turns without, as an estimate of its time.
const BUSY_TURN: u64 = 16;

struct RxPeer {
    consumer: Consumer<Ring>,
    words: MappedSleepWords,
    doorbell: Doorbell,
    socket: Arc<PeerSocket>,
    /// The first poll of its last turn found nothing.
    was_idle: bool,
    /// The last turn that found something.
    last_found: u64,
    /// Where in the ring it begins to count as one that has sent something.
    silent_until: u64,
    /// The peer is gone; datagrams that it published up to here are still delivered.
    end: Option<Heads>,
}

impl RxPeer {
    /// Receives from the peer, from a record on, as far as the burst goes.
    #[inline]
    fn drain(&mut self, number: u32, mut header: Published, burst: &mut Burst) -> Drained {
        let drained = loop {
            if let Some(length) = header.line_length() {
                if self.consumer.receive_line(burst.push_line(number, length)) {
                    self.return_space();
                }
            } else if let Some(drained) = self.receive_longer(number, header, burst) {
                return drained;
            }
            if self.is_at_end() {
                return Drained::AtEnd;
            }
            if burst.is_full() {
                break Drained::Full;
            }
            if self.was_idle && !header.has_more() {
                break Drained::Some;
            }
            let Some(next) = self.consumer.poll() else {
                self.was_idle = false;
                return Drained::Some;
            };
            header = next;
        };
        self.was_idle = false;
        self.consumer.prefetch();
        drained
    }

    /// Receives a record that is not one line. `Some`: the burst has no further datagram.
    #[inline(never)]
    fn receive_longer(
        &mut self,
        number: u32,
        header: Published,
        burst: &mut Burst,
    ) -> Option<Drained> {
        match self.consumer.receive(header, burst.room()) {
            // It was revoked, and the peer is about to be gone; or it is lost.
            Ok(record) if record.length == 0 => return Some(Drained::Some),
            Ok(record) => burst.push(number, &record),
            Err(ReceiveError::NeedsHeap) => return Some(Drained::NeedsHeap),
            Err(ReceiveError::Malformed) => return Some(Drained::Malformed),
        }
        self.return_space();
        None
    }

    /// Returns space if that is due, and wakes the peer if it sleeps until there is some.
    #[inline(never)]
    fn return_space(&mut self) {
        let returned = self.consumer.return_space();
        if returned && self.doorbell.must_ring(&self.words, WANTS_SPACE) {
            ring(&self.socket);
        }
    }

    fn is_ready(&self) -> bool {
        !self.is_at_end() && self.consumer.poll().is_some()
    }

    fn is_at_end(&self) -> bool {
        self.end.is_some_and(|end| self.consumer.is_past(end))
    }
}

/// What a peer had for a burst, at least one record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drained {
    Some,
    /// As much as the burst takes.
    Full,
    /// A record that needs the peer's message heap.
    NeedsHeap,
    /// Something that no working peer writes.
    Malformed,
    /// The last datagrams that are delivered of a peer that is gone.
    AtEnd,
}

/// The receiving half of a [`ShmIo`](crate::ShmIo).
pub struct ShmRx {
    peers: Vec<Option<Box<RxPeer>>>,
    hot: Vec<u32>,
    cold: Vec<u32>,
    /// The hot peer that the next turn begins with.
    next_hot: usize,
    /// The cold peer that is polled next.
    next_cold: usize,
    /// Calls of `rx_burst`.
    turns: u64,
    /// Calls of `rx_burst` that received something.
    busy_turns: u64,
    burst: Burst,
    /// The heads of datagrams that leave their tails.
    leaves_tail: fn(&[u8]) -> bool,
    /// Peers that have broken their ring, for the device to disconnect.
    faults: Vec<u32>,
    /// Peers with a record that needs their message heap, for the device to receive it.
    need_heap: Vec<u32>,
}

impl ShmRx {
    pub(crate) fn new() -> Self {
        Self {
            peers: Vec::new(),
            hot: Vec::new(),
            cold: Vec::new(),
            next_hot: 0,
            next_cold: 0,
            turns: 0,
            busy_turns: 0,
            burst: Burst::new(),
            leaves_tail: |_| false,
            faults: Vec::new(),
            need_heap: Vec::new(),
        }
    }

    pub(crate) fn insert(
        &mut self,
        peer: u32,
        mut consumer: Consumer<Ring>,
        words: MappedSleepWords,
        socket: Arc<PeerSocket>,
    ) {
        consumer.leave_tails(self.leaves_tail);
        self.burst.make_room_for(consumer.buffer_bytes());
        let index = peer as usize;
        if self.peers.len() <= index {
            self.peers.resize_with(index + 1, || None);
        }
        assert!(self.peers[index].is_none(), "peer {peer} is there already");
        self.peers[index] = Some(Box::new(RxPeer {
            silent_until: consumer.position(),
            consumer,
            words,
            doorbell: Doorbell::default(),
            socket,
            was_idle: true,
            last_found: self.turns,
            end: None,
        }));
        self.hot.push(peer);
    }

    /// Removes a peer. Its datagrams in the current burst stay readable, but for tails that were left.
    pub(crate) fn remove(&mut self, peer: u32) {
        self.peers[peer as usize] = None;
        self.unlist(peer);
        self.faults.retain(|&other| other != peer);
        self.need_heap.retain(|&other| other != peer);
        self.burst.forget_tails_of(peer);
    }

    /// A peer has shared its message heap.
    pub(crate) fn set_heap(&mut self, peer: u32, heap: ForeignHeap) {
        if let Some(peer) = &mut self.peers[peer as usize] {
            peer.consumer.set_heap(heap);
        }
    }

    /// Whether a peer has shared its message heap, if it has to.
    pub(crate) fn has_heap(&self, peer: u32) -> bool {
        let peer = self.peers[peer as usize].as_ref();
        peer.is_none_or(|peer| !peer.consumer.needs_heap())
    }

    /// Whether any peer has sent a record that needs its message heap.
    #[inline]
    pub(crate) fn needs_heaps(&self) -> bool {
        !self.need_heap.is_empty()
    }

    /// Peers with such a record, since the last call.
    pub(crate) fn poll_needed_heaps(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.need_heap)
    }

    fn unlist(&mut self, peer: u32) {
        self.hot.retain(|&other| other != peer);
        self.cold.retain(|&other| other != peer);
    }

    /// The peer is gone: what one pass of its rings can hold is delivered. A peer that has written
    /// more headers than that is not listened to for longer.
    pub(crate) fn finish(&mut self, peer: u32) {
        if let Some(peer) = &mut self.peers[peer as usize] {
            peer.end = Some(peer.consumer.end_of_published());
        }
    }

    /// Whether all datagrams of the peer are delivered.
    pub(crate) fn is_drained(&self, peer: u32) -> bool {
        self.peers[peer as usize]
            .as_ref()
            .is_none_or(|peer| !peer.is_ready())
    }

    /// Whether a datagram from the peer was received.
    pub(crate) fn has_sent(&self, peer: u32) -> bool {
        matches!(&self.peers[peer as usize], Some(peer) if peer.consumer.position() != peer.silent_until)
    }

    /// From now on the peer counts as one that has never sent.
    pub(crate) fn forget_sent(&mut self, peer: u32) {
        if let Some(peer) = &mut self.peers[peer as usize] {
            peer.silent_until = peer.consumer.position();
        }
    }

    /// Whether any peer has something to deliver.
    pub(crate) fn is_ready(&self) -> bool {
        self.peers.iter().flatten().any(|peer| peer.is_ready())
    }

    /// A measure of how long this device has been polled.
    pub(crate) fn turns(&self) -> u64 {
        self.turns + BUSY_TURN * self.busy_turns
    }

    /// Datagrams received so far.
    pub(crate) fn received(&self) -> u64 {
        self.burst.received()
    }

    /// Peers that have broken their ring since the last call.
    pub(crate) fn poll_faults(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.faults)
    }

    /// The burst is over: peers whose tails were left get their memory back.
    #[cold]
    fn return_tails(&mut self) {
        while let Some(left) = self.burst.pop_left_tail() {
            let Some(peer) = &mut self.peers[left.peer as usize] else {
                continue;
            };
            peer.consumer.return_tails();
            peer.return_space();
        }
    }

    /// The tail of a datagram that was left, and the ring that its memory belongs to. None if the peer is
    /// closed by now.
    fn left_tail(&self, index: usize) -> Option<(&Consumer<Ring>, HeapRange)> {
        let left = self.burst.left_tail(index)?;
        let peer = self.peers[left.peer as usize].as_ref()?;
        Some((&peer.consumer, left.range))
    }

    /// A peer had something else than datagrams for a burst.
    #[cold]
    fn record_uncommon(&mut self, peer: u32, drained: Drained) {
        match drained {
            Drained::Some | Drained::Full => {}
            Drained::NeedsHeap if self.need_heap.contains(&peer) => {}
            Drained::NeedsHeap => self.need_heap.push(peer),
            Drained::Malformed => self.record_fault(peer),
            Drained::AtEnd => self.unlist(peer),
        }
    }

    /// Stops polling a peer that has broken its ring.
    #[cold]
    pub(crate) fn record_fault(&mut self, peer: u32) {
        self.unlist(peer);
        self.faults.push(peer);
    }

    /// Polls a few cold peers.
    #[cold]
    fn poll_cold(&mut self) {
        for _ in 0..COLD_PER_TURN.min(self.cold.len()) {
            if self.next_cold >= self.cold.len() {
                self.next_cold = 0;
            }
            let peer = self.cold[self.next_cold];
            let ready = matches!(&self.peers[peer as usize], Some(peer) if peer.is_ready());
            if ready {
                // The same turn polls it with the hot ones.
                self.cold.swap_remove(self.next_cold);
                self.hot.push(peer);
            } else {
                self.next_cold += 1;
            }
        }
    }

    /// Makes a hot peer cold that has sent nothing for long.
    #[cold]
    fn cool_down(&mut self) {
        let Some(index) = self.hot.iter().position(|&peer| {
            matches!(&self.peers[peer as usize], Some(peer)
                if self.turns - peer.last_found >= COLD_AFTER)
        }) else {
            return;
        };
        let peer = self.hot.swap_remove(index);
        self.cold.push(peer);
    }
}

impl PacketRx for ShmRx {
    #[inline]
    fn rx_burst(&mut self) -> Result<usize, IoError> {
        self.turns += 1;
        self.burst.clear();
        if !self.burst.left_tails.is_empty() {
            self.return_tails();
        }
        if !self.cold.is_empty() {
            self.poll_cold();
        }
        let hot = self.hot.len();
        if hot > ALWAYS_HOT && self.turns.is_multiple_of(32) {
            self.cool_down();
        }
        let mut index = self.next_hot;
        for _ in 0..hot {
            if index >= self.hot.len() {
                index = 0;
            }
            let Some(&number) = self.hot.get(index) else {
                break;
            };
            index += 1;
            let Some(Some(peer)) = self.peers.get_mut(number as usize) else {
                continue;
            };
            let peer = &mut **peer;
            let Some(header) = peer.consumer.poll() else {
                peer.was_idle = true;
                continue;
            };
            peer.last_found = self.turns;
            // The next turn begins behind the peer that was served last.
            self.next_hot = index;
            let drained = peer.drain(number, header, &mut self.burst);
            if drained != Drained::Some {
                self.record_uncommon(number, drained);
                // The last datagram of a peer that is gone may have filled it, too.
                if self.burst.is_full() {
                    break;
                }
            }
        }
        let count = self.burst.end();
        if count != 0 {
            self.busy_turns += 1;
        }
        Ok(count)
    }

    #[inline]
    fn datagram(&self, index: usize) -> Datagram<'_> {
        self.burst.datagram(index)
    }

    fn leave_tails(&mut self, takes: fn(&[u8]) -> bool) {
        self.leaves_tail = takes;
        for peer in self.peers.iter_mut().flatten() {
            peer.consumer.leave_tails(takes);
        }
    }

    #[inline]
    fn tail_bytes(&self, index: usize) -> usize {
        if self.burst.left_tails.is_empty() {
            return 0;
        }
        let left = self.burst.left_tail(index);
        left.map_or(0, |left| left.range.bytes as usize)
    }

    fn append_tail(&self, index: usize, buffer: &mut Vec<u8>) -> bool {
        self.left_tail(index)
            .is_some_and(|(consumer, tail)| consumer.append_tail(tail, buffer))
    }

    fn copy_tail(&self, index: usize, into: &mut [u8]) -> bool {
        self.left_tail(index)
            .is_some_and(|(consumer, tail)| consumer.copy_tail(tail, into))
    }
}
