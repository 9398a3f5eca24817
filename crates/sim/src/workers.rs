//! A simulated host's worker threads, given jobs by the policy that
//! [`ThreadPool`](starling_endpoint::ThreadPool) ships with, in virtual time.
//!
//! A handler runs at the moment when its worker begins it; the worker is then busy for the
//! handler's stated time. The loop that drives the host takes the requests that were begun and says
//! when each is over.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use starling_endpoint::jbsq::{Decision, Jbsq, QueueModel};
use starling_endpoint::{Dispatch, Job, WorkerConfig};

use crate::fabric::{HostId, SharedFabric};

/// Returns how long the handler of the job that was just run takes, ns, given the host's time.
/// `None`: the job had nothing to run any more.
type TakesNs = Box<dyn FnMut(u64) -> Option<u64> + Send>;

struct Pool {
    fabric: SharedFabric,
    host: HostId,
    policy: Jbsq<Box<Job>>,
    /// Each worker's requests that have not begun.
    waiting: Vec<VecDeque<Box<Job>>>,
    /// Each worker's current request.
    running: Vec<Option<Box<Job>>>,
    /// The jobs that were run, with their workers.
    done: VecDeque<(usize, Box<Job>)>,
    in_flight: usize,
    takes_ns: TakesNs,
    /// Workers that began something, and when it will be over.
    begun: Vec<(usize, u64)>,
}

/// The workers of one host.
#[derive(Clone)]
pub(crate) struct Workers(Arc<Mutex<Pool>>);

impl Workers {
    /// `threads` of them behind one queue of `queue` jobs.
    pub(crate) fn new(
        fabric: &SharedFabric,
        host: HostId,
        threads: usize,
        queue: usize,
        takes_ns: TakesNs,
    ) -> Self {
        let depth = WorkerConfig::new(1, 0).depth;
        Self(Arc::new(Mutex::new(Pool {
            fabric: fabric.clone(),
            host,
            policy: Jbsq::new(QueueModel::SingleQueue, threads, depth, queue),
            waiting: (0..threads).map(|_| VecDeque::new()).collect(),
            running: (0..threads).map(|_| None).collect(),
            done: VecDeque::new(),
            in_flight: 0,
            takes_ns,
            begun: Vec::new(),
        })))
    }

    /// Workers that began a job since the last time, and when each will be done.
    pub(crate) fn take_begun(&self) -> Vec<(usize, u64)> {
        std::mem::take(&mut self.0.lock().begun)
    }

    /// A worker's handler is over.
    pub(crate) fn finish(&self, worker: usize) {
        let pool = &mut *self.0.lock();
        let job = pool.running[worker].take();
        pool.done.push_back((worker, job.expect("its alarm")));
        pool.start(worker);
        let now_ns = pool.fabric.lock().now_ns();
        pool.fabric.lock().wake_at(pool.host, now_ns);
    }
}

impl Pool {
    fn give(&mut self, worker: usize, job: Box<Job>) {
        self.waiting[worker].push_back(job);
        if self.running[worker].is_none() {
            self.start(worker);
        }
    }

    /// An idle worker takes jobs until it has one that runs.
    fn start(&mut self, worker: usize) {
        while let Some(mut job) = self.waiting[worker].pop_front() {
            let (now_ns, clock_ns) = {
                let fabric = self.fabric.lock();
                (fabric.now_ns(), fabric.host_now_ns(self.host))
            };
            job.run(clock_ns);
            if let Some(takes_ns) = (self.takes_ns)(clock_ns) {
                self.running[worker] = Some(job);
                return self.begun.push((worker, now_ns + takes_ns));
            }
            self.done.push_back((worker, job));
            self.fabric.lock().wake_at(self.host, now_ns);
        }
    }
}

impl Dispatch for Workers {
    fn submit(&mut self, job: Box<Job>) -> Result<(), Box<Job>> {
        let pool = &mut *self.0.lock();
        match pool.policy.submit(job.flow(), job) {
            Decision::Assigned(worker, job) => pool.give(worker, job),
            Decision::Queued => {}
            Decision::Refused(job) => return Err(job),
        }
        pool.in_flight += 1;
        Ok(())
    }

    fn poll(&mut self) -> Option<Box<Job>> {
        let pool = &mut *self.0.lock();
        let (worker, job) = pool.done.pop_front()?;
        pool.in_flight -= 1;
        if let Some(next) = pool.policy.complete(worker) {
            pool.give(worker, next);
        }
        Some(job)
    }

    fn in_flight(&self) -> usize {
        self.0.lock().in_flight
    }
}
