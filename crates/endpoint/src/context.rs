//! Handlers, continuations, and the context in which they run. The types refer to each other: a
//! handler gets a context, and may register handlers through it.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use starling_call::{CallOptions, MethodId, Peer, Status, UnaryFn, WorkerFn};
use starling_io::{PacketIo, PeerId};
use starling_proto::{Msgbuf, SessionId};

use crate::client::{CallId, Completion, ContinuationId};
use crate::convert::proto_peer;
use crate::core::Core;
use crate::error::{CallError, CallNotMade};
use crate::local::LocalHandle;
use crate::server::{DeferredReply, Reply, Request};
use crate::sessions::SessionState;
use crate::workers::{WorkerHandler, of_worker_fn};

/// The type of inline handlers.
pub(crate) type InlineFn<I> = dyn FnMut(&mut Context<'_, I>, Request<'_>, Reply<'_>) + Send;

/// The code that runs when a request of a method arrives.
pub struct Handler<I: PacketIo>(pub(crate) HandlerKind<I>);

pub(crate) enum HandlerKind<I: PacketIo> {
    /// Inline: it may make calls, defer its answer, and spawn futures.
    OfEndpoint(Box<InlineFn<I>>),
    /// Inline: it answers, and knows no endpoint.
    Unary(Box<UnaryFn>),
    /// As `OfEndpoint`, but its requests need room to wait.
    Deferring(Box<InlineFn<I>>),
    /// As `Deferring`, but for requests that continue a stream: whatever keeps their streams has room for them.
    Streaming(Box<InlineFn<I>>),
    Worker(WorkerHandler),
}

impl<I: PacketIo> HandlerKind<I> {
    /// Whether its requests may wait outside the handler.
    pub(crate) fn may_wait(&self) -> bool {
        matches!(
            self,
            Self::Deferring(_) | Self::Streaming(_) | Self::Worker(_)
        )
    }

    /// Whether its requests may be those of streams.
    pub(crate) fn has_streams(&self) -> bool {
        matches!(self, Self::Streaming(_))
    }

    /// The function that runs requests in the endpoint's own thread, if they need no room to wait.
    #[inline]
    pub(crate) fn immediate(&mut self) -> Option<InlineHandler<'_, I>> {
        match self {
            Self::OfEndpoint(handler) => Some(InlineHandler::OfEndpoint(&mut **handler)),
            Self::Unary(handler) => Some(InlineHandler::Unary(handler)),
            Self::Deferring(_) | Self::Streaming(_) | Self::Worker(_) => None,
        }
    }

    /// The function that runs requests in the endpoint's own thread.
    pub(crate) fn inline(&mut self) -> Option<InlineHandler<'_, I>> {
        match self {
            Self::Deferring(handler) | Self::Streaming(handler) => {
                Some(InlineHandler::OfEndpoint(&mut **handler))
            }
            other => other.immediate(),
        }
    }
}

/// A handler that runs in the endpoint's own thread.
pub(crate) enum InlineHandler<'a, I: PacketIo> {
    OfEndpoint(&'a mut InlineFn<I>),
    Unary(&'a mut UnaryFn),
}

impl<I: PacketIo> InlineHandler<'_, I> {
    /// Runs a request. `request` is built where it is handed over.
    #[inline(always)]
    pub(crate) fn run<'r>(
        self,
        context: &mut Context<'_, I>,
        request: impl FnOnce() -> Request<'r>,
        reply: Reply<'_>,
    ) {
        match self {
            Self::OfEndpoint(handler) => handler(context, request(), reply),
            Self::Unary(handler) => {
                let request = request();
                let peer = context.core.peers.of(proto_peer(request.peer), context.tx);
                reply.answer_with(request, peer, handler);
            }
        }
    }
}

impl<I: PacketIo> Handler<I> {
    /// Runs in the endpoint's own thread, on the receive buffer: for handlers that take less than a
    /// few microseconds. Everything else of this endpoint waits meanwhile.
    pub fn inline(
        handler: impl FnMut(&mut Context<'_, I>, Request<'_>, Reply<'_>) + Send + 'static,
    ) -> Self {
        Self(HandlerKind::OfEndpoint(Box::new(handler)))
    }

    /// Runs as an inline handler does, and usually defers its answer. While too many requests wait,
    /// of all or of one client ([`EndpointConfig::max_waiting`]), further ones are refused with
    /// RESOURCE_EXHAUSTED before the handler begins. This also holds for a method with an inline
    /// handler once that has deferred an answer. That first request takes no room.
    ///
    /// [`EndpointConfig::max_waiting`]: crate::EndpointConfig::max_waiting
    pub fn deferring(
        handler: impl FnMut(&mut Context<'_, I>, Request<'_>, Reply<'_>) + Send + 'static,
    ) -> Self {
        Self(HandlerKind::Deferring(Box::new(handler)))
    }

    /// Runs as a deferring handler does. Requests that continue a stream, which say so in their call header, are not
    /// refused because too many wait, and do not count among those that do: the handler bounds what its streams keep.
    pub fn streaming(
        handler: impl FnMut(&mut Context<'_, I>, Request<'_>, Reply<'_>) + Send + 'static,
    ) -> Self {
        Self(HandlerKind::Streaming(Box::new(handler)))
    }

    /// Runs as an inline handler does. It knows no endpoint and no device.
    pub fn unary(handler: Box<UnaryFn>) -> Self {
        Self(HandlerKind::Unary(handler))
    }

    /// Runs as a worker handler does. It knows no endpoint and no device.
    pub fn unary_worker(handler: Arc<WorkerFn>) -> Self {
        Self(HandlerKind::Worker(of_worker_fn(handler)))
    }

    /// Runs in a thread of the endpoint's worker pool; see
    /// [`crate::Endpoint::start_workers`].
    pub fn worker(handler: WorkerHandler) -> Self {
        Self(HandlerKind::Worker(handler))
    }

    /// The function that workers run, if the handler runs in workers.
    pub(crate) fn for_workers(&self) -> Option<WorkerHandler> {
        match &self.0 {
            HandlerKind::Worker(handler) => Some(WorkerHandler::clone(handler)),
            _ => None,
        }
    }
}

/// The type of continuations.
pub(crate) type ContinuationFn<I> = dyn FnMut(&mut Context<'_, I>, Completion<'_>) + Send;

/// A handler or continuation that was registered through a context. It is put into the tables when
/// the running handler has returned.
pub(crate) enum Registration<I: PacketIo> {
    Method(MethodId, Handler<I>),
    Continuation(Box<ContinuationFn<I>>),
}

/// The core of an endpoint on a device.
pub(crate) type EndpointCore<I> = Core<Registration<I>>;

/// An endpoint without its handlers: given to handlers and continuations, and by
/// [`crate::Endpoint::context`] to the endpoint's owner.
pub struct Context<'a, I: PacketIo> {
    pub(crate) core: &'a mut EndpointCore<I>,
    pub(crate) tx: &'a mut I::Tx,
}

impl<I: PacketIo> fmt::Debug for Context<'_, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("now_ns", &self.core.now_ns)
            .finish_non_exhaustive()
    }
}

impl<I: PacketIo> Context<'_, I> {
    /// The time of this turn, in nanoseconds of the endpoint's clock.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.core.now_ns
    }

    /// Makes a call whose body `build` appends to the buffer it is given. When the call ends,
    /// `continuation` runs with `tag`: exactly once, in a later turn or later in this one.
    ///
    /// Nothing is allocated in the steady state. When all slots of the session are busy, or it is
    /// not open yet, the call waits in order.
    ///
    /// # Panics
    /// If `build` shortens the buffer.
    #[inline]
    pub fn call(
        &mut self,
        session: SessionId,
        method: MethodId,
        options: &CallOptions,
        build: impl FnOnce(&mut Vec<u8>),
        continuation: ContinuationId,
        tag: u64,
    ) -> Result<CallId, CallError> {
        self.core
            .call(self.tx, session, method, options, build, continuation, tag)
    }

    /// Makes a call with a message built elsewhere, whose first
    /// [`CallOptions::header_len`] bytes are room for the call header. Neither the message nor
    /// its tail is copied before it is sent.
    #[allow(clippy::result_large_err)] // The message comes back so that it can be sent again.
    pub fn call_message(
        &mut self,
        session: SessionId,
        method: MethodId,
        options: &CallOptions,
        message: Msgbuf,
        continuation: ContinuationId,
        tag: u64,
    ) -> Result<CallId, CallNotMade> {
        self.core.call_message(
            self.tx,
            session,
            method,
            options,
            message,
            continuation,
            tag,
        )
    }

    /// Cancels a call, here and (best effort) at the server. Its continuation runs with CANCELLED.
    /// False if the call is over already.
    pub fn cancel(&mut self, call: CallId) -> bool {
        self.core.cancel(self.tx, call)
    }

    /// Registers a continuation: what runs when a call ends. One continuation serves any number of
    /// calls. It stays until the endpoint is dropped.
    pub fn register_continuation(
        &mut self,
        continuation: impl FnMut(&mut Context<'_, I>, Completion<'_>) + Send + 'static,
    ) -> ContinuationId {
        let id = ContinuationId(self.core.continuations);
        assert!(id != ContinuationId::LOCAL, "2^32 continuations");
        self.core.continuations += 1;
        self.core
            .registrations
            .push(Registration::Continuation(Box::new(continuation)));
        id
    }

    /// Registers a handler in place of an earlier one for the same method. In a handler it takes
    /// effect when that handler has returned.
    pub fn register(&mut self, method: MethodId, handler: Handler<I>) {
        self.core
            .registrations
            .push(Registration::Method(method, handler));
    }

    /// Answers a deferred request with what `build` appends to the response's buffer.
    ///
    /// # Panics
    /// If the request arrived at another endpoint.
    pub fn complete(&mut self, mut reply: DeferredReply, build: impl FnOnce(&mut Vec<u8>)) {
        build(reply.buffer());
        self.complete_with(reply, Ok(()));
    }

    /// Answers a deferred request with what is in its buffer, or with a status.
    ///
    /// # Panics
    /// If the request arrived at another endpoint.
    pub fn complete_with(&mut self, reply: DeferredReply, result: Result<(), Status>) {
        self.core.complete_with(self.tx, reply, result);
    }

    /// Who a peer is.
    pub fn peer(&mut self, peer: PeerId) -> &Peer {
        self.core.peers.of(proto_peer(peer), self.tx)
    }

    /// The incarnation of a peer: another number after it was restarted at the same address. Zero: unknown.
    pub fn incarnation(&self, peer: PeerId) -> u64 {
        self.core.proto.incarnation(proto_peer(peer))
    }

    /// The state of a session; `None` if it is unknown or ended long ago.
    pub fn session_state(&self, session: SessionId) -> Option<SessionState> {
        self.core.sessions.state(session)
    }

    /// Closes a session. The calls outstanding on it end with CANCELLED.
    pub fn close(&mut self, session: SessionId) {
        self.core.close(self.tx, session);
    }

    /// A handle to make calls with futures, and to spawn futures.
    pub fn local(&self) -> LocalHandle {
        LocalHandle::of(&self.core.local)
    }

    /// Runs a future on this endpoint, beginning later in this turn.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.local().spawn(future);
    }

    /// The same for a future that serves a request of `peer`: the time that it uses is the peer's.
    pub fn spawn_for(&self, peer: PeerId, future: impl Future<Output = ()> + Send + 'static) {
        self.local().spawn_with(future, Some(proto_peer(peer)));
    }

    /// An empty buffer with memory, from the endpoint's pool.
    pub fn buffer(&mut self) -> Msgbuf {
        self.core.proto.buffer()
    }

    /// Returns a buffer to the endpoint's pool.
    pub fn recycle(&mut self, message: Msgbuf) {
        self.core.proto.recycle(message);
    }
}
