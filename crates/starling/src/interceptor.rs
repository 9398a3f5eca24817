//! Interceptors: code of the user's around calls, at their client or at their server.
//!
//! ```text
//!  client ─▶ first ─▶ second ─▶ transport ─▶ network ─▶ first ─▶ second ─▶ handler
//!                       each one may change, answer, or repeat what it hands on
//! ```
//!
//! Calls of channels and servers without interceptors pay one branch for them.

mod call;
mod client;
mod server;
mod timer;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use starling_endpoint::Status;

pub use call::{InterceptedCall, InterceptedResponse, InterceptedStream, Side};
pub(crate) use client::{begin_stream, call_through};
pub(crate) use server::Intercepted;

/// What an interceptor returns, and gets from the next one.
type Outcome = Result<InterceptedResponse, Status>;

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Code around calls: a channel's ([`Channel::intercept`](crate::Channel::intercept)), a server's
/// ([`ServerBuilder::interceptor`](crate::ServerBuilder::interceptor)), or those of one service
/// ([`ServerBuilder::add_intercepted`](crate::ServerBuilder::add_intercepted)). It sees and changes
/// metadata, deadline, message and status. It may answer in place of the server, or repeat a call.
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
/// | inline and nested handlers, and handlers with streams | the dispatch thread, so it must not block |
/// | worker handlers | the worker, which it may block |
///
/// On a server, the response of an inline handler with interceptors leaves a turn later than without.
/// A panic ends the call as a handler's panic does; at a client it is the caller's.
pub trait Interceptor: Send + Sync + 'static {
    /// Handles a call: changes it, hands it on with [`Next::run`], changes the response. An error, or a
    /// response of its own, ends the call there. At a server, the handler of a stream runs within
    /// `next.run`, to its end.
    fn intercept(
        &self,
        call: InterceptedCall,
        next: Next<'_>,
    ) -> impl Future<Output = Result<InterceptedResponse, Status>> + Send;

    /// A client begins a call with streams. This one may change the metadata and the deadline; an error
    /// ends the call before it is sent.
    ///
    /// # Errors
    /// UNIMPLEMENTED if an interceptor does not have this method: a stream does not pass by an interceptor
    /// in silence.
    fn begin_stream(&self, stream: &mut InterceptedStream) -> Result<(), Status> {
        Err(Status::unimplemented(format!(
            "the channel's interceptor {} does not take streams, so {} was not called: implement \
             Interceptor::begin_stream, or use a channel without it",
            std::any::type_name::<Self>(),
            stream.path(),
        )))
    }
}

/// An interceptor of any type.
trait AnyInterceptor: Send + Sync {
    fn intercept<'a>(&'a self, call: InterceptedCall, next: Next<'a>) -> BoxFuture<'a, Outcome>;

    fn begin_stream(&self, stream: &mut InterceptedStream) -> Result<(), Status>;
}

impl<I: Interceptor> AnyInterceptor for I {
    fn intercept<'a>(&'a self, call: InterceptedCall, next: Next<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(Interceptor::intercept(self, call, next))
    }

    fn begin_stream(&self, stream: &mut InterceptedStream) -> Result<(), Status> {
        Interceptor::begin_stream(self, stream)
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
    /// another call. At a server, a handler runs at most once.
    ///
    /// # Errors
    /// The status of the call. FAILED_PRECONDITION if the handler of this request has run already.
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
