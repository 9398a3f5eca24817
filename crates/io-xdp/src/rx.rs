//! The receiving half: frames are read where the kernel put them.
//!
//! A burst comes from the rx ring, or from the kernel's socket that has the same port. The socket
//! costs a system call, so it is asked only when something may be there: when the program's count
//! of datagrams that it passed on has changed, after a sleep, and now and then, since what this
//! host sends to itself meets no program.
//!
//! The chunks of a burst go back to the kernel when the next one is taken.

use std::net::SocketAddr;
use std::sync::Arc;

use starling_io::{Datagram, Ecn, IoError, MAX_BURST, PacketRx};
use starling_io_udp::UdpRx;

use crate::drops::Counts;
use crate::frame::{Drop as Reason, Received, parse, swap_ends};
use crate::ring::{CONTINUED, Consumer, Descriptor, Producer};
use crate::senders::{NOBODY, Senders};
use crate::shared::Shared;
use crate::steering::Exchange;

/// After the program has passed something on, how many times the socket is asked in vain: the
/// kernel's stack takes some microseconds to bring it there.
const TRIES: u32 = 32;

/// How many bursts after the last time the socket is asked anyway.
const ASK_EVERY: u32 = 1024;

/// The receiving half of an [`XdpIo`](crate::XdpIo).
pub struct XdpRx {
    shared: Arc<Shared>,
    pub(crate) udp: UdpRx,
    senders: Senders,
    rx: Consumer<Descriptor>,
    fill: Producer<u64>,
    /// Chunks of the burst, to be given back.
    held: Vec<u64>,
    /// Chunks that the kernel has: in the fill ring, the rx ring or between.
    at_kernel: usize,
    burst: [Place; MAX_BURST],
    burst_len: usize,
    /// The burst is one of the socket's.
    is_from_socket: bool,
    /// Frames of several chunks, put together.
    assembled: Vec<u8>,
    passed: u64,
    tries: u32,
    until_asked: u32,
    pub(crate) counts: Counts,
    /// What goes between this half and workers, if there are any.
    exchange: Option<Arc<Exchange>>,
}

/// A datagram of the burst.
#[derive(Clone, Copy)]
struct Place {
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
        senders: Senders,
        rx: Consumer<Descriptor>,
        mut fill: Producer<u64>,
    ) -> Self {
        let cut = shared.umem.cut;
        let room = fill.room(2 * cut.rx_chunks as u32) as usize;
        assert!(room >= 2 * cut.rx_chunks, "see `Sizes`");
        for chunk in 0..cut.rx_chunks {
            fill.push((chunk * cut.chunk) as u64);
        }
        fill.publish();
        let nowhere = Place {
            memory: Memory::Packet,
            start: 0,
            len: 0,
            source: NOBODY,
            ecn: Ecn::NotCapable,
        };
        Self {
            udp,
            senders,
            rx,
            fill,
            held: Vec::with_capacity(MAX_BURST),
            at_kernel: cut.rx_chunks,
            burst: [nowhere; MAX_BURST],
            burst_len: 0,
            is_from_socket: false,
            assembled: Vec::new(),
            passed: shared.program.passed(shared.local.port()),
            tries: 0,
            until_asked: ASK_EVERY,
            counts: Counts::default(),
            exchange: None,
            shared,
        }
    }

    /// From now on there are workers.
    pub(crate) fn share_with_workers(&mut self, exchange: Arc<Exchange>) {
        self.exchange = Some(exchange);
    }

    pub(crate) fn ring(&mut self) -> &mut Consumer<Descriptor> {
        &mut self.rx
    }

    /// Whether the interface is still there.
    pub(crate) fn check(&self) -> Result<(), IoError> {
        self.shared.check()
    }

    /// Has a frame in the rx ring go back where it came from.
    #[inline]
    pub(crate) fn swap_ends(&mut self, descriptor: Descriptor) {
        let (address, len) = (descriptor.address as usize, descriptor.len as usize);
        // SAFETY: the kernel leaves a chunk in the rx ring alone, and nobody else has it.
        swap_ends(unsafe { self.shared.umem.bytes_mut(address, len) });
    }

    /// The kernel may receive into a chunk again that it has sent from.
    #[inline]
    pub(crate) fn refill(&mut self, address: u64) {
        self.fill
            .push(address & !(self.shared.umem.cut.chunk as u64 - 1));
        self.fill.publish();
    }

    /// A burst is there without waiting. What an empty burst held goes back to the kernel: it may
    /// have been all that there is, and then nothing could be received that ends a sleep.
    pub(crate) fn is_ready(&mut self) -> bool {
        if self.burst_len == 0 {
            self.give_back();
        }
        let exchange = self.exchange.as_ref();
        let handed_over = exchange.is_some_and(|exchange| !exchange.handed_over.is_empty());
        handed_over || self.udp.has_leftovers() || self.rx.available() > 0
    }

    /// The socket may have something.
    pub(crate) fn ask_socket(&mut self) {
        self.tries = self.tries.max(1);
    }

    #[inline]
    fn give_back(&mut self) {
        if self.held.is_empty() {
            return;
        }
        // There is room for all, if the kernel keeps its word; what there is none for waits.
        let room = self.fill.room(self.held.len() as u32) as usize;
        for chunk in self.held.drain(..room.min(self.held.len())) {
            self.fill.push(chunk);
            self.at_kernel += 1;
        }
        self.fill.publish();
        if self.fill.needs_wakeup() {
            self.shared.socket.kick_rx();
        }
    }

    /// Whether the socket is to be asked now.
    #[inline]
    fn socket_is_due(&mut self) -> bool {
        let passed = self.shared.program.passed(self.shared.local.port());
        if passed != self.passed {
            self.passed = passed;
            self.tries = TRIES;
        }
        self.until_asked -= 1;
        if self.until_asked == 0 {
            self.until_asked = ASK_EVERY;
            return true;
        }
        self.tries > 0 || self.udp.has_leftovers()
    }

    #[cold]
    fn receive_from_socket(&mut self) -> Result<usize, IoError> {
        self.tries = self.tries.saturating_sub(1);
        self.burst_len = self.udp.rx_burst()?;
        self.is_from_socket = self.burst_len > 0;
        if self.burst_len > 0 {
            // There may be more behind it.
            self.tries = self.tries.max(1);
        }
        Ok(self.burst_len)
    }

    /// Takes what the ring has, frame by frame.
    #[inline]
    fn receive_from_ring(&mut self) {
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
                    // The rest is not there yet.
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
        if let Some(exchange) = &self.exchange {
            self.receive_from_workers(&Arc::clone(exchange));
        }
    }

    /// Takes what workers handed over, and what they answered in is received into again.
    fn receive_from_workers(&mut self, exchange: &Exchange) {
        let mut refilled = false;
        while let Some(chunk) = exchange.answered.pop() {
            self.fill.push(chunk);
            refilled = true;
        }
        if refilled {
            self.fill.publish();
        }
        while self.burst_len < MAX_BURST {
            let Some(descriptor) = exchange.handed_over.pop() else {
                break;
            };
            self.take_frame(descriptor);
        }
    }

    /// The chunk is ours from now on; false if it is no chunk.
    #[inline]
    fn hold(&mut self, descriptor: Descriptor) -> bool {
        let cut = self.shared.umem.cut;
        let chunk = descriptor.address & !(cut.chunk as u64 - 1);
        let end = descriptor.address.checked_add(descriptor.len.into());
        let is_inside = chunk < cut.tx_start() as u64
            && end.is_some_and(|end| end <= chunk + cut.chunk as u64)
            && self.at_kernel > 0;
        if is_inside {
            self.held.push(chunk);
            self.at_kernel -= 1;
        } else {
            self.counts.count(Reason::Descriptor);
        }
        is_inside
    }

    #[inline]
    fn take_frame(&mut self, descriptor: Descriptor) {
        if !self.hold(descriptor) {
            return;
        }
        let (address, len) = (descriptor.address as usize, descriptor.len as usize);
        // SAFETY: the chunk is held, and the kernel does not touch it until it is given back.
        let frame = unsafe { self.shared.umem.bytes(address, len) };
        match parse(frame, &self.shared.local) {
            Ok(received) => self.push(received, Memory::Packet, address),
            Err(reason) => self.counts.count(reason),
        }
    }

    /// Puts together a frame that came in several chunks.
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
        match parse(&self.assembled[begin..], &self.shared.local) {
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
        self.burst[self.burst_len] = Place {
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
    /// If the interface was removed.
    #[inline]
    fn rx_burst(&mut self) -> Result<usize, IoError> {
        self.give_back();
        self.burst_len = 0;
        self.assembled.clear();
        self.is_from_socket = false;
        if self.socket_is_due() && self.receive_from_socket()? > 0 {
            return Ok(self.burst_len);
        }
        self.receive_from_ring();
        if self.burst_len == 0 {
            self.shared.check()?;
        }
        Ok(self.burst_len)
    }

    #[inline]
    fn datagram(&self, index: usize) -> Datagram<'_> {
        if self.is_from_socket {
            return self.udp.datagram(index);
        }
        assert!(
            index < self.burst_len,
            "datagram {index} of {}",
            self.burst_len
        );
        let place = &self.burst[index];
        let (start, len) = (place.start as usize, place.len as usize);
        Datagram {
            source: self.senders.source(place.source),
            ecn: place.ecn,
            bytes: match place.memory {
                // SAFETY: its chunk is held until the next burst, which needs `self` alone.
                Memory::Packet => unsafe { self.shared.umem.bytes(start, len) },
                Memory::Assembled => &self.assembled[start..start + len],
            },
        }
    }
}

impl Drop for XdpRx {
    /// Every chunk is somewhere.
    fn drop(&mut self) {
        let chunks = self.shared.umem.cut.rx_chunks;
        debug_assert_eq!(
            self.held.len() + self.at_kernel,
            chunks,
            "chunks are conserved"
        );
    }
}
