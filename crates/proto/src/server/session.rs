//! A server session: for each slot the last request's number and its response.
//!
//! ```text
//!          request of one packet
//!  Idle ─────────────────────────▶ Executing ──respond──▶ Done ──expire, ack──▶ Over
//!    │                               ▲   │                 │
//!    └──first fragment──▶ Receiving ─┘   └──cancel──▶ Over ┘
//!  and from each of them back to the start with a request of a higher number
//! ```
//! Numbers only grow, so no request is ever handed out twice, whatever arrives again.

use crate::msgbuf::Msgbuf;
use crate::sink::push_rare;
use crate::transfer::ReceiveWindow;
use crate::wire::{
    CreditReturn, FRAGMENT_BYTES, Fragment, HEADER_BYTES, Header, Kind, PREAMBLE_BYTES, Reject,
    flags,
};
use crate::{FrameSink, PeerId, Rejection, RequestId, RequestNumber, SessionId, SinkError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No request yet.
    Idle,
    /// Some fragments of the request arrived.
    Receiving,
    /// The handler has it.
    Executing,
    /// Answered; the response is kept for a client that missed it.
    Done,
    /// Answered or cancelled, and nothing is kept.
    Over,
    /// Some fragments arrived; then none did while others needed the memory. It was not run.
    GivenUp,
}

/// State that only messages of several packets need.
#[derive(Debug)]
pub(crate) enum Large {
    Receive(ReceiveWindow),
    /// Fragments of the response that the client asked for and the sink had no room for.
    Owed {
        base: u32,
        want: u64,
    },
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) number: RequestNumber,
    pub(crate) response: Msgbuf,
    /// When the request was complete; while it is not, when its last new fragment arrived.
    pub(crate) arrived_at: u64,
    /// Fragments that the request had; zero for one of a single packet.
    pub(crate) fragments: u32,
    pub(crate) large: Option<Box<Large>>,
    pub(crate) phase: Phase,
    pub(crate) ext: bool,
    /// The response comes from a later turn than the request: its RTT is not the network's.
    pub(crate) late: bool,
    /// A credit return is due at the next flush.
    pub(crate) acking: bool,
    /// Is in the list of responses that are kept for a limited time.
    pub(crate) listed: bool,
}

#[derive(Debug)]
pub(crate) struct ServerSession {
    pub(crate) peer: PeerId,
    /// How often the session's name was another one's before, times 256: see [`RequestId`].
    pub(crate) round: u32,
    /// The client's number of this session.
    pub(crate) remote: u32,
    /// The client's incarnation.
    pub(crate) token: u32,
    pub(crate) preamble: [u8; PREAMBLE_BYTES],
    pub(crate) fragment: u32,
    /// The largest response of one packet.
    pub(crate) single: u32,
    /// Largest message that the client takes.
    pub(crate) max_message: u32,
    /// Credits that the client has, as far as this side knows; never too few.
    pub(crate) granted: u16,
    /// Credits that the client said it can use.
    pub(crate) wanted: u16,
    /// The client was asked to come down to one credit, first then.
    pub(crate) revoking: bool,
    pub(crate) revoked_at: u64,
    pub(crate) credit_number: u64,
    pub(crate) active_at: u64,
    /// When the client was last asked whether it still has the session.
    pub(crate) audited_at: u64,
    /// Slots with a response (or parts of one) that found the sink full.
    pub(crate) pending: u64,
    pub(crate) blocked: bool,
    pub(crate) slots: Box<[Slot]>,
}

impl Slot {
    pub(crate) fn idle() -> Self {
        Self {
            number: 0,
            response: Msgbuf::new(),
            arrived_at: 0,
            fragments: 0,
            large: None,
            phase: Phase::Idle,
            ext: false,
            late: false,
            acking: false,
            listed: false,
        }
    }
}

impl Slot {
    /// Takes the response, and leaves an empty buffer: the memory of the slot's last one.
    pub(crate) fn answer(&mut self, now: u64, response: &mut Msgbuf, ext: bool) {
        std::mem::swap(&mut self.response, response);
        response.clear();
        self.note_answer(now, ext);
    }

    /// The same if neither has a tail.
    #[inline(always)]
    pub(crate) fn answer_small(&mut self, now: u64, response: &mut Msgbuf, ext: bool) {
        debug_assert!(self.response.tail().is_empty() && response.tail().is_empty());
        std::mem::swap(self.response.head_mut(), response.head_mut());
        response.head_mut().clear();
        self.note_answer(now, ext);
    }

    #[inline(always)]
    fn note_answer(&mut self, now: u64, ext: bool) {
        self.ext = ext;
        self.late = now != self.arrived_at;
        self.phase = Phase::Done;
    }

    #[inline]
    pub(crate) fn response_flags(&self) -> u8 {
        let mut flags = 0;
        if self.ext {
            flags |= flags::EXT;
        }
        if self.late {
            flags |= flags::LATE;
        }
        flags
    }
}

impl ServerSession {
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
        let response = &self.slots[slot].response;
        let len = response.len();
        if len > self.fragment as usize {
            return self.push_fragment(slot, 0, sink);
        }
        let head = self
            .header(Kind::Response, slot, self.slots[slot].response_flags())
            .to_bytes(len);
        push_rare(
            sink,
            self.peer,
            &self.preamble,
            &head,
            response.head(),
            response.tail(),
        )
    }

    /// Sends fragment `index` of the response in `slot`.
    pub(crate) fn push_fragment<S: FrameSink>(
        &self,
        slot: usize,
        index: u32,
        sink: &mut S,
    ) -> Result<(), SinkError> {
        let response = &self.slots[slot].response;
        let from = index as usize * self.fragment as usize;
        let to = (from + self.fragment as usize).min(response.len());
        let fragment = Fragment {
            total: response.len() as u32,
            index,
        };
        let flags = self.slots[slot].response_flags();
        let header = self.header(Kind::ResponseFragment, slot, flags);
        let mut head = [0; HEADER_BYTES + FRAGMENT_BYTES];
        head[..HEADER_BYTES].copy_from_slice(&header.to_bytes(FRAGMENT_BYTES + to - from));
        head[HEADER_BYTES..].copy_from_slice(&fragment.to_bytes());
        let (body, tail) = response.range(from, to);
        push_rare(sink, self.peer, &self.preamble, &head, body, tail)
    }

    /// Sends the fragments in `want` above `base`; returns those that found the sink full.
    pub(crate) fn push_fragments<S: FrameSink>(
        &self,
        slot: usize,
        base: u32,
        mut want: u64,
        sink: &mut S,
    ) -> u64 {
        let len = self.slots[slot].response.len() as u32;
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

    /// Says what arrived of the request in `slot`, or that it is being executed.
    pub(crate) fn push_credit_return<S: FrameSink>(
        &self,
        slot: usize,
        sink: &mut S,
    ) -> Result<(), SinkError> {
        let entry = &self.slots[slot];
        let ack = match entry.large.as_deref() {
            Some(Large::Receive(window)) => CreditReturn {
                next: window.next(),
                executing: 0,
                sack: window.sack(),
            },
            _ => CreditReturn {
                next: entry.fragments,
                executing: u32::from(entry.phase == Phase::Executing),
                sack: 0,
            },
        };
        let body = ack.to_bytes();
        let head = self
            .header(Kind::CreditReturn, slot, 0)
            .to_bytes(body.len());
        push_rare(sink, self.peer, &self.preamble, &head, &body, &[])
    }

    /// Says that the request numbered `number` in `slot` will have no response, best effort: a
    /// client that misses it asks again.
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
        let _ = push_rare(sink, self.peer, &self.preamble, &head, &body, &[]);
    }

    /// Tells the client its credits.
    pub(crate) fn push_credit<S: FrameSink>(&mut self, credits: u16, sink: &mut S) {
        self.credit_number += 1;
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
        // A client that misses more credits asks again, one that misses fewer is asked again.
        let _ = push_rare(sink, self.peer, &self.preamble, &head, &body, &[]);
    }

    /// This session's name, for requests.
    pub(crate) fn request_id(&self, id: SessionId, slot: usize) -> RequestId {
        RequestId::new(id, self.round, slot as u8, self.slots[slot].number)
    }
}
