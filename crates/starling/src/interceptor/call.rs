//! A call and its response, as interceptors see them.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

use starling_endpoint::{
    Encoding, Metadata, MetadataView, MethodPath, Msgbuf, OwnedMessage, Peer, ResponseMessage,
    Status,
};
use starling_message::protobuf::{self, DecodeLimits};
use starling_message::{Arena, Message, MessageLayout, MethodDescriptor, Reader};

use super::timer::Timer;

/// The end of a call that an interceptor is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// That of the caller.
    Client,
    /// That of the handler.
    Server,
}

/// The message of a call or a response.
#[derive(Clone)]
pub(super) struct Body {
    buffer: Msgbuf,
    /// Where in the buffer it begins.
    at: usize,
    encoding: Encoding,
    /// Its type, if it was made here.
    made_as: Option<&'static MessageLayout>,
}

impl Body {
    pub(super) fn new(buffer: Msgbuf, at: usize, encoding: Encoding) -> Self {
        Self {
            buffer,
            at,
            encoding,
            made_as: None,
        }
    }

    pub(super) fn received(message: OwnedMessage, encoding: Encoding) -> Self {
        let (buffer, at) = message.into_parts();
        Self::new(buffer, at, encoding)
    }

    pub(super) fn of<M: Message>(message: &M) -> Self {
        let (head, tail) = message.parts();
        Self {
            buffer: Msgbuf::from_parts(head.to_vec(), tail.cloned()),
            at: 0,
            encoding: Encoding::Native,
            made_as: Some(M::LAYOUT),
        }
    }

    fn bytes(&self) -> Cow<'_, [u8]> {
        let head = self.buffer.head().get(self.at..).unwrap_or_default();
        match self.buffer.tail() {
            [] => Cow::Borrowed(head),
            tail => Cow::Owned([head, tail].concat()),
        }
    }

    fn decode<M: Message>(&self) -> Result<M, String> {
        let bytes = self.bytes();
        match self.encoding {
            Encoding::Native => Arena::adopt(bytes.into_owned(), 0, M::LAYOUT)
                .map(M::from_arena)
                .map_err(|error| error.to_string()),
            Encoding::Protobuf => {
                M::from_protobuf(&bytes, DecodeLimits::default()).map_err(|error| error.to_string())
            }
        }
    }

    /// The message in this encoding, behind `room` bytes.
    pub(super) fn into_buffer(self, encoding: Encoding, room: usize) -> Result<Msgbuf, Status> {
        if self.encoding == encoding {
            let (mut head, tail) = self.buffer.into_parts();
            if room != self.at {
                head.splice(..self.at.min(head.len()), std::iter::repeat_n(0, room));
            }
            return Ok(Msgbuf::from_parts(head, tail));
        }
        let (Encoding::Protobuf, Some(layout)) = (encoding, self.made_as) else {
            return Err(Status::internal(
                "an interceptor handed on a message in another encoding than its call has",
            ));
        };
        let (head, tail) = self.buffer.into_parts();
        let mut bytes = vec![0; room];
        protobuf::encode(layout, Reader::in_parts(&head, tail.as_ref()), &mut bytes)
            .map_err(|error| Status::internal(format!("an interceptor's message: {error}")))?;
        Ok(Msgbuf::from_vec(bytes))
    }

    /// Refuses a message that was made here and is not of the method's type.
    pub(super) fn check(&self, expected: Option<&'static MessageLayout>) -> Result<(), Status> {
        match (self.made_as, expected) {
            (Some(made), Some(expected)) => check_type(made, expected),
            _ => Ok(()),
        }
    }
}

/// Whether both are one type.
fn check_type(used: &MessageLayout, expected: &MessageLayout) -> Result<(), Status> {
    if used.name == expected.name && used.schema_hash == expected.schema_hash {
        return Ok(());
    }
    Err(Status::internal(format!(
        "an interceptor took the message for {}; it is {}",
        used.name, expected.name
    )))
}

fn malformed(what: &str, error: impl fmt::Display) -> Status {
    Status::invalid_argument(format!("the {what} is malformed: {error}"))
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

    /// Whether the method has streams. Then there is no message here.
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

    /// Sets the call's deadline. At a server it changes what the handler sees; the caller goes on waiting
    /// until its own.
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
        body.decode().map_err(|error| malformed("request", error))
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

/// A stream that a client begins.
pub struct InterceptedStream {
    pub(super) path: &'static str,
    pub(super) metadata: Metadata,
    pub(super) timeout: Option<Duration>,
}

impl InterceptedStream {
    /// The method: `/chat.Chat/Talk`.
    pub fn path(&self) -> &str {
        self.path
    }

    /// The metadata that goes with the first message.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// The time after which the stream ends with DEADLINE_EXCEEDED.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Sets that time.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }
}

impl fmt::Debug for InterceptedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InterceptedStream")
            .field("path", &self.path)
            .field("metadata", &self.metadata)
            .field("timeout", &self.timeout)
            .finish()
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
    /// A response of the interceptor's own.
    pub fn new<P: Message>(message: &P) -> Self {
        Self {
            method: None,
            metadata: Metadata::default(),
            body: Some(Body::of(message)),
        }
    }

    /// The metadata of the response. Empty for a stream, whose handler sends its own.
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
        })
    }

    /// The response for the caller of a channel, with its encoding.
    pub(super) fn into_message(
        self,
        method: Option<&'static MethodDescriptor>,
    ) -> Result<(OwnedMessage, Encoding), Status> {
        // Generated code takes either encoding, other callers have asked in protobuf.
        let encoding = match (&self.body, method) {
            (Some(body), Some(_)) => body.encoding,
            _ => Encoding::Protobuf,
        };
        let response = self.into_response(method, encoding)?;
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
