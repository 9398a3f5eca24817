//! Preamble and frame header. Parsing is total: any bytes give an error or a frame.

use starling_msgbuf::LARGE_BYTES;

use super::{HEADER_BYTES, PREAMBLE_BYTES, Token, VERSION};
use crate::{RequestNumber, SessionId};

pub(crate) const MAGIC: u8 = 0x5a;

/// Flags of a frame: the upper three bits of its first byte.
pub(crate) mod flags {
    /// The layer above put an extension before the body.
    pub(crate) const EXT: u8 = 1 << 5;
    /// From a server: the frame answers a datagram that had a congestion mark (RFC 3168).
    pub(crate) const ECHO: u8 = 1 << 6;
    /// From a client: the session has more to send than its credits allow.
    pub(crate) const WANT: u8 = 1 << 7;
    /// From a server: the response comes from a later turn than its request, so that the time
    /// between them is not the network's.
    pub(crate) const LATE: u8 = 1 << 7;
    pub(crate) const KIND: u8 = 0x1f;
}

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Client to server: a whole request.
    Request = 1,
    /// Server to client: a whole response.
    Response = 2,
    /// Client to server: a fragment of a request.
    RequestFragment = 3,
    /// Server to client: a fragment of a response.
    ResponseFragment = 4,
    /// Server to client: what arrived of a request (eRPC's CR, cumulative and selective).
    CreditReturn = 5,
    /// Client to server: which fragments of a response to send (eRPC's RFR, cumulative).
    RequestForResponse = 6,
    /// Client to server: the request is not wanted any more.
    Cancel = 7,
    /// Server to client: the request will have no response.
    Reject = 8,
    /// Client to server: open a session.
    Connect = 9,
    /// Server to client: prove that the address is yours.
    Challenge = 10,
    /// Server to client: the session is open.
    Accept = 11,
    /// Server to client: the session is not opened.
    Refuse = 12,
    /// Client to server: the session is over.
    Close = 13,
    /// Server to client: the session is gone.
    Closed = 14,
    /// Either way: the sender knows no such session, or was restarted.
    Reset = 15,
    /// Client to server: are you there?
    Ping = 16,
    /// Server to client: yes.
    Pong = 17,
    /// Server to client: the session's credits from now on.
    Credit = 18,
    /// Client to server: the session's lowered credits are in force.
    CreditAck = 19,
    /// Server to client: the server shuts down, and takes no new requests.
    Drain = 20,
    /// Client to server: it has no request outstanding at this server, and makes no new ones.
    DrainAck = 21,
}

impl Kind {
    #[inline]
    pub(crate) fn from_wire(byte: u8) -> Option<Self> {
        Some(match byte & flags::KIND {
            1 => Self::Request,
            2 => Self::Response,
            3 => Self::RequestFragment,
            4 => Self::ResponseFragment,
            5 => Self::CreditReturn,
            6 => Self::RequestForResponse,
            7 => Self::Cancel,
            8 => Self::Reject,
            9 => Self::Connect,
            10 => Self::Challenge,
            11 => Self::Accept,
            12 => Self::Refuse,
            13 => Self::Close,
            14 => Self::Closed,
            15 => Self::Reset,
            16 => Self::Ping,
            17 => Self::Pong,
            18 => Self::Credit,
            19 => Self::CreditAck,
            20 => Self::Drain,
            21 => Self::DrainAck,
            _ => return None,
        })
    }

    /// Whether a frame with this first byte is of this kind.
    #[inline]
    pub(crate) fn is_of(self, byte: u8) -> bool {
        byte & flags::KIND == self as u8
    }

    fn is_fragment(self) -> bool {
        matches!(self, Self::RequestFragment | Self::ResponseFragment)
    }

    /// A message of one packet.
    fn is_message(self) -> bool {
        matches!(self, Self::Request | Self::Response)
    }

    /// A client's frame that names one of the server's sessions.
    pub(crate) fn is_for_a_server(self) -> bool {
        matches!(
            self,
            Self::Request
                | Self::RequestFragment
                | Self::RequestForResponse
                | Self::Cancel
                | Self::Close
                | Self::Ping
                | Self::CreditAck
        )
    }
}

/// Why a datagram was dropped whole. The sender is at fault, or the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatagramError {
    /// Shorter than a preamble and one frame header.
    #[error("datagram of {0} bytes is shorter than a preamble and a frame: its sender has a bug")]
    Truncated(usize),
    /// It has no token, and the first byte is not Starling's.
    #[error("datagram starts with {0:#04x}: something else than Starling sends to this address")]
    Magic(u8),
    /// Another version of the protocol.
    #[error(
        "datagram is of protocol version {0}, this endpoint speaks {VERSION}: \
         use one release on both ends"
    )]
    Version(u8),
    /// For an earlier incarnation of this endpoint, or forged.
    #[error(
        "the datagram is for an earlier incarnation of this endpoint: its sender has to connect again"
    )]
    StaleToken,
    /// From an address that has no session here.
    #[error(
        "datagram from an address without a session: the sender has to connect (again), or is not Starling"
    )]
    UnknownPeer,
}

/// Why a frame was dropped, and all that follows it in its datagram. The sender is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Fewer bytes left than a frame header.
    #[error("{0} bytes at the end of a datagram are no frame: its sender has a bug")]
    Truncated(usize),
    /// The payload length points beyond the datagram.
    #[error(
        "frame claims {claimed} bytes of payload, the datagram has {left}: its sender has a bug"
    )]
    Length {
        /// Length in the header.
        claimed: usize,
        /// Bytes that are there.
        left: usize,
    },
    /// A kind of frame that this version does not have.
    #[error("frame of unknown kind {0}: update this end, or its sender has a bug")]
    Kind(u8),
}

/// The token in a datagram's preamble, and its frames.
#[inline]
pub(crate) fn read_preamble(datagram: &[u8]) -> Result<(Token, &[u8]), DatagramError> {
    let Some((preamble, rest)) = datagram.split_first_chunk::<PREAMBLE_BYTES>() else {
        return Err(DatagramError::Truncated(datagram.len()));
    };
    let token = Token::of_preamble(*preamble)?;
    if rest.len() < HEADER_BYTES {
        return Err(DatagramError::Truncated(datagram.len()));
    }
    Ok((token, rest))
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) slot: u8,
    pub(crate) session: u32,
    pub(crate) number: u64,
}

impl Header {
    /// Of a frame that belongs to no slot.
    pub(crate) fn control(kind: Kind, session: u32) -> Self {
        Self {
            kind,
            flags: 0,
            slot: 0,
            session,
            number: 0,
        }
    }

    /// As bytes, for a payload of `length` bytes.
    #[inline]
    pub(crate) fn to_bytes(self, length: usize) -> [u8; HEADER_BYTES] {
        HeaderStart::new(self.kind, self.flags, self.session).to_bytes(
            self.slot,
            length,
            self.number,
        )
    }
}

/// What the headers of all frames of a kind on a session have in common: the first word of a header, with
/// zeros for the slot and the length. A session keeps it, so that a header is put together quickly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeaderStart(u64);

impl HeaderStart {
    #[inline]
    pub(crate) const fn new(kind: Kind, flags: u8, session: u32) -> Self {
        debug_assert!(flags & flags::KIND == 0);
        Self((kind as u8 | flags) as u64 | (session as u64) << 32)
    }

    /// The receiver's number of the session.
    #[inline]
    pub(crate) fn session(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The flags.
    #[inline]
    pub(crate) fn flags(self) -> u8 {
        self.0 as u8 & !flags::KIND
    }

    /// With these flags, too.
    #[inline]
    pub(crate) fn with(self, flags: u8) -> Self {
        debug_assert_eq!(flags & flags::KIND, 0);
        Self(self.0 | u64::from(flags))
    }

    /// As bytes of a header, for a payload of `length` bytes.
    #[inline]
    pub(crate) fn to_bytes(
        self,
        slot: u8,
        length: usize,
        number: RequestNumber,
    ) -> [u8; HEADER_BYTES] {
        debug_assert!(length <= usize::from(u16::MAX));
        let first = self.0 | u64::from(slot) << 8 | (length as u64) << 16;
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        bytes[8..].copy_from_slice(&number.to_le_bytes());
        bytes
    }
}

/// A received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub(crate) header: Header,
    pub(crate) payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The extension bit of the layer above.
    #[inline]
    pub fn ext(&self) -> bool {
        self.header.flags & flags::EXT != 0
    }

    /// The bytes that follow the header.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The receiver's session.
    #[inline]
    pub fn session(&self) -> SessionId {
        SessionId::from_wire(self.header.session)
    }

    /// The request that the frame is about.
    #[inline]
    pub fn number(&self) -> RequestNumber {
        self.header.number
    }
}

/// The first frame of `bytes`, and what follows it.
#[inline]
pub(crate) fn split_frame(bytes: &[u8]) -> Result<(Frame<'_>, &[u8]), FrameError> {
    let Some((header, rest)) = bytes.split_first_chunk() else {
        return Err(FrameError::Truncated(bytes.len()));
    };
    let words = to_words(header);
    let Some(kind) = Kind::from_wire(words[0] as u8) else {
        return Err(FrameError::Kind(words[0] as u8 & flags::KIND));
    };
    split_payload(words, kind, rest).ok_or(FrameError::Length {
        claimed: payload_len(words),
        left: rest.len(),
    })
}

/// The only frame of `bytes`, a message or a fragment, if `tail` bytes of its payload are not there.
pub(crate) fn split_frame_with_tail(bytes: &[u8], tail: usize) -> Option<Frame<'_>> {
    let (header, payload) = bytes.split_first_chunk()?;
    let words = to_words(header);
    let kind = Kind::from_wire(words[0] as u8)?;
    if !kind.is_fragment() && !kind.is_message() {
        return None;
    }
    if payload_len(words) != payload.len() + tail {
        return None;
    }
    let header = to_header(words, kind);
    Some(Frame { header, payload })
}

/// Whether the end of a datagram that begins so may stay in its sender's memory, for
/// [`Protocol::handle_tailed`](crate::Protocol::handle_tailed): its first frame is a fragment, or a message of one
/// packet that is so large that a second copy of it is worth avoiding.
pub fn may_leave_tail(datagram: &[u8]) -> bool {
    let frame = datagram.get(PREAMBLE_BYTES..).unwrap_or_default();
    let Some(words) = frame.first_chunk().map(to_words) else {
        return false;
    };
    Kind::from_wire(words[0] as u8).is_some_and(|kind| {
        kind.is_fragment() || (kind.is_message() && payload_len(words) >= LARGE_BYTES)
    })
}

/// As [`split_frame`], if the frame is well-formed and of that kind: a cheaper check.
#[inline(always)]
pub(crate) fn split_frame_of(kind: Kind, bytes: &[u8]) -> Option<(Frame<'_>, &[u8])> {
    let (header, rest) = bytes.split_first_chunk()?;
    let words = to_words(header);
    if !kind.is_of(words[0] as u8) {
        return None;
    }
    split_payload(words, kind, rest)
}

#[inline(always)]
fn to_words(header: &[u8; HEADER_BYTES]) -> [u64; 2] {
    let (low, number) = header.split_at(8);
    [low, number].map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
}

#[inline(always)]
fn payload_len([low, _]: [u64; 2]) -> usize {
    usize::from((low >> 16) as u16)
}

/// The frame with that header, and what follows it, if `rest` is as long as the header says.
#[inline(always)]
fn split_payload(words: [u64; 2], kind: Kind, rest: &[u8]) -> Option<(Frame<'_>, &[u8])> {
    let (payload, rest) = rest.split_at_checked(payload_len(words))?;
    let header = to_header(words, kind);
    Some((Frame { header, payload }, rest))
}

#[inline(always)]
fn to_header([low, number]: [u64; 2], kind: Kind) -> Header {
    Header {
        kind,
        flags: low as u8 & !flags::KIND,
        slot: (low >> 8) as u8,
        session: (low >> 32) as u32,
        number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_wire() {
        for kind in 0..=u8::MAX {
            let Some(kind) = Kind::from_wire(kind) else {
                continue;
            };
            let header = Header {
                kind,
                flags: flags::EXT | flags::ECHO | flags::WANT,
                slot: 200,
                session: 0xdead_beef,
                number: u64::MAX - 3,
            };
            let mut bytes = header.to_bytes(3).to_vec();
            bytes.extend_from_slice(b"abcrest");
            let (frame, rest) = split_frame(&bytes).expect("a whole frame");
            assert_eq!(frame.header, header);
            assert_eq!(frame.payload, b"abc");
            assert_eq!(rest, b"rest");
        }
    }

    #[test]
    fn malformed_frames_are_named() {
        assert_eq!(split_frame(&[1; 15]), Err(FrameError::Truncated(15)));
        assert_eq!(split_frame(&[0x1f; 16]), Err(FrameError::Kind(0x1f)));
        let header = Header {
            kind: Kind::Ping,
            flags: 0,
            slot: 0,
            session: 0,
            number: 0,
        };
        let bytes = header.to_bytes(1);
        assert_eq!(
            split_frame(&bytes),
            Err(FrameError::Length {
                claimed: 1,
                left: 0
            })
        );
        assert_eq!(
            read_preamble(&[MAGIC, 9, 0, 0, 0, 0, 0, 0]),
            Err(DatagramError::Version(9))
        );
        assert_eq!(
            read_preamble(&[0; 40]).unwrap_err(),
            DatagramError::Magic(0)
        );
    }

    /// Any bytes: an error or frames that tile the datagram, never a panic.
    #[test]
    fn fuzz_datagram() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let Ok((_, mut rest)) = read_preamble(bytes) else {
                return;
            };
            while !rest.is_empty() {
                let Ok((frame, after)) = split_frame(rest) else {
                    return;
                };
                assert_eq!(HEADER_BYTES + frame.payload.len() + after.len(), rest.len());
                rest = after;
            }
        });
    }
}
