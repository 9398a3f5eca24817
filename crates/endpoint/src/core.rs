//! What handlers and the event loop share: the protocol, the calls, the requests being worked on.
//!
//! An endpoint is split so that a handler can be borrowed while it uses everything else:
//!
//! ```text
//!  Endpoint ┬─ io ─┬─ rx ── the datagram that the request lies in
//!           │      └─ tx ─┐
//!           ├─ core ──────┴─ Context, given to the handler
//!           ├─ methods, continuations ── the handler itself
//!           └─ executor, dispatch
//! ```
//!
//! So the raw path needs no `Rc`, no `RefCell` and no queue: a call made in a handler is a call of
//! the protocol. Only futures, which outlive any borrow, hand over what they want through a queue
//! ([`crate::local`]).

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use starling_io::PacketIo;
use starling_proto::{Event, Msgbuf, Protocol, RequestId, RespondReason, SessionId};

use crate::client::{Call, CallId, Completion, ContinuationId};
use crate::context::{Context, RejectedCall};
use crate::error::{CallError, status_of_failure};
use crate::header::MethodId;
use crate::local;
use crate::methods::Handler;
use crate::options::CallOptions;
use crate::server::{Abandoned, Answer, RequestFlags};
use crate::sessions::Sessions;
use crate::sink::Sink;
use crate::slab::Slab;
use crate::stats::Stats;
use crate::status::Status;
use crate::timers::Timers;

/// What a continuation is.
pub(crate) type ContinuationFn<I> = dyn FnMut(&mut Context<'_, I>, Completion<'_>);

/// Something registered by a handler, to be put in its table when the handler has returned.
pub(crate) enum Registration<I: PacketIo> {
    Method(MethodId, Handler<I>),
    Continuation(Box<ContinuationFn<I>>),
}

/// A call that ended without a response; its continuation is still to run.
pub(crate) struct Finished {
    pub(crate) id: CallId,
    pub(crate) call: Call,
    pub(crate) status: Status,
}

pub(crate) struct Core<I: PacketIo> {
    pub(crate) proto: Protocol,
    /// Nanoseconds of the endpoint's clock, read once per turn.
    pub(crate) now_ns: u64,
    calls: Slab<Call>,
    max_calls: usize,
    deadlines: Timers,
    pub(crate) finished: VecDeque<Finished>,
    /// Requests that are worked on outside their handler: deferred, or in workers.
    pub(crate) pending: HashMap<RequestId, Arc<RequestFlags>>,
    pub(crate) sessions: Sessions,
    pub(crate) stats: Stats,
    pub(crate) registrations: Vec<Registration<I>>,
    pub(crate) continuations: u32,
    pub(crate) local: Rc<local::Shared>,
    pub(crate) abandoned: Arc<Abandoned>,
    pub(crate) draining: bool,
    /// What a continuation panicked with; goes on to the endpoint's owner at the end of the turn.
    pub(crate) panic: Option<Box<dyn Any + Send>>,
    header: Vec<u8>,
}

impl<I: PacketIo> Core<I> {
    pub(crate) fn new(
        proto: Protocol,
        now_ns: u64,
        max_calls: usize,
        local: Rc<local::Shared>,
        abandoned: Arc<Abandoned>,
    ) -> Self {
        Self {
            proto,
            now_ns,
            calls: Slab::new(max_calls),
            max_calls,
            deadlines: Timers::default(),
            finished: VecDeque::new(),
            pending: HashMap::new(),
            sessions: Sessions::default(),
            stats: Stats::default(),
            registrations: Vec::new(),
            continuations: 0,
            local,
            abandoned,
            draining: false,
            panic: None,
            header: Vec::new(),
        }
    }

    // ---- client ----

    /// A call whose body `build` appends.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn call(
        &mut self,
        tx: &mut I::Tx,
        session: SessionId,
        method: MethodId,
        options: &CallOptions,
        build: impl FnOnce(&mut Vec<u8>),
        continuation: ContinuationId,
        tag: u64,
    ) -> Result<CallId, CallError> {
        let mut message = self.proto.buffer();
        let head = message.head_mut();
        let ext = options.put_header(method, head);
        let header_len = head.len();
        build(head);
        assert!(head.len() >= header_len, "`build` may only append");
        match self.issue(
            tx,
            session,
            message,
            ext,
            options.timeout,
            continuation,
            tag,
        ) {
            Ok(call) => Ok(call),
            Err(rejected) => {
                self.proto.recycle(rejected.message);
                Err(rejected.error)
            }
        }
    }

    /// A call with a message that has room for the header at its beginning.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn call_message(
        &mut self,
        tx: &mut I::Tx,
        session: SessionId,
        method: MethodId,
        options: &CallOptions,
        mut message: Msgbuf,
        continuation: ContinuationId,
        tag: u64,
    ) -> Result<CallId, RejectedCall> {
        self.header.clear();
        let ext = options.put_header(method, &mut self.header);
        match message.head_mut().get_mut(..self.header.len()) {
            Some(room) => room.copy_from_slice(&self.header),
            None => {
                let needed = self.header.len();
                let error = CallError::NoHeaderRoom { needed };
                return Err(RejectedCall { error, message });
            }
        }
        self.issue(
            tx,
            session,
            message,
            ext,
            options.timeout,
            continuation,
            tag,
        )
    }

    /// A call with a complete message.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn issue(
        &mut self,
        tx: &mut I::Tx,
        session: SessionId,
        message: Msgbuf,
        ext: bool,
        timeout: Option<Duration>,
        continuation: ContinuationId,
        tag: u64,
    ) -> Result<CallId, RejectedCall> {
        if continuation.0 >= self.continuations && continuation != ContinuationId::LOCAL {
            let error = CallError::UnknownContinuation;
            return Err(RejectedCall { error, message });
        }
        let Some(key) = self.calls.next_key() else {
            let limit = self.max_calls;
            let error = CallError::TooManyCalls { limit };
            return Err(RejectedCall { error, message });
        };
        let now = self.now_ns;
        let number = match (self.proto).request(now, session, message, ext, key, &mut Sink(tx)) {
            Ok(number) => number,
            Err(rejected) => {
                return Err(RejectedCall {
                    error: rejected.reason.into(),
                    message: rejected.message,
                });
            }
        };
        let call = Call::new(tag, number, session, continuation, timeout.is_some());
        let inserted = self.calls.insert(call);
        debug_assert!(inserted.is_ok_and(|inserted| inserted == key));
        if let Some(timeout) = timeout {
            let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
            let calls = &self.calls;
            self.deadlines
                .arm(now.saturating_add(ns), key, |key| calls.get(key).is_some());
        }
        self.stats.calls += 1;
        Ok(CallId(key))
    }

    /// Forgets a call that ended.
    #[inline]
    pub(crate) fn take_call(&mut self, key: u64) -> Option<Call> {
        let call = self.calls.remove(key)?;
        if call.is_timed() {
            self.deadlines.disarm();
        }
        Some(call)
    }

    pub(crate) fn calls_outstanding(&self) -> usize {
        self.calls.len()
    }

    /// Ends a call from this side. False if it is over already (its end may still be on its way
    /// to the continuation).
    pub(crate) fn abort(&mut self, tx: &mut I::Tx, id: CallId, status: Status) -> bool {
        let Some(&Call {
            session, number, ..
        }) = self.calls.get(id.0)
        else {
            return false;
        };
        let now = self.now_ns;
        let Some((_, message)) = (self.proto).cancel(now, session, number, &mut Sink(tx)) else {
            return false;
        };
        self.proto.recycle(message);
        if let Some(call) = self.take_call(id.0) {
            self.finished.push_back(Finished { id, call, status });
        }
        true
    }

    pub(crate) fn cancel(&mut self, tx: &mut I::Tx, id: CallId) -> bool {
        let cancelled = self.abort(tx, id, Status::cancelled("cancelled by the caller"));
        self.stats.cancelled += u64::from(cancelled);
        cancelled
    }

    /// Ends the calls whose deadline has come.
    #[inline]
    pub(crate) fn expire(&mut self, tx: &mut I::Tx) {
        if self.deadlines.is_due(self.now_ns) {
            self.expire_due(tx);
        }
    }

    #[cold]
    fn expire_due(&mut self, tx: &mut I::Tx) {
        while let Some(key) = self.deadlines.pop_due(self.now_ns) {
            let Some(&Call { session, .. }) = self.calls.get(key) else {
                continue;
            };
            let peer = self.sessions.address(session);
            let text = format!("{peer} did not answer in time; the call may have run");
            if self.abort(tx, CallId(key), Status::deadline_exceeded(text)) {
                self.stats.deadline_exceeded += 1;
            }
        }
    }

    /// When a deadline comes next.
    pub(crate) fn next_deadline(&mut self) -> Option<u64> {
        let calls = &self.calls;
        self.deadlines.next(|key| calls.get(key).is_some())
    }

    /// Takes in what happened to sessions. Returns a peer that nothing refers to any more.
    pub(crate) fn handle_event(&mut self, event: Event) -> Option<starling_proto::PeerId> {
        match event {
            Event::Connected { session } => self.sessions.set_connected(session),
            Event::SessionEnded { session, error } => self.sessions.set_ended(session, error),
            Event::RequestFailed {
                session,
                tag,
                request,
                error,
                ..
            } => {
                self.proto.recycle(request);
                if let Some(call) = self.take_call(tag) {
                    let status = status_of_failure(self.sessions.address(session), error);
                    let id = CallId(tag);
                    self.finished.push_back(Finished { id, call, status });
                }
            }
            Event::PeerReleased { peer } => return Some(peer),
        }
        None
    }

    // ---- server ----

    /// Sends a successful answer.
    #[inline]
    pub(crate) fn answer_ok(&mut self, tx: &mut I::Tx, id: RequestId, mut answer: Answer) {
        let ext = answer.seal_ok();
        self.send(tx, id, answer.message, ext);
    }

    /// Sends a status in place of an answer.
    #[cold]
    pub(crate) fn answer_status(
        &mut self,
        tx: &mut I::Tx,
        id: RequestId,
        mut answer: Answer,
        status: &Status,
    ) {
        answer.seal_status(status);
        self.send(tx, id, answer.message, true);
    }

    #[inline]
    fn send(&mut self, tx: &mut I::Tx, id: RequestId, message: Msgbuf, ext: bool) {
        let now = self.now_ns;
        match self.proto.respond(now, id, message, ext, &mut Sink(tx)) {
            Ok(()) => self.stats.responses += 1,
            Err(unsent) => self.handle_unsent(tx, id, unsent.message, unsent.reason),
        }
    }

    #[cold]
    fn handle_unsent(
        &mut self,
        tx: &mut I::Tx,
        id: RequestId,
        message: Msgbuf,
        reason: RespondReason,
    ) {
        match reason {
            RespondReason::Stale => {
                self.stats.stale_responses += 1;
                self.proto.recycle(message);
            }
            RespondReason::TooLarge { .. } => {
                self.proto.recycle(message);
                let mut answer = Answer::of(self.proto.buffer());
                answer.seal_status(&Status::resource_exhausted(reason.to_string()));
                let now = self.now_ns;
                // A status is smaller than any limit: what remains is that nobody waits.
                match (self.proto).respond(now, id, answer.message, true, &mut Sink(tx)) {
                    Ok(()) => self.stats.responses += 1,
                    Err(unsent) => {
                        self.stats.stale_responses += 1;
                        self.proto.recycle(unsent.message);
                    }
                }
            }
        }
    }

    /// Ends the work on a request outside its handler.
    pub(crate) fn settle(
        &mut self,
        tx: &mut I::Tx,
        id: RequestId,
        answer: Answer,
        result: Result<(), Status>,
    ) {
        // Absent if it was answered before its handler returned.
        self.pending.remove(&id);
        match result {
            Ok(()) => self.answer_ok(tx, id, answer),
            Err(status) => self.answer_status(tx, id, answer, &status),
        }
    }

    /// The client no longer waits for a request.
    pub(crate) fn handle_cancelled(&mut self, id: RequestId) {
        if let Some(flags) = self.pending.get(&id) {
            flags.cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// Answers the requests whose deferred reply was dropped.
    #[cold]
    pub(crate) fn answer_abandoned(&mut self, tx: &mut I::Tx) {
        for (id, message) in self.abandoned.take() {
            self.stats.abandoned += 1;
            let status = Status::internal("the server dropped the request without an answer");
            self.settle(tx, id, Answer::of(message), Err(status));
        }
    }
}
