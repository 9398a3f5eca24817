//! The managed plane's service, after mRPC (NSDI 2023): one for each host. Applications call through it and are called
//! through it, with the stubs that they have.
//!
//! ```text
//!  application ─ shm ─▶ service ─ udp, tcp, xdp, shm ─▶ server, or the service of its host ─ shm ─▶ application
//! ```
//!
//! An application reaches the service as it reaches a server over `shm://`: the same device and the same session
//! protocol, which take nothing that another process writes at its word. The service ends each session there and
//! opens one of its own to the server, so calls pass it as a whole: it sees methods, metadata and messages, and
//! no packets.
//!
//! | module | holds |
//! |---|---|
//! | [`runtime`] | a thread that drives links and hands calls on |
//! | [`link`] | one endpoint of the service |
//! | [`acceptor`], [`placement`] | where applications connect, and which runtime each is in |
//! | [`shared`], [`attached`], [`directory`] | what runtimes share: policies, and who is called where, among others |
//! | [`forwarded`] | what of a call is handed on |
//! | [`datapath`] | the policies that a call passes |
//! | [`attempts`] | what a call has that a policy may make again |
//! | [`schemas`] | the methods that policies know, and read messages by |
//! | [`metrics`] | what policies have counted, as text |
//! | [`spans`] | spans on their way to a collector |
//! | [`quota`], [`account`] | what applications and users may have of the service, and what they have |
//! | [`operator`] | what the operator does: policies, what goes on |
//! | [`control`], [`publication`] | addresses at which the service listens for applications |
//! | [`device`], [`adapter`] | the devices of links, and what operators set of those by which applications call |

#![allow(rustdoc::private_intra_doc_links)]

mod acceptor;
mod account;
mod adapter;
mod attached;
mod attempts;
mod control;
mod datapath;
mod device;
mod directory;
mod error;
mod forwarded;
mod large;
mod link;
mod metrics;
mod operator;
mod placement;
mod publication;
mod quota;
mod runtime;
mod schemas;
mod secrets;
mod service;
mod shared;
mod spans;

/// The user who may reach, have and manage all.
const ROOT: u32 = 0;

pub use error::ServiceError;
pub use quota::{Quota, Quotas};
pub use schemas::Schemas;
pub use service::{Service, ServiceConfig};
pub use starling_policy::{
    Identities, IdentitySpec, KINDS as POLICY_KINDS, Kind as PolicyKind, OnFailure, PolicySpec,
    parse_identities, parse_list as parse_policies,
};
