//! Requests and responses: what a handler gets, and what a caller gets back.

use std::fmt;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use starling_compress::AlgorithmSet;
use starling_endpoint::{
    Cancellation, Encoding, Metadata, MetadataView, Msgbuf, OwnedMessage, Peer, RequestCoding,
    RequestView, ResponseBuilder, ResponseMessage, Status,
};
use starling_io::{LARGE_BYTES, MessageMemory, PeerMemory};
use starling_message::protobuf::{self, DecodeLimits};
use starling_message::{Arena, Bytes, Message, MessageView, Reader, reflect, validate};
use starling_msgbuf::spare;

use crate::coding::MethodCoding;
use crate::nested::NestedContext;
use crate::streaming::StreamItem;
use crate::time::Time;

/// What a listener has for a handler.
#[derive(Clone)]
pub(crate) struct Here {
    /// The best memory for large parts of responses.
    pub(crate) memory: MessageMemory,
    pub(crate) time: Time,
    /// Of the method.
    pub(crate) coding: MethodCoding,
}

/// The best memory for messages to a caller: its own, or the device's for everybody.
pub(crate) fn best_memory<'a>(peer: &'a Peer, of_device: &'a MessageMemory) -> &'a MessageMemory {
    let own = peer.memory();
    if own.is_of_device() { own } else { of_device }
}

/// A request of an inline or worker handler. The handler reads it where it was received.
pub struct Request<'a, Q: Message> {
    pub(crate) view: Q::View<'a>,
    pub(crate) metadata: MetadataView<'a>,
    pub(crate) remaining: Option<Duration>,
    pub(crate) deadline: Option<Instant>,
    here: &'a Here,
    peer: &'a Peer,
    /// `None`: the handler runs in the thread that would hear of a cancellation.
    cancellation: Option<&'a Cancellation>,
    /// Goes with the response.
    response_metadata: &'a Mutex<Metadata>,
}

impl<'a, Q: Message> Request<'a, Q> {
    #[inline]
    fn new(
        view: Q::View<'a>,
        request: RequestView<'a>,
        here: &'a Here,
        response_metadata: &'a Mutex<Metadata>,
    ) -> Self {
        Self {
            view,
            metadata: request.metadata(),
            remaining: request.remaining(),
            deadline: here.time.after(request.remaining()),
            here,
            peer: request.peer(),
            cancellation: request.cancellation(),
            response_metadata,
        }
    }

    /// The message.
    #[inline]
    pub fn message(&self) -> Q::View<'a> {
        self.view
    }

    /// The metadata that the caller sent with the message.
    pub fn metadata(&self) -> MetadataView<'a> {
        self.metadata
    }

    /// The time that was left until the deadline when the handler started. None without a deadline.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// The call's deadline.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Who calls.
    pub fn peer(&self) -> &'a Peer {
        self.peer
    }

    /// Whether the caller no longer waits: it cancelled the call, it is gone, or its deadline has passed. A
    /// worker handler that works for long asks now and then. An inline handler learns of the deadline only.
    pub fn is_cancelled(&self) -> bool {
        let is_late = |deadline| deadline <= self.here.time.now();
        self.cancellation.is_some_and(Cancellation::is_cancelled)
            || self.deadline.is_some_and(is_late)
    }

    /// The same for other threads and tasks, which can wait for it. `None` in an inline handler: nothing
    /// cancels a call while the thread runs that would hear of it.
    pub fn cancellation(&self) -> Option<&'a Cancellation> {
        self.cancellation
    }

    /// The best memory for a large bytes field of the response, for `reply.set_..._bytes`: a device that
    /// can do so sends from there without a copy. Over `shm://` nobody but this caller can read it.
    /// What is kept of it counts for this caller as long as it is kept: keep a copy.
    pub fn memory(&self) -> &'a MessageMemory {
        best_memory(self.peer, &self.here.memory)
    }

    /// Sends metadata with the response, in place of what was set before. A call that fails sends that of its
    /// status.
    pub fn set_response_metadata(&self, metadata: Metadata) {
        *self.response_metadata.lock() = metadata;
    }
}

impl<Q: Message> fmt::Debug for Request<'_, Q>
where
    for<'a> Q::View<'a>: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("message", &self.view)
            .field("metadata", &self.metadata)
            .field("remaining", &self.remaining)
            .field("peer", &self.peer)
            .finish()
    }
}

/// A received message that outlives its datagram: as received, or decoded from protobuf.
#[derive(Clone)]
enum Kept<M: Message> {
    /// Validated.
    Native(OwnedMessage),
    Decoded(M, Metadata),
    /// The only message of a stream. It counts as the stream's as long as it is here; at a server, what was
    /// decoded counts until the handler ends.
    Item(StreamItem<'static, M>, Metadata),
}

impl<M: Message> fmt::Debug for Kept<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        reflect::debug(M::LAYOUT, self.view().reader(), f)
    }
}

impl<M: Message> Kept<M> {
    fn receive(
        message: OwnedMessage,
        encoding: Encoding,
        limits: &DecodeLimits,
    ) -> Result<Self, String> {
        match encoding {
            Encoding::Native => {
                validate(M::LAYOUT, message.body()).map_err(|error| error.to_string())?;
                Ok(Self::Native(message))
            }
            Encoding::Protobuf => {
                let decoded =
                    M::from_protobuf(message.body(), *limits).map_err(|error| error.to_string())?;
                Ok(Self::Decoded(decoded, message.to_metadata()))
            }
        }
    }

    #[inline]
    fn view(&self) -> M::View<'_> {
        match self {
            Self::Native(message) => M::view_of(Reader::root(message.body())),
            Self::Decoded(message, _) => message.view(),
            Self::Item(item, _) => item.message(),
        }
    }

    fn metadata(&self) -> MetadataView<'_> {
        match self {
            Self::Native(message) => message.metadata(),
            Self::Decoded(_, metadata) | Self::Item(_, metadata) => metadata.view(),
        }
    }

    fn into_message(self) -> M {
        match self {
            Self::Decoded(message, _) => message,
            Self::Item(item, _) => item.into_message(),
            Self::Native(message) => {
                let (buffer, body_at) = message.into_parts();
                let (bytes, _) = buffer.into_parts();
                let arena = Arena::adopt(bytes, body_at, M::LAYOUT);
                M::from_arena(arena.expect("the message was validated when it arrived"))
            }
        }
    }
}

/// A request of a nested handler. It outlives the receive buffer.
pub struct OwnedRequest<Q: Message> {
    kept: Kept<Q>,
    deadline: Option<Instant>,
    peer: Peer,
}

impl<Q: Message> OwnedRequest<Q> {
    pub(crate) fn receive(
        message: OwnedMessage,
        encoding: Encoding,
        limits: &DecodeLimits,
        context: &NestedContext,
    ) -> Result<Self, Status> {
        Ok(Self {
            kept: Kept::receive(message, encoding, limits).map_err(malformed_request)?,
            deadline: context.deadline(),
            peer: context.peer().clone(),
        })
    }

    /// Bytes of memory that it takes beyond those that came.
    pub(crate) fn decoded_len(&self) -> usize {
        match &self.kept {
            Kept::Decoded(message, _) => message.arena().memory_len(),
            Kept::Native(_) | Kept::Item(..) => 0,
        }
    }

    /// The only request of a call with a stream of responses.
    pub(crate) fn of_stream(
        item: StreamItem<'static, Q>,
        metadata: Metadata,
        context: &NestedContext,
    ) -> Self {
        Self {
            kept: Kept::Item(item, metadata),
            deadline: context.deadline(),
            peer: context.peer().clone(),
        }
    }

    /// The message.
    pub fn message(&self) -> Q::View<'_> {
        self.kept.view()
    }

    /// The metadata that the caller sent with the message.
    pub fn metadata(&self) -> MetadataView<'_> {
        self.kept.metadata()
    }

    /// The call's deadline.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Who calls. The handler's [`NestedContext`] says whether the caller still waits.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The message alone, in the memory that it was received in; a copy of a stream's only message.
    pub fn into_message(self) -> Q {
        self.kept.into_message()
    }
}

impl<Q: Message> fmt::Debug for OwnedRequest<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedRequest")
            .field("message", &self.kept)
            .field("metadata", &self.metadata())
            .field("deadline", &self.deadline)
            .finish()
    }
}

/// The response to a call.
#[derive(Clone)]
pub struct Response<P: Message> {
    kept: Kept<P>,
}

impl<P: Message> fmt::Debug for Response<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("message", &self.kept)
            .field("metadata", &self.metadata())
            .finish()
    }
}

impl<P: Message> Response<P> {
    pub(crate) fn receive(
        message: OwnedMessage,
        encoding: Encoding,
        limits: &DecodeLimits,
    ) -> Result<Self, Status> {
        let malformed =
            |error| Status::internal(format!("the server's response is malformed: {error}"));
        Ok(Self {
            kept: Kept::receive(message, encoding, limits).map_err(malformed)?,
        })
    }

    /// The message.
    #[inline]
    pub fn message(&self) -> P::View<'_> {
        self.kept.view()
    }

    /// The metadata that the server sent with the message.
    pub fn metadata(&self) -> MetadataView<'_> {
        self.kept.metadata()
    }

    /// The message alone, in the memory that it was received in; a copy of a stream's only message.
    pub fn into_message(mut self) -> P {
        self.take_kept().into_message()
    }

    fn take_kept(&mut self) -> Kept<P> {
        std::mem::replace(&mut self.kept, Kept::Native(OwnedMessage::default()))
    }
}

impl<P: Message> Drop for Response<P> {
    #[inline]
    fn drop(&mut self) {
        if let Kept::Native(message) = self.take_kept() {
            let (buffer, _) = message.into_parts();
            spare::give(buffer.into_parts().0);
        }
    }
}

/// The handler did not run.
#[cold]
fn malformed_request(error: impl fmt::Display) -> Status {
    Status::invalid_argument(format!("the client's request is malformed: {error}")).with_not_run()
}

/// Runs a handler on a request and appends the response. The error says whether the handler ran. In the
/// native layout it copies nothing and, if the response fits, allocates nothing.
#[inline]
pub(crate) fn serve<Q: Message, P: Message>(
    request: RequestView<'_>,
    here: &Here,
    response: &mut ResponseBuilder<'_>,
    handler: impl FnOnce(Request<'_, Q>, P::Mut<'_>) -> Result<(), Status>,
) -> Result<(), Status> {
    let (encoding, coding) = request.form();
    if encoding == Encoding::Protobuf || !coding.is_plain() {
        return serve_uncommon::<Q, P>(request, (encoding, coding), here, response, handler);
    }
    let body = request.body();
    here.coding.check_request(body.len())?;
    serve_native::<Q, P>(request, body, here, response, handler)
}

/// The same for a request that is compressed, or whose response may be, or from a peer with another version of
/// the schema.
fn serve_uncommon<Q: Message, P: Message>(
    request: RequestView<'_>,
    (encoding, coding): (Encoding, RequestCoding),
    here: &Here,
    response: &mut ResponseBuilder<'_>,
    handler: impl FnOnce(Request<'_, Q>, P::Mut<'_>) -> Result<(), Status>,
) -> Result<(), Status> {
    let body = here.coding.open(request.body(), coding)?;
    match encoding {
        Encoding::Native => serve_native::<Q, P>(request, &body, here, response, handler),
        Encoding::Protobuf => serve_protobuf::<Q, P>(request, &body, here, response, handler),
    }?;
    here.coding
        .seal(AlgorithmSet::from_bits(coding.accepts), response);
    Ok(())
}

#[inline(always)]
fn serve_native<Q: Message, P: Message>(
    request: RequestView<'_>,
    body: &[u8],
    here: &Here,
    response: &mut ResponseBuilder<'_>,
    handler: impl FnOnce(Request<'_, Q>, P::Mut<'_>) -> Result<(), Status>,
) -> Result<(), Status> {
    validate(Q::LAYOUT, body).map_err(malformed_request)?;
    let metadata = Mutex::new(Metadata::default());
    let request = Request::new(Q::view_of(Reader::root(body)), request, here, &metadata);
    let own_buffer = std::mem::take(response.body());
    let mut arena = Arena::begin(own_buffer, P::LAYOUT);
    handler(request, P::mut_of(arena.root())).map_err(Status::with_run)?;
    let (head, tail) = arena.into_parts();
    let len = head.len() + tail.as_ref().map_or(0, Bytes::len);
    *response.body() = head;
    if let Some(tail) = tail {
        response.set_tail(tail);
    }
    set_metadata(response, metadata);
    here.coding.check_response(len)
}

#[inline]
fn set_metadata(response: &mut ResponseBuilder<'_>, metadata: Mutex<Metadata>) {
    let metadata = metadata.into_inner();
    if !metadata.is_empty() {
        response.set_metadata(metadata);
    }
}

fn serve_protobuf<Q: Message, P: Message>(
    request: RequestView<'_>,
    body: &[u8],
    here: &Here,
    response: &mut ResponseBuilder<'_>,
    handler: impl FnOnce(Request<'_, Q>, P::Mut<'_>) -> Result<(), Status>,
) -> Result<(), Status> {
    let decoded = Q::from_protobuf(body, here.coding.decode).map_err(malformed_request)?;
    let metadata = Mutex::new(Metadata::default());
    let request = Request::new(decoded.view(), request, here, &metadata);
    let mut built = P::default();
    handler(request, built.as_mut()).map_err(Status::with_run)?;
    set_metadata(response, metadata);
    encode_protobuf(&built, response.body())?;
    let len = response.body().len();
    here.coding.check_response(len)
}

/// A response on its way to the caller.
pub(crate) fn respond<P: Message>(
    response: &P,
    encoding: Encoding,
    metadata: Metadata,
) -> Result<ResponseMessage, Status> {
    let mut body = Vec::new();
    let mut tail = None;
    match encoding {
        Encoding::Native => {
            let (head, own_tail) = response.parts();
            body.extend_from_slice(head);
            tail = own_tail.cloned();
        }
        Encoding::Protobuf => encode_protobuf(response, &mut body)?,
    }
    Ok(ResponseMessage {
        body: Msgbuf::from_parts(body, tail),
        metadata,
        compressed: None,
    })
}

fn encode_protobuf<P: Message>(response: &P, out: &mut Vec<u8>) -> Result<(), Status> {
    protobuf::encode(P::LAYOUT, response.arena().reader(), out)
        .map_err(|error| Status::internal(format!("the response: {error}")))
}

/// A request in the native layout, after `room` bytes for the call header. A large one goes to `memory`, if that has
/// room.
#[inline]
pub(crate) fn prepare<Q: Message>(request: &Q, room: usize, memory: Option<&PeerMemory>) -> Msgbuf {
    let (head, tail) = request.parts();
    if head.len() >= LARGE_BYTES
        && tail.is_none()
        && let Some(body) = memory.and_then(|memory| memory.copy(head))
    {
        return Msgbuf::from_parts(vec![0; room], Some(body));
    }
    let mut bytes = spare::take(room + head.len());
    bytes.resize(room, 0);
    bytes.extend_from_slice(head);
    Msgbuf::from_parts(bytes, tail.cloned())
}
