//! An allocator for tests that counts what each thread uses.

#![allow(unsafe_code, reason = "a global allocator cannot be had without")]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

thread_local! {
    /// Bytes that this thread has allocated, less those that it has freed.
    static IN_USE: Cell<isize> = const { Cell::new(0) };
    /// The most of these since the last call of [`most_in_use`] began.
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// Bytes in use of this thread.
pub(crate) fn in_use() -> isize {
    IN_USE.get()
}

/// The most bytes that were in use at a time while `work` ran, beyond those before it; and its result.
pub(crate) fn most_in_use<T>(work: impl FnOnce() -> T) -> (isize, T) {
    let before = IN_USE.get();
    MOST.set(before);
    let done = work();
    (MOST.get() - before, done)
}

/// Counts the bytes that it passes on, for each thread.
pub(crate) struct Counting<A>(pub(crate) A);

fn add(bytes: isize) {
    IN_USE.set(IN_USE.get() + bytes);
    MOST.set(MOST.get().max(IN_USE.get()));
}

// SAFETY: every call goes unchanged to the inner allocator, which upholds the contract.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size().cast_signed());
        // SAFETY: the caller keeps the contract.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        add(-layout.size().cast_signed());
        // SAFETY: the caller keeps the contract.
        unsafe { self.0.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size.cast_signed() - layout.size().cast_signed());
        // SAFETY: the caller keeps the contract.
        unsafe { self.0.realloc(at, layout, size) }
    }
}
