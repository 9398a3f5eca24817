//! Received messages, read in place or kept.

use starling_call::{OwnedMessage, header};
use starling_proto::{Body, Msgbuf};

/// A received payload whose header was validated.
#[derive(Debug)]
pub(crate) enum Payload<'a> {
    /// In the receive buffer.
    InPlace {
        /// The fields of the extension, if there is one.
        fields: Option<&'a [u8]>,
        body: &'a [u8],
    },
    /// Reassembled. To keep it, the message is moved out and an empty one left.
    Reassembled {
        message: &'a mut Msgbuf,
        /// Where the fields of the extension would begin.
        fields_at: u32,
        body_at: u32,
    },
}

/// A received payload whose header is not read yet.
#[derive(Debug)]
pub(crate) enum PayloadBytes<'a> {
    /// In the receive buffer.
    InPlace(&'a [u8]),
    /// Reassembled.
    Reassembled(&'a mut Msgbuf),
}

impl<'a> PayloadBytes<'a> {
    #[inline]
    pub(crate) fn of(body: &'a mut Body<'_>) -> Self {
        match body {
            Body::Borrowed(bytes) => Self::InPlace(bytes),
            Body::Owned(message) => Self::Reassembled(message),
        }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::InPlace(bytes) => bytes,
            Self::Reassembled(message) => message.head(),
        }
    }

    /// The message, to keep it: a reassembled one is moved, another one is copied into a buffer of `spare`.
    pub(crate) fn into_message(self, spare: impl FnOnce() -> Msgbuf) -> Msgbuf {
        match self {
            Self::InPlace(bytes) => {
                let mut message = spare();
                message.head_mut().extend_from_slice(bytes);
                message
            }
            Self::Reassembled(message) => std::mem::take(message),
        }
    }

    /// The parts of a payload. The header was read from these bytes, so the places are in them.
    pub(crate) fn split(self, fields_at: usize, body_at: usize) -> Payload<'a> {
        match self {
            Self::InPlace(bytes) => Payload::InPlace {
                fields: Some(header::fields_between(bytes, fields_at, body_at)),
                body: bytes.get(body_at..).unwrap_or(&[]),
            },
            Self::Reassembled(message) => Payload::Reassembled {
                message,
                fields_at: fields_at as u32,
                body_at: body_at as u32,
            },
        }
    }
}

impl Payload<'_> {
    #[inline]
    pub(crate) fn body(&self) -> &[u8] {
        match self {
            Self::InPlace { body, .. } => body,
            Self::Reassembled {
                message, body_at, ..
            } => message.head().get(*body_at as usize..).unwrap_or(&[]),
        }
    }

    #[inline]
    pub(crate) fn fields(&self) -> &[u8] {
        match self {
            Self::InPlace { fields, .. } => fields.unwrap_or(&[]),
            Self::Reassembled {
                message,
                fields_at,
                body_at,
            } => header::fields_between(message.head(), *fields_at as usize, *body_at as usize),
        }
    }

    /// Bytes of a compressed body when it is decompressed, as its header says. Zero if it is not compressed.
    pub(crate) fn decompressed_len(&self) -> usize {
        let compressed = header::form_of(self.fields()).1.compressed;
        compressed.map_or(0, |body| body.len as usize)
    }

    /// The message, to keep: a large one is moved; a small one, of so many bytes, is copied into a buffer of `spare`.
    #[inline]
    pub(crate) fn into_owned(self, spare: impl FnOnce(usize) -> Msgbuf) -> OwnedMessage {
        match self {
            Self::InPlace { fields, body } => {
                let fields = fields.unwrap_or(&[]);
                let mut message = spare(fields.len() + body.len());
                message.clear();
                let head = message.head_mut();
                head.reserve(fields.len() + body.len());
                head.extend_from_slice(fields);
                let body_at = head.len() as u32;
                head.extend_from_slice(body);
                OwnedMessage::new(message, 0, body_at)
            }
            Self::Reassembled {
                message,
                fields_at,
                body_at,
            } => OwnedMessage::new(std::mem::take(message), fields_at, body_at),
        }
    }
}
