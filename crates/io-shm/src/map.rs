//! The shared memory: one memfd, mapped so that each ring appears twice in a row.
//!
//! ```text
//!  file:     │ control page │ lines 0 │ lines 1 │ bulk 0 │ bulk 1 │
//!  mapping:  │ control page │ lines 0 │ lines 0 │ lines 1 │ lines 1 │ bulk 0 │ bulk 0 │ ...
//! ```
//!
//! Rings 0 go from the side that connected to the side that accepted, rings 1 back. Processors fetch
//! lines in pairs, so each word of the control page has a pair of lines of its own: a word that one
//! core writes does not move one that the other core reads.
//!
//! ```text
//!  byte 0: heads of rings 0: lines, bulk    written by the accepting side
//!     128: heads of rings 1: lines, bulk    written by the connecting side
//!     256: sleep word, revocation word      of the connecting side
//!     384: sleep word, revocation word      of the accepting side
//! ```
//!
//! Messages for the peer to read in place are in memory of their own ([`heap`]).
//!
//! The file is sealed against every change of its size and checked to be in ordinary memory, so no
//! access to the mapping can fault ([`Region::map_foreign`]). [`ring`](crate::ring) explains why
//! concurrent writes by the other process do no harm.

mod heap;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence, fence};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use starling_prefetch::prefetch_lines;

pub(crate) use self::heap::{ForeignHeap, OwnHeap};
use crate::ring::{HEADER_BYTES, Heads, LINE, RingMemory};
use crate::sleep::SleepWords;

/// The distance between words of the control page.
const WORD_SPACING: usize = 128;

/// Size of a line ring. Both of them, with the other memory in use, fit the first two cache levels.
const LINE_RING_BYTES: usize = 32 << 10;

/// Size of a line ring on this host, where pages may be larger.
pub(crate) fn line_ring_bytes() -> usize {
    LINE_RING_BYTES.max(rustix::param::page_size())
}

/// The seals that make a file's size final.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// `f_type` of a file in ordinary, swappable memory. A file of huge pages has another type: its
/// pages may run out, and an access would then kill the process.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Which end of a connection this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Opened the connection; produces into ring 0.
    Connector,
    /// Accepted it; produces into ring 1.
    Acceptor,
}

impl Side {
    fn index(self) -> usize {
        match self {
            Self::Connector => 0,
            Self::Acceptor => 1,
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Connector => Self::Acceptor,
            Self::Acceptor => Self::Connector,
        }
    }
}

/// The mapped memory of one connection.
pub(crate) struct Region {
    base: NonNull<u8>,
    mapped_bytes: usize,
    bulk_bytes: usize,
    /// Both processes have `membarrier`, so senders need no fence.
    asymmetric_fences: AtomicBool,
}

// SAFETY: the region owns its memory and unmaps it on drop; all accesses are atomics, or raw copies
// by the one producer and one consumer of this process.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Makes zeroed memory for a connection, and the file to hand to the peer.
    pub(crate) fn create(bulk_bytes: usize) -> rustix::io::Result<(Self, OwnedFd)> {
        let file = rustix::fs::memfd_create(
            "starling-io-shm",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        rustix::fs::ftruncate(&file, file_bytes(bulk_bytes))?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        let region = Self::map(file.as_fd(), bulk_bytes)?;
        Ok((region, file))
    }

    /// Maps memory that a peer made, after checking that its size is as agreed and final.
    pub(crate) fn map_foreign(file: BorrowedFd<'_>, bulk_bytes: usize) -> rustix::io::Result<Self> {
        check_foreign(file, file_bytes(bulk_bytes), SEALS)?;
        Self::map(file, bulk_bytes)
    }

    fn map(file: BorrowedFd<'_>, bulk_bytes: usize) -> rustix::io::Result<Self> {
        let page = rustix::param::page_size();
        let mapped_bytes = page + 4 * line_ring_bytes() + 4 * bulk_bytes;
        // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                mapped_bytes,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let region = Self {
            base: NonNull::new(base.cast()).expect("a mapping is not at address zero"),
            mapped_bytes,
            bulk_bytes,
            asymmetric_fences: AtomicBool::new(false),
        };
        let rings = [line_ring_bytes(), line_ring_bytes(), bulk_bytes, bulk_bytes];
        let parts = std::iter::once((page, 1)).chain(rings.map(|bytes| (bytes, 2)));
        let (mut at, mut file_offset) = (0, 0);
        for (bytes, times) in parts {
            for _ in 0..times {
                // SAFETY: the range lies inside the reservation made above, which nothing else
                // uses: the sizes of the parts add up to it.
                unsafe {
                    rustix::mm::mmap(
                        region.base.as_ptr().add(at).cast(),
                        bytes,
                        ProtFlags::READ | ProtFlags::WRITE,
                        MapFlags::SHARED | MapFlags::FIXED,
                        file,
                        file_offset as u64,
                    )?;
                }
                at += bytes;
            }
            file_offset += bytes;
        }
        assert!(at == mapped_bytes && file_offset as u64 == file_bytes(bulk_bytes));
        Ok(region)
    }

    /// Size of each bulk ring.
    pub(crate) fn bulk_bytes(&self) -> usize {
        self.bulk_bytes
    }

    /// Size of each line ring.
    pub(crate) fn line_bytes(&self) -> usize {
        line_ring_bytes()
    }

    /// The offset in the mapping of the line ring that `side` produces into.
    fn lines_at(&self, side: Side) -> usize {
        rustix::param::page_size() + 2 * side.index() * line_ring_bytes()
    }

    /// The offset in the mapping of the bulk ring that `side` produces into.
    fn bulk_at(&self, side: Side) -> usize {
        rustix::param::page_size() + 4 * line_ring_bytes() + 2 * side.index() * self.bulk_bytes
    }

    /// Records that both processes have `membarrier`.
    pub(crate) fn use_asymmetric_fences(&self) {
        self.asymmetric_fences.store(true, Ordering::Relaxed);
    }

    /// A word of the control page: the first or second of a pair of lines.
    #[inline]
    fn word(&self, pair: usize, second: bool) -> &AtomicU64 {
        debug_assert!(pair < 4);
        let at = pair * WORD_SPACING + usize::from(second) * size_of::<u64>();
        // SAFETY: the control page holds such a word, aligned, mapped as long as `self` is; every
        // access to it is atomic, in both processes.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast::<u64>()) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range is this region's own mapping, and every holder of a pointer into it
        // also holds the region.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Checks that a file of a peer has these seals and this size for ever, and that no access to it can
/// fault. The seals include those that make the size final.
fn check_foreign(file: BorrowedFd<'_>, bytes: u64, seals: SealFlags) -> rustix::io::Result<()> {
    debug_assert!(seals.contains(SEALS));
    if !rustix::fs::fcntl_get_seals(file)?.contains(seals) {
        return Err(Errno::PERM);
    }
    if rustix::fs::fstatfs(file)?.f_type as u64 != TMPFS_MAGIC {
        return Err(Errno::NOTSUP);
    }
    // Read after the seals: from then on it cannot change.
    if rustix::fs::fstat(file)?.st_size as u64 != bytes {
        return Err(Errno::INVAL);
    }
    Ok(())
}

/// Bytes of a connection's file.
fn file_bytes(bulk_bytes: usize) -> u64 {
    (rustix::param::page_size() + 2 * line_ring_bytes() + 2 * bulk_bytes) as u64
}

/// The two rings of one direction.
#[derive(Clone)]
pub(crate) struct Ring {
    lines: *mut u8,
    line_mask: u64,
    bulk: *mut u8,
    bulk_mask: u64,
    /// The side that produces into it.
    producer: Side,
    /// The producer's message heap, if this end consumes and the producer has shared it.
    heap: Option<Arc<ForeignHeap>>,
    region: Arc<Region>,
}

// SAFETY: the pointers are into the region, which the ring keeps mapped; regions may move between
// threads.
unsafe impl Send for Ring {}

impl Ring {
    /// The rings that `side` produces into.
    pub(crate) fn produced_by(region: &Arc<Region>, side: Side) -> Self {
        Self {
            // SAFETY: all rings lie inside the mapping.
            lines: unsafe { region.base.as_ptr().add(region.lines_at(side)) },
            line_mask: region.line_bytes() as u64 - 1,
            // SAFETY: as above.
            bulk: unsafe { region.base.as_ptr().add(region.bulk_at(side)) },
            bulk_mask: region.bulk_bytes as u64 - 1,
            producer: side,
            heap: None,
            region: Arc::clone(region),
        }
    }

    /// The producer has shared its message heap.
    pub(crate) fn set_heap(&mut self, heap: ForeignHeap) {
        self.heap = Some(Arc::new(heap));
    }

    /// Whether the producer has revoked what it lent from its heap.
    fn revocation(&self) -> &AtomicU64 {
        self.region.word(2 + self.producer.index(), true)
    }

    /// The rings that `side` consumes.
    pub(crate) fn consumed_by(region: &Arc<Region>, side: Side) -> Self {
        Self::produced_by(region, side.other())
    }

    /// The address of `bytes` bytes at a position of the line ring, inside the double mapping.
    #[inline]
    fn in_lines(&self, at: u64, bytes: usize) -> *mut u8 {
        assert!(bytes as u64 <= self.line_mask + 1);
        // SAFETY: the offset is below the ring's size and `bytes` is at most that size, so their sum
        // is inside the two copies.
        unsafe { self.lines.add((at & self.line_mask) as usize) }
    }

    /// The address of the line at a position of the line ring.
    #[inline]
    fn line(&self, at: u64) -> *mut u8 {
        // SAFETY: the offset is below the ring's size, which is a number of pages, so a line that
        // begins there ends inside the two copies.
        unsafe { self.lines.add((at & self.line_mask) as usize) }
    }

    /// The same as `in_lines`, for the bulk ring.
    #[inline]
    fn in_bulk(&self, at: u64, bytes: usize) -> *mut u8 {
        assert!(bytes as u64 <= self.bulk_mask + 1);
        // SAFETY: as in `in_lines`.
        unsafe { self.bulk.add((at & self.bulk_mask) as usize) }
    }

    #[inline]
    fn header(&self, at: u64) -> &AtomicU32 {
        debug_assert!(at.is_multiple_of(LINE as u64));
        // SAFETY: in bounds by `line`; the beginning of a line is aligned; while an honest consumer
        // may poll a line, its header word is accessed by atomics only.
        unsafe { AtomicU32::from_ptr(self.line(at).cast()) }
    }
}

/// Copies private bytes into shared memory.
///
/// # Safety
/// `to` begins as many bytes of a mapping.
#[inline]
unsafe fn copy_in(bytes: &[u8], to: *mut u8) {
    // SAFETY: by the caller; a private slice cannot overlap a mapping of shared memory.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
}

/// Copies bytes of shared memory into private memory.
///
/// # Safety
/// `from` begins as many bytes of a mapping.
#[inline]
unsafe fn copy_out(from: *const u8, into: &mut [u8]) {
    // SAFETY: by the caller; a private slice cannot overlap a mapping of shared memory.
    unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
    // The compiler must not read the shared memory again instead of the copy.
    compiler_fence(Ordering::SeqCst);
}

/// The same for many bytes, to memory that may be uninitialized.
///
/// On AMD's Zen, a copy whose target begins 1 to 15 bytes behind its source, modulo 4096, takes fifteen times
/// as long: each load waits for the store before it, as if it read what that wrote. Then the bytes go by
/// way of a buffer in between, which lies elsewhere in its page.
///
/// # Safety
/// `from` begins so many bytes of a mapping, `to` so many of private memory.
unsafe fn copy_out_large(from: *const u8, to: *mut u8, bytes: usize) {
    const PAGE: usize = 4096;
    let behind = (to as usize).wrapping_sub(from as usize) % PAGE;
    if (1..16).contains(&behind) && bytes > PAGE {
        let mut buffer = [MaybeUninit::<u8>::uninit(); 2 * PAGE];
        let buffer = buffer.as_mut_ptr().cast::<u8>();
        let far = (from as usize + PAGE / 2).wrapping_sub(buffer as usize) % PAGE;
        let mut at = 0;
        while at < bytes {
            let piece = (bytes - at).min(PAGE);
            // SAFETY: the mapping and the target have `bytes` from their beginning, by the caller; the
            // buffer has a page behind its first, and is no part of either.
            unsafe {
                let between = buffer.add(far);
                ptr::copy_nonoverlapping(from.add(at), between, piece);
                ptr::copy_nonoverlapping(between, to.add(at), piece);
            }
            at += piece;
        }
    } else {
        // SAFETY: by the caller; private memory cannot overlap a mapping of shared memory.
        unsafe { ptr::copy_nonoverlapping(from, to, bytes) }
    }
    compiler_fence(Ordering::SeqCst);
}

impl Ring {
    /// Whether the producer has kept what the caller has just copied out of its heap.
    fn is_kept(&self) -> bool {
        // With the fence in `revoke`: if a byte that was copied was written after it, this sees the word.
        fence(Ordering::Acquire);
        self.revocation().load(Ordering::Relaxed) == 0
    }

    /// Appends bytes of the producer's message heap. False as for [`RingMemory::read_heap`].
    pub(crate) fn append_heap(&self, at: u64, bytes: usize, buffer: &mut Vec<u8>) -> bool {
        let heap = self.heap.as_ref().expect("the caller knows its size");
        heap.append(at, bytes, buffer) && self.is_kept()
    }
}

impl RingMemory for Ring {
    #[inline]
    fn line_bytes(&self) -> u64 {
        self.line_mask + 1
    }

    #[inline]
    fn bulk_bytes(&self) -> u64 {
        self.bulk_mask + 1
    }

    #[inline]
    fn load_header(&self, at: u64) -> u32 {
        self.header(at).load(Ordering::Acquire)
    }

    #[inline]
    fn publish_header(&self, at: u64, word: u32) {
        self.header(at).store(word, Ordering::Release);
    }

    #[inline]
    fn clear_header(&self, at: u64) {
        self.header(at).store(0, Ordering::Relaxed);
    }

    #[inline]
    fn write_first_line(&self, at: u64, line: &[u8; LINE]) {
        let to = self.line(at);
        let (_header, words) = line.split_at(HEADER_BYTES);
        let (words, last) = words.as_chunks::<8>();
        // In pieces of eight bytes: most stores to the staging buffer were at least that long, so
        // each load finds its bytes in one entry of the store buffer.
        for (index, word) in words.iter().enumerate() {
            // SAFETY: inside the line.
            unsafe { copy_in(word, to.add(HEADER_BYTES + 8 * index)) }
        }
        // SAFETY: as above.
        unsafe { copy_in(last, to.add(LINE - 4)) }
    }

    #[inline]
    fn write_lines(&self, at: u64, lines: &[u8]) {
        // SAFETY: `in_lines` checks the bounds.
        unsafe { copy_in(lines, self.in_lines(at, lines.len())) }
    }

    #[inline]
    fn write_bulk(&self, at: u64, bytes: &[u8]) {
        // SAFETY: `in_bulk` checks the bounds.
        unsafe { copy_in(bytes, self.in_bulk(at, bytes.len())) }
    }

    #[inline]
    fn read_line(&self, at: u64, into: &mut [u8; LINE]) {
        let from = self.line(at);
        // The first frame begins behind the preamble. Copied in pieces that begin with it, each
        // field can be loaded from one entry of the store buffer.
        let (preamble, frame) = into[HEADER_BYTES..].split_at_mut(8);
        // SAFETY: inside the line.
        unsafe { copy_out(from.add(HEADER_BYTES), preamble) }
        let (chunks, last) = frame.as_chunks_mut::<16>();
        for (index, chunk) in chunks.iter_mut().enumerate() {
            // SAFETY: as above.
            unsafe { copy_out(from.add(HEADER_BYTES + 8 + 16 * index), chunk) }
        }
        // SAFETY: as above.
        unsafe { copy_out(from.add(LINE - 4), last) }
    }

    #[inline]
    fn read_lines(&self, at: u64, into: &mut [u8]) {
        // SAFETY: `in_lines` checks the bounds.
        unsafe { copy_out(self.in_lines(at, into.len()), into) }
    }

    #[inline]
    fn read_bulk(&self, at: u64, into: &mut [u8]) {
        // SAFETY: `in_bulk` checks the bounds.
        unsafe { copy_out(self.in_bulk(at, into.len()), into) }
    }

    fn heap_bytes(&self) -> Option<u64> {
        self.heap.as_ref().map(|heap| heap.bytes())
    }

    fn read_heap(&self, at: u64, into: &mut [u8]) -> bool {
        let heap = self.heap.as_ref().expect("the caller knows its size");
        heap.read(at, into) && self.is_kept()
    }

    fn revoke(&self) {
        self.revocation().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn prefetch(&self, at: u64) {
        prefetch_lines(self.line(at), 1);
    }

    #[inline]
    fn prefetch_to_write(&self, at: u64, bytes: usize) {
        debug_assert!(bytes.is_multiple_of(LINE));
        #[cfg(target_arch = "x86_64")]
        for line in 0..bytes / LINE {
            // SAFETY: a prefetch is only a hint, the address is inside the mapping (`in_lines`
            // checks the bounds), and processors without the instruction execute a no-op.
            unsafe {
                std::arch::asm!(
                    "prefetchw [{}]",
                    in(reg) self.in_lines(at, bytes).add(line * LINE),
                    options(nostack, preserves_flags),
                );
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (at, bytes);
    }

    fn load_heads(&self) -> Heads {
        let word = |second| {
            let word = self.region.word(self.producer.index(), second);
            word.load(Ordering::Acquire)
        };
        Heads {
            line: word(false),
            bulk: word(true),
        }
    }

    #[inline]
    fn store_heads(&self, heads: Heads) {
        for (second, head) in [(false, heads.line), (true, heads.bulk)] {
            let word = self.region.word(self.producer.index(), second);
            word.store(head, Ordering::Release);
        }
    }
}

/// The sleep words of a connection in shared memory, as one side sees them.
#[derive(Clone)]
pub(crate) struct MappedSleepWords {
    region: Arc<Region>,
    /// The pairs of lines with the word of this side, and with that of its peer.
    own: usize,
    peer: usize,
}

impl MappedSleepWords {
    pub(crate) fn new(region: &Arc<Region>, side: Side) -> Self {
        Self {
            region: Arc::clone(region),
            own: 2 + side.index(),
            peer: 2 + side.other().index(),
        }
    }
}

impl SleepWords for MappedSleepWords {
    #[inline]
    fn load_peer(&self) -> u64 {
        self.region.word(self.peer, false).load(Ordering::Relaxed)
    }

    fn store_own(&self, word: u64) {
        let own = self.region.word(self.own, false);
        own.store(word, Ordering::Relaxed);
    }

    #[inline]
    fn light_fence(&self) {
        if self.region.asymmetric_fences.load(Ordering::Relaxed) {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
impl Region {
    /// Overwrites part of a line ring or of the control page, as a hostile peer could.
    pub(crate) fn scribble(&self, lines: Option<Side>, at: usize, bytes: &[u8]) {
        let (offset, room) = match lines {
            None => (0, rustix::param::page_size()),
            Some(side) => (self.lines_at(side), line_ring_bytes()),
        };
        assert!(at + bytes.len() <= room);
        // SAFETY: the assertion checks that the bytes are inside the part.
        unsafe { copy_in(bytes, self.base.as_ptr().add(offset + at)) }
    }

    /// The offset in the control page of the heads of the rings that `side` produces into.
    pub(crate) fn heads_offset(side: Side) -> usize {
        side.index() * WORD_SPACING
    }
}

#[cfg(test)]
mod tests;
