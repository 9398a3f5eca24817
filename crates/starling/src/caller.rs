//! The interface that generated clients use.

use std::future::Future;

use starling_endpoint::Status;
use starling_message::{Message, MethodDescriptor};

use crate::message::Response;
use crate::options::CallOptions;
use crate::streaming::{StreamReceiver, StreamSender};

/// Makes calls: what a generated `KvClient<C>` is generic over.
pub trait Caller: Clone {
    /// An outstanding call. Dropping it cancels the call.
    type Call<P: Message>: Future<Output = Result<Response<P>, Status>>;

    /// Makes a call. It is sent whether or not the future is polled. `options` are those of the
    /// client, `own` those of this call, which come first.
    fn unary<Q: Message, P: Message>(
        &self,
        method: &'static MethodDescriptor,
        request: &Q,
        options: &CallOptions,
        own: Option<&CallOptions>,
    ) -> Self::Call<P>;

    /// Begins a call whose requests or responses are streams. It is sent with the first message, or when a
    /// response is waited for.
    fn streams<Q: Message, P: Message>(
        &self,
        method: &'static MethodDescriptor,
        options: &CallOptions,
        own: Option<&CallOptions>,
    ) -> (StreamSender<Q>, StreamReceiver<P>);
}
