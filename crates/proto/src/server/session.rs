//! A server session: for each slot the last request's number and its response.
//!
//! ```text
//!          request of one packet
//!  Idle ─────────────────────────▶ Executing ──respond──▶ Done ──expire, ack──▶ Over
//!    │                               ▲   │                 │
//!    └──first fragment──▶ Receiving ─┘   └──cancel──▶ Over ┘
//!  and from each of them back to the start with a request of a higher number
//! ```
//! Numbers only grow, so no request is ever handed over twice, even if frames arrive again.

use super::credits::{REPEAT_NS, SINGLE_CREDIT};
use super::slot::{ColdState, Large, Phase, Slot};
use crate::holdings::HoldingId;
use crate::msgbuf_pool::KEPT_BYTES;
use crate::shared::Shared;
use crate::sink::push_rare;
use crate::slots::Slots;
use crate::table::{Place, SessionHandle};
use crate::wire::{
    CreditReturn, FRAGMENT_BYTES, Fragment, HEADER_BYTES, Header, Kind, PREAMBLE_BYTES, Reject,
    Token, flags,
};
use crate::{FrameSink, PeerId, Rejection, RequestId, RequestNumber, SinkError};

/// A small request and its response in the first slot need only the first two cache lines, and read
/// only the first of them:
///
/// ```text
///  0                        32               64                         128            256
/// ┌────────────────────────┬────────────────┬──────────────────────────┬──────────────┐
/// │ handle, peer, times    │ slot 0: number │ slot 0: a small response │ all the rest │
/// └────────────────────────┴────────────────┴──────────────────────────┴──────────────┘
/// ```
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ServerSession {
    /// Includes the round that request ids have: see [`RequestId`].
    pub(crate) handle: SessionHandle,
    pub(crate) peer: PeerId,
    /// The client's number of this session.
    pub(crate) remote: u32,
    /// A response in a buffer with no more memory than this needs one packet and no account of its memory.
    pub(crate) small_buffer: u32,
    /// The client's incarnation.
    pub(crate) token: Token,
    pub(crate) active_at: u64,
    pub(crate) slots: Slots<Slot>,
    /// The session among those that clients have.
    pub(crate) holding: HoldingId,
    /// The client was told to return all credits but one, first at `revoked_at`.
    pub(crate) revoking: bool,
    /// It was told so again since then.
    pub(crate) revoke_repeated: bool,
    pub(crate) in_revoked_queue: bool,
    pub(crate) blocked: bool,
    /// Credits that the client has at most.
    pub(crate) granted: u16,
    /// The session's place among those with more than one credit.
    pub(crate) multi_credit_at: u32,
    /// Credits that the client said it can use.
    pub(crate) wanted: u16,
    pub(crate) fragment: u32,
    /// Largest message that the client accepts.
    pub(crate) max_message: u32,
    /// How many sessions were opened before, modulo 2^32.
    pub(crate) place: u32,
    pub(crate) revoked_at: u64,
    pub(crate) credit_number: u64,
    /// The highest credit frame that the client has acknowledged, and when the last one was sent.
    pub(crate) acked_number: u64,
    pub(crate) credit_sent_at: u64,
    /// The number of the first credit frame that lowered the credits.
    pub(crate) revoke_number: u64,
    /// When the session's accept was last repeated, to learn whether the client has the session.
    pub(crate) idle_checked_at: u64,
    /// Slots with a response (or parts of one) that found the sink full.
    pub(crate) pending: u64,
}

const _: () = assert!(size_of::<ServerSession>() <= 256);

/// What a session takes when each of its slots keeps a response of the largest size that has no account.
pub(crate) const fn most_session_bytes(slots: usize) -> usize {
    size_of::<ServerSession>() + slots * (size_of::<Slot>() + ColdState::BYTES + KEPT_BYTES)
}

impl Place for ServerSession {
    fn vacant() -> Self {
        Self {
            handle: SessionHandle::NONE,
            peer: PeerId(u32::MAX),
            remote: 0,
            small_buffer: 0,
            token: Token::NONE,
            active_at: 0,
            slots: Slots::new(0),
            holding: HoldingId::default(),
            revoking: false,
            revoke_repeated: false,
            in_revoked_queue: false,
            blocked: false,
            granted: 0,
            multi_credit_at: SINGLE_CREDIT,
            wanted: 0,
            fragment: 0,
            max_message: 0,
            place: 0,
            revoked_at: 0,
            credit_number: 0,
            acked_number: 0,
            credit_sent_at: 0,
            revoke_number: 0,
            idle_checked_at: 0,
            pending: 0,
        }
    }

    #[inline]
    fn handle(&self) -> SessionHandle {
        self.handle
    }
}

impl ServerSession {
    #[inline]
    pub(crate) fn preamble(&self) -> [u8; PREAMBLE_BYTES] {
        self.token.preamble()
    }

    /// How many requests are executed, and how many arrive.
    pub(crate) fn requests(&self) -> (usize, usize) {
        let count = |phase| self.slots.iter().filter(|slot| slot.phase == phase).count();
        (count(Phase::Executing), count(Phase::Receiving))
    }

    /// Requests that arrive or are executed.
    pub(crate) fn busy(&self) -> usize {
        let busy = |slot: &Slot| matches!(slot.phase, Phase::Receiving | Phase::Executing);
        let is_busy = |index: &usize| self.slots.get(*index).is_some_and(busy);
        (0..self.slots.count()).filter(is_busy).count()
    }

    /// Whether each slot was used since then: its client has no other for requests that wait there.
    pub(crate) fn is_full(&self, since: u64) -> bool {
        let is_used = |slot: &Slot| {
            matches!(slot.phase, Phase::Receiving | Phase::Executing)
                || slot.arrived_at >= since.max(1)
        };
        (0..self.slots.count()).all(|index| self.slots.get(index).is_some_and(is_used))
    }

    /// Whether a message of several packets was on its way since then: a request of which fragments came, or a response
    /// that the client fetches, as far as is known.
    pub(crate) fn is_transferring(&self, since: u64) -> bool {
        let is_it = |slot: &Slot| match slot.phase {
            Phase::Receiving => slot.arrived_at >= since,
            // Until it is said that all arrived.
            Phase::Done => self.active_at >= since && slot.response_len() > self.fragment as usize,
            _ => false,
        };
        self.slots.iter().any(is_it)
    }

    fn header(&self, kind: Kind, slot: usize, flags: u8) -> Header {
        Header {
            kind,
            flags,
            slot: slot as u8,
            session: self.remote,
            number: self.slots[slot].number,
        }
    }

    /// Sends the response in `slot`, or the first fragment of it.
    pub(crate) fn push_response<S: FrameSink>(
        &self,
        slot: usize,
        sink: &mut S,
    ) -> Result<(), SinkError> {
        let entry = &self.slots[slot];
        // Only a stored response is sent: its memory belongs to the slot until the next request.
        debug_assert_eq!(
            entry.phase,
            Phase::Done,
            "slot {slot} of {:?}",
            self.handle.id()
        );
        let len = entry.response_len();
        if len > self.fragment as usize {
            return self.push_fragment(slot, 0, sink);
        }
        let head = self.header(Kind::Response, slot, entry.flags).to_bytes(len);
        let (body, tail) = entry.response();
        push_rare(sink, self.peer, &self.preamble(), &head, body, tail)
    }

    /// Sends fragment `index` of the response in `slot`.
    pub(crate) fn push_fragment<S: FrameSink>(
        &self,
        slot: usize,
        index: u32,
        sink: &mut S,
    ) -> Result<(), SinkError> {
        let entry = &self.slots[slot];
        debug_assert_eq!(
            entry.phase,
            Phase::Done,
            "slot {slot} of {:?}",
            self.handle.id()
        );
        let len = entry.response_len();
        let from = index as usize * self.fragment as usize;
        let to = (from + self.fragment as usize).min(len);
        let fragment = Fragment {
            total: len as u32,
            index,
        };
        // Later fragments answer requests for response, which are small and are not echoed.
        let flags = if index == 0 {
            entry.flags
        } else {
            entry.flags & !flags::ECHO
        };
        let header = self.header(Kind::ResponseFragment, slot, flags);
        let mut head = [0; HEADER_BYTES + FRAGMENT_BYTES];
        head[..HEADER_BYTES].copy_from_slice(&header.to_bytes(FRAGMENT_BYTES + to - from));
        head[HEADER_BYTES..].copy_from_slice(&fragment.to_bytes());
        let (body, tail) = entry.response_range(from, to);
        push_rare(sink, self.peer, &self.preamble(), &head, body, tail)
    }

    /// Sends the fragments in `want` above `base`; returns those that found the sink full.
    pub(crate) fn push_fragments<S: FrameSink>(
        &self,
        slot: usize,
        base: u32,
        mut want: u64,
        sink: &mut S,
    ) -> u64 {
        let len = self.slots[slot].response_len() as u32;
        let count = crate::transfer::fragment_count(len, self.fragment);
        while want != 0 {
            let index = base.saturating_add(want.trailing_zeros());
            if index < count {
                match self.push_fragment(slot, index, sink) {
                    Ok(()) => {}
                    Err(SinkError::Full) => return want,
                    Err(SinkError::Gone) => return 0,
                }
            }
            want &= want - 1;
        }
        0
    }

    /// The slots whose requests are being executed: bit *i* for slot *i*. They take long, and so many may be here:
    /// their slots keep no buffers for their responses meanwhile.
    fn executing(&mut self) -> u64 {
        let mut executing = 0;
        for index in 0..self.slots.count() {
            if let Some(slot) = self.slots.get_mut(index)
                && slot.phase == Phase::Executing
            {
                slot.cold.drop_spare();
                executing |= 1 << index;
            }
        }
        executing
    }

    /// Sends a credit return: what arrived of the request in `slot`, or that it is being executed.
    pub(crate) fn push_credit_return<S: FrameSink>(
        &mut self,
        slot: usize,
        sink: &mut S,
    ) -> Result<(), SinkError> {
        let is_executing = self.slots[slot].phase == Phase::Executing;
        let executing = if is_executing { self.executing() } else { 0 };
        let entry = &self.slots[slot];
        let ack = match entry.cold.large() {
            Some(Large::Receive(window, _)) => CreditReturn {
                next: window.next(),
                executing: 0,
                sack: window.sack(),
            },
            _ if is_executing => CreditReturn {
                next: entry.fragments,
                executing: 1,
                sack: executing,
            },
            _ => CreditReturn {
                next: entry.fragments,
                executing: 0,
                sack: 0,
            },
        };
        let body = ack.to_bytes();
        let echo = match entry.phase {
            Phase::Receiving => entry.flags & flags::ECHO,
            _ => 0,
        };
        let head = self
            .header(Kind::CreditReturn, slot, echo)
            .to_bytes(body.len());
        push_rare(sink, self.peer, &self.preamble(), &head, &body, &[])
    }

    /// Sends a reject: request `number` in `slot` will have no response. Best effort: a client that
    /// does not receive it asks again.
    pub(crate) fn push_reject<S: FrameSink>(
        &self,
        slot: usize,
        number: RequestNumber,
        why: Rejection,
        sink: &mut S,
    ) {
        let body = Reject {
            code: why.to_wire(),
        }
        .to_bytes();
        let mut header = self.header(Kind::Reject, slot, 0);
        header.number = number;
        let head = header.to_bytes(body.len());
        let _ = push_rare(sink, self.peer, &self.preamble(), &head, &body, &[]);
    }

    /// There is no memory for request `number` in `slot`. It is never run, even if it arrives again
    /// when there is memory: the client may have the reject by then.
    pub(crate) fn give_up<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        slot: usize,
        number: RequestNumber,
        sink: &mut S,
    ) {
        let entry = &mut self.slots[slot];
        entry.release_memory(shared);
        entry.number = number;
        entry.phase = Phase::GivenUp;
        self.push_reject(slot, number, Rejection::NoMemory, sink);
    }

    /// Whether the last credit frame is unacknowledged for long: it or the answer was lost.
    pub(crate) fn credit_is_unheard(&self, now: u64) -> bool {
        self.acked_number < self.credit_number && now - self.credit_sent_at >= REPEAT_NS
    }

    /// Tells the client its credits again.
    pub(crate) fn repeat_credit<S: FrameSink>(&mut self, now: u64, sink: &mut S) {
        self.revoke_repeated = self.revoking;
        let credits = if self.revoking { 1 } else { self.granted };
        self.push_credit(now, credits, sink);
    }

    /// Tells the client its credits.
    pub(crate) fn push_credit<S: FrameSink>(&mut self, now: u64, credits: u16, sink: &mut S) {
        self.credit_number += 1;
        self.credit_sent_at = now;
        let body = crate::wire::Limit {
            credits: u32::from(credits),
        }
        .to_bytes();
        let head = Header {
            kind: Kind::Credit,
            flags: 0,
            slot: 0,
            session: self.remote,
            number: self.credit_number,
        }
        .to_bytes(body.len());
        // If it is lost: a client that needs more credits asks again, and a demand is repeated.
        let _ = push_rare(sink, self.peer, &self.preamble(), &head, &body, &[]);
    }

    /// The id of the request in a slot.
    pub(crate) fn request_id(&self, slot: usize) -> RequestId {
        RequestId::new(self.handle, slot as u8, self.slots[slot].number)
    }
}
