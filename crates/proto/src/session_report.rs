//! What a person who looks at a running endpoint sees of its sessions.

use crate::{PeerId, SessionId};

/// Places of a table that one look goes through, at most: a look must not hold up the endpoint.
const LOOKS: usize = 4096;

/// The state of a session that this endpoint has opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSessionReport {
    /// The session.
    pub id: SessionId,
    /// The server.
    pub peer: PeerId,
    /// `connecting`, `open` or `closing`.
    pub state: &'static str,
    /// The session whose requests it carries, too: that one has grown to a group. `None` if it has a queue of
    /// its own.
    pub first: Option<SessionId>,
    /// The server has to answer before more is sent: it may have dropped the session.
    pub is_suspected: bool,
    /// Requests that may be outstanding.
    pub slots: usize,
    /// Those that are.
    pub busy_slots: usize,
    /// Requests that wait for a slot.
    pub queued: usize,
    /// Packets that may be outstanding.
    pub credits: u16,
    /// Those that are.
    pub credits_in_use: u16,
    /// Fragments that the congestion control lets be in flight: the congestion window. `None` if it does not
    /// limit the session.
    pub window: Option<u16>,
    /// Bits per second that it lets be sent. `None` if it does not limit the session.
    pub rate_bps: Option<u64>,
    /// The smoothed round-trip time in nanoseconds; 0 before the first sample.
    pub rtt_ns: u64,
}

/// The state of a session that a client has opened here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSessionReport {
    /// The session.
    pub id: SessionId,
    /// The client.
    pub peer: PeerId,
    /// Requests that the client may have outstanding.
    pub slots: usize,
    /// Those that handlers have not answered.
    pub executing: usize,
    /// Those that are arriving.
    pub receiving: usize,
    /// Credits that the client has.
    pub credits: u16,
    /// Credits that it said it can use.
    pub credits_wanted: u16,
    /// How long ago it last sent a request, in nanoseconds.
    pub idle_ns: u64,
}

/// Some sessions of a table, and the place at which the next ones are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionPage<T> {
    /// In the order of their places.
    pub sessions: Vec<T>,
    /// Where to go on. `None`: these were the last.
    pub next: Option<usize>,
}

/// The sessions that `at` finds at places.
pub(crate) fn page<T>(
    from: usize,
    most: usize,
    places: usize,
    mut at: impl FnMut(usize) -> Option<T>,
) -> SessionPage<T> {
    let mut sessions = Vec::new();
    let mut place = from;
    while place < places && place - from < LOOKS && sessions.len() < most {
        sessions.extend(at(place));
        place += 1;
    }
    SessionPage {
        sessions,
        next: (place < places).then_some(place),
    }
}
