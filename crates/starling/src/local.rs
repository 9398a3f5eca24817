//! Calls from the thread that owns an endpoint: the shortest path.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use starling_endpoint::{Code, Encoding, MethodId, Msgbuf, Status, unsent_message};
use starling_message::protobuf::DecodeLimits;
use starling_message::{Message, MethodDescriptor};

use crate::caller::Caller;
use crate::channel::{Channel, ChannelCall};
use crate::coding::{CallCoding, open_response};
use crate::connection::Connection;
use crate::executor::Executor;
use crate::interceptor::{Interceptor, Interceptors, call_through, stream_through};
use crate::message::{Response, prepare};
use crate::metrics::{LocalMeasure, Measured, begin_local, client_end, end_local};
use crate::options::CallOptions;
use crate::plane::CallResult;
use crate::retry::{Attempt, call_here, is_retryable};
use crate::streaming::{self, ClientEnd, StreamReceiver, StreamSender};
use crate::trace::{self, ClientSpan};

/// A connection of one [`Endpoint`](crate::Endpoint), for use in the endpoint's thread:
/// `KvClient::new(endpoint.channel("shm://kv")?)`. Cheap to clone; all channels of an endpoint to
/// one address share a session.
///
/// The endpoint has one device. Calls to an address that the device does not reach go through a
/// [`Channel`].
#[derive(Clone)]
pub struct LocalChannel {
    route: Route,
    executor: Arc<Executor>,
    deadline_ns: Option<u64>,
    /// Of a route elsewhere, the channel has them.
    interceptors: Interceptors,
}

#[derive(Clone)]
enum Route {
    Here(Arc<Connection>),
    Elsewhere(Channel),
}

impl LocalChannel {
    pub(crate) fn new(
        connection: Arc<Connection>,
        executor: &Arc<Executor>,
        interceptors: Interceptors,
    ) -> Self {
        Self {
            route: Route::Here(connection),
            executor: Arc::clone(executor),
            deadline_ns: None,
            interceptors,
        }
    }

    /// A channel to an address that the endpoint's device does not reach.
    pub(crate) fn elsewhere(channel: Channel, executor: &Arc<Executor>) -> Self {
        Self {
            route: Route::Elsewhere(channel),
            executor: Arc::clone(executor),
            deadline_ns: None,
            interceptors: Interceptors::default(),
        }
    }

    /// The same channel, with one more interceptor, which is the last one to see a call.
    #[must_use]
    pub fn intercept(&self, interceptor: impl Interceptor) -> Self {
        let mut channel = self.clone();
        match &mut channel.route {
            Route::Here(_) => channel.interceptors = self.interceptors.with(interceptor),
            Route::Elsewhere(channel) => *channel = channel.intercept(interceptor),
        }
        channel
    }

    /// Has all calls end at the latest at a time of the endpoint's clock.
    pub(crate) fn with_deadline(self, deadline_ns: Option<u64>) -> Self {
        Self {
            deadline_ns,
            ..self
        }
    }

    /// Opens the connection now instead of at the first call.
    pub async fn connect(&self) -> Result<(), Status> {
        match &self.route {
            Route::Here(connection) => connection.open(false).await.map(drop),
            Route::Elsewhere(channel) => channel.ready().await,
        }
    }

    /// A call through the interceptors.
    #[cold]
    fn call_through<Q: Message>(
        &self,
        connection: &Arc<Connection>,
        method: &'static MethodDescriptor,
        request: &Q,
        options: &CallOptions,
    ) -> SlowCall {
        let options = CallOptions {
            timeout: self.timeout(options),
            ..options.clone()
        };
        let (mut call, coding) = options.outgoing(method, &self.executor.time);
        call.message.payload = prepare(request, call.message.headroom, None);
        let route = streaming::Route::Local(Arc::clone(connection), Arc::clone(&self.executor));
        let call = call_through(&self.interceptors, route, call, coding);
        let measured = begin_local(connection, &self.executor, method, request);
        if measured.is_none() {
            return call;
        }
        let measure = LocalMeasure::new(connection, &self.executor, method, measured);
        Box::pin(async move { measure.end(call.await) })
    }

    /// A call of a connection that is not ready, or whose messages are compressed or bounded.
    fn call_later<Q: Message>(
        &self,
        connection: &Arc<Connection>,
        method: &'static MethodDescriptor,
        request: &Q,
        options: CallOptions,
    ) -> SlowCall {
        let (mut call, coding) = options.outgoing(method, &self.executor.time);
        call.message.payload = prepare(request, call.message.headroom, None);
        let measured = begin_local(connection, &self.executor, method, request);
        let sealed = CallCoding::seal(coding.as_ref(), &mut call.message, true);
        let (connection, executor) = (Arc::clone(connection), Arc::clone(&self.executor));
        // Outside of the future, which may be dropped before it is polled.
        let measure = LocalMeasure::new(&connection, &executor, method, measured);
        Box::pin(async move {
            let result = match sealed {
                Ok(bound) => {
                    let attempt = Attempt::First;
                    let result = call_here(&connection, &executor, call, attempt).await;
                    open_response(result, bound)
                }
                Err(status) => Err(status),
            };
            measure.end(result)
        })
    }

    fn slow<P: Message>(&self, call: SlowCall, span: Option<Box<ClientSpan>>) -> LocalCall<P> {
        let limits = self.executor.decode;
        LocalCall(State::Slow { call, span, limits })
    }

    fn timeout(&self, options: &CallOptions) -> Option<Duration> {
        let timeout = options.timeout.filter(|timeout| *timeout != Duration::MAX);
        let Some(deadline_ns) = self.deadline_ns else {
            return timeout;
        };
        let left = Duration::from_nanos(deadline_ns.saturating_sub(self.executor.now_ns()));
        Some(timeout.map_or(left, |timeout| timeout.min(left)))
    }
}

impl fmt::Debug for LocalChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.route {
            Route::Here(connection) => write!(f, "LocalChannel({})", connection.address()),
            Route::Elsewhere(channel) => write!(f, "LocalChannel({channel:?})"),
        }
    }
}

impl Caller for LocalChannel {
    type Call<P: Message> = LocalCall<P>;

    fn unary<Q: Message, P: Message>(
        &self,
        method: &'static MethodDescriptor,
        request: &Q,
        options: &CallOptions,
        own: Option<&CallOptions>,
    ) -> LocalCall<P> {
        let mut options = match options.merged(own) {
            Ok(options) => options,
            Err(status) => {
                let call: SlowCall = Box::pin(std::future::ready(Err(status)));
                return self.slow(call, None);
            }
        };
        let timeout = self.timeout(&options);
        let connection = match &self.route {
            Route::Here(connection) => connection,
            Route::Elsewhere(channel) => {
                let options = CallOptions {
                    timeout,
                    ..options.into_owned()
                };
                let call = channel.unary(method, request, &options, None);
                return LocalCall(State::Elsewhere(call));
            }
        };
        let address = connection.address().as_str();
        let span = trace::begin_call(method.path, address, &mut options);
        if !self.interceptors.is_empty() {
            let call = self.call_through(connection, method, request, &options);
            return self.slow(call, span);
        }
        if let Some((session, Encoding::Native)) = connection.ready(method.id, false)
            && options.messages.is_none()
        {
            let origin = Origin {
                method,
                options: (timeout.is_some() || !options.is_default()).then(|| {
                    Box::new(CallOptions {
                        timeout,
                        ..(*options).clone()
                    })
                }),
                at_ns: if timeout.is_some() {
                    self.executor.now_ns()
                } else {
                    0
                },
                connection: Arc::clone(connection),
                executor: Arc::clone(&self.executor),
                measured: begin_local(connection, &self.executor, method, request),
                span,
            };
            let options = options.lower(Encoding::Native, timeout);
            let (head, tail) = request.parts();
            let id = MethodId(method.id);
            let call = match tail {
                None => (self.executor.local).call(session, id, &options, |buffer| {
                    buffer.extend_from_slice(head)
                }),
                Some(_) => {
                    let message = prepare(request, options.header_len(), None);
                    self.executor
                        .local
                        .call_message(session, id, &options, message)
                }
            };
            return LocalCall(State::Fast { call, origin });
        }
        let options = CallOptions {
            timeout,
            ..options.into_owned()
        };
        let call = self.call_later(connection, method, request, options);
        self.slow(call, span)
    }

    fn streams<Q: Message, P: Message>(
        &self,
        method: &'static MethodDescriptor,
        options: &CallOptions,
        own: Option<&CallOptions>,
    ) -> (StreamSender<Q>, StreamReceiver<P>) {
        let (options, failure) = match options.merged(own) {
            Ok(options) => (options.into_owned(), None),
            Err(status) => (CallOptions::default(), Some(status)),
        };
        let mut options = Cow::Owned(CallOptions {
            timeout: self.timeout(&options),
            ..options
        });
        let connection = match &self.route {
            Route::Elsewhere(channel) => return channel.streams(method, &options, None),
            Route::Here(connection) => connection,
        };
        let route = streaming::Route::Local(Arc::clone(connection), Arc::clone(&self.executor));
        streaming::halves(match failure {
            None => {
                let address = connection.address().as_str();
                let traced = trace::begin_stream(method.path, address, &mut options);
                let options = options.into_owned();
                let end = match self.interceptors.is_empty() {
                    true => {
                        let deadline = self.executor.time.after(options.timeout);
                        streaming::client_end(route, method, options, deadline)
                    }
                    false => stream_through(&self.interceptors, route, method, options),
                };
                client_end(traced(end), &connection.recorders, address, method)
            }
            Some(status) => ClientEnd::failed(route, method, status),
        })
    }
}

/// The arguments that a call was made with, besides its message.
struct Origin {
    method: &'static MethodDescriptor,
    /// None: the default ones.
    options: Option<Box<CallOptions>>,
    /// The time of the call by the endpoint's clock in nanoseconds, if the call has a timeout.
    at_ns: u64,
    connection: Arc<Connection>,
    executor: Arc<Executor>,
    measured: Option<Measured>,
    /// If the call is in a trace.
    span: Option<Box<ClientSpan>>,
}

impl Origin {
    /// The call has ended, with the bytes of its response or with a code.
    #[inline]
    fn end_measure(&mut self, result: Result<usize, Code>) {
        if let Some(measured) = self.measured.take() {
            let (connection, executor) = (&self.connection, &self.executor);
            end_local(connection, executor, self.method, measured, result);
        }
    }

    #[cold]
    fn cancelled(&mut self) {
        self.end_measure(Err(Code::Cancelled));
    }

    /// Makes the call again, which was never sent.
    fn call_again(&mut self, message: Msgbuf) -> SlowCall {
        let options = self.options.as_deref().cloned().unwrap_or_default();
        let first = options.lower(Encoding::Native, options.timeout);
        let left = options.timeout.map(|timeout| {
            let passed_ns = self.executor.now_ns().saturating_sub(self.at_ns);
            timeout.saturating_sub(Duration::from_nanos(passed_ns))
        });
        let options = CallOptions {
            timeout: left,
            ..options
        };
        let (mut call, _) = options.outgoing(self.method, &self.executor.time);
        // The room that its first attempt had for the header.
        call.message.headroom = first.header_len();
        call.message.payload = message;
        let (connection, executor) = (Arc::clone(&self.connection), Arc::clone(&self.executor));
        let (method, measured) = (self.method, self.measured.take());
        let measure = LocalMeasure::new(&connection, &executor, method, measured);
        Box::pin(async move {
            let result = call_here(&connection, &executor, call, Attempt::Last).await;
            measure.end(result)
        })
    }
}

impl Drop for Origin {
    #[inline]
    fn drop(&mut self) {
        if self.measured.is_some() {
            self.cancelled();
        }
    }
}

/// Ends the span of a call that has this result, if it has one.
fn end_span<T>(span: &mut Option<Box<ClientSpan>>, result: Result<T, Status>) -> Result<T, Status> {
    if let Some(span) = span.take() {
        span.end(&result);
    }
    result
}

type SlowCall = Pin<Box<dyn Future<Output = CallResult> + Send>>;

enum State<P: Message> {
    /// The connection was ready.
    Fast {
        call: starling_endpoint::LocalCall,
        origin: Origin,
    },
    /// The connection has to be opened, or the server has another version of the schema.
    Slow {
        call: SlowCall,
        span: Option<Box<ClientSpan>>,
        limits: DecodeLimits,
    },
    Elsewhere(ChannelCall<P>),
}

/// A call of a [`LocalChannel`]. Dropping it cancels the call. The call makes progress while its
/// endpoint runs.
#[must_use = "dropping the future cancels the call"]
pub struct LocalCall<P: Message>(State<P>);

impl<P: Message> Future for LocalCall<P> {
    type Output = Result<Response<P>, Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Fast { call, origin } = &mut self.0 {
            let mut status = match Pin::new(call).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(response)) => {
                    if origin.measured.is_some() {
                        origin.end_measure(Ok(response.body().len()));
                    }
                    let limits = &origin.executor.decode;
                    let received = Response::receive(response, Encoding::Native, limits);
                    return Poll::Ready(match origin.span {
                        None => received,
                        Some(_) => end_span(&mut origin.span, received),
                    });
                }
                Poll::Ready(Err(status)) => status,
            };
            origin.connection.suspect(status.code());
            match unsent_message(&mut status) {
                Some(message) if is_retryable(&status) => {
                    self.0 = State::Slow {
                        call: origin.call_again(message),
                        span: origin.span.take(),
                        limits: origin.executor.decode,
                    };
                }
                _ => {
                    origin.end_measure(Err(status.code()));
                    return Poll::Ready(end_span(&mut origin.span, Err(status)));
                }
            }
        }
        match &mut self.0 {
            State::Fast { .. } => unreachable!("it has ended"),
            State::Slow { call, span, limits } => call.as_mut().poll(cx).map(|result| {
                let received =
                    result.and_then(|(bytes, encoding)| Response::receive(bytes, encoding, limits));
                end_span(span, received)
            }),
            State::Elsewhere(call) => Pin::new(call).poll(cx),
        }
    }
}

impl<P: Message> fmt::Debug for LocalCall<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalCall(..)")
    }
}
