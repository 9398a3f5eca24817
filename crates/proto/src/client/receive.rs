//! The client handles what servers send: responses, credit returns, rejects, credits.

use super::Client;
use super::session::{ClientSession, State};
use super::slot::{Large, Phase, Slot};
use starling_msgbuf::Msgbuf;

use crate::congestion::{Ack, Controller};
use crate::shared::Shared;
use crate::tail::{FragmentData, Tail};
use crate::transfer::{ReceiveWindow, ResponseWindow, fragment_count};
use crate::wire::{CreditReturn, Fragment, Frame, Limit, Reject, flags};
use crate::{Body, FrameSink, Incoming, PeerId, Rejection, RequestError, SessionId, Stats, Tag};

impl Client {
    /// The slot that a server's frame is about, if its request is still the one that the frame means.
    #[inline]
    fn find(&mut self, peer: PeerId, frame: &Frame<'_>) -> Option<(SessionId, usize)> {
        let id = SessionId::from_wire(frame.header.session);
        let session = self.sessions.get(id)?;
        let index = usize::from(frame.header.slot);
        let slot = session.slots.get(index)?;
        let current =
            session.peer == peer && slot.number == frame.header.number && slot.phase != Phase::Idle;
        current.then_some((id, index))
    }

    /// A whole response.
    // Always: one that was left with its sender comes from another place, and two calls are not inlined by themselves.
    #[inline(always)]
    pub(crate) fn handle_response<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        peer: PeerId,
        frame: Frame<'_>,
        sink: &mut S,
    ) -> Option<(SessionId, Tag)> {
        let id = frame.session();
        let index = frame.header.slot;
        let session = match self.sessions.get_mut(id) {
            Some(session) if session.peer == peer => session,
            _ => {
                shared.stats.frames_stale += 1;
                return None;
            }
        };
        let mut slot = match session.slots.get_mut(usize::from(index)) {
            Some(slot) if slot.number == frame.header.number && slot.phase != Phase::Idle => slot,
            _ => {
                shared.stats.frames_stale += 1;
                return None;
            }
        };
        if slot.retries == 0 {
            let rtt_ns = now - slot.active_at;
            // The responses of one burst have the same delay: one sample is enough.
            if session.sampled_at != now as u32 {
                session.sampled_at = now as u32;
                session.rtt.sample(rtt_ns);
            }
            let answer = frame.header.flags | shared.mark;
            if answer & flags::ECHO != 0 || session.control.needs_update(rtt_ns) {
                session.ready &=
                    record_answer(&mut session.control, slot, now, answer, &mut shared.stats);
            }
        } else {
            let answer = frame.header.flags | shared.mark;
            handle_repeated_answer(session, index, now, answer, &mut shared.stats);
            slot = &mut session.slots[usize::from(index)];
        }
        shared.stats.responses_received += 1;
        let tag = slot.tag;
        if session.ready && slot.phase == Phase::Single && !slot.is_bulky() {
            // Nothing waits for the slot or the credit. The slot keeps its memory.
            debug_assert!(slot.credits == 1 && slot.cold.large().is_none());
            slot.phase = Phase::Idle;
            slot.credits = 0;
            session.in_flight -= 1;
            session.free |= 1 << index;
            Some((id, tag))
        } else {
            let owner = self.complete_slow_path(shared, now, id, index.into(), sink);
            Some((owner, tag))
        }
    }

    /// Returns the session that the caller of this one has.
    #[inline(never)]
    fn complete_slow_path<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: SessionId,
        index: usize,
        sink: &mut S,
    ) -> SessionId {
        shared.ask_flush();
        let session = self.sessions.get_mut(id).expect("the caller has it");
        let owner = session.owner();
        session.free_slot(index);
        if session.slots[index].is_bulky() {
            session.slots[index].release_memory(shared);
        }
        self.send_queued(shared, now, id, sink);
        owner
    }

    /// Bytes of the response whose first fragment this frame is, if memory must be promised for it.
    pub(crate) fn begins_response(
        &mut self,
        shared: &Shared,
        peer: PeerId,
        frame: &Frame<'_>,
    ) -> Option<u32> {
        let (Fragment { total, index }, _) = Fragment::parse(frame.payload)?;
        if index != 0 || total > shared.config.max_total() {
            return None;
        }
        let (id, slot) = self.find(peer, frame)?;
        let begins = self.sessions.get(id)?.slots[slot].phase != Phase::Receiving;
        begins.then_some(total)
    }

    /// A fragment of a response. `tail` is the end of its data, if that is in another place.
    pub(crate) fn handle_response_fragment<'a, S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        peer: PeerId,
        frame: Frame<'a>,
        tail: Option<&dyn Tail>,
        sink: &mut S,
    ) -> Option<Incoming<'a>> {
        let found = self.find(peer, &frame).zip(Fragment::parse(frame.payload));
        let Some(((id, index), (fragment, head))) = found else {
            shared.stats.frames_stale += 1;
            return None;
        };
        let session = self.sessions.get_mut(id)?;
        if session.slots[index].phase != Phase::Receiving
            && !self.begin_response(shared, now, id, index, &frame, fragment, sink)
        {
            return None;
        }
        let session = self.sessions.get_mut(id)?;
        let slot = &mut session.slots[index];
        let Some(Large::Receive(window)) = slot.cold.large_mut() else {
            unreachable!("a slot that receives fragments has a window");
        };
        let outstanding = window.outstanding();
        match window.accept(fragment.total, fragment.index, &FragmentData { head, tail }) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(_) => {
                shared.stats.frames_malformed += 1;
                return None;
            }
        }
        slot.active_at = now;
        slot.retries = 0;
        let sample = window.take_sample(now);
        let complete = window.arrived.is_complete();
        let arrived = outstanding.saturating_sub(window.outstanding());
        let outstanding = window.outstanding() as u16;
        if arrived > 0 {
            let ack = Ack {
                now,
                rtt_ns: sample,
                packets: arrived,
                marked: shared.mark != 0,
                lost: false,
            };
            shared.stats.marks += u64::from(ack.marked);
            session.ready &= session.control.handle_ack(ack);
        }
        // A place in the receivers' queues became free for all slots of the session.
        if session.sending != 0 {
            session.pending |= session.sending;
            session.ready = false;
        }
        let slot = &mut session.slots[index];
        if !complete {
            if !slot.rfr_due {
                slot.rfr_due = true;
                self.rfr_queue.push_back((id, index as u8));
            }
            session.set_credits(index, outstanding);
            return None;
        }
        self.complete_response(shared, now, id, index, frame.ext(), sink)
    }

    /// The first fragment of a response: the slot changes from sending to receiving. `false`: the
    /// fragment is malformed, or the request failed for lack of memory.
    #[allow(clippy::too_many_arguments, reason = "those of the frame")]
    fn begin_response<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: SessionId,
        index: usize,
        frame: &Frame<'_>,
        fragment: Fragment,
        sink: &mut S,
    ) -> bool {
        let session = self.sessions.get_mut(id).expect("the caller has it");
        if fragment.index != 0 || fragment_count(fragment.total, session.fragment) < 2 {
            shared.stats.frames_malformed += 1;
            return false;
        }
        let error = if fragment.total > shared.config.max_total() {
            Some(RequestError::ResponseTooLarge)
        } else if !shared.has_room(fragment.total) {
            Some(RequestError::NoMemory)
        } else {
            None
        };
        if let Some(error) = error {
            session.push_cancel(index, sink);
            self.fail_request(shared, now, id, index, error, sink);
            return false;
        }
        shared.reassembling_responses += fragment.total as usize;
        shared.note_held();
        let slot = &mut session.slots[index];
        if slot.retries == 0 {
            let answer = frame.header.flags;
            session.ready &=
                record_answer(&mut session.control, slot, now, answer, &mut shared.stats);
        } else {
            let answer = frame.header.flags;
            record_repeated_answer(&mut session.control, now, answer, &mut shared.stats);
        }
        // The first fragment of the response says that the whole request arrived.
        session.set_credits(index, 0);
        let bit = 1u64 << index;
        session.pending &= !bit;
        session.sending &= !bit;
        let buffer = shared.pool.take_large(fragment.total as usize);
        let arrived = ReceiveWindow::new(fragment.total, session.fragment, buffer);
        let slot = &mut session.slots[index];
        slot.phase = Phase::Receiving;
        slot.cold
            .set_large(Some(Large::Receive(ResponseWindow::new(arrived))));
        true
    }

    /// All fragments of a response arrived: frees the slot and hands the response over.
    fn complete_response<'a, S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: SessionId,
        index: usize,
        ext: bool,
        sink: &mut S,
    ) -> Option<Incoming<'a>> {
        let session = self.sessions.get_mut(id).expect("the caller has it");
        let slot = &mut session.slots[index];
        let Some(Large::Receive(window)) = slot.cold.large() else {
            unreachable!("checked above");
        };
        // Tells the server that it may drop the response. If this is lost, it drops it later.
        let count = window.arrived.count();
        let (tag, number) = (slot.tag, slot.number);
        let _ = session.push_rfr(index, count, 0, sink);
        session.free_slot(index);
        let Some(Large::Receive(window)) = session.slots[index].cold.set_large(None) else {
            unreachable!("checked above");
        };
        session.slots[index].release_memory(shared);
        shared.reassembling_responses -= window.arrived.total() as usize;
        let body = window.arrived.into_buffer();
        shared.stats.responses_received += 1;
        self.send_queued(shared, now, id, sink);
        Some(Incoming::Response {
            session: self.owner(id),
            number,
            tag,
            ext,
            body: Body::Owned(body),
        })
    }

    /// A credit return: which fragments of a request arrived.
    pub(crate) fn handle_credit_return<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        peer: PeerId,
        frame: Frame<'_>,
        sink: &mut S,
    ) {
        let found = self
            .find(peer, &frame)
            .zip(CreditReturn::parse(frame.payload));
        let Some(((id, index), (ack, _))) = found else {
            shared.stats.frames_stale += 1;
            return;
        };
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let srtt_ns = session.rtt.smoothed_ns();
        let slot = &mut session.slots[index];
        if ack.executing != 0 {
            slot.executing = true;
            slot.confirm(now);
            // Repeated: the answers of others take a credit for granted.
            if slot.phase == Phase::Single && slot.retries > 0 {
                session.set_credits(index, 0);
            }
            session.hear_of_others(index, ack.sack);
            let answered = session.confirm_others(now, index, ack.sack);
            self.watch_if_full(now, id);
            if answered != 0 {
                self.ask_again(shared, now, id, answered, sink);
            }
        }
        let session = self.sessions.get_mut(id).expect("just found");
        let slot = &mut session.slots[index];
        let Some(Large::Send { window, timed }) = slot.cold.large_mut() else {
            // A request of one packet that is being executed. Others may have waited for its credit.
            if session.pending != 0 {
                self.send_pending(shared, now, id, sink);
            }
            return;
        };
        let sack = if ack.executing == 0 { ack.sack } else { 0 };
        if !window.handle_ack(ack.next, sack, now, srtt_ns) {
            return;
        }
        let lost = window.take_loss();
        if lost {
            // The timed fragment may be sent again, and its answer would be ambiguous.
            *timed = None;
        }
        slot.active_at = now;
        slot.retries = 0;
        let outstanding = window.outstanding() as u16;
        let sample = timed.take_if(|(fragment, _)| *fragment < ack.next);
        let rtt_ns = sample.map(|(_, sent_at)| now - sent_at);
        if let Some(rtt_ns) = rtt_ns {
            session.rtt.sample(rtt_ns);
            session.sampled_at = now as u32;
        }
        let ack = Ack {
            now,
            rtt_ns,
            packets: u32::from(slot.credits.saturating_sub(outstanding)),
            marked: frame.header.flags & flags::ECHO != 0,
            lost,
        };
        shared.stats.marks += u64::from(ack.marked);
        session.control.handle_ack(ack);
        session.set_credits(index, outstanding);
        // A place in the receiver's queue became free for all slots of the session.
        session.pending |= session.sending;
        self.send_pending(shared, now, id, sink);
    }

    /// A reject: the request will have no response.
    pub(crate) fn handle_reject<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        peer: PeerId,
        frame: Frame<'_>,
        sink: &mut S,
    ) {
        let found = self.find(peer, &frame).zip(Reject::parse(frame.payload));
        let Some(((id, index), (reject, _))) = found else {
            shared.stats.frames_stale += 1;
            return;
        };
        let error = Rejection::from_wire(reject.code).into();
        self.fail_request(shared, now, id, index, error, sink);
    }

    /// The session has more or fewer credits from now on.
    pub(crate) fn handle_credit<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        peer: PeerId,
        frame: Frame<'_>,
        sink: &mut S,
    ) {
        let id = SessionId::from_wire(frame.header.session);
        let session = self
            .sessions
            .get_mut(id)
            .filter(|session| session.peer == peer && session.state == State::Open);
        let (Some(session), Some((limit, _))) = (session, Limit::parse(frame.payload)) else {
            shared.stats.frames_stale += 1;
            return;
        };
        let asked = u32::from(shared.config.credits);
        // Credit frames are numbered: a delayed one must not undo a later one.
        if !(1..=asked).contains(&limit.credits) || frame.header.number <= session.credit_number {
            shared.stats.frames_stale += 1;
            return;
        }
        session.credit_number = frame.header.number;
        session.credits = limit.credits as u16;
        session.set_want(false);
        session.push_credit_ack(limit, sink);
        self.send_pending(shared, now, id, sink);
    }
}

/// Passes an answer with these flags to congestion control. Returns whether the session may send
/// without pacing from now on.
#[cold]
fn record_answer(
    control: &mut Controller,
    slot: &mut Slot,
    now: u64,
    answer: u8,
    stats: &mut Stats,
) -> bool {
    let ack = slot.ack_of_answer(now, answer);
    stats.marks += u64::from(ack.marked);
    control.handle_ack(ack)
}

/// The whole response to a request that was sent again. A request of one packet takes back the credit that it gave when
/// it was known to have arrived: what follows takes one for granted.
#[cold]
#[inline(never)]
fn handle_repeated_answer(
    session: &mut ClientSession,
    index: u8,
    now: u64,
    answer: u8,
    stats: &mut Stats,
) {
    record_repeated_answer(&mut session.control, now, answer, stats);
    let slot = &mut session.slots[usize::from(index)];
    if slot.phase == Phase::Single && slot.credits == 0 {
        slot.credits = 1;
        session.in_flight += 1;
    }
}

/// As [`record_answer`], for a request that was sent again. Which of the two is answered is unknown,
/// so there is no round-trip time. A mark still counts.
#[cold]
fn record_repeated_answer(control: &mut Controller, now: u64, answer: u8, stats: &mut Stats) {
    if answer & flags::ECHO != 0 {
        stats.marks += 1;
        control.handle_ack(Ack {
            now,
            rtt_ns: None,
            packets: 1,
            marked: true,
            lost: false,
        });
    }
}

impl Body<'_> {
    /// The message's buffer, if the body owns one.
    pub fn into_buffer(self) -> Option<Msgbuf> {
        match self {
            Self::Borrowed(_) => None,
            Self::Owned(buffer) => Some(buffer),
        }
    }
}
