//! The client's side of a call: its name, how it ends, and the response.

use starling_proto::{Msgbuf, RequestNumber, SessionId};

use crate::metadata::MetadataView;
use crate::options::StreamPosition;
use crate::payload::{OwnedResponse, Payload};
use crate::status::Status;

/// A call that was made, until it ends. A stale one is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(pub(crate) u64);

/// What runs when a call ends; see [`crate::Context::register_continuation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContinuationId(pub(crate) u32);

impl ContinuationId {
    /// The call belongs to a future.
    pub(crate) const LOCAL: Self = Self(u32::MAX);
}

/// What the endpoint keeps of an outstanding call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) tag: u64,
    pub(crate) number: RequestNumber,
    pub(crate) session: SessionId,
    pub(crate) continuation: ContinuationId,
    /// Whether a deadline is armed.
    pub(crate) timed: bool,
}

/// The end of a call. Every call that was made has exactly one.
#[derive(Debug)]
pub struct Completion<'a> {
    /// The caller's word.
    pub tag: u64,
    /// Which call.
    pub call: CallId,
    /// The response, or why there is none.
    pub result: Result<Response<'a>, Status>,
}

/// A response, in place in the receive buffer.
#[derive(Debug)]
pub struct Response<'a> {
    pub(crate) payload: Payload<'a>,
    pub(crate) stream: Option<StreamPosition>,
}

impl Response<'_> {
    /// The body.
    #[inline]
    pub fn body(&self) -> &[u8] {
        self.payload.body()
    }

    /// What the server sent beside the body.
    pub fn metadata(&self) -> MetadataView<'_> {
        self.payload.metadata()
    }

    /// The place in a stream, if the server gave one.
    pub fn stream(&self) -> Option<StreamPosition> {
        self.stream
    }

    /// To keep the response beyond the continuation. A large one is moved, a small one copied.
    pub fn into_owned(self) -> OwnedResponse {
        self.payload.into_owned(Msgbuf::new())
    }
}
