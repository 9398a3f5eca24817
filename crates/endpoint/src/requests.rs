//! From a request that arrived to its handler, and to the answer of an inline handler.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use starling_call::header::{self, REQUEST_BODY_AT, REQUEST_FIELDS_AT, RequestExtension};
use starling_call::{HeaderError, MethodId, Status};
use starling_io::{Clock, PacketIo};
use starling_proto::{PeerId, RequestId};

use crate::admission::Timing;
use crate::context::{Context, HandlerKind, InlineHandler};
use crate::convert::io_peer;
use crate::handler_panic::{self, Running};
use crate::parts::Parts;
use crate::payload::{Payload, PayloadBytes};
use crate::refusal::Refusal;
use crate::room::Holding;
use crate::server::{Answer, Reply, ReplyOutcome, Request, RequestInfo};
use crate::timers::NEVER;
use crate::workers::{Job, WorkerHandler};

/// A request with an extension that is run.
struct Admitted {
    body_at: usize,
    continues_stream: bool,
    /// If it has a deadline.
    timing: Option<Timing>,
}

impl<I: PacketIo, C: Clock> Parts<I, C> {
    /// Handles a request that arrived. [`Parts::recover`] deals with panics in it.
    #[inline(always)]
    pub(crate) fn handle_request(
        &mut self,
        tx: &mut I::Tx,
        id: RequestId,
        peer: PeerId,
        ext: bool,
        bytes: PayloadBytes<'_>,
    ) {
        let core = &mut self.core;
        core.stats.requests += 1;
        let reply = &mut self.tables.reply;
        reply.id = id;
        if reply.answer.message.capacity() == 0 {
            reply.answer.message = core.proto.buffer();
        }
        let Some(method) = header::method_of(bytes.as_slice()) else {
            return self.refuse(tx, Refusal::Malformed(HeaderError::Truncated));
        };
        let mut timing = Timing::without_deadline(core.now_ns);
        let mut body_at = REQUEST_BODY_AT;
        let mut continues_stream = false;
        if ext {
            match self.admit(peer, method, bytes.as_slice()) {
                Ok(admitted) => {
                    body_at = admitted.body_at;
                    continues_stream = admitted.continues_stream;
                    timing = admitted.timing.unwrap_or(timing);
                }
                Err(refusal) => return self.refuse(tx, refusal),
            }
        }
        // A stream that has begun is a call in progress.
        if self.core.draining && !continues_stream {
            return self.refuse(tx, Refusal::Draining);
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
        let tables = &mut self.tables;
        match tables.methods.find(method) {
            Some(HandlerKind::Inline(handler)) => {
                let slot = &mut tables.reply;
                slot.deadline_ns = timing.deadline_ns;
                slot.ok = false;
                tables.running = Running::Handler;
                tables.last_method = method;
                let context = &mut Context {
                    core: &mut self.core,
                    tx: &mut *tx,
                };
                // Each arm builds its arguments where it needs them.
                match handler {
                    InlineHandler::OfEndpoint(handler) => {
                        let request = Request { payload, info };
                        handler(context, request, Reply { slot });
                    }
                    InlineHandler::Unary(handler) => {
                        let request = Request { payload, info };
                        Reply { slot }.answer_with(request, handler);
                    }
                }
                self.finish_inline(tx, method);
            }
            Some(HandlerKind::Deferring(_) | HandlerKind::Worker(_)) => {
                self.begin_waiting(tx, Request { payload, info });
            }
            None => self.refuse(tx, Refusal::UnknownMethod(method)),
        }
    }

    /// Begins a request that may wait outside its handler, if there is room for it.
    // Apart, so that requests that are answered at once pay nothing for it.
    #[inline(never)]
    fn begin_waiting(&mut self, tx: &mut I::Tx, request: Request<'_>) {
        let RequestInfo {
            method,
            peer,
            timing,
        } = request.info;
        let bytes = request.payload.len();
        let holding = Holding { peer, bytes };
        if !self.core.pending.admits(holding) {
            return self.refuse(tx, Refusal::WaitingFull);
        }
        let tables = &mut self.tables;
        let slot = &mut tables.reply;
        match tables.methods.find(method) {
            Some(HandlerKind::Deferring(handler)) => {
                slot.deadline_ns = timing.deadline_ns;
                slot.ok = false;
                slot.holding = Some(holding);
                tables.running = Running::Handler;
                tables.last_method = method;
                let context = &mut Context {
                    core: &mut self.core,
                    tx: &mut *tx,
                };
                handler(context, request, Reply { slot });
                self.finish_inline(tx, method);
                self.tables.reply.holding = None;
            }
            Some(HandlerKind::Worker(handler)) => {
                let handler = Arc::clone(handler);
                let (id, answer) = (slot.id, std::mem::take(&mut slot.answer));
                self.submit_to_workers(tx, handler, id, holding, request, answer);
            }
            Some(HandlerKind::Inline(_)) | None => unreachable!("the caller found another kind"),
        }
    }

    /// Answers a request whose inline handler has returned.
    #[inline(always)]
    fn finish_inline(&mut self, tx: &mut I::Tx, method: MethodId) {
        let (core, tables) = (&mut self.core, &mut self.tables);
        tables.running = Running::Endpoint;
        let reply = &mut tables.reply;
        if reply.deadline_ns != NEVER {
            let now_ns = self.clock.now_ns();
            (tables.methods).record_run_time(method, tables.began_ns, now_ns);
        }
        if reply.ok {
            core.answer_ok(tx, reply.id, &mut reply.answer);
        } else {
            self.finish_uncommon(tx, false);
        }
        self.apply_registrations();
    }

    /// Reads the extension of a request, and decides whether a request with a deadline is worth
    /// running.
    #[inline(always)]
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
            let timing = timing.map_err(Refusal::NotAdmitted)?;
            self.tables.began_ns = timing.now_ns;
            admitted.timing = Some(timing);
        }
        Ok(admitted)
    }

    /// Answers a request that is not run.
    #[cold]
    fn refuse(&mut self, tx: &mut I::Tx, refusal: Refusal) {
        let (core, reply) = (&mut self.core, &mut self.tables.reply);
        let status = refusal.into_status(&mut core.stats);
        core.answer_status(tx, reply.id, &mut reply.answer, &status);
    }

    /// Answers a request whose handler did not simply succeed.
    #[cold]
    pub(crate) fn finish_uncommon(&mut self, tx: &mut I::Tx, panicked: bool) {
        let (core, tables) = (&mut self.core, &mut self.tables);
        core.stats.panics += u64::from(panicked);
        let reply = &mut tables.reply;
        let holding = reply.holding.take();
        let status = match reply.outcome.take() {
            Some(ReplyOutcome::Deferred(state)) => {
                // A reply that was used within the handler is answered already.
                if !state.answered.load(Ordering::Relaxed) {
                    (core.pending).insert(reply.id, state, reply.deadline_ns, holding);
                    if holding.is_none() {
                        tables.methods.set_deferring(tables.last_method);
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

    /// Hands a request to the workers.
    fn submit_to_workers(
        &mut self,
        tx: &mut I::Tx,
        handler: WorkerHandler,
        id: RequestId,
        holding: Holding,
        request: Request<'_>,
        mut answer: Answer,
    ) {
        let core = &mut self.core;
        let Some(workers) = &mut self.dispatch else {
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
}
