//! A handler's panic becomes a status here: INTERNAL.
//!
//! ```text
//!  inline handler ── Endpoint::handle_burst catches ─▶ Tables::recover ─┐
//!  worker handler ── Job::run catches ──▶ JobEnd::Panicked ─────────────┼─▶ status()
//!  future ────────── its reply is dropped while it panics ──────────────┘
//!  continuation ──── Endpoint::handle_burst catches ─▶ goes on unwinding after the turn
//! ```
//!
//! A panic of a continuation is the caller's own fault. So the caller gets the panic, but only at
//! the end of the turn: the rest of the burst would be lost otherwise.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use starling_call::Status;

/// The status of a request whose handler panicked.
#[cold]
pub(crate) fn status() -> Status {
    Status::internal(
        "the server's handler, or an interceptor before it, panicked: see the server's log",
    )
}

/// Whose code runs, and so is to blame for a panic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Running {
    /// The endpoint's own.
    #[default]
    Endpoint,
    /// An inline handler.
    Handler,
    /// A continuation.
    Continuation,
}

/// The status of a request whose handler panicked with this, where the endpoint does not see it.
#[cold]
pub fn status_of_panic(panic: Box<dyn Any + Send>) -> Status {
    discard(panic);
    status()
}

/// Drops what a handler panicked with. It is of the handler's own type, whose `drop` may panic as
/// well, and this thread has other requests to serve: what that second panic carries is leaked.
#[cold]
pub(crate) fn discard(panic: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(another);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_value_that_panics_when_it_is_dropped_does_no_harm() {
        struct Bomb(u32);
        impl Drop for Bomb {
            fn drop(&mut self) {
                if let Some(left) = self.0.checked_sub(1) {
                    std::panic::panic_any(Bomb(left));
                }
            }
        }
        discard(Box::new("a plain one"));
        discard(Box::new(Bomb(3)));
    }
}
