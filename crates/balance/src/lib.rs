//! Which backend a call goes to, and whether it is made again.
//!
//! This crate must not know a clock, a source of randomness, a network or a thread: times and random numbers
//! are arguments, so every decision can be tested in virtual time. It decides; the facade acts.
//!
//! ```text
//!  resolver ─▶ Backends ─▶ subset ─▶ Picker ─▶ a backend for each call
//!                             ▲         ▲
//!       results of calls ─▶ outliers, weights
//!
//!  a call ─▶ Retry or Hedging ─▶ another attempt, when, or the end
//!                 ▲
//!            Throttle (of the channel)
//! ```
//!
//! The rules are gRPC's, by the numbers of its proposals (`grpc/proposal`):
//!
//! | module | holds | after |
//! |---|---|---|
//! | `config` | the service config: JSON in, what to do for each method and channel out | `service_config.proto`, A2, A24 |
//! | `retry`, `hedge`, `throttle`, `pushback` | whether and when an attempt follows another one | A6 |
//! | `backoff` | growing pauses with jitter | A6, `connection-backoff.md` |
//! | `policy` | the load balancing policies and their settings | A24 |
//! | `picker` | `pick_first`, `round_robin`, `least_request`, `weighted_round_robin`, `ring_hash` | A62, A48, A58, A42, A76 |
//! | `weight`, `load_report` | how much a backend can take, by its own reports | A58, A51 |
//! | `outlier` | which backends fail more than the others, and for how long they get no calls | A50 |
//! | `subset` | which of many backends a client uses | A68 |
//! | `backends` | a resolver's answer, checked: no duplicates, no garbage, not too many | |

#![forbid(unsafe_code)]

mod backends;
mod backoff;
mod code_set;
mod config;
mod hedge;
mod load_report;
mod outlier;
mod picker;
mod policy;
mod pushback;
mod random;
mod retry;
mod subset;
mod throttle;
mod weight;

pub use backends::{Backends, Change, MAX_BACKENDS, Rejected, Resolved};
pub use backoff::Backoff;
pub use code_set::CodeSet;
pub use config::{Attempts, MethodConfig, ServiceConfig, ServiceConfigError};
pub use hedge::{Hedging, HedgingPolicy, HedgingStep};
pub use load_report::{LOAD_REPORT_KEY, LoadReport, LoadReportError};
pub use outlier::{Counts, Ejections, Outliers};
pub use picker::{Pick, Picker, Readiness, View, hash};
pub use policy::{
    FailurePercentage, LoadBalancing, OutlierDetection, Policy, RingHash, SuccessRate, Weighting,
};
pub use pushback::{PUSHBACK_KEY, Pushback};
pub use random::Random;
pub use retry::{Failure, MAX_ATTEMPTS, PREVIOUS_ATTEMPTS_KEY, Retry, RetryPolicy};
pub use subset::subset;
pub use throttle::{Throttle, Throttling};
pub use weight::Weight;
