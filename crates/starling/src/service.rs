//! What generated servers and clients are written against.

use std::future::Future;

use starling_endpoint::Status;
use starling_message::{Message, MethodDescriptor, Mode, ServiceDescriptor};

use crate::message::{OwnedRequest, Request, Response};
use crate::nested::NestedContext;
use crate::options::CallOptions;

/// A service with its implementation: what generated `KvServer<T>` is.
pub trait Service: Sized + 'static {
    /// What is served.
    fn descriptor(&self) -> &'static ServiceDescriptor;

    /// Hands each method to the registrar once, in the order of the descriptor's methods.
    fn register<R: Registrar + ?Sized>(self, registrar: &mut R);
}

/// Takes the methods of a service.
pub trait Registrar {
    /// A method whose handler answers before it returns. `mode` is [`Mode::Inline`] or
    /// [`Mode::Worker`].
    fn unary<Q: Message, P: Message, F>(
        &mut self,
        method: &'static MethodDescriptor,
        mode: Mode,
        handler: F,
    ) where
        F: for<'a, 'b> Fn(Request<'a, Q>, P::Mut<'b>) -> Result<(), Status> + Send + Sync + 'static;

    /// A method whose handler is a future. It is polled in the dispatch thread.
    fn nested<Q: Message, P: Message, F, Fut>(
        &mut self,
        method: &'static MethodDescriptor,
        handler: F,
    ) where
        F: Fn(NestedContext, OwnedRequest<Q>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<P, Status>> + 'static;
}

/// Makes calls: what generated `KvClient<C>` stands on.
pub trait Caller: Clone {
    /// A call on its way. Dropping it cancels the call.
    type Call<P: Message>: Future<Output = Result<Response<P>, Status>>;

    /// Makes a call. It is on its way whether or not the future is polled.
    fn unary<Q: Message, P: Message>(
        &self,
        method: &'static MethodDescriptor,
        request: &Q,
        options: &CallOptions,
    ) -> Self::Call<P>;
}
