//! The message heap of a device: messages that its peers read where they were made.
//!
//! ```text
//!   free ─▶ made ─▶ referred to (`Bytes`) ─▶ last reference gone ─▶ free
//!                         │                        ▲
//!                         └─ lent: counts the records that peers have not consumed ─ none left ─▶
//! ```
//!
//! A device sends a part of a message in its heap as a record with a descriptor, and the receiver
//! copies the bytes out of the heap. So one copy is left of the two that a ring takes.
//!
//! No one writes to a message once it is made. Its memory is used for another message only when the
//! last reference is gone and no peer has a record with a part of it to consume. A peer that does not
//! consume its records keeps at most the messages that they are parts of, until it is gone; while the
//! heap has no room, messages are made in ordinary memory.
//!
//! The heap is made with the first message. It takes memory as far as it was used, the lowest
//! addresses first. (`F_SEAL_FUTURE_WRITE` keeps its maker from giving pages back, too.)
//!
//! *Who can read it.* Every peer that the heap is shared with can read all of it. A device without a name has one heap,
//! and `readers.rs` says who may have that. A device with a name has one for each of its clients that messages are made
//! for, which nobody else gets; `client_heaps.rs` has what these may take together.
//!
//! *Forks.* The child of a fork makes nothing in its parent's heap and gives nothing back to it.

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use range_alloc::RangeAllocator;
use starling_io::{PacketMemory, forks};

use crate::address::ShmAddress;
use crate::client_heaps::{Budget, Part};
use crate::map::OwnHeap;
use crate::readers::{ReaderProcess, Readers};
use crate::ring::HeapRange;
use crate::users::Origin;

/// Messages take whole blocks.
const BLOCK: usize = 4096;

/// A message of many blocks begins so far into its first one. Received messages begin where an allocator
/// puts them, mostly just behind the beginning of a page, and a copy to there from the beginning of a page
/// is slow; see `copy_out_large`.
const LEAD: usize = BLOCK / 2;
/// Blocks of a message that has a lead.
const LEAD_FROM: usize = 8;

/// A smaller part of a message is copied: a descriptor would cost as much.
pub(crate) const LEND_FROM: usize = 2048;

/// The number of a message: its first block. It is the message's own while the message lives or is
/// lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageId(u32);

/// A device's message heap. Cheap to clone.
#[derive(Clone)]
pub(crate) struct MessageHeap {
    bytes: usize,
    access: Access,
    /// `None` inside: the system has no such memory.
    made: Arc<OnceLock<Option<Heap>>>,
}

/// Who may read a heap.
#[derive(Clone)]
enum Access {
    /// Peers that the device has opened.
    Opened(Arc<Readers>),
    /// One client.
    Client(Arc<Client>),
}

struct Client {
    budget: Arc<Budget>,
    origin: Option<Origin>,
    /// It reads nothing of the heap any more.
    is_gone: AtomicBool,
}

struct Heap {
    memory: OwnHeap,
    /// For each block: one more than the first block of the message that it is part of, once that
    /// is made and no one writes to it; else zero.
    first: Box<[AtomicU32]>,
    /// For the first block of each message: its records that are not consumed. Only the device's
    /// sending half writes here.
    lent: Box<[AtomicU32]>,
    ranges: Mutex<Ranges>,
    /// Where in the order of forks it was made.
    forks: u32,
}

/// Ranges of blocks.
struct Ranges {
    free: RangeAllocator<u32>,
    /// Only records that are not consumed still refer to these.
    returning: Vec<Range<u32>>,
    /// What it has of the memory of all heaps for clients, if it is one.
    part: Option<Part>,
}

impl MessageHeap {
    /// A heap of this size for the peers that the device opens. It is not made yet.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            bytes,
            access: Access::Opened(Arc::default()),
            made: Arc::default(),
        }
    }

    /// A heap for one client of this origin. It is not made yet.
    pub(crate) fn of_client(bytes: usize, budget: &Arc<Budget>, origin: Option<Origin>) -> Self {
        Self {
            bytes,
            access: Access::Client(Arc::new(Client {
                budget: Arc::clone(budget),
                origin,
                is_gone: AtomicBool::new(false),
            })),
            made: Arc::default(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A peer that the device has opened can read the heap; or it cannot.
    pub(crate) fn set_able(&self, peer: &Arc<str>, process: Option<ReaderProcess>) {
        if let Access::Opened(readers) = &self.access {
            readers.set_able(peer, process);
        }
    }

    /// Whether a peer that the device has opened by this name may have the heap; if so, it counts as one that has it.
    pub(crate) fn admit(&self, name: &Arc<str>, process: ReaderProcess) -> bool {
        match &self.access {
            Access::Opened(readers) => readers.admit(name, process),
            Access::Client(_) => false,
        }
    }

    /// No more messages are made in the heap of a client that is gone, or cannot have it.
    pub(crate) fn close(&self) {
        if let Access::Client(client) = &self.access {
            client.is_gone.store(true, Ordering::Relaxed);
        }
    }

    fn get(&self) -> Option<&Heap> {
        self.made.get()?.as_ref()
    }

    /// For a first message of so many bytes.
    fn get_or_make(&self, bytes: usize) -> Option<&Heap> {
        if self.made.get().is_none() {
            // What another thread has made meanwhile has a part of its own, and this one goes back.
            let mut part = match &self.access {
                Access::Opened(_) => None,
                Access::Client(client) => Some(client.budget.begin(client.origin, bytes)?),
            };
            self.made
                .get_or_init(|| Heap::create(self.bytes, part.take()));
        }
        self.get()
    }

    /// The file to share with a peer, if the heap is made.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.get()?.memory.file())
    }

    /// Where these bytes are in the heap, if they are part of a message made there.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<(HeapRange, MessageId)> {
        let heap = self.get()?;
        let at = heap.memory.offset_of(bytes)?;
        // While `fill` writes a message, it may go on writing to what it sends.
        let first = heap.first.get(at / BLOCK)?.load(Ordering::Acquire);
        let range = HeapRange {
            at: at as u64,
            bytes: u32::try_from(bytes.len()).ok()?,
        };
        Some((range, MessageId(first.checked_sub(1)?)))
    }

    /// A record with a part of this message was published. Only for the device's sending half, as is
    /// `take_back`. The caller has a reference to the message.
    pub(crate) fn lend(&self, message: MessageId) {
        let heap = self.get().expect("it has messages");
        let lent = &heap.lent[message.0 as usize];
        // A store is enough for the only writer.
        lent.store(lent.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The peer has consumed such a record, or the record was revoked.
    pub(crate) fn take_back(&self, message: MessageId) {
        let heap = self.get().expect("it has messages");
        let lent = &heap.lent[message.0 as usize];
        let count = lent.load(Ordering::Relaxed);
        debug_assert!(count > 0, "it was lent");
        // A thread that finds it not lent may write to it.
        lent.store(count.saturating_sub(1), Ordering::Release);
    }
}

impl Heap {
    fn create(bytes: usize, part: Option<Part>) -> Option<Self> {
        let memory = OwnHeap::create(bytes).ok()?;
        let blocks = u32::try_from(bytes / BLOCK).ok()?;
        let zeros = || (0..blocks).map(|_| AtomicU32::new(0)).collect();
        Some(Self {
            memory,
            first: zeros(),
            lent: zeros(),
            ranges: Mutex::new(Ranges {
                free: RangeAllocator::new(0..blocks),
                returning: Vec::new(),
                part,
            }),
            forks: forks(),
        })
    }

    fn ranges(&self) -> MutexGuard<'_, Ranges> {
        let ranges = self.ranges.lock();
        ranges.unwrap_or_else(PoisonError::into_inner)
    }

    fn is_lent(&self, blocks: &Range<u32>) -> bool {
        self.lent[blocks.start as usize].load(Ordering::Acquire) > 0
    }

    fn take(&self, blocks: u32) -> Option<Range<u32>> {
        let mut ranges = self.ranges();
        let Ranges {
            free,
            returning,
            part,
        } = &mut *ranges;
        returning.retain(|range| {
            let is_lent = self.is_lent(range);
            if !is_lent {
                free.free_range(range.clone());
            }
            is_lent
        });
        let range = free.allocate_range(blocks).ok()?;
        let bytes = range.end as usize * BLOCK;
        if part.as_mut().is_some_and(|part| !part.grow_to(bytes)) {
            free.free_range(range);
            return None;
        }
        Some(range)
    }
}

impl MessageHeap {
    /// Makes a message if `may` says that it may be there.
    fn make_if(
        &self,
        len: usize,
        may: impl FnOnce(&Access) -> bool,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Option<Bytes> {
        let lead = if len < LEAD_FROM * BLOCK { 0 } else { LEAD };
        // The child of a fork leaves all of its parent's heap alone.
        let is_parents = self.get().is_some_and(|heap| heap.forks != forks());
        if len < LEND_FROM || len > self.bytes - lead || is_parents || !may(&self.access) {
            return None;
        }
        let heap = self.get_or_make(lead + len)?;
        if heap.forks != forks() {
            return None;
        }
        let blocks = heap.take((lead + len).div_ceil(BLOCK) as u32)?;
        let message = Message {
            heap: self.clone(),
            at: blocks.start as usize * BLOCK + lead,
            blocks,
            len,
        };
        // SAFETY: no one else has the range, all its records are consumed or revoked, and there is no
        // other reference yet.
        fill(unsafe { heap.memory.slice_mut(message.at, len) });
        message.set_made(heap, true);
        Some(Bytes::from_owner(message))
    }
}

impl PacketMemory for MessageHeap {
    fn make(&self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Option<Bytes> {
        let may = |access: &Access| match access {
            Access::Opened(readers) => readers.add_common(),
            Access::Client(client) => !client.is_gone.load(Ordering::Relaxed),
        };
        self.make_if(len, may, fill)
    }

    fn of_peer(&self, address: &str) -> Option<Arc<dyn PacketMemory>> {
        if matches!(self.access, Access::Client(_)) {
            return None;
        }
        let peer = ShmAddress::parse(address).ok()?.bare.into();
        let heap = self.clone();
        Some(Arc::new(HeapOfPeer { heap, peer }))
    }
}

/// The heap, for messages to one peer.
struct HeapOfPeer {
    heap: MessageHeap,
    peer: Arc<str>,
}

impl PacketMemory for HeapOfPeer {
    fn make(&self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Option<Bytes> {
        let may = |access: &Access| match access {
            Access::Opened(readers) => readers.add_exclusive(&self.peer),
            Access::Client(_) => false,
        };
        self.heap.make_if(len, may, fill)
    }
}

impl fmt::Debug for MessageHeap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageHeap")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// One message, or a part of one.
struct Message {
    heap: MessageHeap,
    blocks: Range<u32>,
    at: usize,
    len: usize,
}

impl Message {
    fn heap(&self) -> &Heap {
        self.heap.get().expect("the message is in it")
    }

    fn set_made(&self, heap: &Heap, is_made: bool) {
        let first = if is_made { self.blocks.start + 1 } else { 0 };
        for block in &heap.first[self.blocks.start as usize..self.blocks.end as usize] {
            block.store(first, Ordering::Release);
        }
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the range is this message's until it is dropped, and no one writes to it any more.
        unsafe { self.heap().memory.slice(self.at, self.len) }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        let heap = self.heap();
        if heap.forks != forks() {
            // The child of a fork: the heap is the parent's, and a thread of the parent may have had
            // the lock.
            return;
        }
        self.set_made(heap, false);
        let blocks = self.blocks.clone();
        let mut ranges = heap.ranges();
        match heap.is_lent(&blocks) {
            true => ranges.returning.push(blocks),
            false => ranges.free.free_range(blocks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_heaps::ClientHeaps;
    use crate::config::MIN_HEAP_BYTES;

    fn heap() -> MessageHeap {
        MessageHeap::new(4 * BLOCK)
    }

    fn make(heap: &MessageHeap, len: usize, byte: u8) -> Option<Bytes> {
        heap.make(len, &mut |room| room.fill(byte))
    }

    #[test]
    fn an_unused_heap_is_not_made() {
        let heap = heap();
        assert!(make(&heap, LEND_FROM - 1, 1).is_none(), "too small for it");
        assert!(make(&heap, 4 * BLOCK + 1, 1).is_none(), "too large for it");
        assert!(heap.file().is_none() && heap.find(&[1; 4]).is_none());
        let message = make(&heap, LEND_FROM, 1);
        assert!(message.is_some() && heap.file().is_some());
    }

    #[test]
    fn memory_is_reused_when_the_last_reference_is_gone() {
        let heap = heap();
        let whole = make(&heap, 4 * BLOCK, 1).expect("room for all");
        assert!(make(&heap, BLOCK, 2).is_none(), "there is no more");
        let part = whole.slice(5000..5001);
        drop(whole);
        assert!(make(&heap, BLOCK, 2).is_none(), "a part is referred to");
        assert_eq!(part[..], [1]);
        drop(part);
        let few: Vec<Bytes> = (0..4).map_while(|n| make(&heap, BLOCK, n)).collect();
        assert_eq!(few.len(), 4);
        for (n, bytes) in few.iter().enumerate() {
            assert!(bytes.iter().all(|byte| usize::from(*byte) == n));
        }
    }

    #[test]
    fn memory_is_not_reused_while_a_record_refers_to_it() {
        let heap = heap();
        let message = make(&heap, 3 * BLOCK, 1).expect("room");
        let (range, id) = heap.find(&message[5000..9000]).expect("it is here");
        assert_eq!((range.at % BLOCK as u64, range.bytes), (5000 - 4096, 4000));
        assert_eq!(heap.find(&message[..1]).expect("it is here").1, id);
        heap.lend(id);
        heap.lend(id);
        drop(message);
        assert!(make(&heap, 3 * BLOCK, 2).is_none());
        heap.take_back(id);
        assert!(make(&heap, 3 * BLOCK, 2).is_none(), "one record is left");
        heap.take_back(id);
        assert!(make(&heap, 4 * BLOCK, 2).is_some());
    }

    #[test]
    fn only_messages_of_this_heap_are_found() {
        let (heap, other) = (heap(), heap());
        let mut at_work = None;
        let made = heap.make(2 * BLOCK, &mut |room| at_work = Some(heap.find(room)));
        assert_eq!(at_work, Some(None), "it is still written");
        let message = made.expect("room");
        assert!(heap.find(&message).is_some());
        assert!(other.find(&message).is_none());
        assert!(heap.find(&[0; 64]).is_none());
        let memory = &heap.get().expect("made").memory;
        // SAFETY: no one writes there.
        let free = unsafe { memory.slice(3 * BLOCK, 64) };
        assert!(heap.find(free).is_none(), "free memory is no message");
    }

    #[test]
    fn nothing_is_made_for_a_client_that_is_gone() {
        let heaps = ClientHeaps::new(16 * MIN_HEAP_BYTES, 2);
        let (gone, late) = (heaps.of_client(None), heaps.of_client(None));
        let kept = make(&gone, BLOCK, 1).expect("room");
        for heap in [&gone, &late] {
            heap.close();
            assert!(make(heap, BLOCK, 2).is_none());
        }
        assert!(late.file().is_none(), "it was not made");
        // Of two files one is for one origin: it counts as long as somebody has a message.
        let next = heaps.of_client(None);
        drop(gone);
        assert!(make(&next, BLOCK, 3).is_none());
        assert!(kept.iter().all(|byte| *byte == 1));
        drop(kept);
        assert!(make(&next, BLOCK, 3).is_some());
    }

    #[test]
    fn memory_is_free_again_after_a_panic_of_fill() {
        let heap = heap();
        let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            heap.make(4 * BLOCK, &mut |_| panic!("the caller's"))
        }));
        assert!(made.is_err());
        assert!(make(&heap, 4 * BLOCK, 1).is_some());
    }
}
