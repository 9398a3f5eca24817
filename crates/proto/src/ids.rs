//! Identifiers of peers, sessions and requests.

use std::net::SocketAddr;

use crate::table::SessionHandle;

/// A peer endpoint, as the device of this endpoint numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// Where a datagram came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A peer that the device knows.
    Peer(PeerId),
    /// The address of an unknown peer: only session management is accepted from it.
    Unknown(SocketAddr),
}

/// The caller's own identifier of a request; it comes back with the response. It is wide enough for
/// a key and what the key refers to, so the caller needs no table of its own.
pub type Tag = u128;

/// The number of a request within its session: starts at 1, grows, never wraps (64 bits).
pub type RequestNumber = u64;

/// A place in a session table, and in the same word a generation: how often that place was used
/// before. So a frame that means an earlier session at the place is recognised.
///
/// ```text
///  31      24 23                      0
/// ┌──────────┬─────────────────────────┐
/// │generation│          index          │
/// └──────────┴─────────────────────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(u32);

impl SessionId {
    /// The largest number of places in a table.
    pub const MAX_INDEX: usize = (1 << 24) - 1;

    /// Names no session: a table has fewer places than the largest index.
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(crate) fn new(index: usize, generation: u8) -> Self {
        debug_assert!(index <= Self::MAX_INDEX);
        Self(u32::from(generation) << 24 | index as u32)
    }

    /// From the wire.
    #[inline]
    pub(crate) fn from_wire(word: u32) -> Self {
        Self(word)
    }

    /// For the wire, and for traces.
    #[inline]
    pub const fn to_wire(self) -> u32 {
        self.0
    }

    /// The place in the table.
    #[inline]
    pub fn index(self) -> usize {
        (self.0 & 0x00ff_ffff) as usize
    }

    #[inline]
    pub(crate) fn generation(self) -> u8 {
        (self.0 >> 24) as u8
    }

    /// Whether another session was at its place of the table before. False once in 256 times of those.
    pub(crate) fn is_reused(self) -> bool {
        self.generation() != 0
    }
}

/// The bytes that the layer above puts before the body of a message. They do not count towards the
/// largest message, so a body of exactly that size can be sent behind any prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// The extension bit, carried for the layer above.
    pub ext: bool,
    /// The request belongs to something that the server has begun, so a server that shuts down takes it. Means
    /// nothing in a response.
    pub continues: bool,
    /// Bytes of the prefix, at most [`Prefix::MAX`].
    pub len: u16,
}

impl Prefix {
    /// The most bytes that a receiver accepts beyond the largest message.
    pub const MAX: u16 = 16 << 10;

    /// No prefix.
    pub const NONE: Self = Self {
        ext: false,
        continues: false,
        len: 0,
    };

    /// Bytes of the body of a message of `len` bytes.
    pub(crate) fn body_len(self, len: usize) -> usize {
        debug_assert!(self.len <= Self::MAX, "a prefix of {} bytes", self.len);
        len.saturating_sub(usize::from(self.len))
    }
}

/// Server side: the request that a response answers.
///
/// It may outlive its session: a handler may take long, and the client may meanwhile open and close
/// so many sessions that the same [`SessionId`] is used again. So it also has the *round*: how often
/// that id was another session's before.
///
/// ```text
///  63    56 55                      32 31                      0
/// ┌────────┬──────────────────────────┬─────────────────────────┐
/// │  slot  │ round, upper 24 bits     │         session         │  and the number
/// └────────┴──────────────────────────┴─────────────────────────┘
/// ```
/// Two words are passed in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    place: u64,
    pub(crate) number: RequestNumber,
}

impl RequestId {
    /// Names no request.
    pub const NONE: Self = Self {
        place: SessionId::NONE.0 as u64,
        number: 0,
    };

    #[inline]
    pub(crate) fn new(session: SessionHandle, slot: u8, number: RequestNumber) -> Self {
        Self {
            place: u64::from(slot) << 56 | session.to_word(),
            number,
        }
    }

    /// Whether this session is the one that the request came in on.
    #[inline]
    pub(crate) fn is_of(self, session: SessionHandle) -> bool {
        (self.place ^ session.to_word()) << 8 == 0
    }

    #[inline]
    pub(crate) fn slot(self) -> u8 {
        (self.place >> 56) as u8
    }

    /// The server session that the request came in on.
    #[inline]
    pub fn session(self) -> SessionId {
        SessionId(self.place as u32)
    }

    /// The request's number within its session.
    pub fn number(self) -> RequestNumber {
        self.number
    }
}
