//! Calls from the thread that owns an endpoint: the way with the least in between.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use starling_endpoint::{
    Code, Encoding, LocalHandle, MethodId, Msgbuf, OwnedResponse, Status, unsent_message,
};
use starling_message::{Message, MethodDescriptor};

use crate::address::{Address, Way};
use crate::channel::{Channel, ChannelCall};
use crate::connection::Connection;
use crate::error::Error;
use crate::hub::Hub;
use crate::message::{Response, convert, prepare};
use crate::options::CallOptions;
use crate::service::Caller;

/// A connection of one [`Endpoint`](crate::Endpoint), for use in the endpoint's thread:
/// `KvClient::new(endpoint.channel("shm://kv")?)`. Cheap to clone; all channels of an endpoint to
/// one address share a session.
///
/// The endpoint has one device. To an address of another kind, calls go through a background
/// thread, as those of a [`Channel`] do.
#[derive(Clone)]
pub struct LocalChannel {
    route: Route,
    hub: Rc<Hub>,
    deadline_ns: Option<u64>,
}

#[derive(Clone)]
enum Route {
    Here(Rc<Connection>),
    Elsewhere(Channel),
}

impl LocalChannel {
    pub(crate) fn open(hub: &Rc<Hub>, address: &str) -> Result<Self, Error> {
        let address = Address::parse(address)?;
        let route = if hub.way.leads(&Way::of(&address)) {
            Route::Here(hub.shared_connection(address))
        } else {
            Route::Elsewhere(hub.channel_elsewhere(address)?)
        };
        Ok(Self {
            route,
            hub: Rc::clone(hub),
            deadline_ns: None,
        })
    }

    /// Has all calls end by a time of the endpoint's clock.
    pub(crate) fn with_deadline(self, deadline_ns: Option<u64>) -> Self {
        Self {
            deadline_ns,
            ..self
        }
    }

    /// Opens the connection now, rather than at the first call.
    pub async fn connect(&self) -> Result<(), Status> {
        match &self.route {
            Route::Here(connection) => connection.open(&self.hub, false).await.map(drop),
            Route::Elsewhere(channel) => channel.ready().await,
        }
    }

    fn timeout(&self, options: &CallOptions) -> Option<Duration> {
        let Some(deadline_ns) = self.deadline_ns else {
            return options.timeout;
        };
        let left = Duration::from_nanos(deadline_ns.saturating_sub(self.hub.now_ns()));
        Some(options.timeout.map_or(left, |timeout| timeout.min(left)))
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
    ) -> LocalCall<P> {
        let timeout = self.timeout(options);
        let connection = match &self.route {
            Route::Here(connection) => connection,
            Route::Elsewhere(channel) => {
                let options = CallOptions {
                    timeout,
                    ..options.clone()
                };
                return LocalCall(State::Elsewhere(channel.unary(method, request, &options)));
            }
        };
        if let Some((session, Encoding::Native)) = connection.ready(method.id) {
            let made = Made {
                method,
                options: CallOptions {
                    timeout,
                    ..options.clone()
                },
                at_ns: if timeout.is_some() {
                    self.hub.now_ns()
                } else {
                    0
                },
                connection: Rc::clone(connection),
                hub: Rc::clone(&self.hub),
            };
            let options = options.lower(Encoding::Native, timeout);
            let (head, tail) = request.parts();
            let id = MethodId(method.id);
            let call = match tail {
                None => (self.hub.local).call(session, id, &options, |buffer| {
                    buffer.extend_from_slice(head)
                }),
                Some(_) => {
                    let message = prepare(request, options.header_len());
                    self.hub.local.call_message(session, id, &options, message)
                }
            };
            return LocalCall(State::Fast { call, made });
        }
        let message = prepare(request, 0);
        let options = CallOptions {
            timeout,
            ..options.clone()
        };
        let (connection, hub) = (Rc::clone(connection), Rc::clone(&self.hub));
        LocalCall(State::Slow(Box::pin(async move {
            let call = WaitingCall {
                method,
                message,
                room: 0,
                options,
                attempt: Attempt::First,
            };
            call_when_ready(&connection, &hub, call).await
        })))
    }
}

/// Whether a call may be made again if it turns out never to have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// Yes, once.
    First,
    /// It was already.
    Last,
}

/// Whether a failure is one that another session may not have.
pub(crate) fn may_try_again(status: &Status) -> bool {
    status.code() == Code::Unavailable
}

/// A call that waits for its connection.
pub(crate) struct WaitingCall {
    pub(crate) method: &'static MethodDescriptor,
    /// In the native layout, after `room` bytes for the call header.
    pub(crate) message: Msgbuf,
    pub(crate) room: usize,
    pub(crate) options: CallOptions,
    pub(crate) attempt: Attempt,
}

/// Makes a call when the connection is ready for it. If its session ends before it was sent it is
/// made again, once, within its time.
pub(crate) async fn call_when_ready(
    connection: &Rc<Connection>,
    hub: &Rc<Hub>,
    call: WaitingCall,
) -> Result<(OwnedResponse, Encoding), Status> {
    let WaitingCall {
        method,
        mut message,
        mut room,
        options,
        mut attempt,
    } = call;
    let begun_ns = hub.now_ns();
    let left = || {
        options.timeout.map(|timeout| {
            let passed = Duration::from_nanos(hub.now_ns().saturating_sub(begun_ns));
            timeout.saturating_sub(passed)
        })
    };
    loop {
        let ready = connection.prepare(hub, method, options.wait_for_ready);
        let (session, encoding) = within(&hub.local, left(), connection, ready).await?;
        let lowered = options.lower(encoding, left());
        // Who gets protobuf can get the native layout next time.
        let mut original = None;
        let ready_message = match encoding {
            Encoding::Protobuf => {
                if attempt == Attempt::First {
                    original = Some((message.clone(), room));
                }
                convert(method.request, message, room, lowered.header_len())?
            }
            Encoding::Native if room == lowered.header_len() => message,
            Encoding::Native => {
                let (mut head, tail) = message.into_parts();
                head.splice(..room, std::iter::repeat_n(0, lowered.header_len()));
                Msgbuf::from_parts(head, tail)
            }
        };
        let id = MethodId(method.id);
        let call = (hub.local).call_message(session, id, &lowered, ready_message);
        let mut status = match call.await {
            Ok(response) => return Ok((response, encoding)),
            Err(status) => status,
        };
        connection.doubt(hub, status.code());
        match status.take_unsent().map(unsent_message) {
            Some(unsent) if attempt == Attempt::First && may_try_again(&status) => {
                (message, room) = original.unwrap_or((unsent, lowered.header_len()));
                attempt = Attempt::Last;
            }
            _ => return Err(status),
        }
    }
}

/// Waits for `future`, at most `timeout`.
async fn within<T>(
    local: &LocalHandle,
    timeout: Option<Duration>,
    connection: &Connection,
    future: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let Some(timeout) = timeout else {
        return future.await;
    };
    let (mut future, mut over) = (pin!(future), pin!(local.sleep(timeout)));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(result) = future.as_mut().poll(cx) {
            return Poll::Ready(result);
        }
        over.as_mut().poll(cx).map(|()| {
            Err(Status::deadline_exceeded(format!(
                "{} could not be reached in time; the call did not run",
                connection.address()
            )))
        })
    })
    .await
}

/// What a call was made from, besides its message.
struct Made {
    method: &'static MethodDescriptor,
    options: CallOptions,
    /// When, in nanoseconds of the endpoint's clock, if it has a timeout.
    at_ns: u64,
    connection: Rc<Connection>,
    hub: Rc<Hub>,
}

impl Made {
    /// Makes the call again that was not sent.
    fn again(&self, message: Msgbuf) -> SlowCall {
        let mut options = self.options.clone();
        let room = options
            .lower(Encoding::Native, options.timeout)
            .header_len();
        options.timeout = options.timeout.map(|timeout| {
            let passed_ns = self.hub.now_ns().saturating_sub(self.at_ns);
            timeout.saturating_sub(Duration::from_nanos(passed_ns))
        });
        let (connection, hub) = (Rc::clone(&self.connection), Rc::clone(&self.hub));
        let call = WaitingCall {
            method: self.method,
            message,
            room,
            options,
            attempt: Attempt::Last,
        };
        Box::pin(async move { call_when_ready(&connection, &hub, call).await })
    }
}

type SlowCall = Pin<Box<dyn Future<Output = Result<(OwnedResponse, Encoding), Status>>>>;

enum State<P: Message> {
    /// The connection was ready.
    Fast {
        call: starling_endpoint::LocalCall,
        made: Made,
    },
    /// The connection has to be opened, or the other end has another version of the schema.
    Slow(SlowCall),
    Elsewhere(ChannelCall<P>),
}

/// A call of a [`LocalChannel`]. Dropping it cancels the call. It makes progress while its
/// endpoint runs.
#[must_use = "dropping the future cancels the call"]
pub struct LocalCall<P: Message>(State<P>);

impl<P: Message> Future for LocalCall<P> {
    type Output = Result<Response<P>, Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Fast { call, made } = &mut self.0 {
            let mut status = match Pin::new(call).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(response)) => {
                    return Poll::Ready(Response::receive(response, Encoding::Native));
                }
                Poll::Ready(Err(status)) => status,
            };
            made.connection.doubt(&made.hub, status.code());
            match status.take_unsent().map(unsent_message) {
                Some(message) if may_try_again(&status) => {
                    self.0 = State::Slow(made.again(message));
                }
                _ => return Poll::Ready(Err(status)),
            }
        }
        match &mut self.0 {
            State::Fast { .. } => unreachable!("it was over"),
            State::Slow(call) => call.as_mut().poll(cx).map(|result| {
                result.and_then(|(bytes, encoding)| Response::receive(bytes, encoding))
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
