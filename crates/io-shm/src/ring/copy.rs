//! Copies of short slices, in pieces that a core can forward from its store buffer.

/// Copies the head of a frame, nearly always two words that were just put together. Word by word,
/// they come from registers or from the core's store buffer.
#[inline(always)]
pub(super) fn copy_head(to: &mut [u8], from: &[u8]) {
    match (to.as_chunks_mut::<8>(), from.as_chunks::<8>()) {
        (([to, to_next], []), ([word, next], [])) => (*to, *to_next) = (*word, *next),
        _ => copy_small(to, from),
    }
}

/// Copies a short slice without a call or a loop: its last bytes, then its first, in two pieces that
/// may overlap. The first piece is stored last, so a load soon after finds all its bytes in one
/// entry of the store buffer and need not wait for the cache.
#[inline(always)]
pub(super) fn copy_small(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len());
    if from.len() > 64 {
        copy_large(to, from);
    } else if !(copy_ends::<32>(to, from)
        || copy_ends::<16>(to, from)
        || copy_ends::<8>(to, from)
        || copy_ends::<4>(to, from))
    {
        for (to, from) in to.iter_mut().zip(from) {
            *to = *from;
        }
    }
}

/// A function of its own: otherwise the compiler turns this copy and those of constant size into
/// one call.
#[inline(never)]
fn copy_large(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

/// Copies the last `N` bytes and the first `N`, if there are that many.
#[inline(always)]
fn copy_ends<const N: usize>(to: &mut [u8], from: &[u8]) -> bool {
    let length = from.len();
    if length < N {
        return false;
    }
    if length > N {
        to[length - N..].copy_from_slice(&from[length - N..]);
    }
    to[..N].copy_from_slice(&from[..N]);
    true
}
