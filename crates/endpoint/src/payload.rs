//! Received messages, read in place or kept.

use std::ops::Deref;

use starling_call::{Encoding, Metadata, MetadataView, StreamPosition, header};
use starling_proto::{Body, Msgbuf};

/// A received payload with a validated header.
#[derive(Debug)]
pub(crate) struct Payload<'a> {
    pub(crate) bytes: PayloadBytes<'a>,
    /// Where the fields of the extension would begin.
    pub(crate) fields_at: u32,
    pub(crate) body_at: u32,
}

#[derive(Debug)]
pub(crate) enum PayloadBytes<'a> {
    /// In the receive buffer.
    InPlace(&'a [u8]),
    /// Reassembled. To keep it, the message is moved out and an empty one left.
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
}

impl Payload<'_> {
    #[inline]
    pub(crate) fn body(&self) -> &[u8] {
        // In bounds: the header was parsed from these bytes.
        let bytes = self.bytes.as_slice();
        bytes.get(self.body_at as usize..).unwrap_or(&[])
    }

    pub(crate) fn fields(&self) -> &[u8] {
        let (from, to) = (self.fields_at as usize, self.body_at as usize);
        header::fields_between(self.bytes.as_slice(), from, to)
    }

    /// The message, to keep it: a large one is moved, a small one is copied into `spare`.
    pub(crate) fn into_owned(self, spare: Msgbuf) -> OwnedMessage {
        let message = match self.bytes {
            PayloadBytes::InPlace(bytes) => {
                let mut message = spare;
                message.clear();
                message.head_mut().extend_from_slice(bytes);
                message
            }
            PayloadBytes::Reassembled(message) => std::mem::take(message),
        };
        OwnedMessage {
            message,
            fields_at: self.fields_at,
            body_at: self.body_at,
        }
    }
}

/// A received message that was kept. Dereferences to its body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedMessage {
    pub(crate) message: Msgbuf,
    fields_at: u32,
    body_at: u32,
}

/// A response that was kept.
pub type OwnedResponse = OwnedMessage;

impl OwnedMessage {
    /// A message that is only a body.
    pub(crate) fn of_body(body: Vec<u8>) -> Self {
        Self {
            message: Msgbuf::from_vec(body),
            fields_at: 0,
            body_at: 0,
        }
    }

    /// The body.
    #[inline]
    pub fn body(&self) -> &[u8] {
        let bytes = self.message.head();
        bytes.get(self.body_at as usize..).unwrap_or(&[])
    }

    pub(crate) fn fields(&self) -> &[u8] {
        let (from, to) = (self.fields_at as usize, self.body_at as usize);
        header::fields_between(self.message.head(), from, to)
    }

    /// The metadata that the sender sent.
    pub fn metadata(&self) -> MetadataView<'_> {
        MetadataView::of_extension(self.fields())
    }

    /// The encoding of the body, if the message is a request.
    pub fn encoding(&self) -> Encoding {
        header::encoding_of(self.fields())
    }

    /// The position in a stream, if the sender gave one.
    pub fn stream(&self) -> Option<StreamPosition> {
        header::stream_of(self.fields())
    }

    /// A copy of the metadata.
    pub fn to_metadata(&self) -> Metadata {
        self.metadata().to_owned()
    }

    /// The memory that holds the message, and where in it the body begins.
    pub fn into_parts(self) -> (Msgbuf, usize) {
        (self.message, self.body_at as usize)
    }
}

impl Deref for OwnedMessage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.body()
    }
}
