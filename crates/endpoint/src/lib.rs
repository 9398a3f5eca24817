//! One thread's event loop over any [`PacketIo`](starling_io::PacketIo): sessions, calls,
//! handlers, continuations and futures. What eRPC (NSDI'19, section 3) calls an `Rpc` object.
//!
//! There are two ways to use it, which mix freely:
//! - *Raw*: [`Endpoint::call`] with a continuation registered once. No boxing, no allocation, no
//!   lock, no reference count for each call; a handler reads the request where it was received
//!   and writes into a response buffer that is there already.
//! - *Futures*: [`LocalHandle::call`], driven by the same loop in the same thread.
//!
//! Handlers run *inline*, in the loop's thread, or in *workers* ([`Endpoint::start_workers`]).
//! Either may answer later ([`Reply::defer`]) and make calls of its own meanwhile.
//!
//! Every call ends exactly once: with its response, with the server's [`Status`], at its deadline,
//! by cancellation, or because its peer failed. The bytes that calls have on the wire are in
//! [`header`].

#![forbid(unsafe_code)]

mod admission;
mod client;
mod context;
mod core;
mod deadlines;
mod dispatch;
mod drain;
mod endpoint;
mod error;
mod executor;
pub mod header;
mod local;
mod metadata;
mod methods;
mod options;
mod panics;
mod payload;
mod pending;
mod server;
mod sessions;
mod sink;
mod slab;
mod stats;
mod status;
mod timers;
mod turn;
mod workers;

pub use client::{CallId, Completion, ContinuationId, Response};
pub use context::{Context, RejectedCall};
pub use endpoint::Endpoint;
pub use error::{CallError, OpenError, WorkerConfigError};
pub use header::{HeaderError, MethodId};
pub use local::{LocalCall, LocalHandle, Sleep};
pub use metadata::{Metadata, MetadataError, MetadataView};
pub use methods::Handler;
pub use options::{CallOptions, Encoding, EndpointConfig, Idle, StreamPosition, WorkerConfig};
pub use payload::{OwnedMessage, OwnedResponse};
pub use server::{DeferredReply, Reply, Request};
pub use sessions::SessionState;
pub use starling_proto::{Msgbuf, Secrets, SessionError, SessionId};
pub use stats::{Stats, Turn};
pub use status::{Code, Status};
pub use workers::{Dispatch, Job, ThreadPool, WorkerHandler, WorkerReply, WorkerRequest, jbsq};
