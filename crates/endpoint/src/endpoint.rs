//! The event loop of one thread.
//!
//! One turn, in order; the clock is read once, at its beginning:
//!
//! 1. receive a burst; run the handlers and continuations of what came, in place;
//! 2. take in what other threads left: workers' answers, abandoned replies, device events;
//! 3. end the calls whose deadline has come, wake sleepers;
//! 4. poll the futures that were woken, do what they want;
//! 5. run the continuations of calls that ended without a response;
//! 6. flush the protocol, then the device: everything leaves in as few datagrams as possible.

use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use starling_io::{
    Clock, IoError, IoEvent, MAX_BURST, PacketIo, PacketRx, PacketTx, PeerGone, Wake,
};
use starling_proto::{Body, ConfigError, Incoming, Msgbuf, PeerId, Protocol, Secrets, SessionId};

use crate::client::{CallId, Completion, ContinuationId};
use crate::context::{Context, RejectedCall};
use crate::core::{Core, Finished};
use crate::dispatch::{EXPIRED, HANDLER_PANICKED, Tables};
use crate::error::{CallError, OpenError};
use crate::executor::Executor;
use crate::header::MethodId;
use crate::local::{LocalHandle, Shared};
use crate::methods::Handler;
use crate::options::{CallOptions, EndpointConfig, Idle};
use crate::server::{Abandoned, Answer, DeferredReply};
use crate::sessions::SessionState;
use crate::sink::{Sink, io_peer, proto_peer, proto_source};
use crate::stats::{Stats, Turn};
use crate::status::Status;
use crate::worker::{Dispatch, JobEnd, ThreadPool, WorkerHandler};

/// A busy loop looks for device events only every so many turns.
const EVENT_INTERVAL: u64 = 64;
/// Clients that said nothing for this long have what they were sent: longer than the longest
/// retransmission timeout by default.
const LINGER_NS: u64 = 100_000_000;
/// Clients that are never quiet are left after this long.
const LINGER_MAX_NS: u64 = 1_000_000_000;

/// One thread's end of everything: its sessions, calls and handlers, over one device.
///
/// The owner calls [`Endpoint::poll`] (and [`Endpoint::wait`] when there is nothing to do), or one
/// of the loops made of them: [`Endpoint::run_until`], [`Endpoint::block_on`].
pub struct Endpoint<I: PacketIo, C: Clock> {
    // Futures first: they are dropped first, and may own replies and calls.
    executor: Executor,
    core: Core<I>,
    tables: Tables<I>,
    dispatch: Option<Box<dyn Dispatch>>,
    /// Peers to be given up once what was appended for them is flushed.
    released: Vec<PeerId>,
    idle: Idle,
    /// When there was work last.
    active_ns: u64,
    /// When a datagram arrived last.
    heard_ns: u64,
    /// Whether the time in `core` is that of a turn that is over.
    time_is_stale: bool,
    clock: C,
    io: I,
}

impl<I: PacketIo, C: Clock> fmt::Debug for Endpoint<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("local_address", &self.io.local_address())
            .field("stats", &self.core.stats)
            .finish_non_exhaustive()
    }
}

impl<I: PacketIo, C: Clock> Endpoint<I, C> {
    /// An endpoint on a device. `secrets` have to be random and new at each start.
    pub fn new(
        io: I,
        clock: C,
        config: EndpointConfig,
        secrets: Secrets,
    ) -> Result<Self, ConfigError> {
        let now_ns = clock.now_ns();
        let device = io.capabilities();
        let protocol = starling_proto::Config {
            reliable: device.reliable,
            rx_queue_bytes: device.rx_queue_bytes,
            rx_queue_datagrams: device.rx_queue_datagrams,
            ..config.protocol
        };
        let proto = Protocol::new(protocol, secrets, now_ns)?;
        let shared = Shared::new();
        let abandoned = Arc::new(Abandoned::new(io.waker()));
        Ok(Self {
            executor: Executor::new(shared.clone(), io.waker()),
            tables: Tables::new(Arc::clone(&abandoned)),
            core: Core::new(proto, now_ns, config.max_calls, shared, abandoned),
            dispatch: None,
            released: Vec::new(),
            idle: config.idle,
            active_ns: now_ns,
            heard_ns: now_ns,
            time_is_stale: false,
            clock,
            io,
        })
    }

    // ---- setting up ----

    /// Registers a handler in place of an earlier one for the same method.
    pub fn register(&mut self, method: MethodId, handler: Handler<I>) {
        self.tables.register(method, handler);
    }

    /// Registers a handler that runs in a worker thread; see [`Endpoint::start_workers`].
    pub fn register_worker(&mut self, method: MethodId, handler: WorkerHandler) {
        self.register(method, Handler::worker(handler));
    }

    /// Starts `threads` worker threads behind a queue of `queue` requests. Requests for worker
    /// handlers that find it full are refused with RESOURCE_EXHAUSTED.
    pub fn start_workers(&mut self, threads: usize, queue: usize) -> std::io::Result<()>
    where
        C: Clone + Send + 'static,
    {
        let pool = ThreadPool::new(threads, queue, self.clock.clone(), self.io.waker())?;
        self.set_dispatch(Box::new(pool));
        Ok(())
    }

    /// Has requests for worker handlers handed out by `dispatch`.
    pub fn set_dispatch(&mut self, dispatch: Box<dyn Dispatch>) {
        self.dispatch = Some(dispatch);
    }

    /// Registers what is to run when a call ends. One continuation serves any number of calls.
    pub fn register_continuation(
        &mut self,
        continuation: impl FnMut(&mut Context<'_, I>, Completion<'_>) + 'static,
    ) -> ContinuationId {
        self.context().register_continuation(continuation)
    }

    // ---- sessions ----

    /// Begins a session with the endpoint at `address`. Calls may be made on it at once; they wait
    /// until it is open, and end with UNAVAILABLE if that fails.
    pub fn connect(&mut self, address: &str) -> Result<SessionId, OpenError> {
        self.refresh();
        let peer = self.io.open_peer(address)?;
        let now = self.core.now_ns;
        let sink = &mut Sink(self.io.split().1);
        match self.core.proto.connect(now, proto_peer(peer), sink) {
            Ok(session) => {
                self.core.sessions.insert(session, address);
                Ok(session)
            }
            Err(error) => Err(OpenError::Session {
                address: address.to_owned(),
                error,
            }),
        }
    }

    /// Where a session stands; `None` if it is unknown or ended long ago.
    pub fn session_state(&self, session: SessionId) -> Option<SessionState> {
        self.core.sessions.state(session)
    }

    /// Closes a session. The calls outstanding on it end with CANCELLED.
    pub fn close(&mut self, session: SessionId) {
        self.context().close(session);
    }

    // ---- calls ----

    /// Everything that a handler can do, for the endpoint's owner.
    pub fn context(&mut self) -> Context<'_, I> {
        self.refresh();
        Context {
            core: &mut self.core,
            tx: self.io.split().1,
        }
    }

    /// Makes a call; see [`Context::call`].
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
        self.context()
            .call(session, method, options, build, continuation, tag)
    }

    /// Makes a call with a message built elsewhere; see [`Context::call_message`].
    #[allow(clippy::result_large_err)] // The message comes back so that it can be sent again.
    pub fn call_message(
        &mut self,
        session: SessionId,
        method: MethodId,
        options: &CallOptions,
        message: Msgbuf,
        continuation: ContinuationId,
        tag: u64,
    ) -> Result<CallId, RejectedCall> {
        self.context()
            .call_message(session, method, options, message, continuation, tag)
    }

    /// Gives a call up; see [`Context::cancel`].
    pub fn cancel(&mut self, call: CallId) -> bool {
        self.context().cancel(call)
    }

    /// Answers a deferred request; see [`Context::complete`].
    pub fn complete(&mut self, reply: DeferredReply, build: impl FnOnce(&mut Vec<u8>)) {
        self.context().complete(reply, build);
    }

    /// Answers a deferred request; see [`Context::complete_with`].
    pub fn complete_with(&mut self, reply: DeferredReply, result: Result<(), Status>) {
        self.context().complete_with(reply, result);
    }

    /// A way to make calls with futures, and to spawn them.
    pub fn local(&self) -> LocalHandle {
        LocalHandle::of(&self.core.local)
    }

    // ---- looking ----

    /// The address that peers reach this endpoint at.
    pub fn local_address(&self) -> String {
        self.io.local_address()
    }

    /// A handle for other threads to end a [`Endpoint::wait`].
    pub fn waker(&self) -> Arc<dyn Wake> {
        self.io.waker()
    }

    /// The device.
    pub fn io(&self) -> &I {
        &self.io
    }

    /// What the endpoint did so far.
    pub fn stats(&self) -> &Stats {
        &self.core.stats
    }

    /// What the session protocol did so far.
    pub fn protocol(&self) -> &Protocol {
        &self.core.proto
    }

    /// Calls that are not over.
    pub fn calls_outstanding(&self) -> usize {
        self.core.calls_outstanding() + self.core.finished.len()
    }

    /// Requests that are worked on: deferred, or in workers.
    pub fn requests_pending(&self) -> usize {
        self.core.pending.len()
    }

    // ---- the loop ----

    /// Reads the clock for what the owner does between turns: once, however much that is.
    #[inline]
    fn refresh(&mut self) {
        if self.time_is_stale {
            self.core.now_ns = self.clock.now_ns();
            self.time_is_stale = false;
        }
    }

    /// One turn. Never blocks. An error is the device's and final.
    ///
    /// # Panics
    /// With what a continuation panicked with, at the end of the turn; the endpoint stays usable.
    pub fn poll(&mut self) -> Result<Turn, IoError> {
        let Stats {
            turns,
            requests,
            responses,
            completions,
            ..
        } = self.core.stats;
        self.core.now_ns = self.clock.now_ns();
        self.core.stats.turns += 1;
        self.apply_registrations();

        let datagrams = self.receive()?;
        let mut events = 0;
        if datagrams > 0 {
            self.heard_ns = self.core.now_ns;
        }
        if datagrams == 0 || turns.is_multiple_of(EVENT_INTERVAL) {
            events += self.take_device_events();
        }
        self.take_workers_answers();
        let tx = self.io.split().1;
        if !self.core.abandoned.is_empty() {
            self.core.answer_abandoned(tx);
        }
        self.core.expire(tx);
        while let Some(event) = self.core.proto.poll_event() {
            events += 1;
            self.released.extend(self.core.handle_event(event));
        }
        events += self.run_futures();
        self.deliver_finished();

        let tx = self.io.split().1;
        self.core.proto.flush(self.core.now_ns, &mut Sink(&mut *tx));
        tx.flush()?;
        for peer in self.released.drain(..) {
            self.io.close_peer(io_peer(peer));
        }

        self.time_is_stale = true;
        let after = &self.core.stats;
        let turn = Turn {
            datagrams,
            requests: after.requests - requests,
            responses: after.responses - responses,
            completions: after.completions - completions,
            events,
        };
        if !turn.is_idle() {
            self.active_ns = self.core.now_ns;
        }
        if let Some(panic) = self.core.panic.take() {
            resume_unwind(panic);
        }
        Ok(turn)
    }

    /// Waits for work in the way that [`Idle`] says: at most until the next timeout or deadline,
    /// and at most `limit`. May return early.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<(), IoError> {
        if self.has_work() {
            return Ok(());
        }
        let spin = match self.idle {
            Idle::Spin => true,
            Idle::Adaptive { spin } => {
                u128::from(self.core.now_ns - self.active_ns) < spin.as_nanos()
            }
            Idle::Block => false,
        };
        if spin {
            std::hint::spin_loop();
            return Ok(());
        }
        let next_ns = [
            self.core.proto.next_timeout(),
            self.core.next_deadline(),
            self.core.local.next_sleep(),
        ]
        .into_iter()
        .flatten()
        .min();
        // Read again: the turn may have taken long, and who sleeps is in no hurry.
        let now_ns = self.clock.now_ns();
        let until = next_ns.map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(now_ns)));
        let timeout = match (until, limit) {
            (Some(until), Some(limit)) => Some(until.min(limit)),
            (until, limit) => until.or(limit),
        };
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Ok(());
        }
        self.io.wait(timeout)
    }

    /// One turn, and a wait if it did nothing.
    pub fn run_once(&mut self) -> Result<Turn, IoError> {
        let turn = self.poll()?;
        if turn.is_idle() {
            self.wait(None)?;
        }
        Ok(turn)
    }

    /// Turns until `done` says so; it is asked after each turn.
    pub fn run_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) -> Result<(), IoError> {
        loop {
            let turn = self.poll()?;
            if done(self) {
                return Ok(());
            }
            if turn.is_idle() {
                self.wait(None)?;
            }
        }
    }

    /// Runs the endpoint until `future` is ready. The future may use [`Endpoint::local`].
    pub fn block_on<F: Future>(&mut self, future: F) -> Result<F::Output, IoError> {
        let mut future = pin!(future);
        let waker = self.executor.main();
        let mut cx = TaskContext::from_waker(&waker);
        waker.wake_by_ref();
        loop {
            let turn = self.poll()?;
            if self.executor.take_main_woken() {
                self.refresh();
                self.core.local.now_ns.set(self.core.now_ns);
                if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                    return Ok(output);
                }
            } else if turn.is_idle() {
                self.wait(None)?;
            }
        }
    }

    /// Whether a turn would do something although nothing arrives.
    fn has_work(&self) -> bool {
        self.executor.is_ready()
            || !self.core.finished.is_empty()
            || !self.core.abandoned.is_empty()
    }

    fn apply_registrations(&mut self) {
        self.tables.apply(&mut self.core.registrations);
    }

    fn receive(&mut self) -> Result<usize, IoError> {
        let Self {
            io,
            core,
            tables,
            dispatch,
            ..
        } = self;
        let (rx, tx) = io.split();
        let datagrams = rx.rx_burst()?;
        core.stats.datagrams += datagrams as u64;
        let now = core.now_ns;
        for index in 0..datagrams {
            let datagram = rx.datagram(index);
            let source = proto_source(datagram.source);
            let sink = &mut Sink(&mut *tx);
            let mut frames = match core.proto.open(now, source, datagram.bytes, sink) {
                Ok(frames) => frames,
                Err(_) => {
                    core.stats.bad_datagrams += 1;
                    continue;
                }
            };
            while let Some(incoming) = core.proto.next(now, &mut frames, &mut Sink(&mut *tx)) {
                match incoming {
                    Incoming::Request {
                        id,
                        peer,
                        ext,
                        mut body,
                        response,
                    } => {
                        let answer = Answer::of(response);
                        tables.serve(core, tx, dispatch, id, peer, ext, &mut body, answer);
                        if let Body::Owned(message) = body {
                            core.proto.recycle(message);
                        }
                    }
                    Incoming::Response {
                        tag,
                        ext,
                        mut body,
                        request,
                        ..
                    } => {
                        core.proto.recycle(request);
                        if let Some(call) = core.take_call(tag) {
                            tables.respond(core, tx, call, CallId(tag), ext, &mut body);
                        }
                        if let Body::Owned(message) = body {
                            core.proto.recycle(message);
                        }
                    }
                    Incoming::Cancelled { id } => core.handle_cancelled(id),
                }
            }
        }
        Ok(datagrams)
    }

    fn take_device_events(&mut self) -> usize {
        let mut events = 0;
        while events < MAX_BURST {
            let Some(IoEvent::PeerGone(peer, how)) = self.io.poll_event() else {
                break;
            };
            events += 1;
            let now = self.core.now_ns;
            let certain = how == PeerGone::Certain;
            let sink = &mut Sink(self.io.split().1);
            self.core
                .proto
                .peer_gone(now, proto_peer(peer), certain, sink);
        }
        events
    }

    fn take_workers_answers(&mut self) {
        let Some(dispatch) = &mut self.dispatch else {
            return;
        };
        if dispatch.in_flight() == 0 {
            return;
        }
        let tx = self.io.split().1;
        let core = &mut self.core;
        while let Some(job) = dispatch.poll() {
            let (id, request, answer, end) = job.into_parts();
            core.proto.recycle(request);
            let result = match end {
                JobEnd::Answered => Ok(()),
                JobEnd::Failed(status) => Err(status),
                JobEnd::Panicked => {
                    core.stats.panics += 1;
                    Err(Status::internal(HANDLER_PANICKED))
                }
                JobEnd::Expired => {
                    core.stats.expired += 1;
                    Err(Status::deadline_exceeded(EXPIRED))
                }
                JobEnd::Cancelled => {
                    core.stats.cancelled_in_queue += 1;
                    Err(Status::cancelled("cancelled before the handler ran"))
                }
            };
            core.settle(tx, id, answer, result);
        }
    }

    fn run_futures(&mut self) -> usize {
        let now = self.core.now_ns;
        let mut done = self.core.local.wake_sleepers(now);
        if !self.executor.is_ready() {
            return done;
        }
        self.core.local.now_ns.set(now);
        let (polled, panics) = self.executor.run();
        done += polled;
        self.core.stats.panics += panics;
        let tx = self.io.split().1;
        let core = &mut self.core;
        // Bounded: nothing below polls a future, so nothing adds commands.
        while let Some(command) = core.local.take_command() {
            done += 1;
            core.obey(tx, command);
        }
        done
    }

    /// Runs the continuations of calls that ended without a response.
    fn deliver_finished(&mut self) {
        // A continuation may add to the queue: that is for the next turn.
        for _ in 0..self.core.finished.len() {
            let Some(finished) = self.core.finished.pop_front() else {
                return;
            };
            self.apply_registrations();
            let tx = self.io.split().1;
            let Finished { call, id, status } = finished;
            self.tables.fail(&mut self.core, tx, call, id, status);
        }
    }

    // ---- the end ----

    /// Begins to shut down: sessions and requests that arrive from now on are refused with
    /// UNAVAILABLE, so that their callers go elsewhere. Requests that are being worked on go on.
    pub fn start_drain(&mut self) {
        self.core.draining = true;
        self.core.proto.drain();
    }

    /// Whether nothing is left to be done: no request is worked on, no call is outstanding.
    pub fn is_drained(&self) -> bool {
        self.requests_pending() == 0 && self.calls_outstanding() == 0 && !self.has_work()
    }

    /// Shuts down gracefully: refuses new requests, finishes those that are being worked on and
    /// the calls outstanding, sends what is to be sent, closes the client sessions. Gives up after
    /// `timeout`. True if everything was finished. Afterwards the endpoint is to be dropped.
    ///
    /// A client fetches a large response packet by packet, and may miss the last packet of a small
    /// one, so an endpoint that has clients stays until they are quiet for 100 ms, but at most
    /// one second longer.
    pub fn drain(&mut self, timeout: Duration) -> Result<bool, IoError> {
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = self.clock.now_ns().saturating_add(timeout_ns);
        self.start_drain();
        let finished = self.run_until_ns(until_ns, None, Self::is_drained)?;
        let quiet_until_ns = until_ns.min(self.core.now_ns.saturating_add(LINGER_MAX_NS));
        self.run_until_ns(quiet_until_ns, Some(LINGER_NS), |endpoint| {
            let quiet_ns = endpoint.core.now_ns - endpoint.heard_ns;
            quiet_ns >= LINGER_NS || endpoint.core.proto.session_counts().1 == 0
        })?;
        for session in self.core.sessions.alive() {
            self.close(session);
        }
        let closed = self.run_until_ns(until_ns, None, |endpoint| {
            endpoint.is_drained() && endpoint.core.sessions.alive().is_empty()
        })?;
        Ok(finished && closed)
    }

    /// Turns until `done` or the time is over; says whether it was `done`, which is asked at
    /// least every `interval_ns`.
    fn run_until_ns(
        &mut self,
        until_ns: u64,
        interval_ns: Option<u64>,
        done: impl Fn(&Self) -> bool,
    ) -> Result<bool, IoError> {
        loop {
            let turn = self.poll()?;
            if done(self) {
                return Ok(true);
            }
            let now_ns = self.core.now_ns;
            if now_ns >= until_ns {
                return Ok(false);
            }
            if turn.is_idle() {
                let left_ns = until_ns - now_ns;
                let limit_ns = interval_ns.map_or(left_ns, |interval_ns| interval_ns.min(left_ns));
                self.wait(Some(Duration::from_nanos(limit_ns)))?;
            }
        }
    }
}
