//! The server side: sessions that others opened to this endpoint.
//!
//! A server only answers: it keeps no timers for requests, and sends no response again unless a client asks. Of its
//! own it repeats ACCEPT, CREDIT and DRAIN.

mod claimed;
mod credits;
mod draining;
mod fragments;
mod handshake;
mod report;
mod retention;
mod session;
mod slot;
mod teardown;
mod unsent;

use starling_msgbuf::Msgbuf;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::blocked::Blocked;
use crate::claims::Claims;
use crate::holdings::Holding;
use crate::msgbuf_pool::{is_bulky, memory_of};
use crate::shared::{Shared, SlotPlace};
use crate::table::Table;
use crate::wire::{Frame, Header, Kind, Token, flags};
use crate::{
    Body, Event, FrameSink, Incoming, PeerId, Prefix, Rejection, RequestId, RespondReason,
    SessionId, SinkError,
};
use session::ServerSession;
pub(crate) use session::most_session_bytes;
use slot::{Phase, Slot};
use teardown::IdleRound;

/// A client that sends a large request or fetches a large response sends a frame within this time,
/// even if some are lost.
const ACTIVE_NS: u64 = 250_000_000;
/// A client's name for a session: the client, its incarnation, its number.
type ClientKey = (PeerId, Token, u32);

pub(crate) struct Server {
    pub(crate) sessions: Table<ServerSession>,
    /// By the client's incarnation and number, so that a repeated connect finds its session.
    by_client: BTreeMap<ClientKey, SessionId>,
    /// Sessions so far, modulo 2^32.
    opened: u32,
    /// Credits granted in all.
    granted: usize,
    /// Sessions with more than one credit, in no order.
    multi_credit: Vec<SessionId>,
    /// Where among them the search for credits continues.
    reclaim_at: usize,
    /// Sessions that were told to return credits, and when. A session is in it once.
    revoked_queue: VecDeque<(u64, SessionId)>,
    /// When a session last gave way because the device had no room for a peer.
    evicted_at: u64,
    idle_round: IdleRound,
    /// Slots with a credit return (CR) to send.
    credit_return_queue: VecDeque<(SessionId, u8)>,
    /// Sessions that found the sink full.
    blocked: Blocked,
    /// See [`Server::has_rest`].
    has_rest: bool,
    /// Requests that are being reassembled, and some that have ended.
    receiving: VecDeque<(SessionId, u8, u64)>,
    /// Responses that are kept for a limited time, ordered by its end. A slot is in it once.
    retention_queue: VecDeque<(u64, SessionId, u8)>,
    /// New sessions are refused.
    pub(crate) draining: bool,
    /// Some clients are told to make no new requests, and have not all said that they do.
    pub(crate) drains_some: bool,
    /// Peers below this number were told that this endpoint is shut down.
    announced_to: u32,
    /// The peer that found the device full when clients were last told that this endpoint shuts down.
    drain_announced_to: u32,
    /// The requests that workers have claimed, if workers claim any.
    claims: Option<Arc<Claims>>,
}

impl Server {
    pub(crate) fn new(max_sessions: usize) -> Self {
        Self {
            sessions: Table::new(max_sessions),
            by_client: BTreeMap::new(),
            opened: 0,
            granted: 0,
            multi_credit: Vec::new(),
            reclaim_at: 0,
            revoked_queue: VecDeque::new(),
            evicted_at: 0,
            idle_round: IdleRound::default(),
            credit_return_queue: VecDeque::new(),
            blocked: Blocked::default(),
            has_rest: false,
            receiving: VecDeque::new(),
            retention_queue: VecDeque::new(),
            draining: false,
            drains_some: false,
            announced_to: 0,
            drain_announced_to: 0,
            claims: None,
        }
    }

    /// A whole request.
    #[inline(always)]
    pub(crate) fn handle_request<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        peer: PeerId,
        frame: Frame<'_>,
        sink: &mut S,
    ) -> Option<RequestId> {
        let id = frame.session();
        let session = match self.sessions.get_mut(id) {
            Some(session) if session.peer == peer => session,
            _ => {
                self.reset(shared, now, peer, &frame, sink);
                return None;
            }
        };
        let index = frame.header.slot;
        session.active_at = now;
        let handle = session.handle;
        let Some(slot) = session.slots.enter(usize::from(index)) else {
            shared.stats.frames_malformed += 1;
            return None;
        };
        let number = frame.header.number;
        if number <= slot.number {
            self.handle_duplicate(shared, id, index.into(), number, sink);
            return None;
        }
        let may_overrun = slot.phase == Phase::Executing || slot.arrived_at == now;
        if may_overrun && !slot.may_take_another(shared, now, handle, index) {
            return None;
        }
        slot.recycle(shared);
        slot.number = number;
        slot.phase = Phase::Executing;
        slot.arrived_at = now;
        slot.fragments = 0;
        slot.flags = shared.mark;
        let request = RequestId::new(handle, index, number);
        if frame.header.flags & flags::WANT != 0 {
            self.handle_want(shared, now, id, sink);
        }
        shared.stats.requests_received += 1;
        Some(request)
    }

    /// A whole request off the fast path: it is copied out of the receive buffer, or workers may
    /// claim requests, too. A request is claimed only if it will be taken: nobody takes it later.
    pub(crate) fn handle_request_slow_path<'a, S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        peer: PeerId,
        frame: Frame<'a>,
        sink: &mut S,
    ) -> Option<Incoming<'a>> {
        if let Some(session) = self.sessions.get(frame.session())
            && let Some(slot) = session.slots.get(usize::from(frame.header.slot))
            && session.peer == peer
            && frame.header.number > slot.number
            && slot.overruns(shared, now)
        {
            return None;
        }
        self.claim(shared, now, peer, &frame);
        let id = self.handle_request(shared, now, peer, frame, sink)?;
        let body = match shared.config.factors.zero_copy_requests {
            true => Body::Borrowed(frame.payload),
            false => {
                let mut copy = shared.pool.take();
                copy.head_mut().extend_from_slice(frame.payload);
                Body::Owned(copy)
            }
        };
        Some(Incoming::Request {
            id,
            peer,
            ext: frame.ext(),
            body,
        })
    }

    /// A request that arrived before. It is answered from the slot, and never run again.
    #[cold]
    fn handle_duplicate<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        id: SessionId,
        index: usize,
        number: u64,
        sink: &mut S,
    ) {
        let session = self.sessions.get_mut(id).expect("the caller has it");
        let slot = &session.slots[index];
        if number < slot.number {
            shared.stats.frames_stale += 1;
            return;
        }
        shared.stats.duplicates += 1;
        // Each answer is best effort: the client asks again.
        match slot.phase {
            Phase::Idle => {}
            Phase::Receiving | Phase::Executing => {
                let _ = session.push_credit_return(index, sink);
            }
            Phase::Done => self.send_later(shared, id, index),
            Phase::Over => {
                shared.stats.responses_expired += 1;
                session.push_reject(index, number, Rejection::ResponseExpired, sink);
            }
            Phase::GivenUp => session.push_reject(index, number, Rejection::NoMemory, sink),
            Phase::Refused => session.push_reject(index, number, Rejection::Draining, sink),
        }
    }

    /// The client cancels a request.
    pub(crate) fn handle_cancel<'a, S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        peer: PeerId,
        frame: Frame<'a>,
        sink: &mut S,
    ) -> Option<Incoming<'a>> {
        let id = SessionId::from_wire(frame.header.session);
        let session = match self.sessions.get_mut(id) {
            Some(session) if session.peer == peer => session,
            _ => {
                self.reset(shared, now, peer, &frame, sink);
                return None;
            }
        };
        let index = usize::from(frame.header.slot);
        let number = frame.header.number;
        let slot = session.slots.enter(index)?;
        if number < slot.number || (number == slot.number && slot.phase == Phase::Over) {
            shared.stats.frames_stale += 1;
            return None;
        }
        let executing = slot.phase == Phase::Executing;
        let last = RequestId::new(session.handle, frame.header.slot, slot.number);
        shared.stats.cancels_early += u64::from(number > slot.number);
        slot.release_memory(shared);
        // A request that arrives after its cancellation is a duplicate of one that is over.
        slot.number = number;
        slot.phase = Phase::Over;
        session.pending &= !(1 << index);
        if executing && last.number < number {
            displace(shared, last);
            return None;
        }
        executing.then_some(Incoming::Cancelled { id: last })
    }

    /// Whether the client still waits for the answer.
    pub(crate) fn is_wanted(&self, id: RequestId) -> bool {
        self.sessions.get(id.session()).is_some_and(|session| {
            let slot = session.slots.get(usize::from(id.slot()));
            let waits = |slot: &Slot| slot.number == id.number && slot.phase == Phase::Executing;
            id.is_of(session.handle) && slot.is_some_and(waits)
        })
    }

    #[inline(always)]
    pub(crate) fn respond<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: RequestId,
        message: &mut Msgbuf,
        prefix: Prefix,
        sink: &mut S,
    ) -> Result<(), RespondReason> {
        let index = usize::from(id.slot());
        let Some(session) = self.sessions.get_exact_mut(id) else {
            return Err(stale(shared));
        };
        let slot = &mut session.slots[index];
        if slot.number != id.number || slot.phase != Phase::Executing {
            return Err(stale(shared));
        }
        if message.has_tail() || message.capacity() > session.small_buffer as usize {
            return self.respond_bulky(shared, now, id, message, prefix, sink);
        }
        slot.phase = Phase::Done;
        if slot.flags != 0 || slot.arrived_at != now || prefix.ext {
            slot.flags = slot.flags_of_answer(now, prefix.ext);
        }
        shared.stats.responses_sent += 1;
        let head = Header {
            kind: Kind::Response,
            flags: slot.flags,
            slot: id.slot(),
            session: session.remote,
            number: id.number,
        }
        .to_bytes(message.head().len());
        let preamble = session.token.preamble();
        let sent = sink.push(session.peer, &preamble, &head, message.head(), &[]);
        if sent == Err(SinkError::Full) {
            return self.store_and_defer(shared, id, message);
        }
        slot.store(message);
        Ok(())
    }

    /// The sink has no room for a response of one packet, which waits for the next flush.
    #[cold]
    fn store_and_defer(
        &mut self,
        shared: &mut Shared,
        id: RequestId,
        message: &mut Msgbuf,
    ) -> Result<(), RespondReason> {
        let session = self.sessions.get_mut(id.session()).expect("checked before");
        session.slots[usize::from(id.slot())].store(message);
        self.defer(shared, id.session(), id.slot());
        Ok(())
    }

    /// Slow path of [`Self::respond`]: several packets, a buffer larger than a slot keeps, or
    /// preallocation off.
    #[cold]
    fn respond_bulky<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: RequestId,
        message: &mut Msgbuf,
        prefix: Prefix,
        sink: &mut S,
    ) -> Result<(), RespondReason> {
        shared.ask_flush();
        let session = self.sessions.get_mut(id.session()).expect("checked before");
        let len = prefix.body_len(message.len());
        if len > session.max_message as usize {
            let max = session.max_message as usize;
            return Err(RespondReason::TooLarge { len, max });
        }
        let bulky = is_bulky(message);
        let bytes = memory_of(message);
        let peer = session.peer;
        if bulky && !self.make_response_room(shared, now, peer, bytes) {
            return Err(RespondReason::NoMemory { len });
        }
        let session = self.sessions.get_mut(id.session()).expect("checked before");
        let slot = &mut session.slots[usize::from(id.slot())];
        slot.phase = Phase::Done;
        slot.flags = slot.flags_of_answer(now, prefix.ext);
        slot.store_buffer(message);
        shared.stats.responses_sent += 1;
        if !shared.config.factors.preallocated_responses {
            *message = Msgbuf::from_vec(Vec::with_capacity(session.fragment.min(4096) as usize));
        }
        if bulky {
            *slot.cold.extra_mut() = shared.kept.insert(Holding {
                holder: shared.peers.holder(peer),
                amount: bytes as u32,
                what: SlotPlace {
                    session: id.session(),
                    slot: id.slot(),
                },
            });
            if !slot.in_retention_queue {
                slot.in_retention_queue = true;
                let until = now + shared.config.response_retention_ns;
                self.retention_queue
                    .push_back((until, id.session(), id.slot()));
            }
            shared.note_held();
        }
        let sent = session.push_response(id.slot().into(), sink);
        if sent == Err(SinkError::Full) {
            self.defer(shared, id.session(), id.slot());
        }
        Ok(())
    }

    /// The sink is full: the response waits for the next flush.
    #[cold]
    fn defer(&mut self, shared: &mut Shared, id: SessionId, slot: u8) {
        shared.stats.sink_full += 1;
        self.send_later(shared, id, slot.into());
    }

    /// Does what is due.
    pub(crate) fn flush<S: FrameSink>(&mut self, shared: &mut Shared, now: u64, sink: &mut S) {
        shared.flush_answers(now, sink);
        self.send_unsent(shared, sink);
        self.send_credit_returns(sink);
        if self.poll_timer().is_some_and(|until| until <= now) {
            self.expire_responses(shared, now);
        }
    }

    /// Sends one credit return for each slot that fragments arrived for, however many arrived.
    #[cold]
    fn send_credit_returns<S: FrameSink>(&mut self, sink: &mut S) {
        for _ in 0..self.credit_return_queue.len() {
            let Some((id, index)) = self.credit_return_queue.pop_front() else {
                break;
            };
            let Some(session) = self.sessions.get_mut(id) else {
                continue;
            };
            let slot = &mut session.slots[usize::from(index)];
            slot.credit_return_due = false;
            // A complete request needs none: its response says that it arrived.
            if slot.phase != Phase::Receiving {
                continue;
            }
            let sent = session.push_credit_return(usize::from(index), sink);
            let slot = &mut session.slots[usize::from(index)];
            if sent == Err(SinkError::Full) {
                slot.credit_return_due = true;
                self.credit_return_queue.push_back((id, index));
            } else {
                slot.flags = 0;
            }
        }
    }

    /// Whether the next flush has something to do, whatever the time.
    pub(crate) fn has_waiting(&self, shared: &Shared) -> bool {
        self.has_unsent() || shared.answers.bytes() != 0
    }

    /// Whether frames found the sink full, or wait for the next flush.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.blocked.is_empty() || !self.credit_return_queue.is_empty()
    }

    /// Whether the last flush sent as much as one may, and left something that the sink has room for.
    pub(crate) fn has_rest(&self) -> bool {
        self.has_rest
    }

    /// When the next kept response expires.
    pub(crate) fn poll_timer(&self) -> Option<u64> {
        self.retention_queue.front().map(|(until, ..)| *until)
    }

    /// Sessions that found the sink full, and slots with a credit return to send.
    pub(crate) fn queue_lengths(&self) -> (usize, usize) {
        (self.blocked.len(), self.credit_return_queue.len())
    }

    /// Whether nothing has to be looked at before a request but its slot.
    pub(crate) fn has_fast_path(&self) -> bool {
        !self.draining && self.claims.is_none()
    }

    /// Credits granted in all.
    pub(crate) fn granted(&self) -> usize {
        self.granted
    }

    /// The clients whose requests may have to wait: for a message that was on its way since then, or for a slot.
    pub(crate) fn backlogged(&self, since: u64) -> HashSet<PeerId> {
        let mut transferring = HashSet::new();
        let mut are_full = HashMap::new();
        for (_, session) in self.sessions.iter() {
            if session.is_transferring(since) {
                transferring.insert(session.peer);
            }
            *are_full.entry(session.peer).or_insert(true) &= session.is_full(since);
        }
        let full = are_full.into_iter().filter(|(_, is_full)| *is_full);
        transferring.extend(full.map(|(peer, _)| peer));
        transferring
    }

    /// Requests that handlers have not answered.
    pub(crate) fn executing(&self) -> usize {
        self.sessions
            .iter()
            .flat_map(|(_, session)| session.slots.iter())
            .filter(|slot| slot.phase == Phase::Executing)
            .count()
    }

    /// Whether a client may still want a response, or more of one. It may until it acknowledged the
    /// response, or sent nothing for `quiet_ns`; and until frames that found the sink full have
    /// left. A response of one packet is never acknowledged by itself: over a device that loses
    /// nothing it counts as delivered when it has left.
    pub(crate) fn has_undelivered(&self, shared: &Shared, now: u64, quiet_ns: u64) -> bool {
        self.sessions.iter().any(|(_, session)| {
            session.pending != 0
                || (now.saturating_sub(session.active_at) < quiet_ns
                    && session.slots.iter().any(|slot| {
                        let lossless = shared.config.reliable
                            && slot.response_len() <= session.fragment as usize;
                        slot.phase == Phase::Done && !lossless
                    }))
        })
    }
}

/// The client has put a later request into the slot of one that a handler runs.
#[cold]
fn displace(shared: &mut Shared, id: RequestId) {
    shared.stats.requests_displaced += 1;
    abandon(shared, id);
}

/// No client waits for a request that a handler runs.
#[cold]
fn abandon(shared: &mut Shared, id: RequestId) {
    shared.events.push_back(Event::RequestAbandoned { id });
}

/// Counts a response that no client waits for.
#[cold]
fn stale(shared: &mut Shared) -> RespondReason {
    shared.stats.responses_unwanted += 1;
    RespondReason::Stale
}
