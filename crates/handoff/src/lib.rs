//! Handing items from one thread to workers and back, at the price of a cache line each way.
//!
//! ```text
//!  the thread that hands over                         workers
//!
//!            give ─▶ ┌ given: 8 slots, a line ──┐ ─▶ take ─▶ ItemGuard (reads and writes the item)
//!   Dispatcher             │          mailbox            │             │ dropped, by a return or a panic
//!       poll_returned ◀─ └ done:  8 slots, a line ──┘ ◀───────────┘
//! ```
//!
//! A queue with indices for head and tail moves three lines from core to core for an item: either
//! index and the slot. Here a slot says by itself whether it is full, no index is shared, and the
//! slots of a mailbox share a line; so a line moves once each way for up to eight items, with plain
//! stores on the side that hands over. That thread knows which slots are free, because whatever it
//! gives comes back to it: it never looks at one to find out.
//!
//! Any worker may take from any mailbox, so what is in that of one that blocks need not wait for it; when
//! they look into others' mailboxes is up to them. Workers without work sleep, and [`Sleepers`] has them
//! woken with no fence on the side that hands over.
//!
//! | module | holds |
//! |---|---|
//! | [`mailbox`] | the slots, and who owns an item at which time |
//! | [`sleepers`] | who sleeps, and how nobody sleeps through what was given to it |
//! | [`fences`] | the fence that is cheap for the one side and expensive for the other |

#![allow(unsafe_code)]
#![allow(rustdoc::private_intra_doc_links)]

mod fences;
#[cfg(all(loom, test))]
mod loom_model;
mod mailbox;
mod sleepers;

pub use mailbox::{Dispatcher, ItemGuard, Mailboxes, Returned, SLOTS, dispatcher};
pub use sleepers::Sleepers;

/// The atomics of the standard library, or loom's, which tries all that they may do.
mod sync {
    #[cfg(loom)]
    pub(crate) use loom::sync::{Arc, atomic};
    #[cfg(not(loom))]
    pub(crate) use std::sync::{Arc, atomic};
}
