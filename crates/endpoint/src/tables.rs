//! From what arrived to what runs: handlers for requests, continuations for responses.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use starling_call::header::{
    self, REQUEST_BODY_AT, REQUEST_FIELDS_AT, RESPONSE_FIELDS_AT, RequestExtension, ResponseHeader,
};
use starling_call::{Code, HeaderError, MetadataView, MethodId, Status};
use starling_io::{Clock, PacketIo};
use starling_proto::{PeerId, RequestId, Tag};

use crate::admission::Timing;
use crate::client::{Call, CallId, Completion, ContinuationId, Response};
use crate::context::{
    Context, ContinuationFn, EndpointCore, Handler, HandlerKind, InlineHandler, Registration,
};
use crate::convert::io_peer;
use crate::core::{Core, Finished};
use crate::handler_panic::{self, Running};
use crate::methods::Methods;
use crate::payload::{Payload, PayloadBytes};
use crate::refusal::Refusal;
use crate::room::Holding;
use crate::server::{Abandoned, Answer, Reply, ReplyOutcome, ReplySlot, Request, RequestInfo};
use crate::timers::NEVER;
use crate::turn_context::TurnContext;
use crate::workers::{Job, WorkerHandler, WorkerMethods};

/// The handlers and continuations that arrivals run. Separate from [`Core`], so that a handler can
/// be borrowed while it uses the core.
pub(crate) struct Tables<I: PacketIo> {
    methods: Methods<I>,
    continuations: Vec<Box<ContinuationFn<I>>>,
    /// The same as in the core: lent to replies while the core is lent to the handler.
    abandoned: Arc<Abandoned>,
    /// The methods that workers may claim requests of, if there are such workers.
    claimable: Option<Arc<WorkerMethods>>,
    /// The reply of the inline handler that runs, or of the one that ran last.
    reply: ReplySlot,
    /// Whose code is to blame if something panics now.
    running: Running,
    /// When the last request with a deadline was begun.
    began_ns: u64,
    /// The method of the inline handler that ran last.
    last_method: MethodId,
}

/// A request with an extension that is run.
struct Admitted {
    body_at: usize,
    continues_stream: bool,
    /// If it has a deadline.
    timing: Option<Timing>,
}

impl<I: PacketIo> Tables<I> {
    pub(crate) fn new(abandoned: Arc<Abandoned>) -> Self {
        Self {
            methods: Methods::new(),
            continuations: Vec::new(),
            abandoned,
            claimable: None,
            reply: ReplySlot::default(),
            running: Running::Endpoint,
            began_ns: 0,
            last_method: MethodId(0),
        }
    }

    pub(crate) fn register(&mut self, method: MethodId, handler: Handler<I>) {
        if let Some(claimable) = &self.claimable {
            claimable.set(method, handler.for_workers());
        }
        self.methods.insert(method, handler);
    }

    /// The method of the inline handler that ran last.
    pub(crate) fn last_method(&self) -> MethodId {
        self.last_method
    }

    /// The methods that run in workers, for threads that claim requests. Kept up to date.
    pub(crate) fn worker_methods(&mut self) -> Arc<WorkerMethods> {
        let claimable = Arc::new(WorkerMethods::default());
        for (method, handler) in self.methods.of_workers() {
            claimable.set(method, Some(Arc::clone(handler)));
        }
        self.claimable = Some(Arc::clone(&claimable));
        claimable
    }

    /// Records how long a worker's handler took, until its answer was taken in.
    pub(crate) fn record_run_time(&mut self, job: &Job, now_ns: u64) {
        if let Some((method, began_ns)) = job.began() {
            self.methods.record_run_time(method, began_ns, now_ns);
        }
    }

    /// Puts into the tables what a handler or the owner registered through a context.
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
                Registration::Method(method, handler) => self.register(method, handler),
                Registration::Continuation(continuation) => self.continuations.push(continuation),
            }
        }
    }

    /// Handles a request that arrived. [`Tables::recover`] deals with panics in it.
    #[inline(always)]
    pub(crate) fn handle_request<C: Clock>(
        &mut self,
        turn: &mut TurnContext<'_, I, C>,
        id: RequestId,
        peer: PeerId,
        ext: bool,
        bytes: PayloadBytes<'_>,
    ) {
        let core = &mut *turn.core;
        core.stats.requests += 1;
        let reply = &mut self.reply;
        reply.id = id;
        if reply.answer.message.capacity() == 0 {
            reply.answer.message = core.proto.buffer();
        }
        let Some(method) = header::method_of(bytes.as_slice()) else {
            return self.refuse(turn, Refusal::Malformed(HeaderError::Truncated));
        };
        let mut timing = Timing::without_deadline(core.now_ns);
        let mut body_at = REQUEST_BODY_AT;
        let mut continues_stream = false;
        if ext {
            match self.admit(turn, peer, method, bytes.as_slice()) {
                Ok(admitted) => {
                    body_at = admitted.body_at;
                    continues_stream = admitted.continues_stream;
                    timing = admitted.timing.unwrap_or(timing);
                }
                Err(refusal) => return self.refuse(turn, refusal),
            }
        }
        let core = &mut *turn.core;
        // A stream that has begun is a call in progress.
        if core.draining && !continues_stream {
            return self.refuse(turn, Refusal::Draining);
        }
        let info = RequestInfo {
            method,
            peer: io_peer(peer),
            timing,
        };
        let payload = Payload {
            bytes,
            fields_at: REQUEST_FIELDS_AT as u32,
            body_at: body_at as u32,
        };
        match self.methods.find(method) {
            Some(HandlerKind::Inline(handler)) => {
                let reply = &mut self.reply;
                reply.deadline_ns = timing.deadline_ns;
                reply.ok = false;
                self.running = Running::Handler;
                self.last_method = method;
                let (slot, abandoned) = (&mut *reply, &self.abandoned);
                let context = &mut Context {
                    core: &mut *core,
                    tx: &mut *turn.tx,
                };
                // Each arm builds its arguments where it needs them.
                match handler {
                    InlineHandler::OfEndpoint(handler) => {
                        let request = Request { payload, info };
                        handler(context, request, Reply { slot, abandoned });
                    }
                    InlineHandler::Unary(handler) => {
                        let request = Request { payload, info };
                        Reply { slot, abandoned }.answer_with(request, handler);
                    }
                }
                self.finish_inline(turn, method);
            }
            Some(HandlerKind::Deferring(_) | HandlerKind::Worker(_)) => {
                self.begin_waiting(turn, Request { payload, info });
            }
            None => self.refuse(turn, Refusal::UnknownMethod(method)),
        }
    }

    /// Begins a request that may wait outside its handler, if there is room for it.
    // Apart, so that requests that are answered at once pay nothing for it.
    #[inline(never)]
    fn begin_waiting<C: Clock>(&mut self, turn: &mut TurnContext<'_, I, C>, request: Request<'_>) {
        let RequestInfo {
            method,
            peer,
            timing,
        } = request.info;
        let bytes = request.payload.len();
        let holding = Holding { peer, bytes };
        if !turn.core.pending.admits(holding) {
            return self.refuse(turn, Refusal::WaitingFull);
        }
        let reply = &mut self.reply;
        match self.methods.find(method) {
            Some(HandlerKind::Deferring(handler)) => {
                reply.deadline_ns = timing.deadline_ns;
                reply.ok = false;
                reply.holding = Some(holding);
                self.running = Running::Handler;
                self.last_method = method;
                let (slot, abandoned) = (reply, &self.abandoned);
                let context = &mut Context {
                    core: &mut *turn.core,
                    tx: &mut *turn.tx,
                };
                handler(context, request, Reply { slot, abandoned });
                self.finish_inline(turn, method);
                self.reply.holding = None;
            }
            Some(HandlerKind::Worker(handler)) => {
                let (id, answer) = (reply.id, std::mem::take(&mut reply.answer));
                submit_to_workers(turn, Arc::clone(handler), id, holding, request, answer);
            }
            Some(HandlerKind::Inline(_)) | None => unreachable!("the caller found another kind"),
        }
    }

    /// Answers a request whose inline handler has returned.
    #[inline(always)]
    fn finish_inline<C: Clock>(&mut self, turn: &mut TurnContext<'_, I, C>, method: MethodId) {
        let (core, reply) = (&mut *turn.core, &mut self.reply);
        self.running = Running::Endpoint;
        if reply.deadline_ns != NEVER {
            let now_ns = turn.clock.now_ns();
            (self.methods).record_run_time(method, self.began_ns, now_ns);
        }
        if reply.ok {
            core.answer_ok(turn.tx, reply.id, &mut reply.answer);
        } else {
            self.finish_uncommon(core, turn.tx, false);
        }
        self.apply(&mut core.registrations);
    }

    /// Reads the extension of a request, and decides whether a request with a deadline is worth
    /// running.
    #[inline(always)]
    fn admit<C: Clock>(
        &mut self,
        turn: &mut TurnContext<'_, I, C>,
        peer: PeerId,
        method: MethodId,
        bytes: &[u8],
    ) -> Result<Admitted, Refusal> {
        let extension = RequestExtension::parse(bytes).map_err(Refusal::Malformed)?;
        let mut admitted = Admitted {
            body_at: extension.body_at,
            continues_stream: extension.continues_stream,
            timing: None,
        };
        if let Some(stamp) = extension.stamp {
            let run_time = self.methods.run_time(method);
            let run_time = run_time.copied().unwrap_or_default();
            let core = &mut *turn.core;
            let sender = (peer, core.proto.incarnation(peer));
            let (admission, now_ns) = (&mut core.admission, turn.clock.now_ns());
            let timing = match extension.continues_stream {
                false => admission.admit(now_ns, sender, stamp, run_time),
                true => admission.admit_to_stream(now_ns, sender, stamp),
            };
            let timing = timing.map_err(Refusal::NotAdmitted)?;
            self.began_ns = timing.now_ns;
            admitted.timing = Some(timing);
        }
        Ok(admitted)
    }

    /// Answers a request that is not run.
    #[cold]
    fn refuse<C>(&mut self, turn: &mut TurnContext<'_, I, C>, refusal: Refusal) {
        let (core, reply) = (&mut *turn.core, &mut self.reply);
        let status = refusal.into_status(&mut core.stats);
        core.answer_status(turn.tx, reply.id, &mut reply.answer, &status);
    }

    /// Handles the response to a call. [`Tables::recover`] deals with panics in it.
    #[inline(always)]
    pub(crate) fn handle_response(
        &mut self,
        core: &mut EndpointCore<I>,
        tx: &mut I::Tx,
        tag: Tag,
        id: CallId,
        ext: bool,
        bytes: PayloadBytes<'_>,
    ) {
        let call = core.end_call(tag);
        let mut body_at = 0;
        if ext {
            match read_extension(core, bytes.as_slice()) {
                Ok(at) => body_at = at as u32,
                Err(status) => return self.complete(core, tx, call, id, || Err(status)),
            }
        }
        self.complete(core, tx, call, id, || {
            let payload = Payload {
                bytes,
                fields_at: RESPONSE_FIELDS_AT as u32,
                body_at,
            };
            Ok(Response { payload })
        });
    }

    /// Ends a call that has no response.
    pub(crate) fn fail(&mut self, core: &mut EndpointCore<I>, tx: &mut I::Tx, finished: Finished) {
        let Finished { call, id, status } = finished;
        let caught = catch_unwind(AssertUnwindSafe(|| {
            self.complete(core, tx, call, id, || Err(status));
        }));
        if let Err(panic) = caught {
            self.recover(core, tx, panic);
        }
    }

    /// Hands the end of a call to its continuation or future. `result` is built where it is handed
    /// over: moving it would cost more than building it.
    #[inline(always)]
    fn complete<'a>(
        &mut self,
        core: &mut EndpointCore<I>,
        tx: &mut I::Tx,
        call: Call,
        id: CallId,
        result: impl FnOnce() -> Result<Response<'a>, Status>,
    ) {
        core.stats.completions += 1;
        let Call {
            tag, continuation, ..
        } = call;
        if continuation == ContinuationId::LOCAL {
            let result = result().map(|Response { payload }| {
                let spare = core.spare_for(&payload);
                payload.into_owned(spare)
            });
            core.local.finish(tag, result);
            return;
        }
        // In bounds: checked when the call was made, and none is ever removed.
        let continuation = &mut self.continuations[continuation.0 as usize];
        self.running = Running::Continuation;
        let context = &mut Context {
            core: &mut *core,
            tx,
        };
        continuation(
            context,
            Completion {
                tag,
                call: id,
                result: result(),
            },
        );
        self.running = Running::Endpoint;
        self.apply(&mut core.registrations);
    }

    /// Answers a request whose handler did not simply succeed.
    #[cold]
    fn finish_uncommon(&mut self, core: &mut EndpointCore<I>, tx: &mut I::Tx, panicked: bool) {
        core.stats.panics += u64::from(panicked);
        let reply = &mut self.reply;
        let holding = reply.holding.take();
        let status = match reply.outcome.take() {
            Some(ReplyOutcome::Deferred(state)) => {
                // A reply that was used within the handler is answered already.
                if !state.answered.load(Ordering::Relaxed) {
                    (core.pending).insert(reply.id, state, reply.deadline_ns, holding);
                    if holding.is_none() {
                        self.methods.set_deferring(self.last_method);
                    }
                }
                return;
            }
            _ if panicked => handler_panic::status(),
            Some(ReplyOutcome::Status(status)) => status,
            None => Status::internal("the server's handler returned without an answer"),
        };
        core.answer_status(tx, reply.id, &mut reply.answer, &status);
    }

    /// Deals with a panic in a handler or a continuation; see [`handler_panic`]. The endpoint's own
    /// panics go on unwinding.
    #[cold]
    pub(crate) fn recover(
        &mut self,
        core: &mut EndpointCore<I>,
        tx: &mut I::Tx,
        panic: Box<dyn Any + Send>,
    ) {
        match std::mem::take(&mut self.running) {
            Running::Endpoint => resume_unwind(panic),
            Running::Handler => {
                self.finish_uncommon(core, tx, true);
                handler_panic::discard(panic);
            }
            Running::Continuation => {
                if core.panic.is_none() {
                    core.panic = Some(panic);
                } else {
                    handler_panic::discard(panic);
                }
            }
        }
        self.apply(&mut core.registrations);
    }
}

/// Hands a request to the workers.
fn submit_to_workers<I: PacketIo, C>(
    turn: &mut TurnContext<'_, I, C>,
    handler: WorkerHandler,
    id: RequestId,
    holding: Holding,
    request: Request<'_>,
    mut answer: Answer,
) {
    let (core, tx) = (&mut *turn.core, &mut *turn.tx);
    let Some(workers) = turn.workers else {
        let status = Status::internal(
            "the method runs in a worker, and the server has none: it should start_workers; the \
             call did not run",
        )
        .with_not_run();
        core.answer_status(tx, id, &mut answer, &status);
        return core.proto.recycle(answer.message);
    };
    let Request { payload, info } = request;
    let spare = core.spare_for(&payload);
    let mut job = core.spare_jobs.pop().unwrap_or_else(Job::empty);
    let state = job.fill(id, handler, payload.into_owned(spare), info, answer);
    match workers.submit(job) {
        Ok(()) => {
            (core.pending).insert(id, state, info.timing.deadline_ns, Some(holding));
        }
        Err(mut job) => {
            core.stats.workers_full += 1;
            let (request, mut answer, _) = job.take_parts();
            core.spare_jobs.push(job);
            core.proto.recycle(request);
            let status = Status::resource_exhausted(
                "the server's workers have a full queue; the call did not run",
            )
            .with_not_run();
            core.answer_status(tx, id, &mut answer, &status);
            core.proto.recycle(answer.message);
        }
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
