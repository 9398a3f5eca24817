//! Asking the processor for memory ahead of need.
//!
//! A run with a million sessions has none of them in a cache, nor the hosts that they belong to:
//! an event would wait for one cache miss after the other. Which memory it is about is known when
//! the event is, though, and what is asked for ahead comes all at once.

use prefetch_index::prefetch_index;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Asks for all lines of `value` itself, not for what it refers to.
#[inline]
pub(crate) fn prefetch<T: ?Sized>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>().addr();
    // Any address is some way from any other: the memory is not looked at.
    let from: &[u8] = &[];
    let origin = from.as_ptr().addr();
    for line in 0..(start % LINE + size_of_val(value)).div_ceil(LINE) {
        prefetch_index(from, (start + line * LINE).wrapping_sub(origin));
    }
}
