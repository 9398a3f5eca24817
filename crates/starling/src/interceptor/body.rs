//! Messages as interceptors have them: bytes, or a message of the method's type.

use std::borrow::Cow;
use std::fmt;

use starling_endpoint::{Encoding, Msgbuf, OwnedMessage, Status};
use starling_message::protobuf::{self, DecodeLimits};
use starling_message::{Arena, Bytes, Message, MessageLayout, Reader};

/// A message on its way through interceptors.
#[derive(Clone)]
pub(super) struct Body {
    buffer: Msgbuf,
    /// Where in the buffer it begins.
    at: usize,
    encoding: Encoding,
    /// Its type, if it was made here.
    made_as: Option<&'static MessageLayout>,
}

impl Body {
    pub(super) fn new(buffer: Msgbuf, at: usize, encoding: Encoding) -> Self {
        Self {
            buffer,
            at,
            encoding,
            made_as: None,
        }
    }

    pub(super) fn received(message: OwnedMessage, encoding: Encoding) -> Self {
        let (buffer, at) = message.into_parts();
        Self::new(buffer, at, encoding)
    }

    /// A message of a stream that was received. It is not copied.
    pub(super) fn of_item(item: Bytes, encoding: Encoding) -> Self {
        Self::new(Msgbuf::from_parts(Vec::new(), Some(item)), 0, encoding)
    }

    pub(super) fn of<M: Message>(message: &M) -> Self {
        let (head, tail) = message.parts();
        Self {
            buffer: Msgbuf::from_parts(head.to_vec(), tail.cloned()),
            at: 0,
            encoding: Encoding::Native,
            made_as: Some(M::LAYOUT),
        }
    }

    pub(super) fn encoding(&self) -> Encoding {
        self.encoding
    }

    pub(super) fn bytes(&self) -> Cow<'_, [u8]> {
        let head = self.buffer.head().get(self.at..).unwrap_or_default();
        match (head, self.buffer.tail()) {
            (head, []) => Cow::Borrowed(head),
            ([], tail) => Cow::Borrowed(tail),
            (head, tail) => Cow::Owned([head, tail].concat()),
        }
    }

    pub(super) fn decode<M: Message>(&self) -> Result<M, String> {
        let bytes = self.bytes();
        match self.encoding {
            Encoding::Native => Arena::adopt(bytes.into_owned(), 0, M::LAYOUT)
                .map(M::from_arena)
                .map_err(|error| error.to_string()),
            Encoding::Protobuf => {
                M::from_protobuf(&bytes, DecodeLimits::default()).map_err(|error| error.to_string())
            }
        }
    }

    /// The message in this encoding, behind `room` bytes.
    pub(super) fn into_buffer(self, encoding: Encoding, room: usize) -> Result<Msgbuf, Status> {
        if self.encoding == encoding {
            let (mut head, tail) = self.buffer.into_parts();
            if room != self.at {
                head.splice(..self.at.min(head.len()), std::iter::repeat_n(0, room));
            }
            return Ok(Msgbuf::from_parts(head, tail));
        }
        let (Encoding::Protobuf, Some(layout)) = (encoding, self.made_as) else {
            return Err(Status::internal(
                "an interceptor handed on a message in another encoding than its call has",
            ));
        };
        let (head, tail) = self.buffer.into_parts();
        let mut bytes = vec![0; room];
        protobuf::encode(layout, Reader::in_parts(&head, tail.as_ref()), &mut bytes)
            .map_err(|error| Status::internal(format!("an interceptor's message: {error}")))?;
        Ok(Msgbuf::from_vec(bytes))
    }

    /// Refuses a message that was made here and is not of the method's type.
    pub(super) fn check(&self, expected: Option<&'static MessageLayout>) -> Result<(), Status> {
        match (self.made_as, expected) {
            (Some(made), Some(expected)) => check_type(made, expected),
            _ => Ok(()),
        }
    }
}

/// Whether both are one type.
pub(super) fn check_type(used: &MessageLayout, expected: &MessageLayout) -> Result<(), Status> {
    if used.name == expected.name && used.schema_hash == expected.schema_hash {
        return Ok(());
    }
    Err(Status::internal(format!(
        "an interceptor took the message for {}; it is {}",
        used.name, expected.name
    )))
}

pub(super) fn malformed_request(error: impl fmt::Display) -> Status {
    Status::invalid_argument(format!("the request is malformed: {error}"))
}
