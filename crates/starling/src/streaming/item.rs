//! One message of a stream.

use std::fmt;

use starling_endpoint::{Encoding, Status};
use starling_message::protobuf::DecodeLimits;
use starling_message::{Arena, Bytes, Message, MessageView, Reader, reflect, validate};

/// One message of a stream, as it was received. Cheap to clone.
#[derive(Clone)]
pub struct StreamItem<M: Message>(Kept<M>);

#[derive(Clone)]
enum Kept<M> {
    /// Validated. A part of the datagram's message, which small items share.
    Native(Bytes),
    Decoded(M),
}

impl<M: Message> StreamItem<M> {
    /// # Errors
    /// INTERNAL if the bytes are no such message.
    pub(crate) fn receive(bytes: Bytes, encoding: Encoding) -> Result<Self, Status> {
        let malformed = |error: &dyn fmt::Display| {
            Status::internal(format!("an item of the stream is malformed: {error}"))
        };
        Ok(Self(match encoding {
            Encoding::Native => {
                validate(M::LAYOUT, &bytes).map_err(|error| malformed(&error))?;
                Kept::Native(bytes)
            }
            Encoding::Protobuf => {
                let decoded = M::from_protobuf(&bytes, DecodeLimits::default());
                Kept::Decoded(decoded.map_err(|error| malformed(&error))?)
            }
        }))
    }

    /// The message.
    #[inline]
    pub fn message(&self) -> M::View<'_> {
        match &self.0 {
            Kept::Native(bytes) => M::view_of(Reader::root(bytes)),
            Kept::Decoded(message) => message.view(),
        }
    }

    /// The message alone, in memory of its own.
    pub fn into_message(self) -> M {
        match self.0 {
            Kept::Decoded(message) => message,
            Kept::Native(bytes) => {
                let arena = Arena::adopt(Vec::from(bytes), 0, M::LAYOUT);
                M::from_arena(arena.expect("the message was validated when it arrived"))
            }
        }
    }
}

impl<M: Message> fmt::Debug for StreamItem<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        reflect::debug(M::LAYOUT, self.message().reader(), f)
    }
}
