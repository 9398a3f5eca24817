//! The protocol between hosts, in virtual time: a test for each statement of PROTOCOL.md.

mod asks;
mod claims;
mod congestion;
mod credits;
mod displaced;
mod draining;
mod faults;
mod groups;
mod hostile;
mod ids;
mod kept;
mod late;
mod memory;
mod net;
mod ownership;
mod repeats;
mod reports;
mod sessions;
mod shares;
mod standstill;
mod tailed;
mod timeouts;
mod transfer;
