//! An endpoint for the thread that owns it, over whichever device its address asks for.

use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use starling_endpoint::{EndpointConfig, Idle, LocalHandle, Stats, Turn, WorkerConfig};
use starling_io::{DeviceReport, IoError, MessageMemory, PacketIo, Wake};
use starling_io_shm::ShmIo;
use starling_io_udp::UdpIo;
use starling_io_xdp::XdpIo;

use crate::address::{Address, Scheme, Way};
use crate::core::{Core, Raw};
use crate::error::Error;
use crate::hub::Hub;
use crate::local::LocalChannel;
use crate::plane::Plane;
use crate::registry::Registry;
use crate::server::default_workers;
use crate::service::Service;

/// One thread's end of everything: it serves and calls, runs to completion, takes no locks.
///
/// Everything happens while one of its methods runs: [`Endpoint::block_on`],
/// [`Endpoint::run_until`], or [`Endpoint::poll`] in a loop of your own.
pub struct Endpoint {
    device: Device,
}

enum Device {
    Udp(Box<Core<UdpIo>>),
    Shm(Box<Core<ShmIo>>),
    Xdp(Box<Core<XdpIo>>),
}

/// The same for each device.
macro_rules! each {
    ($endpoint:expr, $core:ident => $body:expr) => {
        match $endpoint {
            Device::Udp($core) => $body,
            Device::Shm($core) => $body,
            Device::Xdp($core) => $body,
        }
    };
}

impl Endpoint {
    /// An endpoint that only makes calls, to addresses like this one.
    pub fn client(address: &str) -> Result<Self, Error> {
        Self::builder().reach(address).build()
    }

    /// An endpoint with settings.
    pub fn builder() -> EndpointBuilder {
        EndpointBuilder {
            address: None,
            config: EndpointConfig::default(),
            registry: Registry::default(),
            workers: default_workers(),
        }
    }

    /// For calls: `KvClient::new(endpoint.channel("shm://kv")?)`. Connects with the first one.
    pub fn channel(&self, address: &str) -> Result<LocalChannel, Error> {
        LocalChannel::open(self.hub(), address)
    }

    fn hub(&self) -> &Rc<Hub> {
        each!(&self.device, core => &core.hub)
    }

    /// Runs until `future` is ready. It may use channels of this endpoint, and anything else that
    /// needs no executor of its own. An error is the device's and final.
    pub fn block_on<F: Future>(&mut self, future: F) -> Result<F::Output, IoError> {
        each!(&mut self.device, core => core.block_on(future))
    }

    /// Runs a future in this endpoint, whenever the endpoint runs.
    pub fn spawn_local(&self, future: impl Future<Output = ()> + 'static) {
        self.local().spawn_local(future);
    }

    /// For sleeping and spawning in futures of this endpoint.
    pub fn local(&self) -> LocalHandle {
        self.hub().local.clone()
    }

    /// One turn of the event loop. Never blocks. An error is the device's and final.
    #[inline]
    pub fn poll(&mut self) -> Result<Turn, IoError> {
        each!(&mut self.device, core => core.turn())
    }

    /// Waits for something to do as [`Idle`] says, at most `limit`. To be called after a turn that
    /// did nothing.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<(), IoError> {
        each!(&mut self.device, core => core.wait(limit))
    }

    /// Turns until `done` says so; it is asked after each turn.
    pub fn run_until(&mut self, mut done: impl FnMut() -> bool) -> Result<(), IoError> {
        each!(&mut self.device, core => loop {
            let turn = core.turn()?;
            if done() {
                return Ok(());
            }
            if turn.is_idle() {
                core.wait(None)?;
            }
        })
    }

    /// The address that peers reach this endpoint at.
    pub fn local_address(&self) -> String {
        each!(&self.device, core => core.raw.local_address())
    }

    /// For other threads to end a wait, so that `done` of [`Endpoint::run_until`] is asked.
    pub fn waker(&self) -> Arc<dyn Wake> {
        each!(&self.device, core => core.raw.waker())
    }

    /// Where large bytes fields of requests are best made, for `request.set_..._bytes`: they are sent
    /// from there as they are, where the device can do that.
    pub fn memory(&self) -> &MessageMemory {
        &self.hub().memory
    }

    /// What the endpoint did so far.
    pub fn stats(&self) -> Stats {
        each!(&self.device, core => *core.raw.stats())
    }

    /// What the device is, and what it has counted.
    pub fn device_report(&self) -> DeviceReport {
        each!(&self.device, core => core.raw.io().report())
    }

    /// The endpoint underneath, if its device is UDP: sessions, raw calls, continuations.
    pub fn raw_udp(&mut self) -> Option<&mut Raw<UdpIo>> {
        match &mut self.device {
            Device::Udp(core) => Some(&mut core.raw),
            _ => None,
        }
    }

    /// The endpoint underneath, if its device is shared memory.
    pub fn raw_shm(&mut self) -> Option<&mut Raw<ShmIo>> {
        match &mut self.device {
            Device::Shm(core) => Some(&mut core.raw),
            _ => None,
        }
    }

    /// The endpoint underneath, if its device is AF_XDP.
    pub fn raw_xdp(&mut self) -> Option<&mut Raw<XdpIo>> {
        match &mut self.device {
            Device::Xdp(core) => Some(&mut core.raw),
            _ => None,
        }
    }

    /// Finishes what is being worked on and closes all sessions, at most for `timeout`. True if
    /// everything was finished.
    pub fn shut_down(mut self, timeout: Duration) -> Result<bool, IoError> {
        each!(&mut self.device, core => core.drain(timeout))
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

/// How to make an [`Endpoint`].
#[must_use = "a builder does nothing until `build`"]
pub struct EndpointBuilder {
    address: Option<(String, Role)>,
    config: EndpointConfig,
    registry: Registry,
    workers: WorkerConfig,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The address is the endpoint's own.
    Bind,
    /// The address is of those that it reaches.
    Reach,
}

impl fmt::Debug for EndpointBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointBuilder").finish_non_exhaustive()
    }
}

impl EndpointBuilder {
    /// The address that others reach it at. It can also make calls to addresses of the same kind.
    pub fn bind(mut self, address: &str) -> Self {
        self.address = Some((address.to_owned(), Role::Bind));
        self
    }

    /// An endpoint that others cannot reach, for calls to addresses like this one.
    pub fn reach(mut self, address: &str) -> Self {
        self.address = Some((address.to_owned(), Role::Reach));
        self
    }

    /// What to do when there is nothing to do.
    pub fn idle(mut self, idle: Idle) -> Self {
        self.config.idle = idle;
        self
    }

    /// Sets everything about sessions, credits and timers.
    pub fn config(mut self, config: EndpointConfig) -> Self {
        self.config = config;
        self
    }

    /// Serves a service, in this thread and the workers.
    pub fn add_service<S: Service>(mut self, service: S) -> Self {
        self.registry.add(service);
        self
    }

    /// Threads for methods that run in workers. Unless set, as many as the host has cores.
    pub fn workers(mut self, threads: usize) -> Self {
        self.workers.threads = threads;
        self
    }

    /// Sets everything about workers: threads, their queue, and who gets what.
    pub fn worker_config(mut self, config: WorkerConfig) -> Self {
        self.workers = config;
        self
    }

    /// The endpoint.
    pub fn build(self) -> Result<Endpoint, Error> {
        let (address, role) = self.address.as_ref().ok_or(Error::NoAddress)?;
        let address = Address::parse(address)?;
        let role = *role;
        let device = match address.scheme() {
            Scheme::Udp => Device::Udp(Box::new(self.core(&address, role)?)),
            Scheme::Shm => Device::Shm(Box::new(self.core(&address, role)?)),
            Scheme::Xdp => Device::Xdp(Box::new(self.core(&address, role)?)),
        };
        Ok(Endpoint { device })
    }

    fn core<I: Plane>(mut self, address: &Address, role: Role) -> Result<Core<I>, Error> {
        if role == Role::Bind {
            self.registry.complete(&self.workers)?;
        }
        let io = match role {
            Role::Bind => I::bind(address.as_str(), false)?,
            Role::Reach => I::client(address.as_str())?,
        };
        let mut core = Core::new(io, Way::of(address), &self.config)?;
        if role == Role::Bind {
            core.serve(&self.registry, &self.workers)?;
        }
        Ok(core)
    }
}
