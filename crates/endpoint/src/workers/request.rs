//! A request and its answer as a worker handler sees them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use starling_call::header::REQUEST_BODY_AT;
use starling_call::{
    Cancellation, Encoding, Metadata, MetadataView, MethodId, OwnedMessage, Peer, RequestView,
    ResponseBuilder, Status, StreamPosition, WorkerFn,
};
use starling_io::{PeerId, WorkerIo};
use starling_proto::{HEADER_BYTES, Msgbuf, PREAMBLE_BYTES};

use crate::server::{Answer, RequestInfo, answer_writers};
use crate::timers::NEVER;

use super::job::WorkerHandler;

/// Where the body of a request that a worker claimed begins in its datagram.
const IN_PLACE_BODY_AT: usize = PREAMBLE_BYTES + HEADER_BYTES + REQUEST_BODY_AT;

/// A request in a worker thread.
pub struct WorkerRequest {
    /// Empty if the request is in a device's memory, or was taken.
    pub(crate) message: OwnedMessage,
    /// The device that has the request in its memory, and whether the request was copied out.
    pub(super) place: Option<Box<dyn WorkerIo>>,
    pub(super) taken: bool,
    pub(crate) info: RequestInfo,
    pub(crate) peer: Peer,
    /// How long it waited for the worker.
    pub(crate) queued_ns: u64,
    pub(crate) cancellation: Cancellation,
}

impl WorkerRequest {
    /// The method that was called.
    pub fn method(&self) -> MethodId {
        self.info.method
    }

    /// The calling peer, as the device numbers it.
    pub fn peer(&self) -> PeerId {
        self.info.peer
    }

    /// When the caller gives up, in nanoseconds of the endpoint's clock.
    pub fn deadline_ns(&self) -> Option<u64> {
        let deadline_ns = self.info.timing.deadline_ns;
        (deadline_ns != NEVER).then_some(deadline_ns)
    }

    /// The body.
    pub fn body(&self) -> &[u8] {
        match &self.place {
            Some(io) if !self.taken => &io.datagram().bytes[IN_PLACE_BODY_AT..],
            _ => self.message.body(),
        }
    }

    /// The metadata that the caller sent beside the body.
    pub fn metadata(&self) -> MetadataView<'_> {
        self.message.metadata()
    }

    /// How the request is encoded and the response has to be.
    pub fn encoding(&self) -> Encoding {
        self.message.encoding()
    }

    /// The position in a stream, if the caller gave one.
    pub fn stream(&self) -> Option<StreamPosition> {
        self.message.stream()
    }

    /// How long the caller was still going to wait when the handler was begun.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline_ns().map(|_| self.info.timing.remaining())
    }

    /// The request, for a handler that knows no endpoint.
    fn view(&self) -> RequestView<'_> {
        RequestView::new(self.body(), self.message.fields(), self.remaining())
            .from_peer(&self.peer)
            .with_cancellation(&self.cancellation)
            .queued_for(self.queued_ns)
    }

    /// Who calls.
    pub fn caller(&self) -> &Peer {
        &self.peer
    }

    /// Whether the caller still waits, for other threads and tasks.
    pub fn cancellation(&self) -> &Cancellation {
        &self.cancellation
    }

    /// Whether the caller no longer waits. A long-running handler checks this now and then.
    pub fn is_cancelled(&self) -> bool {
        self.cancellation.is_cancelled()
    }

    /// Takes the request, to keep it longer than the handler runs. It reads as empty afterwards.
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
    pub(super) answer: Answer,
    pub(super) status: Option<Status>,
}

impl WorkerReply {
    answer_writers!(answer);

    fn answer(&mut self) -> &mut Answer {
        &mut self.answer
    }

    /// The call failed: sends the status in place of what is in the buffer. The caller learns that
    /// the call ran, even if the status is that of another call which did not.
    pub fn set_status(&mut self, status: Status) {
        self.status = Some(status.with_run());
    }

    /// The call was refused before it had any effect: as [`WorkerReply::set_status`], but the caller
    /// learns that it may make the call again.
    #[cold]
    pub fn refuse(&mut self, status: Status) {
        self.status = Some(status.with_not_run());
    }
}

/// The worker handler that runs a handler which knows no endpoint.
pub(crate) fn of_worker_fn(handler: Arc<WorkerFn>) -> WorkerHandler {
    Arc::new(move |request, reply| {
        let mut response = ResponseBuilder::new(reply.buffer());
        let result = handler(request.view(), &mut response);
        let (tail, extra) = response.into_parts();
        if let Some(tail) = tail {
            reply.set_tail(tail);
        }
        if let Some(extra) = extra {
            reply.answer.set_extra(*extra);
        }
        match result {
            Ok(()) => {}
            Err(status) if status.may_have_run() => reply.set_status(status),
            Err(status) => reply.refuse(status),
        }
    })
}
