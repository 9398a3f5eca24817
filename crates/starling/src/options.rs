//! What a call can be told.

use std::time::Duration;

use starling_endpoint::{Encoding, Metadata};

/// Options of one call. The default is a plain call: no deadline, no metadata, and an error at once
/// if the server cannot be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// The call ends with DEADLINE_EXCEEDED when it is not over after this long, connecting and
    /// waiting included. The server is told, and does not begin what has expired.
    pub timeout: Option<Duration>,
    /// Travels beside the request.
    pub metadata: Metadata,
    /// When the server cannot be reached, try until it can (or the timeout is over) rather than
    /// end with UNAVAILABLE. A call that may have reached the server is never tried again;
    /// one whose session ended before it was sent is made again once, with or without this.
    pub wait_for_ready: bool,
}

impl CallOptions {
    /// Options with a timeout.
    pub fn with_timeout(timeout: Duration) -> Self {
        Self {
            timeout: Some(timeout),
            ..Self::default()
        }
    }

    /// Options that wait for the server.
    pub fn waiting() -> Self {
        Self {
            wait_for_ready: true,
            ..Self::default()
        }
    }

    /// As the endpoint takes them.
    pub(crate) fn lower(
        &self,
        encoding: Encoding,
        timeout: Option<Duration>,
    ) -> starling_endpoint::CallOptions {
        starling_endpoint::CallOptions {
            timeout,
            encoding,
            stream: None,
            metadata: self.metadata.clone(),
        }
    }
}
