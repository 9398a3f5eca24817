//! What a plane hands to a method's handler, and what it takes back: without a device, a message type
//! or a kind of handler.

use std::time::Duration;

use bytes::Bytes;
use starling_msgbuf::Msgbuf;

use crate::cancellation::Cancellation;
use crate::coding::{CompressedBody, RequestCoding};
use crate::encoding::Encoding;
use crate::header;
use crate::metadata::{Metadata, MetadataView};
use crate::owned::OwnedMessage;
use crate::peer::Peer;
use crate::status::Status;
use crate::stream::StreamPosition;

/// A request, in place where it was received.
#[derive(Clone, Copy, Debug)]
pub struct RequestView<'a> {
    body: &'a [u8],
    fields: &'a [u8],
    remaining: Option<Duration>,
    peer: Option<&'a Peer>,
    cancellation: Option<&'a Cancellation>,
    queued_ns: u64,
}

impl<'a> RequestView<'a> {
    /// A request with a validated header: its body, the fields of its extension (empty if there is none),
    /// and how long the caller still waits.
    #[inline]
    pub fn new(body: &'a [u8], fields: &'a [u8], remaining: Option<Duration>) -> Self {
        Self {
            body,
            fields,
            remaining,
            peer: None,
            cancellation: None,
            queued_ns: 0,
        }
    }

    /// The same request, of a known caller.
    #[inline]
    #[must_use]
    pub fn from_peer(mut self, peer: &'a Peer) -> Self {
        self.peer = Some(peer);
        self
    }

    /// The same request, which can be cancelled while its handler runs.
    #[inline]
    #[must_use]
    pub fn with_cancellation(mut self, cancellation: &'a Cancellation) -> Self {
        self.cancellation = Some(cancellation);
        self
    }

    /// The same request, which waited so long for its worker.
    #[inline]
    #[must_use]
    pub fn queued_for(mut self, queued_ns: u64) -> Self {
        self.queued_ns = queued_ns;
        self
    }

    /// The caller.
    #[inline]
    pub fn peer(&self) -> &'a Peer {
        self.peer.unwrap_or_else(|| Peer::unknown())
    }

    /// Whether the caller still waits. `None`: nothing can cancel the request while its handler runs.
    #[inline]
    pub fn cancellation(&self) -> Option<&'a Cancellation> {
        self.cancellation
    }

    /// How long the request waited for its worker, in nanoseconds.
    #[inline]
    pub fn queued_ns(&self) -> u64 {
        self.queued_ns
    }

    /// The body.
    #[inline]
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// The encoding of the body, which the response must have, too.
    #[inline]
    pub fn encoding(&self) -> Encoding {
        if self.fields.is_empty() {
            return Encoding::Native;
        }
        header::encoding_of(self.fields)
    }

    /// The encoding of the body, which the response must have, too, and what the request says of compression.
    #[inline]
    pub fn form(&self) -> (Encoding, RequestCoding) {
        if self.fields.is_empty() {
            return (Encoding::Native, RequestCoding::default());
        }
        header::form_of(self.fields)
    }

    /// Bytes of the body, when it is decompressed.
    #[inline]
    pub fn plain_len(&self) -> usize {
        let compressed = self.form().1.compressed;
        compressed.map_or(self.body.len(), |body| body.len as usize)
    }

    /// The metadata that the caller sent.
    #[inline]
    pub fn metadata(&self) -> MetadataView<'a> {
        MetadataView::of_extension(self.fields)
    }

    /// The position in a stream, if the caller gave one.
    pub fn stream(&self) -> Option<StreamPosition> {
        header::stream_of(self.fields)
    }

    /// A copy that outlives the receive buffer, without the method and the deadline.
    pub fn to_owned(&self) -> OwnedMessage {
        let fields_at = header::REQUEST_FIELDS_AT;
        let body_at = fields_at + self.fields.len();
        let mut bytes = Vec::with_capacity(body_at + self.body.len());
        bytes.resize(fields_at, 0);
        bytes.extend_from_slice(self.fields);
        bytes.extend_from_slice(self.body);
        OwnedMessage::new(Msgbuf::from_vec(bytes), fields_at as u32, body_at as u32)
    }

    /// How long the caller still waits, if the call has a deadline.
    #[inline]
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }
}

/// The response that a handler builds.
#[derive(Debug)]
pub struct ResponseBuilder<'a> {
    body: &'a mut Vec<u8>,
    tail: Option<Bytes>,
    // Boxed because it is rare, and a response is built for every request.
    extra: Option<Box<ResponseExtra>>,
}

/// What a response may have besides its body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseExtra {
    /// Sent with the body.
    pub metadata: Metadata,
    /// How the body is compressed, if it is.
    pub compressed: Option<CompressedBody>,
}

impl<'a> ResponseBuilder<'a> {
    /// A response whose body is appended to this buffer.
    #[inline]
    pub fn new(body: &'a mut Vec<u8>) -> Self {
        Self {
            body,
            tail: None,
            extra: None,
        }
    }

    /// The buffer for the body: empty, with memory.
    #[inline]
    pub fn body(&mut self) -> &mut Vec<u8> {
        self.body
    }

    /// Bytes of the body so far, with the part that is sent without a copy. Of a compressed one, those that it
    /// has when it is decompressed.
    #[inline]
    pub fn plain_len(&self) -> usize {
        match self.extra.as_ref().and_then(|extra| extra.compressed) {
            Some(body) => body.len as usize,
            None => self.body.len() + self.tail.as_ref().map_or(0, Bytes::len),
        }
    }

    /// Appends a part to the response that is sent without a copy. There is only one: a second one
    /// replaces the first.
    pub fn set_tail(&mut self, tail: Bytes) {
        self.tail = Some(tail);
    }

    /// Sends metadata with the response.
    pub fn set_metadata(&mut self, metadata: Metadata) {
        self.extra.get_or_insert_default().metadata = metadata;
    }

    /// The tail, if it is set. It is not part of the response any more then.
    pub fn take_tail(&mut self) -> Option<Bytes> {
        self.tail.take()
    }

    /// The body is compressed like this. A response that is not says nothing.
    pub fn set_compressed(&mut self, compressed: CompressedBody) {
        self.extra.get_or_insert_default().compressed = Some(compressed);
    }

    /// The parts besides the body, for the plane.
    #[inline]
    pub fn into_parts(self) -> (Option<Bytes>, Option<Box<ResponseExtra>>) {
        (self.tail, self.extra)
    }
}

/// A handler that answers before it returns, and runs in one thread.
pub type UnaryFn =
    dyn FnMut(RequestView<'_>, &mut ResponseBuilder<'_>) -> Result<(), Status> + Send;

/// A handler that answers before it returns, for any number of threads.
pub type WorkerFn =
    dyn Fn(RequestView<'_>, &mut ResponseBuilder<'_>) -> Result<(), Status> + Send + Sync;

/// A response that was built outside of a plane's buffers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseMessage {
    /// The body.
    pub body: Msgbuf,
    /// Sent with the body.
    pub metadata: Metadata,
    /// How the body is compressed, if it is.
    pub compressed: Option<CompressedBody>,
}

impl ResponseMessage {
    /// Bytes of the body, when it is decompressed.
    pub fn plain_len(&self) -> usize {
        (self.compressed).map_or_else(|| self.body.len(), |body| body.len as usize)
    }

    /// A response of these parts, as [`ResponseBuilder::into_parts`] has them.
    pub fn of_parts(
        body: Vec<u8>,
        (tail, extra): (Option<Bytes>, Option<Box<ResponseExtra>>),
    ) -> Self {
        let extra = extra.map(|extra| *extra).unwrap_or_default();
        Self {
            body: Msgbuf::from_parts(body, tail),
            metadata: extra.metadata,
            compressed: extra.compressed,
        }
    }
}
