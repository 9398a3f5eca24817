//! An endpoint as its owner sees it. `turn` has its event loop, `drain` its shutdown.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use starling_call::{CallOptions, MethodId, Peer, Status};
use starling_io::{Clock, Fault, IoError, MessageMemory, PacketIo, PacketRx, Wake};
use starling_proto::{
    ConfigError, LargeBuffers, Msgbuf, PeerId, Protocol, Secrets, SessionId, SlotRoom,
};

use crate::cadence::FlushCadence;
use crate::client::{CallId, Completion, ContinuationId};
use crate::config::{EndpointConfig, WorkerConfig};
use crate::context::{Context, Handler};
use crate::convert::proto_peer;
use crate::core::Core;
use crate::error::{CallError, CallNotMade, OpenError};
use crate::executor::Executor;
use crate::local::{LocalHandle, MAX_FUTURES, Shared};
use crate::memory::{HeldMost, MemoryReturn};
use crate::parts::Parts;
use crate::schedule::TurnSchedule;
use crate::server::{Abandoned, DeferredReply};
use crate::sessions::SessionState;
use crate::shares::Shares;
use crate::sink::Sink;
use crate::sleep_state::SleepState;
use crate::spin_policy::SpinPolicy;
use crate::stall::Stall;
use crate::stats::Stats;
use crate::tables::Tables;
use crate::workers::{
    Dispatch, MATCH_TABLE, SteeredPool, ThreadPool, WorkerHandler, WorkersReport,
};

/// Sessions whose requests workers may claim, at most. The shared table takes about a hundred bytes
/// for each.
const CLAIMED_SESSIONS: usize = 1 << 16;

/// Forgets a peer.
pub(crate) type OnReleased = Box<dyn FnMut(starling_io::PeerId) + Send>;

/// The sessions, calls and handlers of one event loop, over one device. It belongs to one thread at
/// a time, and may be handed on to another (`Send`, not `Sync`).
///
/// The owner calls [`Endpoint::poll`] (and [`Endpoint::wait`] when there is nothing to do), or one
/// of the loops made of them: [`Endpoint::run_until`], [`Endpoint::block_on`].
pub struct Endpoint<I: PacketIo, C: Clock> {
    // Futures first: they are dropped first, and may own replies and calls.
    pub(crate) executor: Executor,
    pub(crate) parts: Parts<I, C>,
    /// Peers to close on the device once the frames for them are flushed.
    pub(crate) released: Vec<PeerId>,
    /// What else forgets them then.
    pub(crate) on_released: Vec<OnReleased>,
    pub(crate) spin: SpinPolicy,
    /// When there was last work, or the owner last did something.
    pub(crate) active_ns: u64,
    /// When there was last work besides keepalives, and the datagrams that were none of these until then.
    pub(crate) spun_for: (u64, u64),
    /// Whether the owner did something since the last turn, at the time in `core`.
    pub(crate) between_turns: bool,
    /// Which turns do everything, and which only look for datagrams.
    pub(crate) schedule: TurnSchedule,
    /// Requests when the clock was last read.
    pub(crate) requests_seen: u64,
    pub(crate) stall: Option<Stall>,
    pub(crate) io: I,
    /// What it held for its peers. Dropped last: what the others held goes back.
    pub(crate) held: MemoryReturn,
}

impl<I: PacketIo, C: Clock> Drop for Endpoint<I, C> {
    fn drop(&mut self) {
        self.held.note_end(&mut self.parts.core);
    }
}

impl<I: PacketIo, C: Clock> fmt::Debug for Endpoint<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("local_address", &self.io.local_address())
            .field("stats", &self.parts.core.stats)
            .finish_non_exhaustive()
    }
}

impl<I: PacketIo, C: Clock> Endpoint<I, C> {
    /// An endpoint on a device. `secrets` must be random and new at each start.
    ///
    /// # Errors
    /// With the setting that is invalid.
    pub fn new(
        mut io: I,
        clock: C,
        config: EndpointConfig,
        secrets: Secrets,
    ) -> Result<Self, ConfigError> {
        config.check(io.capabilities())?;
        let now_ns = clock.now_ns();
        let protocol = config.protocol_on(io.capabilities());
        let proto = Protocol::new(protocol, secrets, now_ns)?;
        io.split().0.leave_tails(starling_proto::may_leave_tail);
        let sleep = SleepState::new(io.waker());
        let abandoned = Arc::new(Abandoned::new(Arc::clone(&sleep)));
        let shared = Shared::new(Arc::clone(&abandoned), Arc::clone(&sleep));
        let mut parts = Parts {
            tables: Tables::new(Arc::clone(&abandoned)),
            core: Core::new(
                proto,
                now_ns,
                &config,
                Arc::clone(&shared),
                abandoned,
                Arc::clone(&sleep),
            ),
            dispatch: None,
            clock,
            cadence: FlushCadence::default(),
            shares: Shares::default(),
            batched_timestamps: config.batched_timestamps,
            times_datagrams: !config.batched_timestamps,
        };
        parts.tables.reply.answer.message = parts.core.proto.buffer();
        Ok(Self {
            executor: Executor::new(shared, sleep, MAX_FUTURES),
            parts,
            released: Vec::new(),
            on_released: Vec::new(),
            spin: SpinPolicy::new(config.idle),
            active_ns: now_ns,
            spun_for: (now_ns, 0),
            between_turns: false,
            schedule: TurnSchedule::default(),
            requests_seen: 0,
            stall: None,
            io,
            held: MemoryReturn::new(config.returns_memory, now_ns),
        })
    }

    // ---- setting up ----

    /// Registers a handler in place of an earlier one for the same method.
    pub fn register(&mut self, method: MethodId, handler: Handler<I>) {
        self.parts.tables.register(method, handler);
    }

    /// Registers a handler for all methods without one of their own, in place of an earlier one: for services that
    /// pass calls on.
    pub fn register_others(&mut self, handler: Handler<I>) {
        self.parts.tables.methods.set_others(handler);
    }

    /// Registers a handler that runs in a worker thread; see [`Endpoint::start_workers`].
    pub fn register_worker(&mut self, method: MethodId, handler: WorkerHandler) {
        self.register(method, Handler::worker(handler));
    }

    /// Starts threads for worker handlers. Requests that find their queue full are refused with
    /// RESOURCE_EXHAUSTED.
    ///
    /// # Errors
    /// If there are workers already, if the settings are invalid ([`WorkerConfig::check`]), if the
    /// host refuses so many threads, or if the device cannot steer requests to them as configured.
    pub fn start_workers(&mut self, config: &WorkerConfig) -> Result<(), IoError>
    where
        C: Clone + Send + 'static,
    {
        if self.parts.dispatch.is_some() {
            // The jobs of those workers would be lost.
            return Err(IoError::new(
                Fault::Caller,
                "start worker threads",
                "the endpoint has workers already",
                "start them once",
            ));
        }
        if config.steered {
            return self.start_steered_workers(config);
        }
        let pool = ThreadPool::new(config, &self.parts.clock, &self.io.waker())?;
        self.set_dispatch(Box::new(pool));
        Ok(())
    }

    fn start_steered_workers(&mut self, config: &WorkerConfig) -> Result<(), IoError>
    where
        C: Clone + Send + 'static,
    {
        config.check()?;
        let steered = self.io.steer(config.threads, config.depth, &MATCH_TABLE)?;
        let claims = self.parts.core.proto.share_claims(CLAIMED_SESSIONS);
        let pool = SteeredPool::new(
            config,
            steered,
            claims,
            self.parts.tables.worker_methods(),
            &self.parts.clock,
            self.io.waker(),
            self.io.capabilities().rx_queue_datagrams,
        )?;
        self.set_dispatch(Box::new(pool));
        Ok(())
    }

    /// Sets what hands requests to worker handlers.
    ///
    /// # Panics
    /// If the dispatch that was set before has jobs that were not polled.
    pub fn set_dispatch(&mut self, dispatch: Box<dyn Dispatch>) {
        if let Some(before) = &mut self.parts.dispatch {
            // Its workers claim nothing from here on.
            before.drain();
            assert!(
                before.in_flight() + before.claimed() == 0,
                "requests would be lost with the workers that have them"
            );
        }
        self.parts.dispatch = Some(dispatch);
    }

    /// Registers a continuation: what runs when a call ends. One continuation serves any number of
    /// calls.
    pub fn register_continuation(
        &mut self,
        continuation: impl FnMut(&mut Context<'_, I>, Completion<'_>) + Send + 'static,
    ) -> ContinuationId {
        self.context().register_continuation(continuation)
    }

    // ---- sessions ----

    /// Begins a session with the endpoint at `address`. Calls may be made on it at once. They wait
    /// until the session is open, and end with UNAVAILABLE if that fails.
    pub fn connect(&mut self, address: &str) -> Result<SessionId, OpenError> {
        self.begin_timed_work();
        let peer = self.io.open_peer(address)?;
        let now = self.parts.core.now_ns;
        let sink = &mut Sink(self.io.split().1);
        match self.parts.core.proto.connect(now, proto_peer(peer), sink) {
            Ok(session) => {
                self.parts.core.sessions.insert(session, address);
                Ok(session)
            }
            Err(error) => {
                self.close_unused_peer(proto_peer(peer));
                Err(OpenError::Session {
                    address: address.to_owned(),
                    error,
                })
            }
        }
    }

    /// The state of a session; `None` if it is unknown or ended long ago.
    pub fn session_state(&self, session: SessionId) -> Option<SessionState> {
        self.parts.core.sessions.state(session)
    }

    /// Has a session grow to so many slots, by further sessions with its server, before calls wait for them.
    pub fn reserve_slots(&mut self, session: SessionId, wanted: usize) -> SlotRoom {
        let now = self.parts.core.now_ns;
        let sink = &mut Sink(self.io.split().1);
        (self.parts.core.proto).reserve_slots(now, session, wanted, sink)
    }

    /// Closes a session. The calls outstanding on it end with CANCELLED.
    pub fn close(&mut self, session: SessionId) {
        self.context().close(session);
    }

    /// Tells a peer to make no new requests here, as [`Endpoint::start_drain`] tells all. What comes nevertheless
    /// is to be refused ([`Endpoint::refuse_draining`]).
    pub fn drain_peer(&mut self, peer: starling_io::PeerId) {
        self.begin_owner_work();
        let (proto, sink) = (&mut self.parts.core.proto, &mut Sink(self.io.split().1));
        proto.drain_peer(proto_peer(peer));
        proto.announce_drain(sink);
    }

    /// Whether a peer that was told so makes no new requests here, and has none outstanding.
    pub fn has_left(&self, peer: starling_io::PeerId) -> bool {
        self.parts.core.proto.has_left(proto_peer(peer))
    }

    /// The same of all peers, after [`Endpoint::start_drain`].
    pub fn is_left(&self) -> bool {
        self.parts.core.proto.is_left()
    }

    /// Ends the sessions that a peer has with this endpoint's handlers: its requests count as cancelled. It is told in
    /// the next turn.
    pub fn end_sessions_of(&mut self, peer: starling_io::PeerId) {
        self.begin_owner_work();
        let sink = &mut Sink(self.io.split().1);
        (self.parts.core.proto).end_sessions_of(proto_peer(peer), sink);
    }

    // ---- calls ----

    /// Everything that a handler can do, for the endpoint's owner.
    pub fn context(&mut self) -> Context<'_, I> {
        self.begin_owner_work();
        Context {
            core: &mut self.parts.core,
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
        if options.timeout.is_some() {
            self.begin_timed_work();
        }
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
    ) -> Result<CallId, CallNotMade> {
        if options.timeout.is_some() {
            self.begin_timed_work();
        }
        self.context()
            .call_message(session, method, options, message, continuation, tag)
    }

    /// Cancels a call; see [`Context::cancel`].
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

    /// Refuses a deferred request because its server shuts down. It did not run, and its client gets the message
    /// back to send it elsewhere.
    pub fn refuse_draining(&mut self, reply: DeferredReply) {
        self.begin_owner_work();
        let sink = &mut Sink(self.io.split().1);
        self.parts.core.refuse_draining(reply, sink);
    }

    /// A handle to make calls with futures, and to spawn futures.
    pub fn local(&self) -> LocalHandle {
        LocalHandle::of(&self.parts.core.local)
    }

    // ---- getters ----

    /// The address at which peers reach this endpoint.
    pub fn local_address(&self) -> String {
        self.io.local_address()
    }

    /// A handle for other threads to end a [`Endpoint::wait`].
    pub fn waker(&self) -> Arc<dyn Wake> {
        self.io.waker()
    }

    /// The best memory for tails of messages: a device that can do so sends them from it without a
    /// copy.
    pub fn memory(&self) -> MessageMemory {
        self.io.memory()
    }

    /// The buffers for large messages that the endpoint uses.
    pub fn large_buffers(&self) -> LargeBuffers {
        self.parts.core.proto.large_buffers().clone()
    }

    /// From now on the endpoint uses these buffers for large messages, which others may share.
    pub fn share_large_buffers(&mut self, buffers: &LargeBuffers) {
        self.parts.core.proto.share_large_buffers(buffers);
    }

    /// Takes back the memory of a message.
    pub fn recycle(&mut self, message: Msgbuf) {
        self.parts.core.proto.recycle(message);
    }

    /// The device.
    pub fn io(&self) -> &I {
        &self.io
    }

    /// Counts what something else holds for the endpoint's peers, as the endpoint counts what it holds itself: see
    /// [`EndpointConfig::returns_memory`].
    pub fn count_held(&mut self, held_most: HeldMost) {
        self.held.count(held_most);
    }

    /// Has this called with each peer that the endpoint forgets: it has no session any more, and the device may
    /// use its number for another one.
    pub fn on_released(&mut self, forget: impl FnMut(starling_io::PeerId) + Send + 'static) {
        self.on_released.push(Box::new(forget));
    }

    /// Gives the endpoint another clock, which must not be behind the one that it has.
    pub fn set_clock(&mut self, clock: C) {
        self.parts.clock = clock;
    }

    /// The counters of the endpoint.
    pub fn stats(&self) -> &Stats {
        &self.parts.core.stats
    }

    /// The clients whose requests may have to wait there: a message of several packets was on its way to or from one
    /// within this time, or each of its slots was used. A look through all sessions.
    pub fn backlogged(&self, within_ns: u64) -> HashSet<starling_io::PeerId> {
        let since = self.parts.core.now_ns.saturating_sub(within_ns);
        let clients = self.protocol().backlogged(since).into_iter();
        clients.map(|peer| starling_io::PeerId(peer.0)).collect()
    }

    /// The session protocol, for its counters.
    pub fn protocol(&self) -> &Protocol {
        &self.parts.core.proto
    }

    /// Nanoseconds since the last turn began. Reads the clock, for all that is done before the next one.
    pub fn since_last_turn_ns(&mut self) -> u64 {
        let last_ns = self.parts.core.now_ns;
        self.begin_owner_work();
        self.parts.core.now_ns - last_ns
    }

    /// Calls that are not over.
    pub fn calls_outstanding(&self) -> usize {
        self.parts.core.calls_outstanding() + self.parts.core.finished.len()
    }

    /// The time of the last turn, in nanoseconds of the endpoint's clock.
    #[inline]
    pub fn turn_ns(&self) -> u64 {
        self.parts.core.now_ns
    }

    /// Gives [`LocalHandle::turn_ns`] the time of the last turn, before the owner polls a future.
    pub fn share_turn_time(&self) {
        self.parts.core.local.set_turn(self.parts.core.now_ns);
    }

    /// Who the peer of a session is.
    pub fn session_peer(&mut self, peer: PeerId) -> &Peer {
        self.parts.core.peers.of(peer, self.io.split().1)
    }

    /// Who is at the other end of a session that was opened here, and is not over.
    pub fn server_of(&mut self, session: SessionId) -> Option<&Peer> {
        let peer = self.parts.core.proto.peer_of(session)?;
        Some(self.session_peer(peer))
    }

    /// The address that a session was opened with.
    pub fn session_address(&self, session: SessionId) -> &str {
        self.parts.core.sessions.address(session)
    }

    /// What the workers have, if there are any.
    pub fn workers(&self) -> Option<WorkersReport> {
        self.parts
            .dispatch
            .as_ref()
            .map(|dispatch| dispatch.report())
    }

    /// Requests that are worked on outside their handler: deferred, or in workers.
    pub fn requests_pending(&self) -> usize {
        self.parts.core.pending.len()
    }

    /// Those of them that count in [`EndpointConfig::max_waiting`](crate::EndpointConfig::max_waiting): not those that
    /// continue a stream.
    pub fn requests_waiting(&self) -> usize {
        self.parts.core.pending.waiting()
    }

    /// Bytes of their messages.
    pub fn bytes_pending(&self) -> usize {
        self.parts.core.pending.bytes()
    }

    /// After a long absence, peers may have given this endpoint up. They are probed before anything
    /// else is sent to them.
    #[inline]
    pub(crate) fn handle_absence(&mut self) {
        let now_ns = self.parts.core.now_ns;
        if self.parts.core.proto.is_overdue(now_ns) {
            self.poll_device_events();
            let sink = &mut Sink(self.io.split().1);
            self.parts.core.proto.handle_overdue(now_ns, sink);
        }
    }

    /// Re-reads the clock before an operation with a time limit: the last turn may be long ago.
    #[inline]
    fn begin_timed_work(&mut self) {
        if self.between_turns {
            self.read_clock();
            self.handle_absence();
        }
        self.begin_owner_work();
    }

    /// Called before anything that the owner does between two turns: reads the clock, once, and
    /// makes the next turn come before a sleep, so that it sends what the owner asked for.
    #[inline]
    pub(crate) fn begin_owner_work(&mut self) {
        if !self.between_turns {
            self.read_clock();
            self.schedule.set_known();
            self.between_turns = true;
            self.handle_absence();
        }
    }
}
