//! Checkers of the promises that hold in every run, whatever the network does.
//!
//! The harness feeds each checker from outside the protocol: with the messages that the application
//! handed in and those that came out. The checker returns a [`Violation`] as soon as a
//! promise is broken. Each has tests with a broken trace, because a checker that never failed
//! proves nothing.
//!
//! | checker | promise |
//! |---|---|
//! | [`AtMostOnce`] | a request's handler runs at most once, over retransmissions, replays, restarts |
//! | [`Calls`] | every call ends, once, within its bound; nothing ends that was not begun |
//! | [`content`] | a handler sees the request that was sent, a caller the response that was made |
//! | [`Buffers`] | a buffer handed in comes back exactly once, unchanged |
//! | [`Credits`], [`granted_within`] | no more credits are in use than were given, none without a request; a server gives no more than it has |
//! | [`fair`] | sessions that want the same get the same |
//! | [`frames`](frames()) | a device reads frames as they were sent, and takes no damaged one |
//! | [`memory_within`] | messages that are reassembled and responses that are kept stay within their memory |
//! | [`Queues`], [`no_overflow`] | the protocol's queues have bounds, and a receive queue never fills without a fault |
//! | [`Streams`] | items of a stream come in order, each once; both ends of it end, in time |
//! | [`Leftovers`] | after the last close nothing is left |

mod at_most_once;
mod buffers;
mod calls;
pub mod content;
mod credits;
mod fair;
mod frames;
mod leftovers;
mod memory;
mod queues;
mod streams;

use std::any::Any;
use std::fmt;

pub use at_most_once::AtMostOnce;
pub use buffers::Buffers;
pub use calls::{Calls, Tag};
pub use credits::{Credits, Grants, granted_within};
pub use fair::{fair, jain};
pub use frames::frames;
pub use leftovers::Leftovers;
pub use memory::memory_within;
pub use queues::{Queues, no_overflow};
pub use streams::{Flow, StreamBounds, StreamId, Streams};

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which checker found it.
    pub checker: &'static str,
    /// The finding, in words.
    pub detail: String,
}

impl Violation {
    /// A finding of `checker`.
    pub fn new(checker: &'static str, detail: impl Into<String>) -> Self {
        Self {
            checker,
            detail: detail.into(),
        }
    }

    /// The payload of a run that unwound: a violation, or the message of a panic.
    pub(crate) fn of_panic(payload: Box<dyn Any + Send>) -> Self {
        let text = match payload.downcast::<Self>() {
            Ok(violation) => return *violation,
            Err(payload) => match payload.downcast::<String>() {
                Ok(text) => *text,
                Err(payload) => payload.downcast::<&str>().map_or_else(
                    |_| "a panic without words".to_owned(),
                    |text| (*text).to_owned(),
                ),
            },
        };
        Self::new("no panic", text)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.checker, self.detail)
    }
}

impl std::error::Error for Violation {}
