//! How a client's stream gets to its server, and what bounds it there.

use std::sync::Arc;

use starling_endpoint::{LargeBuffers, Metadata};
use starling_message::protobuf::DecodeLimits;

use super::account::ByteAccount;
use crate::channel_call::Shared;
use crate::connection::Connection;
use crate::executor::Executor;
use crate::plane::{CallHandle, Operation, Reply, Transport, Waiting};
use crate::retry::{Attempt, call_of};
use crate::time::Time;

/// How the requests of a stream get to the server.
pub(crate) enum Route {
    /// By a channel's transport; if that has several servers, by another one for this stream.
    Channel(Arc<Shared>, Option<Arc<dyn Transport>>),
    /// By the endpoint of this thread.
    Local(Arc<Connection>, Arc<Executor>),
}

impl Route {
    pub(crate) fn of_channel(shared: &Arc<Shared>) -> Self {
        Self::Channel(Arc::clone(shared), shared.transport.for_stream())
    }

    /// The transport of a channel's stream.
    fn transport(&self) -> Option<&dyn Transport> {
        match self {
            Self::Channel(_, Some(own)) => Some(&**own),
            Self::Channel(shared, None) => Some(&*shared.transport),
            Self::Local(..) => None,
        }
    }

    pub(super) fn time(&self) -> &Time {
        match self {
            Self::Channel(shared, _) => &shared.time,
            Self::Local(_, executor) => &executor.time,
        }
    }

    /// What its streams hold.
    pub(super) fn account(&self) -> &Arc<ByteAccount> {
        match self {
            Self::Channel(shared, _) => &shared.streams,
            Self::Local(_, executor) => &executor.streams,
        }
    }

    /// Where the memory of large messages comes from, if it is to be used again.
    pub(super) fn large_buffers(&self) -> Option<&LargeBuffers> {
        match self {
            Self::Local(_, executor) => Some(&executor.buffers),
            Self::Channel(..) => self.transport()?.large_buffers(),
        }
    }

    /// What messages may take that come in protobuf.
    pub(crate) fn decode_limits(&self) -> DecodeLimits {
        match self {
            Self::Channel(shared, _) => shared.decode,
            Self::Local(_, executor) => executor.decode,
        }
    }

    pub(super) fn start(&self, reply: Reply) {
        match self {
            Self::Channel(shared, None) => shared.transport.start(reply),
            Self::Channel(_, Some(own)) => own.start(reply),
            Self::Local(connection, executor) => {
                let Some(Operation::Call(call)) = reply.take_operation() else {
                    return;
                };
                let (connection, its_executor) = (Arc::clone(connection), Arc::clone(executor));
                let handle = reply.call().clone();
                executor.local.spawn(async move {
                    let call = call_of(&handle.0, &connection, &its_executor, call, Attempt::First);
                    let call = async { call.await.map_err(|failed| failed.status) };
                    if let Some(result) = handle.0.unless_abandoned(call).await {
                        reply.finish(result);
                    }
                });
            }
        }
    }

    pub(super) fn cancel(&self, call: &CallHandle) {
        if call.0.abandon()
            && let Some(transport) = self.transport()
        {
            transport.cancel(call);
        }
    }

    /// Has what was started leave soon, though nobody waits.
    pub(super) fn flush(&self) {
        if let Some(transport) = self.transport() {
            transport.flush();
        }
    }

    /// The stream has ended there.
    pub(super) fn handle_end(&self, is_ok: bool, trailers: Option<&Metadata>) {
        if let Self::Channel(_, Some(own)) = self {
            own.handle_stream_end(is_ok, trailers);
        }
    }

    /// The caller begins to wait.
    pub(super) fn drive(&self, waiting: &mut Waiting) {
        if let Some(transport) = self.transport() {
            transport.drive(None, waiting);
        }
    }
}
