//! A simulated host's worker threads: a queue that they all take from, as
//! [`ThreadPool`](starling_endpoint::ThreadPool) has it, in virtual time.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use starling_endpoint::{Dispatch, Job, WorkerHandler};

use super::overload::{SharedEnds, issued_ns};
use crate::fabric::{HostId, SharedFabric};

struct Pool {
    fabric: SharedFabric,
    host: HostId,
    handler_ns: u64,
    queue: VecDeque<Job>,
    capacity: usize,
    /// What each worker does, until its alarm.
    running: Vec<Option<Job>>,
    done: VecDeque<Job>,
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
            queue: VecDeque::new(),
            capacity: queue + threads as usize,
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
        pool.done.push_back(job.expect("its alarm"));
        pool.start(worker as usize);
        let now_ns = pool.fabric.borrow().now_ns();
        pool.fabric.borrow_mut().wake_at(pool.host, now_ns);
    }
}

impl Pool {
    /// An idle worker takes jobs until it has one that runs.
    fn start(&mut self, worker: usize) {
        while let Some(mut job) = self.queue.pop_front() {
            let now_ns = self.fabric.borrow().host_now_ns(self.host);
            job.run(now_ns);
            if let Some(issued_ns) = self.ran.swap(0, Ordering::Relaxed).checked_sub(1) {
                self.ends.borrow_mut().begin(now_ns, issued_ns);
                self.running[worker] = Some(job);
                let word = self.first_alarm + worker as u64;
                let done_ns = now_ns + self.handler_ns;
                return self.fabric.borrow_mut().alarm(done_ns, word);
            }
            self.done.push_back(job);
        }
    }
}

impl Dispatch for Workers {
    fn submit(&mut self, job: Job) -> Result<(), Job> {
        let pool = &mut *self.0.borrow_mut();
        if pool.in_flight == pool.capacity {
            return Err(job);
        }
        pool.in_flight += 1;
        pool.queue.push_back(job);
        if let Some(idle) = pool.running.iter().position(Option::is_none) {
            pool.start(idle);
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<Job> {
        let pool = &mut *self.0.borrow_mut();
        let job = pool.done.pop_front()?;
        pool.in_flight -= 1;
        Some(job)
    }

    fn in_flight(&self) -> usize {
        self.0.borrow().in_flight
    }
}
