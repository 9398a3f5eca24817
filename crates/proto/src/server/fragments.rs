//! Messages of several packets: fragments of requests as they arrive, and fragments of responses as
//! clients ask for them.

use super::slot::{Large, Phase};
use super::{ACTIVE_NS, Server, displace};
use crate::holdings::{Holder, Holding};
use crate::shared::{Shared, SlotPlace};
use crate::tail::{FragmentData, Tail};
use crate::transfer::{ReceiveWindow, fragment_count};
use crate::wire::{Fragment, Frame, RequestForResponse, flags};
use crate::{Body, FrameSink, Incoming, PeerId, Rejection, SessionId};

/// Requests searched for unused memory when there is none for another request, and those that give way.
const SEARCHED: usize = 64;
/// A request makes progress if so many bytes of it arrive within [`ACTIVE_NS`]. With less, it takes memory
/// from others that could use it.
const PROGRESS_BYTES: u32 = 64 << 10;
/// A request that makes no progress for so long is silent however busy this endpoint is: a flood keeps no memory.
const SILENT_NS: u64 = 8 * ACTIVE_NS;

impl Server {
    /// A fragment of a request. `tail` is the end of its data, if that is in another place.
    #[allow(clippy::too_many_arguments, reason = "those of the frame")]
    pub(crate) fn handle_request_fragment<'a, S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        peer: PeerId,
        frame: Frame<'a>,
        tail: Option<&dyn Tail>,
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
        session.active_at = now;
        let Some((fragment, head)) = Fragment::parse(frame.payload)
            .filter(|(fragment, _)| fragment_count(fragment.total, session.fragment) > 1)
            .filter(|_| session.slots.enter(index).is_some())
        else {
            shared.stats.frames_malformed += 1;
            return None;
        };
        let number = frame.header.number;
        let slot = &mut session.slots[index];
        if number < slot.number || (number == slot.number && slot.phase != Phase::Receiving) {
            self.handle_duplicate(shared, id, index, number, sink);
            return None;
        }
        if number > slot.number
            && !self.begin_request(shared, now, peer, &frame, fragment.total, sink)
        {
            return None;
        }
        let session = self.sessions.get_mut(id).expect("just found");
        let slot = &mut session.slots[index];
        slot.flags |= shared.mark;
        let Some(Large::Receive(window, _)) = slot.cold.large_mut() else {
            unreachable!("a slot that receives fragments has a window");
        };
        let before = window.stretches(PROGRESS_BYTES);
        let data = FragmentData { head, tail };
        let accepted = window.accept(fragment.total, fragment.index, &data);
        if accepted.is_err() {
            shared.stats.frames_malformed += 1;
            return None;
        }
        if window.stretches(PROGRESS_BYTES) != before {
            slot.arrived_at = now;
        }
        let complete = window.is_complete();
        if !complete {
            if !slot.credit_return_due {
                slot.credit_return_due = true;
                self.credit_return_queue.push_back((id, index as u8));
            }
            if frame.header.flags & flags::WANT != 0 {
                self.handle_want(shared, now, id, sink);
            }
            return None;
        }
        let Some(Large::Receive(window, holding)) = slot.cold.set_large(None) else {
            unreachable!("checked above");
        };
        shared.receiving.remove(holding);
        slot.phase = Phase::Executing;
        slot.arrived_at = now;
        let request = session.request_id(index);
        shared.stats.requests_received += 1;
        Some(Incoming::Request {
            id: request,
            peer,
            ext: frame.header.flags & flags::EXT != 0,
            body: Body::Owned(window.into_buffer()),
        })
    }

    /// The first fragment to arrive of a request of `total` bytes: claims the request, and promises
    /// memory for it. `false`: the request is not taken, and the client was told why.
    fn begin_request<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        peer: PeerId,
        frame: &Frame<'_>,
        total: u32,
        sink: &mut S,
    ) -> bool {
        let id = frame.session();
        let index = usize::from(frame.header.slot);
        let number = frame.header.number;
        let session = self.sessions.get_mut(id).expect("the caller has it");
        if total > shared.config.max_total() {
            // Every fragment of it is rejected so: the slot need not remember.
            session.push_reject(index, number, Rejection::TooLarge, sink);
            return false;
        }
        // Before the claim: nobody takes a claimed request that is dropped here.
        if session.slots[index].overruns(shared, now) {
            return false;
        }
        self.claim(shared, now, peer, frame);
        let session = self.sessions.get_mut(id).expect("just found");
        if number <= session.slots[index].number {
            self.handle_duplicate(shared, id, index, number, sink);
            return false;
        }
        // No client waits for the former request of the slot.
        if session.slots[index].phase == Phase::Executing {
            displace(shared, session.request_id(index));
        }
        let slot = &mut session.slots[index];
        slot.release_memory(shared);
        slot.phase = Phase::Over;
        let holder = shared.peers.holder(peer);
        if !self.make_reassembly_room(shared, now, Some(holder), total, sink) {
            let session = self.sessions.get_mut(id).expect("just found");
            session.give_up(shared, index, number, sink);
            return false;
        }
        self.receiving.push_back((id, index as u8, number));
        let session = self.sessions.get_mut(id).expect("just found");
        let slot = &mut session.slots[index];
        slot.release_memory(shared);
        slot.number = number;
        slot.phase = Phase::Receiving;
        slot.fragments = fragment_count(total, session.fragment);
        let buffer = shared.pool.take_large(total as usize);
        let window = ReceiveWindow::new(total, session.fragment, buffer);
        let holding = shared.receiving.insert(Holding {
            holder,
            amount: total,
            what: SlotPlace {
                session: id,
                slot: index as u8,
            },
        });
        slot.cold.set_large(Some(Large::Receive(window, holding)));
        slot.arrived_at = now;
        slot.flags = 0;
        shared.note_held();
        true
    }

    /// Makes room so that `total` bytes can be promised. `wants` is the client that asks; `None` is this
    /// endpoint itself. `false`: that was not enough. If none are left, these give way, in this order:
    ///
    /// 1. requests that make no progress, for a promise costs a client only one packet: those of clients that hold at
    ///    least what the one that asks would hold then;
    /// 2. requests of clients that hold much more;
    /// 3. requests that make no progress, of clients that hold at least what the one that asks holds now; in the end,
    ///    of any.
    ///
    /// So a client that holds little and is slow for a moment does not lose it to those that ask for much.
    pub(crate) fn make_reassembly_room<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        wants: Option<Holder>,
        total: u32,
        sink: &mut S,
    ) -> bool {
        self.displace_silent(shared, now, wants, total, Some(total), sink);
        for _ in 0..SEARCHED {
            if shared.has_room(total) {
                return true;
            }
            let Some((_, victim)) = shared.receiving.gives_way_to(wants, total as usize) else {
                self.displace_silent(shared, now, wants, total, Some(0), sink);
                self.displace_silent(shared, now, wants, total, None, sink);
                break;
            };
            let SlotPlace { session, slot } = victim.what;
            let session = self.sessions.get_mut(session);
            let session = session.expect("what a session holds goes with it");
            let number = session.slots[usize::from(slot)].number;
            session.give_up(shared, slot.into(), number, sink);
        }
        shared.has_room(total)
    }

    /// Until there is room for `total` bytes, takes it from requests that make no progress, of clients that hold as
    /// much as the one that wants it does with `more`. `None`: of any.
    fn displace_silent<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        wants: Option<Holder>,
        total: u32,
        more: Option<u32>,
        sink: &mut S,
    ) {
        // Two entries are checked for each that is added, so entries that are over do not pile up.
        let looks = if shared.has_room(total) { 2 } else { SEARCHED };
        for _ in 0..looks.min(self.receiving.len()) {
            let Some((id, index, number)) = self.receiving.pop_front() else {
                break;
            };
            let Some(session) = self.sessions.get_mut(id) else {
                continue;
            };
            let slot = &mut session.slots[usize::from(index)];
            if slot.number != number || slot.phase != Phase::Receiving {
                continue;
            }
            let silent_ns = shared.absences.present_since(slot.arrived_at, now);
            let is_silent =
                silent_ns >= ACTIVE_NS || now.saturating_sub(slot.arrived_at) >= SILENT_NS;
            let holder = shared.peers.holder(session.peer);
            let holds_as_much =
                |more| (shared.receiving).holds_as_much(holder, wants, more as usize);
            if shared.has_room(total) || !is_silent || !more.is_none_or(holds_as_much) {
                self.receiving.push_back((id, index, number));
                continue;
            }
            session.give_up(shared, index.into(), number, sink);
        }
    }

    /// A request for response: the client wants fragments of a response, or acknowledges all.
    pub(crate) fn handle_request_for_response<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        peer: PeerId,
        frame: Frame<'_>,
        sink: &mut S,
    ) {
        let id = SessionId::from_wire(frame.header.session);
        let session = match self.sessions.get_mut(id) {
            Some(session) if session.peer == peer => session,
            _ => return self.reset(shared, now, peer, &frame, sink),
        };
        session.active_at = now;
        if frame.header.flags & flags::WANT != 0 {
            self.handle_want(shared, now, id, sink);
        }
        let session = self.sessions.get_mut(id).expect("just found");
        let index = usize::from(frame.header.slot);
        let current = session
            .slots
            .get(index)
            .is_some_and(|slot| slot.number == frame.header.number);
        let Some((rfr, _)) = RequestForResponse::parse(frame.payload).filter(|_| current) else {
            shared.stats.frames_stale += 1;
            return;
        };
        let slot = &mut session.slots[index];
        match slot.phase {
            Phase::Done if rfr.want == 0 => {
                // All fragments arrived.
                slot.release_memory(shared);
                slot.phase = Phase::Over;
            }
            Phase::Done => {
                slot.want(rfr.base, rfr.want);
                self.send_later(shared, id, index);
            }
            Phase::Over if rfr.want != 0 => {
                shared.stats.responses_expired += 1;
                session.push_reject(index, frame.header.number, Rejection::ResponseExpired, sink);
            }
            _ => shared.stats.frames_stale += 1,
        }
    }
}
