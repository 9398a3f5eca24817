//! The shared memory: one memfd, mapped so that each ring lies twice in a row.
//!
//! ```text
//!  file:     │ control page │ ring 0  │ ring 1  │
//!  mapping:  │ control page │ ring 0  │ ring 0  │ ring 1  │ ring 1  │
//! ```
//!
//! Ring 0 goes from the side that connected to the side that accepted, ring 1 back. The control
//! page has four words, each in a pair of lines of its own, because processors fetch lines in
//! pairs: a word that one core writes must not drag along one that the other core reads.
//!
//! ```text
//!  byte 0: head of ring 0    written by the accepting side
//!     128: head of ring 1    written by the connecting side
//!     256: sleep word        of the connecting side
//!     384: sleep word        of the accepting side
//! ```
//!
//! The file is sealed against every change of its size, and checked to be in ordinary memory, so
//! that no access to the mapping can fault ([`Region::map_foreign`]). Why concurrent writes by the
//! other process do no harm is told at the head of [`ring`](crate::ring).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence, fence};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::ring::{LINE, RingMemory};
use crate::sleep::SleepWords;

/// The distance of the words of the control page.
const WORD_SPACING: usize = 128;

/// The seals that make a file's size final.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// `f_type` of a file in ordinary, swappable memory. A file of huge pages has another one: its
/// pages may run out, and touching it would then kill us.
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
    ring_bytes: usize,
    /// Both processes have `membarrier`: senders need no fence.
    asymmetric_fences: AtomicBool,
}

// SAFETY: the region is owned memory that is unmapped on drop; every access goes through atomics
// or raw copies by the one producer and one consumer of this process.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Makes new memory for a connection, all zeros, with its file to hand to the peer.
    pub(crate) fn create(ring_bytes: usize) -> rustix::io::Result<(Self, OwnedFd)> {
        let file = rustix::fs::memfd_create(
            "starling-io-shm",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        rustix::fs::ftruncate(&file, file_bytes(ring_bytes))?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        let region = Self::map(file.as_fd(), ring_bytes)?;
        Ok((region, file))
    }

    /// Maps memory that a peer made, after making sure that its size is as agreed and final.
    pub(crate) fn map_foreign(file: BorrowedFd<'_>, ring_bytes: usize) -> rustix::io::Result<Self> {
        if !rustix::fs::fcntl_get_seals(file)?.contains(SEALS) {
            return Err(Errno::PERM);
        }
        if rustix::fs::fstatfs(file)?.f_type as u64 != TMPFS_MAGIC {
            return Err(Errno::NOTSUP);
        }
        // Read after the seals: from then on it cannot change.
        if rustix::fs::fstat(file)?.st_size as u64 != file_bytes(ring_bytes) {
            return Err(Errno::INVAL);
        }
        Self::map(file, ring_bytes)
    }

    fn map(file: BorrowedFd<'_>, ring_bytes: usize) -> rustix::io::Result<Self> {
        let page = rustix::param::page_size();
        let mapped_bytes = page + 4 * ring_bytes;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
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
            ring_bytes,
            asymmetric_fences: AtomicBool::new(false),
        };
        let parts = [
            (0, page, 0),
            (page, ring_bytes, page),
            (page + ring_bytes, ring_bytes, page),
            (page + 2 * ring_bytes, ring_bytes, page + ring_bytes),
            (page + 3 * ring_bytes, ring_bytes, page + ring_bytes),
        ];
        for (at, bytes, file_offset) in parts {
            // SAFETY: the range lies inside the reservation made above, which nothing else uses.
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
        }
        Ok(region)
    }

    /// Size of each ring.
    pub(crate) fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    /// Notes that both processes have `membarrier`.
    pub(crate) fn use_asymmetric_fences(&self) {
        self.asymmetric_fences.store(true, Ordering::Relaxed);
    }

    /// A word of the control page.
    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < 4);
        // SAFETY: the control page holds four such words, aligned, mapped as long as `self` is;
        // every access to them, in both processes, is atomic.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(index * WORD_SPACING).cast::<u64>()) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range is this region's own mapping, and whoever holds pointers into it holds
        // the region too.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Bytes of the file of a connection.
fn file_bytes(ring_bytes: usize) -> u64 {
    (rustix::param::page_size() + 2 * ring_bytes) as u64
}

/// One of the two rings of a region.
#[derive(Clone)]
pub(crate) struct Ring {
    data: *mut u8,
    mask: u64,
    head_index: usize,
    region: Arc<Region>,
}

// SAFETY: `data` points into the region, which the ring keeps mapped and which may move between
// threads.
unsafe impl Send for Ring {}

impl Ring {
    /// The ring that `side` produces into.
    pub(crate) fn produced_by(region: &Arc<Region>, side: Side) -> Self {
        let offset = rustix::param::page_size() + 2 * side.index() * region.ring_bytes;
        Self {
            // SAFETY: both rings lie inside the mapping.
            data: unsafe { region.base.as_ptr().add(offset) },
            mask: region.ring_bytes as u64 - 1,
            head_index: side.index(),
            region: Arc::clone(region),
        }
    }

    /// The ring that `side` consumes.
    pub(crate) fn consumed_by(region: &Arc<Region>, side: Side) -> Self {
        Self::produced_by(region, side.other())
    }

    /// The address of `bytes` bytes at a position, all inside the double mapping.
    #[inline]
    fn address(&self, at: u64, bytes: usize) -> *mut u8 {
        assert!(bytes as u64 <= self.mask + 1);
        // SAFETY: the offset is below the ring's size and `bytes` at most that: their sum is
        // inside the two copies.
        unsafe { self.data.add((at & self.mask) as usize) }
    }

    #[inline]
    fn header(&self, at: u64) -> &AtomicU32 {
        debug_assert!(at.is_multiple_of(LINE as u64));
        // SAFETY: in bounds by `address`; a line's beginning is aligned; this process and an
        // honest peer access header words of unpublished lines with atomics only, but for the
        // copy of zeros over zeros in `write_lines`, by the only thread that writes there.
        unsafe { AtomicU32::from_ptr(self.address(at, 4).cast()) }
    }
}

impl RingMemory for Ring {
    #[inline]
    fn ring_bytes(&self) -> u64 {
        self.mask + 1
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
    fn write_lines(&self, at: u64, lines: &[u8]) {
        self.write(at, lines);
    }

    #[inline]
    fn write(&self, at: u64, bytes: &[u8]) {
        // SAFETY: `address` checks the bounds; a private slice cannot overlap the mapping.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.address(at, bytes.len()), bytes.len());
        }
    }

    #[inline]
    fn read_line(&self, at: u64, into: &mut [u8; LINE]) {
        self.read(at, into);
    }

    #[inline]
    fn read(&self, at: u64, into: &mut [u8]) {
        // SAFETY: `address` checks the bounds; a private slice cannot overlap the mapping.
        unsafe {
            ptr::copy_nonoverlapping(self.address(at, into.len()), into.as_mut_ptr(), into.len());
        }
        // The compiler must not read the ring again instead of the copy.
        compiler_fence(Ordering::SeqCst);
    }

    #[inline]
    fn prefetch(&self, at: u64) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch is only a hint, and the address is inside the mapping.
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.address(at, LINE).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    #[inline]
    fn load_head(&self) -> u64 {
        self.region.word(self.head_index).load(Ordering::Acquire)
    }

    #[inline]
    fn store_head(&self, head: u64) {
        self.region
            .word(self.head_index)
            .store(head, Ordering::Release);
    }
}

/// The sleep words of a connection, as one side sees them.
#[derive(Clone)]
pub(crate) struct Words {
    region: Arc<Region>,
    side: Side,
}

impl Words {
    pub(crate) fn new(region: &Arc<Region>, side: Side) -> Self {
        Self {
            region: Arc::clone(region),
            side,
        }
    }
}

impl SleepWords for Words {
    #[inline]
    fn load_peer(&self) -> u64 {
        self.region
            .word(2 + self.side.other().index())
            .load(Ordering::Relaxed)
    }

    fn store_own(&self, word: u64) {
        self.region
            .word(2 + self.side.index())
            .store(word, Ordering::Relaxed);
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
    /// Overwrites part of a ring or of the control page, as a hostile peer could.
    pub(crate) fn scribble(&self, ring: Option<Side>, at: usize, bytes: &[u8]) {
        let page = rustix::param::page_size();
        let (offset, room) = match ring {
            None => (0, page),
            Some(side) => (page + 2 * side.index() * self.ring_bytes, self.ring_bytes),
        };
        assert!(at + bytes.len() <= room);
        // SAFETY: inside the part, by the assertion; a private slice cannot overlap the mapping.
        unsafe {
            let to = self.base.as_ptr().add(offset + at);
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// Where in the control page the head of the ring that `side` produces into is.
    pub(crate) fn head_offset(side: Side) -> usize {
        side.index() * WORD_SPACING
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: usize = 64 << 10;

    #[test]
    fn a_write_over_the_end_continues_at_the_beginning() {
        let (region, file) = Region::create(RING).unwrap();
        let ours = Ring::produced_by(&Arc::new(region), Side::Connector);
        let theirs = Arc::new(Region::map_foreign(file.as_fd(), RING).unwrap());
        let theirs = Ring::consumed_by(&theirs, Side::Acceptor);
        let at = 3 * RING as u64 - 5;
        ours.write(at, b"over the end");
        let mut read = [0; 12];
        theirs.read(at, &mut read);
        assert_eq!(&read, b"over the end");
        let mut read = [0; 7];
        theirs.read(5 * RING as u64, &mut read);
        assert_eq!(&read, b"the end");
    }

    #[test]
    fn the_rings_and_words_are_apart() {
        let region = Arc::new(Region::create(RING).unwrap().0);
        let out = Ring::produced_by(&region, Side::Acceptor);
        out.write(0, &[0xff; RING]);
        let back = Ring::consumed_by(&region, Side::Acceptor);
        let mut read = [1; 64];
        back.read(0, &mut read);
        assert_eq!(read, [0; 64]);
        assert_eq!(out.load_head(), 0);
        out.store_head(64);
        assert_eq!((out.load_head(), back.load_head()), (64, 0));
        let (a, b) = (
            Words::new(&region, Side::Connector),
            Words::new(&region, Side::Acceptor),
        );
        a.store_own(5);
        assert_eq!((a.load_peer(), b.load_peer()), (0, 5));
    }

    #[test]
    fn files_that_could_fault_are_refused() {
        let made = |flags, bytes, seals| {
            let file = rustix::fs::memfd_create("test", flags).unwrap();
            rustix::fs::ftruncate(&file, bytes).unwrap();
            rustix::fs::fcntl_add_seals(&file, seals).unwrap();
            Region::map_foreign(file.as_fd(), RING).map(|_| ())
        };
        let sealable = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let right = file_bytes(RING);
        assert_eq!(made(sealable, right, SEALS), Ok(()));
        assert_eq!(made(sealable, right, SealFlags::empty()), Err(Errno::PERM));
        for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
            let result = made(sealable, right, SEALS.difference(missing));
            assert_eq!(result, Err(Errno::PERM));
        }
        assert_eq!(made(sealable, right - 1, SEALS), Err(Errno::INVAL));
        assert_eq!(made(sealable, 0, SEALS), Err(Errno::INVAL));
        assert_eq!(made(sealable, right + 4096, SEALS), Err(Errno::INVAL));
        // Read-only for everybody: it cannot be mapped for writing.
        let read_only = SEALS.union(SealFlags::WRITE);
        assert_eq!(made(sealable, right, read_only), Err(Errno::PERM));
        let no_memory = std::fs::File::open("/dev/zero").unwrap();
        assert!(Region::map_foreign(no_memory.as_fd(), RING).is_err());
    }
}
