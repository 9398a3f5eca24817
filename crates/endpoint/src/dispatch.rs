//! From what arrived to what runs: handlers for requests, continuations for responses.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use starling_io::PacketIo;
use starling_proto::{Body, PeerId, RequestId};

use crate::client::{Call, CallId, Completion, ContinuationId, Response};
use crate::context::Context;
use crate::core::{ContinuationFn, Core, Registration};
use crate::header::{
    self, HeaderError, MethodId, REQUEST_BODY_AT, REQUEST_FIELDS_AT, RESPONSE_FIELDS_AT,
    RequestExtension, ResponseHeader,
};
use crate::local::Command;
use crate::metadata::MetadataView;
use crate::methods::{Handler, HandlerKind, Methods};
use crate::payload::{Payload, PayloadBytes};
use crate::server::{
    Abandoned, Answer, NEVER, Outcome, Reply, ReplySlot, Request, RequestFlags, RequestInfo,
};
use crate::sink::io_peer;
use crate::status::{Code, Status};
use crate::worker::{self, Job, WorkerHandler, WorkerRequest};

pub(crate) const HANDLER_PANICKED: &str = "the server's handler panicked";
pub(crate) const EXPIRED: &str = "the deadline passed before the server ran the handler";

/// What runs when something arrives. Apart from [`Core`], so that it can be borrowed while it runs.
pub(crate) struct Tables<I: PacketIo> {
    methods: Methods<I>,
    continuations: Vec<Box<ContinuationFn<I>>>,
    /// The same as in the core: lent to replies while the core is lent to the handler.
    abandoned: Arc<Abandoned>,
}

impl<I: PacketIo> Tables<I> {
    pub(crate) fn new(abandoned: Arc<Abandoned>) -> Self {
        Self {
            methods: Methods::new(),
            continuations: Vec::new(),
            abandoned,
        }
    }

    pub(crate) fn register(&mut self, method: MethodId, handler: Handler<I>) {
        self.methods.insert(method, handler);
    }

    /// Puts in place what was registered by a handler or through a context.
    #[inline]
    pub(crate) fn apply(&mut self, registrations: &mut Vec<Registration<I>>) {
        if !registrations.is_empty() {
            self.apply_all(registrations);
        }
    }

    #[cold]
    fn apply_all(&mut self, registrations: &mut Vec<Registration<I>>) {
        for registration in registrations.drain(..) {
            match registration {
                Registration::Method(method, handler) => self.methods.insert(method, handler),
                Registration::Continuation(continuation) => self.continuations.push(continuation),
            }
        }
    }

    /// Handles a request that arrived.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn serve(
        &mut self,
        core: &mut Core<I>,
        tx: &mut I::Tx,
        workers: &mut Option<Box<dyn worker::Dispatch>>,
        id: RequestId,
        peer: PeerId,
        ext: bool,
        body: &mut Body<'_>,
        answer: Answer,
    ) {
        core.stats.requests += 1;
        let bytes = PayloadBytes::of(body);
        let Some(method) = header::method_of(bytes.as_slice()) else {
            return refuse_malformed(core, tx, id, answer, HeaderError::Truncated);
        };
        let mut deadline_ns = NEVER;
        let mut body_at = REQUEST_BODY_AT;
        if ext {
            let extension = match RequestExtension::parse(bytes.as_slice()) {
                Ok(extension) => extension,
                Err(error) => return refuse_malformed(core, tx, id, answer, error),
            };
            body_at = extension.body_at;
            if let Some(us) = extension.remaining_us {
                deadline_ns = core.now_ns.saturating_add(us.saturating_mul(1000));
                if us == 0 {
                    return refuse_expired(core, tx, id, answer);
                }
            }
        }
        if core.draining {
            return refuse_draining(core, tx, id, answer);
        }
        let info = RequestInfo {
            method,
            peer: io_peer(peer),
            now_ns: core.now_ns,
            deadline_ns,
        };
        let body_at = body_at as u32;
        match self.methods.find(method) {
            Some(HandlerKind::Inline(handler)) => {
                let abandoned = &self.abandoned;
                let mut slot = ReplySlot {
                    id,
                    deadline_ns,
                    answer,
                    outcome: Outcome::Unanswered,
                };
                // The arguments are made in the closure, which captures only where they come
                // from: captures are copied.
                let caught = catch_unwind(AssertUnwindSafe(|| {
                    handler(
                        &mut Context {
                            core: &mut *core,
                            tx: &mut *tx,
                        },
                        Request {
                            payload: Payload {
                                bytes,
                                fields_at: REQUEST_FIELDS_AT as u32,
                                body_at,
                            },
                            info,
                        },
                        Reply {
                            slot: &mut slot,
                            abandoned,
                        },
                    );
                }));
                match (caught, &slot.outcome) {
                    (Ok(()), Outcome::Ok) => {
                        let ReplySlot {
                            answer, outcome, ..
                        } = slot;
                        // There is nothing in it, and this spares looking.
                        std::mem::forget(outcome);
                        core.answer_ok(tx, id, answer);
                    }
                    (caught, _) => finish_uncommon(core, tx, slot, caught.is_err()),
                }
                self.apply(&mut core.registrations);
            }
            Some(HandlerKind::Worker(handler)) => {
                let handler = Arc::clone(handler);
                let payload = Payload {
                    bytes,
                    fields_at: REQUEST_FIELDS_AT as u32,
                    body_at,
                };
                let request = Request { payload, info };
                serve_in_worker(core, tx, workers, handler, id, request, answer);
            }
            None => refuse_unknown(core, tx, id, answer, method),
        }
    }

    /// Handles the response to a call.
    #[inline]
    pub(crate) fn respond(
        &mut self,
        core: &mut Core<I>,
        tx: &mut I::Tx,
        call: Call,
        id: CallId,
        ext: bool,
        body: &mut Body<'_>,
    ) {
        let bytes = PayloadBytes::of(body);
        let mut body_at = 0;
        if ext {
            match read_extension(core, bytes.as_slice()) {
                Ok(at) => body_at = at as u32,
                Err(status) => return self.fail(core, tx, call, id, status),
            }
        }
        self.complete(core, tx, call, id, || {
            Ok(Response {
                payload: Payload {
                    bytes,
                    fields_at: RESPONSE_FIELDS_AT as u32,
                    body_at,
                },
            })
        });
    }

    /// Ends a call that has no response.
    #[cold]
    pub(crate) fn fail(
        &mut self,
        core: &mut Core<I>,
        tx: &mut I::Tx,
        call: Call,
        id: CallId,
        status: Status,
    ) {
        self.complete(core, tx, call, id, || Err(status));
    }

    /// Hands the end of a call to its continuation or future.
    #[inline]
    fn complete<'a>(
        &mut self,
        core: &mut Core<I>,
        tx: &mut I::Tx,
        call: Call,
        id: CallId,
        result: impl FnOnce() -> Result<Response<'a>, Status>,
    ) {
        core.stats.completions += 1;
        let continuation = call.continuation();
        if continuation == ContinuationId::LOCAL {
            core.local
                .finish(call.tag, result().map(Response::into_owned));
            return;
        }
        // In bounds: checked when the call was made, and none is ever removed.
        let continuation = &mut self.continuations[continuation.0 as usize];
        let caught = catch_unwind(AssertUnwindSafe(|| {
            continuation(
                &mut Context {
                    core: &mut *core,
                    tx,
                },
                Completion {
                    tag: call.tag,
                    call: id,
                    result: result(),
                },
            );
        }));
        if let Err(panic) = caught {
            // The caller's own fault, so the caller gets it, but not before the turn is over:
            // the rest of the burst would be lost.
            core.panic.get_or_insert(panic);
        }
        self.apply(&mut core.registrations);
    }
}

/// Answers a request whose handler did not simply succeed.
#[cold]
fn finish_uncommon<I: PacketIo>(
    core: &mut Core<I>,
    tx: &mut I::Tx,
    slot: ReplySlot,
    panicked: bool,
) {
    let ReplySlot {
        id,
        answer,
        outcome,
        ..
    } = slot;
    core.stats.panics += u64::from(panicked);
    let status = match outcome {
        Outcome::Deferred(flags) => {
            // If the reply was used within the handler, nothing is owed any more.
            if !flags.answered.load(Ordering::Relaxed) {
                core.pending.insert(id, flags);
            }
            return;
        }
        _ if panicked => Status::internal(HANDLER_PANICKED),
        Outcome::Status(status) => status,
        Outcome::Ok | Outcome::Unanswered => {
            Status::internal("the server's handler returned without an answer")
        }
    };
    core.answer_status(tx, id, answer, &status);
}

fn serve_in_worker<I: PacketIo>(
    core: &mut Core<I>,
    tx: &mut I::Tx,
    workers: &mut Option<Box<dyn worker::Dispatch>>,
    handler: WorkerHandler,
    id: RequestId,
    request: Request<'_>,
    answer: Answer,
) {
    let Some(workers) = workers else {
        let status = Status::internal(
            "the method runs in a worker, and the server has none: it should start_workers",
        );
        return core.answer_status(tx, id, answer, &status);
    };
    let flags = Arc::new(RequestFlags::default());
    let Request { payload, info } = request;
    let spare = match &payload.bytes {
        PayloadBytes::InPlace(_) => core.proto.buffer(),
        PayloadBytes::Reassembled(_) => starling_proto::Msgbuf::new(),
    };
    let request = WorkerRequest {
        message: payload.into_owned(spare),
        info,
        flags: Arc::clone(&flags),
    };
    match workers.submit(Job::new(id, handler, request, answer)) {
        Ok(()) => {
            core.pending.insert(id, flags);
        }
        Err(job) => {
            core.stats.workers_full += 1;
            let (id, request, answer, _) = job.into_parts();
            core.proto.recycle(request);
            let status = Status::resource_exhausted(
                "the server's workers have a full queue; the call did not run",
            );
            core.answer_status(tx, id, answer, &status);
        }
    }
}

#[cold]
fn refuse_malformed<I: PacketIo>(
    core: &mut Core<I>,
    tx: &mut I::Tx,
    id: RequestId,
    answer: Answer,
    error: HeaderError,
) {
    core.stats.malformed += 1;
    let status = Status::invalid_argument(format!("the client's request is malformed: {error}"));
    core.answer_status(tx, id, answer, &status);
}

#[cold]
fn refuse_draining<I: PacketIo>(core: &mut Core<I>, tx: &mut I::Tx, id: RequestId, answer: Answer) {
    core.stats.refused_draining += 1;
    let status =
        Status::unavailable("the server is shutting down; the call did not run, call elsewhere");
    core.answer_status(tx, id, answer, &status);
}

#[cold]
fn refuse_expired<I: PacketIo>(core: &mut Core<I>, tx: &mut I::Tx, id: RequestId, answer: Answer) {
    core.stats.expired += 1;
    core.answer_status(tx, id, answer, &Status::deadline_exceeded(EXPIRED));
}

#[cold]
fn refuse_unknown<I: PacketIo>(
    core: &mut Core<I>,
    tx: &mut I::Tx,
    id: RequestId,
    answer: Answer,
    method: MethodId,
) {
    core.stats.unknown_method += 1;
    let status = Status::unimplemented(format!("the server has no method {:#010x}", method.0));
    core.answer_status(tx, id, answer, &status);
}

/// Reads a response's extension: where the body begins, or a status.
#[cold]
fn read_extension<I: PacketIo>(core: &mut Core<I>, bytes: &[u8]) -> Result<usize, Status> {
    let header = ResponseHeader::parse(bytes).map_err(|error| {
        core.stats.malformed += 1;
        Status::internal(format!("the server's response is malformed: {error}"))
    })?;
    if header.code == Code::Ok {
        return Ok(header.body_at);
    }
    let fields = header::fields_between(bytes, RESPONSE_FIELDS_AT, header.body_at);
    let metadata = MetadataView::of_extension(fields).to_owned();
    Err(Status::new(header.code, header.message.to_owned()).with_metadata(metadata))
}

impl<I: PacketIo> Core<I> {
    /// Does what a future wants.
    pub(crate) fn obey(&mut self, tx: &mut I::Tx, command: Command) {
        match command {
            Command::Call {
                key,
                session,
                message,
                ext,
                timeout,
            } => {
                if !self.local.is_wanted(key) {
                    self.keep(message);
                    return;
                }
                let local = ContinuationId::LOCAL;
                match self.issue(tx, session, message, ext, timeout, local, key) {
                    Ok(call) => self.local.set_call(key, call),
                    Err(rejected) => {
                        self.keep(rejected.message);
                        self.local.finish(key, Err(rejected.error.into()));
                    }
                }
            }
            Command::Cancel(call) => {
                self.cancel(tx, call);
            }
            Command::Close(session) => Context { core: self, tx }.close(session),
            Command::Complete(reply, result) => {
                Context { core: self, tx }.complete_with(reply, result);
            }
        }
    }

    /// Keeps a buffer for futures' calls, or for everybody.
    fn keep(&mut self, message: starling_proto::Msgbuf) {
        if let Some(message) = self.local.keep(message) {
            self.proto.recycle(message);
        }
    }
}
