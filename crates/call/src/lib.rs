//! The parts of a call that all planes share: its method, options, metadata and status, and the
//! call header that carries them on the wire.
//!
//! Nothing here knows a device, a plane or a message type, and nothing does I/O.
//!
//! ```text
//!  Code  Encoding  StreamPosition  MethodId   (and RequestCoding)
//!    └───────┴─────────┤              │
//!                    field            │     one field of a header: limits, read, write
//!                      │              │
//!                   Metadata          │
//!                 ┌────┴────┐         │
//!              Status   CallOptions   │
//!                 └────┬────┴─────────┘
//!                    header                 the header of a request, of a response
//!                      │
//!   CallDescriptor     │     RequestView, ResponseBuilder    OwnedMessage
//!   a message on its   │     what a handler gets and         a received message
//!   way through a plane│     builds, on any plane            that was kept
//!                      │           │
//!                      │     Peer, Cancellation              who calls, and whether it still waits
//!   TraceParent: what a trace has in metadata
//! ```

#![forbid(unsafe_code)]

mod cancellation;
mod code;
mod coding;
mod descriptor;
mod encoding;
mod exchange;
mod field;
pub mod header;
mod metadata;
mod method;
mod options;
mod owned;
mod peer;
mod status;
mod stream;
mod trace;

pub use cancellation::{Cancellation, Cancelled};
pub use code::Code;
pub use coding::{CompressedBody, RequestCoding};
pub use descriptor::{CallDescriptor, CallNumber, Direction, MethodPath};
pub use encoding::Encoding;
pub use exchange::{
    RequestView, ResponseBuilder, ResponseExtra, ResponseMessage, UnaryFn, WorkerFn,
};
pub use header::HeaderError;
pub use metadata::{Metadata, MetadataError, MetadataView};
pub use method::MethodId;
pub use options::CallOptions;
pub use owned::OwnedMessage;
pub use peer::{Peer, ProcessCredentials};
pub use status::{Status, Unsent};
pub use stream::{StreamFlags, StreamPosition};
pub use trace::{TRACEPARENT, TRACESTATE, TraceParent};
