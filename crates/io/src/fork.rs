//! Notices that this process is a fork of the one that made something.
//!
//! The child of a fork has its parent's memory and files, and one of its threads. A value that has
//! threads of its own, or shares a socket with the parent, must not be used there.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);

/// How many forks are between this process and the first one that asked. A value that was made under
/// another number belongs to an ancestor of this process. Costs two loads.
#[inline]
pub fn forks() -> u32 {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(register);
    FORKS.load(Ordering::Relaxed)
}

extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

#[allow(unsafe_code, reason = "the C library's registration of a function")]
fn register() {
    // SAFETY: `count` may run in a child of any thread at any time: it only adds to an atomic.
    // If the C library has no memory for it, forks are not noticed.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(count)) };
}
