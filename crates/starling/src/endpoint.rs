//! An endpoint for the thread that owns it, on the device that its address names.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use starling_endpoint::{LocalHandle, Stats, Turn};
use starling_io::{DeviceReport, IoError, MessageMemory, MonotonicClock, PacketIo, Wake};
use starling_io_shm::ShmIo;
use starling_io_udp::UdpIo;
use starling_io_xdp::XdpIo;

use crate::address::{Address, DeviceKey, Scheme};
use crate::channel_factory::ChannelFactory;
use crate::core::Core;
use crate::device::{PerDevice, Raw, for_each_device};
use crate::error::Error;
use crate::local::LocalChannel;
use crate::registry::ServedDevice;
use crate::settings::{Settings, settings_methods};

/// One thread's endpoint: it serves and calls, runs to completion, and takes no locks.
///
/// It works while one of its methods runs: [`Endpoint::block_on`], [`Endpoint::run_until`], or
/// [`Endpoint::poll`] in a loop of your own.
pub struct Endpoint {
    core: AnyCore,
    channels: Arc<ChannelFactory>,
}

type AnyCore = PerDevice<Box<Core<UdpIo>>, Box<Core<ShmIo>>, Box<Core<XdpIo>>>;

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
        for_each_device!(&mut self.core, core => core.block_on(future))
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
        for_each_device!(&mut self.core, core => core.turn())
    }

    /// Waits for work in the way that [`Idle`](crate::Idle) says, at most `limit`. To be called after
    /// an idle turn.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<(), IoError> {
        for_each_device!(&mut self.core, core => core.wait(limit))
    }

    /// Runs until `done` returns true. It is called after each turn.
    pub fn run_until(&mut self, mut done: impl FnMut() -> bool) -> Result<(), IoError> {
        for_each_device!(&mut self.core, core => loop {
            let turn = core.turn()?;
            if done() {
                return Ok(());
            }
            if turn.is_idle() {
                core.wait(None)?;
            }
        })
    }

    /// The address at which peers reach this endpoint.
    pub fn local_address(&self) -> String {
        for_each_device!(&self.core, core => core.raw.local_address())
    }

    /// Lets other threads end a wait, so that [`Endpoint::run_until`] calls `done`.
    pub fn waker(&self) -> Arc<dyn Wake> {
        for_each_device!(&self.core, core => core.raw.waker())
    }

    /// The best memory for large bytes fields of requests, for `request.set_..._bytes`: a device that
    /// can do so sends from there without a copy.
    pub fn memory(&self) -> &MessageMemory {
        &self.channels.memory
    }

    /// Counters of the endpoint.
    pub fn stats(&self) -> Stats {
        for_each_device!(&self.core, core => *core.raw.stats())
    }

    /// The mode of the device, and its counters.
    pub fn device_report(&self) -> DeviceReport {
        for_each_device!(&self.core, core => core.raw.io().report())
    }

    /// The endpoint underneath, if its device is UDP: sessions, raw calls, continuations.
    pub fn raw_udp(&mut self) -> Option<&mut Raw<UdpIo>> {
        match &mut self.core {
            PerDevice::Udp(core) => Some(&mut core.raw),
            _ => None,
        }
    }

    /// The endpoint underneath, if its device is shared memory.
    pub fn raw_shm(&mut self) -> Option<&mut Raw<ShmIo>> {
        match &mut self.core {
            PerDevice::Shm(core) => Some(&mut core.raw),
            _ => None,
        }
    }

    /// The endpoint underneath, if its device is AF_XDP.
    pub fn raw_xdp(&mut self) -> Option<&mut Raw<XdpIo>> {
        match &mut self.core {
            PerDevice::Xdp(core) => Some(&mut core.raw),
            _ => None,
        }
    }

    /// Finishes the work in progress and closes all sessions, at most for `timeout`. True if all of it
    /// was finished.
    pub fn shut_down(mut self, timeout: Duration) -> Result<bool, IoError> {
        for_each_device!(&mut self.core, core => core.drain(timeout))
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
        let role = *role;
        match address.scheme() {
            Scheme::Udp => self.build_on(&address, role, PerDevice::Udp),
            Scheme::Shm => self.build_on(&address, role, PerDevice::Shm),
            Scheme::Xdp => self.build_on(&address, role, PerDevice::Xdp),
        }
    }

    fn build_on<I: ServedDevice>(
        self,
        address: &Address,
        role: Role,
        any: fn(Box<Core<I>>) -> AnyCore,
    ) -> Result<Endpoint, Error> {
        let Settings {
            mut registry,
            config,
            workers,
        } = self.settings;
        match role {
            Role::Bind => registry.complete(&workers)?,
            Role::Reach if registry.is_empty() => {}
            Role::Reach => return Err(Error::ServesNothing),
        }
        let io = match role {
            Role::Bind => I::bind(address.as_str(), false)?,
            Role::Reach => I::client(address.as_str())?,
        };
        let mut core = Core::new(io, MonotonicClock::new(), &config)?;
        let channels = ChannelFactory::new(&core, DeviceKey::of(address));
        if role == Role::Bind {
            registry.serve_on(&mut core, &channels, &workers)?;
        }
        Ok(Endpoint {
            core: any(Box::new(core)),
            channels,
        })
    }
}
