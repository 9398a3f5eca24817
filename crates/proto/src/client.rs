//! The client side: sessions that this endpoint opened.
//!
//! Only this side keeps timers and decides what is sent again, as in eRPC (NSDI'19, section 5).

mod draining;
mod executing;
mod frames;
mod group;
mod lifecycle;
mod liveness;
mod receive;
mod recovery;
mod report;
mod session;
mod slot;
mod standstill;
mod timer;

use starling_msgbuf::Msgbuf;
use std::collections::VecDeque;

use crate::blocked::Blocked;
use crate::peer::Role;
use crate::shared::Shared;
use crate::table::{Place, Table};
use crate::wheel::Wheel;
use crate::wire::MIN_DATAGRAM;
use crate::{
    Cancelled, ConnectError, Event, FrameSink, NotMadeReason, PeerId, Prefix, Rejection,
    RequestError, RequestNotMade, RequestNumber, SessionError, SessionId, SinkError, Tag,
};
use group::Groups;
pub use group::SlotRoom;
use session::{ClientSession, Queued, SendOutcome, State};
use slot::Phase;
pub use standstill::StreamPart;

/// Tick of the retransmission timers: 65.5 us. The wheel reaches 67 ms ahead.
const TIMER_SHIFT: u32 = 16;
/// Tick of pacing: 1.02 us. The wheel reaches 1 ms ahead.
const PACER_SHIFT: u32 = 10;
/// Pacing cannot tell times within one tick apart.
const PACER_TICK_NS: u64 = 1 << PACER_SHIFT;

pub(crate) struct Client {
    pub(crate) sessions: Table<ClientSession>,
    timers: Wheel,
    pacer: Wheel,
    /// Sessions that found the sink full.
    blocked: Blocked,
    /// Slots with a request for response (RFR) to send.
    rfr_queue: VecDeque<(SessionId, u8)>,
    /// Sessions whose connect has to be sent (again).
    connecting: VecDeque<SessionId>,
    /// A turn's time, and the session places that resets had searched in that turn.
    searched: (u64, usize),
    /// Peers that have not answered since this endpoint was away for long.
    suspected: Vec<PeerId>,
    /// There are suspected or draining peers.
    has_rare_work: bool,
    /// Peers that have said in this turn that they shut down, to be answered.
    draining: Vec<PeerId>,
    groups: Groups,
    /// Scratch of `flush`.
    due: Vec<u32>,
}

impl Client {
    pub(crate) fn new(max_sessions: usize, now: u64) -> Self {
        Self {
            sessions: Table::new(max_sessions),
            timers: Wheel::new(TIMER_SHIFT, now),
            pacer: Wheel::new(PACER_SHIFT, now),
            blocked: Blocked::default(),
            rfr_queue: VecDeque::new(),
            connecting: VecDeque::new(),
            searched: (0, 0),
            suspected: Vec::new(),
            has_rare_work: false,
            draining: Vec::new(),
            groups: Groups::new(),
            due: Vec::new(),
        }
    }

    pub(crate) fn connect<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        peer: PeerId,
        sink: &S,
    ) -> Result<SessionId, ConnectError> {
        let width = sink.max_datagram(peer);
        if width < MIN_DATAGRAM {
            return Err(ConnectError::PathTooNarrow(width));
        }
        let id = self
            .sessions
            .insert(|handle| ClientSession {
                id: handle.id(),
                round: handle.round(),
                peer,
                timer_armed: true,
                max_message: shared.config.max_message,
                most_credits: shared.config.credits,
                began_at: now,
                control_sent_at: now,
                ..ClientSession::vacant()
            })
            .ok_or(ConnectError::SessionLimit(shared.config.max_sessions))?;
        shared.stats.places_reused += u64::from(id.is_reused());
        let own = shared.own_token_for(peer, sink);
        shared.peers.retain(peer, Role::Client, now, own);
        // Memory is reserved now, so that an absence later causes no allocation.
        self.due.reserve(self.sessions.places());
        self.suspected.reserve(shared.peers.len());
        self.connecting.push_back(id);
        let at = now + shared.config.rto_min_ns;
        self.timers.insert(id.index(), at, shared.last_turn);
        Ok(id)
    }

    /// Sends a request whose message `build` writes into the buffer that it is sent from.
    #[inline]
    pub(crate) fn request_with<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: SessionId,
        tag: Tag,
        sink: &mut S,
        build: impl FnOnce(&mut Vec<u8>) -> Prefix,
    ) -> Result<RequestNumber, NotMadeReason> {
        let Some(session) = self.sessions.get_mut(id) else {
            return Err(NotMadeReason::UnknownSession);
        };
        let message = &mut shared.scratch;
        if message.capacity() == 0 {
            *message = shared.pool.take();
        }
        let head = message.head_mut();
        // The last message may still be in it, or the rest of a `build` that panicked.
        head.clear();
        // One call site only, so that `build` is inlined.
        let prefix = build(head);
        if !session.can_send_now() || head.len() > usize::from(session.single) {
            let message = std::mem::take(message);
            return self.request_slow_path(shared, now, id, message, prefix, tag, sink);
        }
        let number = session.next_number;
        match session.send_single(now, message, prefix.ext, tag, sink) {
            Ok(()) => {
                shared.stats.requests_sent += 1;
                if !session.timer_armed {
                    arm(&mut self.timers, session, now, shared);
                }
            }
            Err(index) => self.defer(shared, now, id, index),
        }
        Ok(number)
    }

    #[cold]
    #[allow(clippy::too_many_arguments, reason = "those of the fast path")]
    fn request_slow_path<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: SessionId,
        message: Msgbuf,
        prefix: Prefix,
        tag: Tag,
        sink: &mut S,
    ) -> Result<RequestNumber, NotMadeReason> {
        shared.ask_flush();
        let submitted = self.submit(shared, now, id, message, prefix, tag, false, sink);
        submitted.map_err(|not_made| {
            shared.pool.put(not_made.message);
            not_made.reason
        })
    }

    /// The sink is full: the slot waits for the next flush.
    #[cold]
    fn defer(&mut self, shared: &mut Shared, now: u64, id: SessionId, index: usize) {
        let session = self.sessions.get_mut(id).expect("the caller has it");
        session.pending |= 1 << index;
        session.ready = false;
        shared.stats.sink_full += 1;
        shared.ask_flush();
        block(&mut self.blocked, session);
        if !session.timer_armed {
            arm(&mut self.timers, session, now, shared);
        }
    }

    /// Sends a request whose message is complete, or queues it.
    #[allow(
        clippy::too_many_arguments,
        reason = "one call per request: no struct to fill"
    )]
    pub(crate) fn request<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: SessionId,
        message: Msgbuf,
        prefix: Prefix,
        tag: Tag,
        sink: &mut S,
    ) -> Result<RequestNumber, RequestNotMade> {
        self.submit(shared, now, id, message, prefix, tag, true, sink)
    }

    /// The same. `is_lent`: the message is the caller's.
    // Apart, for the registers of the fast path.
    #[inline(never)]
    #[allow(clippy::too_many_arguments, reason = "those of a request")]
    fn submit<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: SessionId,
        message: Msgbuf,
        prefix: Prefix,
        tag: Tag,
        is_lent: bool,
        sink: &mut S,
    ) -> Result<RequestNumber, RequestNotMade> {
        let session = match self.sessions.get_mut(id) {
            Some(session) if session.state != State::Closing => session,
            _ => return Err(not_made(message, NotMadeReason::UnknownSession)),
        };
        if session.draining && !prefix.continues {
            return Err(not_made(message, NotMadeReason::Draining));
        }
        let len = prefix.body_len(message.len());
        let max = session.max_message as usize;
        if len > max {
            return Err(not_made(message, NotMadeReason::TooLarge { len, max }));
        }
        let number = session.next_number;
        let request = Queued {
            number,
            tag,
            message,
            prefix,
            queued_at: now,
            is_lent,
        };
        let mut holder = (session.free != 0).then_some(id);
        if holder.is_none() && session.has_members && session.queue.is_empty() {
            holder = self.available_member(id);
        }
        if let Some(holder) = holder {
            self.assign(shared, now, holder, request);
            self.send_pending(shared, now, holder, sink);
        } else {
            let session = self.sessions.get_mut(id).expect("the caller has it");
            if session.queue.len() >= shared.config.max_queued {
                return Err(not_made(request.message, NotMadeReason::QueueFull));
            }
            session.queue.push_back(request);
            session.ready = false;
            if session.state == State::Open {
                self.groups.watch(now, session);
            }
        }
        let session = self.sessions.get_mut(id).expect("the caller has it");
        session.next_number = number + 1;
        Ok(number)
    }

    /// Puts a request into a free slot of a session or of a member of its group.
    fn assign(&mut self, shared: &mut Shared, now: u64, holder: SessionId, request: Queued) {
        let session = self.sessions.get_mut(holder).expect("the caller has it");
        if session.is_member() {
            session.next_number = request.number + 1;
        }
        shared.pool.put(session.assign_slot(now, request));
    }

    /// Sends what the session has pending, and schedules the rest.
    fn send_pending<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: SessionId,
        sink: &mut S,
    ) {
        let session = self.sessions.get_mut(id).expect("the caller has it");
        match session.send_pending(now, sink, &mut shared.stats) {
            SendOutcome::Done => {}
            SendOutcome::Full => block(&mut self.blocked, session),
            SendOutcome::Paced(at) => pace(&mut self.pacer, session, at, shared.last_turn),
        }
        let owner = session.lacks_credits().then(|| session.owner());
        if !session.timer_armed && session.state == State::Open {
            arm(&mut self.timers, session, now, shared);
        }
        if let Some(owner) = owner
            && let Some(owner) = self.sessions.get_mut(owner)
        {
            self.groups.watch(now, owner);
        }
    }

    /// Moves requests from the queue to free slots, and sends them.
    fn send_queued<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: SessionId,
        sink: &mut S,
    ) {
        let session = self.sessions.get_mut(id).expect("the caller has it");
        if session.is_member() {
            self.take_queued(shared, now, id);
        } else {
            while session.free != 0 {
                let Some(request) = session.queue.pop_front() else {
                    break;
                };
                shared.pool.put(session.assign_slot(now, request));
            }
        }
        self.send_pending(shared, now, id, sink);
    }

    pub(crate) fn cancel<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: SessionId,
        number: RequestNumber,
        sink: &mut S,
    ) -> Option<Cancelled> {
        let session = self.sessions.get_mut(id)?;
        // The numbers of the queue grow.
        if let Ok(at) = session.queue.binary_search_by_key(&number, |q| q.number) {
            let queued = session.queue.remove(at).expect("its position was found");
            return Some(Cancelled {
                tag: queued.tag,
                request: queued.message,
                may_have_run: false,
            });
        }
        let (id, index) = self.find_request(id, number)?;
        let session = self.sessions.get_mut(id)?;
        let may_have_run = session.was_sent(index);
        if session.state == State::Open {
            session.push_cancel(index, sink);
        }
        let (tag, request) = release(shared, session, index);
        self.send_queued(shared, now, id, sink);
        Some(Cancelled {
            tag,
            request,
            may_have_run,
        })
    }

    /// Ends one request with an error.
    fn fail_request<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: SessionId,
        index: usize,
        error: RequestError,
        sink: &mut S,
    ) {
        let session = self.sessions.get_mut(id).expect("the caller has it");
        let owner = session.owner();
        let number = session.slots[index].number;
        let (tag, request) = release(shared, session, index);
        shared.events.push_back(Event::RequestFailed {
            session: owner,
            number,
            tag,
            request,
            error,
            may_have_run: error != RequestError::Rejected(Rejection::Draining),
        });
        self.send_queued(shared, now, id, sink);
    }

    /// Ends all requests of a session with an error.
    fn fail_requests(&mut self, shared: &mut Shared, id: SessionId, error: SessionError) {
        let session = self.sessions.get_mut(id).expect("the caller has it");
        let owner = session.owner();
        let mut busy = session.busy();
        while busy != 0 {
            let index = busy.trailing_zeros() as usize;
            busy &= busy - 1;
            let number = session.slots[index].number;
            let may_have_run = session.was_sent(index);
            let (tag, request) = release(shared, session, index);
            shared.events.push_back(Event::RequestFailed {
                session: owner,
                number,
                tag,
                request,
                error: error.into(),
                may_have_run,
            });
        }
        for queued in session.queue.drain(..) {
            shared.events.push_back(Event::RequestFailed {
                session: id,
                number: queued.number,
                tag: queued.tag,
                request: queued.message,
                error: error.into(),
                may_have_run: false,
            });
        }
    }

    /// Ends a session and all of its requests.
    fn fail_session(&mut self, shared: &mut Shared, id: SessionId, error: SessionError) {
        self.fail_requests(shared, id, error);
        self.disband(shared, id, error);
        let session = self.sessions.remove(id).expect("the caller has it");
        debug_assert_eq!(session.in_flight, 0, "credits leaked");
        debug_assert_eq!(session.fragments_in_flight, 0, "credits leaked");
        if session.is_member() {
            self.groups.leave(&session);
        } else if session.state != State::Closing {
            shared
                .events
                .push_back(Event::SessionEnded { session: id, error });
        }
        shared
            .peers
            .release(session.peer, Role::Client, &mut shared.events);
    }

    /// The session that the caller of a session has: itself, or the first of its group.
    pub(crate) fn owner(&self, id: SessionId) -> SessionId {
        self.sessions.get(id).map_or(id, ClientSession::owner)
    }

    /// Requests that were accepted and have not ended.
    pub(crate) fn outstanding(&self) -> usize {
        self.sessions
            .iter()
            .map(|(_, session)| {
                let busy = session.busy().count_ones() as usize;
                busy + session.queue.len()
            })
            .sum()
    }

    /// Whether the next flush has something to do, whatever the time.
    pub(crate) fn has_waiting(&self) -> bool {
        self.has_unsent() || !self.suspected.is_empty()
    }

    /// When a flush has something to do, at the earliest, if nothing waits.
    pub(crate) fn due_at(&self) -> u64 {
        let wheels = self.timers.due_at().min(self.pacer.due_at());
        wheels.min(self.groups.due_at())
    }

    /// Whether frames found the sink full, or wait for the next flush.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.blocked.is_empty()
            || !self.rfr_queue.is_empty()
            || !self.connecting.is_empty()
            || self.groups.has_orphans()
    }

    /// When the next timer is due.
    pub(crate) fn poll_timer(&self) -> Option<u64> {
        let groups = Some(self.groups.due_at()).filter(|at| *at != u64::MAX);
        let timers = [self.timers.next(), self.pacer.next(), groups];
        timers.into_iter().flatten().min()
    }

    /// The accounting of a session, for checkers: `(credits in use, credits, busy slots)`.
    pub(crate) fn accounting(&self, id: SessionId) -> Option<(u16, u16, usize)> {
        let session = self.sessions.get(id)?;
        let by_slot: u16 = session.slots.iter().map(|slot| slot.credits).sum();
        assert_eq!(by_slot, session.in_flight, "credits by slot and in all");
        let busy = session.busy().count_ones() as usize;
        Some((session.in_flight, session.credits, busy))
    }

    /// Sessions that found the sink full, and slots with an RFR to send.
    pub(crate) fn queue_lengths(&self) -> (usize, usize) {
        (self.blocked.len(), self.rfr_queue.len())
    }

    /// Slots of a session that fetch a response, with fragments of it on their way.
    pub(crate) fn fetching(&self, id: SessionId) -> usize {
        let session = self.sessions.get(id);
        let slots = session.into_iter().flat_map(|session| session.slots.iter());
        slots
            .filter(|slot| slot.phase == Phase::Receiving && slot.credits > 0)
            .count()
    }
}

fn not_made(message: Msgbuf, reason: NotMadeReason) -> RequestNotMade {
    RequestNotMade { message, reason }
}

/// Takes a request that has no response out of its slot.
fn release(shared: &mut Shared, session: &mut ClientSession, index: usize) -> (Tag, Msgbuf) {
    let slot = &mut session.slots[index];
    let (tag, message) = (slot.tag, slot.take_message());
    session.free_slot(index);
    session.slots[index].release_memory(shared);
    (tag, message)
}

fn block(blocked: &mut Blocked, session: &mut ClientSession) {
    if !session.blocked {
        session.blocked = true;
        session.ready = false;
        blocked.push(session.peer, session.id);
    }
}

/// The session continues when its rate allows the next packet.
fn pace(pacer: &mut Wheel, session: &mut ClientSession, at: u64, last_turn: u64) {
    if !session.in_pacer {
        session.in_pacer = true;
        pacer.insert(session.id.index(), at, last_turn);
    }
}

#[cold]
fn arm(timers: &mut Wheel, session: &mut ClientSession, now: u64, shared: &mut Shared) {
    shared.ask_flush();
    session.timer_armed = true;
    let timeout_ns = first_timeout_ns(session, &shared.config);
    timers.insert(session.id.index(), now + timeout_ns, shared.last_turn);
}

/// The shortest timeout of what a session sends now.
fn first_timeout_ns(session: &ClientSession, config: &crate::Config) -> u64 {
    let (min_ns, max_ns) = (config.rto_min_ns, config.rto_max_ns);
    session.rtt.timeout_ns(0, min_ns, max_ns)
}

/// Whether the sink only asks to try again later.
fn is_full(result: Result<(), SinkError>) -> bool {
    result == Err(SinkError::Full)
}
