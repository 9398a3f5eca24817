//! One endpoint of the service, on a device of its own, as a runtime drives it.
//!
//! ```text
//!            ┌──────────── EndpointLink ────────────┐
//!  clients ─▶│ handler of all methods ──▶ requests  │──▶ the runtime routes them
//!  servers ◀─│ call            ends of calls ──▶    │──▶ the runtime answers with them
//!            └───────────────────────────────────────┘
//! ```
//!
//! Handlers and continuations only put what came into a queue: the runtime takes it after the turn, and may use any
//! link then.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use starling_endpoint::{
    CallError, CallId, ContinuationId, DeferredReply, Endpoint, EndpointConfig, Handler, Msgbuf,
    OpenError, Peer, Secrets, SessionId, SessionState,
};
use starling_io::{Device, IoError, MonotonicClock, PeerId, ReactorWait};

use crate::account::Charge;
use crate::datapath::Passed;
use crate::error::ServiceError;
use crate::forwarded::{CallResult, ForwardedRequest};
use crate::large::LargeMemory;
use crate::secrets::random_bytes;

/// Requests up to this size are copied into the endpoint's buffers, which are in the cache; longer ones are moved.
const COPIED_BYTES: usize = 512;

/// A request that has arrived.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) peer: PeerId,
    pub(crate) reply: DeferredReply,
    pub(crate) request: ForwardedRequest,
    pub(crate) passed: Passed,
    /// What it takes of its application's quotas. None: it was not looked at yet.
    pub(crate) charge: Option<Charge>,
}

/// A call that is over.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) tag: u64,
    pub(crate) result: CallResult,
}

/// What happened in a link's turns.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) arrived: Vec<Arrived>,
    pub(crate) ended: Vec<Ended>,
    /// Peers that the link has forgotten: their numbers may be those of others from now on.
    pub(crate) released: Vec<PeerId>,
}

/// An endpoint whose device is chosen at run time. One dynamic call for each turn and each call.
pub(crate) trait Link: Send {
    /// Takes a turn. Returns whether it did nothing.
    ///
    /// # Errors
    /// If the device fails. The error is final.
    fn turn(&mut self) -> Result<bool, IoError>;

    /// The time of the last turn, by the clock of all links.
    fn turn_ns(&self) -> u64;

    /// Swaps what happened since with something empty.
    fn take_events(&mut self, events: &mut Events);

    /// Sessions as a client that have ended or begun to drain, so far.
    fn sessions_changed(&self) -> u64;

    fn connect(&mut self, address: &str) -> Result<SessionId, OpenError>;
    fn state(&self, session: SessionId) -> Option<SessionState>;
    /// Who is at the other end.
    fn server_of(&mut self, session: SessionId) -> Option<Peer>;
    fn close(&mut self, session: SessionId);

    /// Makes a call, whose end has this tag.
    fn call(
        &mut self,
        session: SessionId,
        request: ForwardedRequest,
        tag: u64,
    ) -> Result<CallId, CallError>;
    fn cancel(&mut self, call: CallId);

    /// Answers a request that came by this link.
    fn answer(&mut self, reply: DeferredReply, result: Result<(), starling_endpoint::Status>);
    fn peer(&mut self, peer: PeerId) -> Peer;
    /// Refuses a request that came by this link, because its server shuts down.
    fn refuse_draining(&mut self, reply: DeferredReply);
    /// Tells a client to make no new requests.
    fn drain_peer(&mut self, peer: PeerId);
    /// Whether it makes none, and has none outstanding.
    fn has_left(&self, peer: PeerId) -> bool;
    fn end_sessions_of(&mut self, peer: PeerId);
    /// Takes no new requests, and tells all clients so.
    fn start_drain(&mut self);
    /// Whether they make none, and have none outstanding.
    fn is_left(&self) -> bool;
    /// Ends all sessions, and says so.
    fn end(&mut self);

    fn local_address(&self) -> String;
    fn descriptor(&mut self) -> Option<OwnedFd>;
    fn spins(&mut self) -> bool;
    /// Lets others run that wait for this core.
    fn yield_core(&mut self);
    fn begin_wait(&mut self) -> Result<ReactorWait, IoError>;
    fn end_wait(&mut self) -> Result<(), IoError>;
    fn next_timer_ns(&mut self) -> Option<u64>;
}

impl fmt::Debug for dyn Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.local_address())
    }
}

/// See the head of this file.
pub(crate) struct EndpointLink<I: Device> {
    endpoint: Endpoint<I, MonotonicClock>,
    /// Handlers put into it. They run in this link's turns only, but have to be able to go to another thread.
    events: Arc<Mutex<Events>>,
    continuation: ContinuationId,
    large: LargeMemory,
}

impl<I: Device> EndpointLink<I> {
    pub(crate) fn new(
        io: I,
        clock: MonotonicClock,
        config: &EndpointConfig,
    ) -> Result<Self, ServiceError> {
        let secrets = Secrets {
            token_key: random_bytes()?,
            cookie_key: random_bytes()?,
        };
        config.check(io.capabilities())?;
        let mut endpoint = Endpoint::new(io, clock, config.clone(), secrets)?;
        endpoint.share_large_buffers(LargeMemory::buffers());
        let events = Arc::new(Mutex::new(Events::default()));
        let into = Arc::clone(&events);
        endpoint.register_others(Handler::deferring(move |_, request, reply| {
            let peer = request.peer();
            let arrived = Arrived {
                peer,
                request: ForwardedRequest::of(request),
                reply: reply.defer_without_buffer(),
                passed: Passed::default(),
                charge: None,
            };
            into.lock().arrived.push(arrived);
        }));
        let into = Arc::clone(&events);
        let continuation = endpoint.register_continuation(move |_, completion| {
            let ended = Ended {
                tag: completion.tag,
                result: completion.result.map(|response| response.into_owned()),
            };
            into.lock().ended.push(ended);
        });
        let into = Arc::clone(&events);
        endpoint.on_released(move |peer| into.lock().released.push(peer));
        Ok(Self {
            endpoint,
            events,
            continuation,
            large: LargeMemory::default(),
        })
    }
}

impl<I: Device> Link for EndpointLink<I> {
    fn turn(&mut self) -> Result<bool, IoError> {
        self.endpoint.handle_other_work();
        self.endpoint.poll().map(|turn| turn.is_idle())
    }

    fn turn_ns(&self) -> u64 {
        self.endpoint.turn_ns()
    }

    fn take_events(&mut self, events: &mut Events) {
        std::mem::swap(events, &mut *self.events.lock());
    }

    fn sessions_changed(&self) -> u64 {
        let stats = self.endpoint.stats();
        stats.sessions_ended + stats.sessions_draining
    }

    fn connect(&mut self, address: &str) -> Result<SessionId, OpenError> {
        let heap = || self.endpoint.memory().of_peer(address);
        self.large.note_address(address, heap);
        self.endpoint.connect(address)
    }

    fn state(&self, session: SessionId) -> Option<SessionState> {
        self.endpoint.session_state(session)
    }

    fn server_of(&mut self, session: SessionId) -> Option<Peer> {
        self.endpoint.server_of(session).cloned()
    }

    fn close(&mut self, session: SessionId) {
        self.endpoint.close(session);
    }

    fn call(
        &mut self,
        session: SessionId,
        request: ForwardedRequest,
        tag: u64,
    ) -> Result<CallId, CallError> {
        let method = request.method;
        if request.body().len() <= COPIED_BYTES {
            let build = |buffer: &mut Vec<u8>| buffer.extend_from_slice(request.body());
            return (self.endpoint).call(
                session,
                method,
                &request.options,
                build,
                self.continuation,
                tag,
            );
        }
        let (options, message) = match self.large.copy(request.body()) {
            Some(body) => {
                let room = request.options.header_len();
                let (options, copied) = request.into_options();
                self.endpoint.recycle(copied);
                (options, Msgbuf::from_parts(vec![0; room], Some(body)))
            }
            None => request.into_parts(),
        };
        (self.endpoint)
            .call_message(session, method, &options, message, self.continuation, tag)
            .map_err(|not_made| not_made.error)
    }

    fn cancel(&mut self, call: CallId) {
        self.endpoint.cancel(call);
    }

    fn answer(&mut self, reply: DeferredReply, result: Result<(), starling_endpoint::Status>) {
        self.endpoint.complete_with(reply, result);
    }

    fn peer(&mut self, peer: PeerId) -> Peer {
        self.endpoint.context().peer(peer).clone()
    }

    fn refuse_draining(&mut self, reply: DeferredReply) {
        self.endpoint.refuse_draining(reply);
    }

    fn drain_peer(&mut self, peer: PeerId) {
        self.endpoint.drain_peer(peer);
    }

    fn has_left(&self, peer: PeerId) -> bool {
        self.endpoint.has_left(peer)
    }

    fn is_left(&self) -> bool {
        self.endpoint.is_left()
    }

    fn end_sessions_of(&mut self, peer: PeerId) {
        self.endpoint.end_sessions_of(peer);
    }

    fn start_drain(&mut self) {
        self.endpoint.start_drain();
    }

    fn end(&mut self) {
        // What it cannot say, its peers learn by its silence.
        let _ = self.endpoint.drain(Duration::ZERO);
    }

    fn local_address(&self) -> String {
        self.endpoint.local_address()
    }

    fn descriptor(&mut self) -> Option<OwnedFd> {
        self.endpoint.descriptor()
    }

    fn spins(&mut self) -> bool {
        self.endpoint.spins()
    }

    fn yield_core(&mut self) {
        self.endpoint.yield_core();
    }

    fn begin_wait(&mut self) -> Result<ReactorWait, IoError> {
        self.endpoint.begin_wait()
    }

    fn end_wait(&mut self) -> Result<(), IoError> {
        self.endpoint.end_wait()
    }

    fn next_timer_ns(&mut self) -> Option<u64> {
        self.endpoint.next_timer_ns()
    }
}
