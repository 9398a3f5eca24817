//! The memory of requests that are with workers.

/// Most bytes of requests queued for or held by one pool. One larger request is let in alone.
/// Without this limit, a queue of the largest requests would take all memory.
pub(super) const MAX_BYTES: usize = 512 << 20;
