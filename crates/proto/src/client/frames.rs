//! The frames that a client session sends. None of these touches the session's accounting.

use super::session::ClientSession;
use super::slot::Phase;
use crate::sink::push_rare;
use crate::wire::{FRAGMENT_BYTES, Fragment, HEADER_BYTES, Header, Kind, Limit, flags};
use crate::{FrameSink, SinkError};

impl ClientSession {
    fn header(&self, kind: Kind, slot: usize) -> Header {
        let request = &self.slots[slot];
        Header {
            kind,
            flags: self.start.flags() | if request.ext { flags::EXT } else { 0 },
            slot: slot as u8,
            session: self.remote(),
            number: request.number,
        }
    }

    /// The ownership rule of eRPC (NSDI'19, section 4.2.2): no part of a request is sent once its
    /// response was processed or the request was given back.
    fn assert_owned(&self, slot: usize, phase: Phase) {
        debug_assert_eq!(
            self.slots[slot].phase, phase,
            "slot {slot} of {:?}",
            self.id
        );
        debug_assert_eq!(self.free & 1 << slot, 0, "slot {slot} of {:?}", self.id);
    }

    /// Sends the request of one packet in `slot`. Touches no accounting.
    pub(crate) fn push_single<S: FrameSink>(
        &self,
        slot: usize,
        sink: &mut S,
    ) -> Result<(), SinkError> {
        self.assert_owned(slot, Phase::Single);
        let (body, tail) = self.slots[slot].message();
        let head = self
            .header(Kind::Request, slot)
            .to_bytes(body.len() + tail.len());
        push_rare(sink, self.peer, &self.preamble, &head, body, tail)
    }

    /// Sends fragment `index` of the request in `slot`. Touches no accounting.
    pub(crate) fn push_fragment<S: FrameSink>(
        &self,
        slot: usize,
        index: u32,
        sink: &mut S,
    ) -> Result<usize, SinkError> {
        self.assert_owned(slot, Phase::Sending);
        let request = &self.slots[slot];
        let total = request.message_len();
        let from = index as usize * self.fragment as usize;
        let to = (from + self.fragment as usize).min(total);
        let len = FRAGMENT_BYTES + to - from;
        let fragment = Fragment {
            total: total as u32,
            index,
        };
        let mut head = [0; HEADER_BYTES + FRAGMENT_BYTES];
        head[..HEADER_BYTES]
            .copy_from_slice(&self.header(Kind::RequestFragment, slot).to_bytes(len));
        head[HEADER_BYTES..].copy_from_slice(&fragment.to_bytes());
        let (body, tail) = request.message_range(from, to);
        push_rare(sink, self.peer, &self.preamble, &head, body, tail)?;
        Ok(head.len() + to - from)
    }

    /// Sends a request for the fragments `want` above `base`.
    pub(crate) fn push_rfr<S: FrameSink>(
        &self,
        slot: usize,
        base: u32,
        want: u64,
        sink: &mut S,
    ) -> Result<(), SinkError> {
        self.assert_owned(slot, Phase::Receiving);
        let body = crate::wire::RequestForResponse {
            base,
            reserved: 0,
            want,
        }
        .to_bytes();
        let head = self
            .header(Kind::RequestForResponse, slot)
            .to_bytes(body.len());
        push_rare(sink, self.peer, &self.preamble, &head, &body, &[])
    }

    /// Tells the server that the session is over. Repeated until the server confirms it.
    pub(crate) fn push_close<S: FrameSink>(&self, sink: &mut S) {
        let head = Header {
            kind: Kind::Close,
            flags: 0,
            slot: 0,
            session: self.remote(),
            number: u64::from(self.id.to_wire()),
        }
        .to_bytes(0);
        let _ = push_rare(sink, self.peer, &self.preamble, &head, &[], &[]);
    }

    /// Tells the server that its last credit frame is in force.
    pub(crate) fn push_credit_ack<S: FrameSink>(&self, limit: Limit, sink: &mut S) {
        let body = limit.to_bytes();
        let head = Header {
            kind: Kind::CreditAck,
            flags: 0,
            slot: 0,
            session: self.remote(),
            number: self.credit_number,
        }
        .to_bytes(body.len());
        let _ = push_rare(sink, self.peer, &self.preamble, &head, &body, &[]);
    }

    /// Tells the server that the request in `slot` is not wanted any more, best effort.
    pub(crate) fn push_cancel<S: FrameSink>(&self, slot: usize, sink: &mut S) {
        let head = self.header(Kind::Cancel, slot).to_bytes(0);
        // If it is lost, the server only does work that is not wanted.
        let _ = push_rare(sink, self.peer, &self.preamble, &head, &[], &[]);
    }
}
