//! The options of a call.

use std::time::Duration;

use crate::coding::RequestCoding;
use crate::encoding::Encoding;
use crate::metadata::Metadata;
use crate::stream::StreamPosition;

/// Options of one call. The default is a plain call: no deadline, native encoding, no metadata.
/// Its header is the method id alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// A call that is not over after this time ends with
    /// [`DeadlineExceeded`](crate::Code::DeadlineExceeded). The server is told, and does not begin
    /// calls that have expired. An overloaded server refuses calls with
    /// [`ResourceExhausted`](crate::Code::ResourceExhausted), so that it answers the others in
    /// time. A call without a timeout is never refused for that reason; it ends when the peer
    /// answers or fails.
    pub timeout: Option<Duration>,
    /// How the bodies are encoded.
    pub encoding: Encoding,
    /// How the body of the request is compressed, and how that of the response may be.
    pub coding: RequestCoding,
    /// The position in a stream.
    pub stream: Option<StreamPosition>,
    /// Sent with the request.
    pub metadata: Metadata,
}

impl CallOptions {
    /// Options with a timeout.
    pub fn with_timeout(timeout: Duration) -> Self {
        Self {
            timeout: Some(timeout),
            ..Self::default()
        }
    }

    /// Whether the call header needs no extension.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.timeout.is_none()
            && self.encoding == Encoding::Native
            && self.coding.is_plain()
            && self.stream.is_none()
            && self.metadata.is_empty()
    }
}
