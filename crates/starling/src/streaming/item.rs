//! One message of a stream.

use std::fmt;
use std::ops::Range;

use starling_message::protobuf::DecodeLimits;
use starling_message::{Arena, Bytes, Message, MessageView, Reader, reflect};
use starling_stream::Items;

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
    Decoded(Box<M>),
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
            Kept::Decoded(message) => message.view(),
        }
    }

    /// The message alone, in memory of its own.
    pub fn into_message(self) -> M {
        let bytes = match self.0 {
            Kept::Decoded(message) => return *message,
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

    /// A message of a peer with another schema.
    ///
    /// # Errors
    /// Why the bytes are no such message.
    #[cold]
    pub(super) fn decoded(bytes: &[u8]) -> Result<Self, String> {
        let message = decode(bytes)?;
        Ok(Self(Kept::Decoded(Box::new(message))))
    }
}

impl<M: Message> fmt::Debug for StreamItem<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        reflect::debug(M::LAYOUT, self.message().reader(), f)
    }
}

/// An item that is in protobuf.
#[cold]
pub(super) fn decode<M: Message>(bytes: &[u8]) -> Result<M, String> {
    M::from_protobuf(bytes, DecodeLimits::default()).map_err(|error| malformed(&error))
}

#[cold]
pub(super) fn malformed(error: &dyn fmt::Display) -> String {
    format!("an item is malformed: {error}")
}
