//! A plane's client side.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use starling_endpoint::LargeBuffers;
use starling_endpoint::{
    CallDescriptor, CallNumber, Encoding, Metadata, Msgbuf, OwnedMessage, Status,
};
use starling_io::{MessageMemory, PeerMemory};
use starling_message::MethodDescriptor;

use crate::balancing::Placement;
use crate::call_cell::CallCell;
use crate::channel_state::ChannelState;
use crate::driver::{DeadlineWaker, Watch};
use crate::health::{BackendHealth, HealthCell};
use crate::stats::ThreadStats;

/// How a call ended: its response and the response's encoding, or a status.
pub type CallResult = Result<(OwnedMessage, Encoding), Status>;

/// A plane's client side, for one channel. Making a call is one dynamic call, and so is each time that
/// its caller begins to wait.
///
/// A channel keeps no more operations out than its capacity, so this bounds a transport's queues.
pub trait Transport: Send + Sync {
    /// Begins the operation that `reply` has. Never blocks. `reply` gets the result once; dropping it ends
    /// the operation with UNAVAILABLE.
    fn start(&self, reply: Reply);

    /// The caller does not want the result any more.
    fn cancel(&self, call: &CallHandle);

    /// Has what was started leave soon, though its caller does not wait yet: a stream's sender goes on.
    fn flush(&self) {}

    /// The caller begins to wait for this call, or for any one of a stream, in this thread or as a task. A plane
    /// that works in its callers' threads does so here. It may block the thread only in
    /// [`block_on`](crate::block_on). Returns whether it has worked, so that there may be a result by now.
    fn drive(&self, call: Option<&CallHandle>, waiting: &mut Waiting) -> bool {
        let _ = (call, waiting);
        false
    }

    /// Whether it carries requests that are compressed, as
    /// [`CallDescriptor::coding`] says. If not, no request is.
    fn takes_compressed(&self) -> bool {
        false
    }

    /// Transports with the same number are driven together. By default each is driven by itself.
    fn loop_id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// What carries the calls of a new stream, which all have to reach one server. `None`: this transport does,
    /// for it has only one.
    fn for_stream(&self) -> Option<Arc<dyn Transport>> {
        None
    }

    /// The stream that this is for, see [`Transport::for_stream`], has ended, with these trailers. Not if its client
    /// has given it up.
    fn handle_stream_end(&self, is_ok: bool, trailers: Option<&Metadata>) {
        let _ = (is_ok, trailers);
    }

    /// Calls [`DeadlineWaker::wake`] at this time, unless the waker is cancelled before.
    fn wake_at(&self, deadline: Instant, waker: Arc<DeadlineWaker>);

    /// Where the connection stands.
    fn state(&self) -> ChannelState;

    /// Wakes this each time the state changes. A transport that does not is asked from time to time only.
    fn watch_state(&self, waker: Waker) {
        let _ = waker;
    }

    /// Why the last attempt to connect failed, if the transport knows.
    fn failure(&self) -> Option<Status> {
        None
    }

    /// Keeps the health of a service of the server in this cell, while it is connected. By default it is not
    /// asked for, and the server counts as healthy.
    fn watch_health(&self, service: &str, health: Arc<HealthCell>) {
        let _ = service;
        health.set(BackendHealth::Unchecked);
    }

    /// The best memory for large parts of requests.
    fn memory(&self) -> &MessageMemory;

    /// The memory for large messages to the server, where senders put them without being asked to.
    fn peer_memory(&self) -> Option<&PeerMemory> {
        None
    }

    /// Where the memory of large responses comes from, if it is to be used again.
    fn large_buffers(&self) -> Option<&LargeBuffers> {
        None
    }

    /// Counters of what the channel works on.
    ///
    /// # Errors
    /// UNAVAILABLE if that has ended, with the reason.
    fn stats(&self) -> Result<ThreadStats, Status>;
}

/// What a channel asks of a transport.
#[derive(Debug)]
pub enum Operation {
    /// Makes a call.
    Call(OutgoingCall),
    /// Connects, or waits until that succeeds. The response is empty.
    Connect {
        /// Whether to wait while the server cannot be reached.
        wait_for_ready: bool,
    },
}

impl Operation {
    /// When the caller gives up.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Call(call) => call.message.deadline,
            Self::Connect { .. } => None,
        }
    }

    pub(crate) fn number(&self) -> CallNumber {
        match self {
            Self::Call(call) => call.message.call,
            Self::Connect { .. } => CallNumber::next(),
        }
    }
}

/// A call on its way to a server.
#[derive(Clone, Debug)]
pub struct OutgoingCall {
    /// The request.
    pub message: CallDescriptor,
    /// The types of the method's messages, for a server with other ones. None: the request is in protobuf,
    /// and the response has to be.
    pub types: Option<&'static MethodDescriptor>,
    /// If the server cannot be reached, the call waits until it can be.
    pub wait_for_ready: bool,
    /// The caller has the call counted, and not the endpoint: it sees other messages, or another end.
    pub counted_by_caller: bool,
    /// Backends that others are better than: they have the call already, or have failed it.
    pub(crate) avoid: Option<Box<Avoid>>,
}

/// Ids of backends of a balanced channel.
#[derive(Clone, Debug)]
pub(crate) struct Avoid(pub(crate) Vec<u64>);

impl OutgoingCall {
    /// A call, which may go to any backend.
    pub(crate) fn new(
        message: CallDescriptor,
        types: Option<&'static MethodDescriptor>,
        wait_for_ready: bool,
    ) -> Self {
        Self {
            message,
            types,
            wait_for_ready,
            counted_by_caller: false,
            avoid: None,
        }
    }

    /// The memory of the request, which is in the cache, for its response. Not of a stream's: it may be large, and
    /// readers keep their last message.
    #[inline]
    pub(crate) fn take_spare(&mut self) -> Option<Msgbuf> {
        let is_single = self.message.stream.is_none();
        is_single.then(|| std::mem::take(&mut self.message.payload))
    }
}

/// An operation that its caller waits for.
#[derive(Clone)]
pub struct CallHandle(pub(crate) Arc<CallCell>);

impl CallHandle {
    /// One that nobody waits for.
    pub(crate) fn unattended(operation: Operation) -> Self {
        Self(CallCell::new(operation, None))
    }

    /// The call.
    pub fn number(&self) -> CallNumber {
        self.0.number()
    }

    /// Whether nobody waits for it any more.
    pub fn is_abandoned(&self) -> bool {
        self.0.is_abandoned()
    }
}

impl fmt::Debug for CallHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CallHandle").field(&self.number()).finish()
    }
}

/// An operation, and the result that a transport owes its caller.
pub struct Reply {
    /// None once it has ended.
    call: Option<CallHandle>,
}

impl Reply {
    pub(crate) fn new(call: CallHandle) -> Self {
        Self { call: Some(call) }
    }

    /// The operation.
    pub fn call(&self) -> &CallHandle {
        self.call.as_ref().expect("it has not ended")
    }

    /// What is asked for, once. None if the caller has given up, too.
    pub fn take_operation(&self) -> Option<Operation> {
        self.call().0.take_operation()
    }

    /// Ends the operation.
    pub fn finish(self, result: CallResult) {
        self.finish_with(|_| result);
    }

    /// The same. `make` gets the request if nobody has taken it: the result may use its memory.
    #[inline]
    pub(crate) fn finish_with(
        mut self,
        make: impl FnOnce(Option<&mut OutgoingCall>) -> CallResult,
    ) {
        if let Some(CallHandle(cell)) = self.call.take() {
            let mut attempt = cell.take_attempt();
            // First: the caller may make the next call as soon as it has the result.
            cell.return_permit();
            let was_of_stream = cell.finish_with(|request| {
                let result = make(request);
                if let Some(attempt) = &mut attempt {
                    attempt.handle_end(&result);
                }
                result
            });
            if was_of_stream {
                cell.recycle_of_stream();
            }
        }
    }

    /// Gives back the request of a call that was taken: for [`Reply::finish_unsent`].
    pub fn put_back(&self, call: OutgoingCall) {
        self.call().0.put_back(call);
    }

    /// Ends a call that did not run and never will. A balanced channel makes it at another server, if nobody has
    /// taken the request.
    pub fn finish_unsent(self, status: Status) {
        let status = status.with_not_run();
        match self.call().0.take_attempt() {
            Some(attempt) => attempt.give_back(self, status),
            None => self.finish(Err(status)),
        }
    }

    /// Whether another server may make a call that this one has not run.
    pub(crate) fn may_go_elsewhere(&self) -> bool {
        let placement = self.call().0.placement();
        placement.is_some_and(Placement::may_go_elsewhere)
    }
}

impl Drop for Reply {
    #[inline]
    fn drop(&mut self) {
        if let Some(CallHandle(cell)) = self.call.take() {
            drop(cell.take_attempt());
            cell.return_permit();
            cell.finish(Err(stopped(None)));
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reply").field(&self.call).finish()
    }
}

/// The status of operations that their transport gave up.
#[cold]
pub(crate) fn stopped(why: Option<&str>) -> Status {
    let why = why.unwrap_or("its endpoint was dropped");
    Status::unavailable(format!(
        "the channel's endpoint has ended: {why}; make a new channel"
    ))
}

/// What a transport keeps while a caller waits. Dropped when the operation is over.
#[derive(Default)]
pub struct Waiting {
    // Boxed because streams keep theirs, and thousands may be at rest.
    pub(crate) watch: Option<Box<Watch>>,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waiting(..)")
    }
}

#[cfg(test)]
mod tests {
    use starling_endpoint::{Direction, MethodId, MethodPath};

    use super::*;

    #[test]
    fn a_response_in_a_stream_does_not_keep_the_memory_of_its_request() {
        let call = |stream| {
            let message = CallDescriptor {
                call: CallNumber::next(),
                path: MethodPath::Static("/a.B/C"),
                method: MethodId(1),
                direction: Direction::Request,
                deadline: None,
                metadata: Metadata::default(),
                encoding: Encoding::Native,
                coding: None,
                stream,
                payload: Msgbuf::from_vec(Vec::with_capacity(60 << 10)),
                headroom: 0,
            };
            OutgoingCall::new(message, None, false)
        };
        let spare = call(None).take_spare().expect("it is a single call");
        assert!(spare.capacity() >= 60 << 10);
        assert!(call(Some(Default::default())).take_spare().is_none());
    }
}
