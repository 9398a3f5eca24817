//! The protocol between hosts, in virtual time: one test for each thing that PROTOCOL.md says.

mod claims;
mod congestion;
mod credits;
mod faults;
mod hostile;
mod memory;
mod names;
mod net;
mod ownership;
mod sessions;
mod timeouts;
mod transfer;
