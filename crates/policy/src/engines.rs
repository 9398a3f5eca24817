//! The engines, one file each: what it does, its settings, its state, its tests.

pub(crate) mod access_control;
pub(crate) mod circuit_breaker;
pub(crate) mod fault;
pub(crate) mod metrics;
pub(crate) mod null;
pub(crate) mod rate_limit;
pub(crate) mod retry;
pub(crate) mod small_first;
pub(crate) mod timeout;
pub(crate) mod tracing;

#[cfg(test)]
pub(crate) mod testing;
