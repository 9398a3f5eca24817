//! Handing items from one thread to workers and back, at the cost of one cache line each way.
//!
//! This crate must not know what the items are.
//!
//! ```text
//!  dispatch thread                                     workers
//!
//!              push ─▶ ┌ given: 8 slots, a line ─┐ ─▶ take ─▶ ItemGuard (reads, writes the item)
//!  Dispatcher          │         mailbox         │                │ dropped by a return or a panic
//!     poll_returned ◀─ └ done:  8 slots, a line ─┘ ◀──────────────┘
//! ```
//!
//! A queue with a head index and a tail index moves three lines from core to core for each item:
//! both indices and the slot. Here a slot itself says whether it is full, no index is shared, and
//! the slots of a mailbox share a line. So one line moves each way for up to eight items, with plain
//! stores in the dispatch thread. That thread knows which slots are free, because every item comes
//! back to it: it never reads a slot to find out.
//!
//! Any worker may take from any mailbox, so the items of a worker that blocks need not wait for it.
//! When a worker looks into the mailboxes of others is up to the worker. Workers without work sleep;
//! [`Sleepers`] lets the dispatch thread wake them without a fence.
//!
//! | module | holds |
//! |---|---|
//! | [`mailbox`] | the slots, and the owner of an item at each time |
//! | [`sleepers`] | which workers sleep, and how none sleeps while it has an item |
//! | [`fences`] | the fence that is cheap for one side and expensive for the other |

#![allow(unsafe_code)]
#![allow(rustdoc::private_intra_doc_links)]

mod fences;
#[cfg(all(loom, test))]
mod loom_model;
mod mailbox;
mod sleepers;

pub use mailbox::{Dispatcher, ItemGuard, Mailboxes, Returned, SLOTS, dispatcher};
pub use sleepers::Sleepers;

/// The atomics of the standard library, or loom's, which try all orders that are allowed.
mod sync {
    #[cfg(loom)]
    pub(crate) use loom::sync::{Arc, atomic};
    #[cfg(not(loom))]
    pub(crate) use std::sync::{Arc, atomic};
}
