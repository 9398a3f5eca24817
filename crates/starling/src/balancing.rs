//! Channels to several servers, their *backends*: which one gets a call, and what keeps them connected.
//!
//! ```text
//!  resolver ─▶ control ─▶ Snapshot: backends and a picker, made anew at each change
//!                ▲  ▲           │
//!     states,    │  │           ▼
//!     health ────┘  └── queue ◀─ dispatch ◀── calls
//!                      (calls that     │
//!                       wait)          ▼
//!                              a backend's transport
//!                                      │ the call did not run, for the backend cannot be reached
//!                                      └─▶ dispatch: another backend
//! ```
//!
//! Callers pick in their own threads, by what the snapshot says and by what each backend's connection says at
//! that moment. All else happens in one task of the process's `mem` loop ([`background`]), which nobody waits
//! for. The decisions are in `starling_balance`.
//!
//! A call that did not run is made at another backend, whatever its method: [`Attempt`]. What may have run is the
//! caller's, or its retry policy's.

mod backend;
mod background;
mod balancer;
mod control;
mod placement;
mod queue;
mod readiness;
mod resolver;
mod settings;
mod stream;
mod transport;

pub use backend::BackendState;
pub(crate) use balancer::random;
pub(crate) use placement::{Attempt, Placement};
pub(crate) use resolver::{AnyResolver, HostName};
pub use resolver::{Resolver, Resolving};
pub(crate) use settings::{Balancing, Source};
pub(crate) use transport::BalancedTransport;
