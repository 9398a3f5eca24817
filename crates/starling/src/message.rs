//! Messages on their way: what a handler gets, what a caller gets back, and the change from the
//! native layout to protobuf for peers that have another version of the schema.

use std::fmt;
use std::time::{Duration, Instant};

use bytes::Bytes;
use starling_endpoint::{Encoding, Metadata, MetadataView, Msgbuf, OwnedMessage, Status};
use starling_io::MessageMemory;
use starling_message::{
    Arena, Message, MessageLayout, MessageView, Reader, protobuf, reflect, validate,
};

/// The most memory that a message decoded from protobuf may take, in bytes. On the wire it has at
/// most 64 MiB; unpacked, small elements grow.
const MAX_DECODED_BYTES: usize = 256 << 20;

/// A request, as an inline or worker handler gets it: read where it was received.
pub struct Request<'a, Q: Message> {
    pub(crate) view: Q::View<'a>,
    pub(crate) metadata: MetadataView<'a>,
    pub(crate) remaining: Option<Duration>,
    pub(crate) memory: &'a MessageMemory,
}

impl<'a, Q: Message> Request<'a, Q> {
    /// The message.
    #[inline]
    pub fn message(&self) -> Q::View<'a> {
        self.view
    }

    /// What the caller sent beside it.
    pub fn metadata(&self) -> MetadataView<'a> {
        self.metadata
    }

    /// How long the caller still waits, as of when the handler was begun.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// When the caller gives up.
    pub fn deadline(&self) -> Option<Instant> {
        Instant::now().checked_add(self.remaining?)
    }

    /// Where a large bytes field of the answer is best made, for `reply.set_..._bytes`: it is sent from
    /// there as it is, where the device that the request came by can do that.
    pub fn memory(&self) -> &'a MessageMemory {
        self.memory
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
            .finish()
    }
}

/// A received message that is kept: in the bytes that came, or decoded from protobuf.
#[derive(Clone)]
enum Kept<M> {
    /// Validated.
    Native(OwnedMessage),
    Decoded(M, Metadata),
}

impl<M: Message> fmt::Debug for Kept<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        reflect::debug(M::LAYOUT, self.view().reader(), f)
    }
}

impl<M: Message> Kept<M> {
    fn receive(message: OwnedMessage, encoding: Encoding) -> Result<Self, String> {
        match encoding {
            Encoding::Native => {
                validate(M::LAYOUT, message.body()).map_err(|error| error.to_string())?;
                Ok(Self::Native(message))
            }
            Encoding::Protobuf => {
                let decoded = M::from_protobuf(message.body(), MAX_DECODED_BYTES)
                    .map_err(|error| error.to_string())?;
                Ok(Self::Decoded(decoded, message.to_metadata()))
            }
        }
    }

    #[inline]
    fn view(&self) -> M::View<'_> {
        match self {
            Self::Native(message) => M::view_of(Reader::root(message.body())),
            Self::Decoded(message, _) => message.view(),
        }
    }

    fn metadata(&self) -> MetadataView<'_> {
        match self {
            Self::Native(message) => message.metadata(),
            Self::Decoded(_, metadata) => metadata.view(),
        }
    }

    fn into_message(self) -> M {
        match self {
            Self::Decoded(message, _) => message,
            Self::Native(message) => {
                let (buffer, body_at) = message.into_parts();
                let (bytes, _) = buffer.into_parts();
                let arena = Arena::adopt(bytes, body_at, M::LAYOUT);
                M::from_arena(arena.expect("it was validated when it arrived"))
            }
        }
    }
}

/// A request that outlives the receive buffer, as a nested handler gets it.
pub struct OwnedRequest<Q: Message> {
    kept: Kept<Q>,
    deadline: Option<Instant>,
}

impl<Q: Message> OwnedRequest<Q> {
    pub(crate) fn receive(
        message: OwnedMessage,
        encoding: Encoding,
        remaining: Option<Duration>,
    ) -> Result<Self, Status> {
        Ok(Self {
            kept: Kept::receive(message, encoding).map_err(malformed_request)?,
            deadline: remaining.and_then(|time| Instant::now().checked_add(time)),
        })
    }

    /// The message.
    pub fn message(&self) -> Q::View<'_> {
        self.kept.view()
    }

    /// What the caller sent beside it.
    pub fn metadata(&self) -> MetadataView<'_> {
        self.kept.metadata()
    }

    /// When the caller gives up.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The message alone, in the memory that it was received in.
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
    pub(crate) fn receive(message: OwnedMessage, encoding: Encoding) -> Result<Self, Status> {
        let malformed =
            |error| Status::internal(format!("the server's response is malformed: {error}"));
        Ok(Self {
            kept: Kept::receive(message, encoding).map_err(malformed)?,
        })
    }

    /// The message.
    #[inline]
    pub fn message(&self) -> P::View<'_> {
        self.kept.view()
    }

    /// What the server sent beside it.
    pub fn metadata(&self) -> MetadataView<'_> {
        self.kept.metadata()
    }

    /// The message alone, in the memory that it was received in.
    pub fn into_message(self) -> P {
        self.kept.into_message()
    }
}

#[cold]
fn malformed_request(error: impl fmt::Display) -> Status {
    Status::invalid_argument(format!("the client's request is malformed: {error}"))
}

/// Runs a handler on a request's bytes and builds the response at the end of `buffer`. In the
/// native layout nothing is copied and, if the response fits, nothing is allocated.
#[inline]
#[allow(clippy::too_many_arguments)]
pub(crate) fn serve<Q: Message, P: Message>(
    body: &[u8],
    encoding: Encoding,
    metadata: MetadataView<'_>,
    remaining: Option<Duration>,
    memory: &MessageMemory,
    buffer: Vec<u8>,
    handler: impl FnOnce(Request<'_, Q>, P::Mut<'_>) -> Result<(), Status>,
) -> Result<(Vec<u8>, Option<Bytes>), Status> {
    if encoding == Encoding::Protobuf {
        let decoded = Q::from_protobuf(body, MAX_DECODED_BYTES).map_err(malformed_request)?;
        let request = Request {
            view: decoded.view(),
            metadata,
            remaining,
            memory,
        };
        let mut response = P::default();
        handler(request, response.as_mut())?;
        return encode(response, encoding, buffer);
    }
    validate(Q::LAYOUT, body).map_err(malformed_request)?;
    let request = Request {
        view: Q::view_of(Reader::root(body)),
        metadata,
        remaining,
        memory,
    };
    let mut arena = Arena::begin(buffer, P::LAYOUT);
    handler(request, P::mut_of(arena.root()))?;
    Ok(arena.into_parts())
}

/// Appends a response to `buffer`.
pub(crate) fn encode<P: Message>(
    response: P,
    encoding: Encoding,
    mut buffer: Vec<u8>,
) -> Result<(Vec<u8>, Option<Bytes>), Status> {
    match encoding {
        Encoding::Native => {
            let (head, tail) = response.parts();
            buffer.extend_from_slice(head);
            Ok((buffer, tail.cloned()))
        }
        Encoding::Protobuf => {
            protobuf::encode(P::LAYOUT, response.arena().reader(), &mut buffer)
                .map_err(|error| Status::internal(format!("the response: {error}")))?;
            Ok((buffer, None))
        }
    }
}

/// A request in the native layout with `room` bytes for the call header in front.
#[inline]
pub(crate) fn prepare<Q: Message>(request: &Q, room: usize) -> Msgbuf {
    let (head, tail) = request.parts();
    let mut bytes = Vec::with_capacity(room + head.len());
    bytes.resize(room, 0);
    bytes.extend_from_slice(head);
    Msgbuf::from_parts(bytes, tail.cloned())
}

/// The same request in protobuf. `from` and `to` are the bytes of room for the call header.
#[cold]
pub(crate) fn convert(
    layout: &'static MessageLayout,
    message: Msgbuf,
    from: usize,
    to: usize,
) -> Result<Msgbuf, Status> {
    let (head, tail) = message.into_parts();
    let reader = Reader::in_parts(&head[from..], tail.as_ref());
    let mut bytes = vec![0; to];
    protobuf::encode(layout, reader, &mut bytes)
        .map_err(|error| Status::invalid_argument(format!("the request: {error}")))?;
    Ok(Msgbuf::from_vec(bytes))
}
