//! Faults of the network, and how datagrams are damaged.

mod interceptor;
mod rules;

pub use interceptor::{Departure, Interceptor, Treatment};
pub use rules::{Fault, Rule};

pub(crate) use rules::{Corruption, Rules, checksum, flip_bits};
