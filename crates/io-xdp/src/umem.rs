//! The packet memory that a device shares with the kernel (UMEM): one mapping, divided into chunks.
//!
//! ```text
//!   │ rx chunks, one for each frame or part of one │ tx slots, each of one or more chunks in a row │ messages │
//! ```
//!
//! A chunk has one owner at any time. An owner that gives a chunk away stops using it:
//!
//! ```text
//!   rx:  fill ring ─▶ kernel ─▶ rx ring ─▶ burst ─▶ fill ring            tx:  free ─▶ being filled ─▶ queued
//!                                                                              ▲                       │
//!                                                                              └── completion ring ◀── kernel
//! ```
//!
//! Messages ([`crate::memory`]) are read by all that have a reference, and by the kernel.

use std::io;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::ring::Mapping;

/// Bytes that the kernel leaves free at the start of a chunk that it receives into
/// (`XDP_PACKET_HEADROOM`).
pub(crate) const RX_HEADROOM: usize = 256;

/// The smallest chunk that the kernel takes, in bytes.
const MIN_CHUNK: usize = 2048;
/// The largest: a page.
const MAX_CHUNK: usize = 4096;

/// Bytes of a huge page. The device asks for this size on every host: most of a page of 1 GiB would be
/// wasted, and a part of it cannot be given back.
const HUGE_PAGE: usize = 2 << 20;

/// How the memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UmemLayout {
    /// Bytes of a chunk.
    pub(crate) chunk: usize,
    pub(crate) rx_chunks: usize,
    pub(crate) tx_slots: usize,
    /// Chunks of a tx slot.
    pub(crate) slot_chunks: usize,
    /// Chunks for messages.
    pub(crate) message_chunks: usize,
}

impl UmemLayout {
    /// For Ethernet frames of up to `max_frame` bytes, received in `rx_chunks` and sent from
    /// `tx_slots`. Without memory for messages.
    pub(crate) fn new(max_frame: usize, rx_chunks: usize, tx_slots: usize) -> Self {
        let chunk = if max_frame + RX_HEADROOM <= MIN_CHUNK {
            MIN_CHUNK
        } else {
            MAX_CHUNK
        };
        Self {
            chunk,
            rx_chunks,
            tx_slots,
            slot_chunks: (max_frame + SLOT_MARGIN).div_ceil(chunk),
            message_chunks: 0,
        }
    }

    /// With so many bytes for messages.
    pub(crate) fn with_messages(self, bytes: usize) -> Self {
        Self {
            message_chunks: bytes / self.chunk,
            ..self
        }
    }

    /// The most bytes of a frame that a chunk receives.
    pub(crate) fn rx_room(&self) -> usize {
        self.chunk - RX_HEADROOM
    }

    /// Bytes of a tx slot.
    #[inline]
    pub(crate) fn slot(&self) -> usize {
        self.chunk * self.slot_chunks
    }

    /// The number of the chunk that has this byte. (A division takes longer than parsing a frame.)
    #[inline]
    pub(crate) fn chunk_at(&self, byte: usize) -> usize {
        byte >> self.chunk.trailing_zeros()
    }

    /// The number of the tx slot that has this byte, counted from where the slots begin.
    #[inline]
    pub(crate) fn slot_at(&self, byte: usize) -> usize {
        match self.slot_chunks {
            1 => self.chunk_at(byte),
            chunks => self.chunk_at(byte) / chunks,
        }
    }

    /// Where the tx slots begin.
    #[inline]
    pub(crate) fn tx_start(&self) -> usize {
        self.chunk * self.rx_chunks
    }

    /// Where the memory for messages begins.
    #[inline]
    pub(crate) fn message_start(&self) -> usize {
        self.tx_start() + self.slot() * self.tx_slots
    }

    pub(crate) fn bytes(&self) -> usize {
        self.message_start() + self.chunk * self.message_chunks
    }
}

/// The remedy if there is no memory for a device.
pub(crate) fn remedy(bytes: usize) -> String {
    format!(
        "a device on this interface takes {}: free as much, or raise the limit that the process \
         has (`ulimit -v`, MemoryMax= of systemd), or use udp://",
        mebibytes(bytes)
    )
}

/// As text: in whole MiB, rounded up.
pub(crate) fn mebibytes(bytes: usize) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

/// Room of a slot beside the frame's payload: the payload begins on a cache line.
pub(crate) const SLOT_MARGIN: usize = 64;

/// The memory.
#[derive(Debug)]
pub(crate) struct Umem {
    mapping: Mapping,
    pub(crate) layout: UmemLayout,
}

impl Umem {
    pub(crate) fn new(layout: UmemLayout) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let len = layout.bytes().next_multiple_of(HUGE_PAGE);
        let map = |len, flags| {
            // SAFETY: a new mapping at an address that the kernel chooses; no one refers to it yet.
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags) }
        };
        let plain = MapFlags::PRIVATE | MapFlags::POPULATE;
        // Huge pages only if the administrator has set some aside.
        let huge = MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        let start = map(len, plain | huge).or_else(|_| map(len, plain))?;
        Ok(Self {
            mapping: Mapping::new(start.cast(), len),
            layout,
        })
    }

    pub(crate) fn start(&self) -> u64 {
        self.mapping.at(0, 0) as u64
    }

    /// The part that the kernel may put frames into or take them from.
    pub(crate) fn len(&self) -> u64 {
        self.layout.bytes() as u64
    }

    /// `len` bytes at `address`.
    ///
    /// # Safety
    /// They belong to the caller: the kernel has given the chunks back, and no one writes to them
    /// while the reference lives.
    ///
    /// # Panics
    /// If they lie outside.
    #[inline]
    pub(crate) unsafe fn bytes(&self, address: usize, len: usize) -> &[u8] {
        let start = self.mapping.at(address, len);
        // SAFETY: inside the mapping; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// The same, to be written.
    ///
    /// # Safety
    /// As above, and no one else has a reference.
    #[inline]
    #[allow(clippy::mut_from_ref)] // Each chunk has one owner: the caller.
    pub(crate) unsafe fn bytes_mut(&self, address: usize, len: usize) -> &mut [u8] {
        let start = self.mapping.at(address, len);
        // SAFETY: inside the mapping; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}
