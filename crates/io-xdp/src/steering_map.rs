//! The memory by which the XDP program chooses a worker of a queue: its `struct steering`.
//!
//! It is memory that all users of the program share, other processes on the interface among them.
//! Any of them may write anything. Its contents decide which worker gets a datagram first, and
//! nothing else.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use starling_io::MatchTable;

use crate::ring::Mapping;

/// Sockets of a queue as the program has them: the dispatcher's and those of the workers.
pub(crate) const SOCKETS: u32 = 64;

/// The program tells keys apart by so many low bits.
const KEY_BITS: u32 = 12;

/// One entry of the program's map `steering`: a queue's workers.
#[repr(C)]
pub(crate) struct SteeringEntry {
    pub(crate) workers: AtomicU32,
    pub(crate) depth: AtomicU32,
    pub(crate) max_frame: AtomicU32,
    pub(crate) held: AtomicU32,
    table: MatchEntry,
    keys: [AtomicU64; (1 << KEY_BITS) / 64],
    /// How much each worker was ever given, and how much of it the worker has completed.
    pub(crate) taken: [AtomicU32; SOCKETS as usize],
    pub(crate) completed: [AtomicU32; SOCKETS as usize],
}

/// The program's `struct match`: a [`MatchTable`].
#[repr(C)]
struct MatchEntry {
    value: [AtomicU64; 2],
    mask: [AtomicU64; 2],
    length_at: AtomicU32,
    length_from: AtomicU32,
    key_at: AtomicU32,
    reserved: AtomicU32,
}

/// The size that the program's map has.
const _: () = assert!(size_of::<SteeringEntry>() == 16 + 48 + 512 + 2 * 256);

impl SteeringEntry {
    /// The entry of `queue` in the program's map.
    ///
    /// # Panics
    /// If the map has no such queue.
    pub(crate) fn of_queue(map: &Mapping, queue: u32) -> &Self {
        let start = map.at(queue as usize * size_of::<Self>(), size_of::<Self>());
        assert!(start.cast::<Self>().is_aligned());
        // SAFETY: within the map, aligned, and nothing but atomics, which any bytes are.
        unsafe { &*start.cast::<Self>() }
    }

    /// A new device is on the queue: it has no workers.
    pub(crate) fn clear(&self) {
        self.workers.store(0, Ordering::Relaxed);
        self.held.store(0, Ordering::Relaxed);
        for word in &self.keys {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Which datagrams are for workers. To be said before there are any.
    pub(crate) fn set_table(&self, table: &MatchTable) {
        for (words, bytes) in [
            (&self.table.value, &table.value),
            (&self.table.mask, &table.mask),
        ] {
            for (word, bytes) in words.iter().zip(bytes.chunks_exact(8)) {
                let bytes = bytes.try_into().expect("8 bytes");
                word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
            }
        }
        for (word, offset) in [
            (&self.table.length_at, table.length_at),
            (&self.table.length_from, table.length_from),
            (&self.table.key_at, table.key_at),
        ] {
            word.store(offset.into(), Ordering::Relaxed);
        }
    }

    /// Datagrams with this key are for workers.
    pub(crate) fn add_key(&self, key: u32) {
        let bit = key & ((1 << KEY_BITS) - 1);
        self.keys[bit as usize / 64].fetch_or(1 << (bit % 64), Ordering::Relaxed);
    }

    /// How much a worker seems to have.
    pub(crate) fn load(&self, worker: usize) -> u32 {
        let taken = self.taken[worker].load(Ordering::Relaxed);
        // See `complete`: a dispatcher that holds something for a worker and then sees the worker
        // at its bound is seen by the worker when that completes something.
        taken.wrapping_sub(self.completed[worker].load(Ordering::SeqCst))
    }

    /// The worker has completed so many things.
    pub(crate) fn complete(&self, worker: usize, count: u32) {
        self.completed[worker].fetch_add(count, Ordering::SeqCst);
    }

    /// How much the worker was ever given, unless it seems to have completed exactly that.
    pub(crate) fn outstanding(&self, worker: usize) -> Option<u32> {
        let taken = self.taken[worker].load(Ordering::Relaxed);
        (taken != self.completed[worker].load(Ordering::Relaxed)).then_some(taken)
    }

    /// The worker has completed the first `taken`.
    pub(crate) fn forget(&self, worker: usize, taken: u32) {
        self.completed[worker].store(taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl SteeringEntry {
    /// An entry outside of any map.
    pub(crate) fn new() -> Self {
        let zero = || [const { AtomicU64::new(0) }; 2];
        Self {
            workers: AtomicU32::new(0),
            depth: AtomicU32::new(0),
            max_frame: AtomicU32::new(0),
            held: AtomicU32::new(0),
            table: MatchEntry {
                value: zero(),
                mask: zero(),
                length_at: AtomicU32::new(0),
                length_from: AtomicU32::new(0),
                key_at: AtomicU32::new(0),
                reserved: AtomicU32::new(0),
            },
            keys: [const { AtomicU64::new(0) }; (1 << KEY_BITS) / 64],
            taken: [const { AtomicU32::new(0) }; SOCKETS as usize],
            completed: [const { AtomicU32::new(0) }; SOCKETS as usize],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::MAX_QUEUES;

    #[test]
    fn the_source_of_the_program_has_the_same_limits() {
        let source = include_str!("bpf/steer.bpf.c");
        for (name, value) in [
            ("QUEUES", MAX_QUEUES),
            ("SOCKETS", SOCKETS),
            ("KEY_BITS", KEY_BITS),
        ] {
            let line = format!("#define {name} {value}\n");
            assert!(source.contains(&line), "{line:?} is not there");
        }
        // Every offset of a match table.
        let line = format!("#define OFFSET_MASK {:#x}\n", u8::MAX);
        assert!(source.contains(&line), "{line:?} is not there");
    }
}
