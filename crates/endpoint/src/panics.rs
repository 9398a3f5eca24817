//! What handlers panic with.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Drops what a handler panicked with. That is the handler's own type, whose `drop` may panic in
/// its turn, and this thread has others to serve: what comes of that is not dropped any more.
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
    fn what_panics_when_it_is_dropped_does_no_harm() {
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
