//! From a response, or another end of a call, to its continuation or future.

use std::panic::{AssertUnwindSafe, catch_unwind};

use starling_call::header::{self, RESPONSE_FIELDS_AT, ResponseHeader};
use starling_call::{Code, MetadataView, Status};
use starling_io::{Clock, PacketIo};
use starling_proto::Tag;

use crate::client::{Call, CallId, Completion, ContinuationId, Response};
use crate::context::Context;
use crate::core::{Core, Finished};
use crate::handler_panic::Running;
use crate::parts::Parts;
use crate::payload::{Payload, PayloadBytes};

impl<I: PacketIo, C: Clock> Parts<I, C> {
    /// Handles the response to a call. [`Parts::recover`] deals with panics in it.
    #[inline(never)]
    pub(crate) fn handle_response(
        &mut self,
        tx: &mut I::Tx,
        tag: Tag,
        id: CallId,
        ext: bool,
        bytes: PayloadBytes<'_>,
    ) {
        let mut body_at = 0;
        let mut failed = None;
        if ext {
            match read_extension(&mut self.core, bytes.as_slice()) {
                Ok(at) => body_at = at,
                Err(status) => {
                    let deadline_ns = self.core.deadline_ns(tag);
                    let is_late = || deadline_ns.is_some_and(|at_ns| at_ns <= self.clock.now_ns());
                    failed = Some(status.unless_late(is_late));
                }
            }
        }
        let call = self.core.end_call(tag);
        if let Some(status) = failed {
            return self.complete(tx, call, id, || Err(status));
        }
        self.complete(tx, call, id, || {
            let payload = bytes.split(RESPONSE_FIELDS_AT, body_at);
            Ok(Response { payload })
        });
    }

    /// As [`Parts::handle_response`], for a response without an extension in the receive buffer.
    #[inline(always)]
    pub(crate) fn handle_plain_response(
        &mut self,
        tx: &mut I::Tx,
        tag: Tag,
        id: CallId,
        body: &[u8],
    ) {
        let call = self.core.end_call(tag);
        let payload = || Payload::InPlace { fields: None, body };
        self.complete(tx, call, id, || Ok(Response { payload: payload() }));
    }

    /// Ends a call that has no response.
    pub(crate) fn fail(&mut self, tx: &mut I::Tx, finished: Finished) {
        let Finished { call, id, status } = finished;
        let caught = catch_unwind(AssertUnwindSafe(|| {
            self.complete(tx, call, id, || Err(status));
        }));
        if let Err(panic) = caught {
            self.recover(tx, panic);
        }
    }

    /// Hands the end of a call to its continuation or future. `result` is built where it is handed
    /// over: moving it would cost more than building it.
    #[inline(always)]
    fn complete<'a>(
        &mut self,
        tx: &mut I::Tx,
        call: Call,
        id: CallId,
        result: impl FnOnce() -> Result<Response<'a>, Status>,
    ) {
        let core = &mut self.core;
        core.stats.completions += 1;
        let Call {
            tag, continuation, ..
        } = call;
        let tables = &mut self.tables;
        // None is ever removed, and each was checked when the call was made.
        let Some(continuation) = tables.continuations.get_mut(continuation.0 as usize) else {
            debug_assert_eq!(continuation, ContinuationId::LOCAL);
            let result = result().map(|response| response.into_owned_in(|_| core.proto.buffer()));
            core.local.finish(tag, result);
            return;
        };
        tables.running = Running::Continuation;
        let context = &mut Context { core, tx };
        continuation(
            context,
            Completion {
                tag,
                call: id,
                result: result(),
            },
        );
        self.tables.running = Running::Endpoint;
        self.apply_registrations();
    }
}

/// Reads a response's extension: where the body begins, or a status.
#[cold]
fn read_extension<R>(core: &mut Core<R>, bytes: &[u8]) -> Result<usize, Status> {
    let header = ResponseHeader::parse(bytes).map_err(|error| {
        core.stats.malformed += 1;
        Status::internal(format!("the server's response is malformed: {error}"))
    })?;
    // The status of a stream is not that of the call which brings it.
    if header.code == Code::Ok || header.stream.is_some() {
        return Ok(header.body_at);
    }
    let fields = header::fields_between(bytes, RESPONSE_FIELDS_AT, header.body_at);
    let metadata = MetadataView::of_extension(fields).to_owned();
    let mut status = Status::new(header.code, header.message.to_owned()).with_metadata(metadata);
    if header.not_run {
        status = status.with_not_run();
    }
    Err(status)
}
