//! Streams made of unary calls: the state machines of both ends, without I/O, time or threads.
//!
//! A stream is a series of calls of one method, with a [`StreamPosition`] in each message. Items of the
//! client travel in requests, items of the server in responses. The server holds the client's last request
//! until it has something to say, so that it can speak at any time:
//!
//! ```text
//!  client                                   server
//!  push item 1 ── request 0: 1 ───────────▶ begins the handler
//!              ◀─ response 0: a, b ──────── the handler sent two items
//!              ── request 1 ──────────────▶ held
//!  push item 2 ── request 2: 2 ───────────▶ held, and
//!              ◀─ response 1 ────────────── says that request 2 has arrived
//!              ◀─ response 2: c, END, OK ── the handler returned
//! ```
//!
//! So an exchange of one item each way costs one call, and a stream at rest costs one held request. As long
//! as a stream is open, one of its requests is outstanding: if the client cancels it, dies or its deadline
//! passes, the server learns that as with any call, and so does the client of the server.
//!
//! - *Order*: messages of both directions are numbered. Calls may overtake each other; each end sorts them.
//! - *At most once*: each message is a call or its response, so the session protocol sees to that.
//! - *Bundling*: small items that are ready travel in one message. A client with a bundle on its way
//!   collects the next one meanwhile (Nagle's algorithm, RFC 896).
//! - *Backpressure*: an end sends while the bytes that the other end's reader has not taken are fewer than
//!   that end's window. Beyond it, items wait at the sender, and then the sender's user does. A reader takes
//!   whole messages, and goes through the items of one where they lie.
//! - *End*: the client's last request has END; so has the server's last response, with the status.
//!
//! PROTOCOL.md, section 9.5, is normative.
//!
//! [`StreamPosition`]: starling_call::StreamPosition

#![forbid(unsafe_code)]

mod client;
mod incoming;
mod item;
mod number;
mod outgoing;
mod queue;
mod server;

pub use client::{ClientEvent, ClientStream, StreamRequest, StreamResponse};
pub use item::{ItemError, ItemSlices, Items, LENGTH, put_item, set_length};
pub use outgoing::{Bundle, LentBundle};
pub use server::{Answer, Arrival, ServerStream, gone};

/// Bytes that the sender of items may have sent beyond what the reader has taken, unless the user sets
/// another number. Messages that wait for the reader take at most twice this, 120 KiB and one message, and
/// the reader has one. Of those beyond the window the users of this crate may take less
/// ([`ServerStream::is_within_window`]).
pub const DEFAULT_WINDOW: u32 = 256 << 10;

/// An end that has not heard from the other one yet assumes this window.
const FIRST_WINDOW: u32 = 64 << 10;

/// Bytes of items that wait to be sent, however large the other end says that its window is, and one item
/// more.
pub const MOST_WAITING: usize = DEFAULT_WINDOW as usize;

/// Small items are bundled up to so many bytes: with its headers, a bundle fits one packet of the devices
/// that have the largest ones.
pub const BUNDLE_BYTES: usize = 60 << 10;

/// A part of an item that is held by reference ends its bundle. A smaller one is copied instead.
pub const SMALL_TAIL: usize = 8 << 10;

/// A message with items counts as so many bytes more than they have, for what it costs its receiver.
const MESSAGE_BYTES: usize = 64;

/// Requests of a stream that a client has outstanding at most.
const MAX_OUTSTANDING: u32 = 16;

/// Requests that a client has the server hold at most.
pub const MAX_HELD: u8 = 4;

/// How far the numbers of messages may be ahead of the first one that is missing.
const MAX_AHEAD: u64 = 4 * MAX_OUTSTANDING as u64;

/// An end whose numbers are so far ahead of what the other one has received sends nothing more: a message may be lost,
/// and while it is sent again others come and go. But it says what it has received itself, see
/// [`ACKNOWLEDGE_AFTER`]: that takes less than 16 numbers more.
const MOST_AHEAD: u8 = 48;

/// An end that has received more messages than this since it last acknowledged them does so.
const ACKNOWLEDGE_AFTER: u8 = 24;

/// Why the other end broke the rules. The stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A number came twice, or is far ahead of the others.
    #[error("message {number} came twice, or {expected} is missing for long")]
    Number {
        /// Of the message.
        number: u64,
        /// The first one that has not arrived.
        expected: u64,
    },
    /// It sent more than the window allows.
    #[error("it sent {unread} bytes before they were read, beyond the window of {window}")]
    Window {
        /// Bytes.
        unread: usize,
        /// Bytes.
        window: u32,
    },
    /// It acknowledged messages that were not sent, or sent items after its end.
    #[error("it acknowledged what was not sent, or went on after its end")]
    Position,
}
