//! The options of a call.

use std::borrow::Cow;
use std::time::Duration;

use starling_endpoint::{
    CallDescriptor, CallNumber, Direction, Encoding, Metadata, MetadataError, MethodId, MethodPath,
    Msgbuf, Status,
};
use starling_message::MethodDescriptor;

use crate::coding::CallCoding;
use crate::compression::Compression;
use crate::plane::OutgoingCall;
use crate::time::Time;

/// The options of one call, or of all calls of a client. By default, a call has no deadline and no
/// metadata, and fails at once if the server cannot be reached.
///
/// A call that has options of its own takes from its client's options what its own leave unset.
/// Metadata of both is sent, the client's first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// The call ends with DEADLINE_EXCEEDED after this time, which includes connecting and waiting. The
    /// server learns the deadline, and does not start a call whose deadline has passed.
    /// `Duration::MAX` is no timeout, also for a client that has one.
    pub timeout: Option<Duration>,
    /// Is sent with the request.
    pub metadata: Metadata,
    /// If the server cannot be reached, the call waits until it can be, at most for the timeout, instead
    /// of ending with UNAVAILABLE. A call that may have reached the server is never made again. A call
    /// whose session ended before the call was sent is made again once, with or without this.
    pub wait_for_ready: Option<bool>,
    /// Bytes that the server may have sent of a stream before they are read here; then it waits. The
    /// default is 256 KiB. Messages that wait or are read take up to twice as much memory; what is beyond the
    /// window counts in [`ChannelBuilder::max_stream_bytes`](crate::ChannelBuilder::max_stream_bytes).
    pub stream_window: Option<u32>,
    /// What is done with the messages themselves. By default, nothing: they are not compressed, and their sizes
    /// are bounded by what the session takes. Methods such as [`CallOptions::compression`] set it.
    // Boxed because it is rare, and options are copied for each call.
    pub messages: Option<Box<MessageOptions>>,
}

/// What is done with the messages of a call: compression, and bounds on their sizes. A part of
/// [`CallOptions`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageOptions {
    /// Requests are compressed so.
    pub compression: Option<Compression>,
    /// The server may compress responses, if its method says so ([`MethodOptions::compression`]). If unset, it
    /// may if requests are compressed. A call that says so has a longer header, so it costs a little more.
    ///
    /// [`MethodOptions::compression`]: crate::MethodOptions::compression
    pub accept_compressed: Option<bool>,
    /// The most bytes of a request, or of a message of a stream to the server. A longer one is not sent, and
    /// the call ends with RESOURCE_EXHAUSTED. That of a [service config](crate::ServiceConfig) counts if it is lower.
    pub max_request_bytes: Option<usize>,
    /// The same for responses, and messages of a stream from the server. If neither is set, one that was compressed has
    /// 64 MiB at most.
    pub max_response_bytes: Option<usize>,
}

impl MessageOptions {
    fn or(&self, others: &Self) -> Self {
        Self {
            compression: self.compression.or(others.compression),
            accept_compressed: self.accept_compressed.or(others.accept_compressed),
            max_request_bytes: self.max_request_bytes.or(others.max_request_bytes),
            max_response_bytes: self.max_response_bytes.or(others.max_response_bytes),
        }
    }
}

impl CallOptions {
    /// Options with a timeout.
    pub fn with_timeout(timeout: Duration) -> Self {
        Self::default().timeout(timeout)
    }

    /// Options that wait for the server.
    pub fn waiting() -> Self {
        Self::default().wait_for_ready(true)
    }

    /// The same options, with a timeout.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The same options, with one more pair of metadata.
    ///
    /// # Errors
    /// If the key is not allowed, or all pairs together would be too long; see [`MetadataError`].
    pub fn metadata(mut self, key: &str, value: impl AsRef<[u8]>) -> Result<Self, MetadataError> {
        self.metadata.insert(key, value)?;
        Ok(self)
    }

    /// The same options, with or without waiting for the server.
    #[must_use]
    pub fn wait_for_ready(mut self, wait: bool) -> Self {
        self.wait_for_ready = Some(wait);
        self
    }

    /// The same options, with this window for streams of responses.
    #[must_use]
    pub fn stream_window(mut self, bytes: u32) -> Self {
        self.stream_window = Some(bytes);
        self
    }

    /// The same options, with this compression of requests.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.messages_mut().compression = Some(compression);
        self
    }

    /// The same options, with or without compressed responses.
    #[must_use]
    pub fn accept_compressed(mut self, accept: bool) -> Self {
        self.messages_mut().accept_compressed = Some(accept);
        self
    }

    /// The same options, with this bound on requests.
    #[must_use]
    pub fn max_request_bytes(mut self, bytes: usize) -> Self {
        self.messages_mut().max_request_bytes = Some(bytes);
        self
    }

    /// The same options, with this bound on responses.
    #[must_use]
    pub fn max_response_bytes(mut self, bytes: usize) -> Self {
        self.messages_mut().max_response_bytes = Some(bytes);
        self
    }

    fn messages_mut(&mut self) -> &mut MessageOptions {
        self.messages.get_or_insert_default()
    }

    /// Whether the call waits for the server.
    pub(crate) fn waits_for_ready(&self) -> bool {
        self.wait_for_ready.unwrap_or(false)
    }

    /// The options of a call of a client with these options.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the metadata of both is too long. The call is not made then.
    pub(crate) fn merged<'a>(&'a self, own: Option<&'a Self>) -> Result<Cow<'a, Self>, Status> {
        let Some(own) = own else {
            return Ok(Cow::Borrowed(self));
        };
        if self.is_default() {
            return Ok(Cow::Borrowed(own));
        }
        let mut metadata = self.metadata.clone();
        metadata.extend(&own.metadata).map_err(|error| {
            Status::invalid_argument(format!(
                "the client's metadata and the call's together: {error}; the call was not made"
            ))
            .with_not_run()
        })?;
        Ok(Cow::Owned(Self {
            timeout: own.timeout.or(self.timeout),
            metadata,
            wait_for_ready: own.wait_for_ready.or(self.wait_for_ready),
            stream_window: own.stream_window.or(self.stream_window),
            messages: match (&own.messages, &self.messages) {
                (Some(own), Some(clients)) => Some(Box::new(own.or(clients))),
                (own, clients) => own.as_ref().or(clients.as_ref()).cloned(),
            },
        }))
    }

    #[inline]
    pub(crate) fn is_default(&self) -> bool {
        let Self {
            timeout,
            metadata,
            wait_for_ready,
            stream_window,
            messages,
        } = self;
        let is_unset = timeout.is_none() && wait_for_ready.is_none() && stream_window.is_none();
        is_unset && messages.is_none() && metadata.is_empty()
    }

    /// A call with these options, before it has a payload, and what is done with its messages. `timeout` begins
    /// now.
    pub(crate) fn describe(
        self,
        path: MethodPath,
        method: u32,
        encoding: Encoding,
        types: Option<&'static MethodDescriptor>,
        time: &Time,
    ) -> (OutgoingCall, Option<CallCoding>) {
        let wait_for_ready = self.waits_for_ready();
        let coding = self.messages.as_deref().map(CallCoding::of);
        let mut message = CallDescriptor {
            call: CallNumber::next(),
            path,
            method: MethodId(method),
            direction: Direction::Request,
            // A deadline beyond the clock's range is none, and the call header could not hold it.
            deadline: time.after(self.timeout),
            metadata: self.metadata,
            encoding,
            coding: None,
            stream: None,
            payload: Msgbuf::new(),
            headroom: 0,
        };
        message.headroom = message.header_len();
        (OutgoingCall::new(message, types, wait_for_ready), coding)
    }

    /// A call of generated code, before it has a payload, and what is done with its messages.
    pub(crate) fn outgoing(
        self,
        method: &'static MethodDescriptor,
        time: &Time,
    ) -> (OutgoingCall, Option<CallCoding>) {
        let path = MethodPath::Static(method.path);
        self.describe(path, method.id, Encoding::Native, Some(method), time)
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
            metadata: self.metadata.clone(),
            ..starling_endpoint::CallOptions::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_calls_own_options_come_first_and_metadata_adds_up() {
        let client = CallOptions::with_timeout(Duration::from_secs(1))
            .wait_for_ready(true)
            .metadata("token", "t")
            .expect("a key");
        assert_eq!(*client.merged(None).expect("no sum"), client);
        let own = CallOptions::with_timeout(Duration::MAX)
            .metadata("trace", "7")
            .expect("a key");
        let both = client.merged(Some(&own)).expect("a short sum");
        assert_eq!(both.timeout, Some(Duration::MAX));
        assert_eq!(both.wait_for_ready, Some(true));
        let pairs: Vec<_> = both.metadata.view().iter().collect();
        assert_eq!(pairs, [("token", &b"t"[..]), ("trace", &b"7"[..])]);
        let own = CallOptions::default().wait_for_ready(false);
        let both = client.merged(Some(&own)).expect("a short sum");
        assert_eq!(both.timeout, client.timeout);
        assert!(!both.waits_for_ready());
    }

    #[test]
    fn metadata_that_is_too_long_together_is_the_callers_fault() {
        let long = CallOptions::default()
            .metadata("k", vec![0; 5000])
            .expect("short enough alone");
        let status = long.merged(Some(&long)).expect_err("too long");
        assert_eq!(status.code(), starling_endpoint::Code::InvalidArgument);
        assert!(!status.may_have_run());
    }
}
