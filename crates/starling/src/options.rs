//! The options of a call.

use std::time::Duration;

use starling_endpoint::{Encoding, Metadata};

/// The options of one call. By default, a call has no deadline and no metadata, and fails at once if
/// the server cannot be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// The call ends with DEADLINE_EXCEEDED after this time, which includes connecting and waiting. The
    /// server learns the deadline, and does not start a call whose deadline has passed.
    pub timeout: Option<Duration>,
    /// Is sent with the request.
    pub metadata: Metadata,
    /// If the server cannot be reached, the call waits until it can be, at most for the timeout, instead
    /// of ending with UNAVAILABLE. A call that may have reached the server is never made again. A call
    /// whose session ended before the call was sent is made again once, with or without this.
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

    /// The options of the endpoint's call.
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
