//! The key-value load: YCSB's workloads, and a model that checks every answer.
//!
//! ```text
//!             poll                  call, any system
//!   Load ───────────▶ Op, Ticket ────────────────────▶ server: Store
//!    │ Zipf, Workload                                     │
//!    │ Model          handle_*                            │
//!    ◀──────────────── Ticket, answer ◀───────────────────
//!    verdict, latency
//! ```
//!
//! [`load::Load`] does no I/O and reads no clock: a client, over Starling or over gRPC, takes the
//! next operation, makes the call, and hands the answer back. The operations are the same for the
//! same seed over all systems, if answers arrive in the same order. [`drive`] is the process around
//! it.
//!
//! The workloads follow "Benchmarking Cloud Serving Systems with YCSB" (SoCC'10), table 2.

pub mod drive;
pub mod load;
pub mod model;
pub mod random;
mod starling;
pub mod starling_roles;
pub mod workload;
pub mod zipf;

pub use drive::{KvClient, LoadProcess, RunFigures};
pub use load::{Load, Op, Ticket};
pub use model::{Model, WrongAnswer};
pub use workload::Workload;
