//! Received messages, read in place or kept.

use starling_call::{OwnedMessage, header};
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
    /// Bytes of the whole message.
    pub(crate) fn len(&self) -> usize {
        self.bytes.as_slice().len()
    }

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
        OwnedMessage::new(message, self.fields_at, self.body_at)
    }
}
