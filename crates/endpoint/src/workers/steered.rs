//! Worker threads that a device steers requests to ([`starling_io::WorkerIo`]).
//!
//! ```text
//!               ┌─▶ worker: claim ─▶ run in place ─▶ answer ─▶ report ─┐
//!  device ──────┤      ▲   └ no claim: hand over ─┐                    ▼
//!               └──────┼──▶ dispatch thread ◀─────┘              poll_claimed
//!                      │        │ submit
//!                      └─ given ┴─ held until a worker is free
//! ```
//!
//! A worker answers a request that it claimed before the dispatch thread knows of it, as in
//! RPCValet (ASPLOS 2019, section 4). A report tells the dispatch thread about it. The report does
//! not wake that thread while there is room for more: it polls at least as often as it polls its
//! peers.
//!
//! The device gives some requests to the dispatch thread: calls with a deadline, large ones, and
//! those that arrived when all workers were busy. This pool hands them out, in order, by the
//! device's own counts.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use starling_call::{Cancellation, header};
use starling_io::{Clock, Ecn, IoError, Source, Steered, Steering, Wake, WorkerIo};
use starling_proto::{Claims, RequestId};

use super::callers::Callers;
use super::dispatch::{Dispatch, WorkersReport};
use super::idle_policy::{IdlePolicy, Next};
use super::job::Job;
use super::thread::start_thread;
use super::worker_methods::{Table, WorkerMethods};
use crate::admission::Timing;
use crate::config::{Idle, WorkerConfig};
use crate::convert::proto_peer;
use crate::flow_queue::FlowQueue;
use crate::server::{RequestInfo, cancelled};

/// Jobs that the dispatch thread gave to one worker, or that come back from it, at most.
const MAILBOX_JOBS: usize = 64;
/// Reports of one worker that the dispatch thread has not taken: about this many at most.
const REPORTS: usize = 256;
/// A worker retries a full queue to the dispatch thread after this time.
const RETRY: Duration = Duration::from_micros(50);
/// An idle worker maintains its device this often if it does not sleep, or if the dispatch thread
/// holds jobs although the worker is free.
const MAINTAIN_INTERVAL: Duration = Duration::from_millis(1);

/// The pool looks for blocked workers this often at most. A client that gets no answer to its
/// requests for 2.25 s takes its session for broken, and it asks at least every 50 ms.
const MAINTAIN_NS: u64 = 50_000_000;

/// Threads that run jobs from a device and from the dispatch thread.
pub(crate) struct SteeredPool {
    steering: Box<dyn Steering>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Jobs that wait for a worker, oldest first.
    held: FlowQueue<Box<Job>>,
    /// Those of each flow.
    capacity: usize,
    in_flight: usize,
    /// The worker whose reports were polled last.
    polled: usize,
    /// When to maintain the workers again.
    maintain_at_ns: u64,
    /// The version of the methods that the device knows.
    version: u64,
}

/// The state that all threads share.
struct Shared {
    mailboxes: Vec<CachePadded<Mailbox>>,
    claims: Arc<Claims>,
    methods: Arc<WorkerMethods>,
    /// Wakes the dispatch thread.
    dispatcher: Arc<dyn Wake>,
    /// Jobs that the dispatch thread holds.
    held: AtomicUsize,
    /// Workers that sleep, or are about to. Each side writes its own counter, then reads the other.
    asleep: AtomicUsize,
    /// This many reports of one worker wake the dispatch thread.
    urgent_at: usize,
    /// Workers claim nothing any more.
    draining: AtomicBool,
    stop: AtomicBool,
}

/// The queues between the dispatch thread and one worker.
struct Mailbox {
    given: ArrayQueue<Box<Job>>,
    done: ArrayQueue<Box<Job>>,
    /// Jobs that the worker claimed, and empty ones that it fills next.
    reports: ArrayQueue<Box<Job>>,
    spare: ArrayQueue<Box<Job>>,
    /// Requests that it claimed, or is about to claim, and whose reports are not polled.
    claimed: AtomicU32,
    /// The claimed request that runs.
    running: Mutex<Option<(RequestId, Cancellation)>>,
    waker: Arc<dyn Wake>,
}

impl Mailbox {
    fn running(&self) -> MutexGuard<'_, Option<(RequestId, Cancellation)>> {
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
    /// `clock` is the endpoint's clock, `dispatcher` wakes its thread; `methods` has been filled.
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
        // The device gets memory of answered requests back when the dispatch thread polls. A
        // quarter of the memory may wait before that thread is woken.
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
            held: FlowQueue::default(),
            capacity: config.queue,
            in_flight: 0,
            polled: 0,
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
                callers: Callers::default(),
            };
            pool.threads
                .push(start_thread(index, move || worker.work())?);
        }
        // Last, so that no worker claims a request before the pool exists.
        pool.add_methods();
        Ok(pool)
    }

    /// Makes new worker methods known to the device.
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

    /// Hands out held jobs while workers are free.
    fn hand_out(&mut self) {
        loop {
            self.hand_to_free_workers();
            let before = self.shared.held.load(Ordering::Relaxed);
            if before == self.held.len() {
                return;
            }
            self.shared.held.store(self.held.len(), Ordering::SeqCst);
            self.steering.set_held(self.held.len());
            if before == 0 && self.shared.asleep.load(Ordering::SeqCst) > 0 {
                // A worker that sleeps although all workers count as busy has a wrong count.
                for mailbox in &self.shared.mailboxes {
                    mailbox.waker.wake();
                }
            }
            // A worker may have become free before it could see the held jobs: look again.
        }
    }

    fn hand_to_free_workers(&mut self) {
        while !self.held.is_empty() {
            let Some(worker) = self.steering.reserve() else {
                break;
            };
            let Some(job) = self.held.pop() else {
                break;
            };
            let mailbox = &self.shared.mailboxes[worker];
            if let Err(job) = mailbox.given.push(job) {
                // The worker has far more than its bound: another process wrote to the counts.
                self.held.put_back(job.flow(), job);
                break;
            }
            mailbox.waker.wake();
        }
    }
}

impl Dispatch for SteeredPool {
    fn submit(&mut self, job: Box<Job>) -> Result<(), Box<Job>> {
        if self.held.len() > self.capacity {
            return Err(job);
        }
        let flow = job.flow();
        self.in_flight += 1;
        self.held.push(flow, job);
        self.hand_out();
        // As in `Jbsq`: a flow has at most as many as there was room for, this one included.
        let may_hold = (self.capacity + 1).saturating_sub(self.held.len());
        if self.held.count(flow) > may_hold
            && let Some(job) = self.held.pop_last(flow)
        {
            self.in_flight -= 1;
            self.hand_out();
            return Err(job);
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<Box<Job>> {
        let job = (self.shared.mailboxes.iter()).find_map(|mailbox| mailbox.done.pop());
        self.in_flight -= usize::from(job.is_some());
        self.hand_out();
        job
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn poll_claimed(&mut self) -> Option<Box<Job>> {
        for _ in 0..self.shared.mailboxes.len() {
            let mailbox = &self.shared.mailboxes[self.polled];
            if let Some(job) = mailbox.reports.pop() {
                mailbox.claimed.fetch_sub(1, Ordering::SeqCst);
                return Some(job);
            }
            self.polled = (self.polled + 1) % self.shared.mailboxes.len();
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
        // A full queue has as many as the worker can use; then the job is dropped.
        let _ = self.shared.mailboxes[self.polled].spare.push(job);
    }

    fn drain(&mut self) {
        self.shared.draining.store(true, Ordering::SeqCst);
        self.steering.stop();
    }

    fn handle_cancelled(&self, id: RequestId) {
        for mailbox in &self.shared.mailboxes {
            if let Some((running, cancellation)) = &*mailbox.running()
                && *running == id
            {
                cancellation.cancel(cancelled());
            }
        }
    }

    fn report(&self) -> WorkersReport {
        let given = |mailbox: &CachePadded<Mailbox>| mailbox.given.len();
        WorkersReport {
            in_flight: self.in_flight,
            waiting: self.held.len(),
            with_each: self.shared.mailboxes.iter().map(given).collect(),
            claimed: self.claimed(),
        }
    }

    fn claimed(&self) -> usize {
        let count =
            |mailbox: &CachePadded<Mailbox>| mailbox.claimed.load(Ordering::SeqCst) as usize;
        self.shared.mailboxes.iter().map(count).sum()
    }
}

impl Drop for SteeredPool {
    /// Ends the threads. Threads whose handlers still run are left to end by themselves.
    fn drop(&mut self) {
        self.drain();
        self.shared.stop.store(true, Ordering::Release);
        for mailbox in &self.shared.mailboxes {
            if let Some((_, cancellation)) = &*mailbox.running() {
                cancellation.cancel(cancelled());
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
                // A worker catches all panics, so the result says nothing.
                let _ = thread.join();
            }
        }
    }
}

/// The view of one thread.
struct Worker<C> {
    index: usize,
    shared: Arc<Shared>,
    /// Absent while a request runs in its memory.
    io: Option<Box<dyn WorkerIo>>,
    clock: C,
    idle: Idle,
    methods: Arc<Table>,
    version: u64,
    /// When it last maintained its device without sleeping.
    maintained_at: Instant,
    callers: Callers,
}

impl<C: Clock> Worker<C> {
    fn work(&mut self) {
        let mut policy = IdlePolicy::default();
        while !self.shared.stop.load(Ordering::Acquire) {
            if let Some(mut job) = self.shared.mailboxes[self.index].given.pop() {
                job.run(self.clock.now_ns());
                self.return_job(|mailbox| &mailbox.done, job);
                // Counted as free first: the dispatch thread may have a job for this worker.
                self.io().complete();
                self.shared.dispatcher.wake();
            } else if self.io().receive() {
                self.run_claimed();
                self.io().complete();
                if self.shared.held.load(Ordering::SeqCst) > 0 {
                    self.shared.dispatcher.wake();
                }
            } else {
                if !self.pause(&mut policy) {
                    return;
                }
                continue;
            }
            policy = IdlePolicy::default();
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
        // Counted first: either a draining thread sees the count, or this worker sees that it
        // drains.
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
        let caller = self.callers.of(info.peer, io.sender());
        let cancellation = job.fill_in_place(claim, handler, io, info, caller);
        *mailbox.running() = Some((id, cancellation));
        job.run(now_ns);
        *mailbox.running() = None;
        self.io = Some(job.answer_in_place());
        let is_sent = job.is_sent();
        let mailbox = &self.shared.mailboxes[self.index];
        self.return_job(|mailbox| &mailbox.reports, job);
        // After the report: either a draining thread finds it, or this worker sees that it drains.
        fence(Ordering::SeqCst);
        let is_urgent = !is_sent || self.shared.draining.load(Ordering::SeqCst);
        if is_urgent || mailbox.reports.len() >= self.shared.urgent_at {
            self.shared.dispatcher.wake();
        }
    }

    /// Returns a job to the dispatch thread. Waits if the queue is full.
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

    /// Waits after there was nothing to do. False: the device has failed.
    fn pause(&mut self, policy: &mut IdlePolicy) -> bool {
        let next = policy.wait(self.idle);
        if next == Next::Retry {
            return true;
        }
        if next == Next::Steal {
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
            // The dispatch thread holds jobs although this worker is free.
            self.shared.dispatcher.wake();
        }
        // The count of this worker may be wrong; its device finds that out in a wait.
        let limit = match next {
            Next::Steal => Some(Duration::ZERO),
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
