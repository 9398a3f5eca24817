//! A deterministic fabric in virtual time that implements the packet I/O traits.
//!
//! The code that ships runs in it unchanged: an event loop takes a [`SimIo`] for its device and a
//! [`SimClock`] for its clock and does not notice. Rules and one seeded generator decide which
//! datagrams are lost, duplicated, reordered, corrupted or delayed, and which hosts pause, crash
//! and restart. A seed and a commit reproduce any run bit for bit.
//!
//! Tests of other crates drive their endpoints by hand on the same fabric: see [`stepped`].
//!
//! ```text
//!   harness: plan from a seed ────── hosts that run the protocol ── checkers
//!                                        │ SimIo, SimClock
//!   fabric:  links ── rules (faults) ── receive queues ── event queue ── trace
//! ```
//!
//! In some runs datagrams cross as Ethernet frames, which devices write and read with the packet
//! code of an AF_XDP device ([`starling_ethernet`]).
//!
//! Nothing that ships depends on this crate but the command line and its benchmarks.

#![forbid(unsafe_code)]

pub mod check;
pub mod cpu;
pub mod event_queue;
pub mod fabric;
mod faults;
mod frames;
pub mod harness;
mod host_id;
mod io;
pub mod net;
pub mod queueing;
pub mod rng;
pub mod scenario;
pub mod stepped;
mod threads;
pub mod trace;
mod workers;

pub use cpu::{CpuModel, Work};
pub use fabric::{
    Counters, Departure, DepartureHook, Fabric, FabricConfig, Fault, FrameCounts, HostId,
    LinkConfig, ReceiveLimits, Rule, SharedFabric, Step, Treatment,
};
pub use io::{SimClock, SimIo, SimRx, SimTx};
pub use net::Framing;
