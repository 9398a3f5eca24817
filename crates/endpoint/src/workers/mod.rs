//! Worker handlers: requests that leave the dispatch thread.
//!
//! ```text
//!  dispatch thread                                      worker threads
//!  request ─▶ copied into a recycled buffer ─▶ submit ─▶ bounded queues ─▶ Job::run ─┐
//!  respond ◀─ poll ◀──────────────── bounded queue ◀─────────────────── wake ◀───────┘
//! ```
//!
//! Whoever gets a job, and in what order, is the business of a [`Dispatch`]. [`ThreadPool`] is the
//! usual one: threads that are given jobs as [`jbsq`] says. [`steered`] has threads that a device
//! gives requests to by itself, as far as they are plain.

pub mod jbsq;
pub(crate) mod match_table;
mod pool;
pub(crate) mod steered;
mod vigil;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use starling_call::header::REQUEST_BODY_AT;
use starling_call::{Encoding, Metadata, MetadataView, MethodId, Status, StreamPosition};
use starling_io::{Fault, IoError, PeerId, WorkerIo};
use starling_proto::{Claim, HEADER_BYTES, Msgbuf, PREAMBLE_BYTES, RequestId};

pub use self::pool::ThreadPool;
use crate::admission::{Late, Timing};
use crate::panics;
use crate::payload::OwnedMessage;
use crate::server::{
    Answer, GaveUp, NEVER, RequestFlags, RequestInfo, answer_writers, request_getters,
};

/// The thread of worker `index`.
fn start_thread(
    index: usize,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, IoError> {
    let thread = std::thread::Builder::new().name(format!("starling-worker-{index}"));
    thread.spawn(work).map_err(|error| {
        let remedy = "raise the limit on threads, or have fewer workers";
        IoError::from_os(Fault::Host, "start worker threads", error, remedy)
    })
}

/// A handler that runs in a worker thread.
pub type WorkerHandler = Arc<dyn Fn(&mut WorkerRequest, &mut WorkerReply) + Send + Sync>;

/// Where the body of a request that a worker claimed begins in its datagram.
const IN_PLACE_BODY_AT: usize = PREAMBLE_BYTES + HEADER_BYTES + REQUEST_BODY_AT;

/// A request in a worker thread.
pub struct WorkerRequest {
    /// Empty if the request is in a device's memory, or was taken.
    pub(crate) message: OwnedMessage,
    /// The device that has the request in its memory, and whether it was taken out of there.
    place: Option<Box<dyn WorkerIo>>,
    taken: bool,
    pub(crate) info: RequestInfo,
    pub(crate) flags: Arc<RequestFlags>,
}

impl WorkerRequest {
    request_getters!();

    /// The body.
    pub fn body(&self) -> &[u8] {
        match &self.place {
            Some(io) if !self.taken => &io.datagram().bytes[IN_PLACE_BODY_AT..],
            _ => self.message.body(),
        }
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
        if self.place.is_some() && !self.taken {
            // The device needs its memory again.
            let message = OwnedMessage::of_body(self.body().to_vec());
            self.taken = true;
            return message;
        }
        std::mem::take(&mut self.message)
    }
}

impl fmt::Debug for WorkerRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerRequest")
            .field("info", &self.info)
            .field("body", &self.body())
            .finish_non_exhaustive()
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

/// One request for a worker, and later its answer. Boxed, and used again for other requests: what
/// goes from thread to thread is a pointer, and nothing is allocated for it.
pub struct Job {
    pub(crate) id: RequestId,
    /// Absent while it stands for no request.
    handler: Option<WorkerHandler>,
    request: WorkerRequest,
    reply: WorkerReply,
    end: Option<JobEnd>,
    /// Memory of the request, whoever has it by now.
    request_bytes: usize,
    /// The worker's right to run it, if it was not given to the worker.
    claim: Option<Claim>,
    /// The worker has sent the answer.
    sent: bool,
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
    /// One that stands for no request.
    pub(crate) fn empty() -> Box<Self> {
        Box::new(Self {
            id: RequestId::NONE,
            handler: None,
            request: WorkerRequest {
                message: OwnedMessage::default(),
                place: None,
                taken: false,
                info: RequestInfo {
                    method: MethodId(0),
                    peer: PeerId(0),
                    timing: Timing::without_deadline(0),
                },
                flags: Arc::default(),
            },
            reply: WorkerReply {
                answer: Answer::default(),
                status: None,
            },
            end: None,
            request_bytes: 0,
            claim: None,
            sent: false,
        })
    }

    /// Makes it stand for a request. Returns what tells whoever works on it that nobody waits.
    pub(crate) fn fill(
        &mut self,
        id: RequestId,
        handler: WorkerHandler,
        message: OwnedMessage,
        info: RequestInfo,
        answer: Answer,
    ) -> Arc<RequestFlags> {
        let flags = &mut self.request.flags;
        match Arc::get_mut(flags) {
            Some(flags) => *flags = RequestFlags::default(),
            None => *flags = Arc::default(),
        }
        self.id = id;
        self.handler = Some(handler);
        self.request_bytes = message.message.len();
        self.request.message = message;
        self.request.info = info;
        self.reply.answer = answer;
        Arc::clone(&self.request.flags)
    }

    /// Makes it stand for a request that a worker claimed and that `io` has received. The answer's
    /// memory is that of the last one.
    fn fill_in_place(
        &mut self,
        claim: Claim,
        handler: WorkerHandler,
        io: Box<dyn WorkerIo>,
        info: RequestInfo,
    ) -> Arc<RequestFlags> {
        let answer = std::mem::take(&mut self.reply.answer);
        let id = claim.id();
        let flags = self.fill(id, handler, OwnedMessage::default(), info, answer);
        self.request.place = Some(io);
        self.request.taken = false;
        self.claim = Some(claim);
        self.sent = false;
        flags
    }

    /// Sends the answer of a request that was run in place, if it is a plain one of one packet;
    /// gives back the device.
    fn answer_in_place(&mut self) -> Box<dyn WorkerIo> {
        let mut io = self.request.place.take().expect("it was run in place");
        let claim = self.claim.as_ref().expect("it was claimed");
        let Answer { message, extra } = &self.reply.answer;
        let is_plain = matches!(self.end, Some(JobEnd::Answered)) && extra.is_none();
        if is_plain && let Some((preamble, head)) = claim.response_head(message) {
            self.sent = io.answer([&preamble, &head, message.head()]);
        }
        if !self.sent {
            io.discard();
        }
        io
    }

    /// Whether the worker has sent the answer.
    fn is_sent(&self) -> bool {
        self.sent
    }

    /// The claim of a request that a worker claimed, and whether the answer was sent.
    pub(crate) fn take_claim(&mut self) -> (Claim, bool) {
        let claim = self.claim.take().expect("only claimed ones are reported");
        (claim, self.sent)
    }

    /// Memory for the next answer.
    pub(crate) fn keep_buffer(&mut self, answer: Answer) {
        self.reply.answer = answer;
    }

    /// Whose request it is: requests of one flow may share a worker ([`jbsq::Mode`]).
    fn flow(&self) -> u64 {
        self.request.info.peer.0.into()
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
            let (request, reply) = (&mut self.request, &mut self.reply);
            let handler = self
                .handler
                .as_ref()
                .expect("a job is filled before it is run");
            match catch_unwind(AssertUnwindSafe(|| handler(request, reply))) {
                Ok(()) => match reply.status.take() {
                    None => JobEnd::Answered,
                    Some(status) => JobEnd::Failed(status.with_run()),
                },
                Err(panic) => {
                    panics::discard(panic);
                    JobEnd::Panicked
                }
            }
        });
    }

    /// The method, and when its handler began; `None` if it did not run.
    pub(crate) fn began(&self) -> Option<(MethodId, u64)> {
        let ran = matches!(self.end, Some(JobEnd::Answered | JobEnd::Failed(_)));
        ran.then_some((self.request.info.method, self.request.info.timing.now_ns))
    }

    /// The request's memory, the answer, and how it ended (a job that never ran was cancelled).
    /// What is left stands for no request.
    pub(crate) fn take_parts(&mut self) -> (Msgbuf, Answer, JobEnd) {
        self.handler = None;
        self.reply.status = None;
        (
            std::mem::take(&mut self.request.message).message,
            std::mem::take(&mut self.reply.answer),
            self.end.take().unwrap_or(JobEnd::Cancelled),
        )
    }
}

/// Hands jobs to workers. Called by the dispatch thread only; must not block.
pub trait Dispatch {
    /// Takes a job, or gives it back when all queues are full.
    fn submit(&mut self, job: Box<Job>) -> Result<(), Box<Job>>;

    /// A job that was run with [`Job::run`]. After the endpoint's waker was used there may be one.
    /// To be asked until there is none: a look at all workers may go on from where the last call
    /// has left it, and ends with `None`.
    fn poll(&mut self) -> Option<Box<Job>>;

    /// Told some time before [`Dispatch::poll`], in which the processor can get hold of what that
    /// will look at.
    fn prefetch(&self) {}

    /// Jobs submitted and not yet polled.
    fn in_flight(&self) -> usize;

    /// A job that a worker claimed by itself. The waker may not have been used for it.
    fn poll_claimed(&mut self) -> Option<Box<Job>> {
        None
    }

    /// Looks after the workers: called when a turn has found nothing to do and now and then by others,
    /// at least every 50 ms while there are sessions. `now_ns` is the endpoint's time.
    fn tend(&mut self, now_ns: u64) {
        let _ = now_ns;
    }

    /// Takes back the last job of [`Dispatch::poll_claimed`], which stands for nothing any more.
    fn reuse(&mut self, job: Box<Job>) {
        drop(job);
    }

    /// Nobody waits any more for a request that a worker may have claimed.
    fn give_up(&self, id: RequestId) {
        let _ = id;
    }

    /// Workers are to claim nothing any more.
    fn drain(&mut self) {}

    /// Requests that workers claimed, or may be claiming, and that were not polled.
    fn claimed(&self) -> usize {
        0
    }
}
