//! Calls from any thread and any executor.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use starling_endpoint::{EndpointConfig, Idle, Status};
use starling_io::{MessageMemory, forks};
use starling_message::{Message, MethodDescriptor};

use crate::address::Address;
use crate::caller::Caller;
use crate::channel_call::{RawCall, Shared};
use crate::channel_state::ChannelState;
use crate::driver::{DirectTransport, Driver};
use crate::error::Error;
use crate::interceptor::{Interceptor, Interceptors, stream_through};
use crate::message::{Response, prepare};
use crate::metrics::client_end;
use crate::options::CallOptions;
use crate::permits::Permits;
use crate::plane::{Operation, Transport};
use crate::stats::ThreadStats;
use crate::streaming::{self, ClientEnd, Route, StreamReceiver, StreamSender};
use crate::testing::TestClock;
use crate::threads;
use crate::time::Time;
use crate::trace::{self, ClientSpan};
use crate::wait::block_on;

/// Calls outstanding on a channel unless its builder sets another number.
const DEFAULT_CAPACITY: usize = 4096;

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

/// The settings of a [`Channel`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `connect` or `lazy`"]
pub struct ChannelBuilder {
    address: String,
    capacity: usize,
    fail_when_full: bool,
    own_endpoint: Option<EndpointConfig>,
    time: Time,
}

impl ChannelBuilder {
    /// The most calls outstanding at once. The default is 4096, the least is 1. Further calls wait in
    /// their futures.
    pub fn capacity(mut self, calls: usize) -> Self {
        self.capacity = calls.max(1);
        self
    }

    /// Has calls beyond the capacity end with RESOURCE_EXHAUSTED instead of waiting.
    pub fn fail_when_full(mut self) -> Self {
        self.fail_when_full = true;
        self
    }

    /// Gives the channel an endpoint of its own.
    pub fn own_endpoint(mut self) -> Self {
        self.own_endpoint.get_or_insert_default();
        self
    }

    /// Sets how a thread that drives the endpoint behaves when there is nothing to do. Gives the
    /// channel its own endpoint.
    pub fn idle(mut self, idle: Idle) -> Self {
        self.own_endpoint.get_or_insert_default().idle = idle;
        self
    }

    /// Every setting of the endpoint. Gives the channel its own endpoint.
    pub fn endpoint_config(mut self, config: EndpointConfig) -> Self {
        self.own_endpoint = Some(config);
        self
    }

    /// The same time as that of an endpoint.
    pub(crate) fn time(self, time: &Time) -> Self {
        if !time.is_manual() {
            return self;
        }
        Self {
            time: time.clone(),
            ..self.own_endpoint()
        }
    }

    /// Takes the time from a clock that a test moves by hand: for deadlines, timeouts, keepalive and pauses
    /// between attempts to connect. Gives the channel its own endpoint.
    pub fn clock(self, clock: &TestClock) -> Self {
        self.time(&clock.time())
    }

    /// A channel that connects with its first call.
    pub fn lazy(self) -> Result<Channel, Error> {
        let settings = self.clone();
        let address = Address::parse(&self.address)?;
        let driver = match &self.own_endpoint {
            Some(config) => Arc::new(Driver::start(&address, &self.time, config)?),
            None => Driver::shared(&address)?,
        };
        let transport = DirectTransport::new(driver, address);
        Ok(self.on(Box::new(transport), Some(settings)))
    }

    /// A channel whose calls another plane makes, or a transport of your own. The address is a name for
    /// people. After a fork, such a channel does not work in the child.
    pub fn over(self, transport: impl Transport + 'static) -> Channel {
        self.on(Box::new(transport), None)
    }

    fn on(self, transport: Box<dyn Transport>, settings: Option<Self>) -> Channel {
        let shared = Arc::new(Shared {
            transport,
            address: self.address,
            time: self.time,
            permits: Permits::new(self.capacity),
            fail_when_full: self.fail_when_full,
            process: forks(),
            settings,
            in_child: OnceLock::new(),
        });
        threads::add_channel(&shared);
        Channel {
            shared,
            interceptors: Interceptors::default(),
        }
    }

    /// A channel that is connected.
    pub async fn connect(self) -> Result<Channel, Error> {
        let channel = self.lazy()?;
        channel.ready().await.map_err(Error::Unreachable)?;
        Ok(channel)
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
        ChannelBuilder {
            address: address.to_owned(),
            capacity: DEFAULT_CAPACITY,
            fail_when_full: false,
            own_endpoint: None,
            time: Time::default(),
        }
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

    /// Calls that are not over.
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
        let result = result.and_then(|(bytes, encoding)| Response::receive(bytes, encoding));
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
        let mut options = options;
        let span = trace::begin_call(method.path, &shared.address, &mut options);
        let (mut call, coding) = options.into_owned().outgoing(method, &shared.time);
        call.message.payload = prepare(request, call.message.headroom);
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
            (Ok(shared), Ok(mut options)) => {
                let traced = trace::begin_stream(method.path, &shared.address, &mut options);
                let (route, options) = (Route::Channel(Arc::clone(shared)), options.into_owned());
                let end = match self.interceptors.is_empty() {
                    true => {
                        let deadline = shared.time.after(options.timeout);
                        streaming::client_end(route, method, options, deadline)
                    }
                    false => stream_through(&self.interceptors, route, method, options),
                };
                client_end(traced(end), &shared.address, method)
            }
            (Err(status), _) | (_, Err(status)) => {
                let route = Route::Channel(Arc::clone(&self.shared));
                ClientEnd::failed(route, method, status)
            }
        })
    }
}
