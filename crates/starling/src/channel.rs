//! Calls from any thread and any executor.

mod builder;

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use starling_endpoint::Status;
use starling_io::MessageMemory;
use starling_message::{Message, MethodDescriptor};

use crate::balancing::BackendState;
use crate::caller::Caller;
use crate::channel_call::{RawCall, Shared};
use crate::channel_state::ChannelState;
use crate::error::Error;
use crate::interceptor::{Interceptor, Interceptors, stream_through};
use crate::message::{Response, prepare};
use crate::metrics::client_end;
use crate::options::CallOptions;
use crate::plane::Operation;
use crate::stats::ThreadStats;
use crate::streaming::{self, ClientEnd, Route, StreamReceiver, StreamSender};
use crate::trace::{self, ClientSpan};
use crate::wait::block_on;

pub use builder::ChannelBuilder;

/// A connection to a server, for use from any thread and inside any executor:
/// `KvClient::new(Channel::connect("udp://kv:9000").await?)`. Cheap to clone; clones share the
/// connection.
///
/// The channels of a process share one endpoint for each kind of address. It ends with the last of
/// them. [`ChannelBuilder::own_endpoint`] gives a channel its own. No thread owns the endpoint: a
/// thread in [`ChannelCall::wait`] or [`block_on`](crate::block_on) drives it while it waits, and sends
/// what others have left. In a tokio runtime, a task of the runtime does so for the other tasks (feature
/// `tokio`, on by default). A thread in the background does what nobody waits for, and the calls of
/// other executors, whose threads must not sleep for one call.
///
/// A call begins at the latest when its future is polled. A call that is never polled begins some
/// milliseconds later.
///
/// Over `xdp://`, the endpoint has a queue of the interface to itself: the first, unless the address
/// ends in `?queue=N`. A server on that interface, channels over the other IP version, and channels
/// with an endpoint of their own need other queues.
///
/// After a fork, a channel has an endpoint of its own in the child. Calls that are out then belong to
/// the parent; in the child they end with UNAVAILABLE.
///
/// A connection that fails is opened anew, with growing pauses. A call that may have reached the
/// server is never made again. A call that was not sent when its session ended is made again, once.
#[derive(Clone)]
pub struct Channel {
    shared: Arc<Shared>,
    interceptors: Interceptors,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("address", &self.shared.address)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl Channel {
    /// A channel to `address` that is connected.
    pub async fn connect(address: &str) -> Result<Self, Error> {
        Self::builder(address).connect().await
    }

    /// A channel to `address` that connects with its first call.
    pub fn lazy(address: &str) -> Result<Self, Error> {
        Self::builder(address).lazy()
    }

    /// A channel to `address`, with settings.
    pub fn builder(address: &str) -> ChannelBuilder {
        ChannelBuilder::new(vec![address.to_owned()])
    }

    /// A channel to several servers, with settings. Calls go to them one after the other, unless
    /// [`ChannelBuilder::load_balancing`] says otherwise.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), starling::Error> {
    /// use starling::Channel;
    ///
    /// let channel = Channel::balanced(["udp://kv-0:9000", "udp://kv-1:9000"]).lazy()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn balanced<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> ChannelBuilder {
        let addresses = addresses.into_iter().map(A::into).collect();
        ChannelBuilder::new(addresses).balanced()
    }

    /// What this process uses of the channel. In a child of the process that made the channel, it is
    /// another endpoint with the same settings.
    pub(crate) fn here(&self) -> Result<&Arc<Shared>, Status> {
        let mut channel = self;
        while !channel.shared.is_of_this_process() {
            let in_child = &channel.shared.in_child;
            if in_child.get().is_none() {
                let made = self.shared.remake().map_err(|why| {
                    let text = format!("after a fork: {why}; the call did not run");
                    Status::unavailable(text).with_not_run()
                })?;
                // Of two threads at once, one drops what it has made.
                let _ = in_child.set(made);
            }
            channel = in_child.get().expect("just set");
        }
        Ok(&channel.shared)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The same channel, with one more interceptor, which is the last one to see a call. Clients that were
    /// made of this one do not have it, so each service can have its own.
    #[must_use]
    pub fn intercept(&self, interceptor: impl Interceptor) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            interceptors: self.interceptors.with(interceptor),
        }
    }

    /// The same channel with these interceptors.
    pub(crate) fn with_interceptors(self, interceptors: &Interceptors) -> Self {
        Self {
            interceptors: interceptors.clone(),
            ..self
        }
    }

    pub(crate) fn interceptors(&self) -> &Interceptors {
        &self.interceptors
    }

    /// The server's address.
    pub fn address(&self) -> &str {
        &self.shared.address
    }

    /// The best memory for large bytes fields of requests, for `request.set_..._bytes`: a device that
    /// can do so sends from there without a copy. Over `shm://` it is shared with the servers that this
    /// process has connected to: all of them can read what is made in it.
    pub fn memory(&self) -> &MessageMemory {
        self.here().unwrap_or(&self.shared).transport.memory()
    }

    /// Where the connection stands.
    pub fn state(&self) -> ChannelState {
        self.here().unwrap_or(&self.shared).transport.state()
    }

    /// The servers behind the channel, as they are now: those of [`Channel::balanced`] or of a resolver. None
    /// before the first call, and of a channel to one server.
    pub fn backends(&self) -> Vec<BackendState> {
        let balanced = self.here().ok().and_then(|shared| shared.balanced.as_ref());
        balanced.map(|it| it.backends()).unwrap_or_default()
    }

    /// A channel to each of the servers behind this one, as they are now, for calls to all of them or to one in
    /// particular. They have this channel's interceptors and service config, and a capacity of their own. A
    /// channel to one server gives itself. One that is new or idle has none yet, and begins to find them.
    pub fn each_backend(&self) -> Vec<Self> {
        let Some(shared) = self.here().ok().filter(|shared| shared.balanced.is_some()) else {
            return vec![self.clone()];
        };
        let each = shared.balanced.iter().flat_map(|balanced| balanced.each());
        each.map(|(address, backend)| Self {
            shared: Arc::new(shared.with_transport(address, Box::new(backend))),
            interceptors: self.interceptors.clone(),
        })
        .collect()
    }

    /// Calls that are not over. Streams do not count.
    pub fn calls_outstanding(&self) -> usize {
        self.here().unwrap_or(&self.shared).permits.taken()
    }

    /// Counters of the endpoint and its device, for all channels that share the endpoint. Waits for the
    /// end of the turn that is being taken.
    ///
    /// # Errors
    /// UNAVAILABLE if the endpoint has ended, with the reason.
    pub fn stats(&self) -> Result<ThreadStats, Status> {
        self.here()?.transport.stats()
    }

    /// Connects, unless the channel is connected. Fails if the first attempt does.
    pub async fn ready(&self) -> Result<(), Status> {
        self.connected(false).await
    }

    /// Waits until the server can be reached, without a limit.
    pub async fn wait_for_ready(&self) -> Result<(), Status> {
        self.connected(true).await
    }

    async fn connected(&self, wait_for_ready: bool) -> Result<(), Status> {
        let shared = self.here()?;
        let mut call = RawCall::new(shared, Operation::Connect { wait_for_ready });
        let connected = std::future::poll_fn(|cx| call.poll(cx)).await.map(drop);
        // No call of the user's was made.
        connected.map_err(Status::with_not_run)
    }
}

/// A call of a [`Channel`]. Dropping it cancels the call.
#[must_use = "dropping the future cancels the call"]
pub struct ChannelCall<P: Message> {
    raw: RawCall,
    /// If the call is in a trace.
    span: Option<Box<ClientSpan>>,
    response: PhantomData<fn() -> P>,
}

impl<P: Message> ChannelCall<P> {
    fn of(raw: RawCall) -> Self {
        Self {
            raw,
            span: None,
            response: PhantomData,
        }
    }

    /// Waits for the call. This thread drives the channel's endpoint meanwhile, or sleeps, so this is not
    /// for use inside an executor.
    pub fn wait(self) -> Result<Response<P>, Status> {
        block_on(self)
    }
}

impl<P: Message> Future for ChannelCall<P> {
    type Output = Result<Response<P>, Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(result) = self.raw.poll(cx) else {
            return Poll::Pending;
        };
        let result = result.and_then(|(bytes, encoding)| {
            Response::receive(bytes, encoding, self.raw.decode_limits())
        });
        if let Some(span) = self.span.take() {
            span.end(&result);
        }
        Poll::Ready(result)
    }
}

impl<P: Message> fmt::Debug for ChannelCall<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChannelCall(..)")
    }
}

impl Caller for Channel {
    type Call<P: Message> = ChannelCall<P>;

    fn unary<Q: Message, P: Message>(
        &self,
        method: &'static MethodDescriptor,
        request: &Q,
        options: &CallOptions,
        own: Option<&CallOptions>,
    ) -> ChannelCall<P> {
        let (shared, options) = match (self.here(), options.merged(own)) {
            (Ok(shared), Ok(options)) => (shared, options),
            (Err(status), _) | (_, Err(status)) => {
                return ChannelCall::of(RawCall::failed(&self.shared, status));
            }
        };
        let mut options = shared.with_policy(method.path, options);
        let span = trace::begin_call(method.path, &shared.address, &mut options);
        let (mut call, coding) = options.into_owned().outgoing(method, &shared.time);
        let memory = shared.transport.peer_memory();
        call.message.payload = prepare(request, call.message.headroom, memory);
        let call = RawCall::intercepted(shared, &self.interceptors, call, coding);
        ChannelCall {
            span,
            ..ChannelCall::of(call)
        }
    }

    fn streams<Q: Message, P: Message>(
        &self,
        method: &'static MethodDescriptor,
        options: &CallOptions,
        own: Option<&CallOptions>,
    ) -> (StreamSender<Q>, StreamReceiver<P>) {
        streaming::halves(match (self.here(), options.merged(own)) {
            (Ok(shared), Ok(options)) => {
                let mut options = shared.with_policy(method.path, options);
                let traced = trace::begin_stream(method.path, &shared.address, &mut options);
                let (route, options) = (Route::of_channel(shared), options.into_owned());
                let end = match self.interceptors.is_empty() {
                    true => {
                        let deadline = shared.time.after(options.timeout);
                        streaming::client_end(route, method, options, deadline)
                    }
                    false => stream_through(&self.interceptors, route, method, options),
                };
                client_end(traced(end), &shared.recorders, &shared.address, method)
            }
            (Err(status), _) | (_, Err(status)) => {
                let route = Route::Channel(Arc::clone(&self.shared), None);
                ClientEnd::failed(route, method, status)
            }
        })
    }
}
