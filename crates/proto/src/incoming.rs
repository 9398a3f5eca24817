//! Frames that the layer above has to act on, and their bodies.

use crate::{Msgbuf, PeerId, RequestId, RequestNumber, SessionId, Tag};

/// A frame that the layer above has to act on.
#[derive(Debug)]
pub enum Incoming<'a> {
    /// A request to run, once. Each must be answered with
    /// [`Protocol::respond`](crate::Protocol::respond).
    Request {
        /// The request, for [`Protocol::respond`](crate::Protocol::respond).
        id: RequestId,
        /// The client.
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
        /// The caller's own identifier of the request.
        tag: Tag,
        /// The server's extension bit.
        ext: bool,
        /// The message.
        body: Body<'a>,
    },
    /// The client does not want the response any more. The response may be given all the same.
    Cancelled {
        /// The request.
        id: RequestId,
    },
}

/// Bytes of a received message.
#[derive(Debug)]
pub enum Body<'a> {
    /// In the receive buffer: valid until the datagram is given back to the device.
    Borrowed(&'a [u8]),
    /// Put together from several packets. Give it to
    /// [`Protocol::recycle`](crate::Protocol::recycle) afterwards.
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
