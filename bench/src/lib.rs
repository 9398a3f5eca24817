//! Benchmarks of Starling beside its floors and its peers.
//!
//! A *suite* answers one question (how long does a call take, how many go through in a second) for
//! several [`Contestant`]s: Starling on each of its planes, the *floor* of each plane (the least
//! that any program could pay for the same exchange) and peers that people use today. All of them
//! run in the same call, one after the other, in rounds (A B C, A B C, ...), because the machines
//! that this runs on change their speed from one second to the next; a figure is the median of its
//! rounds, and only figures of one run are compared.
//!
//! ```text
//!  this process, core 0                              child process, core 1
//!  ┌───────────────────────┐   start: role, args     ┌──────────────────────┐
//!  │ contest: rounds       │ ──────────────────────▶ │ the same program,    │
//!  │   contestant: client  │ ◀─── "ready ADDRESS" ── │ `bench-server ROLE`  │
//!  │                       │ ◀═══ the exchange ════▶ │                      │
//!  └───────────────────────┘   stdin closes: exit    └──────────────────────┘
//! ```
//!
//! Servers are processes of their own, as they are in real use: allocator, scheduler and page
//! tables are not shared with the client, and what a server burns is charged to it. The program
//! starts *itself* as the server, so that there is one binary to build and both ends are always
//! the same version. The floors of shared memory are the exception: two threads over one
//! allocation, since mapping memory between processes takes `unsafe` code, which this package has
//! none of, and costs the exchange itself nothing.
//!
//! A server lives for one contestant's turn in one round only. Nothing that another contestant
//! left behind, a spinning thread or a full socket, is there to disturb it.

pub mod breakdown;
pub mod contest;
pub mod endpoint;
pub mod error;
pub mod floor;
pub mod kv;
pub mod latency;
pub mod pin;
pub mod process;
pub mod row;
pub mod services;
mod slo;
pub mod suite;
pub mod table;
pub mod veth;

pub use contest::{Contestant, Context, Sample};
pub use error::BenchError;
pub use row::{Metric, Row};
pub use suite::Suite;
