//! The memory of requests that are with workers.

/// Requests that are with the workers of one pool, or wait for them, take at most this much memory,
/// unless it is a single one: a queue of the largest requests would take all memory.
pub(super) const MAX_BYTES: usize = 512 << 20;
