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

use std::sync::Arc;

use starling_io::{Datagram, Ecn, IoError, MAX_BURST, PacketRx, PeerId, Source};

use crate::closer::PeerSocket;
use crate::map::{ForeignHeap, MappedSleepWords, Ring};
use crate::ring::{Consumer, Heads, HeapRange, LINE};
use crate::sleep::{Doorbell, WANTS_SPACE};
use crate::tx::ring;

/// A burst ends at so many bytes. The endpoint reads them soon after, from the cache.
const BURST_BYTES: usize = 64 << 10;

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
    /// A datagram from it was received.
    has_sent: bool,
    /// The peer is gone; datagrams that it published up to here are still delivered.
    end: Option<Heads>,
}

impl RxPeer {
    fn is_ready(&self) -> bool {
        !self.is_at_end() && self.consumer.is_ready()
    }

    fn is_at_end(&self) -> bool {
        self.end.is_some_and(|end| self.consumer.is_past(end))
    }
}

/// A tail that was left in its sender's heap.
struct LeftTail {
    /// The datagram of the burst.
    index: usize,
    peer: u32,
    range: HeapRange,
}

#[derive(Clone, Copy, Default)]
struct Entry {
    peer: u32,
    /// Its offset in the buffer.
    at: u32,
    length: u32,
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
    /// Datagrams received so far.
    received: u64,
    entries: [Entry; MAX_BURST],
    count: usize,
    /// Tails of the burst that were left where they are, in the order of their datagrams.
    left_tails: Vec<LeftTail>,
    /// Bytes of them.
    left_bytes: usize,
    /// The heads of datagrams that leave their tails.
    leaves_tail: fn(&[u8]) -> bool,
    /// Bytes of the buffer that the burst has used.
    used: usize,
    /// Private memory for a burst; aligned to lines from `aligned` on.
    buffer: Vec<u8>,
    aligned: usize,
    /// The largest record of any peer so far.
    largest_record: usize,
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
            received: 0,
            entries: [Entry::default(); MAX_BURST],
            count: 0,
            left_tails: Vec::new(),
            left_bytes: 0,
            leaves_tail: |_| false,
            used: 0,
            buffer: Vec::new(),
            aligned: 0,
            largest_record: 0,
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
        self.make_room_for(consumer.buffer_bytes());
        let index = peer as usize;
        if self.peers.len() <= index {
            self.peers.resize_with(index + 1, || None);
        }
        assert!(self.peers[index].is_none(), "peer {peer} is there already");
        self.peers[index] = Some(Box::new(RxPeer {
            consumer,
            words,
            doorbell: Doorbell::default(),
            socket,
            was_idle: true,
            last_found: self.turns,
            has_sent: false,
            end: None,
        }));
        self.hot.push(peer);
    }

    /// Grows the buffer so that a burst that is not full has room for one more record.
    fn make_room_for(&mut self, record: usize) {
        if record <= self.largest_record {
            return;
        }
        self.largest_record = record;
        let mut buffer = vec![0; BURST_BYTES + record + LINE];
        let aligned = buffer.as_ptr().align_offset(LINE);
        let burst = &self.buffer[self.aligned..self.aligned + self.used];
        buffer[aligned..aligned + self.used].copy_from_slice(burst);
        self.buffer = buffer;
        self.aligned = aligned;
    }

    /// Removes a peer. Its datagrams in the current burst stay readable, but for tails that were left.
    pub(crate) fn remove(&mut self, peer: u32) {
        self.peers[peer as usize] = None;
        self.unlist(peer);
        self.faults.retain(|&other| other != peer);
        self.need_heap.retain(|&other| other != peer);
        self.left_tails.retain(|left| left.peer != peer);
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
        matches!(&self.peers[peer as usize], Some(peer) if peer.has_sent)
    }

    /// From now on the peer counts as one that has never sent.
    pub(crate) fn forget_sent(&mut self, peer: u32) {
        if let Some(peer) = &mut self.peers[peer as usize] {
            peer.has_sent = false;
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
        self.received
    }

    /// Peers that have broken their ring since the last call.
    pub(crate) fn poll_faults(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.faults)
    }

    /// Receives from a peer, as far as the burst goes. False if it had nothing.
    #[inline]
    fn drain(&mut self, number: u32) -> bool {
        let Some(peer) = &mut self.peers[number as usize] else {
            return false;
        };
        if !peer.consumer.is_ready() {
            peer.was_idle = true;
            return false;
        }
        let was_idle = std::mem::take(&mut peer.was_idle);
        peer.last_found = self.turns;
        while self.count < MAX_BURST && self.used + self.left_bytes < BURST_BYTES {
            if peer.is_at_end() {
                break;
            }
            let at = self.used;
            let record = match peer.consumer.receive(&mut self.buffer[self.aligned + at..]) {
                Ok(Some(record)) => record,
                Ok(None) => {
                    if peer.consumer.needs_heap() && !self.need_heap.contains(&number) {
                        self.need_heap.push(number);
                    }
                    return true;
                }
                Err(_) => {
                    self.record_fault(number);
                    return true;
                }
            };
            peer.has_sent = true;
            if record.length == 0 {
                // It was revoked: the peer is about to be gone.
                return true;
            }
            self.entries[self.count] = Entry {
                peer: number,
                at: (at + record.at) as u32,
                length: record.length as u32,
            };
            if let Some(range) = peer.consumer.poll_left_tail() {
                let index = self.count;
                self.left_bytes += range.bytes as usize;
                self.left_tails.push(LeftTail {
                    index,
                    peer: number,
                    range,
                });
            }
            self.count += 1;
            self.used = at + (record.at + record.length).next_multiple_of(LINE);
            if record.returned_space && peer.doorbell.must_ring(&peer.words, WANTS_SPACE) {
                ring(&peer.socket);
            }
            if was_idle && !record.more {
                break;
            }
        }
        peer.consumer.prefetch();
        true
    }

    /// The burst is over: peers whose tails were left get their memory back.
    #[cold]
    fn return_tails(&mut self) {
        for left in self.left_tails.drain(..) {
            let Some(peer) = &mut self.peers[left.peer as usize] else {
                continue;
            };
            let returned_space = peer.consumer.return_tails();
            if returned_space && peer.doorbell.must_ring(&peer.words, WANTS_SPACE) {
                ring(&peer.socket);
            }
        }
        self.left_bytes = 0;
    }

    /// The tail of a datagram that was left, and the ring that its memory belongs to. None if the peer is
    /// closed by now.
    fn left_tail(&self, index: usize) -> Option<(&Consumer<Ring>, HeapRange)> {
        let left = self.left_tails.iter().find(|left| left.index == index)?;
        let peer = self.peers[left.peer as usize].as_ref()?;
        Some((&peer.consumer, left.range))
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
        self.count = 0;
        self.used = 0;
        if !self.left_tails.is_empty() {
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
            let Some(&peer) = self.hot.get(index) else {
                break;
            };
            index += 1;
            if self.drain(peer) {
                // The next turn begins behind the peer that was served last.
                self.next_hot = index;
                if self.count == MAX_BURST || self.used + self.left_bytes >= BURST_BYTES {
                    break;
                }
            }
        }
        if self.count != 0 {
            self.busy_turns += 1;
            self.received += self.count as u64;
        }
        Ok(self.count)
    }

    #[inline]
    fn datagram(&self, index: usize) -> Datagram<'_> {
        assert!(index < self.count, "datagram {index} of {}", self.count);
        let entry = self.entries[index];
        let begin = self.aligned + entry.at as usize;
        Datagram {
            source: Source::Peer(PeerId(entry.peer)),
            ecn: Ecn::NotCapable,
            bytes: &self.buffer[begin..begin + entry.length as usize],
        }
    }

    fn leave_tails(&mut self, takes: fn(&[u8]) -> bool) {
        self.leaves_tail = takes;
        for peer in self.peers.iter_mut().flatten() {
            peer.consumer.leave_tails(takes);
        }
    }

    #[inline]
    fn tail_bytes(&self, index: usize) -> usize {
        if self.left_tails.is_empty() {
            return 0;
        }
        let left = self.left_tails.iter().find(|left| left.index == index);
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
