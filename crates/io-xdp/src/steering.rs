//! Which worker gets what: the counts that the XDP program goes by, and what goes between workers
//! and the device.
//!
//! ```text
//!   program ── taken + 1 ──▶ worker's rx ring ─▶ worker ── completed + 1 ──▶ program
//!                                                  │ ├─ answered: tx ring ─▶ kernel ─▶ completion
//!                                                  │ │                                    ring
//!   XdpRx ◀─────────────── handed over ────────────┘ │                                     │
//!     └──▶ fill ring ◀──────────────────────────── answered ◀──────────────────────── XdpTx
//! ```
//!
//! All sockets of a queue share one fill and one completion ring, which belong to the device's
//! halves. A chunk goes through one of the queues here on its way back to them.
//!
//! The counts are in memory that the program's users share, with other processes if they use the
//! interface, and anybody may write anything there. They decide who is asked first, and nothing
//! else.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use starling_io::Steering;

use crate::chunks::Chunks;
use crate::drops::WorkerSockets;
use crate::ring::{Descriptor, Mapping};
use crate::shared::Shared;

/// Sockets of a queue, the dispatcher's among them: as the program has it.
pub(crate) const SOCKETS: u32 = 64;
/// Workers that a device hands requests to by itself, at most.
pub const MAX_WORKERS: usize = SOCKETS as usize - 1;
/// Requests that a worker may have, at most.
pub(crate) const MAX_DEPTH: u8 = 8;

/// Methods are told apart by so many low bits of their id.
const METHOD_BITS: u32 = 12;

/// What the program knows of a queue's workers: its `struct steering`.
#[repr(C)]
pub(crate) struct Counts {
    workers: AtomicU32,
    depth: AtomicU32,
    max_frame: AtomicU32,
    held: AtomicU32,
    methods: [AtomicU64; (1 << METHOD_BITS) / 64],
    taken: [AtomicU32; SOCKETS as usize],
    completed: [AtomicU32; SOCKETS as usize],
}

impl Counts {
    /// Those of `queue`, in the program's map.
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
        for word in &self.methods {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// How much a worker seems to have.
    fn load(&self, worker: usize) -> u32 {
        let taken = self.taken[worker].load(Ordering::Relaxed);
        // As [`Counts::complete`]: who holds something for a worker and then sees it at its bound is
        // seen by the worker when it is done.
        taken.wrapping_sub(self.completed[worker].load(Ordering::SeqCst))
    }

    /// The worker is done with so many things.
    fn complete(&self, worker: usize, count: u32) {
        self.completed[worker].fetch_add(count, Ordering::SeqCst);
    }

    /// What was ever given to a worker, if that is more, or less, than it seems to be done with.
    pub(crate) fn outstanding(&self, worker: usize) -> Option<u32> {
        let taken = self.taken[worker].load(Ordering::Relaxed);
        (taken != self.completed[worker].load(Ordering::Relaxed)).then_some(taken)
    }

    /// The worker is done with the first `taken`.
    fn forget(&self, worker: usize, taken: u32) {
        self.completed[worker].store(taken, Ordering::Relaxed);
    }
}

/// What goes between workers and the parts of their device. There is room for all chunks.
pub(crate) struct Exchange {
    /// Frames that the dispatcher is to receive.
    pub(crate) handed_over: ArrayQueue<Descriptor>,
    /// Chunks that workers answered in, and that the kernel has sent.
    pub(crate) answered: ArrayQueue<u64>,
    pub(crate) sockets: WorkerSockets,
    pub(crate) chunks: Arc<Chunks>,
    padding: Padding,
}

impl Exchange {
    /// For so many chunks and workers.
    pub(crate) fn new(all: usize, chunks: Arc<Chunks>, workers: usize) -> Self {
        Self {
            handed_over: ArrayQueue::new(all),
            answered: ArrayQueue::new(all),
            chunks,
            sockets: WorkerSockets::default(),
            padding: Padding::new(workers),
        }
    }

    /// The worker is done with one thing.
    pub(crate) fn complete(&self, counts: &Counts, worker: usize) {
        counts.complete(worker, 1 + self.padding.take(worker));
    }

    /// The worker is done with the first `taken`, whatever they were. What the dispatcher is adding just
    /// now stays until the next time: the worker has fewer places for so long, but has one.
    pub(crate) fn forget(&self, counts: &Counts, worker: usize, taken: u32) {
        self.padding.take(worker);
        counts.forget(worker, taken);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let waiting = self.handed_over.len() + self.answered.len();
        self.chunks.add(waiting as u32);
    }
}

/// What workers that are blocked are counted for without having it, so that they get nothing more.
/// It is taken back when they go on.
struct Padding(Box<[AtomicU32]>);

impl Padding {
    fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| AtomicU32::new(0)).collect())
    }

    /// Counts the worker as having `depth`.
    fn fill(&self, counts: &Counts, worker: usize, depth: u32) {
        let Some(missing @ 1..) = depth.checked_sub(counts.load(worker)) else {
            return;
        };
        // First here: a worker that goes on just now takes back what is counted a moment later.
        self.0[worker].fetch_add(missing, Ordering::Relaxed);
        counts.taken[worker].fetch_add(missing, Ordering::Release);
    }

    fn take(&self, worker: usize) -> u32 {
        let padding = &self.0[worker];
        // A look first: it is hardly ever there, and an exchange would cost each request.
        match padding.load(Ordering::Relaxed) {
            0 => 0,
            _ => padding.swap(0, Ordering::Relaxed),
        }
    }
}

/// Which workers are at something, and how much they had done before.
struct Watch(Box<[Option<u32>]>);

impl Watch {
    fn new(workers: usize) -> Self {
        Self(vec![None; workers].into())
    }

    /// Fills up those that were at the same thing at the last look.
    fn look(&mut self, counts: &Counts, padding: &Padding, depth: u32) {
        for (worker, before) in self.0.iter_mut().enumerate() {
            let completed = counts.completed[worker].load(Ordering::Relaxed);
            let now = (counts.load(worker) > 0).then_some(completed);
            if now.is_some() && now == *before {
                padding.fill(counts, worker, depth);
            }
            *before = now;
        }
    }
}

/// The dispatcher's part.
pub(crate) struct XdpSteering {
    shared: Arc<Shared>,
    exchange: Arc<Exchange>,
    workers: usize,
    depth: u32,
    watch: Watch,
}

impl XdpSteering {
    /// From now on whole requests go to the `sockets` of workers.
    pub(crate) fn start<'a>(
        shared: &Arc<Shared>,
        exchange: &Arc<Exchange>,
        sockets: impl ExactSizeIterator<Item = BorrowedFd<'a>>,
        depth: u8,
    ) -> std::io::Result<Self> {
        let counts = shared.counts();
        let workers = sockets.len();
        counts.clear();
        for (worker, socket) in sockets.enumerate() {
            let place = shared.queue * SOCKETS + 1 + worker as u32;
            shared.program.set_socket(place, socket.as_raw_fd())?;
            counts.taken[worker].store(0, Ordering::Relaxed);
            counts.completed[worker].store(0, Ordering::Relaxed);
        }
        let room = shared.largest_frame.min(shared.umem.cut.rx_room());
        counts.max_frame.store(room as u32, Ordering::Relaxed);
        counts.depth.store(depth.into(), Ordering::Relaxed);
        counts.workers.store(workers as u32, Ordering::Release);
        Ok(Self {
            shared: Arc::clone(shared),
            exchange: Arc::clone(exchange),
            workers,
            depth: depth.into(),
            watch: Watch::new(workers),
        })
    }
}

impl Steering for XdpSteering {
    fn add_method(&mut self, method: u32) {
        let bit = method & ((1 << METHOD_BITS) - 1);
        let word = &self.shared.counts().methods[bit as usize / 64];
        word.fetch_or(1 << (bit % 64), Ordering::Relaxed);
    }

    fn take(&mut self) -> Option<usize> {
        let counts = self.shared.counts();
        let worker = (0..self.workers).min_by_key(|&worker| counts.load(worker))?;
        if counts.load(worker) >= self.depth {
            return None;
        }
        // The program may have been faster.
        counts.taken[worker].fetch_add(1, Ordering::Relaxed);
        if counts.load(worker) > self.depth {
            counts.taken[worker].fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(worker)
    }

    fn avoid_blocked(&mut self) {
        let padding = &self.exchange.padding;
        self.watch.look(self.shared.counts(), padding, self.depth);
    }

    fn set_held(&mut self, held: usize) {
        let held = u32::try_from(held).unwrap_or(u32::MAX);
        self.shared.counts().held.store(held, Ordering::Relaxed);
    }

    fn stop(&mut self) {
        self.shared.counts().workers.store(0, Ordering::Relaxed);
    }
}

impl Drop for XdpSteering {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use starling_io::{PacketIo, PacketRx, PacketTx};
    use starling_netns::{Pair, inside};

    use super::*;
    use crate::{XdpConfig, XdpIo};

    /// As the program has it.
    const _: () = assert!(size_of::<Counts>() == 16 + 512 + 2 * 256);

    fn no_counts() -> Counts {
        Counts {
            workers: AtomicU32::new(0),
            depth: AtomicU32::new(0),
            max_frame: AtomicU32::new(0),
            held: AtomicU32::new(0),
            methods: [const { AtomicU64::new(0) }; (1 << METHOD_BITS) / 64],
            taken: [const { AtomicU32::new(0) }; SOCKETS as usize],
            completed: [const { AtomicU32::new(0) }; SOCKETS as usize],
        }
    }

    #[test]
    fn a_worker_that_stays_at_one_thing_gets_nothing_more_until_it_is_done() {
        const DEPTH: u32 = 4;
        let (counts, chunks) = (no_counts(), Arc::new(Chunks::new(0)));
        let exchange = Exchange::new(1, chunks, 3);
        let mut watch = Watch::new(3);
        let mut look = || watch.look(&counts, &exchange.padding, DEPTH);
        let give = |worker: usize| counts.taken[worker].fetch_add(1, Ordering::Relaxed);
        let loads = || [0, 1, 2].map(|worker| counts.load(worker));
        give(0);
        give(1);
        look();
        assert_eq!(loads(), [1, 1, 0], "they may have begun just now");
        exchange.complete(&counts, 1);
        give(1);
        give(2);
        look();
        assert_eq!(loads(), [DEPTH, 1, 1], "1 is at another, 2 had nothing");
        look();
        look();
        assert_eq!(loads(), [DEPTH; 3], "and stays so");
        for worker in 0..3 {
            exchange.complete(&counts, worker);
        }
        assert_eq!(loads(), [0; 3]);
        // One that has its bound, and one with more of somebody else's making.
        (0..DEPTH).for_each(|_| _ = give(0));
        (0..2 * DEPTH).for_each(|_| _ = give(1));
        look();
        look();
        assert_eq!(loads(), [DEPTH, 2 * DEPTH, 0]);
        exchange.complete(&counts, 0);
        exchange.complete(&counts, 1);
        assert_eq!(loads(), [DEPTH - 1, 2 * DEPTH - 1, 0]);
    }

    /// A request of method 0.
    const REQUEST: [u8; 20] = [1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    #[test]
    fn counts_that_somebody_else_wrote_only_misplace() {
        let name = "counts_that_somebody_else_wrote_only_misplace";
        let config = XdpConfig::default;
        let (pair, mut server) = match Pair::new().and_then(|pair| {
            let server = inside(&pair.b, || XdpIo::bind("xdp://vb/10.77.0.2:0", config()));
            Ok((pair, server.map_err(|error| error.to_string())?))
        }) {
            Ok(made) => made,
            Err(problem) => {
                println!("skipped: {name} needs root, `ip` of iproute2 and AF_XDP ({problem})");
                return;
            }
        };
        let mut steered = inside(&pair.b, || server.steer(2, 2)).expect("workers");
        steered.steering.add_method(0);
        let port = server.local_socket_address().port();
        let address = format!("xdp://va/10.77.0.2:{port}");
        let mut client = inside(&pair.a, || XdpIo::client(&address, config())).expect("a route");
        let peer = client.open_peer(&address).expect("a route");
        let mut send = || {
            let tx = client.split().1;
            let preamble = [0x5a, 1, 0, 0, 0, 0, 0, 0];
            tx.append(peer, &preamble, &REQUEST, b"", b"")
                .expect("room");
            tx.seal(peer);
            tx.flush().expect("a healthy device");
        };
        // To make the hardware addresses known.
        send();
        let shared = Arc::clone(server.shared());
        let counts = shared.counts();
        let mut arrived = |steered: &mut starling_io::Steered| {
            for _ in 0..20_000 {
                if server.split().0.rx_burst().expect("healthy") > 0 {
                    return 0;
                }
                for (index, worker) in steered.workers.iter_mut().enumerate() {
                    if worker.receive() {
                        worker.hand_over();
                        worker.complete();
                        while server.split().0.rx_burst().expect("healthy") == 0 {}
                        return index + 1;
                    }
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            panic!("a request is missing");
        };
        arrived(&mut steered);
        let mut word = 1_u32;
        for round in 0..2000 {
            // Any numbers in all that is counted (xorshift, Marsaglia 2003).
            let fields = [&counts.held, &counts.depth, &counts.max_frame];
            for field in fields.into_iter().chain(&counts.taken) {
                word ^= word << 13;
                word ^= word >> 17;
                word ^= word << 5;
                field.store(word >> (round % 31), Ordering::Relaxed);
            }
            send();
            arrived(&mut steered);
        }
        counts.held.store(0, Ordering::Relaxed);
        counts.depth.store(2, Ordering::Relaxed);
        counts.max_frame.store(1500, Ordering::Relaxed);
        counts.taken[0].store(7, Ordering::Relaxed);
        counts.completed[0].store(1_000_000, Ordering::Relaxed);
        counts.taken[1].store(u32::MAX, Ordering::Relaxed);
        counts.completed[1].store(5, Ordering::Relaxed);
        send();
        assert_eq!(arrived(&mut steered), 0, "both seem to have far too much");
        for worker in &mut steered.workers {
            let limit = Some(Duration::from_millis(100));
            worker.wait(limit).expect("a healthy device");
        }
        send();
        assert_eq!(arrived(&mut steered), 1);
        // A worker that never sleeps finds out, too.
        counts.taken[0].store(u32::MAX, Ordering::Relaxed);
        let begun = std::time::Instant::now();
        while counts.load(0) > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it never does");
            let nothing = Some(Duration::ZERO);
            steered.workers[0].wait(nothing).expect("a healthy device");
        }
    }
}
