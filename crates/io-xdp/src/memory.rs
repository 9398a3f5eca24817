//! Messages in packet memory, which are sent from where they were made.
//!
//! ```text
//!   free ─▶ made ─▶ referred to (`Bytes`) ─▶ last reference gone ─▶ free
//!                         │                        ▲
//!                         └─ sent: each chunk counts its descriptors at the kernel ─ all back ─▶
//! ```
//!
//! No one writes to a message once it is made. Its memory is used for another message only when the
//! last reference is gone and the kernel has returned all its descriptors. So the bytes on the wire
//! are the bytes that were sent. eRPC (NSDI'19, section 4.2.2) keeps the same rule by waiting for
//! its transmission queue to empty.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use range_alloc::RangeAllocator;
use starling_io::PacketMemory;

use crate::umem::Umem;

/// The part of a device's packet memory for messages. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Messages(Arc<Inner>);

struct Inner {
    umem: Arc<Umem>,
    /// For each chunk: its descriptors that the kernel has not returned. Only the device's sending
    /// half writes here.
    out: Box<[AtomicU32]>,
    /// For each chunk: whether it is part of a message that is made, so that no one writes to it.
    made: Box<[AtomicBool]>,
    ranges: Mutex<Ranges>,
}

/// Chunks, counted from where messages begin.
struct Ranges {
    free: RangeAllocator<u32>,
    /// Only the kernel still refers to these.
    returning: Vec<Range<u32>>,
}

impl Messages {
    pub(crate) fn new(umem: Arc<Umem>) -> Self {
        let chunks = umem.layout.message_chunks as u32;
        Self(Arc::new(Inner {
            umem,
            out: (0..chunks).map(|_| AtomicU32::new(0)).collect(),
            made: (0..chunks).map(|_| AtomicBool::new(false)).collect(),
            ranges: Mutex::new(Ranges {
                free: RangeAllocator::new(0..chunks),
                returning: Vec::new(),
            }),
        }))
    }

    /// The address of these bytes in the packet memory, if they are part of a message made there.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<usize> {
        let layout = &self.0.umem.layout;
        let at = (bytes.as_ptr() as u64).checked_sub(self.0.umem.start())? as usize;
        let end = at.checked_add(bytes.len())?;
        let first = layout.chunk_at(at.checked_sub(layout.message_start())?);
        // While `fill` writes a message, it may go on writing to what it sends.
        let is_made = self.0.made.get(first)?.load(Ordering::Acquire);
        (is_made && end <= layout.bytes()).then_some(at)
    }

    /// The device will describe these bytes to the kernel, with a descriptor for each chunk. Only
    /// for its sending half, as is `take_back`.
    pub(crate) fn lend(&self, at: usize, len: usize) -> u32 {
        let layout = &self.0.umem.layout;
        let first = layout.chunk_at(at - layout.message_start());
        let last = layout.chunk_at(at - layout.message_start() + len - 1);
        for out in &self.0.out[first..=last] {
            // A store is enough for the only writer.
            out.store(out.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        (last - first) as u32 + 1
    }

    /// The kernel returned the descriptor with this address. False if it had none.
    pub(crate) fn take_back(&self, address: usize) -> bool {
        let layout = &self.0.umem.layout;
        let chunk = address.checked_sub(layout.message_start());
        let Some(out) = chunk.and_then(|at| self.0.out.get(layout.chunk_at(at))) else {
            return false;
        };
        let count = out.load(Ordering::Relaxed);
        if count > 0 {
            // A thread that finds none out may write to the chunk.
            out.store(count - 1, Ordering::Release);
        }
        count > 0
    }

    /// Takes back the descriptors that [`Messages::lend`] counted, and that the kernel will not
    /// get.
    pub(crate) fn take_all_back(&self, at: usize, chunks: u32) {
        let chunk = self.0.umem.layout.chunk;
        for index in 0..chunks as usize {
            let was_out = self.take_back(at + index * chunk);
            debug_assert!(was_out, "it was lent");
        }
    }

    /// The descriptors at the kernel, of all chunks together.
    pub(crate) fn out(&self) -> u32 {
        let counts = self.0.out.iter();
        counts.map(|out| out.load(Ordering::Relaxed)).sum()
    }

    fn ranges(&self) -> MutexGuard<'_, Ranges> {
        let ranges = self.0.ranges.lock();
        ranges.unwrap_or_else(PoisonError::into_inner)
    }

    fn is_out(&self, range: &Range<u32>) -> bool {
        let mut chunks = self.0.out[range.start as usize..range.end as usize].iter();
        chunks.any(|out| out.load(Ordering::Acquire) > 0)
    }

    fn take(&self, chunks: u32) -> Option<Range<u32>> {
        let mut ranges = self.ranges();
        let Ranges { free, returning } = &mut *ranges;
        returning.retain(|range| {
            let is_out = self.is_out(range);
            if !is_out {
                free.free_range(range.clone());
            }
            is_out
        });
        free.allocate_range(chunks).ok()
    }
}

impl PacketMemory for Messages {
    fn make(&self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Option<Bytes> {
        let layout = &self.0.umem.layout;
        if len == 0 || len > layout.chunk * layout.message_chunks {
            return None;
        }
        let message = Message {
            chunks: self.take(len.div_ceil(layout.chunk) as u32)?,
            memory: self.clone(),
            len,
        };
        // SAFETY: no one else has the range, the kernel has given all of it back, and there is no
        // other reference yet.
        fill(unsafe { self.0.umem.bytes_mut(message.at(), len) });
        message.set_made(true);
        Some(Bytes::from_owner(message))
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").finish_non_exhaustive()
    }
}

/// One message, or a part of one.
struct Message {
    memory: Messages,
    chunks: Range<u32>,
    len: usize,
}

impl Message {
    fn at(&self) -> usize {
        let layout = &self.memory.0.umem.layout;
        layout.message_start() + self.chunks.start as usize * layout.chunk
    }

    fn set_made(&self, is_made: bool) {
        let chunks = self.chunks.start as usize..self.chunks.end as usize;
        for made in &self.memory.0.made[chunks] {
            made.store(is_made, Ordering::Release);
        }
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the range is this message's until it is dropped, and no one writes to it any
        // more.
        unsafe { self.memory.0.umem.bytes(self.at(), self.len) }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        self.set_made(false);
        let chunks = self.chunks.clone();
        let mut ranges = self.memory.ranges();
        match self.memory.is_out(&chunks) {
            true => ranges.returning.push(chunks),
            false => ranges.free.free_range(chunks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::umem::UmemLayout;

    /// Room for four chunks of 2048 bytes.
    fn memory() -> Messages {
        let layout = UmemLayout::new(1514, 64, 64).with_messages(4 * 2048);
        Messages::new(Arc::new(Umem::new(layout).expect("some memory")))
    }

    fn make(memory: &Messages, len: usize, byte: u8) -> Option<Bytes> {
        memory.make(len, &mut |room| room.fill(byte))
    }

    #[test]
    fn memory_is_reused_when_the_last_reference_is_gone() {
        let memory = memory();
        let whole = make(&memory, 4 * 2048, 1).expect("room for all");
        assert!(make(&memory, 1, 2).is_none(), "there is no more");
        let part = whole.slice(5000..5001);
        drop(whole);
        assert!(make(&memory, 1, 2).is_none(), "a part is referred to");
        assert_eq!(part[..], [1]);
        drop(part);
        let few: Vec<Bytes> = (0..4).map_while(|n| make(&memory, 2048, n)).collect();
        assert_eq!(few.len(), 4);
        for (n, bytes) in few.iter().enumerate() {
            assert!(bytes.iter().all(|byte| usize::from(*byte) == n));
        }
        assert!(make(&memory, 4 * 2048 + 1, 0).is_none(), "more than all");
        assert!(make(&memory, 0, 0).is_none(), "nothing");
    }

    #[test]
    fn memory_is_not_reused_while_the_kernel_reads_it() {
        let memory = memory();
        let message = make(&memory, 3 * 2048, 1).expect("room");
        let at = memory.find(&message[1000..5000]).expect("it is here");
        assert_eq!(memory.lend(at, 4000), 3);
        assert_eq!(memory.lend(at, 1048), 1, "to the end of its chunk");
        drop(message);
        assert!(make(&memory, 3 * 2048, 2).is_none());
        let chunk = |n: usize| memory.0.umem.layout.message_start() + n * 2048;
        for (address, out) in [(at, 3), (chunk(2), 2), (chunk(1), 1)] {
            assert!(memory.take_back(address));
            assert_eq!(memory.out(), out);
            assert!(make(&memory, 3 * 2048, 2).is_none(), "{out} are out");
        }
        assert!(memory.take_back(chunk(0) + 100));
        assert!(!memory.take_back(chunk(0)), "none is out");
        assert!(make(&memory, 4 * 2048, 2).is_some());
    }

    #[test]
    fn other_memory_is_not_found() {
        let (memory, other) = (memory(), memory());
        let message = make(&memory, 2048, 1).expect("room");
        assert!(memory.find(&message).is_some());
        assert!(other.find(&message).is_none());
        assert!(memory.find(&[0; 64]).is_none());
        // SAFETY: no one uses the slot.
        let slot = unsafe { memory.0.umem.bytes(memory.0.umem.layout.tx_start(), 64) };
        assert!(memory.find(slot).is_none(), "a slot is no message");
    }

    #[test]
    fn a_message_is_not_found_while_it_is_written() {
        let memory = memory();
        let mut at_work = None;
        let made = memory.make(3000, &mut |room| at_work = Some(memory.find(room)));
        assert_eq!(at_work, Some(None));
        let made = made.expect("room");
        assert!(memory.find(&made[2500..]).is_some());
        assert!(memory.find(&[]).is_none(), "nothing is nowhere");
    }

    #[test]
    fn memory_is_free_again_after_a_panic_of_fill() {
        let memory = memory();
        let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            memory.make(4 * 2048, &mut |_| panic!("the caller's"))
        }));
        assert!(made.is_err());
        assert!(make(&memory, 4 * 2048, 1).is_some());
    }
}
