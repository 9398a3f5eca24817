//! Policies of the managed plane: engines that calls pass on their way through a service (mRPC, NSDI 2023, section 5).
//!
//! ```text
//!            on_request                on_request
//!  caller ──▶ engine 1 ── Pass ───────▶ engine 2 ── Pass ──▶ server
//!               │ Hold: later             │ Refuse: a status
//!  caller ◀── on_end ◀─────────────────── on_end ◀────────── answer
//! ```
//!
//! This crate must not know a clock, a network or a thread: the time is an argument, so every policy can be tested in
//! virtual time. It decides; the service acts.
//!
//! | module | holds |
//! |---|---|
//! | [`datapath`] | whose calls pass a policy |
//! | [`engine`] | what an engine sees of calls, and what it may do |
//! | [`spec`] | a policy as operators write it, in JSON: name, kind, scope, settings |
//! | [`identity`] | names for applications, for scopes |
//! | [`kinds`] | the table of the kinds that are built in |
//! | [`engines`] | the engines, one file each: settings, state, tests |
//! | [`schema`] | methods as their servers have them: what engines read messages by |
//! | [`expression`] | conditions on requests |
//! | [`saved`] | an engine's state as versioned, checked bytes |
//! | [`recorded`] | what engines record of calls, for the operator |
//! | [`random`] | pseudo-random numbers |
//! | [`settings`] | durations, shares and codes in settings |

#![forbid(unsafe_code)]
#![allow(rustdoc::private_intra_doc_links)]

mod datapath;
mod engine;
mod engines;
mod expression;
mod identity;
mod kinds;
mod random;
mod recorded;
mod saved;
mod schema;
mod settings;
mod spec;

pub use datapath::Datapath;
pub use engine::{
    NextAttempt, PolicyEnd, PolicyEngine, PolicyFailure, PolicyRequest, Retries, Verdict,
};
pub use identity::{Identities, IdentitySpec, check_identities, parse_identities};
pub use kinds::{KINDS, Kind};
pub use recorded::{Series, SeriesLabels, Span};
pub use saved::{RestoreError, Saved, SavedReader};
pub use schema::{PolicyMessage, PolicyMethod};
pub use settings::parse_duration;
pub use spec::{OnFailure, PolicySpec, Scope, Side, SpecError, check_list, check_name, parse_list};
pub use starling_balance::Retry;
