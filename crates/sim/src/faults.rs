//! Faults of the network, and how datagrams are damaged.

mod departure;
mod rules;

pub use departure::{Departure, DepartureHook, Treatment};
pub use rules::{Fault, Rule};

pub(crate) use rules::{Corruption, Rules, checksum, flip_bits};
