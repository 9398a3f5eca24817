//! Faults of the network, and how datagrams are damaged.

mod rules;

pub use rules::{Fault, Rule};

pub(crate) use rules::{Corruption, Rules, checksum, flip_bits};
