//! Memory that was freed goes back to the system.
//!
//! glibc's allocator gives back what lies at the end of a heap, and blocks that it has mapped one by one, of which it
//! maps fewer the larger the ones are that it sees freed. So one block in use keeps all that lies below it.
//!
//! What glibc can be asked for is all but the end of the heaps of threads: there up to twice the largest mapped block
//! that was freed stays, and at most 64 MiB a heap.

use std::sync::atomic::{AtomicU32, Ordering};

/// How often it was asked for since the thread that does it began; 0: there is none.
static ASKED: AtomicU32 = AtomicU32::new(0);

/// Has the C library give all memory that is free to the system, in a thread of its own: that takes milliseconds,
/// and other threads that need the allocator itself wait. Does nothing without glibc. Memory of another allocator
/// (`#[global_allocator]`) stays as it is.
pub fn return_freed_memory() {
    if !cfg!(target_env = "gnu") || ASKED.fetch_add(1, Ordering::Relaxed) > 0 {
        return;
    }
    let thread = std::thread::Builder::new().name("starling-memory".to_owned());
    let thread = thread.spawn(|| {
        let mut asked = ASKED.load(Ordering::Relaxed);
        loop {
            trim();
            // What was freed meanwhile may lie where it has looked already.
            let end = ASKED.compare_exchange(asked, 0, Ordering::Relaxed, Ordering::Relaxed);
            match end {
                Ok(_) => return,
                Err(again) => asked = again,
            }
        }
    });
    if thread.is_err() {
        // A host that refuses a thread has other troubles. The next one that asks tries again.
        ASKED.store(0, Ordering::Relaxed);
    }
}

#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "the C library's allocator")]
fn trim() {
    // SAFETY: any thread may call it at any time: it takes the allocator's locks.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn trim() {}
