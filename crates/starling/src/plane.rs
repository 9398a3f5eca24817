//! The seam between the API and the planes. A plane implements [`Transport`] for its clients and
//! [`Listener`] for its servers.
//!
//! ```text
//!  generated client ─▶ Channel ─ dyn Transport ─▶ the plane ─▶ network
//!  network ─▶ the plane: dyn Listener ─ MethodHandler ─▶ generated server
//! ```
//!
//! This version has the direct plane. Its devices are in [`Address`](crate::Address)'s schemes.

mod handler;
mod listener;
mod transport;

pub use starling_endpoint::{
    CallDescriptor, CallNumber, Direction, Encoding, LargeBuffers, MethodPath, Msgbuf,
    OwnedMessage, RequestView, ResponseBuilder, ResponseMessage, UnaryFn, WorkerFn,
};
pub use starling_io::PeerMemory;

pub use crate::driver::DeadlineWaker;
pub use crate::health::HealthCell;
pub(crate) use handler::DecodedRequests;
pub use handler::{
    HandlerFuture, IncomingCall, ListenerContext, Method, MethodHandler, NestedFn, ServerStreamEnd,
    StreamingFn, StreamingFuture,
};
pub use listener::{Listener, Serving};
pub(crate) use transport::{Avoid, stopped};
pub use transport::{CallHandle, CallResult, Operation, OutgoingCall, Reply, Transport, Waiting};
