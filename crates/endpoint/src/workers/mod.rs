//! Worker handlers: requests that leave the dispatch thread.
//!
//! ```text
//!  dispatch thread                                      worker threads
//!  request ─▶ copied into a recycled buffer ─▶ submit ─▶ bounded queue ─▶ Job::run ─┐
//!  respond ◀─ poll ◀──────────────── bounded queue ◀────────────────── wake ◀───────┘
//! ```
//!
//! Whoever gets a job, and in what order, is the business of a [`Dispatch`]. [`ThreadPool`] is the
//! plain one: a queue that all threads take from.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender};
use starling_io::{Clock, PeerId, Wake};
use starling_proto::{Msgbuf, RequestId};

use crate::admission::Late;
use crate::header::MethodId;
use crate::metadata::{Metadata, MetadataView};
use crate::options::{Encoding, StreamPosition};
use crate::payload::OwnedMessage;
use crate::server::{
    Answer, GaveUp, NEVER, RequestFlags, RequestInfo, answer_writers, request_getters,
};
use crate::status::Status;

/// A handler that runs in a worker thread.
pub type WorkerHandler = Arc<dyn Fn(&mut WorkerRequest, &mut WorkerReply) + Send + Sync>;

/// A request in a worker thread.
#[derive(Debug)]
pub struct WorkerRequest {
    pub(crate) message: OwnedMessage,
    pub(crate) info: RequestInfo,
    pub(crate) flags: Arc<RequestFlags>,
}

impl WorkerRequest {
    request_getters!();

    /// The body.
    pub fn body(&self) -> &[u8] {
        self.message.body()
    }

    /// What the caller sent beside the body.
    pub fn metadata(&self) -> MetadataView<'_> {
        self.message.metadata()
    }

    /// How the request is encoded and the response has to be.
    pub fn encoding(&self) -> Encoding {
        self.message.encoding()
    }

    /// The place in a stream, if the caller gave one.
    pub fn stream(&self) -> Option<StreamPosition> {
        self.message.stream()
    }

    /// How long the caller still waited when the handler was begun.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline_ns()
            .map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(self.info.timing.now_ns)))
    }

    /// Whether the caller no longer waits: a long-running handler asks now and then.
    pub fn is_cancelled(&self) -> bool {
        self.flags.gave_up().is_some()
    }

    /// To keep the request beyond the handler; it reads as empty afterwards.
    pub fn take(&mut self) -> OwnedMessage {
        std::mem::take(&mut self.message)
    }
}

/// The answer of a worker handler: what is in the buffer when it returns, unless it set a status.
#[derive(Debug)]
pub struct WorkerReply {
    answer: Answer,
    status: Option<Status>,
}

impl WorkerReply {
    answer_writers!(answer);

    fn answer(&mut self) -> &mut Answer {
        &mut self.answer
    }

    /// The call failed: sends the status in place of what is in the buffer.
    pub fn set_status(&mut self, status: Status) {
        self.status = Some(status);
    }
}

/// How a job ended.
#[derive(Debug)]
pub(crate) enum JobEnd {
    Answered,
    Failed(Status),
    Panicked,
    /// Did not run.
    Late(Late),
    /// Did not run.
    Cancelled,
}

/// One request for a worker, and later its answer.
pub struct Job {
    pub(crate) id: RequestId,
    handler: WorkerHandler,
    request: WorkerRequest,
    reply: WorkerReply,
    end: Option<JobEnd>,
    /// Memory of the request, whoever has it by now.
    request_bytes: usize,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("id", &self.id)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

impl Job {
    pub(crate) fn new(
        id: RequestId,
        handler: WorkerHandler,
        request: WorkerRequest,
        answer: Answer,
    ) -> Self {
        Self {
            request_bytes: request.message.message.len(),
            id,
            handler,
            request,
            reply: WorkerReply {
                answer,
                status: None,
            },
            end: None,
        }
    }

    /// Runs the handler, unless nobody waits any more or will when it is done. Never panics.
    pub fn run(&mut self, now_ns: u64) {
        let timing = &mut self.request.info.timing;
        timing.now_ns = now_ns;
        let gave_up = self.request.flags.gave_up();
        self.end = Some(if gave_up == Some(GaveUp::Cancelled) {
            JobEnd::Cancelled
        } else if gave_up.is_some() || timing.deadline_ns <= now_ns {
            JobEnd::Late(Late::Expired)
        } else if timing.start_by_ns < now_ns {
            JobEnd::Late(Late::Overloaded)
        } else {
            let (handler, request, reply) = (&self.handler, &mut self.request, &mut self.reply);
            match catch_unwind(AssertUnwindSafe(|| handler(request, reply))) {
                Ok(()) => match reply.status.take() {
                    None => JobEnd::Answered,
                    Some(status) => JobEnd::Failed(status),
                },
                Err(_) => JobEnd::Panicked,
            }
        });
    }

    /// The method, and when its handler began; `None` if it did not run.
    pub(crate) fn began(&self) -> Option<(MethodId, u64)> {
        let ran = matches!(self.end, Some(JobEnd::Answered | JobEnd::Failed(_)));
        ran.then_some((self.request.info.method, self.request.info.timing.now_ns))
    }

    /// The request's memory, the answer, and how it ended (a job that never ran was cancelled).
    pub(crate) fn into_parts(self) -> (RequestId, Msgbuf, Answer, JobEnd) {
        (
            self.id,
            self.request.message.message,
            self.reply.answer,
            self.end.unwrap_or(JobEnd::Cancelled),
        )
    }
}

/// Hands jobs to workers. Called by the dispatch thread only; must not block.
pub trait Dispatch {
    /// Takes a job, or gives it back when all queues are full.
    // A job is as large as its parts and comes back only under overload: a box would cost more.
    #[allow(clippy::result_large_err)]
    fn submit(&mut self, job: Job) -> Result<(), Job>;

    /// A job that was run with [`Job::run`]. After the endpoint's waker was used there may be one.
    fn poll(&mut self) -> Option<Job>;

    /// Jobs submitted and not yet polled.
    fn in_flight(&self) -> usize;
}

/// Requests that are with the workers of one pool or wait for them take at most so much memory,
/// unless it is a single one: a queue of the largest requests would take all that there is.
const MAX_BYTES: usize = 512 << 20;

/// Threads that take jobs from one bounded queue.
pub struct ThreadPool {
    // Dropped to tell the threads to end.
    jobs: Option<Sender<Job>>,
    done: Receiver<Job>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    in_flight: usize,
    in_flight_bytes: usize,
    capacity: usize,
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadPool")
            .field("threads", &self.threads.len())
            .field("in_flight", &self.in_flight)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

impl ThreadPool {
    /// `threads` threads (at least one) behind a queue of `queue` jobs. `waker` is that of the
    /// endpoint's device, `clock` reads as the endpoint's does.
    pub fn new<C: Clock + Clone + Send + 'static>(
        threads: usize,
        queue: usize,
        clock: C,
        waker: Arc<dyn Wake>,
    ) -> std::io::Result<Self> {
        let threads = threads.max(1);
        let capacity = threads + queue;
        // Both hold everything that can be in flight: nobody ever blocks on a full one.
        let (jobs, job_queue) = crossbeam_channel::bounded::<Job>(capacity);
        let (done_queue, done) = crossbeam_channel::bounded::<Job>(capacity);
        let mut pool = Self {
            jobs: Some(jobs),
            done,
            stop: Arc::new(AtomicBool::new(false)),
            threads: Vec::with_capacity(threads),
            in_flight: 0,
            in_flight_bytes: 0,
            capacity,
        };
        for index in 0..threads {
            let (jobs, done) = (job_queue.clone(), done_queue.clone());
            let (clock, waker) = (clock.clone(), Arc::clone(&waker));
            let stop = Arc::clone(&pool.stop);
            pool.threads.push(
                std::thread::Builder::new()
                    .name(format!("starling-worker-{index}"))
                    .spawn(move || {
                        while let Ok(mut job) = jobs.recv() {
                            if stop.load(Ordering::Relaxed) {
                                return;
                            }
                            job.run(clock.now_ns());
                            if done.send(job).is_err() {
                                return;
                            }
                            waker.wake();
                        }
                    })?,
            );
        }
        Ok(pool)
    }
}

impl Dispatch for ThreadPool {
    fn submit(&mut self, job: Job) -> Result<(), Job> {
        let bytes = self.in_flight_bytes + job.request_bytes;
        if self.in_flight == self.capacity || (self.in_flight > 0 && bytes > MAX_BYTES) {
            return Err(job);
        }
        match &self.jobs {
            Some(jobs) => jobs.try_send(job).map_err(|error| error.into_inner())?,
            None => return Err(job),
        }
        self.in_flight += 1;
        self.in_flight_bytes = bytes;
        Ok(())
    }

    fn poll(&mut self) -> Option<Job> {
        let job = self.done.try_recv().ok()?;
        self.in_flight -= 1;
        self.in_flight_bytes -= job.request_bytes;
        Some(job)
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}

impl Drop for ThreadPool {
    /// Ends the threads. If jobs are still running their threads are left to end by themselves:
    /// a handler that never returns must not hold up who shuts down.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.jobs = None;
        while self.poll().is_some() {}
        if self.in_flight == 0 {
            for thread in self.threads.drain(..) {
                // A worker's panics were caught; there is nothing to learn from the result.
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::admission::Timing;
    use crate::payload::{Payload, PayloadBytes};

    #[derive(Clone)]
    struct Stopped;

    impl Clock for Stopped {
        fn now_ns(&self) -> u64 {
            0
        }
    }

    struct Bell(Sender<()>);

    impl Wake for Bell {
        fn wake(&self) {
            // The test may be over.
            let _ = self.0.send(());
        }
    }

    #[test]
    fn the_memory_of_waiting_requests_has_a_bound() {
        let (bell, rung) = crossbeam_channel::unbounded();
        let mut pool = ThreadPool::new(1, 100, Stopped, Arc::new(Bell(bell))).unwrap();
        let gate = Arc::new(Barrier::new(2));
        let job = |bytes: usize| {
            let gate = Arc::clone(&gate);
            // Zeros that nobody touches take no memory.
            let mut message = Msgbuf::from_vec(vec![0; bytes]);
            let payload = Payload {
                bytes: PayloadBytes::Reassembled(&mut message),
                fields_at: 0,
                body_at: 0,
            };
            let request = WorkerRequest {
                message: payload.into_owned(Msgbuf::new()),
                info: RequestInfo {
                    method: MethodId(1),
                    peer: PeerId(1),
                    timing: Timing::without_deadline(0),
                },
                flags: Arc::default(),
            };
            let wait: WorkerHandler = Arc::new(move |request, _| {
                request.take();
                gate.wait();
            });
            Job::new(RequestId::NONE, wait, request, Answer::default())
        };
        for _ in 0..4 {
            assert!(pool.submit(job(MAX_BYTES / 4)).is_ok());
        }
        assert!(pool.submit(job(1)).is_err());
        gate.wait();
        rung.recv().unwrap();
        assert!(pool.poll().is_some());
        assert!(pool.submit(job(MAX_BYTES / 4)).is_ok());
        for _ in 0..4 {
            gate.wait();
        }
    }
}
