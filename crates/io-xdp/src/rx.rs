//! The receiving half: it reads Ethernet frames where the kernel put them.
//!
//! A burst comes from the rx ring, or from the kernel's socket that has the same port. Polling the
//! socket costs a system call. So the device polls it only when something may be there: when the
//! program's count of datagrams that it passed on has changed, after a sleep, and now and then,
//! since datagrams of this host to itself meet no program.
//!
//! If several devices have the port, a device forwards datagrams of another device's peer.
//!
//! The chunks of a burst go back to the kernel when the next burst is taken.

mod misrouted;

use std::net::SocketAddr;
use std::sync::Arc;

use starling_ethernet::{Received, parse, swap_ends};
use starling_io::{Datagram, Ecn, IoError, MAX_BURST, PacketRx};
use starling_io_udp::UdpRx;

use crate::chunk_accounting::ChunkAccounting;
use crate::drops::{ByKernel, Counts};
use crate::exchange::Exchange;
use crate::peer_cache::{NOBODY, PeerCache};
use crate::port_group::PortGroup;
use crate::ring::{CONTINUED, Consumer, Descriptor, Producer};
use crate::shared::Shared;
use misrouted::MisroutedCounts;

/// How often the device polls the socket in vain after the program has passed something on: the
/// kernel's stack takes some microseconds to deliver it.
const POLLS: u32 = 32;

/// The device polls the socket at least once in so many bursts.
const POLL_SOCKET_EVERY: u32 = 1024;

/// The receiving half of an [`XdpIo`](crate::XdpIo).
pub struct XdpRx {
    shared: Arc<Shared>,
    pub(crate) udp: UdpRx,
    peers: PeerCache,
    rx: Consumer<Descriptor>,
    fill: Producer<u64>,
    /// Chunks of the burst, which go back to the kernel.
    held: Vec<u64>,
    /// Where this half reports its chunks at the end.
    chunks: Arc<ChunkAccounting>,
    /// Which chunks are in `held`.
    is_held: Box<[bool]>,
    burst: [BurstEntry; MAX_BURST],
    burst_len: usize,
    /// The burst came from the socket.
    is_from_socket: bool,
    /// Reassembled frames of several chunks.
    assembled: Vec<u8>,
    passed: u64,
    /// The first value of `passed`.
    passed_before: u64,
    polls_left: u32,
    until_poll: u32,
    pub(crate) counts: Counts,
    /// Datagrams that came from the ring or from workers.
    by_ring: u64,
    misrouted: MisroutedCounts,
    /// The queues between this half and workers, if there are any.
    exchange: Option<Arc<Exchange>>,
    /// All devices that have the port, if it is shared.
    port_group: Option<PortGroup>,
    /// The indices of the burst's datagrams in the socket's burst.
    order: [u8; MAX_BURST],
}

/// A datagram of the burst.
#[derive(Clone, Copy)]
struct BurstEntry {
    memory: Memory,
    start: u32,
    len: u32,
    source: SocketAddr,
    ecn: Ecn,
}

#[derive(Clone, Copy)]
enum Memory {
    Packet,
    Assembled,
}

impl XdpRx {
    pub(crate) fn new(
        shared: Arc<Shared>,
        udp: UdpRx,
        peers: PeerCache,
        rx: Consumer<Descriptor>,
        mut fill: Producer<u64>,
    ) -> Self {
        let layout = shared.umem.layout;
        let room = fill.room(2 * layout.rx_chunks as u32) as usize;
        assert!(room >= 2 * layout.rx_chunks, "see `Sizes`");
        for chunk in 0..layout.rx_chunks {
            fill.push((chunk * layout.chunk) as u64);
        }
        fill.publish();
        if fill.needs_wakeup() {
            // Since the socket was bound the driver had no chunk to receive into.
            shared.socket.kick_rx();
        }
        let nowhere = BurstEntry {
            memory: Memory::Packet,
            start: 0,
            len: 0,
            source: NOBODY,
            ecn: Ecn::NotCapable,
        };
        let passed = shared.program.passed(shared.local.port());
        Self {
            udp,
            peers,
            rx,
            fill,
            held: Vec::with_capacity(MAX_BURST),
            chunks: Arc::new(ChunkAccounting::new(layout.rx_chunks)),
            is_held: vec![false; layout.rx_chunks].into(),
            burst: [nowhere; MAX_BURST],
            burst_len: 0,
            is_from_socket: false,
            assembled: Vec::new(),
            passed,
            passed_before: passed,
            polls_left: 0,
            until_poll: POLL_SOCKET_EVERY,
            counts: Counts::default(),
            by_ring: 0,
            misrouted: MisroutedCounts::default(),
            exchange: None,
            port_group: None,
            order: std::array::from_fn(|index| index as u8),
            shared,
        }
    }

    /// From now on other devices may have the port, too.
    pub(crate) fn share_port(&mut self, port_group: PortGroup) {
        self.port_group = Some(port_group);
    }

    /// Where the parts of the device report their chunks at the end.
    pub(crate) fn chunks(&self) -> &Arc<ChunkAccounting> {
        &self.chunks
    }

    /// From now on the device has workers.
    pub(crate) fn share_with_workers(&mut self, exchange: Arc<Exchange>) {
        self.exchange = Some(exchange);
    }

    /// The counts of this half, without what it dropped.
    pub(crate) fn report(&self) -> [(&'static str, u64); 5] {
        let passed = self.shared.program.passed(self.shared.local.port());
        [
            ("rx_ring", self.by_ring),
            ("passed", passed.wrapping_sub(self.passed_before)),
            ("misrouted_forwarded", self.misrouted.forwarded),
            ("misrouted_received", self.misrouted.received),
            ("misrouted_lost", self.misrouted.lost),
        ]
    }

    /// The kernel's counts of the workers' sockets.
    pub(crate) fn of_workers(&self) -> ByKernel {
        let exchange = self.exchange.as_ref();
        exchange.map_or(ByKernel::default(), |exchange| exchange.sockets.counts())
    }

    pub(crate) fn ring(&mut self) -> &mut Consumer<Descriptor> {
        &mut self.rx
    }

    /// Fails if the interface was removed or changed.
    pub(crate) fn check(&self) -> Result<(), IoError> {
        self.shared.check()
    }

    /// Turns a frame in the rx ring back to its sender.
    #[inline]
    pub(crate) fn swap_ends(&mut self, descriptor: Descriptor) {
        let (address, len) = (descriptor.address as usize, descriptor.len as usize);
        // SAFETY: the kernel does not touch a chunk in the rx ring, and no one else has it.
        swap_ends(unsafe { self.shared.umem.bytes_mut(address, len) });
    }

    /// Gives the kernel a chunk that it has sent from, to receive into.
    #[inline]
    pub(crate) fn refill(&mut self, address: u64) {
        self.fill
            .push(address & !(self.shared.umem.layout.chunk as u64 - 1));
        self.fill.publish();
    }

    /// Whether a burst is there without waiting. The chunks of an empty burst go back to the
    /// kernel, and those in which workers answered. They may be all chunks: then the kernel could
    /// not receive a datagram that would end a sleep.
    pub(crate) fn is_ready(&mut self) -> bool {
        if self.burst_len == 0 {
            self.give_back();
            self.take_answered();
            self.wake_driver();
        }
        let exchange = self.exchange.as_ref();
        let handed_over = exchange.is_some_and(|exchange| !exchange.handed_over.is_empty());
        let port_group = self.port_group.as_ref();
        let passed_on = port_group.is_some_and(PortGroup::has_received);
        handed_over || passed_on || self.udp.has_pending() || self.rx.available() > 0
    }

    /// The socket may have something: polls it soon.
    pub(crate) fn poll_socket_soon(&mut self) {
        self.polls_left = self.polls_left.max(1);
    }

    #[inline]
    fn give_back(&mut self) {
        if self.held.is_empty() {
            return;
        }
        // There is room for all unless the kernel is wrong. Chunks without room wait.
        let room = self.fill.room(self.held.len() as u32) as usize;
        for chunk in self.held.drain(..room.min(self.held.len())) {
            self.is_held[self.shared.umem.layout.chunk_at(chunk as usize)] = false;
            self.fill.push(chunk);
        }
        self.fill.publish();
        self.wake_driver();
    }

    /// Wakes a driver that stopped because it had no chunk to receive into.
    #[inline]
    fn wake_driver(&self) {
        if self.fill.needs_wakeup() {
            self.shared.socket.kick_rx();
        }
    }

    /// Whether to poll the socket now.
    #[inline]
    fn socket_is_due(&mut self) -> bool {
        let passed = self.shared.program.passed(self.shared.local.port());
        if passed != self.passed {
            self.passed = passed;
            self.polls_left = POLLS;
        }
        self.until_poll -= 1;
        if self.until_poll == 0 {
            self.until_poll = POLL_SOCKET_EVERY;
            return true;
        }
        self.polls_left > 0 || self.udp.has_pending()
    }

    #[cold]
    fn receive_from_socket(&mut self) -> Result<usize, IoError> {
        self.polls_left = self.polls_left.saturating_sub(1);
        self.burst_len = self.udp.rx_burst()?;
        self.is_from_socket = self.burst_len > 0;
        if self.burst_len > 0 {
            // There may be more.
            self.polls_left = self.polls_left.max(1);
        }
        Ok(self.burst_len)
    }

    /// Takes the frames of the ring.
    #[inline]
    fn receive_from_ring(&mut self) {
        if let Some(exchange) = &self.exchange {
            // Datagrams that workers handed over are older than those in the ring.
            self.receive_from_workers(&Arc::clone(exchange));
        }
        let available = self.rx.available();
        let mut taken = 0;
        while taken < available && self.burst_len < MAX_BURST {
            let first = self.rx.get(taken);
            let parts = if first.options & CONTINUED == 0 {
                1
            } else {
                let is_last = |&part: &u32| self.rx.get(part).options & CONTINUED == 0;
                match (taken + 1..available).find(is_last) {
                    Some(last) => last - taken + 1,
                    // The rest of the frame is not there yet.
                    None => break,
                }
            };
            if parts == 1 {
                self.take_frame(first);
            } else {
                self.assemble(taken, parts);
            }
            taken += parts;
        }
        if taken > 0 {
            self.rx.release(taken);
        }
        self.by_ring += self.burst_len as u64;
    }

    /// Gives the kernel the chunks in which workers answered, to receive into.
    fn take_answered(&mut self) {
        let Some(exchange) = &self.exchange else {
            return;
        };
        let mut refilled = false;
        while let Some(chunk) = exchange.answered.pop() {
            self.fill.push(chunk);
            refilled = true;
        }
        if refilled {
            self.fill.publish();
        }
    }

    /// Takes the frames that workers handed over.
    fn receive_from_workers(&mut self, exchange: &Exchange) {
        self.take_answered();
        while self.burst_len < MAX_BURST {
            let Some(descriptor) = exchange.handed_over.pop() else {
                break;
            };
            self.take_frame(descriptor);
        }
    }

    /// From now on this half holds the chunk. False if there is no such chunk, or it holds it
    /// already.
    #[inline]
    pub(crate) fn hold(&mut self, descriptor: Descriptor) -> bool {
        let layout = self.shared.umem.layout;
        let chunk = descriptor.address & !(layout.chunk as u64 - 1);
        let end = descriptor.address - chunk + u64::from(descriptor.len);
        let is_inside = end <= layout.chunk as u64;
        let is_held = self.is_held.get_mut(layout.chunk_at(chunk as usize));
        match is_held.filter(|is_held| is_inside && !**is_held) {
            Some(is_held) => {
                *is_held = true;
                self.held.push(chunk);
                true
            }
            None => {
                self.counts.count_descriptor();
                false
            }
        }
    }

    #[inline]
    fn take_frame(&mut self, descriptor: Descriptor) {
        if !self.hold(descriptor) {
            return;
        }
        let (address, len) = (descriptor.address as usize, descriptor.len as usize);
        // SAFETY: the chunk is held, and the kernel does not touch it until it is given back.
        let frame = unsafe { self.shared.umem.bytes(address, len) };
        match parse(frame, &self.shared.local, self.shared.index) {
            Ok(received) => self.push(received, Memory::Packet, address),
            Err(reason) => self.counts.count(reason),
        }
    }

    /// Reassembles a frame of several chunks.
    #[cold]
    fn assemble(&mut self, first: u32, parts: u32) {
        let begin = self.assembled.len();
        let mut is_whole = true;
        for part in first..first + parts {
            let descriptor = self.rx.get(part);
            is_whole &= self.hold(descriptor);
            if is_whole {
                let (address, len) = (descriptor.address as usize, descriptor.len as usize);
                // SAFETY: the chunk is held.
                let bytes = unsafe { self.shared.umem.bytes(address, len) };
                self.assembled.extend_from_slice(bytes);
            }
        }
        match parse(
            &self.assembled[begin..],
            &self.shared.local,
            self.shared.index,
        ) {
            Ok(received) if is_whole => self.push(received, Memory::Assembled, begin),
            Ok(_) => {}
            Err(reason) => {
                self.assembled.truncate(begin);
                self.counts.count(reason);
            }
        }
    }

    #[inline]
    fn push(&mut self, received: Received, memory: Memory, frame: usize) {
        self.burst[self.burst_len] = BurstEntry {
            memory,
            start: (frame + received.start) as u32,
            len: received.len as u32,
            source: received.source,
            ecn: received.ecn,
        };
        self.burst_len += 1;
    }
}

impl PacketRx for XdpRx {
    /// # Errors
    /// If the interface was removed or changed.
    #[inline]
    fn rx_burst(&mut self) -> Result<usize, IoError> {
        self.give_back();
        self.burst_len = 0;
        self.assembled.clear();
        // After a burst of the socket the ring has its turn, however much the socket has.
        let ring_first = std::mem::take(&mut self.is_from_socket);
        if ring_first {
            self.receive_from_ring();
        }
        if self.burst_len == 0 && self.socket_is_due() {
            self.receive_from_socket()?;
        }
        if self.burst_len == 0 && !ring_first {
            self.receive_from_ring();
        }
        if self.port_group.is_some() {
            self.exchange_misrouted();
        }
        if self.burst_len == 0 {
            // The driver may have stopped since chunks went back to it.
            self.wake_driver();
            self.shared.check()?;
        }
        Ok(self.burst_len)
    }

    #[inline]
    fn datagram(&self, index: usize) -> Datagram<'_> {
        if self.is_from_socket {
            return self.udp.datagram(usize::from(self.order[index]));
        }
        assert!(
            index < self.burst_len,
            "datagram {index} of {}",
            self.burst_len
        );
        let place = &self.burst[index];
        let (start, len) = (place.start as usize, place.len as usize);
        Datagram {
            source: self.peers.source(place.source),
            ecn: place.ecn,
            bytes: match place.memory {
                // SAFETY: its chunk is held until the next burst, which borrows `self` mutably.
                Memory::Packet => unsafe { self.shared.umem.bytes(start, len) },
                Memory::Assembled => &self.assembled[start..start + len],
            },
        }
    }
}

impl Drop for XdpRx {
    /// Every chunk that was taken goes back once.
    fn drop(&mut self) {
        self.give_back();
        let kept = self.is_held.iter().filter(|is_held| **is_held).count();
        debug_assert_eq!(kept, self.held.len(), "chunks are conserved");
        debug_assert_eq!(kept, 0, "the fill ring has room for all chunks");
        // A descriptor that is a driver's defect names no chunk that anyone has.
        let lost = self.counts.drops().descriptor as u32;
        self.chunks.add(self.fill.written());
        self.chunks.add(lost);
        self.chunks.subtract(self.rx.released());
    }
}

#[cfg(test)]
mod tests;
