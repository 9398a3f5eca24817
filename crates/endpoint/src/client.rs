//! A call on the client: its id, how it ends, and the response.

use starling_call::{MetadataView, OwnedMessage, Status, StreamPosition, header};
use starling_proto::{Msgbuf, RequestNumber, SessionId, Tag};

use crate::payload::Payload;

/// The id of a call. A stale one is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId {
    pub(crate) session: SessionId,
    pub(crate) number: RequestNumber,
}

/// The id of a continuation; see [`crate::Context::register_continuation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContinuationId(pub(crate) u32);

impl ContinuationId {
    /// The call belongs to a future.
    pub(crate) const LOCAL: Self = Self(u32::MAX);

    /// Whether it is none of an endpoint's own.
    // Not inlined, so that it is not asked before the others.
    #[inline(never)]
    pub(crate) fn is_local(self) -> bool {
        self == Self::LOCAL
    }
}

/// The facts that the endpoint needs when a call ends. The session protocol carries them as the
/// request's tag, so that there is no table of calls:
///
/// ```text
///  127       96 95          64 63                        0
/// ┌────────────┬──────────────┬───────────────────────────┐
/// │  deadline  │ continuation │ the caller's tag          │
/// └────────────┴──────────────┴───────────────────────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) tag: u64,
    pub(crate) continuation: ContinuationId,
    /// One more than the place of its deadline among the armed ones; zero if it has none.
    pub(crate) deadline: u32,
}

impl Call {
    #[inline]
    pub(crate) fn to_tag(self) -> Tag {
        let high = u64::from(self.deadline) << 32 | u64::from(self.continuation.0);
        Tag::from(high) << 64 | Tag::from(self.tag)
    }

    #[inline]
    pub(crate) fn from_tag(tag: Tag) -> Self {
        let high = (tag >> 64) as u64;
        Self {
            tag: tag as u64,
            continuation: ContinuationId(high as u32),
            deadline: (high >> 32) as u32,
        }
    }
}

/// The end of a call. Every call that was made has exactly one.
#[derive(Debug)]
pub struct Completion<'a> {
    /// The caller's tag.
    pub tag: u64,
    /// The call.
    pub call: CallId,
    /// The response, or the status of a failed call.
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

    /// The metadata that the server sent.
    pub fn metadata(&self) -> MetadataView<'_> {
        MetadataView::of_extension(self.payload.fields())
    }

    /// The position in a stream, if the server gave one.
    pub fn stream(&self) -> Option<StreamPosition> {
        header::stream_of(self.payload.fields())
    }

    /// The response, to keep it longer than the continuation runs. A large one is moved, a small
    /// one copied.
    pub fn into_owned(self) -> OwnedMessage {
        self.into_owned_in(|_| Msgbuf::new())
    }

    /// The same. A small response, of so many bytes, is copied into the memory that `spare` gives.
    pub fn into_owned_in(self, spare: impl FnOnce(usize) -> Msgbuf) -> OwnedMessage {
        self.payload.into_owned(spare)
    }
}
