//! The client's side of a call: its name, how it ends, and the response.

use std::num::NonZeroU32;

use starling_proto::{Msgbuf, RequestNumber, SessionId};

use crate::header;
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
    pub(crate) const LOCAL: Self = Self(Self::LIMIT);
    /// Ids are below this.
    pub(crate) const LIMIT: u32 = (1 << 31) - 2;
}

/// What the endpoint keeps of an outstanding call: 24 bytes, so that with its place in the table
/// it is half a cache line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) tag: u64,
    pub(crate) number: RequestNumber,
    pub(crate) session: SessionId,
    /// The continuation plus one (the zero tells a free place), and whether a deadline is armed.
    word: NonZeroU32,
}

/// Set in a call's word if a deadline is armed.
const TIMED: u32 = 1 << 31;

impl Call {
    #[inline]
    pub(crate) fn new(
        tag: u64,
        number: RequestNumber,
        session: SessionId,
        continuation: ContinuationId,
        timed: bool,
    ) -> Self {
        let word = NonZeroU32::MIN.saturating_add(continuation.0);
        Self {
            tag,
            number,
            session,
            word: if timed { word | TIMED } else { word },
        }
    }

    #[inline]
    pub(crate) fn continuation(&self) -> ContinuationId {
        ContinuationId((self.word.get() & !TIMED) - 1)
    }

    /// Whether a deadline is armed.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        self.word.get() & TIMED != 0
    }
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
}

impl Response<'_> {
    /// The body.
    #[inline]
    pub fn body(&self) -> &[u8] {
        self.payload.body()
    }

    /// What the server sent beside the body.
    pub fn metadata(&self) -> MetadataView<'_> {
        MetadataView::of_extension(self.payload.fields())
    }

    /// The place in a stream, if the server gave one.
    pub fn stream(&self) -> Option<StreamPosition> {
        header::stream_of(self.payload.fields())
    }

    /// To keep the response beyond the continuation. A large one is moved, a small one copied.
    pub fn into_owned(self) -> OwnedResponse {
        self.payload.into_owned(Msgbuf::new())
    }
}
