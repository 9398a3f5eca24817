//! How a nested handler makes calls of its own.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use starling_endpoint::{Cancellation, Cancelled, Metadata, Peer, Sleep};
use starling_io::MessageMemory;

use crate::channel_factory::ChannelFactory;
use crate::error::Error;
use crate::local::LocalChannel;
use crate::message::best_memory;
use crate::plane::IncomingCall;

/// Lets a nested handler make calls, while it waits, from the dispatch thread that it runs in.
///
/// When the caller cancels the call or is gone, or the call's deadline passes, the handler's future
/// is dropped. The calls that the future waits for are cancelled with it. A worker handler with streams has
/// no future: it learns of that by its stream's next message, and has to look at
/// [`NestedContext::is_cancelled`] if it waits for anything else, such as a stream of its own.
#[derive(Clone)]
pub struct NestedContext(Arc<Call>);

/// What is known of the call. Apart, for a handler that is a future has its arguments twice.
struct Call {
    channels: Arc<ChannelFactory>,
    deadline_ns: Option<u64>,
    deadline: Option<Instant>,
    peer: Peer,
    cancellation: Cancellation,
    /// Goes with the response.
    response_metadata: Mutex<Option<Box<Metadata>>>,
}

/// The metadata that goes with the response of a call.
pub(crate) struct ResponseMetadata(Arc<Call>);

impl ResponseMetadata {
    pub(crate) fn take(&self) -> Metadata {
        let metadata = self.0.response_metadata.lock().take();
        metadata.map_or_else(Metadata::default, |metadata| *metadata)
    }

    pub(crate) fn get(&self) -> Metadata {
        let metadata = self.0.response_metadata.lock();
        metadata.as_deref().cloned().unwrap_or_default()
    }
}

impl NestedContext {
    pub(crate) fn new(channels: &Arc<ChannelFactory>, call: IncomingCall) -> Self {
        let IncomingCall {
            remaining,
            peer,
            cancellation,
        } = call;
        let deadline_ns = remaining.map(|remaining| {
            let remaining_ns = u64::try_from(remaining.as_nanos()).unwrap_or(u64::MAX);
            channels.executor.now_ns().saturating_add(remaining_ns)
        });
        Self(Arc::new(Call {
            channels: Arc::clone(channels),
            deadline_ns,
            deadline: channels.executor.time.after(remaining),
            peer,
            cancellation,
            response_metadata: Mutex::default(),
        }))
    }

    pub(crate) fn response_metadata(&self) -> ResponseMetadata {
        ResponseMetadata(Arc::clone(&self.0))
    }

    /// Sends metadata with the response, in place of what was set before. A call that fails sends that of its
    /// status. A stream sends it behind its messages, unless [`StreamSender::set_trailers`] was used.
    ///
    /// [`StreamSender::set_trailers`]: crate::StreamSender::set_trailers
    pub fn set_response_metadata(&self, metadata: Metadata) {
        *self.0.response_metadata.lock() = Some(Box::new(metadata));
    }

    /// The call's deadline.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.deadline
    }

    /// Who calls.
    pub fn peer(&self) -> &Peer {
        &self.0.peer
    }

    /// Whether the caller no longer waits. The handler's own future is dropped then; this is for what the
    /// handler has begun elsewhere.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancellation.is_cancelled()
    }

    /// Ready as soon as the caller no longer waits, with the reason: it cancelled the call, it is gone, its
    /// deadline has passed, or the call has been answered. For tasks that the handler has begun elsewhere.
    pub fn cancelled(&self) -> Cancelled {
        self.0.cancellation.cancelled()
    }

    /// The same without this context.
    pub fn cancellation(&self) -> &Cancellation {
        &self.0.cancellation
    }

    /// For calls to another server: `KvClient::new(cx.channel("shm://kv")?)`. The connection is
    /// made when it is first used and kept for the next requests. The calls end at the latest
    /// when the deadline of this handler's own call passes.
    pub fn channel(&self, address: &str) -> Result<LocalChannel, Error> {
        let channel = self.0.channels.channel(address)?;
        Ok(channel.with_deadline(self.0.deadline_ns))
    }

    /// The best memory for large bytes fields of the response, or of a stream's messages: a device that can do so
    /// sends from there without a copy. Over `shm://` nobody but this caller can read it.
    pub fn memory(&self) -> &MessageMemory {
        best_memory(&self.0.peer, &self.0.channels.memory)
    }

    /// Ends after `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.0.channels.executor.local.sleep(duration)
    }
}

impl fmt::Debug for NestedContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NestedContext(..)")
    }
}
