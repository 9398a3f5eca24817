//! How a handler makes calls of its own.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use starling_endpoint::Sleep;
use starling_io::MessageMemory;

use crate::error::Error;
use crate::hub::Hub;
use crate::local::LocalChannel;

/// What a nested handler can do while it waits: make calls from the dispatch thread that it runs in.
///
/// When the caller cancels the call, is gone, or its deadline passes, the handler's future is
/// dropped, and with it the calls that it is waiting for.
#[derive(Clone)]
pub struct NestedContext {
    hub: Rc<Hub>,
    deadline_ns: Option<u64>,
}

impl NestedContext {
    pub(crate) fn new(hub: &Rc<Hub>, deadline_ns: Option<u64>) -> Self {
        Self {
            hub: Rc::clone(hub),
            deadline_ns,
        }
    }

    /// For calls to another server: `KvClient::new(cx.channel("shm://kv")?)`. The connection is
    /// made when it is first used and kept for the next requests. The calls end at the latest
    /// when the caller of this handler gives up.
    pub fn channel(&self, address: &str) -> Result<LocalChannel, Error> {
        Ok(LocalChannel::open(&self.hub, address)?.with_deadline(self.deadline_ns))
    }

    /// Where large bytes fields of the answer are best made.
    pub fn memory(&self) -> &MessageMemory {
        &self.hub.memory
    }

    /// Ends after `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.hub.local.sleep(duration)
    }
}

impl fmt::Debug for NestedContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NestedContext(..)")
    }
}
