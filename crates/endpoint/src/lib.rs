//! An event loop over any [`PacketIo`](starling_io::PacketIo), which one thread runs at a time:
//! sessions, calls, handlers, continuations and futures. What eRPC (NSDI'19, section 3) calls an
//! `Rpc` object.
//!
//! This crate must not block, except in a wait of its owner, and must not know a device.
//!
//! There are two ways to use it, which mix freely:
//! - *Raw*: [`Endpoint::call`] with a continuation that is registered once. A call costs no box, no
//!   allocation, no lock and no reference count. A handler reads the request where it was received
//!   and writes into a response buffer that exists already.
//! - *Futures*: [`LocalHandle::call`], driven by the same loop.
//!
//! Handlers run *inline*, in the loop's thread, or in *workers* ([`Endpoint::start_workers`]).
//! An inline handler may answer later ([`Reply::defer`]) and make nested calls meanwhile.
//!
//! Every call ends exactly once: with its response, with the server's [`Status`], at its deadline,
//! by cancellation, or because its peer failed. [`starling_call::header`] has the bytes of calls on
//! the wire.
//!
//! ```text
//!  Endpoint ─ turn, wait, drain ─ burst ─ parts ─ context ─ core ─ protocol
//!               schedule                  │         │        └ sessions, peers, deadlines, pending ─ room
//!               cadence                   │         └ Handler, Context
//!                                         ├ requests ─ admission, refusal
//!                                         ├ responses
//!                                         ├ tables ─ methods
//!                                         └ workers ─ jbsq
//!  LocalHandle ─ local ─ executor, command
//! ```

#![forbid(unsafe_code)]

mod admission;
mod burst;
mod cadence;
mod client;
mod command;
mod config;
mod context;
mod convert;
mod core;
mod deadlines;
mod drain;
mod endpoint;
mod error;
mod executor;
mod fair_queue;
mod flow_queue;
mod handler_panic;
pub mod jbsq;
mod local;
mod memory;
mod methods;
mod parts;
mod payload;
mod peers;
mod pending;
mod refusal;
mod requests;
mod responses;
mod room;
mod schedule;
mod server;
mod sessions;
mod shares;
mod sink;
mod slab;
mod sleep_state;
mod spin_policy;
mod stall;
mod stats;
mod tables;
mod timers;
mod turn;
mod wait;
mod workers;

pub use client::{CallId, Completion, ContinuationId, Response};
pub use config::{EndpointConfig, Idle, WorkerConfig};
pub use context::{Context, Handler};
pub use convert::unsent_message;
pub use endpoint::Endpoint;
pub use error::{CallError, CallNotMade, OpenError, WorkerConfigError};
pub use handler_panic::status_of_panic;
pub use local::{LocalCall, LocalHandle, Sleep};
pub use memory::HeldMost;
pub use server::{DeferredReply, HeldReply, Reply, Request};
pub use sessions::SessionState;
pub use stall::Stall;
pub use starling_call::{
    CallDescriptor, CallNumber, CallOptions, Cancellation, Cancelled, Code, CompressedBody,
    Direction, Encoding, HeaderError, Metadata, MetadataError, MetadataView, MethodId, MethodPath,
    OwnedMessage, Peer, ProcessCredentials, RequestCoding, RequestView, ResponseBuilder,
    ResponseExtra, ResponseMessage, Status, StreamFlags, StreamPosition, TRACEPARENT, TRACESTATE,
    TraceParent, UnaryFn, WorkerFn, header,
};
pub use starling_proto::{
    ClientSessionReport, Config as ProtocolConfig, ConfigError, Congestion, HighWater,
    LargeBuffers, Msgbuf, Secrets, ServerSessionReport, SessionError, SessionId, SessionPage,
    SlotRoom, Stats as ProtocolStats,
};
pub use stats::{Stats, Turn};
pub use workers::{
    Dispatch, Job, ThreadPool, WorkerHandler, WorkerReply, WorkerRequest, WorkersReport,
};
