//! The queues and counts between the workers of a device and its halves.
//!
//! ```text
//!   program ── taken + 1 ──▶ worker's rx ring ─▶ worker ── completed + 1 ──▶ program
//!                                                  │ ├─ answered: tx ring ─▶ kernel ─▶ completion
//!                                                  │ │                                    ring
//!   XdpRx ◀─────────────── handed over ────────────┘ │                                     │
//!     └──▶ fill ring ◀──────────────────────────── answered ◀──────────────────────── XdpTx
//! ```
//!
//! All sockets of a queue share one fill ring and one completion ring, which belong to the halves
//! of the device. A chunk goes through one of the queues here on its way back to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_queue::ArrayQueue;

use crate::chunk_accounting::ChunkAccounting;
use crate::drops::WorkerSockets;
use crate::ring::Descriptor;
use crate::steering_map::SteeringEntry;

/// The queues and counts between workers and the halves of their device. There is room for all
/// chunks.
pub(crate) struct Exchange {
    /// Ethernet frames that the dispatcher is to receive.
    pub(crate) handed_over: ArrayQueue<Descriptor>,
    /// Chunks that workers answered in, and that the kernel has sent.
    pub(crate) answered: ArrayQueue<u64>,
    pub(crate) sockets: WorkerSockets,
    pub(crate) chunks: Arc<ChunkAccounting>,
    pub(crate) padding: Padding,
}

impl Exchange {
    /// For so many chunks and workers.
    pub(crate) fn new(all: usize, chunks: Arc<ChunkAccounting>, workers: usize) -> Self {
        Self {
            handed_over: ArrayQueue::new(all),
            answered: ArrayQueue::new(all),
            chunks,
            sockets: WorkerSockets::default(),
            padding: Padding::new(workers),
        }
    }

    /// The worker has completed one thing.
    pub(crate) fn complete(&self, entry: &SteeringEntry, worker: usize) {
        entry.complete(worker, 1 + self.padding.take(worker));
    }

    /// The worker has completed its first `taken` requests, of any kind. Counts that the dispatcher
    /// adds in this moment stay until the next time: until then the worker has fewer places, but
    /// has one.
    pub(crate) fn forget(&self, entry: &SteeringEntry, worker: usize, taken: u32) {
        self.padding.take(worker);
        entry.forget(worker, taken);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let waiting = self.handed_over.len() + self.answered.len();
        self.chunks.add(waiting as u32);
    }
}

/// Requests that blocked workers are counted for but do not have, so that they get nothing more. A
/// worker takes them back when it continues.
pub(crate) struct Padding(Box<[AtomicU32]>);

impl Padding {
    fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| AtomicU32::new(0)).collect())
    }

    /// Counts the worker as having `depth`.
    pub(crate) fn fill(&self, entry: &SteeringEntry, worker: usize, depth: u32) {
        let Some(missing @ 1..) = depth.checked_sub(entry.load(worker)) else {
            return;
        };
        // First here: a worker that goes on just now takes back what is counted a moment later.
        self.0[worker].fetch_add(missing, Ordering::Relaxed);
        entry.taken[worker].fetch_add(missing, Ordering::Release);
    }

    fn take(&self, worker: usize) -> u32 {
        let padding = &self.0[worker];
        // A load first: padding is rare, and an exchange would cost each completion.
        match padding.load(Ordering::Relaxed) {
            0 => 0,
            _ => padding.swap(0, Ordering::Relaxed),
        }
    }
}
