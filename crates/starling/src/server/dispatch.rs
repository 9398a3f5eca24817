//! One dispatch thread of a server.

use std::sync::Arc;

use starling_endpoint::{EndpointConfig, Stall, WorkerConfig};
use starling_io::{IoError, MonotonicClock};

use super::control::{Control, ControlRequests};
use crate::address::DeviceKey;
use crate::channel_factory::ChannelFactory;
use crate::core::Core;
use crate::device::Device;
use crate::error::Error;
use crate::registry::{Registry, ServedDevice};

/// The parts that a dispatch thread needs besides its device.
pub(super) struct DispatchThread {
    pub(super) registry: Arc<Registry>,
    pub(super) config: EndpointConfig,
    pub(super) workers: WorkerConfig,
    pub(super) control: Arc<Control>,
    pub(super) requests: Arc<ControlRequests>,
}

impl DispatchThread {
    /// Serves until the server stops. True if all work was finished then.
    pub(super) fn run<I: ServedDevice>(self, io: I, key: DeviceKey) -> Result<bool, Error> {
        let mut core = Core::new(io, MonotonicClock::new(), &self.config)?;
        let channels = ChannelFactory::new(&core, key);
        (self.registry).serve_on(&mut core, &channels, &self.workers)?;
        self.control.count(|threads| threads.serving += 1);
        let result = self.serve(&mut core);
        self.requests.leave_last(core.stats());
        Ok(result?)
    }

    fn serve<I: Device>(&self, core: &mut Core<I>) -> Result<bool, IoError> {
        while !self.must_stop(core) {
            if core.turn()?.is_idle() {
                core.raw.wait(None)?;
            }
            if let Some(stall) = core.raw.take_stall() {
                self.warn(stall);
            }
        }
        core.drain(self.control.drain_timeout())
    }

    /// Names a handler that held up this thread.
    #[cold]
    fn warn(&self, stall: Stall) {
        let method = self.registry.path(stall.method.0);
        let method = method.unwrap_or("a method that is not registered any more");
        let others = match stall.requests {
            1 => "",
            _ => ", or another one of the same moment",
        };
        tracing::warn!(
            method,
            requests = stall.requests,
            lasted_ms = stall.lasted.as_millis() as u64,
            "the handler of {method}{others} held up its dispatch thread, and all clients of it, for \
             {:?}: mark the method WORKER if it computes or blocks, NESTED if it awaits",
            stall.lasted
        );
    }

    /// Answers pending requests. A server that stops notifies each thread, so the flag covers both.
    #[inline]
    fn must_stop<I: Device>(&self, core: &Core<I>) -> bool {
        if !self.requests.is_pending() {
            return false;
        }
        self.requests.answer(|| core.stats());
        self.control.is_stopping()
    }
}
