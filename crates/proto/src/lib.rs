//! The session protocol of Starling as a pure state machine.
//!
//! It is eRPC's protocol (Kalia et al., NSDI'19, sections 4 and 5), and what that paper leaves open:
//! selective acknowledgement, cumulative credit returns and requests for response, credits shared
//! by demand, a timeout that follows the round-trip time, session management in band, and failure
//! detection. PROTOCOL.md is the normative text.
//!
//! Nothing here touches a clock, a socket, a thread or a source of randomness: time, bytes, peers
//! and secrets are arguments, frames go to a [`FrameSink`]. So the same code runs over every
//! device, and in the simulator, where a seed reproduces a run bit for bit.
//!
//! # Four kinds of methods
//!
//! | kind | examples | effect |
//! |---|---|---|
//! | getters | `stats`, `session_counts`, `is_wanted`, `has_unsent`, `has_rest` | none |
//! | `handle_*` | `handle_datagram`, `handle_peer_gone`, `handle_overdue` | take in what happened |
//! | mutators | `connect`, `request`, `respond`, `cancel`, `close`, `flush` | do what the caller wants |
//! | `poll_*` | `poll_incoming`, `poll_event`, `poll_timeout` | give out what the caller must act on |
//!
//! # Order of calls in one turn of an event loop
//!
//! ```text
//!  now = clock                       once per turn
//!  caught_up, woken                  nothing had arrived; it has slept since
//!  is_overdue? handle_overdue        this endpoint was away for long
//!  for each event of the device:     handle_peer_gone, handle_peer_refused
//!  for each datagram:                handle_datagram, then poll_incoming until None;
//!                                      handlers run: respond, request, ...
//!  user work:                        request, respond, cancel, connect, close
//!  poll_event until None
//!  flush                             frames that were held back leave together
//!  (flush the device)
//!  sleep until poll_timeout at most
//! ```
//!
//! # Where to find what
//!
//! | question | file |
//! |---|---|
//! | What is on the wire? | `wire.rs` |
//! | How does a session open, close, get lost? | `client/lifecycle.rs`, `server/handshake.rs`, `server/teardown.rs` |
//! | What is sent again when an answer is lost? Where is a lost response asked for again? | `client/recovery.rs` |
//! | How do many slow requests run at once? | `client/group.rs` |
//! | What ends where requests of streams hold all slots? | `client/standstill.rs` |
//! | How is a dead server noticed? | `client/liveness.rs` |
//! | How are large messages cut up and put together? | `transfer.rs` |
//! | Who may send how much? | `server/credits.rs` |
//! | What is a sender of forged datagrams answered? | `answers.rs`, `cookie.rs` |
//! | Which client gives way when memory or sessions are used up? | `holdings.rs`, `origins.rs` |
//! | Which responses are kept, and which are forgotten first? | `server/retention.rs` |
//! | How is a congestion control added? | `congestion.rs` |
//! | Which timers are there? | `wheel.rs`, `client/timer.rs` |
//! | What does a person see of the sessions? | `session_report.rs` |
#![forbid(unsafe_code)]

mod absences;
mod answers;
mod blocked;
mod claims;
mod client;
mod cold_state;
mod config;
mod congestion;
mod cookie;
mod error;
mod high_water;
mod holdings;
mod ids;
mod incoming;
mod inline_message;
mod large_buffers;
mod msgbuf_pool;
mod origins;
mod peer;
mod protocol;
mod rtt;
mod server;
mod session_report;
mod shared;
mod sink;
mod slots;
mod stats;
mod table;
mod tail;
mod transfer;
mod wheel;
mod wire;

pub use claims::{Candidate, Claim, Claims};
pub use client::{SlotRoom, StreamPart};
pub use config::{Config, ConfigError, Congestion, Factors, Secrets};
pub use error::{
    Cancelled, ConnectError, DeviceRefusal, Event, NotMadeReason, Refusal, Rejection, RequestError,
    RequestNotMade, RespondReason, SessionError,
};
pub use high_water::HighWater;
pub use ids::{PeerId, Prefix, RequestId, RequestNumber, SessionId, Source, Tag};
pub use incoming::{Body, Incoming};
pub use large_buffers::LargeBuffers;
pub use origins::Origin;
pub use protocol::{Frames, Protocol, Upcoming};
pub use session_report::{ClientSessionReport, ServerSessionReport, SessionPage};
pub use sink::{FrameSink, SinkError};
pub use starling_msgbuf::Msgbuf;
pub use stats::{QueueLengths, Stats};
pub use tail::Tail;
pub use wire::{
    DatagramError, FRAGMENT_BYTES, Frame, FrameError, HEADER_BYTES, MIN_DATAGRAM, PLAIN_REQUEST,
    PREAMBLE_BYTES, Pattern, VERSION, may_leave_tail,
};
