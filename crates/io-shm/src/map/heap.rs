//! The memory of a message heap: one memfd that its maker writes and its peers can only read.
//!
//! The maker maps the file for writing first. Then it seals it: against every change of its size, as
//! a connection's memory, and against new writable mappings and writes (`F_SEAL_FUTURE_WRITE`). A
//! peer that gets the file later can only map it for reading, whatever it does with it.
//!
//! The other direction proves nothing: a peer's own heap is memory that the peer can write at any
//! time. It is mapped for reading and only ever copied, as a ring is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::{SEALS, check_foreign, copy_out_large};

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
        rustix::fs::fcntl_add_seals(&file, SEALS.union(SealFlags::FUTURE_WRITE))?;
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
pub(crate) struct ForeignHeap(Mapping);

impl ForeignHeap {
    /// Maps a peer's heap for reading, after checking that its size is as agreed and final.
    pub(crate) fn map(file: BorrowedFd<'_>, bytes: usize) -> rustix::io::Result<Self> {
        check_foreign(file, bytes as u64)?;
        Mapping::new(file, bytes, ProtFlags::READ).map(Self)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes as u64
    }

    /// Copies bytes out of the heap.
    ///
    /// # Panics
    /// If they are not all in it.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) {
        self.check(at, into.len());
        // SAFETY: inside the mapping, by the line above; the slice is private memory.
        unsafe {
            let from = self.0.base.as_ptr().add(at as usize);
            copy_out_large(from, into.as_mut_ptr(), into.len());
        }
    }

    /// Copies bytes out of the heap to the end of a buffer.
    ///
    /// # Panics
    /// If they are not all in it.
    pub(crate) fn append(&self, at: u64, bytes: usize, buffer: &mut Vec<u8>) {
        self.check(at, bytes);
        buffer.reserve(bytes);
        // SAFETY: the source is inside the mapping, the buffer has room behind its end, and all bytes up to
        // its new length are written before it gets that length.
        unsafe {
            let end = buffer.as_mut_ptr().add(buffer.len());
            let from = self.0.base.as_ptr().add(at as usize);
            copy_out_large(from, end, bytes);
            buffer.set_len(buffer.len() + bytes);
        }
    }

    fn check(&self, at: u64, bytes: usize) {
        let end = at.checked_add(bytes as u64);
        assert!(end.is_some_and(|end| end <= self.bytes()));
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    const BYTES: usize = 256 << 10;

    #[test]
    fn a_peer_reads_what_the_maker_writes_and_cannot_write() {
        let own = OwnHeap::create(BYTES).unwrap();
        let foreign = ForeignHeap::map(own.file(), BYTES).unwrap();
        // SAFETY: there is no other reference.
        unsafe { own.slice_mut(BYTES - 5, 5) }.copy_from_slice(b"hello");
        let mut read = [0; 5];
        foreign.read((BYTES - 5) as u64, &mut read);
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
            rustix::mm::mprotect(foreign.0.base.as_ptr().cast(), BYTES, flags)
        };
        assert_eq!(protected, Err(Errno::ACCESS));
    }

    #[test]
    fn files_that_could_fault_are_refused() {
        let made = |bytes: usize, seals| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = rustix::fs::memfd_create("test", flags).unwrap();
            rustix::fs::ftruncate(&file, bytes as u64).unwrap();
            rustix::fs::fcntl_add_seals(&file, seals).unwrap();
            ForeignHeap::map(file.as_fd(), BYTES).map(|_| ())
        };
        assert_eq!(made(BYTES, SEALS), Ok(()));
        assert_eq!(made(BYTES, SealFlags::empty()), Err(Errno::PERM));
        assert_eq!(made(BYTES - 1, SEALS), Err(Errno::INVAL));
        assert_eq!(made(BYTES + 4096, SEALS), Err(Errno::INVAL));
        assert_eq!(made(0, SEALS), Err(Errno::INVAL));
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
        let foreign = ForeignHeap::map(own.file(), BYTES).unwrap();
        foreign.read(u64::MAX, &mut [0; 2]);
    }
}
