//! A parser and a writer of datagrams, made from PROTOCOL.md (sections 2 and 3) alone: the checkers
//! do not rely on the code that they check, and hostile hosts send what no endpoint would.

use starling_proto::{HEADER_BYTES, PREAMBLE_BYTES};

pub(crate) const REQUEST: u8 = 1;
pub(crate) const RESPONSE: u8 = 2;
pub(crate) const REQUEST_FRAGMENT: u8 = 3;
pub(crate) const RESPONSE_FRAGMENT: u8 = 4;
pub(crate) const CREDIT_RETURN: u8 = 5;
pub(crate) const REQUEST_FOR_RESPONSE: u8 = 6;
pub(crate) const CANCEL: u8 = 7;
pub(crate) const REJECT: u8 = 8;
pub(crate) const CONNECT: u8 = 9;
pub(crate) const CHALLENGE: u8 = 10;
pub(crate) const ACCEPT: u8 = 11;
pub(crate) const REFUSE: u8 = 12;
pub(crate) const CLOSE: u8 = 13;
pub(crate) const CLOSED: u8 = 14;
pub(crate) const RESET: u8 = 15;
pub(crate) const PING: u8 = 16;
pub(crate) const PONG: u8 = 17;
/// Where the payload of an ACCEPT has the credits.
const CREDITS_AT: usize = 22;
pub(crate) const CREDIT: u8 = 18;
pub(crate) const CREDIT_ACK: u8 = 19;
pub(crate) const DRAIN: u8 = 20;
pub(crate) const DRAIN_ACK: u8 = 21;

/// One frame of a datagram.
pub(crate) struct Frame<'a> {
    /// Where in the datagram it begins.
    pub(crate) at: usize,
    pub(crate) kind: u8,
    pub(crate) slot: u8,
    /// The receiver's name for the session.
    pub(crate) session: u32,
    pub(crate) number: u64,
    pub(crate) payload: &'a [u8],
}

impl Frame<'_> {
    /// The credits that the frame gives a client: their offset in the datagram, and their number.
    pub(crate) fn credits(&self) -> Option<(usize, u32)> {
        let payload_at = self.at + HEADER_BYTES;
        match self.kind {
            ACCEPT => {
                let word = self.payload.get(CREDITS_AT..CREDITS_AT + 2)?;
                let credits = u16::from_le_bytes(word.try_into().expect("two bytes"));
                Some((payload_at + CREDITS_AT, credits.into()))
            }
            CREDIT => Some((payload_at, u32_at(self.payload, 0)?)),
            _ => None,
        }
    }
}

/// The frames of a datagram, as far as they can be read.
#[inline]
pub(crate) fn frames(datagram: &[u8]) -> impl Iterator<Item = Frame<'_>> {
    let mut at = PREAMBLE_BYTES;
    std::iter::from_fn(move || {
        let head: &[u8; HEADER_BYTES] = datagram.get(at..)?.first_chunk()?;
        let len = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let payload = datagram.get(at + HEADER_BYTES..)?.get(..len)?;
        let frame = Frame {
            at,
            kind: head[0] & 0x1f,
            slot: head[1],
            session: u32_at(head, 4)?,
            number: u64_at(head, 8)?,
            payload,
        };
        at += HEADER_BYTES + len;
        Some(frame)
    })
}

/// The preamble of a datagram without a token: magic and version.
const NO_TOKEN: u64 = 0x035a;
/// A preamble with fewer bits is no token.
pub(crate) const LEAST_TOKEN: u64 = 1 << 16;

/// A datagram without frames, under a token or none (0).
pub(crate) fn begin(token: u64) -> Vec<u8> {
    if token == 0 { NO_TOKEN } else { token }
        .to_le_bytes()
        .to_vec()
}

/// The token of a datagram, 0 if it has none.
pub(crate) fn token_of(datagram: &[u8]) -> Option<u64> {
    let preamble = u64_at(datagram, 0)?;
    Some(if preamble < LEAST_TOKEN { 0 } else { preamble })
}

/// A frame.
pub(crate) fn frame(kind: u8, slot: u8, session: u32, number: u64, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind, slot];
    frame.extend((payload.len() as u16).to_le_bytes());
    frame.extend(session.to_le_bytes());
    frame.extend(number.to_le_bytes());
    frame.extend(payload);
    frame
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(word.try_into().expect("four bytes")))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(word.try_into().expect("eight bytes")))
}
