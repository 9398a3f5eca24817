//! Interceptors: code of the user's around calls, at their client or at their server.
//!
//! ```text
//!  client ─▶ first ─▶ second ─▶ transport ─▶ network ─▶ first ─▶ second ─▶ handler
//!                       each one may change, answer, or repeat what it hands on
//! ```
//!
//! Calls of channels and servers without interceptors pay one branch for them.

mod body;
mod call;
mod client;
mod client_stream;
mod items;
mod server;
mod timer;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use starling_endpoint::Status;

pub use call::{InterceptedCall, InterceptedResponse, Side};
pub(crate) use client::call_through;
pub(crate) use client_stream::stream_through;
pub use items::InterceptedItem;
pub(crate) use server::Intercepted;

/// What an interceptor returns, and gets from the next one.
type Outcome = Result<InterceptedResponse, Status>;

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Code around calls. It sees and changes metadata, deadline, messages and status. It may answer in place of
/// the server, or repeat a call.
///
/// | set by | it is around |
/// |---|---|
/// | [`Channel::intercept`](crate::Channel::intercept), [`LocalChannel::intercept`](crate::LocalChannel::intercept) | the calls of a channel |
/// | [`ServerBuilder::interceptor`](crate::ServerBuilder::interceptor) | all handlers of a server |
/// | [`ServerBuilder::add_intercepted`](crate::ServerBuilder::add_intercepted) | the handlers of one service |
/// | [`ServerBuilder::outgoing_interceptor`](crate::ServerBuilder::outgoing_interceptor) | the calls that the server's own handlers make |
///
/// ```
/// use starling::{InterceptedCall, InterceptedResponse, Interceptor, Next, Status};
///
/// /// Sends a token with each call of a channel.
/// struct Token(String);
///
/// impl Interceptor for Token {
///     async fn intercept(
///         &self,
///         mut call: InterceptedCall,
///         next: Next<'_>,
///     ) -> Result<InterceptedResponse, Status> {
///         let added = call.metadata_mut().insert("authorization", &self.0);
///         added.map_err(|error| Status::invalid_argument(error.to_string()))?;
///         next.run(call).await
///     }
/// }
/// ```
///
/// Where it runs:
///
/// | calls of | it runs in |
/// |---|---|
/// | a channel | the task or thread that awaits the call. Such a call begins when it is polled |
/// | inline and nested handlers, and handlers with streams | the dispatch thread, so it must not block; or the executor of [`ServerBuilder::nested_executor`](crate::ServerBuilder::nested_executor) |
/// | worker handlers | the worker, which it may block. If it awaits, it is dropped when nobody waits for the call any more |
///
/// A channel's interceptors are outside of its retries and hedges: they see one call with its last result. A server's
/// see each attempt.
///
/// If nothing has to be waited for, an inline handler and its interceptors run in place, and the response
/// leaves at once. A panic ends the call as a handler's panic does; at a client it is the caller's.
///
/// # Streams
///
/// A stream is one call that lasts: [`Next::run`] begins it, and ends when the stream does, with its status
/// and its trailers. What changes there is what the other side gets. At a client, the reader and the writer of
/// the stream run the interceptor while they wait; if the client drops its receiver, the interceptor's future
/// is dropped. The messages pass the functions that it gives to [`InterceptedCall::on_requests`] and
/// [`InterceptedCall::on_responses`].
pub trait Interceptor: Send + Sync + 'static {
    /// Handles a call: changes it, hands it on with [`Next::run`], changes the response. An error, or a
    /// response of its own, ends the call there.
    fn intercept(
        &self,
        call: InterceptedCall,
        next: Next<'_>,
    ) -> impl Future<Output = Result<InterceptedResponse, Status>> + Send;
}

/// An interceptor of any type.
trait AnyInterceptor: Send + Sync {
    fn intercept<'a>(&'a self, call: InterceptedCall, next: Next<'a>) -> BoxFuture<'a, Outcome>;
}

impl<I: Interceptor> AnyInterceptor for I {
    fn intercept<'a>(&'a self, call: InterceptedCall, next: Next<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(Interceptor::intercept(self, call, next))
    }
}

/// What stands behind the last interceptor.
trait Callee: Send + Sync {
    fn run(&self, call: InterceptedCall) -> BoxFuture<'_, Outcome>;
}

/// The rest of a call's way: further interceptors, then the transport or the handler.
#[derive(Clone, Copy)]
pub struct Next<'a> {
    interceptors: &'a [Arc<dyn AnyInterceptor>],
    callee: &'a dyn Callee,
}

impl<'a> Next<'a> {
    /// Hands the call on. At a client, a copy of `self` may run again, with a copy of the call: that is
    /// another call. A stream, and a handler at a server, runs at most once.
    ///
    /// # Errors
    /// The status of the call. FAILED_PRECONDITION if the stream or the handler has run already.
    pub fn run(self, call: InterceptedCall) -> impl Future<Output = Outcome> + Send + 'a {
        match self.interceptors.split_first() {
            None => self.callee.run(call),
            Some((first, interceptors)) => {
                let rest = Self {
                    interceptors,
                    ..self
                };
                first.intercept(call, rest)
            }
        }
    }
}

impl fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next")
            .field("interceptors", &self.interceptors.len())
            .finish_non_exhaustive()
    }
}

/// A list of interceptors. The first one sees a call first, and its response last.
#[derive(Clone, Default)]
pub(crate) struct Interceptors(Option<Arc<[Arc<dyn AnyInterceptor>]>>);

impl Interceptors {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn as_slice(&self) -> &[Arc<dyn AnyInterceptor>] {
        self.0.as_deref().unwrap_or_default()
    }

    /// The list with one more at its end.
    pub(crate) fn with(&self, interceptor: impl Interceptor) -> Self {
        let last: Arc<dyn AnyInterceptor> = Arc::new(interceptor);
        let all = self.as_slice().iter().cloned().chain([last]);
        Self(Some(all.collect()))
    }

    /// Runs a call through the list.
    fn run<'a>(
        &'a self,
        call: InterceptedCall,
        callee: &'a dyn Callee,
    ) -> impl Future<Output = Outcome> + Send + 'a {
        let next = Next {
            interceptors: self.as_slice(),
            callee,
        };
        next.run(call)
    }
}

impl fmt::Debug for Interceptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Interceptors({})", self.as_slice().len())
    }
}
