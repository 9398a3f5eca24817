//! A parser of datagrams written from PROTOCOL.md (section 3) alone: the checkers do not rely on
//! the code that they check.

use starling_proto::{HEADER_BYTES, PREAMBLE_BYTES};

pub(crate) const REQUEST: u8 = 1;
pub(crate) const REQUEST_FRAGMENT: u8 = 3;
pub(crate) const RESPONSE_FRAGMENT: u8 = 4;
pub(crate) const CREDIT_RETURN: u8 = 5;
pub(crate) const ACCEPT: u8 = 11;
/// Where the payload of an ACCEPT has the credits.
const CREDITS_AT: usize = 22;
pub(crate) const CREDIT: u8 = 18;

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

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(word.try_into().expect("four bytes")))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(word.try_into().expect("eight bytes")))
}
