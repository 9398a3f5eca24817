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

use crate::admission::{Late, Timing};
use crate::client::{Call, CallId, Completion, ContinuationId, Response};
use crate::context::Context;
use crate::convert::unsent;
use crate::core::{ContinuationFn, Core, Finished, Registration};
use crate::error::CallError;
use crate::local::Command;
use crate::methods::{Handler, HandlerKind, Methods};
use crate::panics;
use crate::payload::{Payload, PayloadBytes};
use crate::server::{Abandoned, Answer, NEVER, Otherwise, Reply, ReplySlot, Request, RequestInfo};
use crate::sink::io_peer;
use crate::stats::Stats;
use crate::workers::steered::WorkerMethods;
use crate::workers::{self, Job, WorkerHandler};

pub(crate) const HANDLER_PANICKED: &str = "the server's handler panicked";

/// The status of a request that is not run.
#[cold]
pub(crate) fn late_status(stats: &mut Stats, late: Late) -> Status {
    let status = match late {
        Late::Expired => {
            stats.expired += 1;
            Status::deadline_exceeded("the deadline passed before the server ran the handler")
        }
        Late::Overloaded => {
            stats.overloaded += 1;
            Status::resource_exhausted(
                "the server is asked for more than it can do in time; the call did not run",
            )
        }
    };
    status.with_not_run()
}

/// What runs when something arrives. Apart from [`Core`], so that it can be borrowed while it runs.
pub(crate) struct Tables<I: PacketIo> {
    methods: Methods<I>,
    continuations: Vec<Box<ContinuationFn<I>>>,
    /// The same as in the core: lent to replies while the core is lent to the handler.
    abandoned: Arc<Abandoned>,
    /// What workers that claim requests know of the methods, if there are such workers.
    claiming: Option<Arc<WorkerMethods>>,
    /// The reply of the inline handler that runs, or the one that ran last.
    reply: ReplySlot,
    /// What is to blame if something panics now.
    running: Running,
    /// When the request with a deadline was judged that was begun last.
    began_ns: u64,
}

/// Whose code runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Running {
    /// The endpoint's own.
    #[default]
    Endpoint,
    Handler,
    Continuation,
}

impl<I: PacketIo> Tables<I> {
    pub(crate) fn new(abandoned: Arc<Abandoned>) -> Self {
        Self {
            methods: Methods::new(),
            continuations: Vec::new(),
            abandoned,
            claiming: None,
            reply: ReplySlot::default(),
            running: Running::Endpoint,
            began_ns: 0,
        }
    }

    pub(crate) fn register(&mut self, method: MethodId, handler: Handler<I>) {
        if let Some(claiming) = &self.claiming {
            claiming.set(method, handler.for_workers());
        }
        self.methods.insert(method, handler);
    }

    /// The methods that run in workers, for threads that claim requests; kept up to date.
    pub(crate) fn worker_methods(&mut self) -> Arc<WorkerMethods> {
        let claiming = Arc::new(WorkerMethods::default());
        for (method, handler) in self.methods.of_workers() {
            claiming.set(method, Some(Arc::clone(handler)));
        }
        self.claiming = Some(Arc::clone(&claiming));
        claiming
    }

    /// A worker's answer was taken in: so long it takes from the handler's beginning until then.
    pub(crate) fn note_job(&mut self, job: &Job, now_ns: u64) {
        if let Some((method, began_ns)) = job.began() {
            self.methods.note_run(method, began_ns, now_ns);
        }
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
                Registration::Method(method, handler) => self.register(method, handler),
                Registration::Continuation(continuation) => self.continuations.push(continuation),
            }
        }
    }

    /// Handles a request that arrived. What panics in it goes to [`Tables::recover`].
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn serve<C: Clock>(
        &mut self,
        core: &mut Core<I>,
        tx: &mut I::Tx,
        workers: &mut Option<Box<dyn workers::Dispatch>>,
        clock: &C,
        id: RequestId,
        peer: PeerId,
        ext: bool,
        bytes: PayloadBytes<'_>,
    ) {
        core.stats.requests += 1;
        let reply = &mut self.reply;
        reply.id = id;
        if reply.answer.message.capacity() == 0 {
            reply.answer.message = core.proto.buffer();
        }
        let Some(method) = header::method_of(bytes.as_slice()) else {
            return refuse_malformed(core, tx, reply, HeaderError::Truncated);
        };
        let mut timing = Timing::without_deadline(core.now_ns);
        let mut body_at = REQUEST_BODY_AT;
        if ext {
            let extension = match RequestExtension::parse(bytes.as_slice()) {
                Ok(extension) => extension,
                Err(error) => return refuse_malformed(core, tx, reply, error),
            };
            body_at = extension.body_at;
            if let Some(stamps) = extension.stamp {
                let run_time = self.methods.run_time(method);
                let run_time = run_time.copied().unwrap_or_default();
                let sender = (peer, core.proto.incarnation(peer));
                match (core.admission).judge(clock.now_ns(), sender, stamps, run_time) {
                    Ok(judged) => {
                        timing = judged;
                        self.began_ns = judged.now_ns;
                    }
                    Err(late) => return refuse_late(core, tx, reply, late),
                }
            }
        }
        if core.draining {
            return refuse_draining(core, tx, reply);
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
                reply.deadline_ns = timing.deadline_ns;
                reply.ok = false;
                self.running = Running::Handler;
                let context = &mut Context {
                    core: &mut *core,
                    tx: &mut *tx,
                };
                let slot = &mut *reply;
                let abandoned = &self.abandoned;
                handler(
                    context,
                    Request { payload, info },
                    Reply { slot, abandoned },
                );
                self.running = Running::Endpoint;
                if reply.deadline_ns != NEVER {
                    self.methods.note_run(method, self.began_ns, clock.now_ns());
                }
                if reply.ok {
                    core.answer_ok(tx, reply.id, &mut reply.answer);
                } else {
                    finish_uncommon(core, tx, reply, false);
                }
                self.apply(&mut core.registrations);
            }
            Some(HandlerKind::Worker(handler)) => {
                let handler = Arc::clone(handler);
                let answer = std::mem::take(&mut reply.answer);
                let request = Request { payload, info };
                serve_in_worker(core, tx, workers, handler, id, request, answer);
            }
            None => refuse_unknown(core, tx, reply, method),
        }
    }

    /// Handles the response to a call. What panics in it goes to [`Tables::recover`].
    #[inline(always)]
    pub(crate) fn respond(
        &mut self,
        core: &mut Core<I>,
        tx: &mut I::Tx,
        tag: Tag,
        id: CallId,
        ext: bool,
        bytes: PayloadBytes<'_>,
    ) {
        let call = core.take_call(tag);
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
    pub(crate) fn fail(&mut self, core: &mut Core<I>, tx: &mut I::Tx, finished: Finished) {
        let Finished { call, id, status } = finished;
        let caught = catch_unwind(AssertUnwindSafe(|| {
            self.complete(core, tx, call, id, || Err(status));
        }));
        if let Err(panic) = caught {
            self.recover(core, tx, panic);
        }
    }

    /// Hands the end of a call to its continuation or future. The result is made where it is
    /// handed over: moving it would cost more than making it.
    #[inline(always)]
    fn complete<'a>(
        &mut self,
        core: &mut Core<I>,
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

    /// Deals with a panic in a handler or a continuation. Panics go on unwinding from here if they
    /// are the endpoint's own.
    #[cold]
    pub(crate) fn recover(
        &mut self,
        core: &mut Core<I>,
        tx: &mut I::Tx,
        panic: Box<dyn Any + Send>,
    ) {
        match std::mem::take(&mut self.running) {
            Running::Endpoint => resume_unwind(panic),
            Running::Handler => {
                finish_uncommon(core, tx, &mut self.reply, true);
                panics::discard(panic);
            }
            // The caller's own fault, so the caller gets it, but not before the turn is over:
            // the rest of the burst would be lost.
            Running::Continuation => {
                if core.panic.is_none() {
                    core.panic = Some(panic);
                } else {
                    panics::discard(panic);
                }
            }
        }
        self.apply(&mut core.registrations);
    }
}

/// Answers a request whose handler did not simply succeed.
#[cold]
fn finish_uncommon<I: PacketIo>(
    core: &mut Core<I>,
    tx: &mut I::Tx,
    reply: &mut ReplySlot,
    panicked: bool,
) {
    core.stats.panics += u64::from(panicked);
    let status = match reply.otherwise.take() {
        Some(Otherwise::Deferred(flags)) => {
            // If the reply was used within the handler, nothing is owed any more.
            if !flags.answered.load(Ordering::Relaxed) {
                core.pending.insert(reply.id, flags, reply.deadline_ns);
            }
            return;
        }
        _ if panicked => Status::internal(HANDLER_PANICKED),
        Some(Otherwise::Status(status)) => status.with_run(),
        None => Status::internal("the server's handler returned without an answer"),
    };
    core.answer_status(tx, reply.id, &mut reply.answer, &status);
}

fn serve_in_worker<I: PacketIo>(
    core: &mut Core<I>,
    tx: &mut I::Tx,
    workers: &mut Option<Box<dyn workers::Dispatch>>,
    handler: WorkerHandler,
    id: RequestId,
    request: Request<'_>,
    mut answer: Answer,
) {
    let Some(workers) = workers else {
        let status = Status::internal(
            "the method runs in a worker, and the server has none: it should start_workers",
        );
        core.answer_status(tx, id, &mut answer, &status);
        return core.proto.recycle(answer.message);
    };
    let Request { payload, info } = request;
    let spare = core.spare_for(&payload);
    let mut job = core.spare_jobs.pop().unwrap_or_else(Job::empty);
    let flags = job.fill(id, handler, payload.into_owned(spare), info, answer);
    match workers.submit(job) {
        Ok(()) => {
            core.pending.insert(id, flags, info.timing.deadline_ns);
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

#[cold]
fn refuse_malformed<I: PacketIo>(
    core: &mut Core<I>,
    tx: &mut I::Tx,
    reply: &mut ReplySlot,
    error: HeaderError,
) {
    core.stats.malformed += 1;
    let status = Status::invalid_argument(format!("the client's request is malformed: {error}"));
    core.answer_status(tx, reply.id, &mut reply.answer, &status);
}

#[cold]
fn refuse_draining<I: PacketIo>(core: &mut Core<I>, tx: &mut I::Tx, reply: &mut ReplySlot) {
    core.stats.refused_draining += 1;
    let status =
        Status::unavailable("the server is shutting down; the call did not run, call elsewhere")
            .with_not_run();
    core.answer_status(tx, reply.id, &mut reply.answer, &status);
}

#[cold]
fn refuse_late<I: PacketIo>(core: &mut Core<I>, tx: &mut I::Tx, reply: &mut ReplySlot, late: Late) {
    let status = late_status(&mut core.stats, late);
    core.answer_status(tx, reply.id, &mut reply.answer, &status);
}

#[cold]
fn refuse_unknown<I: PacketIo>(
    core: &mut Core<I>,
    tx: &mut I::Tx,
    reply: &mut ReplySlot,
    method: MethodId,
) {
    core.stats.unknown_method += 1;
    let status = Status::unimplemented(format!("the server has no method {:#010x}", method.0));
    core.answer_status(tx, reply.id, &mut reply.answer, &status);
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
    let mut status = Status::new(header.code, header.message.to_owned()).with_metadata(metadata);
    if header.not_run {
        status = status.with_not_run();
    }
    Err(status)
}

impl<I: PacketIo> Core<I> {
    /// Does what a future wants.
    pub(crate) fn obey(&mut self, tx: &mut I::Tx, command: Command) {
        match command {
            Command::Call {
                key,
                session,
                mut message,
                prefix,
                timeout,
            } => {
                if !self.local.is_wanted(key) {
                    self.keep(message);
                    return;
                }
                if timeout.is_some() {
                    header::set_sent(message.head_mut(), self.now_ns);
                }
                let local = ContinuationId::LOCAL;
                match self.issue(tx, session, message, prefix, timeout, local, key) {
                    Ok(call) => {
                        self.local.set_call(key, call);
                        // A buffer for one: the call's own goes to the protocol's pool.
                        let spare = self.proto.buffer();
                        self.keep(spare);
                    }
                    Err(rejected) => {
                        let mut status = Status::from(rejected.error);
                        if rejected.error == CallError::SessionOver {
                            status = status.with_unsent(unsent(rejected.message));
                        } else {
                            self.keep(rejected.message);
                        }
                        self.local.finish(key, Err(status));
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

    /// A buffer for a payload to be kept in, if it needs one.
    fn spare_for(&mut self, payload: &Payload<'_>) -> starling_proto::Msgbuf {
        match &payload.bytes {
            PayloadBytes::InPlace(_) => self.proto.buffer(),
            PayloadBytes::Reassembled(_) => starling_proto::Msgbuf::new(),
        }
    }

    /// Keeps a buffer for futures' calls, or for everybody.
    fn keep(&mut self, message: starling_proto::Msgbuf) {
        if let Some(message) = self.local.keep(message) {
            self.proto.recycle(message);
        }
    }
}
