//! What a datagram brings for the layer above.

use crate::{Msgbuf, PeerId, RequestId, RequestNumber, SessionId, Tag};

/// A frame that the layer above has to act on.
#[derive(Debug)]
pub enum Incoming<'a> {
    /// A request to run, once. Every one of them must be answered by [`Protocol::respond`](crate::Protocol::respond).
    Request {
        /// What to answer to.
        id: RequestId,
        /// Who asks.
        peer: PeerId,
        /// The client's extension bit.
        ext: bool,
        /// The message.
        body: Body<'a>,
    },
    /// The response to a request of ours.
    Response {
        /// The session of the request.
        session: SessionId,
        /// The request.
        number: RequestNumber,
        /// The caller's word for it.
        tag: Tag,
        /// The server's extension bit.
        ext: bool,
        /// The message.
        body: Body<'a>,
    },
    /// The client does not want the answer any more. It may be given all the same.
    Cancelled {
        /// To what.
        id: RequestId,
    },
}

/// Bytes of a received message.
#[derive(Debug)]
pub enum Body<'a> {
    /// In the receive buffer: good until the datagram is given back.
    Borrowed(&'a [u8]),
    /// Put together from several packets. Give it to [`Protocol::recycle`](crate::Protocol::recycle) afterwards.
    Owned(Msgbuf),
}

impl Body<'_> {
    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(buffer) => buffer.head(),
        }
    }
}
