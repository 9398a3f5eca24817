//! From a request that arrived to its handler, and to the answer of an inline handler.

use std::sync::Arc;

use starling_call::header::{self, REQUEST_BODY_AT, REQUEST_FIELDS_AT, RequestExtension};
use starling_call::{Cancellation, HeaderError, MethodId, Status};
use starling_io::{Clock, PacketIo};
use starling_proto::{PeerId, RequestId};

use crate::admission::Timing;
use crate::context::{Context, HandlerKind};
use crate::convert::{io_peer, proto_peer};
use crate::handler_panic::{self, Running};
use crate::parts::Parts;
use crate::payload::{Payload, PayloadBytes};
use crate::refusal::Refusal;
use crate::room::Holding;
use crate::server::{Answer, Reply, ReplyOutcome, Request, RequestInfo};
use crate::sink::Sink;
use crate::timers::NEVER;
use crate::workers::{Job, WorkerHandler};

/// A request that is run.
struct Admitted {
    body_at: usize,
    continues_stream: bool,
    /// If it has a deadline.
    timing: Option<Timing>,
}

impl Default for Admitted {
    /// Without an extension.
    fn default() -> Self {
        Self {
            body_at: REQUEST_BODY_AT,
            continues_stream: false,
            timing: None,
        }
    }
}

impl<I: PacketIo, C: Clock> Parts<I, C> {
    /// Handles a request without an extension in the receive buffer, while the endpoint takes new
    /// requests. [`Parts::recover`] deals with panics in it.
    #[inline(always)]
    pub(crate) fn handle_plain_request(
        &mut self,
        tx: &mut I::Tx,
        id: RequestId,
        peer: PeerId,
        payload: &[u8],
    ) {
        let Some((method, body)) = header::split_method(payload) else {
            return self.handle_other_request(tx, id, peer, payload);
        };
        // Built where it is handed over, so that it is not copied.
        let request = || Request {
            payload: Payload::InPlace { fields: None, body },
            method,
            peer: io_peer(peer),
            timing: None,
        };
        let (core, tables) = (&mut self.core, &mut self.tables);
        let slot = &mut tables.reply;
        slot.id = id;
        slot.ok = false;
        tables.last_method = method;
        match tables.methods.entry(method) {
            Some(HandlerKind::OfEndpoint(handler)) => {
                core.stats.requests += 1;
                tables.running = Running::Handler;
                let context = &mut Context { core, tx: &mut *tx };
                handler(context, request(), Reply { slot });
            }
            Some(HandlerKind::Unary(handler)) => {
                core.stats.requests += 1;
                tables.running = Running::Handler;
                let peer = core.peers.of(peer, tx);
                Reply { slot }.answer_with(request(), peer, handler);
            }
            _ => return self.handle_other_request(tx, id, peer, payload),
        }
        self.finish_inline(tx);
    }

    /// Handles a request without an extension that is not for an inline handler.
    #[cold]
    fn handle_other_request(
        &mut self,
        tx: &mut I::Tx,
        id: RequestId,
        peer: PeerId,
        payload: &[u8],
    ) {
        self.handle_request(tx, id, peer, false, PayloadBytes::InPlace(payload));
    }

    /// Handles a request that arrived. [`Parts::recover`] deals with panics in it.
    #[inline(never)]
    pub(crate) fn handle_request(
        &mut self,
        tx: &mut I::Tx,
        id: RequestId,
        peer: PeerId,
        ext: bool,
        bytes: PayloadBytes<'_>,
    ) {
        self.core.stats.requests += 1;
        self.tables.reply.id = id;
        let Some((method, _)) = header::split_method(bytes.as_slice()) else {
            return self.refuse(tx, Refusal::Malformed(HeaderError::Truncated));
        };
        let mut admitted = Admitted::default();
        if ext {
            admitted = match self.admit(peer, method, bytes.as_slice()) {
                Ok(admitted) => admitted,
                Err(refusal) => return self.refuse(tx, refusal),
            }
        }
        // A stream that has begun is a call in progress.
        if self.core.draining && !admitted.continues_stream {
            return self.refuse_draining(tx);
        }
        let length = bytes.as_slice().len();
        let request = Request {
            payload: bytes.split(REQUEST_FIELDS_AT, admitted.body_at),
            method,
            peer: io_peer(peer),
            timing: admitted.timing,
        };
        match self.tables.methods.find(method) {
            Some(handler) if !handler.may_wait() => self.run(tx, request, None),
            Some(handler) if admitted.continues_stream && handler.has_streams() => {
                self.run(tx, request, None);
            }
            Some(_) => self.begin_waiting(tx, request, length),
            None => self.refuse(tx, Refusal::UnknownMethod(method)),
        }
    }

    /// Runs a handler in this thread. `holding`: the room that the request takes if it is deferred.
    fn run(&mut self, tx: &mut I::Tx, request: Request<'_>, holding: Option<Holding>) {
        let tables = &mut self.tables;
        let Request { method, timing, .. } = request;
        let handler = tables.methods.find(method);
        let Some(handler) = handler.and_then(HandlerKind::inline) else {
            unreachable!("the caller found one");
        };
        let slot = &mut tables.reply;
        slot.ok = false;
        slot.holding = holding;
        slot.deadline_ns = timing.map_or(NEVER, |timing| timing.deadline_ns);
        tables.running = Running::Handler;
        tables.last_method = method;
        let context = &mut Context {
            core: &mut self.core,
            tx: &mut *tx,
        };
        handler.run(context, || request, Reply { slot });
        if let Some(timing) = timing {
            let now_ns = self.clock.now_ns();
            (self.tables.methods).record_run_time(method, timing.now_ns, now_ns);
        }
        self.finish_inline(tx);
        self.tables.reply.end_uncommon();
    }

    /// Begins a request of so many bytes that may wait outside its handler, if there is room for it.
    fn begin_waiting(&mut self, tx: &mut I::Tx, request: Request<'_>, bytes: usize) {
        let bytes = bytes + request.payload.decompressed_len();
        let holding = Holding::new(request.peer, bytes);
        if !self.core.pending.admits(holding) {
            return self.refuse(tx, Refusal::WaitingFull);
        }
        match self.tables.methods.find(request.method) {
            Some(HandlerKind::Worker(handler)) => {
                let handler = Arc::clone(handler);
                self.submit_to_workers(tx, handler, holding, request);
            }
            _ => self.run(tx, request, Some(holding)),
        }
    }

    /// Answers a request whose inline handler has returned.
    #[inline(always)]
    fn finish_inline(&mut self, tx: &mut I::Tx) {
        let (core, tables) = (&mut self.core, &mut self.tables);
        tables.running = Running::Endpoint;
        let reply = &mut tables.reply;
        if reply.ok {
            core.answer_ok(tx, reply.id, &mut reply.answer);
        } else {
            self.finish_uncommon(tx, false);
        }
        self.apply_registrations();
    }

    /// Reads the extension of a request, and decides whether a request with a deadline is worth
    /// running.
    fn admit(&mut self, peer: PeerId, method: MethodId, bytes: &[u8]) -> Result<Admitted, Refusal> {
        let extension = RequestExtension::parse(bytes).map_err(Refusal::Malformed)?;
        let mut admitted = Admitted {
            body_at: extension.body_at,
            continues_stream: extension.continues_stream,
            timing: None,
        };
        if let Some(stamp) = extension.stamp {
            let run_time = self.tables.methods.run_time(method);
            let run_time = run_time.copied().unwrap_or_default();
            let core = &mut self.core;
            let sender = (peer, core.proto.incarnation(peer));
            let (admission, now_ns) = (&mut core.admission, self.clock.now_ns());
            let timing = match extension.continues_stream {
                false => admission.admit(now_ns, sender, stamp, run_time),
                true => admission.admit_to_stream(now_ns, sender, stamp),
            };
            admitted.timing = Some(timing.map_err(Refusal::NotAdmitted)?);
        }
        Ok(admitted)
    }

    /// Answers a request that is not run.
    #[cold]
    pub(crate) fn refuse(&mut self, tx: &mut I::Tx, refusal: Refusal) {
        let (core, reply) = (&mut self.core, &mut self.tables.reply);
        let status = refusal.into_status(&mut core.stats);
        core.answer_status(tx, reply.id, &mut reply.answer, &status);
    }

    /// Refuses a request because the endpoint is shutting down. The client gets its message back.
    #[cold]
    fn refuse_draining(&mut self, tx: &mut I::Tx) {
        let core = &mut self.core;
        core.stats.refused_draining += 1;
        if !(core.proto).refuse(self.tables.reply.id, &mut Sink(tx)) {
            core.stats.stale_responses += 1;
        }
    }

    /// Answers a request whose handler did not simply succeed.
    #[cold]
    pub(crate) fn finish_uncommon(&mut self, tx: &mut I::Tx, panicked: bool) {
        let (core, tables) = (&mut self.core, &mut self.tables);
        core.stats.panics += u64::from(panicked);
        let reply = &mut tables.reply;
        let holding = reply.holding.take();
        let status = match reply.outcome.take() {
            Some(ReplyOutcome::Deferred(cancellation)) => {
                let is_answered = cancellation.is_finished();
                return self.wait_for_answer(cancellation, is_answered, holding);
            }
            Some(ReplyOutcome::Held(cancellation)) => {
                let is_answered = !core.proto.is_wanted(reply.id);
                return self.wait_for_answer(cancellation, is_answered, holding);
            }
            _ if panicked => handler_panic::status(),
            Some(ReplyOutcome::Status(status)) => status,
            None => Status::internal("the server's handler returned without an answer"),
        };
        core.answer_status(tx, reply.id, &mut reply.answer, &status);
    }

    /// A request is answered later. A reply that was used within the handler is answered already.
    fn wait_for_answer(
        &mut self,
        cancellation: Cancellation,
        is_answered: bool,
        holding: Option<Holding>,
    ) {
        let (core, tables) = (&mut self.core, &mut self.tables);
        let reply = &mut tables.reply;
        if !is_answered {
            (core.pending).insert(reply.id, cancellation, reply.deadline_ns, holding);
            if holding.is_none() {
                tables.methods.set_deferring(tables.last_method);
            }
        }
        if reply.answer.message.capacity() == 0 {
            // The reply has taken the other one.
            reply.answer.message = core.proto.buffer();
        }
    }

    /// Hands a request to the workers.
    fn submit_to_workers(
        &mut self,
        tx: &mut I::Tx,
        handler: WorkerHandler,
        holding: Holding,
        request: Request<'_>,
    ) {
        let (core, reply) = (&mut self.core, &mut self.tables.reply);
        let id = reply.id;
        let Some(workers) = &mut self.dispatch else {
            let status = Status::internal(
                "the method runs in a worker, and the server has none: it should start_workers; the \
                 call did not run",
            )
            .with_not_run();
            return core.answer_status(tx, id, &mut reply.answer, &status);
        };
        let next = Answer::of(core.proto.buffer());
        let answer = std::mem::replace(&mut reply.answer, next);
        let info = RequestInfo {
            method: request.method,
            peer: request.peer,
            timing: (request.timing).unwrap_or(Timing::without_deadline(core.now_ns)),
        };
        let mut job = core.spare_jobs.pop().unwrap_or_else(Job::empty);
        let peer = core.peers.of(proto_peer(info.peer), tx);
        let message = request.payload.into_owned(|_| core.proto.buffer());
        let cancellation = job.fill(id, handler, message, info, peer, answer);
        match workers.submit(job) {
            Ok(()) => {
                (core.pending).insert(id, cancellation, info.timing.deadline_ns, Some(holding));
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
}
