//! A call on the server, as a handler sees it: the request, and the ways to answer it.
//!
//! ```text
//!                 ┌─ reply.ok() ───────────▶ body, as written into reply.buffer()
//!  handler(reply) ┼─ reply.status(status) ─▶ status
//!                 ├─ (dropped, or panic) ──▶ INTERNAL
//!                 └─ reply.defer() ─▶ DeferredReply ┬─ Context::complete ──────▶ body
//!                                                   ├─ Context::complete_with ─▶ status
//!                                                   └─ (dropped) ──────────────▶ INTERNAL
//! ```

mod answer;
mod held_reply;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use starling_call::header::{self, STREAM_RESPONSE_LEN};
use starling_call::{
    Cancellation, Encoding, Metadata, MetadataView, MethodId, OwnedMessage, Peer, RequestCoding,
    RequestView, ResponseBuilder, Status, StreamPosition, UnaryFn,
};
use starling_io::PeerId;
use starling_proto::{Msgbuf, Prefix, RequestId};

use crate::admission::Timing;
use crate::payload::Payload;
use crate::room::Holding;
use crate::sleep_state::SleepState;
use crate::timers::NEVER;

pub(crate) use answer::Answer;
pub use held_reply::HeldReply;

/// The facts about a request besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestInfo {
    pub(crate) method: MethodId,
    pub(crate) peer: PeerId,
    pub(crate) timing: Timing,
}

/// A request, in place in the receive buffer.
#[derive(Debug)]
pub struct Request<'a> {
    pub(crate) payload: Payload<'a>,
    pub(crate) method: MethodId,
    pub(crate) peer: PeerId,
    /// If it has a deadline.
    pub(crate) timing: Option<Timing>,
}

impl Request<'_> {
    /// The method that was called.
    pub fn method(&self) -> MethodId {
        self.method
    }

    /// The calling peer, as the device numbers it.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// When the caller gives up, in nanoseconds of the endpoint's clock.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.timing.map(|timing| timing.deadline_ns)
    }

    /// The body.
    #[inline]
    pub fn body(&self) -> &[u8] {
        self.payload.body()
    }

    /// The metadata that the caller sent.
    pub fn metadata(&self) -> MetadataView<'_> {
        MetadataView::of_extension(self.payload.fields())
    }

    /// The encoding of the request, which the response must have, too.
    #[inline]
    pub fn encoding(&self) -> Encoding {
        match self.payload.fields() {
            [] => Encoding::Native,
            fields => header::encoding_of(fields),
        }
    }

    /// The position in a stream, if the caller gave one.
    pub fn stream(&self) -> Option<StreamPosition> {
        header::stream_of(self.payload.fields())
    }

    /// What the request says of compression.
    pub fn coding(&self) -> RequestCoding {
        header::form_of(self.payload.fields()).1
    }

    /// How long the caller still waits: the timeout for nested calls.
    pub fn remaining(&self) -> Option<Duration> {
        self.timing.map(|timing| timing.remaining())
    }

    /// The request, to keep it longer than the handler runs. A large one is moved, a small one
    /// copied.
    pub fn into_owned(self) -> OwnedMessage {
        self.into_owned_in(|_| Msgbuf::new())
    }

    /// The same. A small request, of so many bytes, is copied into the memory that `spare` gives.
    pub fn into_owned_in(self, spare: impl FnOnce(usize) -> Msgbuf) -> OwnedMessage {
        self.payload.into_owned(spare)
    }

    /// The request, for a handler that knows no endpoint.
    #[inline]
    fn view(&self) -> RequestView<'_> {
        RequestView::new(self.payload.body(), self.payload.fields(), self.remaining())
    }
}

/// Why a request is cancelled: its caller cancelled the call, closed its session, or has failed.
#[cold]
pub(crate) fn cancelled() -> Status {
    Status::cancelled("the caller no longer waits")
}

/// Why a request is cancelled: the caller's deadline passed.
#[cold]
pub(crate) fn expired() -> Status {
    Status::deadline_exceeded("the deadline passed while the server's handler waited")
}

macro_rules! answer_writers {
    ($answer:ident) => {
        /// The buffer for the body of the response: empty, with memory.
        #[inline]
        pub fn buffer(&mut self) -> &mut Vec<u8> {
            self.$answer().message.head_mut()
        }

        /// Appends a tail to the response, which is sent without a copy. There is only one: a second
        /// one replaces the first.
        pub fn set_tail(&mut self, tail: Bytes) {
            let message = std::mem::take(&mut self.$answer().message);
            let (head, _) = message.into_parts();
            self.$answer().message = Msgbuf::from_parts(head, Some(tail));
        }

        /// Sends a response that was built elsewhere. A large one is moved, a small one copied.
        pub fn set_response(&mut self, response: $crate::ResponseMessage) {
            self.$answer().set_response(response);
        }

        /// Sends metadata with the response.
        pub fn set_metadata(&mut self, metadata: Metadata) {
            self.$answer().extra().metadata = metadata;
        }

        /// Says how the body of the response is compressed.
        pub fn set_compressed(&mut self, compressed: $crate::CompressedBody) {
            self.$answer().extra().compressed = Some(compressed);
        }
    };
}
pub(crate) use answer_writers;

/// How a handler left its reply, if it neither succeeded nor dropped the reply.
#[derive(Debug)]
pub(crate) enum ReplyOutcome {
    Status(Status),
    Deferred(Cancellation),
    /// As one of several that have this cancellation.
    Held(Cancellation),
}

/// The slot that the reply of an inline handler writes to. One slot serves all requests in turn, so
/// the response's buffer exists already and nothing is built and dropped for each request.
#[derive(Debug)]
pub(crate) struct ReplySlot {
    pub(crate) id: RequestId,
    pub(crate) deadline_ns: u64,
    pub(crate) answer: Answer,
    /// The handler succeeded.
    pub(crate) ok: bool,
    pub(crate) outcome: Option<ReplyOutcome>,
    /// The room that the request takes if it is deferred. `None`: its method never deferred one.
    pub(crate) holding: Option<Holding>,
    /// The same as in the core, for replies that are deferred.
    abandoned: Arc<Abandoned>,
}

impl ReplySlot {
    pub(crate) fn new(abandoned: Arc<Abandoned>) -> Self {
        Self {
            id: RequestId::NONE,
            deadline_ns: NEVER,
            answer: Answer::default(),
            ok: false,
            outcome: None,
            holding: None,
            abandoned,
        }
    }
}

impl ReplySlot {
    /// What only some requests have is over.
    pub(crate) fn end_uncommon(&mut self) {
        self.deadline_ns = NEVER;
        self.holding = None;
    }
}

/// The one way to answer a request. The response's buffer exists already.
#[derive(Debug)]
#[must_use = "a request that is not answered ends with INTERNAL"]
pub struct Reply<'a> {
    pub(crate) slot: &'a mut ReplySlot,
}

impl Reply<'_> {
    answer_writers!(answer);

    /// Sends a position in a stream with the response. If the stream ends with an error, that is
    /// `status`. The call itself succeeds. The first `headroom` bytes of the buffer are not part of
    /// the body.
    pub fn set_stream(&mut self, stream: StreamPosition, status: Option<Status>, headroom: usize) {
        self.answer().set_stream(stream, status, headroom);
    }

    #[inline]
    fn answer(&mut self) -> &mut Answer {
        &mut self.slot.answer
    }

    /// The call succeeded: sends what is in the buffer.
    #[inline]
    pub fn ok(self) {
        self.slot.ok = true;
    }

    /// The call failed: sends the status in place of what is in the buffer. The caller learns that
    /// the call ran, even if the status is that of another call which did not.
    #[inline]
    pub fn status(self, status: Status) {
        self.slot.outcome = Some(ReplyOutcome::Status(status.with_run()));
    }

    /// The call was refused before it had any effect: as [`Reply::status`], but the caller learns
    /// that it may make the call again.
    #[cold]
    pub fn refuse(self, status: Status) {
        self.slot.outcome = Some(ReplyOutcome::Status(status.with_not_run()));
    }

    /// Sends the buffer or the status.
    #[inline]
    pub fn finish(self, result: Result<(), Status>) {
        match result {
            Ok(()) => self.ok(),
            Err(status) => self.status(status),
        }
    }

    /// Has a handler that knows no endpoint answer a request.
    // Apart, for the registers of the caller, whose other handlers need none of this.
    #[inline(never)]
    pub(crate) fn answer_with(mut self, request: Request<'_>, peer: &Peer, handler: &mut UnaryFn) {
        let mut response = ResponseBuilder::new(self.buffer());
        let result = handler(request.view().from_peer(peer), &mut response);
        let (tail, extra) = response.into_parts();
        if let Some(tail) = tail {
            self.set_tail(tail);
        }
        if let Some(extra) = extra {
            self.answer().set_extra(*extra);
        }
        match result {
            Ok(()) => self.ok(),
            Err(status) if status.may_have_run() => self.status(status),
            Err(status) => self.refuse(status),
        }
    }

    /// Defers the answer. What was written so far is kept.
    pub fn defer(self) -> DeferredReply {
        self.defer_as(Cancellation::default())
    }

    /// The same for a handler that has begun, and knows whether its caller still waits by this.
    pub fn defer_as(self, cancellation: Cancellation) -> DeferredReply {
        let answer = std::mem::take(&mut self.slot.answer);
        self.defer_with(answer, cancellation)
    }

    /// Defers an answer that is built elsewhere, perhaps much later: its buffer has no memory until then.
    pub fn defer_without_buffer(self) -> DeferredReply {
        self.defer_with(Answer::default(), Cancellation::default())
    }

    /// Holds an answer as one of several that belong together, as those of a stream: they are cancelled together,
    /// and `cancellation`, which their owner has, does not end with the answer to one of them.
    pub fn hold(self, cancellation: &Cancellation) -> HeldReply {
        self.slot.outcome = Some(ReplyOutcome::Held(cancellation.clone()));
        HeldReply {
            id: self.slot.id,
            abandoned: Some(Arc::clone(&self.slot.abandoned)),
        }
    }

    fn defer_with(self, answer: Answer, cancellation: Cancellation) -> DeferredReply {
        self.slot.outcome = Some(ReplyOutcome::Deferred(cancellation.clone()));
        DeferredReply {
            id: self.slot.id,
            deadline_ns: self.slot.deadline_ns,
            answer,
            cancellation,
            abandoned: Arc::clone(&self.slot.abandoned),
            is_held: false,
            is_answered: false,
            is_refused: false,
            prefix: None,
        }
    }
}

/// A reply that was deferred. It may go to another thread and back. It is answered with
/// [`crate::Context::complete`] on the endpoint that it came from. Dropping it answers INTERNAL.
pub struct DeferredReply {
    id: RequestId,
    deadline_ns: u64,
    answer: Answer,
    cancellation: Cancellation,
    abandoned: Arc<Abandoned>,
    /// The cancellation is that of other replies, too.
    is_held: bool,
    is_answered: bool,
    is_refused: bool,
    /// The header that is in front of the body already.
    prefix: Option<Prefix>,
}

impl DeferredReply {
    answer_writers!(answer);

    /// As [`Reply::set_stream`]. If `headroom` is [`STREAM_RESPONSE_LEN`] and nothing else goes into the header, it
    /// is written there at once, so the body has to be behind it by now.
    pub fn set_stream(&mut self, stream: StreamPosition, status: Option<Status>, headroom: usize) {
        debug_assert!(self.prefix.is_none(), "a position is set once");
        if status.is_none() && headroom == STREAM_RESPONSE_LEN {
            self.prefix = self.answer.seal_stream(stream);
        }
        if self.prefix.is_none() {
            self.answer.set_stream(stream, status, headroom);
        }
    }

    /// The request had no effect: the caller of a request that ends with a status learns that it may make
    /// the call again. Otherwise it learns that the call ran, even if the status is that of another call
    /// which did not.
    pub fn set_refused(&mut self) {
        self.is_refused = true;
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused
    }

    fn answer(&mut self) -> &mut Answer {
        &mut self.answer
    }

    /// Whether the caller no longer waits: it cancelled the call, has failed, or its deadline
    /// passed.
    pub fn is_cancelled(&self) -> bool {
        self.cancellation.is_cancelled()
    }

    /// Whether the caller still waits, for others than the task that has the reply.
    pub fn cancellation(&self) -> &Cancellation {
        &self.cancellation
    }

    /// Ready as soon as the caller no longer waits, with the reason as a status: CANCELLED or
    /// DEADLINE_EXCEEDED. Wakes the task that polled last, in any thread.
    pub fn poll_cancelled(&self, cx: &mut Context<'_>) -> Poll<Status> {
        self.cancellation.poll_cancelled(cx)
    }

    /// [`DeferredReply::poll_cancelled`] as a future, for a `select` with what the handler waits
    /// for: that is dropped, and so cancelled, when the caller gives up.
    pub async fn cancelled(&self) -> Status {
        std::future::poll_fn(|cx| self.poll_cancelled(cx)).await
    }

    /// When the caller gives up, in nanoseconds of the endpoint's clock.
    pub fn deadline_ns(&self) -> Option<u64> {
        (self.deadline_ns != NEVER).then_some(self.deadline_ns)
    }

    /// # Panics
    /// Unless the reply came from the endpoint with these abandoned replies.
    #[track_caller]
    pub(crate) fn assert_of(&self, abandoned: &Arc<Abandoned>) {
        assert!(
            Arc::ptr_eq(&self.abandoned, abandoned),
            "a deferred reply is answered by the endpoint that it came from"
        );
    }

    /// The reply is answered, or never will be. False if that was said before.
    fn finish(&mut self) -> bool {
        !std::mem::replace(&mut self.is_answered, true)
            && (self.is_held || self.cancellation.finish())
    }

    /// The parts that the endpoint answers with, and the header in front of the body if there is one. The reply
    /// counts as answered.
    pub(crate) fn into_parts(mut self) -> (RequestId, Answer, Option<Prefix>) {
        self.finish();
        let mut answer = std::mem::take(&mut self.answer);
        let prefix = self.prefix.filter(|_| !answer.unseal_stream());
        (self.id, answer, prefix)
    }
}

impl fmt::Debug for DeferredReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferredReply")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Drop for DeferredReply {
    fn drop(&mut self) {
        if self.finish() {
            self.abandoned.push(AbandonedReply {
                id: self.id,
                message: std::mem::take(&mut self.answer.message),
                panicked: std::thread::panicking(),
            });
        }
    }
}

/// A request whose deferred reply was dropped.
pub(crate) struct AbandonedReply {
    pub(crate) id: RequestId,
    pub(crate) message: Msgbuf,
    /// By the panic of the handler that had it.
    pub(crate) panicked: bool,
}

/// Requests whose deferred reply was dropped, perhaps in another thread. Bounded by the number of
/// pending requests.
pub(crate) struct Abandoned {
    any: AtomicBool,
    queue: Mutex<Vec<AbandonedReply>>,
    sleep: Arc<SleepState>,
}

impl fmt::Debug for Abandoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Abandoned(..)")
    }
}

impl Abandoned {
    pub(crate) fn new(sleep: Arc<SleepState>) -> Self {
        Self {
            any: AtomicBool::new(false),
            queue: Mutex::new(Vec::new()),
            sleep,
        }
    }

    fn push(&self, reply: AbandonedReply) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push(reply);
        self.any.store(true, Ordering::Release);
        drop(queue);
        self.sleep.leave_unexpected_work();
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    #[cold]
    pub(crate) fn take(&self) -> Vec<AbandonedReply> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut queue)
    }
}
