//! The interface between an endpoint and its workers.

use starling_proto::RequestId;

use super::job::Job;

/// What workers have, for a person who looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkersReport {
    /// Jobs that were submitted and are not answered.
    pub in_flight: usize,
    /// Those of them that wait for a worker to have room.
    pub waiting: usize,
    /// Jobs with each worker: running, or next. Empty if the workers do not say.
    pub with_each: Vec<usize>,
    /// Requests that workers have claimed by themselves and not reported.
    pub claimed: usize,
}

/// Hands jobs to workers. Called by the dispatch thread only; must not block.
pub trait Dispatch: Send {
    /// Takes a job, or gives it back when all queues are full.
    fn submit(&mut self, job: Box<Job>) -> Result<(), Box<Job>>;

    /// A job that was run with [`Job::run`]. There may be one after the endpoint's waker was used.
    /// To be called until it returns `None`: a scan of all workers may continue where the last call
    /// stopped, and ends with `None`.
    fn poll(&mut self) -> Option<Box<Job>>;

    /// Called some time before [`Dispatch::poll`], so that the processor can fetch the cache lines
    /// that it will read.
    fn prefetch(&self) {}

    /// Jobs submitted and not yet polled.
    fn in_flight(&self) -> usize;

    /// A job that a worker claimed by itself. The waker may not have been used for it.
    fn poll_claimed(&mut self) -> Option<Box<Job>> {
        None
    }

    /// Maintains the workers. Called when a turn has nothing to do, and by other turns now and
    /// then: at least every 50 ms while there are sessions. `now_ns` is the endpoint's time.
    fn maintain(&mut self, now_ns: u64) {
        let _ = now_ns;
    }

    /// Takes back the last job of [`Dispatch::poll_claimed`], which is empty by now.
    fn reuse(&mut self, job: Box<Job>) {
        drop(job);
    }

    /// The client no longer waits for a request. A worker may have claimed it.
    fn handle_cancelled(&self, id: RequestId) {
        let _ = id;
    }

    /// What the workers have.
    fn report(&self) -> WorkersReport {
        WorkersReport {
            in_flight: self.in_flight(),
            claimed: self.claimed(),
            ..WorkersReport::default()
        }
    }

    /// Ends the claiming of requests by workers.
    fn drain(&mut self) {}

    /// Requests that workers claimed, or are claiming, and that were not polled.
    fn claimed(&self) -> usize {
        0
    }
}
