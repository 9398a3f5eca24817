//! The harness: hosts that run the protocol, or whole endpoints, in a fabric; the plan of a run,
//! which a seed draws; the checkers around them.
//!
//! ```text
//!  seed ──▶ RunPlan ──▶ run ──▶ Report          all promises held
//!                         │
//!                         └────▶ Failure ──▶ shrink ──▶ smaller RunPlan, same promise broken
//! ```
//!
//! A run has four phases. *Load*: calls, cancels, closes, and all the faults, until these have
//! healed and every call has ended within its bound. *Probe*: every channel must get one answer,
//! through a new session if the old one is dead, so nothing stays stuck. *Keep*: no calls; servers
//! must forget the sessions that their clients have given up. *Close*: all sessions are closed, and
//! after a while no host may hold anything.

mod branches;
mod endpoints;
mod failure;
mod host_set;
mod hostile;
mod plan;
mod planted_bug;
mod protocols;
mod shrink;
mod simulation;

pub use branches::Branches;
pub use failure::Failure;
pub use plan::{
    Attack, AttackPlan, CallPlan, ChannelPlan, FlowPlan, HandlerReads, HostFault, HostFaultKind,
    InjectedDatagram, Position, RunPlan, Runs, SessionClose, StreamPlan, Subset,
};
pub use planted_bug::PlantedBug;
pub use protocols::Outcomes;
pub use shrink::shrink;
pub use simulation::{Report, run, run_with_bug};

/// Nanoseconds in a microsecond.
pub(crate) const US: u64 = 1_000;
/// Nanoseconds in a millisecond.
pub(crate) const MS: u64 = 1_000_000;
