//! Worker threads of a simulated host, given jobs by the policy that ships, in virtual time.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use starling_endpoint::jbsq::{Jbsq, Mode, Placed};
use starling_endpoint::{Dispatch, Job, WorkerHandler};

use super::super::US;
use super::books::SharedBooks;
use crate::check::content;
use crate::fabric::{HostId, SharedFabric};

/// Jobs that a worker has at a time.
const DEPTH: u8 = 2;

/// What the handler that ran last was given: a worker's handler must be `Send`, so it leaves that
/// here for the pool, which has the books.
type Seen = Arc<Mutex<Option<(Vec<u8>, Option<u64>)>>>;

struct Pool {
    fabric: SharedFabric,
    host: HostId,
    books: SharedBooks,
    policy: Jbsq<Box<Job>>,
    capacity: usize,
    /// What each worker has and has not begun.
    seats: Vec<VecDeque<Box<Job>>>,
    /// What each worker does.
    running: Vec<Option<Box<Job>>>,
    /// What was run, and by whom.
    done: VecDeque<(usize, Box<Job>)>,
    in_flight: usize,
    seen: Seen,
    /// Workers that began something, and when it will be over.
    begun: Vec<(usize, u64)>,
}

/// The workers of one host.
#[derive(Clone)]
pub(super) struct Workers(Rc<RefCell<Pool>>);

impl Workers {
    pub(super) fn new(
        fabric: &SharedFabric,
        host: HostId,
        books: &SharedBooks,
        threads: usize,
        queue: usize,
    ) -> Self {
        Self(Rc::new(RefCell::new(Pool {
            fabric: fabric.clone(),
            host,
            books: books.clone(),
            policy: Jbsq::new(Mode::SingleQueue, threads, DEPTH, queue),
            capacity: queue + threads,
            seats: (0..threads).map(|_| VecDeque::new()).collect(),
            running: (0..threads).map(|_| None).collect(),
            done: VecDeque::new(),
            in_flight: 0,
            seen: Seen::default(),
            begun: Vec::new(),
        })))
    }

    /// What the workers run.
    pub(super) fn handler(&self) -> WorkerHandler {
        let seen = Arc::clone(&self.0.borrow().seen);
        Arc::new(move |request, reply| {
            let mut response = Vec::new();
            if let Ok(order) = content::read_request(request.body()) {
                content::respond(order, &mut response);
            }
            reply.buffer().extend_from_slice(&response);
            let saw = (request.body().to_vec(), request.deadline_ns());
            *seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(saw);
        })
    }

    /// Workers that began a job since the last time, and when each will be done.
    pub(super) fn take_begun(&self) -> Vec<(usize, u64)> {
        std::mem::take(&mut self.0.borrow_mut().begun)
    }

    /// A worker's handler is over.
    pub(super) fn finish(&self, worker: usize) {
        let pool = &mut *self.0.borrow_mut();
        let job = pool.running[worker].take();
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
            let (now_ns, clock_ns) = {
                let fabric = self.fabric.borrow();
                (fabric.now_ns(), fabric.host_now_ns(self.host))
            };
            job.run(clock_ns);
            let seen = self
                .seen
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            if let Some((body, deadline_ns)) = seen {
                let order = (self.books.borrow_mut()).execute(self.host, &body, deadline_ns);
                self.running[worker] = Some(job);
                let done_ns = now_ns + u64::from(order.delay_us) * US;
                return self.begun.push((worker, done_ns));
            }
            self.done.push_back((worker, job));
            self.fabric.borrow_mut().wake_at(self.host, now_ns);
        }
    }
}

impl Dispatch for Workers {
    fn submit(&mut self, job: Box<Job>) -> Result<(), Box<Job>> {
        let pool = &mut *self.0.borrow_mut();
        if pool.in_flight == pool.capacity {
            return Err(job);
        }
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
