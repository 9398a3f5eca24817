//! How a nested handler makes calls of its own.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use starling_endpoint::{Metadata, Sleep};
use starling_io::MessageMemory;

use crate::channel_factory::ChannelFactory;
use crate::error::Error;
use crate::local::LocalChannel;

/// Lets a nested handler make calls, while it waits, from the dispatch thread that it runs in.
///
/// When the caller cancels the call or is gone, or the call's deadline passes, the handler's future
/// is dropped. The calls that the future waits for are cancelled with it.
#[derive(Clone)]
pub struct NestedContext {
    channels: Arc<ChannelFactory>,
    deadline_ns: Option<u64>,
    deadline: Option<Instant>,
    /// Goes with the response.
    response_metadata: Arc<Mutex<Metadata>>,
}

impl NestedContext {
    /// For a call whose caller waits so long.
    pub(crate) fn new(channels: &Arc<ChannelFactory>, remaining: Option<Duration>) -> Self {
        let deadline_ns = remaining.map(|remaining| {
            let remaining_ns = u64::try_from(remaining.as_nanos()).unwrap_or(u64::MAX);
            channels.executor.now_ns().saturating_add(remaining_ns)
        });
        Self {
            channels: Arc::clone(channels),
            deadline_ns,
            deadline: remaining.and_then(|remaining| Instant::now().checked_add(remaining)),
            response_metadata: Arc::default(),
        }
    }

    pub(crate) fn response_metadata(&self) -> Arc<Mutex<Metadata>> {
        Arc::clone(&self.response_metadata)
    }

    /// Sends metadata with the response, in place of what was set before. A call that fails sends that of its
    /// status. A stream sends it behind its messages, unless [`StreamSender::set_trailers`] was used.
    ///
    /// [`StreamSender::set_trailers`]: crate::StreamSender::set_trailers
    pub fn set_response_metadata(&self, metadata: Metadata) {
        *self.response_metadata.lock() = metadata;
    }

    /// The call's deadline.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// For calls to another server: `KvClient::new(cx.channel("shm://kv")?)`. The connection is
    /// made when it is first used and kept for the next requests. The calls end at the latest
    /// when the deadline of this handler's own call passes.
    pub fn channel(&self, address: &str) -> Result<LocalChannel, Error> {
        let channel = self.channels.channel(address)?;
        Ok(channel.with_deadline(self.deadline_ns))
    }

    /// The best memory for large bytes fields of the response.
    pub fn memory(&self) -> &MessageMemory {
        &self.channels.memory
    }

    /// Ends after `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.channels.executor.local.sleep(duration)
    }
}

impl fmt::Debug for NestedContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NestedContext(..)")
    }
}
