//! Worker threads that a device hands requests to by itself ([`starling_io::WorkerIo`]).
//!
//! ```text
//!               ┌─▶ worker: claim ─▶ run in place ─▶ answer ─▶ report ─┐
//!  device ──────┤      ▲   └ lost: hand over ─┐                        ▼
//!               └──────┼──▶ dispatcher ◀──────┘              poll_claimed, at leisure
//!                      │        │ requests that came to it
//!                      └─ given ┴─ held until a worker is free
//! ```
//!
//! A request that a worker claimed is answered before the dispatcher knows of it: RPCValet's way
//! (ASPLOS 2019, section 4). The dispatcher learns of it by a report. It is not woken for one, as
//! long as there is room for more: it looks at least as often as it looks after its peers.
//!
//! What the device gave to the dispatcher (calls with a deadline, large ones, those that came when
//! all workers had enough) is given out here, by the device's own counts, in order.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use starling_call::header;
use starling_io::{Clock, Ecn, IoError, Source, Steered, Steering, Wake, WorkerIo};
use starling_proto::{Claims, RequestId};

use super::dispatch::Dispatch;
use super::idle_policy::{IdlePolicy, Next};
use super::job::Job;
use super::memory::MAX_BYTES;
use super::thread::start_thread;
use super::worker_methods::{Table, WorkerMethods};
use crate::admission::Timing;
use crate::config::{Idle, WorkerConfig};
use crate::convert::proto_peer;
use crate::server::{CancelReason, RequestInfo, RequestState};

/// Jobs with one worker, or on their way back from it, that the dispatcher gave it.
const MAILBOX_JOBS: usize = 64;
/// Reports of one worker that the dispatcher has not taken, about as many at most.
const REPORTS: usize = 256;
/// A full queue to the dispatcher is tried again after so long.
const RETRY: Duration = Duration::from_micros(50);
/// A worker with nothing to do sees to its device this often if it does not sleep, or if the
/// dispatcher holds something although it is free.
const MAINTAIN_INTERVAL: Duration = Duration::from_millis(1);

/// Whether workers are blocked is looked at this often at most: a client that hears nothing of its
/// request for 2.25 s takes its session for broken, and asks at least every 50 ms.
const MAINTAIN_NS: u64 = 50_000_000;

/// Threads that run what a device and the dispatcher give them.
pub(crate) struct SteeredPool {
    steering: Box<dyn Steering>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// What waits for a worker, oldest first.
    held: VecDeque<Box<Job>>,
    capacity: usize,
    in_flight: usize,
    in_flight_bytes: usize,
    /// The worker whose reports were looked at last.
    looked_at: usize,
    /// When to look after the workers again.
    maintain_at_ns: u64,
    /// Of the methods that the device knows of.
    version: u64,
}

/// What all threads see.
struct Shared {
    mailboxes: Vec<CachePadded<Mailbox>>,
    claims: Arc<Claims>,
    methods: Arc<WorkerMethods>,
    dispatcher: Arc<dyn Wake>,
    /// Jobs that the dispatcher holds.
    held: AtomicUsize,
    /// Workers that sleep, or are about to. Each side writes its own and then looks at the other's.
    asleep: AtomicUsize,
    /// Reports of one worker that wake the dispatcher.
    urgent_at: usize,
    /// Nothing is claimed any more.
    draining: AtomicBool,
    stop: AtomicBool,
}

/// What goes between the dispatcher and one worker.
struct Mailbox {
    given: ArrayQueue<Box<Job>>,
    done: ArrayQueue<Box<Job>>,
    /// Jobs that it claimed, and empty ones for it to use again.
    reports: ArrayQueue<Box<Job>>,
    spare: ArrayQueue<Box<Job>>,
    /// Requests that it claimed, or is about to, and that are not taken in.
    claimed: AtomicU32,
    /// The one that runs, of these.
    running: Mutex<Option<(RequestId, Arc<RequestState>)>>,
    waker: Arc<dyn Wake>,
}

impl Mailbox {
    fn running(&self) -> MutexGuard<'_, Option<(RequestId, Arc<RequestState>)>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SteeredPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteeredPool")
            .field("threads", &self.threads.len())
            .field("in_flight", &self.in_flight)
            .field("held", &self.held.len())
            .finish_non_exhaustive()
    }
}

impl SteeredPool {
    /// `clock` reads as the endpoint's does, `dispatcher` wakes it; `methods` has been filled.
    pub(crate) fn new<C: Clock + Clone + Send + 'static>(
        config: &WorkerConfig,
        steered: Steered,
        claims: Arc<Claims>,
        methods: Arc<WorkerMethods>,
        clock: &C,
        dispatcher: Arc<dyn Wake>,
        queued_datagrams: usize,
    ) -> Result<Self, IoError> {
        let Steered { steering, workers } = steered;
        // Memory that was answered in comes back when the dispatcher looks. A quarter may wait
        // until it is woken.
        let urgent_at = (queued_datagrams / 4 / workers.len().max(1)).clamp(1, REPORTS / 2);
        let reports = 2 * urgent_at + 6;
        let mailbox = |io: &dyn WorkerIo| {
            CachePadded::new(Mailbox {
                given: ArrayQueue::new(MAILBOX_JOBS),
                done: ArrayQueue::new(MAILBOX_JOBS),
                reports: ArrayQueue::new(reports),
                spare: ArrayQueue::new(reports),
                claimed: AtomicU32::new(0),
                running: Mutex::default(),
                waker: io.waker(),
            })
        };
        let mut pool = Self {
            steering,
            shared: Arc::new(Shared {
                mailboxes: workers.iter().map(|io| mailbox(&**io)).collect(),
                claims,
                methods,
                dispatcher,
                held: AtomicUsize::new(0),
                asleep: AtomicUsize::new(0),
                urgent_at,
                draining: AtomicBool::new(false),
                stop: AtomicBool::new(false),
            }),
            threads: Vec::with_capacity(workers.len()),
            held: VecDeque::new(),
            capacity: config.queue,
            in_flight: 0,
            in_flight_bytes: 0,
            looked_at: 0,
            maintain_at_ns: 0,
            version: u64::MAX,
        };
        for (index, io) in workers.into_iter().enumerate() {
            let mut worker = Worker {
                index,
                shared: Arc::clone(&pool.shared),
                io: Some(io),
                clock: clock.clone(),
                idle: config.idle,
                methods: Arc::default(),
                version: u64::MAX,
                maintained_at: Instant::now(),
            };
            pool.threads
                .push(start_thread(index, move || worker.work())?);
        }
        // Nothing is claimed before it is sure that there will be a pool to take it in.
        pool.add_methods();
        Ok(pool)
    }

    /// Has the device hand out requests for methods that it does not know of.
    fn add_methods(&mut self) {
        let methods = &self.shared.methods;
        let version = methods.version.load(Ordering::Acquire);
        if version != self.version {
            self.version = version;
            for method in methods.lock().keys() {
                self.steering.add_key(method.0);
            }
        }
    }

    /// Gives out what waits, as far as workers are free.
    fn give_out(&mut self) {
        loop {
            self.give_to_free();
            let before = self.shared.held.load(Ordering::Relaxed);
            if before == self.held.len() {
                return;
            }
            self.shared.held.store(self.held.len(), Ordering::SeqCst);
            self.steering.set_held(self.held.len());
            if before == 0 && self.shared.asleep.load(Ordering::SeqCst) > 0 {
                // Whoever sleeps although all seem to have enough is counted wrongly.
                for mailbox in &self.shared.mailboxes {
                    mailbox.waker.wake();
                }
            }
            // Who became free before it could see that something is held is seen by another look.
        }
    }

    fn give_to_free(&mut self) {
        while !self.held.is_empty() {
            let Some(worker) = self.steering.reserve() else {
                break;
            };
            let Some(job) = self.held.pop_front() else {
                break;
            };
            let mailbox = &self.shared.mailboxes[worker];
            if let Err(job) = mailbox.given.push(job) {
                // It has far more than its bound: somebody else has written to the counts.
                self.held.push_front(job);
                break;
            }
            mailbox.waker.wake();
        }
    }
}

impl Dispatch for SteeredPool {
    fn submit(&mut self, job: Box<Job>) -> Result<(), Box<Job>> {
        let bytes = self.in_flight_bytes + job.request_bytes;
        if self.held.len() > self.capacity || (self.in_flight > 0 && bytes > MAX_BYTES) {
            return Err(job);
        }
        self.in_flight += 1;
        self.in_flight_bytes = bytes;
        self.held.push_back(job);
        self.give_out();
        if self.held.len() > self.capacity {
            self.in_flight -= 1;
            let job = self.held.pop_back().expect("just put in");
            self.in_flight_bytes -= job.request_bytes;
            self.give_out();
            return Err(job);
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<Box<Job>> {
        let job = (self.shared.mailboxes.iter()).find_map(|mailbox| mailbox.done.pop());
        if let Some(job) = &job {
            self.in_flight -= 1;
            self.in_flight_bytes -= job.request_bytes;
        }
        self.give_out();
        job
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn poll_claimed(&mut self) -> Option<Box<Job>> {
        for _ in 0..self.shared.mailboxes.len() {
            let mailbox = &self.shared.mailboxes[self.looked_at];
            if let Some(job) = mailbox.reports.pop() {
                mailbox.claimed.fetch_sub(1, Ordering::SeqCst);
                return Some(job);
            }
            self.looked_at = (self.looked_at + 1) % self.shared.mailboxes.len();
        }
        None
    }

    fn maintain(&mut self, now_ns: u64) {
        if now_ns >= self.maintain_at_ns {
            self.maintain_at_ns = now_ns.saturating_add(MAINTAIN_NS);
            self.steering.avoid_blocked();
            self.add_methods();
        }
    }

    fn reuse(&mut self, job: Box<Job>) {
        // If it has as many as it can use, one is given up.
        let _ = self.shared.mailboxes[self.looked_at].spare.push(job);
    }

    fn drain(&mut self) {
        self.shared.draining.store(true, Ordering::SeqCst);
        self.steering.stop();
    }

    fn handle_cancelled(&self, id: RequestId) {
        for mailbox in &self.shared.mailboxes {
            if let Some((running, state)) = &*mailbox.running()
                && *running == id
            {
                state.cancel(CancelReason::Cancelled);
            }
        }
    }

    fn claimed(&self) -> usize {
        let count =
            |mailbox: &CachePadded<Mailbox>| mailbox.claimed.load(Ordering::SeqCst) as usize;
        self.shared.mailboxes.iter().map(count).sum()
    }
}

impl Drop for SteeredPool {
    /// Ends the threads, but for those whose handlers still run: they end by themselves.
    fn drop(&mut self) {
        self.drain();
        self.shared.stop.store(true, Ordering::Release);
        for mailbox in &self.shared.mailboxes {
            if let Some((_, state)) = &*mailbox.running() {
                state.cancel(CancelReason::Cancelled);
            }
            mailbox.waker.wake();
            while mailbox.done.pop().is_some() {
                self.in_flight -= 1;
            }
            while mailbox.reports.pop().is_some() {
                mailbox.claimed.fetch_sub(1, Ordering::SeqCst);
            }
        }
        if self.in_flight == self.held.len() && self.claimed() == 0 {
            for thread in self.threads.drain(..) {
                // A worker's panics were caught; there is nothing to learn from the result.
                let _ = thread.join();
            }
        }
    }
}

/// One thread's view.
struct Worker<C> {
    index: usize,
    shared: Arc<Shared>,
    /// Lent to the request that runs in its memory.
    io: Option<Box<dyn WorkerIo>>,
    clock: C,
    idle: Idle,
    methods: Arc<Table>,
    version: u64,
    /// When it last saw to its device without sleeping.
    maintained_at: Instant,
}

impl<C: Clock> Worker<C> {
    fn work(&mut self) {
        let mut idle_policy = IdlePolicy::default();
        while !self.shared.stop.load(Ordering::Acquire) {
            if let Some(mut job) = self.shared.mailboxes[self.index].given.pop() {
                job.run(self.clock.now_ns());
                self.return_job(|mailbox| &mailbox.done, job);
                // Counted as free first: who is woken may have something for it.
                self.io().complete();
                self.shared.dispatcher.wake();
            } else if self.io().receive() {
                self.run_claimed();
                self.io().complete();
                if self.shared.held.load(Ordering::SeqCst) > 0 {
                    self.shared.dispatcher.wake();
                }
            } else {
                if !self.pause(&mut idle_policy) {
                    return;
                }
                continue;
            }
            idle_policy = IdlePolicy::default();
        }
    }

    fn io(&mut self) -> &mut dyn WorkerIo {
        &mut **self.io.as_mut().expect("no request runs")
    }

    /// Claims the request that was received and runs it, or hands it over.
    fn run_claimed(&mut self) {
        let version = self.shared.methods.version.load(Ordering::Acquire);
        if version != self.version {
            self.version = version;
            self.methods = Arc::clone(&self.shared.methods.lock());
        }
        let mailbox = &self.shared.mailboxes[self.index];
        let io = self.io.as_mut().expect("no request runs");
        // Counted first: who drains sees the count, or this sees that it drains.
        mailbox.claimed.fetch_add(1, Ordering::SeqCst);
        let claimed = (|| {
            let datagram = io.datagram();
            let Source::Peer(peer) = datagram.source else {
                return None;
            };
            let candidate = (self.shared.claims).parse(proto_peer(peer), datagram.bytes)?;
            let method = header::method_of(candidate.payload())?;
            let handler = self.methods.get(&method)?;
            if self.shared.draining.load(Ordering::SeqCst) {
                return None;
            }
            let marked = datagram.ecn == Ecn::CongestionExperienced;
            let claim = self.shared.claims.claim(&candidate, marked)?;
            let now_ns = self.clock.now_ns();
            let info = RequestInfo {
                method,
                peer,
                timing: Timing::without_deadline(now_ns),
            };
            Some((claim, Arc::clone(handler), info))
        })();
        let Some((claim, handler, info)) = claimed else {
            mailbox.claimed.fetch_sub(1, Ordering::SeqCst);
            return io.hand_over();
        };
        let now_ns = info.timing.now_ns;
        let io = self.io.take().expect("no request runs");
        let mut job = mailbox.spare.pop().unwrap_or_else(Job::empty);
        let id = claim.id();
        let state = job.fill_in_place(claim, handler, io, info);
        *mailbox.running() = Some((id, state));
        job.run(now_ns);
        *mailbox.running() = None;
        self.io = Some(job.answer_in_place());
        let is_sent = job.is_sent();
        let mailbox = &self.shared.mailboxes[self.index];
        self.return_job(|mailbox| &mailbox.reports, job);
        // After it was handed back: who drains finds it in a look, or has said so before that.
        fence(Ordering::SeqCst);
        let is_urgent = !is_sent || self.shared.draining.load(Ordering::SeqCst);
        if is_urgent || mailbox.reports.len() >= self.shared.urgent_at {
            self.shared.dispatcher.wake();
        }
    }

    /// Gives a job to the dispatcher; waits if it has not taken the last ones.
    fn return_job(&self, queue: impl Fn(&Mailbox) -> &ArrayQueue<Box<Job>>, mut job: Box<Job>) {
        let queue = queue(&self.shared.mailboxes[self.index]);
        while let Err(back) = queue.push(job) {
            if self.shared.stop.load(Ordering::Acquire) {
                return;
            }
            self.shared.dispatcher.wake();
            std::thread::sleep(RETRY);
            job = back;
        }
    }

    /// There was nothing. False: there will be nothing any more.
    fn pause(&mut self, idle_policy: &mut IdlePolicy) -> bool {
        let next = idle_policy.wait(self.idle);
        if next == Next::Look {
            return true;
        }
        if next == Next::LookAround {
            let now = Instant::now();
            if now < self.maintained_at + MAINTAIN_INTERVAL {
                return true;
            }
            self.maintained_at = now;
        }
        if next == Next::Sleep {
            self.shared.asleep.fetch_add(1, Ordering::SeqCst);
        }
        let is_held = self.shared.held.load(Ordering::SeqCst) > 0;
        if is_held {
            // The dispatcher holds something although this one is free.
            self.shared.dispatcher.wake();
        }
        // What is counted for it may be wrong, which its device finds out in a wait.
        let limit = match next {
            Next::LookAround => Some(Duration::ZERO),
            _ => is_held.then_some(MAINTAIN_INTERVAL),
        };
        let waited = self.io().wait(limit);
        if next == Next::Sleep {
            self.shared.asleep.fetch_sub(1, Ordering::SeqCst);
        }
        waited.is_ok()
    }
}

#[cfg(test)]
mod tests;
