//! Copies of short slices, in pieces that a core can forward from its store buffer.

/// A copy of at most so many bytes calls no function.
pub(super) const SMALL_BYTES: usize = 64;

/// Copies the head of a frame, nearly always two words that were just put together. Word by word,
/// they come from registers or from the core's store buffer.
///
/// # Safety
/// `to` begins as many bytes of memory that nothing else refers to.
#[inline(always)]
pub(super) unsafe fn copy_head(to: *mut u8, from: &[u8]) {
    if let ([word, next], []) = from.as_chunks::<8>() {
        // SAFETY: there are sixteen bytes, by the caller.
        unsafe {
            to.cast::<[u8; 8]>().write(*word);
            to.add(8).cast::<[u8; 8]>().write(*next);
        }
    } else {
        // SAFETY: by the caller.
        unsafe { copy_small(to, from) }
    }
}

/// Copies a short slice without a call or a loop: its last bytes, then its first, in two pieces that
/// may overlap. The first piece is stored last, so a load soon after finds all its bytes in one
/// entry of the store buffer and need not wait for the cache.
///
/// # Safety
/// As of [`copy_head`].
#[inline(always)]
pub(super) unsafe fn copy_small(to: *mut u8, from: &[u8]) {
    // SAFETY: by the caller.
    unsafe {
        if from.len() > SMALL_BYTES {
            copy_large(to, from);
        } else if !(copy_ends::<32>(to, from)
            || copy_ends::<16>(to, from)
            || copy_ends::<8>(to, from)
            || copy_ends::<4>(to, from))
        {
            for (at, byte) in from.iter().enumerate() {
                to.add(at).write(*byte);
            }
        }
    }
}

/// A function of its own: otherwise the compiler turns this copy and those of constant size into
/// one call.
///
/// # Safety
/// As of [`copy_head`].
#[inline(never)]
pub(super) unsafe fn copy_large(to: *mut u8, from: &[u8]) {
    // SAFETY: by the caller.
    unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) }
}

/// Copies the last `N` bytes and the first `N`, if there are that many.
///
/// # Safety
/// As of [`copy_head`].
#[inline(always)]
unsafe fn copy_ends<const N: usize>(to: *mut u8, from: &[u8]) -> bool {
    let (Some(first), Some(last)) = (from.first_chunk::<N>(), from.last_chunk::<N>()) else {
        return false;
    };
    // SAFETY: there are at least `N` bytes, by the caller.
    unsafe {
        if from.len() > N {
            to.add(from.len() - N).cast::<[u8; N]>().write(*last);
        }
        to.cast::<[u8; N]>().write(*first);
    }
    true
}
