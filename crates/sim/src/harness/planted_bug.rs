//! Planted bugs, one per kind of promise: a mutation test makes random runs with each until a
//! checker finds it. They act at the protocol's interface, so no shipped code has a switch for them. Most
//! alter what the protocol receives, so that it misbehaves by itself; the others alter its output.

use starling_proto::HEADER_BYTES;

use crate::check::content;
use crate::frames::{REQUEST, frames};

/// A bug to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// A server mistakes a copy of a request for a new one, and hands it to its handler.
    HandlerTwice,
    /// A worker runs a request that another one has claimed.
    ClaimIgnored,
    /// Nothing is ever sent twice: the sender's second copy of a frame is thrown away.
    LostRetransmission,
    /// A request's buffer is not given back.
    LeakedBuffer,
    /// A response reaches the wrong call.
    ExchangedResponse,
    /// A response is cut short by a byte.
    TruncatedResponse,
    /// A client uses one credit more than its server has given it.
    CreditOffByOne,
    /// A session that is closed is forgotten rather than closed.
    LeakedSession,
    /// A session ends without an event.
    SilentEnd,
    /// A failure is reported twice.
    DoubleFailure,
    /// A call is made without the deadline that it has.
    ForgottenDeadline,
    /// A device takes frames whose UDP checksum is wrong.
    ChecksumIgnored,
    /// A message of a stream brings its items twice.
    StreamItemTwice,
    /// Two items of a stream change places.
    StreamItemsSwapped,
    /// A stream's last response does not say that it is the last.
    StreamEndForgotten,
    /// A server's stream goes on when a request that it holds is cancelled.
    StreamCancelIgnored,
    /// A thread that waits for a call is not woken when it is over.
    ForgottenWake,
}

impl PlantedBug {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::HandlerTwice,
        Self::ClaimIgnored,
        Self::LostRetransmission,
        Self::LeakedBuffer,
        Self::ExchangedResponse,
        Self::TruncatedResponse,
        Self::CreditOffByOne,
        Self::LeakedSession,
        Self::SilentEnd,
        Self::DoubleFailure,
        Self::ForgottenDeadline,
        Self::ChecksumIgnored,
        Self::StreamItemTwice,
        Self::StreamItemsSwapped,
        Self::StreamEndForgotten,
        Self::StreamCancelIgnored,
        Self::ForgottenWake,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::HandlerTwice => "handler-twice",
            Self::ClaimIgnored => "claim-ignored",
            Self::LostRetransmission => "lost-retransmission",
            Self::LeakedBuffer => "leaked-buffer",
            Self::ExchangedResponse => "exchanged-response",
            Self::TruncatedResponse => "truncated-response",
            Self::CreditOffByOne => "credit-off-by-one",
            Self::LeakedSession => "leaked-session",
            Self::SilentEnd => "silent-end",
            Self::DoubleFailure => "double-failure",
            Self::ForgottenDeadline => "forgotten-deadline",
            Self::ChecksumIgnored => "checksum-ignored",
            Self::StreamItemTwice => "stream-item-twice",
            Self::StreamItemsSwapped => "stream-items-swapped",
            Self::StreamEndForgotten => "stream-end-forgotten",
            Self::StreamCancelIgnored => "stream-cancel-ignored",
            Self::ForgottenWake => "forgotten-wake",
        }
    }

    /// The checker that has to find it, by the name it gives itself.
    pub fn caught_by(self) -> &'static str {
        match self {
            Self::HandlerTwice | Self::ClaimIgnored => "at most once",
            Self::LostRetransmission | Self::StreamEndForgotten => "no failure without a cause",
            Self::DoubleFailure | Self::ForgottenDeadline => "every call ends",
            Self::LeakedBuffer => "buffers",
            Self::ExchangedResponse | Self::TruncatedResponse => "content",
            Self::CreditOffByOne => "credits",
            Self::LeakedSession => "nothing remains",
            Self::SilentEnd => "nothing stays stuck",
            Self::ChecksumIgnored => "frames",
            Self::StreamItemTwice | Self::StreamItemsSwapped => "streams",
            Self::StreamCancelIgnored => "every stream ends",
            Self::ForgottenWake => "hand-overs",
        }
    }
}

/// Alters a datagram so that its client believes to have one credit more than it was given, if it
/// has asked for more.
pub(super) fn give_one_more(datagram: &mut [u8], asked: u16) {
    let given = frames(datagram).filter_map(|frame| frame.credits());
    let less = given.filter(|&(_, credits)| credits < u32::from(asked));
    for (at, _) in less.collect::<Vec<_>>() {
        // There are no more than 64.
        datagram[at] += 1;
    }
}

/// A datagram's first request, if it is one of a packet that can be told from others, with a number
/// that its session has not come to.
pub(super) fn as_new_request(datagram: &[u8]) -> Option<Vec<u8>> {
    let first = frames(datagram).next()?;
    if first.kind != REQUEST || first.payload.len() < content::HEADER {
        return None;
    }
    let mut copy = datagram[..first.at + HEADER_BYTES + first.payload.len()].to_vec();
    let number = first.number.checked_add(1 << 32)?;
    copy[first.at + 8..first.at + HEADER_BYTES].copy_from_slice(&number.to_le_bytes());
    Some(copy)
}
