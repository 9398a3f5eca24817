//! The memory of a message heap: one memfd that its maker writes and its peers can only read.
//!
//! The maker maps the file for writing first. Then it seals it: against every change of its size, as
//! a connection's memory, and against new writable mappings and writes (`F_SEAL_FUTURE_WRITE`). A
//! peer that gets the file later can only map it for reading, whatever it does with it.
//!
//! The other direction proves nothing: a peer's own heap is memory that the peer can write at any
//! time. It is mapped for reading and only ever copied, as a ring is.
//!
//! *Pages that nobody has written.* The kernel makes such a page when it is first touched through a
//! mapping, and charges whoever touches it. A reader of a peer's heap must not be charged. So it reads
//! through the file: `pread` gives zeros for a page that is not there, and makes none. When it has read
//! a byte other than zero, it knows that the page is there. From then on it copies from the mapping,
//! which is faster. The page stays: `F_SEAL_FUTURE_WRITE` keeps the maker, too, from punching holes, so
//! a heap without this seal is refused. What is only zeros is read through the file each time.
//!
//! `pread` waits for nothing that a peer can hold: on tmpfs it takes neither the lock of the file's
//! position nor that of the inode. It takes the locks of pages, which the kernel holds while it swaps or
//! copies them, and never while it waits for a process. `lseek` with `SEEK_HOLE` would say at once what
//! is there, but takes both of the former. In kernels from before 2025, a peer that calls `write` holds
//! that of the inode for as long as the memory that it writes from takes to read. `mincore` says that all
//! is there of a file that another user owns and does not let this one write.

use std::mem::{self, MaybeUninit};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::{SEALS, check_foreign, copy_out_large};

/// The seals of a heap: its size is final, and its pages stay.
const HEAP_SEALS: SealFlags = SEALS.union(SealFlags::FUTURE_WRITE);

/// The unit of what a reader knows of a heap. A page of the kernel is one or several of them.
const BLOCK: usize = 4096;

/// A mapping of a whole file.
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping owns its memory and unmaps it on drop. `OwnHeap` and `ForeignHeap` say who may
// access it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: BorrowedFd<'_>, bytes: usize, access: ProtFlags) -> rustix::io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
        let base = unsafe {
            let flags = MapFlags::SHARED | MapFlags::NORESERVE;
            rustix::mm::mmap(ptr::null_mut(), bytes, access, flags, file, 0)?
        };
        let base = NonNull::new(base.cast()).expect("a mapping is not at address zero");
        Ok(Self { base, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's own, and whoever has a pointer into it also holds it.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A heap that this process has made: nobody else can write to it.
pub(crate) struct OwnHeap {
    mapping: Mapping,
    file: OwnedFd,
}

impl OwnHeap {
    /// Makes a heap. It takes memory as far as it is used.
    ///
    /// # Errors
    /// `EINVAL` from a kernel before 5.1, which cannot keep peers from writing.
    pub(crate) fn create(bytes: usize) -> rustix::io::Result<Self> {
        let file = rustix::fs::memfd_create(
            "starling-io-shm-heap",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        let mapping = Mapping::new(file.as_fd(), bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        rustix::fs::fcntl_add_seals(&file, HEAP_SEALS)?;
        Ok(Self { mapping, file })
    }

    /// The file for a peer, which can map it only for reading.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where these bytes begin in the heap, if they are all in it.
    pub(crate) fn offset_of(&self, bytes: &[u8]) -> Option<usize> {
        let begin = self.mapping.base.as_ptr() as usize;
        let at = (bytes.as_ptr() as usize).checked_sub(begin)?;
        (at.checked_add(bytes.len())? <= self.mapping.bytes).then_some(at)
    }

    /// Bytes of the heap.
    ///
    /// # Safety
    /// Nobody writes to them while the reference lives.
    pub(crate) unsafe fn slice(&self, at: usize, bytes: usize) -> &[u8] {
        self.check(at, bytes);
        // SAFETY: inside the mapping, which was zeroed by the kernel; the caller promises the rest.
        unsafe { std::slice::from_raw_parts(self.mapping.base.as_ptr().add(at), bytes) }
    }

    /// Bytes of the heap, to write.
    ///
    /// # Safety
    /// There is no other reference to them in this process while this one lives. A peer may read
    /// them, and copies what it finds.
    #[expect(
        clippy::mut_from_ref,
        reason = "the caller promises that there is no other"
    )]
    pub(crate) unsafe fn slice_mut(&self, at: usize, bytes: usize) -> &mut [u8] {
        self.check(at, bytes);
        // SAFETY: as in `slice`.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.base.as_ptr().add(at), bytes) }
    }

    fn check(&self, at: usize, bytes: usize) {
        let end = at.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.mapping.bytes));
    }
}

/// A heap that a peer has made and may write to at any time.
pub(crate) struct ForeignHeap {
    mapping: Mapping,
    file: OwnedFd,
    known: KnownBlocks,
}

impl ForeignHeap {
    /// Maps a peer's heap for reading, after checking that its size is as agreed and final, and that
    /// its pages stay. The file comes back with the error.
    pub(crate) fn map(file: OwnedFd, bytes: usize) -> Result<Self, (OwnedFd, Errno)> {
        let mapped = check_foreign(file.as_fd(), bytes as u64, HEAP_SEALS)
            .and_then(|()| Mapping::new(file.as_fd(), bytes, ProtFlags::READ));
        match mapped {
            Ok(mapping) => Ok(Self {
                mapping,
                file,
                known: KnownBlocks::none(bytes),
            }),
            Err(error) => Err((file, error)),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.mapping.bytes as u64
    }

    /// Copies bytes out of the heap. False if the kernel cannot read them: it has no memory for a page
    /// that was swapped out, or has lost one.
    ///
    /// # Panics
    /// If they are not all in it.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> bool {
        let into = ptr::from_mut(into) as *mut [MaybeUninit<u8>];
        // SAFETY: `copy` writes only bytes that have a value.
        self.copy(at, unsafe { &mut *into })
    }

    /// Copies bytes out of the heap to the end of a buffer. False as for `read`: nothing is appended.
    ///
    /// # Panics
    /// If they are not all in it.
    pub(crate) fn append(&self, at: u64, bytes: usize, buffer: &mut Vec<u8>) -> bool {
        self.check(at, bytes);
        buffer.reserve(bytes);
        let is_read = self.copy(at, &mut buffer.spare_capacity_mut()[..bytes]);
        if is_read {
            // SAFETY: all bytes up to the new length are written.
            unsafe { buffer.set_len(buffer.len() + bytes) }
        }
        is_read
    }

    /// Copies bytes out of the heap. True: all of `into` is written.
    fn copy(&self, at: u64, into: &mut [MaybeUninit<u8>]) -> bool {
        self.check(at, into.len());
        let are_known = self.known.contains(at as usize, into.len());
        if are_known {
            self.copy_from_mapping(at, into);
        }
        are_known || self.copy_in_parts(at, into)
    }

    fn copy_from_mapping(&self, at: u64, into: &mut [MaybeUninit<u8>]) {
        self.check(at, into.len());
        // SAFETY: inside the mapping, by the line above; the slice is private memory.
        unsafe {
            let from = self.mapping.base.as_ptr().add(at as usize);
            copy_out_large(from, into.as_mut_ptr().cast(), into.len());
        }
    }

    /// Copies known blocks from the mapping, and others through the file.
    #[cold]
    fn copy_in_parts(&self, mut at: u64, mut into: &mut [MaybeUninit<u8>]) -> bool {
        while !into.is_empty() {
            let (is_known, bytes) = self.known.run(at as usize, into.len());
            let (part, rest) = mem::take(&mut into).split_at_mut(bytes);
            if is_known {
                self.copy_from_mapping(at, part);
            } else if !self.copy_through_file(at, part) {
                return false;
            }
            at += bytes as u64;
            into = rest;
        }
        true
    }

    /// Copies bytes that may be in pages that are not there.
    fn copy_through_file(&self, mut at: u64, mut into: &mut [MaybeUninit<u8>]) -> bool {
        while !into.is_empty() {
            match rustix::io::pread(&self.file, into, at) {
                Ok((read, rest)) if !read.is_empty() => {
                    self.known.learn(at as usize, read);
                    at += read.len() as u64;
                    into = rest;
                }
                // The size is final, so this is not the end of the file.
                Ok(_) | Err(_) => return false,
            }
        }
        true
    }

    fn check(&self, at: u64, bytes: usize) {
        let end = at.checked_add(bytes as u64);
        assert!(end.is_some_and(|end| end <= self.bytes()));
    }
}

/// The blocks of a heap of which a reader knows that they are there: a bit for each.
///
/// A bit is only ever set, and says something about the file, not about what is in the block. So no
/// order with other memory is needed.
struct KnownBlocks(Box<[AtomicU64]>);

impl KnownBlocks {
    fn none(heap_bytes: usize) -> Self {
        let words = heap_bytes.div_ceil(BLOCK).div_ceil(u64::BITS as usize);
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    /// Whether the reader knows all blocks of a range.
    fn contains(&self, at: usize, bytes: usize) -> bool {
        let blocks = at / BLOCK..(at + bytes).div_ceil(BLOCK);
        let mut words = words_of(blocks);
        words.all(|(word, mask)| self.0[word].load(Ordering::Relaxed) & mask == mask)
    }

    /// Whether the reader knows the first block of a range, and how many bytes of the range are in
    /// that block and those behind it of which the same is true.
    fn run(&self, at: usize, bytes: usize) -> (bool, usize) {
        let is_known = |block: usize| self.contains(block * BLOCK, 1);
        let (first, end) = (at / BLOCK, at + bytes);
        let are_known = is_known(first);
        let mut others = first + 1..end.div_ceil(BLOCK);
        let other = others.find(|&block| is_known(block) != are_known);
        (are_known, other.map_or(end, |block| block * BLOCK) - at)
    }

    /// Learns from bytes that were read through the file.
    fn learn(&self, mut at: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min(BLOCK - at % BLOCK));
            let block = at / BLOCK;
            let (word, bit) = (&self.0[block / 64], 1 << (block % 64));
            if !is_zero(part) {
                word.fetch_or(bit, Ordering::Relaxed);
            }
            at += part.len();
            bytes = rest;
        }
    }
}

/// The words that have the bits of these blocks, each with a mask of the bits.
fn words_of(blocks: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let mut next = blocks.start;
    std::iter::from_fn(move || {
        let (word, bit) = (next / 64, next % 64);
        let count = blocks.end.saturating_sub(next).min(64 - bit);
        next += count;
        (count != 0).then(|| (word, u64::MAX >> (64 - count) << bit))
    })
}

/// In pieces, so that it ends early and yet looks at many bytes at a time.
fn is_zero(bytes: &[u8]) -> bool {
    let mut pieces = bytes.chunks(256);
    pieces.all(|piece| piece.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use rustix::fs::FallocateFlags;

    use super::*;

    /// Blocks for two words of bits.
    const BYTES: usize = 128 * BLOCK;

    fn map(own: &OwnHeap) -> ForeignHeap {
        let file = own.file().try_clone_to_owned().unwrap();
        ForeignHeap::map(file, BYTES).unwrap()
    }

    fn write(own: &OwnHeap, at: usize, bytes: &[u8]) {
        // SAFETY: there is no other reference.
        unsafe { own.slice_mut(at, bytes.len()) }.copy_from_slice(bytes);
    }

    /// Bytes of memory that the heap takes.
    fn taken(own: &OwnHeap) -> usize {
        rustix::fs::fstat(own.file()).unwrap().st_blocks as usize * 512
    }

    #[test]
    fn a_peer_reads_what_the_maker_writes_and_cannot_write() {
        let own = OwnHeap::create(BYTES).unwrap();
        let foreign = map(&own);
        write(&own, BYTES - 5, b"hello");
        let mut read = [0; 5];
        assert!(foreign.read((BYTES - 5) as u64, &mut read));
        assert_eq!(&read, b"hello");
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        let refused = Mapping::new(own.file(), BYTES, writable).err();
        assert_eq!(refused, Some(Errno::PERM));
        assert_eq!(rustix::io::pwrite(own.file(), b"x", 0), Err(Errno::PERM));
        let again = format!(
            "/proc/self/fd/{}",
            rustix::fd::AsRawFd::as_raw_fd(&own.file())
        );
        if let Ok(file) = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(again)
        {
            let refused = Mapping::new(file.as_fd(), BYTES, writable).err();
            assert_eq!(refused, Some(Errno::PERM));
        }
        // SAFETY: the mapping is the test's own.
        let protected = unsafe {
            let flags = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
            rustix::mm::mprotect(foreign.mapping.base.as_ptr().cast(), BYTES, flags)
        };
        assert_eq!(protected, Err(Errno::ACCESS));
    }

    #[test]
    fn files_that_could_fault_or_lose_pages_are_refused() {
        let made = |bytes: usize, seals| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = rustix::fs::memfd_create("test", flags).unwrap();
            rustix::fs::ftruncate(&file, bytes as u64).unwrap();
            rustix::fs::fcntl_add_seals(&file, seals).unwrap();
            ForeignHeap::map(file, BYTES)
                .map(|_| ())
                .map_err(|(_, error)| error)
        };
        assert_eq!(made(BYTES, HEAP_SEALS), Ok(()));
        assert_eq!(made(BYTES, SealFlags::empty()), Err(Errno::PERM));
        assert_eq!(made(BYTES, SEALS), Err(Errno::PERM));
        assert_eq!(made(BYTES, SealFlags::FUTURE_WRITE), Err(Errno::PERM));
        assert_eq!(made(BYTES - 1, HEAP_SEALS), Err(Errno::INVAL));
        assert_eq!(made(BYTES + 4096, HEAP_SEALS), Err(Errno::INVAL));
        assert_eq!(made(0, HEAP_SEALS), Err(Errno::INVAL));
    }

    #[test]
    fn its_maker_cannot_take_pages_out_of_a_heap() {
        let own = OwnHeap::create(BYTES).unwrap();
        write(&own, 0, &[1; BYTES]);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = rustix::fs::fallocate(own.file(), punch, 0, BYTES as u64);
        assert_eq!(punched, Err(Errno::PERM));
        // SAFETY: the mapping is the test's own, and nobody has a reference into it.
        let removed = unsafe {
            let advice = rustix::mm::Advice::LinuxRemove;
            rustix::mm::madvise(own.mapping.base.as_ptr().cast(), BYTES, advice)
        };
        assert_eq!(removed, Err(Errno::PERM));
        assert_eq!(taken(&own), BYTES);
    }

    #[test]
    fn a_reader_makes_no_pages() {
        let own = OwnHeap::create(BYTES).unwrap();
        let foreign = map(&own);
        let mut all = vec![1; BYTES];
        for _ in 0..2 {
            assert!(foreign.read(0, &mut all));
            assert!(all == vec![0; BYTES] && taken(&own) == 0);
        }
        // Pages that the maker has asked for and not written: the kernel may take them back.
        let keep = FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(own.file(), keep, 0, BYTES as u64 / 2).unwrap();
        assert!(foreign.read(0, &mut all));
        assert!(all == vec![0; BYTES] && taken(&own) == BYTES / 2);
        assert!(
            (0..BYTES)
                .step_by(BLOCK)
                .all(|at| !foreign.known.contains(at, 1))
        );
    }

    /// A block becomes known when a byte of it is read that is not zero, in whatever part of it.
    #[test]
    fn blocks_are_known_from_when_they_are_seen() {
        let own = OwnHeap::create(BYTES).unwrap();
        let foreign = map(&own);
        let knows =
            |blocks: [usize; 4]| blocks.map(|block| foreign.known.contains(block * BLOCK, 1));
        write(&own, 62 * BLOCK + 7, b"seen");
        let mut read = [0; BLOCK];
        assert!(foreign.read(62 * BLOCK as u64 + 11, &mut read));
        assert_eq!(
            knows([61, 62, 63, 64]),
            [false; 4],
            "no byte of it was seen"
        );
        assert!(foreign.read(62 * BLOCK as u64 + 10, &mut read));
        assert_eq!(
            (knows([61, 62, 63, 64]), read[0]),
            ([false, true, false, false], b'n')
        );
        // Later its neighbours are there as well.
        write(&own, 63 * BLOCK - 1, b"over the border");
        write(&own, 62 * BLOCK - 1, b"!");
        let mut three = [0; 3 * BLOCK];
        assert!(foreign.read(61 * BLOCK as u64, &mut three));
        assert_eq!(knows([61, 62, 63, 64]), [true, true, true, false]);
        assert_eq!(
            foreign.known.run(60 * BLOCK + 5, 7 * BLOCK),
            (false, BLOCK - 5)
        );
        assert_eq!(
            foreign.known.run(61 * BLOCK + 5, 7 * BLOCK),
            (true, 3 * BLOCK - 5)
        );
        assert_eq!(
            foreign.known.run(61 * BLOCK + 5, 2 * BLOCK),
            (true, 2 * BLOCK)
        );
        assert!(foreign.known.contains(61 * BLOCK, 3 * BLOCK));
        assert!(!foreign.known.contains(61 * BLOCK, 3 * BLOCK + 1));
        assert_eq!(three[2 * BLOCK - 1..][..15], *b"over the border");
        // What is known is read as it is now, also if it is zero.
        write(&own, 63 * BLOCK - 1, &[0; 15]);
        assert!(foreign.read(61 * BLOCK as u64, &mut three));
        assert_eq!(three[2 * BLOCK - 1..][..15], [0; 15]);
    }

    /// Ranges of blocks that are known, not known yet, and not there, in all their orders.
    #[test]
    fn ranges_are_read_as_they_are_whatever_is_known_of_them() {
        let own = OwnHeap::create(BYTES).unwrap();
        let foreign = map(&own);
        let mut model = vec![0; BYTES];
        let mut random = 1u64;
        let mut below = |bound: usize| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) as usize % bound
        };
        let mut written = 0;
        for round in 0..2000 {
            if round % 40 == 0 {
                let (at, byte) = (below(BYTES - 9000), round as u8 | 1);
                let bytes = vec![byte; below(9000)];
                write(&own, at, &bytes);
                model[at..at + bytes.len()].copy_from_slice(&bytes);
                written = taken(&own);
            }
            let at = below(BYTES);
            let bytes = below(BYTES - at + 1).min(below(70_000));
            let mut read = vec![9; bytes];
            assert!(foreign.read(at as u64, &mut read));
            assert!(read == model[at..at + bytes], "{at} {bytes}");
            let mut appended = vec![7];
            assert!(foreign.append(at as u64, bytes, &mut appended));
            assert!(appended[0] == 7 && appended[1..] == read, "{at} {bytes}");
            assert_eq!(taken(&own), written);
        }
        assert!(
            foreign
                .known
                .0
                .iter()
                .any(|word| word.load(Ordering::Relaxed) != 0)
        );
    }

    #[test]
    fn a_file_that_cannot_be_read_is_no_heap_of_zeros() {
        let own = OwnHeap::create(BYTES).unwrap();
        let mut foreign = map(&own);
        write(&own, 0, b"known");
        assert!(foreign.read(0, &mut [0; 5]));
        foreign.file = std::fs::File::open("/dev/null").unwrap().into();
        let mut buffer = vec![1];
        assert!(foreign.append(0, 5, &mut buffer));
        assert_eq!(buffer, b"\x01known");
        assert!(
            !foreign.append(0, BLOCK + 1, &mut buffer),
            "the known part is not all"
        );
        assert_eq!(buffer, b"\x01known");
        assert!(!foreign.read(BLOCK as u64, &mut [0; 5]));
    }

    #[test]
    fn offsets_of_other_memory_are_not_found() {
        let own = OwnHeap::create(BYTES).unwrap();
        let other = OwnHeap::create(BYTES).unwrap();
        // SAFETY: nobody writes.
        let (slice, end) = unsafe { (own.slice(10, 20), own.slice(BYTES - 1, 1)) };
        assert_eq!(own.offset_of(slice), Some(10));
        assert_eq!(own.offset_of(end), Some(BYTES - 1));
        assert_eq!(other.offset_of(slice), None);
        assert_eq!(own.offset_of(&[0; 10]), None);
    }

    #[test]
    #[should_panic(expected = "end <= self.bytes()")]
    fn reading_past_the_end_panics() {
        let own = OwnHeap::create(BYTES).unwrap();
        map(&own).read(u64::MAX, &mut [0; 2]);
    }
}
