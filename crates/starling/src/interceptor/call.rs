//! A call and its response, as interceptors see them.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use starling_endpoint::{
    Encoding, Metadata, MetadataView, MethodPath, OwnedMessage, Peer, ResponseMessage, Status,
};
use starling_message::{Message, MethodDescriptor};

use super::body::{Body, check_type, malformed_request};
use super::items::{Hook, Hooks, InterceptedItem};
use super::timer::Timer;

/// The end of a call that an interceptor is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// That of the caller.
    Client,
    /// That of the handler.
    Server,
}

/// What is known of a method by its interceptors.
#[derive(Clone)]
pub(super) struct Method {
    pub(super) path: MethodPath,
    /// None if the caller has no generated code.
    pub(super) descriptor: Option<&'static MethodDescriptor>,
}

/// A call on its way through interceptors. A copy is another call with the same content.
#[derive(Clone)]
pub struct InterceptedCall {
    pub(super) side: Side,
    pub(super) timer: Timer,
    pub(super) method: Method,
    pub(super) metadata: Metadata,
    pub(super) deadline: Option<Instant>,
    /// The caller, at a server.
    pub(super) peer: Option<Peer>,
    /// None for a stream.
    pub(super) body: Option<Body>,
    /// Those that see a stream's messages.
    pub(super) hooks: Option<Box<Hooks>>,
}

impl InterceptedCall {
    /// The end of the call that this is.
    pub fn side(&self) -> Side {
        self.side
    }

    /// The method: `/kv.Kv/Get`.
    pub fn path(&self) -> &str {
        self.method.path.as_str()
    }

    /// Who calls. None at a client.
    pub fn peer(&self) -> Option<&Peer> {
        self.peer.as_ref()
    }

    /// Whether the method has streams. Then there is no message here, and [`Next::run`](super::Next::run)
    /// lasts as long as the stream. See [`InterceptedCall::on_requests`].
    pub fn is_stream(&self) -> bool {
        self.body.is_none()
    }

    /// The metadata of the call.
    pub fn metadata(&self) -> MetadataView<'_> {
        self.metadata.view()
    }

    /// The metadata, to change it.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// The call's deadline.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The time that is left.
    pub fn remaining(&self) -> Option<Duration> {
        let deadline = self.deadline?;
        Some(self.timer.until(deadline))
    }

    /// Ends after this time, by the clock of the channel or the server.
    pub fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send + use<> {
        self.timer.sleep(duration)
    }

    /// Sets the call's deadline. A client's call does not last beyond the one that its caller has set. At a
    /// server this changes what the handler sees; the caller goes on waiting until its own.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// The request as bytes: in the native layout, or in protobuf for a peer with another schema. None for
    /// a stream.
    pub fn bytes(&self) -> Option<Cow<'_, [u8]>> {
        self.body.as_ref().map(Body::bytes)
    }

    /// A copy of the request.
    ///
    /// # Errors
    /// INTERNAL if it is of another type, or if the method has streams; INVALID_ARGUMENT if it is malformed.
    pub fn message<Q: Message>(&self) -> Result<Q, Status> {
        let body = self.body.as_ref().ok_or_else(|| self.has_streams())?;
        if let Some(method) = self.method.descriptor {
            check_type(Q::LAYOUT, method.request)?;
        }
        body.decode().map_err(malformed_request)
    }

    /// Sends another request in place of this one. [`Next::run`](super::Next::run) refuses one of another
    /// type than the method has.
    ///
    /// # Errors
    /// INTERNAL if the method has streams.
    pub fn set_message<Q: Message>(&mut self, message: &Q) -> Result<(), Status> {
        if self.is_stream() {
            return Err(self.has_streams());
        }
        self.body = Some(Body::of(message));
        Ok(())
    }

    /// Has `see` called with each message that the client of a stream sends, on its way. It may change the
    /// message, and have it wait. An error ends the stream with that status.
    ///
    /// The messages pass the interceptors in the order in which the call does, those of the server in the
    /// other order. The only request of a method with a stream of responses is one of these messages, too.
    ///
    /// ```
    /// # use starling::{InterceptedCall, InterceptedResponse, Interceptor, Next, Status};
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    ///
    /// /// Counts the bytes that clients send in streams.
    /// struct Meter(Arc<AtomicUsize>);
    ///
    /// impl Interceptor for Meter {
    ///     async fn intercept(
    ///         &self,
    ///         mut call: InterceptedCall,
    ///         next: Next<'_>,
    ///     ) -> Result<InterceptedResponse, Status> {
    ///         if call.is_stream() {
    ///             let bytes = Arc::clone(&self.0);
    ///             call.on_requests(move |item| {
    ///                 bytes.fetch_add(item.bytes().len(), Ordering::Relaxed);
    ///                 Ok(())
    ///             })?;
    ///         }
    ///         next.run(call).await
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// INTERNAL if the method has no streams.
    pub fn on_requests(
        &mut self,
        see: impl Fn(&mut InterceptedItem) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Result<(), Status> {
        let hook = self.hook(see)?;
        self.hooks.get_or_insert_default().requests.push(hook);
        Ok(())
    }

    /// [`InterceptedCall::on_requests`] for each message that the server of a stream sends.
    ///
    /// # Errors
    /// INTERNAL if the method has no streams.
    pub fn on_responses(
        &mut self,
        see: impl Fn(&mut InterceptedItem) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Result<(), Status> {
        let hook = self.hook(see)?;
        self.hooks.get_or_insert_default().responses.push(hook);
        Ok(())
    }

    /// Sees what the server of a stream sends in front of its messages, once, and may change it. A server's interceptor
    /// sees it when the handler sends it, or when its first message is sent without; a channel's when its reader
    /// waits for it, for the first message or for the end. An error ends the stream.
    ///
    /// # Errors
    /// INTERNAL if the method has no streams.
    pub fn on_initial_metadata(
        &mut self,
        see: impl Fn(&mut Metadata) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Result<(), Status> {
        self.check_streams()?;
        let hooks = self.hooks.get_or_insert_default();
        hooks.initial_metadata.push(Arc::new(see));
        Ok(())
    }

    fn hook(
        &self,
        see: impl Fn(&mut InterceptedItem) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Result<Hook, Status> {
        self.check_streams()?;
        Ok(Arc::new(see))
    }

    fn check_streams(&self) -> Result<(), Status> {
        if self.is_stream() {
            return Ok(());
        }
        Err(Status::internal(format!(
            "an interceptor asked for the items of {}, which has no streams: ask is_stream first",
            self.path()
        )))
    }

    fn has_streams(&self) -> Status {
        Status::internal(format!(
            "an interceptor used the message of {}, which has streams: ask is_stream first",
            self.path()
        ))
    }
}

impl fmt::Debug for InterceptedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InterceptedCall")
            .field("side", &self.side)
            .field("path", &self.path())
            .field("metadata", &self.metadata)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// The response to an [`InterceptedCall`].
#[derive(Clone)]
pub struct InterceptedResponse {
    pub(super) method: Option<&'static MethodDescriptor>,
    pub(super) metadata: Metadata,
    /// None for a stream.
    pub(super) body: Option<Body>,
}

impl InterceptedResponse {
    /// A response of the interceptor's own. For a stream that it does not run, it is the only message.
    pub fn new<P: Message>(message: &P) -> Self {
        Self {
            method: None,
            metadata: Metadata::default(),
            body: Some(Body::of(message)),
        }
    }

    /// The end of a stream that the interceptor does not run, without any message.
    pub fn empty_stream() -> Self {
        Self::of_stream(Metadata::default())
    }

    /// The end of a stream, with these trailers.
    pub(super) fn of_stream(metadata: Metadata) -> Self {
        Self {
            method: None,
            metadata,
            body: None,
        }
    }

    /// The metadata of the response. That of a stream is what the server sends behind the messages.
    pub fn metadata(&self) -> MetadataView<'_> {
        self.metadata.view()
    }

    /// The metadata, to change it.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// The response as bytes. None for a stream.
    pub fn bytes(&self) -> Option<Cow<'_, [u8]>> {
        self.body.as_ref().map(Body::bytes)
    }

    /// A copy of the response.
    ///
    /// # Errors
    /// INTERNAL if it is of another type, if it is malformed, or if the method has streams.
    pub fn message<P: Message>(&self) -> Result<P, Status> {
        let Some(body) = &self.body else {
            let text = "an interceptor used the response of a stream: there is none";
            return Err(Status::internal(text));
        };
        if let Some(method) = self.method {
            check_type(P::LAYOUT, method.response)?;
        }
        let malformed = |error| Status::internal(format!("the response is malformed: {error}"));
        body.decode().map_err(malformed)
    }

    /// Returns another response in place of this one. Its metadata stays.
    pub fn set_message<P: Message>(&mut self, message: &P) {
        self.body = Some(Body::of(message));
    }

    /// The response for a handler's caller.
    pub(super) fn into_response(
        self,
        method: Option<&'static MethodDescriptor>,
        encoding: Encoding,
    ) -> Result<ResponseMessage, Status> {
        let Some(body) = self.body else {
            return Err(Status::internal(
                "an interceptor answered without a message",
            ));
        };
        body.check(method.map(|method| method.response))?;
        Ok(ResponseMessage {
            body: body.into_buffer(encoding, 0)?,
            metadata: self.metadata,
            compressed: None,
        })
    }

    /// The response for the caller of a channel, with its encoding.
    pub(super) fn into_message(
        self,
        method: Option<&'static MethodDescriptor>,
    ) -> Result<(OwnedMessage, Encoding), Status> {
        // Generated code takes either encoding, other callers have asked in protobuf.
        let encoding = match (&self.body, method) {
            (Some(body), Some(_)) => body.encoding(),
            _ => Encoding::Protobuf,
        };
        let mut response = self;
        if let Some(body) = response.body.take() {
            match body.into_received(&response.metadata) {
                Ok(message) => return Ok((message, encoding)),
                Err(body) => response.body = Some(body),
            }
        }
        let response = response.into_response(method, encoding)?;
        let mut body = Cow::Borrowed(response.body.head());
        if response.body.has_tail() {
            body.to_mut().extend_from_slice(response.body.tail());
        }
        let message = OwnedMessage::of_parts(encoding, &response.metadata, &body);
        Ok((message, encoding))
    }
}

impl fmt::Debug for InterceptedResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InterceptedResponse")
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}
