//! One message of a stream.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use starling_endpoint::Status;
use starling_message::{Arena, Bytes, Message, MessageView, Reader, reflect};
use starling_stream::Items;

use super::{HeldBytes, StreamEnd, threads};

/// One message of a stream, as it was received: where it lies, until the next one is asked for
/// ([`StreamReceiver::message`](crate::StreamReceiver::message)), or with a share in the memory that it came in.
#[derive(Clone)]
pub struct StreamItem<'a, M: Message>(Kept<'a, M>);

#[derive(Clone)]
enum Kept<'a, M> {
    /// Validated.
    Lent(&'a [u8]),
    /// Validated.
    Shared(Bytes),
    /// Of a peer with another schema.
    Decoded(Arc<Decoded<M>>),
}

impl<'a, M: Message> StreamItem<'a, M> {
    /// A validated message, where it lies.
    #[inline]
    pub(super) fn lent(bytes: &'a [u8]) -> Self {
        Self(Kept::Lent(bytes))
    }

    /// The message.
    #[inline]
    pub fn message(&self) -> M::View<'_> {
        match &self.0 {
            Kept::Lent(bytes) => M::view_of(Reader::root(bytes)),
            Kept::Shared(bytes) => M::view_of(Reader::root(bytes)),
            Kept::Decoded(decoded) => decoded.message.view(),
        }
    }

    /// The message alone, in memory of its own. It is its reader's then, and no longer counts in
    /// [`ServerBuilder::max_stream_bytes`](crate::ServerBuilder::max_stream_bytes) or
    /// [`ChannelBuilder::max_stream_bytes`](crate::ChannelBuilder::max_stream_bytes).
    pub fn into_message(self) -> M {
        let bytes = match self.0 {
            Kept::Decoded(decoded) => {
                let alone = Arc::try_unwrap(decoded);
                return alone.map_or_else(|it| it.message.clone(), |it| it.message);
            }
            Kept::Lent(bytes) => bytes.to_vec(),
            Kept::Shared(bytes) => Vec::from(bytes),
        };
        let arena = Arena::adopt(bytes, 0, M::LAYOUT);
        M::from_arena(arena.expect("the message was validated when it arrived"))
    }
}

impl<M: Message> StreamItem<'static, M> {
    /// A validated message, with a share in the memory that it came in.
    pub(super) fn shared(items: &Items, place: Range<usize>) -> Self {
        Self(Kept::Shared(items.body().slice(place)))
    }

    /// What a message of a peer with another schema counts for, until this is dropped, too.
    pub(super) fn held(&self) -> Option<Arc<HeldBytes>> {
        match &self.0 {
            Kept::Decoded(decoded) => Some(Arc::clone(&decoded.held)),
            Kept::Lent(_) | Kept::Shared(_) => None,
        }
    }

    /// A message of a peer with another schema.
    #[cold]
    pub(super) fn decoded(decoded: Decoded<M>) -> Self {
        Self(Kept::Decoded(Arc::new(decoded)))
    }
}

impl<M: Message> fmt::Debug for StreamItem<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        reflect::debug(M::LAYOUT, self.message().reader(), f)
    }
}

/// A message that came in protobuf. It counts as long as it is here.
pub(super) struct Decoded<M> {
    pub(super) message: M,
    held: Arc<HeldBytes>,
}

impl<M: Message> Decoded<M> {
    /// An item that is in protobuf. A failure ends the stream.
    #[cold]
    pub(super) fn new(end: &dyn StreamEnd, item: &[u8]) -> Result<Self, Status> {
        // What is not counted yet is one message, however many threads there are.
        let _alone = threads::decode_alone();
        let message = M::from_protobuf(item, end.decode_limits());
        let message = message.map_err(|error| end.reject(&malformed(&error)))?;
        let held = end.hold(message.arena().memory_len());
        let held = held.inspect_err(|status| end.fail(status.clone()))?;
        Ok(Self {
            message,
            held: Arc::new(held),
        })
    }
}

#[cold]
pub(super) fn malformed(error: &dyn fmt::Display) -> String {
    format!("an item is malformed: {error}")
}
