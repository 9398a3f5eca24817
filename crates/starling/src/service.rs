//! The interface that generated servers use.

use std::future::Future;

use starling_endpoint::Status;
use starling_message::{Message, MethodDescriptor, Mode, ServiceDescriptor};

use crate::message::{OwnedRequest, Request};
use crate::nested::NestedContext;
use crate::streaming::{StreamReceiver, StreamSender};

/// A service with its implementation: a generated `KvServer<T>` is one.
pub trait Service: Sized + 'static {
    /// The service's methods and schema.
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

    /// A method whose handler is a future. The dispatch thread polls it.
    fn nested<Q: Message, P: Message, F, Fut>(
        &mut self,
        method: &'static MethodDescriptor,
        handler: F,
    ) where
        F: Fn(NestedContext, OwnedRequest<Q>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<P, Status>> + Send + 'static;

    /// A method whose requests or responses are streams. Its handler is a future, as a nested one.
    fn streaming<Q: Message, P: Message, F, Fut>(
        &mut self,
        method: &'static MethodDescriptor,
        handler: F,
    ) where
        F: Fn(NestedContext, StreamReceiver<Q>, StreamSender<P>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Status>> + Send + 'static;

    /// A method whose requests or responses are streams, and whose handler blocks. It runs in a thread of its own.
    fn worker_streaming<Q: Message, P: Message, F>(
        &mut self,
        method: &'static MethodDescriptor,
        handler: F,
    ) where
        F: Fn(NestedContext, StreamReceiver<Q>, StreamSender<P>) -> Result<(), Status>
            + Send
            + Sync
            + 'static;
}
