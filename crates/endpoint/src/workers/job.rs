//! A job: one request on its way through a worker.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use starling_call::{Cancellation, Code, MethodId, OwnedMessage, Peer, Status};
use starling_io::{PeerId, WorkerIo};
use starling_proto::{Claim, Msgbuf, RequestId};

use super::request::{WorkerReply, WorkerRequest};
use crate::admission::{NotAdmitted, Timing};
use crate::handler_panic;
use crate::server::{Answer, RequestInfo};

/// A handler that runs in a worker thread.
pub type WorkerHandler = Arc<dyn Fn(&mut WorkerRequest, &mut WorkerReply) + Send + Sync>;

/// How a job ended.
#[derive(Debug)]
pub(crate) enum JobEnd {
    Answered,
    Failed(Status),
    Panicked,
    /// Did not run.
    NotAdmitted(NotAdmitted),
    /// Did not run.
    Cancelled,
}

/// One request for a worker, and later its answer. It is boxed and reused for other requests: only
/// a pointer goes from thread to thread, and nothing is allocated for a request.
pub struct Job {
    pub(crate) id: RequestId,
    /// Absent while the job is empty.
    handler: Option<WorkerHandler>,
    request: WorkerRequest,
    reply: WorkerReply,
    end: Option<JobEnd>,
    /// The claim of the worker that took the request from the device; absent if the dispatch thread
    /// submitted it.
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
    /// A job without a request.
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
                peer: Peer::unknown().clone(),
                queued_ns: 0,
                cancellation: Cancellation::default(),
            },
            reply: WorkerReply {
                answer: Answer::default(),
                status: None,
            },
            end: None,
            claim: None,
            sent: false,
        })
    }

    /// Fills the job with a request. Returns the means by which the request is cancelled.
    pub(crate) fn fill(
        &mut self,
        id: RequestId,
        handler: WorkerHandler,
        message: OwnedMessage,
        info: RequestInfo,
        peer: &Peer,
        answer: Answer,
    ) -> Cancellation {
        self.request.cancellation.renew();
        // Of one client after the other, nobody touches the count of references.
        if !self.request.peer.is_same(peer) {
            self.request.peer = peer.clone();
        }
        self.id = id;
        self.handler = Some(handler);
        self.request.message = message;
        self.request.info = info;
        self.reply.answer = answer;
        self.request.cancellation.clone()
    }

    /// Fills the job with a request that a worker claimed and that `io` has received. The answer
    /// reuses the memory of the last one.
    pub(super) fn fill_in_place(
        &mut self,
        claim: Claim,
        handler: WorkerHandler,
        io: Box<dyn WorkerIo>,
        info: RequestInfo,
        peer: &Peer,
    ) -> Cancellation {
        let answer = std::mem::take(&mut self.reply.answer);
        let id = claim.id();
        let message = OwnedMessage::default();
        let cancellation = self.fill(id, handler, message, info, peer, answer);
        self.request.place = Some(io);
        self.request.taken = false;
        self.claim = Some(claim);
        self.sent = false;
        cancellation
    }

    /// Sends the answer of a request that was run in place, if the answer is plain and fits one
    /// packet. Gives back the device.
    pub(super) fn answer_in_place(&mut self) -> Box<dyn WorkerIo> {
        let mut io = self.request.place.take().expect("it was run in place");
        let claim = self.claim.as_ref().expect("it was claimed");
        let answer = &self.reply.answer;
        let is_plain = matches!(self.end, Some(JobEnd::Answered)) && answer.extra.is_none();
        let message = &answer.message;
        if is_plain && let Some((preamble, head)) = claim.response_head(message) {
            self.sent = io.answer([&preamble, &head, message.head()]);
        }
        if !self.sent {
            io.discard();
        }
        io
    }

    /// Whether the worker has sent the answer.
    pub(super) fn is_sent(&self) -> bool {
        self.sent
    }

    /// The claim of a request that a worker claimed, and whether the worker sent the answer.
    pub(crate) fn take_claim(&mut self) -> (Claim, bool) {
        let claim = self.claim.take().expect("only claimed ones are reported");
        (claim, self.sent)
    }

    /// Keeps memory for the next answer.
    pub(crate) fn keep_buffer(&mut self, answer: Answer) {
        self.reply.answer = answer;
    }

    /// The flow of the request: requests of one flow may share a worker ([`crate::jbsq::QueueModel`]).
    pub fn flow(&self) -> u64 {
        self.request.info.peer.0.into()
    }

    /// Runs the handler, unless the caller no longer waits or the answer would come too late.
    /// Never panics: the module `handler_panic` says what a panic of the handler becomes.
    pub fn run(&mut self, now_ns: u64) {
        let timing = &mut self.request.info.timing;
        self.request.queued_ns = now_ns.saturating_sub(timing.now_ns);
        timing.now_ns = now_ns;
        let cancelled = self.request.cancellation.status();
        let cancelled = cancelled.map(|status| status.code());
        self.end = Some(if cancelled == Some(Code::Cancelled) {
            JobEnd::Cancelled
        } else if cancelled.is_some() || timing.deadline_ns <= now_ns {
            JobEnd::NotAdmitted(NotAdmitted::Expired)
        } else if timing.start_by_ns < now_ns {
            JobEnd::NotAdmitted(NotAdmitted::Overloaded)
        } else {
            let (request, reply) = (&mut self.request, &mut self.reply);
            let handler = self
                .handler
                .as_ref()
                .expect("a job is filled before it is run");
            match catch_unwind(AssertUnwindSafe(|| handler(request, reply))) {
                Ok(()) => match reply.status.take() {
                    None => JobEnd::Answered,
                    Some(status) => JobEnd::Failed(status),
                },
                Err(panic) => {
                    handler_panic::discard(panic);
                    JobEnd::Panicked
                }
            }
        });
        // For what the handler has begun and left behind.
        self.request.cancellation.finish();
    }

    /// The method, and when its handler began; `None` if it did not run.
    pub(crate) fn began(&self) -> Option<(MethodId, u64)> {
        let ran = matches!(self.end, Some(JobEnd::Answered | JobEnd::Failed(_)));
        ran.then_some((self.request.info.method, self.request.info.timing.now_ns))
    }

    /// Empties the job: the request's memory, the answer, and how the job ended (a job that never
    /// ran was cancelled).
    pub(crate) fn take_parts(&mut self) -> (Msgbuf, Answer, JobEnd) {
        self.handler = None;
        self.reply.status = None;
        (
            std::mem::take(&mut self.request.message).into_parts().0,
            std::mem::take(&mut self.reply.answer),
            self.end.take().unwrap_or(JobEnd::Cancelled),
        )
    }
}
