//! A simulated host's worker threads, given jobs by the policy that
//! [`ThreadPool`](starling_endpoint::ThreadPool) ships with, in virtual time.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use starling_endpoint::jbsq::{Jbsq, Mode, Placed};
use starling_endpoint::{Dispatch, Job, WorkerConfig, WorkerHandler};

use super::overload::{SharedEnds, issued_ns};
use crate::fabric::{HostId, SharedFabric};

struct Pool {
    fabric: SharedFabric,
    host: HostId,
    handler_ns: u64,
    policy: Jbsq<Box<Job>>,
    capacity: usize,
    /// What each worker has and has not begun.
    seats: Vec<VecDeque<Box<Job>>>,
    /// What each worker does, until its alarm.
    running: Vec<Option<Box<Job>>>,
    /// What was run, and by whom.
    done: VecDeque<(usize, Box<Job>)>,
    in_flight: usize,
    /// The word of the first worker's alarm.
    first_alarm: u64,
    /// One more than when the call was made whose handler ran last; zero: taken note of.
    ran: Arc<AtomicU64>,
    ends: SharedEnds,
}

/// The workers of one host.
#[derive(Clone)]
pub(super) struct Workers(Rc<RefCell<Pool>>);

impl Workers {
    pub(super) fn new(
        fabric: &SharedFabric,
        host: HostId,
        threads: u64,
        queue: usize,
        handler_ns: u64,
        ends: &SharedEnds,
    ) -> Self {
        Self(Rc::new(RefCell::new(Pool {
            fabric: fabric.clone(),
            host,
            handler_ns,
            policy: Jbsq::new(
                Mode::SingleQueue,
                threads as usize,
                WorkerConfig::new(1, 0).depth,
                queue,
            ),
            capacity: queue + threads as usize,
            seats: (0..threads).map(|_| VecDeque::new()).collect(),
            running: (0..threads).map(|_| None).collect(),
            done: VecDeque::new(),
            in_flight: 0,
            first_alarm: 0,
            ran: Arc::default(),
            ends: ends.clone(),
        })))
    }

    pub(super) fn set_first_alarm(&self, word: u64) {
        self.0.borrow_mut().first_alarm = word;
    }

    /// What the workers run: an echo. How long it takes is the pool's business.
    pub(super) fn handler(&self) -> WorkerHandler {
        let ran = Arc::clone(&self.0.borrow().ran);
        Arc::new(move |request, reply| {
            ran.store(issued_ns(request.body()) + 1, Ordering::Relaxed);
            reply.buffer().extend_from_slice(request.body());
        })
    }

    /// A worker's handler is over.
    pub(super) fn finish(&self, worker: u64) {
        let pool = &mut *self.0.borrow_mut();
        let job = pool.running[worker as usize].take();
        let worker = worker as usize;
        pool.done.push_back((worker, job.expect("its alarm")));
        pool.start(worker);
        let now_ns = pool.fabric.borrow().now_ns();
        pool.fabric.borrow_mut().wake_at(pool.host, now_ns);
    }
}

impl Pool {
    fn give(&mut self, worker: usize, job: Box<Job>) {
        self.seats[worker].push_back(job);
        if self.running[worker].is_none() {
            self.start(worker);
        }
    }

    /// An idle worker takes jobs until it has one that runs.
    fn start(&mut self, worker: usize) {
        while let Some(mut job) = self.seats[worker].pop_front() {
            let now_ns = self.fabric.borrow().host_now_ns(self.host);
            job.run(now_ns);
            if let Some(issued_ns) = self.ran.swap(0, Ordering::Relaxed).checked_sub(1) {
                self.ends.borrow_mut().begin(now_ns, issued_ns);
                self.running[worker] = Some(job);
                let word = self.first_alarm + worker as u64;
                let done_ns = now_ns + self.handler_ns;
                return self.fabric.borrow_mut().alarm(done_ns, word);
            }
            self.done.push_back((worker, job));
        }
    }
}

impl Dispatch for Workers {
    fn submit(&mut self, job: Box<Job>) -> Result<(), Box<Job>> {
        let pool = &mut *self.0.borrow_mut();
        if pool.in_flight == pool.capacity {
            return Err(job);
        }
        // One queue for all: which flow it is makes no difference.
        match pool.policy.submit(0, job) {
            Placed::Given(worker, job) => pool.give(worker, job),
            Placed::Waits => {}
            Placed::Refused(job) => return Err(job),
        }
        pool.in_flight += 1;
        Ok(())
    }

    fn poll(&mut self) -> Option<Box<Job>> {
        let pool = &mut *self.0.borrow_mut();
        let (worker, job) = pool.done.pop_front()?;
        pool.in_flight -= 1;
        if let Some(next) = pool.policy.complete(worker) {
            pool.give(worker, next);
        }
        Some(job)
    }

    fn in_flight(&self) -> usize {
        self.0.borrow().in_flight
    }
}
