//! The methods of a server, as a listener runs them.

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use starling_endpoint::{
    Cancellation, HeldMost, OwnedMessage, Peer, ResponseMessage, Status, UnaryFn, WorkerFn,
};
use starling_message::MethodDescriptor;
use starling_message::protobuf::DecodeLimits;

use crate::channel_factory::ChannelFactory;
use crate::coding::MethodCoding;
use crate::endpoint::Endpoint;
use crate::message::Here;
use crate::method_options::MethodTable;
use crate::metrics::Turns;
use crate::plane::Serving;
use crate::streaming::{ByteAccount, HeldBytes, StreamEnd};

/// A method of a server. It knows no plane and no device: all listeners of the server share it.
pub trait Method: Send + Sync {
    /// Its path, its number and the types of its messages.
    fn descriptor(&self) -> &'static MethodDescriptor;

    /// Makes the handler for one listener, which calls it directly.
    fn handler(&self, listener: &ListenerContext) -> MethodHandler;

    /// Whether it is of a service that every server has. Its futures run in the listener's thread even if the
    /// user has an executor for them.
    fn is_built_in(&self) -> bool {
        false
    }
}

/// How a listener runs a method.
pub enum MethodHandler {
    /// In the thread that received the request. It answers before it returns.
    Inline(Box<UnaryFn>),
    /// In a worker thread. It answers before it returns.
    Worker(Arc<WorkerFn>),
    /// As a future.
    Nested(Arc<NestedFn>),
    /// As a future that sends or receives streams.
    Streaming(Arc<StreamingFn>),
}

impl fmt::Debug for MethodHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inline(_) => "MethodHandler::Inline",
            Self::Worker(_) => "MethodHandler::Worker",
            Self::Nested(_) => "MethodHandler::Nested",
            Self::Streaming(_) => "MethodHandler::Streaming",
        })
    }
}

/// The future of a nested handler. Dropping it cancels the calls that it made. Its status says whether the
/// handler ran.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<ResponseMessage, Status>> + Send>>;

/// What a listener knows of a call that came, besides its message.
#[derive(Clone, Debug)]
pub struct IncomingCall {
    /// The time that the caller still waits.
    pub remaining: Option<Duration>,
    /// The caller.
    pub peer: Peer,
    /// Whether the caller still waits.
    pub cancellation: Cancellation,
}

/// A call without a deadline, of an unknown caller, who waits.
impl Default for IncomingCall {
    fn default() -> Self {
        Self {
            remaining: None,
            peer: Peer::unknown().clone(),
            cancellation: Cancellation::default(),
        }
    }
}

/// Begins a nested handler. The error is that of a request that was not run.
pub type NestedFn =
    dyn Fn(OwnedMessage, IncomingCall) -> Result<HandlerFuture, Status> + Send + Sync;

/// The future of a handler with streams. Dropping it cancels the calls that it made.
pub type StreamingFuture = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

/// Begins a handler with streams.
pub type StreamingFn = dyn Fn(ServerStreamEnd, IncomingCall) -> StreamingFuture + Send + Sync;

/// A server's end of a stream. Only the direct plane makes one in this version.
pub struct ServerStreamEnd(pub(crate) Arc<dyn StreamEnd>);

impl fmt::Debug for ServerStreamEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerStreamEnd(..)")
    }
}

/// The parts of a listener that handlers use.
pub struct ListenerContext {
    pub(crate) channels: Arc<ChannelFactory>,
    pub(crate) options: Arc<MethodTable>,
    pub(crate) decode: DecodeLimits,
    /// What its requests take that wait and came in protobuf.
    pub(crate) decoded: DecodedRequests,
    /// What counts the calls of inline handlers, if the listener ends turns and metrics are enabled.
    pub(crate) turns: Option<Arc<Turns>>,
    /// Futures may run in other threads than the listener's.
    pub(crate) has_executor: bool,
}

impl ListenerContext {
    /// The context of a listener whose nested handlers run on an endpoint: they make their calls through
    /// it, and they sleep by its timers.
    pub fn on_endpoint(endpoint: &Endpoint, serving: &Serving) -> Self {
        Self {
            channels: Arc::clone(endpoint.channels()),
            options: Arc::clone(&serving.registry.options),
            decode: serving.registry.decode,
            decoded: DecodedRequests::new(serving.config().max_waiting_bytes),
            turns: None,
            has_executor: true,
        }
    }

    /// The address that the listener is bound to.
    pub(crate) fn address(&self) -> Arc<str> {
        self.channels.own().as_str().into()
    }

    /// What the handler of a method has.
    pub(crate) fn here(&self, method: &'static MethodDescriptor, is_built_in: bool) -> Here {
        let options = self.options.of(method.path, is_built_in);
        Here {
            memory: self.channels.memory.clone(),
            time: self.channels.executor.time.clone(),
            coding: MethodCoding::new(method.path, &options, self.decode),
        }
    }
}

/// What the requests of async handlers take in memory that came in protobuf: they are larger than they were
/// when they were admitted.
#[derive(Clone)]
pub(crate) struct DecodedRequests {
    account: Arc<ByteAccount>,
    /// Of the numbers of clients.
    hasher: RandomState,
}

impl DecodedRequests {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self {
            account: ByteAccount::of_requests(max_bytes),
            hasher: RandomState::new(),
        }
    }

    /// Bytes that they hold now.
    pub(crate) fn held_bytes(&self) -> usize {
        self.account.held_bytes()
    }

    /// Says what they held at most since it was last asked.
    pub(crate) fn held_most(&self) -> HeldMost {
        self.account.held_most()
    }

    /// Counts a request of this client, until what this returns is dropped.
    ///
    /// # Errors
    /// If the client has more than is free. The handler has not run.
    pub(crate) fn hold(&self, peer: &Peer, bytes: usize) -> Result<HeldBytes, Status> {
        if bytes == 0 {
            return Ok(HeldBytes::default());
        }
        let client = self.hasher.hash_one(peer.address());
        let held = self.account.hold(Some(client), bytes);
        held.ok_or_else(|| {
            Status::resource_exhausted(format!(
                "too many decoded requests wait for the server's handlers, this one takes {bytes} bytes; send \
                 less at once, or have the server raise `EndpointConfig::max_waiting_bytes`"
            ))
            .with_not_run()
        })
    }
}

impl fmt::Debug for ListenerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ListenerContext(..)")
    }
}
