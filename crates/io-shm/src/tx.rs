//! The sending half: all peers' producers, and the doorbell for peers that sleep.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use starling_io::{Fault, IoError, MessageMemory, PacketTx, PeerId, PeerInfo, TxError};

use crate::client_heaps::ClientHeaps;
use crate::closer::PeerSocket;
use crate::handshake::{DOORBELL, HeapMessage};
use crate::heap::{LEND_FROM, MessageHeap, MessageId};
use crate::map::{MappedSleepWords, Ring};
use crate::readers::ReaderProcess;
use crate::ring::Producer;
use crate::sleep::{Doorbell, SLEEPING};
use crate::sys;
use crate::users::{self, Origin};

/// So many records may be lent to a peer before each further one looks for those that it consumed.
const MAX_LENT_UNSEEN: usize = 8;

/// The message heaps of a device.
pub(crate) enum Heaps {
    None,
    /// One for all peers that it opens.
    Opened(MessageHeap),
    /// One for each of its clients.
    Clients(ClientHeaps),
}

/// A message heap that a peer reads, or may.
struct SharedHeap {
    heap: MessageHeap,
    /// The same, if the peer is a client.
    memory: MessageMemory,
    /// The name by which this end has opened the peer, and the peer's process. `None`: a client.
    opened: Option<(Arc<str>, ReaderProcess)>,
    /// Whether it has the heap.
    is_there: bool,
}

impl SharedHeap {
    /// Gives the peer the heap, if it may have it. `false`: it cannot.
    fn share(&mut self, socket: &OwnedFd) -> bool {
        if let Some((name, process)) = &self.opened
            && !self.heap.admit(name, *process)
        {
            self.heap.set_able(name, None);
            return true;
        }
        let Some(file) = self.heap.file() else {
            return true;
        };
        let message = HeapMessage {
            bytes: self.heap.bytes() as u64,
        };
        match sys::send_with_file(socket, &message.encode(), file) {
            Ok(()) => self.is_there = true,
            // The socket is full of messages, or the user's sockets are of files, that were not received yet.
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS) => {
            }
            Err(_) => return false,
        }
        true
    }
}

struct TxPeer {
    producer: Producer<Ring, MessageId>,
    /// `None`: it cannot read one, or may not.
    heap: Option<SharedHeap>,
    words: MappedSleepWords,
    doorbell: Doorbell,
    socket: Arc<PeerSocket>,
    unflushed: Unflushed,
    /// Whom it wants to reach through this process.
    target: Option<Arc<str>>,
}

/// A peer's place in the list of peers with frames that were appended since the last flush: the next peer
/// in it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Unflushed(u32);

impl Unflushed {
    /// The peer is not in the list.
    const ABSENT: Self = Self(u32::MAX - 1);
    /// No next peer: no peer has this number.
    const END: u32 = u32::MAX;

    /// Puts the peer into the list that begins with `first`, unless it is in.
    #[inline]
    fn insert(&mut self, peer: u32, first: &mut u32) {
        if *self == Self::ABSENT {
            self.0 = std::mem::replace(first, peer);
        }
    }

    /// Takes the peer out of the beginning of the list; returns the next one.
    #[inline]
    fn take_next(&mut self) -> u32 {
        std::mem::replace(self, Self::ABSENT).0
    }
}

impl TxPeer {
    /// Publishes what was appended, and wakes the peer if it sleeps.
    #[inline(never)]
    fn flush(&mut self) {
        self.producer.publish(false);
        if self.doorbell.must_ring(&self.words, SLEEPING) {
            ring(&self.socket);
        }
    }

    /// Sends a frame whose tail stays in the message heap; `None` if it has to be copied. The parts
    /// are preamble, head, body and tail.
    #[inline(never)]
    fn append_lent(&mut self, parts: [&[u8]; 4]) -> Option<Result<(), TxError>> {
        let [preamble, head, body, tail] = parts;
        let shared = self.heap.as_mut()?;
        let (range, message) = shared.heap.find(tail)?;
        if !self.producer.can_lend(head.len() + body.len()) {
            return None;
        }
        if !shared.is_there {
            if !shared.share(&self.socket) {
                shared.heap.close();
                self.heap = None;
                return None;
            }
            if !shared.is_there {
                return None;
            }
        }
        let heap = &shared.heap;
        if self.producer.lent() >= MAX_LENT_UNSEEN {
            self.producer
                .poll_returned(|message| heap.take_back(message));
        }
        let preamble = preamble.first_chunk().expect("a preamble");
        let result = self
            .producer
            .append_lent(preamble, head, body, range, message);
        if result.is_ok() {
            heap.lend(message);
        }
        Some(result)
    }

    /// Takes back the parts of messages that the peer has consumed. Returns whether some are left.
    fn poll_returned(&mut self) -> bool {
        if let Some(SharedHeap { heap, .. }) = &self.heap {
            self.producer
                .poll_returned(|message| heap.take_back(message));
        }
        self.producer.lent() != 0
    }
}

/// The sending half of a [`ShmIo`](crate::ShmIo).
pub struct ShmTx {
    peers: Vec<Option<Box<TxPeer>>>,
    /// The first of the peers with frames appended since the last flush.
    first_unflushed: u32,
    /// Peers that have broken their ring, for the device to disconnect.
    faults: Vec<u32>,
    /// Memory for messages that peers read where they are.
    heaps: Heaps,
    /// Datagrams whose tail stayed there, so far.
    gathered: u64,
    /// Some of these are not consumed, as far as this end knows.
    may_have_lent: bool,
}

impl ShmTx {
    pub(crate) fn new(heaps: Heaps) -> Self {
        Self {
            peers: Vec::new(),
            first_unflushed: Unflushed::END,
            faults: Vec::new(),
            heaps,
            gathered: 0,
            may_have_lent: false,
        }
    }

    /// The heap for peers that the device opens.
    pub(crate) fn heap(&self) -> Option<&MessageHeap> {
        match &self.heaps {
            Heaps::Opened(heap) => Some(heap),
            Heaps::None | Heaps::Clients(_) => None,
        }
    }

    /// Datagrams with a part that was sent from where it lay in the message heap.
    pub(crate) fn gathered(&self) -> u64 {
        self.gathered
    }

    pub(crate) fn insert(
        &mut self,
        peer: u32,
        producer: Producer<Ring, MessageId>,
        words: MappedSleepWords,
        socket: Arc<PeerSocket>,
    ) {
        let index = peer as usize;
        if self.peers.len() <= index {
            self.peers.resize_with(index + 1, || None);
        }
        assert!(self.peers[index].is_none(), "peer {peer} is there already");
        self.peers[index] = Some(Box::new(TxPeer {
            producer,
            heap: None,
            words,
            doorbell: Doorbell::default(),
            socket,
            unflushed: Unflushed::ABSENT,
            target: None,
        }));
    }

    /// Whom a peer wants to reach through this process.
    pub(crate) fn set_target(&mut self, peer: u32, target: Option<Arc<str>>) {
        if let Some(peer) = self.peers.get_mut(peer as usize).and_then(Option::as_mut) {
            peer.target = target;
        }
    }

    /// A peer is connected that this end has opened by this name. It maps heaps of up to `max_heap` bytes.
    /// `other_user`: who else is talked to.
    pub(crate) fn set_opened(
        &mut self,
        peer: u32,
        max_heap: u64,
        name: &str,
        other_user: Option<u32>,
    ) {
        if let Heaps::Opened(heap) = &self.heaps {
            let name = Arc::from(name);
            let process = self.reader(peer, heap, max_heap, other_user);
            heap.set_able(&name, process);
            let shared = process.map(|process| SharedHeap {
                heap: heap.clone(),
                memory: MessageMemory::default(),
                opened: Some((name, process)),
                is_there: false,
            });
            self.set_heap(peer, shared);
        }
    }

    /// A client is connected that maps heaps of up to `max_heap` bytes.
    pub(crate) fn set_accepted(&mut self, peer: u32, max_heap: u64, origin: Option<Origin>) {
        if let Heaps::Clients(heaps) = &self.heaps {
            let heap = heaps.of_client(origin);
            let shared = self
                .reader(peer, &heap, max_heap, None)
                .map(|_| SharedHeap {
                    memory: MessageMemory::of_device(Arc::new(heap.clone())),
                    heap,
                    opened: None,
                    is_there: false,
                });
            self.set_heap(peer, shared);
        }
    }

    /// The process of a peer, if it can read a heap.
    fn reader(
        &self,
        peer: u32,
        heap: &MessageHeap,
        max_heap: u64,
        other_user: Option<u32>,
    ) -> Option<ReaderProcess> {
        let to = self.peers.get(peer as usize)?.as_ref()?;
        let takes = heap.bytes() as u64 <= max_heap;
        users::reader(&to.socket, other_user).filter(|_| takes)
    }

    fn set_heap(&mut self, peer: u32, shared: Option<SharedHeap>) {
        if let Some(Some(to)) = self.peers.get_mut(peer as usize) {
            to.heap = shared;
        }
    }

    /// Removes a peer, and its frames that were not flushed.
    pub(crate) fn remove(&mut self, peer: u32) {
        // The next peer with its number has broken nothing.
        self.faults.retain(|&other| other != peer);
        self.unlist(peer);
        if let Some(mut removed) = self.peers[peer as usize].take()
            && let Some(SharedHeap { heap, .. }) = &removed.heap
        {
            removed.producer.revoke(|message| heap.take_back(message));
            heap.close();
        }
    }

    /// Takes a peer out of the list of those to flush.
    fn unlist(&mut self, removed: u32) {
        let mut next = std::mem::replace(&mut self.first_unflushed, Unflushed::END);
        while let Some(Some(peer)) = self.peers.get_mut(next as usize) {
            let number = std::mem::replace(&mut next, peer.unflushed.take_next());
            if number != removed {
                peer.unflushed.insert(number, &mut self.first_unflushed);
            }
        }
    }

    /// Takes back the parts of messages that peers have consumed.
    pub(crate) fn poll_returned(&mut self) {
        if self.may_have_lent {
            self.may_have_lent = false;
            for peer in self.peers.iter_mut().flatten() {
                self.may_have_lent |= peer.poll_returned();
            }
        }
    }

    /// The largest datagram for a peer.
    pub(crate) fn max_datagram(&self, peer: u32) -> Option<usize> {
        let peer = self.peers.get(peer as usize)?.as_ref()?;
        Some(peer.producer.max_datagram())
    }

    /// Whether a peer had no room for the last frame.
    pub(crate) fn wants_room(&self, peer: u32) -> bool {
        matches!(self.peers.get(peer as usize), Some(Some(peer)) if peer.producer.wants_room())
    }

    /// Whether a peer that had no room has room now. True once for each refusal.
    pub(crate) fn poll_room(&mut self) -> bool {
        let mut any = false;
        for peer in self.peers.iter_mut().flatten() {
            any |= peer.producer.poll_room();
        }
        any
    }

    /// Peers that have broken their ring since the last call.
    pub(crate) fn poll_faults(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.faults)
    }

    /// Begins a datagram with a frame without a tail. Preamble and head are values, so they stay in
    /// registers.
    #[inline(never)]
    fn append_first(
        &mut self,
        peer: PeerId,
        preamble: u64,
        head: [u64; 2],
        body: &[u8],
    ) -> Result<(), TxError> {
        if let Some(Some(to)) = self.peers.get_mut(peer.0 as usize)
            && to.producer.begin_small(preamble, head, body)
        {
            to.unflushed.insert(peer.0, &mut self.first_unflushed);
            return Ok(());
        }
        let (preamble, head) = (preamble.to_ne_bytes(), head.map(u64::to_ne_bytes));
        self.append_uncommon(peer, &preamble, head.as_flattened(), body, &[])
    }

    /// Appends a frame that no open datagram has room for, in any way that works.
    #[inline(never)]
    fn append_uncommon(
        &mut self,
        peer: PeerId,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), TxError> {
        let Some(Some(to)) = self.peers.get_mut(peer.0 as usize) else {
            return Err(TxError::Gone);
        };
        to.unflushed.insert(peer.0, &mut self.first_unflushed);
        let mut lent = None;
        if tail.len() >= LEND_FROM {
            lent = to.append_lent([preamble, head, body, tail]);
            self.gathered += u64::from(lent == Some(Ok(())));
            self.may_have_lent |= lent == Some(Ok(()));
        }
        // One call, so that it is inlined.
        let result = match lent {
            Some(result) => result,
            None => to.producer.append(preamble, head, body, tail),
        };
        if result.is_err() && to.producer.is_malformed() {
            self.record_fault(peer);
        }
        result
    }

    #[cold]
    fn record_fault(&mut self, peer: PeerId) {
        if !self.faults.contains(&peer.0) {
            self.faults.push(peer.0);
        }
    }
}

impl PacketTx for ShmTx {
    #[inline(always)]
    fn append(
        &mut self,
        peer: PeerId,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), TxError> {
        // A peer with an open datagram is already in the list.
        if let Some(Some(to)) = self.peers.get_mut(peer.0 as usize)
            && to.producer.append_to_open(head, body, tail)
        {
            return Ok(());
        }
        if let ([first, second], []) = head.as_chunks()
            && tail.is_empty()
        {
            let head = [first, second].map(|word| u64::from_ne_bytes(*word));
            return self.append_first(peer, u64::from_ne_bytes(*preamble), head, body);
        }
        self.append_uncommon(peer, preamble, head, body, tail)
    }

    #[inline]
    fn seal(&mut self, peer: PeerId) {
        if let Some(Some(to)) = self.peers.get_mut(peer.0 as usize)
            && to.producer.is_open()
        {
            to.producer.publish(true);
        }
    }

    #[inline]
    fn flush(&mut self) -> Result<(), IoError> {
        let mut next = std::mem::replace(&mut self.first_unflushed, Unflushed::END);
        while let Some(Some(to)) = self.peers.get_mut(next as usize) {
            next = to.unflushed.take_next();
            to.flush();
        }
        Ok(())
    }

    /// Does nothing: every sender that this device can answer is a peer.
    fn send_to_unknown(&mut self, _to: SocketAddr, _datagram: &[u8]) {}

    /// Fails: a peer is accepted when it connects.
    fn accept_peer(&mut self, address: SocketAddr) -> Result<PeerId, IoError> {
        Err(IoError::new(
            Fault::Caller,
            format!("make a peer of {address}"),
            "a shm device receives nothing from unknown senders",
            "take the peer from the datagram's source",
        ))
    }

    fn origin(&self, peer: PeerId) -> starling_io::Origin {
        let peer = self.peers.get(peer.0 as usize).and_then(Option::as_ref);
        let origin = peer.and_then(|peer| Origin::of(&peer.socket));
        starling_io::Origin(origin.map_or(0, Origin::number))
    }

    fn peer_info(&self, peer: PeerId) -> PeerInfo {
        let peer = self.peers.get(peer.0 as usize).and_then(Option::as_ref);
        let heap = peer.and_then(|peer| peer.heap.as_ref());
        let process = peer.and_then(|peer| users::process_of(&peer.socket));
        PeerInfo {
            address: match process.and_then(|process| process.pid) {
                Some(pid) => format!("shm://pid:{pid}"),
                None => "shm://pid:unknown".to_owned(),
            },
            socket_addr: None,
            process,
            target: peer.and_then(|peer| peer.target.clone()),
            memory: heap.map_or_else(MessageMemory::default, |shared| shared.memory.clone()),
        }
    }

    fn max_datagram(&self, peer: PeerId) -> usize {
        // A closed peer takes nothing.
        ShmTx::max_datagram(self, peer.0).unwrap_or(0)
    }
}

/// Ends the sleep of the device at the other end.
#[cold]
pub(crate) fn ring(socket: &OwnedFd) {
    // It fails if the socket is full of bytes that the peer has not received yet, or if the peer is
    // gone, which the connection's own events report.
    let _ = sys::send(socket, &DOORBELL);
}
