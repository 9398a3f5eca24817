//! Received messages that outlive their datagrams.

use std::ops::Deref;

use starling_msgbuf::Msgbuf;

use crate::coding::RequestCoding;
use crate::encoding::Encoding;
use crate::header;
use crate::metadata::{Metadata, MetadataView};
use crate::method::MethodId;
use crate::options::CallOptions;
use crate::status::Status;
use crate::stream::StreamPosition;

/// A received message that was kept: a request or a response. Dereferences to its body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedMessage {
    message: Msgbuf,
    fields_at: u32,
    body_at: u32,
}

impl OwnedMessage {
    /// A message whose call header was validated: where in it the fields of the extension would begin,
    /// and where the body begins.
    #[inline]
    pub fn new(message: Msgbuf, fields_at: u32, body_at: u32) -> Self {
        Self {
            message,
            fields_at,
            body_at,
        }
    }

    /// A message that is only a body.
    pub fn of_body(body: Vec<u8>) -> Self {
        Self::new(Msgbuf::from_vec(body), 0, 0)
    }

    /// A message with these parts, in memory of its own.
    pub fn of_parts(encoding: Encoding, metadata: &Metadata, body: &[u8]) -> Self {
        let options = CallOptions {
            encoding,
            metadata: metadata.clone(),
            ..CallOptions::default()
        };
        let mut bytes = Vec::with_capacity(options.header_len() + body.len());
        let size = options.put_header(MethodId(0), &mut bytes, 0);
        bytes.extend_from_slice(body);
        let fields_at = header::REQUEST_FIELDS_AT as u32;
        Self::new(Msgbuf::from_vec(bytes), fields_at, u32::from(size.len))
    }

    /// The body.
    #[inline]
    pub fn body(&self) -> &[u8] {
        let bytes = self.message.head();
        bytes.get(self.body_at as usize..).unwrap_or(&[])
    }

    /// The fields of the call header's extension.
    pub fn fields(&self) -> &[u8] {
        let (from, to) = (self.fields_at as usize, self.body_at as usize);
        header::fields_between(self.message.head(), from, to)
    }

    /// The metadata that the sender sent.
    pub fn metadata(&self) -> MetadataView<'_> {
        MetadataView::of_extension(self.fields())
    }

    /// Where the fields of the extension would begin.
    pub fn fields_at(&self) -> u32 {
        self.fields_at
    }

    /// The encoding of the body, if the message is a request.
    pub fn encoding(&self) -> Encoding {
        header::encoding_of(self.fields())
    }

    /// The encoding of the body, if the message is a request, and what it says of compression.
    pub fn form(&self) -> (Encoding, RequestCoding) {
        header::form_of(self.fields())
    }

    /// Bytes of the body, when it is decompressed.
    pub fn plain_len(&self) -> usize {
        let compressed = self.form().1.compressed;
        compressed.map_or_else(|| self.body().len(), |body| body.len as usize)
    }

    /// The position in a stream, if the sender gave one.
    pub fn stream(&self) -> Option<StreamPosition> {
        header::stream_of(self.fields())
    }

    /// How its stream ended, if the message is the response that ends a stream with an error.
    pub fn stream_status(&self) -> Option<Status> {
        header::status_of(self.fields())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_parts_has_them() {
        let mut metadata = Metadata::default();
        let message = OwnedMessage::of_parts(Encoding::Native, &metadata, b"body");
        assert_eq!((message.body(), message.fields()), (&b"body"[..], &[][..]));
        metadata.insert("key", "value").expect("a key");
        let message = OwnedMessage::of_parts(Encoding::Protobuf, &metadata, b"body");
        assert_eq!(message.body(), b"body");
        assert_eq!(message.encoding(), Encoding::Protobuf);
        assert_eq!(message.to_metadata(), metadata);
    }
}
