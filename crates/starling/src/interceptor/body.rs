//! Messages as interceptors have them: bytes, or a message of the method's type.

use std::borrow::Cow;
use std::fmt;

use starling_endpoint::{Encoding, Metadata, Msgbuf, OwnedMessage, Status};
use starling_message::protobuf::{self, DecodeLimits};
use starling_message::{Arena, Bytes, Message, MessageLayout, Reader};

/// A message on its way through interceptors.
#[derive(Clone)]
pub(super) struct Body {
    buffer: Msgbuf,
    /// Where in the buffer it begins.
    at: usize,
    /// Where in the buffer the fields of its call header begin, if it has been received.
    fields_at: Option<u32>,
    encoding: Encoding,
    /// Its type, if it was made here.
    made_as: Option<&'static MessageLayout>,
    /// What it may become, if it is in protobuf.
    limits: Option<Box<DecodeLimits>>,
}

impl Body {
    pub(super) fn new(buffer: Msgbuf, at: usize, encoding: Encoding) -> Self {
        Self {
            buffer,
            at,
            fields_at: None,
            encoding,
            made_as: None,
            limits: None,
        }
    }

    /// The same. If it is in protobuf, it may become so much.
    #[inline]
    pub(super) fn within(self, limits: impl FnOnce() -> DecodeLimits) -> Self {
        let is_protobuf = self.encoding == Encoding::Protobuf;
        Self {
            limits: is_protobuf.then(|| Box::new(limits())),
            ..self
        }
    }

    pub(super) fn received(message: OwnedMessage, encoding: Encoding) -> Self {
        let fields_at = message.fields_at();
        let (buffer, at) = message.into_parts();
        Self {
            fields_at: Some(fields_at),
            ..Self::new(buffer, at, encoding)
        }
    }

    /// As it was received, if it was, and if it came with this metadata.
    pub(super) fn into_received(self, metadata: &Metadata) -> Result<OwnedMessage, Self> {
        let Some(fields_at) = self.fields_at else {
            return Err(self);
        };
        let message = OwnedMessage::new(self.buffer, fields_at, self.at as u32);
        match message.metadata().is_equal(metadata) {
            true => Ok(message),
            false => Err(Self {
                limits: self.limits,
                ..Self::received(message, self.encoding)
            }),
        }
    }

    /// A message of a stream that was received. It is not copied.
    pub(super) fn of_item(item: Bytes, encoding: Encoding) -> Self {
        Self::new(Msgbuf::from_parts(Vec::new(), Some(item)), 0, encoding)
    }

    pub(super) fn of<M: Message>(message: &M) -> Self {
        let (head, tail) = message.parts();
        let buffer = Msgbuf::from_parts(head.to_vec(), tail.cloned());
        Self {
            made_as: Some(M::LAYOUT),
            ..Self::new(buffer, 0, Encoding::Native)
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
                let limits = self.limits.as_deref().copied().unwrap_or_default();
                M::from_protobuf(&bytes, limits).map_err(|error| error.to_string())
            }
        }
    }

    /// The message in this encoding, behind `room` bytes.
    pub(super) fn into_buffer(self, encoding: Encoding, room: usize) -> Result<Msgbuf, Status> {
        if self.encoding == encoding {
            let mut buffer = self.buffer;
            buffer.set_headroom(self.at.min(buffer.head().len()), room);
            return Ok(buffer);
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

    /// The message in this encoding, as one piece.
    pub(super) fn into_bytes(self, encoding: Encoding) -> Result<Bytes, Status> {
        let (mut head, tail) = self.into_buffer(encoding, 0)?.into_parts();
        Ok(match tail {
            None => Bytes::from(head),
            Some(tail) if head.is_empty() => tail,
            Some(tail) => {
                head.extend_from_slice(&tail);
                Bytes::from(head)
            }
        })
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
