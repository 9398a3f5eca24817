//! A plane's server side.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use starling_endpoint::{EndpointConfig, WorkerConfig};
use starling_io::Wake;

use super::handler::Method;
use crate::error::Error;
use crate::registry::{HandlerTask, Registry};
use crate::server::{Control, ControlRequests};
use crate::stats::ThreadStats;
use crate::time::Time;

/// A plane's server side: what serves at one address, in one thread.
pub trait Listener: Send {
    /// The scheme of its address.
    fn scheme(&self) -> &str;

    /// The address at which clients reach it.
    fn local_address(&self) -> String;

    /// Has [`Listener::serve`] ask [`Serving::must_stop`] soon.
    fn waker(&self) -> Arc<dyn Wake>;

    /// Serves in this thread until [`Serving::must_stop`] says so. True if all calls in progress were
    /// finished then, which may take [`Serving::drain_timeout`].
    ///
    /// # Errors
    /// If it cannot begin, or if it fails. The other listeners of the server then stop, too.
    fn serve(self: Box<Self>, serving: Serving) -> Result<bool, Error>;
}

/// What a listener serves, and the means by which its server controls it.
pub struct Serving {
    pub(crate) registry: Arc<Registry>,
    pub(crate) config: EndpointConfig,
    pub(crate) workers: WorkerConfig,
    pub(crate) time: Time,
    pub(crate) control: Arc<Control>,
    pub(crate) requests: Arc<ControlRequests>,
}

impl Serving {
    /// The methods of the server's services, and of those that every server has.
    pub fn methods(&self) -> &[Box<dyn Method>] {
        self.registry.methods()
    }

    /// The settings of sessions, credits and timers.
    pub fn config(&self) -> &EndpointConfig {
        &self.config
    }

    /// The settings of workers.
    pub fn workers(&self) -> &WorkerConfig {
        &self.workers
    }

    /// The user's executor for nested handlers. If there is none, they run in this thread.
    pub fn nested_executor(&self) -> Option<&(dyn Fn(HandlerTask) + Send + Sync)> {
        self.registry.spawn.as_deref()
    }

    /// The listener serves from now on. [`Server::spawn`](crate::Server::spawn) waits for this.
    pub fn begun(&self) {
        self.control.count(|threads| threads.serving += 1);
    }

    /// Whether the listener has to stop. It asks each time its waker was used, and may ask in each turn:
    /// this is one load unless something is asked of it. `stats` is called if the server's owner asks for
    /// counters.
    #[inline]
    pub fn must_stop(&self, stats: impl FnOnce() -> ThreadStats) -> bool {
        // A server that stops notifies each thread, so the flag covers both.
        if !self.requests.is_pending() {
            return false;
        }
        self.requests.answer(stats);
        self.control.is_stopping()
    }

    /// How long the listener may take to finish calls in progress.
    pub fn drain_timeout(&self) -> Duration {
        self.control.drain_timeout()
    }

    /// Leaves the counters of a listener that has ended.
    pub fn leave_stats(&self, last: ThreadStats) {
        self.requests.leave_last(last);
    }
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").finish_non_exhaustive()
    }
}
