//! Calls without generated code: a path, and messages in protobuf.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use starling_endpoint::{Encoding, MetadataView, MethodPath, Msgbuf, OwnedMessage, Status};
use starling_message::method_id;

use crate::channel::Channel;
use crate::channel_call::RawCall;
use crate::options::CallOptions;
use crate::trace::{self, ClientSpan};
use crate::wait::block_on;

impl Channel {
    /// Calls a method that is known only by its path, `/package.Service/Method`. The request is in
    /// protobuf, and so is the response. The crate `starling-dynamic` has messages and JSON for it.
    pub fn call_protobuf(&self, path: &str, request: &[u8], options: &CallOptions) -> ProtobufCall {
        let shared = match self.here() {
            Ok(shared) => shared,
            Err(status) => {
                return ProtobufCall {
                    raw: RawCall::failed(self.shared(), status),
                    span: None,
                };
            }
        };
        let mut options = shared.with_policy(path, Cow::Borrowed(options));
        let span = trace::begin_call(path, &shared.address, &mut options);
        let (mut call, coding) = options.into_owned().describe(
            MethodPath::Owned(Arc::from(path)),
            method_id(path),
            Encoding::Protobuf,
            None,
            &shared.time,
        );
        let mut bytes = vec![0; call.message.headroom];
        bytes.extend_from_slice(request);
        call.message.payload = Msgbuf::from_vec(bytes);
        ProtobufCall {
            raw: RawCall::intercepted(shared, self.interceptors(), call, coding),
            span,
        }
    }
}

/// A call of [`Channel::call_protobuf`]. Dropping it cancels the call.
#[must_use = "dropping the future cancels the call"]
pub struct ProtobufCall {
    raw: RawCall,
    /// If the call is in a trace.
    span: Option<Box<ClientSpan>>,
}

impl ProtobufCall {
    /// Waits for the call. This thread drives the channel's endpoint meanwhile, or sleeps, so this is not
    /// for use inside an executor.
    pub fn wait(self) -> Result<ProtobufResponse, Status> {
        block_on(self)
    }
}

impl Future for ProtobufCall {
    type Output = Result<ProtobufResponse, Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(result) = self.raw.poll(cx) else {
            return Poll::Pending;
        };
        if let Some(span) = self.span.take() {
            span.end(&result);
        }
        Poll::Ready(result.map(|(message, _)| ProtobufResponse(message)))
    }
}

impl fmt::Debug for ProtobufCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProtobufCall(..)")
    }
}

/// The response to a [`ProtobufCall`].
#[derive(Clone, Debug)]
pub struct ProtobufResponse(OwnedMessage);

impl ProtobufResponse {
    /// The message, in protobuf.
    pub fn body(&self) -> &[u8] {
        self.0.body()
    }

    /// The metadata that the server sent with the message.
    pub fn metadata(&self) -> MetadataView<'_> {
        self.0.metadata()
    }
}
