//! The state that handlers and the event loop share: the protocol, the calls, the pending requests.
//!
//! An endpoint is split so that a handler can be borrowed while the handler uses everything else:
//!
//! ```text
//!  Endpoint ┬─ io ─┬─ rx ── the datagram that the request lies in
//!           │      └─ tx ─┐
//!           ├─ core ──────┴─ Context, given to the handler
//!           ├─ tables ── methods, continuations: the handler itself
//!           └─ executor, dispatch
//! ```
//!
//! So the raw path needs no reference count, no lock and no queue: a call made in a handler is a call of
//! the protocol. Only futures, which outlive any borrow, leave commands in a queue
//! (`local`, `command`).

use std::any::Any;
use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use starling_call::{CallOptions, MethodId, Status};
use starling_io::PacketTx;
use starling_proto::{Event, Msgbuf, Prefix, Protocol, RequestId, RespondReason, SessionId, Tag};

use crate::admission::Admission;
use crate::client::{Call, CallId, ContinuationId};
use crate::config::EndpointConfig;
use crate::convert::{part_of_stream, prefix_of, unsent};
use crate::deadlines::Deadlines;
use crate::error::{CallError, CallNotMade, status_of_failure};
use crate::handler_panic;
use crate::local;
use crate::peers::Peers;
use crate::pending::Pending;
use crate::room::Room;
use crate::server::{Abandoned, Answer, DeferredReply};
use crate::sessions::Sessions;
use crate::sink::Sink;
use crate::sleep_state::SleepState;
use crate::stats::Stats;
use crate::timers::NEVER;
use crate::workers::Job;

/// A call that ended without a response; its continuation is still to run.
pub(crate) struct Finished {
    pub(crate) id: CallId,
    pub(crate) call: Call,
    pub(crate) status: Status,
}

/// The state that handlers and the event loop share.
///
/// `R` is what handlers register. The core keeps it until the handler has returned and does not
/// look into it, so it knows neither handlers nor the device.
pub(crate) struct Core<R> {
    pub(crate) proto: Protocol,
    /// Nanoseconds of the endpoint's clock: the time of the turn.
    pub(crate) now_ns: u64,
    /// Calls that are not over.
    calls: usize,
    max_calls: usize,
    deadlines: Deadlines,
    pub(crate) admission: Admission,
    pub(crate) finished: VecDeque<Finished>,
    /// Requests that are worked on outside their handler: deferred, or in workers.
    pub(crate) pending: Pending,
    pub(crate) sessions: Sessions,
    /// Who calls.
    pub(crate) peers: Peers,
    pub(crate) stats: Stats,
    pub(crate) registrations: Vec<R>,
    pub(crate) continuations: u32,
    pub(crate) local: Arc<local::Shared>,
    pub(crate) abandoned: Arc<Abandoned>,
    pub(crate) sleep: Arc<SleepState>,
    /// When a call's deadline or the end of a future's sleep comes next, at the earliest. In the past while time
    /// is shared.
    due_ns: u64,
    pub(crate) draining: bool,
    /// Empty jobs, to be filled again.
    #[allow(clippy::vec_box, reason = "the boxes go to the workers and come back")]
    pub(crate) spare_jobs: Vec<Box<Job>>,
    /// The panic of a continuation; it goes on to the endpoint's owner at the end of the turn.
    pub(crate) panic: Option<Box<dyn Any + Send>>,
    header: Vec<u8>,
}

impl<R> Core<R> {
    pub(crate) fn new(
        proto: Protocol,
        now_ns: u64,
        config: &EndpointConfig,
        local: Arc<local::Shared>,
        abandoned: Arc<Abandoned>,
        sleep: Arc<SleepState>,
    ) -> Self {
        let max_calls = config.max_calls;
        let room = Room::new(config.max_waiting, config.max_waiting_bytes);
        Self {
            proto,
            now_ns,
            calls: 0,
            max_calls,
            deadlines: Deadlines::new(max_calls),
            admission: Admission::default(),
            finished: VecDeque::new(),
            pending: Pending::new(room),
            sessions: Sessions::default(),
            peers: Peers::default(),
            stats: Stats::default(),
            registrations: Vec::new(),
            continuations: 0,
            local,
            abandoned,
            sleep,
            due_ns: NEVER,
            draining: false,
            spare_jobs: Vec::new(),
            panic: None,
            header: Vec::new(),
        }
    }

    // ---- client ----

    /// Makes a call whose body `build` appends.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn call(
        &mut self,
        tx: &mut impl PacketTx,
        session: SessionId,
        method: MethodId,
        options: &CallOptions,
        build: impl FnOnce(&mut Vec<u8>),
        continuation: ContinuationId,
        tag: u64,
    ) -> Result<CallId, CallError> {
        let tag_word = self.call_tag(continuation, tag, options.timeout)?;
        let (now, sink) = (self.now_ns, &mut Sink(tx));
        let number = self
            .proto
            .request_with(now, session, tag_word, sink, |out| {
                let prefix = prefix_of(options.put_header(method, out, now));
                build(out);
                assert!(
                    out.len() >= usize::from(prefix.len),
                    "`build` may only append"
                );
                prefix
            })?;
        Ok(self.record_call(CallId { session, number }, options.timeout))
    }

    /// Makes a call with a message that has room for the header at its beginning.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn call_message(
        &mut self,
        tx: &mut impl PacketTx,
        session: SessionId,
        method: MethodId,
        options: &CallOptions,
        mut message: Msgbuf,
        continuation: ContinuationId,
        tag: u64,
    ) -> Result<CallId, CallNotMade> {
        self.header.clear();
        let prefix = prefix_of(options.put_header(method, &mut self.header, self.now_ns));
        match message.head_mut().get_mut(..self.header.len()) {
            Some(room) => room.copy_from_slice(&self.header),
            None => {
                let needed = self.header.len();
                let error = CallError::NoHeaderRoom { needed };
                return Err(CallNotMade { error, message });
            }
        }
        self.issue(
            tx,
            session,
            message,
            prefix,
            options.timeout,
            continuation,
            tag,
        )
    }

    /// Makes a call with a complete message.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn issue(
        &mut self,
        tx: &mut impl PacketTx,
        session: SessionId,
        message: Msgbuf,
        prefix: Prefix,
        timeout: Option<Duration>,
        continuation: ContinuationId,
        tag: u64,
    ) -> Result<CallId, CallNotMade> {
        let tag_word = match self.call_tag(continuation, tag, timeout) {
            Ok(tag_word) => tag_word,
            Err(error) => return Err(CallNotMade { error, message }),
        };
        let (now, sink) = (self.now_ns, &mut Sink(tx));
        match (self.proto).request(now, session, message, prefix, tag_word, sink) {
            Ok(number) => Ok(self.record_call(CallId { session, number }, timeout)),
            Err(not_made) => Err(CallNotMade {
                error: not_made.reason.into(),
                message: not_made.message,
            }),
        }
    }

    /// Checks whether one more call may be made; returns the tag that the protocol carries for it.
    #[inline]
    fn call_tag(
        &self,
        continuation: ContinuationId,
        tag: u64,
        timeout: Option<Duration>,
    ) -> Result<Tag, CallError> {
        if continuation.0 >= self.continuations && !continuation.is_local() {
            return Err(CallError::UnknownContinuation);
        }
        let limit = self.max_calls;
        if self.calls >= limit {
            return Err(CallError::TooManyCalls { limit });
        }
        let deadline = match timeout {
            None => 0,
            Some(_) => {
                let place = self.deadlines.next_place();
                place.ok_or(CallError::TooManyCalls { limit })?
            }
        };
        let call = Call {
            tag,
            continuation,
            deadline,
        };
        Ok(call.to_tag())
    }

    /// Counts a call that the protocol took, and arms its deadline.
    #[inline]
    fn record_call(&mut self, id: CallId, timeout: Option<Duration>) -> CallId {
        self.calls += 1;
        self.stats.calls += 1;
        if let Some(timeout) = timeout {
            let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
            let at_ns = self.now_ns.saturating_add(ns);
            self.deadlines.arm(at_ns, id);
            self.due_ns = self.due_ns.min(at_ns);
        }
        id
    }

    /// The deadline of a call that is not over.
    #[cold]
    pub(crate) fn deadline_ns(&self, tag: Tag) -> Option<u64> {
        self.deadlines.at_ns(Call::from_tag(tag).deadline)
    }

    /// Counts the end of a call, and disarms its deadline.
    #[inline]
    pub(crate) fn end_call(&mut self, tag: Tag) -> Call {
        let call = Call::from_tag(tag);
        self.calls -= 1;
        if call.deadline != 0 {
            self.deadlines.disarm(call.deadline);
        }
        call
    }

    pub(crate) fn calls_outstanding(&self) -> usize {
        self.calls
    }

    /// Ends a call from this side, with the status for whether it may have run. False if it is over
    /// already (its end may still be on its way to the continuation).
    pub(crate) fn abort(
        &mut self,
        tx: &mut impl PacketTx,
        id: CallId,
        status: impl FnOnce(bool) -> Status,
    ) -> bool {
        let (now, sink) = (self.now_ns, &mut Sink(tx));
        let Some(cancelled) = self.proto.cancel(now, id.session, id.number, sink) else {
            return false;
        };
        self.proto.recycle(cancelled.request);
        let call = self.end_call(cancelled.tag);
        let mut status = status(cancelled.may_have_run);
        if !cancelled.may_have_run {
            status = status.with_not_run();
        }
        self.finished.push_back(Finished { id, call, status });
        true
    }

    pub(crate) fn cancel(&mut self, tx: &mut impl PacketTx, id: CallId) -> bool {
        let cancelled = self.abort(tx, id, |_| Status::cancelled("cancelled by the caller"));
        self.stats.cancelled += u64::from(cancelled);
        cancelled
    }

    /// Whether anything besides datagrams is to be handled in this turn.
    #[inline]
    pub(crate) fn has_side_work(&self) -> bool {
        self.finished.len() | self.pending.len() != 0
            || self.sleep.has_work()
            || self.proto.has_event()
            || self.due_ns <= self.now_ns
    }

    /// Each turn handles more than datagrams from now on, until [`Core::end_side_work`].
    pub(crate) fn begin_shared_turns(&mut self) {
        self.due_ns = 0;
    }

    /// All that was left before [`SleepState::begin_work`] is done, and what was due.
    pub(crate) fn end_side_work(&mut self) {
        self.due_ns = self.deadlines.earliest_ns().min(self.local.alarm_ns());
        if self.local.is_busy() || !self.abandoned.is_empty() {
            self.sleep.leave_work();
        }
    }

    /// Ends the calls whose deadline has come, and cancels the requests whose deadline has come.
    pub(crate) fn expire(&mut self, tx: &mut impl PacketTx) {
        while let Some(id) = self.deadlines.pop_due(self.now_ns) {
            let peer = self.sessions.address(id.session).to_owned();
            let status = |may_have_run| {
                Status::deadline_exceeded(if may_have_run {
                    format!("{peer} did not answer in time; the call may have run")
                } else {
                    format!("the request to {peer} could not be sent in time; it did not run")
                })
            };
            if self.abort(tx, id, status) {
                self.stats.deadline_exceeded += 1;
            }
        }
        self.pending.expire(self.now_ns);
    }

    /// When a deadline comes next.
    pub(crate) fn next_deadline(&mut self) -> Option<u64> {
        let (call, request) = (self.deadlines.next(), self.pending.next_deadline());
        call.into_iter().chain(request).min()
    }

    /// Handles an event of the session protocol. Returns a peer that nothing refers to any more.
    pub(crate) fn handle_event(
        &mut self,
        event: Event,
        tx: &mut impl PacketTx,
    ) -> Option<starling_proto::PeerId> {
        match event {
            Event::Connected { session } => self.sessions.set_connected(session),
            Event::SessionDraining { session } => {
                self.stats.sessions_draining += 1;
                self.sessions.set_draining(session);
            }
            Event::SessionEnded { session, error } => {
                self.stats.sessions_ended += 1;
                self.sessions.set_ended(session, error);
            }
            Event::RequestFailed {
                session,
                number,
                tag,
                request,
                error,
                may_have_run,
            } => {
                let call = self.end_call(tag);
                let peer = self.sessions.address(session);
                let mut status = status_of_failure(peer, error, may_have_run);
                if may_have_run {
                    self.proto.recycle(request);
                } else {
                    status = unsent(request).attach_to(status);
                }
                let id = CallId { session, number };
                self.finished.push_back(Finished { id, call, status });
            }
            Event::RequestAbandoned { id } => self.handle_cancelled(id),
            Event::Standstill { session } => {
                let sink = &mut Sink(tx);
                (self.proto).end_streams(self.now_ns, session, part_of_stream, sink);
            }
            Event::PeerReleased { peer } => return Some(peer),
        }
        None
    }

    // ---- server ----

    /// Sends a successful answer. Leaves an empty one with memory for the next.
    #[inline(always)]
    pub(crate) fn answer_ok(&mut self, tx: &mut impl PacketTx, id: RequestId, answer: &mut Answer) {
        let sent = if answer.extra.is_none() {
            let (now, sink) = (self.now_ns, &mut Sink(&mut *tx));
            let message = &mut answer.message;
            (self.proto).respond(now, id, message, Prefix::NONE, sink)
        } else {
            self.respond_extended(tx, id, answer)
        };
        match sent {
            Ok(()) => self.stats.responses += 1,
            Err(reason) => self.handle_unsent(tx, id, answer, reason),
        }
    }

    /// Responds with metadata or a position in a stream.
    #[cold]
    fn respond_extended(
        &mut self,
        tx: &mut impl PacketTx,
        id: RequestId,
        answer: &mut Answer,
    ) -> Result<(), RespondReason> {
        let prefix = answer.seal_extra();
        let (now, sink) = (self.now_ns, &mut Sink(tx));
        (self.proto).respond(now, id, &mut answer.message, prefix, sink)
    }

    /// Sends a status in place of an answer.
    #[cold]
    pub(crate) fn answer_status(
        &mut self,
        tx: &mut impl PacketTx,
        id: RequestId,
        answer: &mut Answer,
        status: &Status,
    ) {
        let prefix = answer.seal_status(status);
        let (now, sink) = (self.now_ns, &mut Sink(&mut *tx));
        match (self.proto).respond(now, id, &mut answer.message, prefix, sink) {
            Ok(()) => self.stats.responses += 1,
            // A status is smaller than any limit. So the only reason left is that the client does
            // not wait any more.
            Err(_) => {
                self.stats.stale_responses += 1;
                answer.message.clear();
            }
        }
    }

    #[cold]
    fn handle_unsent(
        &mut self,
        tx: &mut impl PacketTx,
        id: RequestId,
        answer: &mut Answer,
        reason: RespondReason,
    ) {
        match reason {
            RespondReason::TooLarge { .. } | RespondReason::NoMemory { .. } => {
                let status = Status::resource_exhausted(reason.to_string());
                self.answer_status(tx, id, answer, &status);
            }
            RespondReason::Stale => {
                self.stats.stale_responses += 1;
                answer.message.clear();
            }
        }
    }

    /// Answers a request that was worked on outside its handler.
    pub(crate) fn finish_request(
        &mut self,
        tx: &mut impl PacketTx,
        id: RequestId,
        mut answer: Answer,
        result: Result<(), Status>,
    ) {
        // Absent if it was answered before its handler returned.
        self.pending.remove(id);
        match result {
            Ok(()) => self.answer_ok(tx, id, &mut answer),
            Err(status) => self.answer_status(tx, id, &mut answer, &status),
        }
        self.proto.recycle(answer.message);
    }

    /// Cancels a request because its client no longer waits.
    pub(crate) fn handle_cancelled(&mut self, id: RequestId) {
        self.pending.cancel(id);
    }

    /// Answers the requests whose deferred reply was dropped.
    #[cold]
    pub(crate) fn answer_abandoned(&mut self, tx: &mut impl PacketTx) {
        for reply in self.abandoned.take() {
            let status = if reply.panicked {
                // The executor has counted the panic.
                handler_panic::status()
            } else {
                self.stats.abandoned += 1;
                Status::internal("the server dropped the request without an answer")
            };
            self.finish_request(tx, reply.id, Answer::of(reply.message), Err(status));
        }
    }

    /// Answers a deferred request with what is in its buffer, or with a status.
    pub(crate) fn complete_with(
        &mut self,
        tx: &mut impl PacketTx,
        reply: DeferredReply,
        result: Result<(), Status>,
    ) {
        reply.assert_of(&self.abandoned);
        let is_refused = reply.is_refused();
        let (id, answer, prefix) = reply.into_parts();
        let result = result.map_err(|status| match is_refused {
            true => status.with_not_run(),
            false => status.with_run(),
        });
        match prefix.filter(|_| result.is_ok()) {
            None => self.finish_request(tx, id, answer, result),
            Some(prefix) => self.finish_sealed(tx, id, answer, prefix),
        }
    }

    /// Answers a request with a message that has its header.
    fn finish_sealed(
        &mut self,
        tx: &mut impl PacketTx,
        id: RequestId,
        mut answer: Answer,
        prefix: Prefix,
    ) {
        self.pending.remove(id);
        let (now, sink) = (self.now_ns, &mut Sink(&mut *tx));
        match (self.proto).respond(now, id, &mut answer.message, prefix, sink) {
            Ok(()) => self.stats.responses += 1,
            Err(reason) => self.handle_unsent(tx, id, &mut answer, reason),
        }
        self.proto.recycle(answer.message);
    }

    /// Refuses a deferred request because its server shuts down.
    pub(crate) fn refuse_draining(
        &mut self,
        reply: DeferredReply,
        sink: &mut impl starling_proto::FrameSink,
    ) {
        reply.assert_of(&self.abandoned);
        let (id, answer, _) = reply.into_parts();
        self.pending.remove(id);
        self.stats.refused_draining += 1;
        if !self.proto.refuse(id, sink) {
            self.stats.stale_responses += 1;
        }
        self.proto.recycle(answer.message);
    }

    /// Goes on with the panic of a continuation.
    #[cold]
    pub(crate) fn resume_panic(&mut self) {
        if let Some(panic) = self.panic.take() {
            resume_unwind(panic);
        }
    }

    // ---- sessions ----

    /// Closes a session.
    pub(crate) fn close(&mut self, tx: &mut impl PacketTx, session: SessionId) {
        self.proto.close(self.now_ns, session, &mut Sink(tx));
    }
}
