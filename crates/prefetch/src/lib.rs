//! Hints to the processor that memory is needed soon.
//!
//! A cache miss costs about 100 ns. Code that knows early which memory it needs asks for all of it
//! at once; the misses overlap then. A prefetch is only a hint: it changes nothing but the time, it
//! never faults, and on processors without the instruction it does nothing.
//!
//! | function | fetches |
//! |---|---|
//! | [`prefetch`] | all cache lines of a value |
//! | [`prefetch_lines`] | the first cache lines of a value |
//! | [`prefetch_element`] | the first cache line of an element of a slice |
//!
//! Memory that a value refers to is not fetched. The shared-memory device also prefetches *to
//! write*, with an instruction that no other crate needs; that one stays in `io-shm`.

#![allow(unsafe_code)]

/// Bytes of a cache line.
const LINE: usize = 64;

/// Fetches all cache lines of `value`.
#[inline]
pub fn prefetch<T: ?Sized>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    for line in 0..(start.addr() % LINE + size_of_val(value)).div_ceil(LINE) {
        fetch_line(start.wrapping_add(line * LINE));
    }
}

/// Fetches the first `lines` cache lines of a `T`. A reference will do as `value`; a pointer may be
/// dangling, because nothing is read.
#[inline]
pub fn prefetch_lines<T>(value: *const T, lines: usize) {
    for line in 0..lines.min(size_of::<T>().div_ceil(LINE)) {
        fetch_line(value.cast::<u8>().wrapping_add(line * LINE));
    }
}

/// Fetches the first cache line of `slice[index]`, without a check of the bounds: an index that is
/// too large costs a useless fetch.
#[inline]
pub fn prefetch_element<T>(slice: &[T], index: usize) {
    fetch_line(slice.as_ptr().wrapping_add(index).cast());
}

#[inline(always)]
fn fetch_line(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint; it may be given any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[cfg(all(target_arch = "aarch64", not(any(loom, miri))))]
    // SAFETY: a prefetch is a hint; it may be given any address, and it changes no register.
    unsafe {
        std::arch::asm!(
            "prfm pldl1keep, [{address}]",
            address = in(reg) address,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(any(loom, miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_may_be_prefetched() {
        let values = [7_u64; 40];
        prefetch(&values);
        prefetch("");
        prefetch_lines(&raw const values, 3);
        prefetch_lines(std::ptr::null::<[u64; 40]>(), usize::MAX);
        prefetch_element(&values, 39);
        prefetch_element(&values, usize::MAX);
        assert_eq!(values, [7; 40]);
    }
}
