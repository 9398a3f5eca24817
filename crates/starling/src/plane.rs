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

pub use starling_endpoint::{
    CallDescriptor, CallNumber, Direction, Encoding, MethodPath, Msgbuf, OwnedMessage, RequestView,
    ResponseBuilder, ResponseMessage, UnaryFn, WorkerFn,
};

pub use handler::{HandlerFuture, ListenerContext, Method, MethodHandler, NestedFn};
pub use listener::{Listener, Serving};
