//! The four rings that a socket shares with the kernel (Documentation/networking/af_xdp.rst).
//!
//! ```text
//!            producer index ─▶             a ring has a power of two of entries; both indices
//!   ┌───┬───┬───┬───┬───┬───┬───┬───┐      count on without end and are taken modulo the size
//!   │   │   │ x │ x │ x │   │   │   │
//!   └───┴───┴───┴───┴───┴───┴───┴───┘      fill, tx:          we produce, the kernel consumes
//!            ▲ consumer index              rx, completion:    the kernel produces, we consume
//! ```
//!
//! Each side writes its own index with release order after it has written or read the entries, and
//! reads the other's with acquire order before it touches entries. A count from the kernel's index
//! is limited to the size of the ring, so no mistake there leads out of it.

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// An entry of a ring: a chunk address or a descriptor.
///
/// # Safety
/// Any bytes must be a value: the kernel writes them.
pub(crate) unsafe trait Entry: Copy {}

// SAFETY: any eight bytes are a number.
unsafe impl Entry for u64 {}

/// `struct xdp_desc`: a part of the packet memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Descriptor {
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) options: u32,
}

// SAFETY: any sixteen bytes are three numbers.
unsafe impl Entry for Descriptor {}

/// The packet goes on in the next descriptor.
pub(crate) const CONTINUED: u32 = libc::XDP_PKT_CONTD;

/// Memory shared with the kernel.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to no thread; its users agree on who may touch what.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd` at `offset`.
    pub(crate) fn of_file(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        protection: ProtFlags,
    ) -> io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses; no one refers to it yet.
        let start = unsafe { mmap(std::ptr::null_mut(), len, protection, flags, fd, offset) }?;
        Ok(Self::new(start.cast(), len))
    }

    /// Takes over a mapping.
    pub(crate) fn new(start: *mut u8, len: usize) -> Self {
        let start = NonNull::new(start).expect("mappings are not at zero");
        Self { start, len }
    }

    /// The address of `offset`, from which on `size` bytes are inside the mapping.
    ///
    /// # Panics
    /// If they are not inside.
    #[inline]
    pub(crate) fn at(&self, offset: usize, size: usize) -> *mut u8 {
        let inside = offset.checked_add(size).is_some_and(|end| end <= self.len);
        assert!(inside, "{size} bytes at {offset} of {}", self.len);
        // SAFETY: within the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: all users of the memory hold the mapping.
        let result = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok(), "it was mapped like this");
    }
}

/// Where the parts of a ring lie in its mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) producer: usize,
    pub(crate) consumer: usize,
    pub(crate) flags: usize,
    pub(crate) entries: usize,
}

/// The parts that all rings have.
struct Ring<E> {
    mapping: Mapping,
    layout: Layout,
    size: u32,
    entries: PhantomData<E>,
}

impl<E: Entry> Ring<E> {
    fn new(mapping: Mapping, layout: Layout, size: u32) -> Self {
        assert!(size.is_power_of_two());
        let ring = Self {
            mapping,
            layout,
            size,
            entries: PhantomData,
        };
        for word in [layout.producer, layout.consumer, layout.flags] {
            assert!(ring.mapping.at(word, 4).cast::<AtomicU32>().is_aligned());
        }
        let entries = ring
            .mapping
            .at(layout.entries, size as usize * size_of::<E>());
        assert!(entries.cast::<E>().is_aligned());
        ring
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: within the mapping and aligned, as `new` checked; both sides use it as an atomic.
        unsafe { &*self.mapping.start.as_ptr().add(offset).cast::<AtomicU32>() }
    }

    #[inline]
    fn entry(&self, index: u32) -> *mut E {
        let index = (index & (self.size - 1)) as usize;
        // SAFETY: within the mapping, as `new` checked for all entries.
        unsafe {
            let entries = self.mapping.start.as_ptr().add(self.layout.entries);
            entries.cast::<E>().add(index)
        }
    }
}

/// Our end of a ring whose entries we write.
pub(crate) struct Producer<E> {
    ring: Ring<E>,
    /// After the last entry written, which the kernel may not see yet.
    next: u32,
    /// The kernel's consumer index at the last look.
    consumed: u32,
}

impl<E: Entry> Producer<E> {
    pub(crate) fn new(mapping: Mapping, layout: Layout, size: u32) -> Self {
        let ring = Ring::new(mapping, layout, size);
        let next = ring.word(layout.producer).load(Ordering::Relaxed);
        let consumed = ring.word(layout.consumer).load(Ordering::Acquire);
        Self {
            ring,
            next,
            consumed,
        }
    }

    /// Entries that can be written.
    #[inline]
    pub(crate) fn room(&mut self, wanted: u32) -> u32 {
        let room = self.ring.size - self.next.wrapping_sub(self.consumed).min(self.ring.size);
        if room >= wanted {
            return room;
        }
        self.consumed = self
            .ring
            .word(self.ring.layout.consumer)
            .load(Ordering::Acquire);
        self.ring.size - self.next.wrapping_sub(self.consumed).min(self.ring.size)
    }

    /// Writes an entry, which the kernel sees after the next [`Producer::publish`].
    ///
    /// # Panics
    /// If there is no room.
    #[inline]
    pub(crate) fn push(&mut self, entry: E) {
        assert!(self.room(1) > 0, "the caller checked for room");
        // SAFETY: the kernel has consumed the entry, so it is ours until it is published.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
    }

    /// Shows the kernel the written entries.
    #[inline]
    pub(crate) fn publish(&self) {
        let producer = self.ring.word(self.ring.layout.producer);
        producer.store(self.next, Ordering::Release);
    }

    /// Whether the kernel has taken everything that was published.
    #[inline]
    pub(crate) fn is_consumed(&self) -> bool {
        self.waiting() == 0
    }

    /// How many published entries the kernel has not taken.
    #[inline]
    pub(crate) fn waiting(&self) -> u32 {
        let consumer = self.ring.word(self.ring.layout.consumer);
        self.next.wrapping_sub(consumer.load(Ordering::Acquire))
    }

    /// How many entries were written since the ring was made. The count wraps.
    pub(crate) fn written(&self) -> u32 {
        self.next
    }

    /// Whether the kernel takes entries only after a system call.
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        let flags = self.ring.word(self.ring.layout.flags);
        flags.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// Our end of a ring whose entries the kernel writes.
pub(crate) struct Consumer<E> {
    ring: Ring<E>,
    next: u32,
    produced: u32,
}

impl<E: Entry> Consumer<E> {
    pub(crate) fn new(mapping: Mapping, layout: Layout, size: u32) -> Self {
        let ring = Ring::new(mapping, layout, size);
        let next = ring.word(layout.consumer).load(Ordering::Relaxed);
        Self {
            ring,
            next,
            produced: next,
        }
    }

    /// How many entries are available.
    #[inline]
    pub(crate) fn available(&mut self) -> u32 {
        self.produced = self
            .ring
            .word(self.ring.layout.producer)
            .load(Ordering::Acquire);
        self.produced.wrapping_sub(self.next).min(self.ring.size)
    }

    /// How many entries were given back since the ring was made. The count wraps.
    pub(crate) fn released(&self) -> u32 {
        self.next
    }

    /// Entry `index` of the available ones.
    ///
    /// # Panics
    /// If it is not available.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> E {
        let there = self.produced.wrapping_sub(self.next).min(self.ring.size);
        assert!(index < there, "entry {index} of {there}");
        // SAFETY: the kernel published the entry and does not touch it until it is released.
        unsafe { self.ring.entry(self.next.wrapping_add(index)).read() }
    }

    /// Gives the kernel the first `count` entries again.
    #[inline]
    pub(crate) fn release(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
        let consumer = self.ring.word(self.ring.layout.consumer);
        consumer.store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::{AsFd, OwnedFd};

    const LAYOUT: Layout = Layout {
        producer: 0,
        consumer: 64,
        flags: 128,
        entries: 192,
    };
    const SIZE: u32 = 4;

    fn memory() -> OwnedFd {
        let fd = memfd_create("ring", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&fd, 4096).expect("room");
        fd
    }

    fn map(fd: &OwnedFd) -> Mapping {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        Mapping::of_file(fd.as_fd(), 0, 4096, protection).expect("a mapping")
    }

    #[test]
    fn published_entries_arrive_in_order_over_many_rounds() {
        let fd = memory();
        let mut producer = Producer::<u64>::new(map(&fd), LAYOUT, SIZE);
        let mut consumer = Consumer::<u64>::new(map(&fd), LAYOUT, SIZE);
        for round in 0..10 {
            for entry in 0..3 {
                producer.push(round * 3 + entry);
                assert_eq!(consumer.available(), 0, "not published yet");
            }
            producer.publish();
            assert!(!producer.is_consumed());
            assert_eq!(consumer.available(), 3);
            let seen: Vec<_> = (0..3).map(|index| consumer.get(index)).collect();
            assert_eq!(seen, [round * 3, round * 3 + 1, round * 3 + 2]);
            consumer.release(3);
            assert!(producer.is_consumed());
        }
        assert_eq!(producer.room(SIZE), SIZE);
    }

    #[test]
    fn an_impossible_index_does_not_lead_out_of_the_ring() {
        let fd = memory();
        let mapping = map(&fd);
        // SAFETY: within the mapping, aligned.
        let word = |offset| unsafe { &*mapping.at(offset, 4).cast::<AtomicU32>() };
        let mut consumer = Consumer::<u64>::new(map(&fd), LAYOUT, SIZE);
        word(LAYOUT.producer).store(1000, Ordering::Release);
        assert_eq!(consumer.available(), SIZE);
        let _ = consumer.get(SIZE - 1);
        word(LAYOUT.producer).store(0, Ordering::Release);
        word(LAYOUT.consumer).store(1000, Ordering::Release);
        let mut producer = Producer::<u64>::new(map(&fd), LAYOUT, SIZE);
        assert_eq!(producer.room(SIZE), 0);
    }

    #[test]
    #[should_panic(expected = "checked for room")]
    fn a_full_ring_takes_nothing() {
        let mut producer = Producer::<u64>::new(map(&memory()), LAYOUT, SIZE);
        for entry in 0..5 {
            producer.push(entry);
        }
    }
}
