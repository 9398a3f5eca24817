//! The wire format: datagrams of frames. PROTOCOL.md is the normative text.
//!
//! ```text
//! datagram = preamble (8 bytes), frame, frame, ...
//!
//! preamble   0                                                     8
//!           ┌───────────────────────────────────────────────────────┐
//!           │ token                                                 │  of a session
//!           ├────────┬────────┬─────────────────────────────────────┤
//!           │ magic  │version │ zeros                               │  without a token: of a handshake, or a RESET
//!           └────────┴────────┴─────────────────────────────────────┘
//! frame      0        1        2                 4                8                16
//!           ┌────────┬────────┬─────────────────┬─────────────────┬───────────────┐
//!           │kind,flg│ slot   │ payload length  │ session         │ request number│ payload...
//!           └────────┴────────┴─────────────────┴─────────────────┴───────────────┘
//! ```
//!
//! All numbers are little-endian. `token` names the incarnation of the receiving endpoint to this sender:
//! datagrams for an earlier incarnation, and those that another host has forged, are recognised once for a whole
//! bundle. `session` is the receiver's own number.

mod frame;
mod pattern;
mod payload;
mod token;

pub use frame::{DatagramError, Frame, FrameError, may_leave_tail};
pub(crate) use frame::{
    Header, HeaderStart, Kind, flags, read_preamble, split_frame, split_frame_of,
    split_frame_with_tail,
};
pub use pattern::{PLAIN_REQUEST, Pattern};
pub(crate) use payload::{
    Accept, Challenge, Connect, CreditReturn, Fragment, Limit, Refuse, Reject, RequestForResponse,
    Reset, ResetReason,
};
pub(crate) use token::{Token, TokenKey, hash_address};

/// Bytes before the first frame of a datagram.
pub const PREAMBLE_BYTES: usize = 8;
/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 16;
/// Bytes that precede the data in the payload of a fragment.
pub const FRAGMENT_BYTES: usize = 8;
/// The version of the protocol that this crate speaks.
pub const VERSION: u8 = 3;
/// The smallest datagram that a path must carry.
pub const MIN_DATAGRAM: usize = 512;
/// The largest datagram that one frame can fill: the length of its payload has 16 bits.
pub(crate) const MAX_DATAGRAM: usize = PREAMBLE_BYTES + HEADER_BYTES + u16::MAX as usize;
