//! Why sessions and requests end: typed, and naming the side at fault.

use crate::wire::{MIN_DATAGRAM, VERSION};
use crate::{Msgbuf, PeerId, RequestId, RequestNumber, SessionId, Tag};

/// Why a server did not open a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// All places in its session table are taken.
    #[error(
        "the server is full: it has its limit of {limit} sessions; \
         raise max_sessions there, or close sessions"
    )]
    SessionLimit {
        /// Its limit.
        limit: u32,
    },
    /// Its receive queue has no credit left to give.
    #[error(
        "the server is full: all {limit} credits of its receive queue are granted; \
         raise its receive buffer or close idle sessions"
    )]
    CreditLimit {
        /// Credits in all.
        limit: u32,
    },
    /// It speaks another version of the protocol.
    #[error(
        "the server speaks protocol version {version}, this client version {VERSION}: \
         use one release on both ends"
    )]
    Version {
        /// Its version.
        version: u32,
    },
    /// It is shutting down.
    #[error("the server is shutting down: wait for it to come back, or go elsewhere")]
    ShuttingDown,
    /// A parameter of the connect makes no sense to it.
    #[error("the server finds the connect malformed: use one release on both ends")]
    Malformed,
    /// The path carries only datagrams that are too small.
    #[error(
        "the path takes datagrams of {bytes} bytes, and sessions need {MIN_DATAGRAM}; \
         raise the MTU of what is on it"
    )]
    NarrowPath {
        /// The largest datagram that the path takes.
        bytes: u32,
    },
    /// This client has as many sessions as the server allows one client.
    #[error(
        "the server allows a client {limit} sessions, and this one has them: close sessions, share a \
         channel, or raise max_sessions_per_client there"
    )]
    ClientLimit {
        /// The server's limit.
        limit: u32,
    },
    /// A later version's reason.
    #[error(
        "the server refused for a reason that this release does not know, code {0}: update this end"
    )]
    Other(u32),
}

impl Refusal {
    pub(crate) fn to_wire(self) -> (u32, u32) {
        match self {
            Self::SessionLimit { limit } => (1, limit),
            Self::CreditLimit { limit } => (2, limit),
            Self::Version { version } => (3, version),
            Self::ShuttingDown => (4, 0),
            Self::Malformed => (5, 0),
            Self::NarrowPath { bytes } => (6, bytes),
            Self::ClientLimit { limit } => (7, limit),
            Self::Other(code) => (code, 0),
        }
    }

    pub(crate) fn from_wire(code: u32, detail: u32) -> Self {
        match code {
            1 => Self::SessionLimit { limit: detail },
            2 => Self::CreditLimit { limit: detail },
            3 => Self::Version { version: detail },
            4 => Self::ShuttingDown,
            5 => Self::Malformed,
            6 => Self::NarrowPath { bytes: detail },
            7 => Self::ClientLimit { limit: detail },
            other => Self::Other(other),
        }
    }
}

/// Why a server will not answer a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The message is larger than the server accepts.
    #[error("the request is larger than the server accepts: send less, or raise max_message there")]
    TooLarge,
    /// No memory to reassemble it now. Nothing was run: it is safe to try again.
    #[error(
        "the server has no memory for large requests now; the request was not run: \
         try again later, raise reassembly_bytes there, or send less at once"
    )]
    NoMemory,
    /// The request may have run, but its response is no longer kept.
    #[error(
        "the request may have run; the server dropped its response after 10 s or for lack of \
         memory: raise response_retention_ns or retained_bytes there"
    )]
    ResponseExpired,
    /// The server is shutting down. Nothing was run: it is safe to try elsewhere.
    #[error("the server is shutting down; the request was not run: go elsewhere")]
    Draining,
    /// The fragments contradict each other.
    #[error("the server finds the request's fragments malformed: use one release on both ends")]
    Malformed,
    /// A later version's reason.
    #[error(
        "the server rejected the request for a reason that this release does not know, code {0}: \
         update this end"
    )]
    Other(u32),
}

impl Rejection {
    pub(crate) fn to_wire(self) -> u32 {
        match self {
            Self::TooLarge => 1,
            Self::NoMemory => 2,
            Self::ResponseExpired => 3,
            Self::Malformed => 4,
            Self::Draining => 5,
            Self::Other(code) => code,
        }
    }

    pub(crate) fn from_wire(code: u32) -> Self {
        match code {
            1 => Self::TooLarge,
            2 => Self::NoMemory,
            3 => Self::ResponseExpired,
            4 => Self::Malformed,
            5 => Self::Draining,
            other => Self::Other(other),
        }
    }
}

/// Why a server's device refused this end before any session could be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceRefusal {
    /// It has its limit of peers.
    #[error("the server has as many peers as it may: end some of its clients or raise max_peers")]
    Full,
    /// It accepts no process of this user.
    #[error("the server is another user's: run both as one user, or have it allow other users")]
    NotPermitted,
    /// It is of another version.
    #[error("the server has another version of the device: use one release on both ends")]
    OtherVersion,
    /// It serves itself, and this end wants another server through it.
    #[error(
        "what has the name is a server and no service that reaches others: run `starling service`, or check \
         the service's name"
    )]
    TakesNoTargets,
    /// It does not accept the memory of this end.
    #[error(
        "the server does not accept rings of this size: lower ring_bytes on this end, \
         or raise max_accepted_ring_bytes there"
    )]
    Unacceptable,
    /// The owner of the address does not answer as such a device does.
    #[error("what has the address does not answer as a server does: check the address")]
    Nonsense,
}

/// Why a session failed or ended. Requests that were outstanding on it may or may not have run,
/// unless the session never opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The server refused the session.
    #[error("session refused: {0}")]
    Refused(#[from] Refusal),
    /// The server's device refused this end.
    #[error(transparent)]
    NotAdmitted(#[from] DeviceRefusal),
    /// Nothing answered the connect in time.
    #[error(
        "nothing answered the connect in time: is a server running there, and does no handler block it?"
    )]
    ConnectTimeout,
    /// The network reports that nothing listens there, or the peer's process has ended.
    #[error(
        "nothing listens at the peer's address (any more): start the server, or check the address"
    )]
    Unreachable,
    /// The peer stopped answering.
    #[error("the peer stopped answering: its host or process died, is stopped, or is cut off")]
    PeerSilent,
    /// The peer is another incarnation now.
    #[error(
        "the peer was restarted, or knows this end by another address; it does not know what ran before: connect again"
    )]
    PeerRestarted,
    /// The peer announced that it is shut down.
    #[error("the peer was shut down: wait for it to come back, or go elsewhere")]
    PeerLeft,
    /// The peer dropped the session: this end was silent or cut off for too long, or had many and another client few.
    #[error(
        "the peer dropped the session: it heard nothing from this end for long, or has so many sessions that this one \
         gave way to another client's; connect again"
    )]
    PeerDropped,
    /// This end closed the session.
    #[error("this end closed the session: it was closed or dropped here, or this end shut down")]
    Closed,
}

/// Why a request ended without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Its session ended.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The server will not answer it.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// The response is larger than this endpoint takes.
    #[error("the response is larger than this end takes: ask for less, or raise max_message here")]
    ResponseTooLarge,
    /// No memory to reassemble the response now.
    #[error(
        "this end has no memory to reassemble the response now: \
         raise reassembly_bytes here, or ask for less at once"
    )]
    NoMemory,
    /// It was one of a stream, and requests of streams held all slots while others waited.
    #[error(
        "requests of streams hold all slots of the session, and it gets no more: end some streams, or raise \
         the server's max_sessions_per_client or max_sessions, or this end's group_sessions or slots"
    )]
    NoSlot,
}

/// Why [`crate::Protocol::request`] did not make a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotMadeReason {
    /// The session is over, or never was.
    #[error("the session is over: connect again")]
    UnknownSession,
    /// The server is shutting down, and takes only what continues something that it has begun.
    #[error("the server is shutting down: go elsewhere, or wait for it to come back")]
    Draining,
    /// The queue behind the slots is full: the caller is faster than the server.
    #[error(
        "the session's queue is full, the server is slower than its caller: \
         send less often, or raise max_queued on this end"
    )]
    QueueFull,
    /// Larger than one of the two ends takes.
    #[error(
        "the request has {len} bytes, and the smaller max_message of the two ends is {max}: \
         send less, or raise max_message on both"
    )]
    TooLarge {
        /// The message.
        len: usize,
        /// The limit.
        max: usize,
    },
}

/// A request that was not made, with its buffer. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct RequestNotMade {
    /// The request's buffer, back.
    pub message: Msgbuf,
    /// Why.
    pub reason: NotMadeReason,
}

/// Why [`crate::Protocol::respond`] sent nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RespondReason {
    /// The client is gone, cancelled the request, or was answered already.
    #[error("no client waits for this response: it is gone, cancelled the request, or has it")]
    Stale,
    /// Larger than one of the two ends takes.
    #[error(
        "the response has {len} bytes, and the smaller max_message of the two ends is {max}: \
         answer with less, or raise max_message on both"
    )]
    TooLarge {
        /// The message.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The responses that are kept for this client, which still fetches them, fill the memory.
    #[error(
        "the server has no memory to keep a response of {len} bytes: it keeps others that this client \
         still fetches; ask for less at once, raise retained_bytes there, or answer with less"
    )]
    NoMemory {
        /// The message.
        len: usize,
    },
}

/// Why [`crate::Protocol::connect`] began nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// This endpoint's own session table is full.
    #[error(
        "this endpoint has its limit of {0} client sessions: \
         raise Config::max_sessions, or close sessions"
    )]
    SessionLimit(usize),
    /// The path is too narrow for the protocol.
    #[error(
        "the path takes datagrams of {0} bytes, and sessions need {MIN_DATAGRAM}; \
         raise the MTU of what is on it"
    )]
    PathTooNarrow(usize),
}

/// A request that its caller cancelled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancelled {
    /// The caller's own identifier.
    pub tag: Tag,
    /// Its buffer, back.
    pub request: Msgbuf,
    /// Whether all of it was sent at least once, as in [`Event::RequestFailed`].
    pub may_have_run: bool,
}

/// An event other than a request or a response. Given out by [`crate::Protocol::poll_event`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The session is open. Requests that were queued on it are sent.
    Connected {
        /// Which.
        session: SessionId,
    },
    /// The server of the session shuts down: it takes no new requests, but for those that continue something
    /// ([`Prefix::continues`](crate::Prefix::continues)).
    SessionDraining {
        /// Which.
        session: SessionId,
    },
    /// The session is over, and so is its handle. Comes after the failures of its requests.
    SessionEnded {
        /// Which.
        session: SessionId,
        /// Why.
        error: SessionError,
    },
    /// A request ended without a response.
    RequestFailed {
        /// Its session.
        session: SessionId,
        /// Its number.
        number: RequestNumber,
        /// The caller's own identifier.
        tag: Tag,
        /// Its buffer, back.
        request: Msgbuf,
        /// Why.
        error: RequestError,
        /// Whether all of it was sent at least once. If not, the server cannot have run it, and it
        /// may be made again elsewhere.
        may_have_run: bool,
    },
    /// The client of a request that was handed over, and is not answered yet, is gone, has closed
    /// the session or has used the slot again: no client waits for the response.
    RequestAbandoned {
        /// Which.
        id: RequestId,
    },
    /// For long, no request of a session has got a slot, though some wait: it gets no more slots, and the server
    /// executes the requests in all of them. If they are those of streams, [`crate::Protocol::end_streams`] lets
    /// others go on.
    Standstill {
        /// Which.
        session: SessionId,
    },
    /// No session of either kind refers to the peer any more, or none does although it has sent something: the
    /// device can remove the peer, after the next flush of the device.
    PeerReleased {
        /// Which.
        peer: PeerId,
    },
}
