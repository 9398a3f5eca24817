//! An endpoint for the thread that owns it, on the device that its address names.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use starling_endpoint::{LocalHandle, Stats, Turn};
use starling_io::{Device, DeviceReport, IoError, MessageMemory, MonotonicClock, Wake};

use crate::address::Address;
use crate::channel_factory::ChannelFactory;
use crate::core::{AnyCore, Core};
use crate::error::Error;
use crate::health::{EndOnDrop, Health};
use crate::local::LocalChannel;
use crate::settings::{Settings, settings_methods};
use crate::threads::ThreadRole;
use crate::time::OwnersEndpoint;

/// One thread's endpoint: it serves and calls, runs to completion, and takes no locks.
///
/// It works while one of its methods runs: [`Endpoint::block_on`], [`Endpoint::run_until`], or
/// [`Endpoint::poll`] in a loop of your own.
pub struct Endpoint {
    health: EndOnDrop,
    core: Box<dyn AnyCore>,
    channels: Arc<ChannelFactory>,
    /// Only if a test moves the endpoint's time.
    by_hand: Option<Arc<OwnersEndpoint>>,
}

impl Endpoint {
    /// An endpoint that makes calls to addresses like this one, and serves nothing.
    pub fn client(address: &str) -> Result<Self, Error> {
        Self::builder().reach(address).build()
    }

    /// An endpoint with settings.
    pub fn builder() -> EndpointBuilder {
        EndpointBuilder {
            address: None,
            settings: Settings::default(),
        }
    }

    /// A channel for calls: `KvClient::new(endpoint.channel("shm://kv")?)`. It connects with the
    /// first call.
    pub fn channel(&self, address: &str) -> Result<LocalChannel, Error> {
        self.channels.channel(address)
    }

    /// Runs until `future` is ready. The future may use channels of this endpoint, and anything else
    /// that needs no executor of its own. An error is the device's, and final.
    pub fn block_on<F: Future>(&mut self, future: F) -> Result<F::Output, IoError> {
        let mut output = None;
        let _runs = self.by_hand.as_ref().map(|endpoint| endpoint.run());
        self.core
            .block_on(pin!(async { output = Some(future.await) }))?;
        Ok(output.expect("the future has ended"))
    }

    /// Adds a task to this endpoint. It makes progress while the endpoint runs.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.local().spawn(future);
    }

    /// The handle by which futures of this endpoint sleep and spawn tasks.
    pub fn local(&self) -> LocalHandle {
        self.channels.executor.local.clone()
    }

    /// One turn of the event loop. Never blocks. An error is the device's, and
    /// final.
    #[inline]
    pub fn poll(&mut self) -> Result<Turn, IoError> {
        self.core.turn()
    }

    /// Waits for work in the way that [`Idle`](crate::Idle) says, at most `limit`. To be called after
    /// an idle turn.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<(), IoError> {
        self.core.wait(limit)
    }

    /// Runs until `done` returns true. It is called after each turn.
    pub fn run_until(&mut self, mut done: impl FnMut() -> bool) -> Result<(), IoError> {
        let _runs = self.by_hand.as_ref().map(|endpoint| endpoint.run());
        self.core.run_until(&mut done)
    }

    /// The address at which peers reach this endpoint.
    pub fn local_address(&self) -> String {
        self.core.local_address()
    }

    /// Lets other threads end a wait, so that [`Endpoint::run_until`] calls `done`.
    pub fn waker(&self) -> Arc<dyn Wake> {
        self.core.waker()
    }

    /// The best memory for large bytes fields of requests, for `request.set_..._bytes`: a device that
    /// can do so sends from there without a copy.
    pub fn memory(&self) -> &MessageMemory {
        &self.channels.memory
    }

    /// Counters of the endpoint.
    pub fn stats(&self) -> Stats {
        self.core.endpoint_stats()
    }

    /// The mode of the device, and its counters.
    pub fn device_report(&self) -> DeviceReport {
        self.core.report()
    }

    /// The endpoint underneath, if its device is of this type, such as `starling_io_udp::UdpIo`: sessions,
    /// raw calls, continuations.
    pub fn raw<I: Device>(
        &mut self,
    ) -> Option<&mut starling_endpoint::Endpoint<I, MonotonicClock>> {
        let core = self.core.as_any().downcast_mut::<Core<I>>()?;
        Some(&mut core.raw)
    }

    pub(crate) fn channels(&self) -> &Arc<ChannelFactory> {
        &self.channels
    }

    /// The statuses that health checks get, if the endpoint serves.
    pub fn health(&self) -> Health {
        self.health.0.clone()
    }

    /// Finishes the work in progress and closes all sessions, at most for `timeout`. True if all of it
    /// was finished.
    pub fn shut_down(mut self, timeout: Duration) -> Result<bool, IoError> {
        self.health.0.end();
        self.core.drain(timeout)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("local_address", &self.local_address())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// The settings of an [`Endpoint`].
#[must_use = "a builder does nothing until `build`"]
pub struct EndpointBuilder {
    address: Option<(String, Role)>,
    settings: Settings,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The address is the endpoint's own.
    Bind,
    /// The address is like those of the endpoint's peers.
    Reach,
}

impl fmt::Debug for EndpointBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointBuilder").finish_non_exhaustive()
    }
}

impl EndpointBuilder {
    /// The address at which peers reach the endpoint. It can also make calls, to addresses of the same
    /// device.
    pub fn bind(mut self, address: &str) -> Self {
        self.address = Some((address.to_owned(), Role::Bind));
        self
    }

    /// Makes an endpoint that peers cannot reach, for calls to addresses like this one.
    pub fn reach(mut self, address: &str) -> Self {
        self.address = Some((address.to_owned(), Role::Reach));
        self
    }

    settings_methods!();

    /// Makes the endpoint.
    pub fn build(self) -> Result<Endpoint, Error> {
        let (address, role) = self.address.as_ref().ok_or(Error::NoAddress)?;
        let address = Address::parse(address)?;
        let Settings {
            mut registry,
            config,
            workers,
            time,
        } = self.settings;
        match role {
            Role::Bind => registry.complete(&workers)?,
            Role::Reach if registry.is_empty() => {}
            Role::Reach => return Err(Error::ServesNothing),
        }
        let is_bound = *role == Role::Bind;
        let mut core =
            address
                .device()
                .core(&address, is_bound, &time, &config, registry.decode)?;
        let channels = core.channels(address, registry.outgoing.clone());
        if is_bound {
            core.serve(&registry, &channels, &workers)?;
            registry.health.begin();
        }
        core.be_known(ThreadRole::Endpoint);
        let health = EndOnDrop(registry.health.clone());
        Ok(Endpoint {
            by_hand: OwnersEndpoint::new(&time, core.waker()),
            health,
            core,
            channels,
        })
    }
}
