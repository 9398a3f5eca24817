//! Servers: services at one or several addresses, each with dispatch threads of its own.

mod control;
mod dispatch;
mod handle;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use starling_io::{Fault, IoError, PacketIo};
use starling_io_shm::ShmIo;
use starling_io_udp::UdpIo;
use starling_io_xdp::{MAX_WORKERS, XdpAddress, XdpIo};

use crate::address::{Address, DeviceKey, Scheme};
use crate::device::{AnyDevice, Device, PerDevice, for_each_device};
use crate::error::Error;
use crate::registry::Registry;
use crate::settings::{Settings, settings_methods};

use control::ControlRequests;
use dispatch::DispatchThread;
pub use handle::ServerHandle;

/// The settings of a [`Server`].
#[must_use = "a builder does nothing until `build`"]
pub struct ServerBuilder {
    addresses: Vec<Address>,
    settings: Settings,
    threads: usize,
}

/// A device at one of the server's addresses.
struct BoundDevice {
    key: DeviceKey,
    io: AnyDevice,
}

impl BoundDevice {
    fn new(key: DeviceKey, io: AnyDevice) -> Self {
        Self { key, io }
    }

    fn local_address(&self) -> String {
        for_each_device!(&self.io, io => io.local_address())
    }
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerBuilder").finish_non_exhaustive()
    }
}

impl ServerBuilder {
    /// Dispatch threads for each address. The default is 1. Over UDP, the kernel divides the clients
    /// among the threads. Over AF_XDP, each thread has a queue of the interface, counted from the
    /// address's own, and the network card divides the clients. Shared memory always has one thread.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Adds an address, with dispatch threads of its own: `udp://0.0.0.0:9000`, `udp://127.0.0.1:0` for
    /// any free port, `shm://kv`, or `xdp://eth0/10.0.0.7:9000`. [`ServerBuilder::build`] takes it.
    ///
    /// `xdp://eth0/10.0.0.7:9000?queue=1` takes queue 1 of the interface instead of queue 0. One device
    /// of one process owns a queue. If the host lets too little memory be locked for a device,
    /// `?frames=1024` behind the address has it lock less, with room for fewer received frames (the
    /// default is 4096).
    ///
    /// At `udp://0.0.0.0` and `udp://[::]`, a client has to use the address that this host sends to it
    /// from. If clients use other addresses, such as a second one of an interface, bind each address by
    /// itself.
    ///
    /// # Errors
    /// If it is not an address. `build` says whether the host lets the server have it.
    pub fn bind(mut self, address: &str) -> Result<Self, Error> {
        self.addresses.push(Address::parse(address)?);
        Ok(self)
    }

    settings_methods!();

    /// Has the network interface's own program hand plain requests to workers: see
    /// [`WorkerConfig::steered`](crate::WorkerConfig::steered). For servers that have `xdp://`
    /// addresses only, and methods that run in workers.
    pub fn steered(mut self) -> Self {
        self.settings.workers.steered = true;
        self
    }

    /// Makes the server. It has its addresses, and does not serve yet.
    ///
    /// # Errors
    /// If there is no address, if an address cannot be bound, if services collide, or if a setting
    /// cannot work. All that can be checked without threads is checked here.
    pub fn build(mut self) -> Result<Server, Error> {
        if self.addresses.is_empty() {
            return Err(Error::NoAddress);
        }
        (self.settings.registry).complete(&self.settings.workers)?;
        if self.settings.workers.steered {
            self.check_steering()?;
        }
        let mut devices = Vec::new();
        for address in &self.addresses {
            bind_all(address, self.threads, &mut devices)?;
        }
        for device in &devices {
            let capabilities = for_each_device!(&device.io, io => io.capabilities());
            self.settings.config.check(capabilities)?;
        }
        Ok(Server {
            devices,
            settings: self.settings,
        })
    }

    fn check_steering(&self) -> Result<(), IoError> {
        let is_steerable = |address: &&Address| address.scheme() == Scheme::Xdp;
        if let Some(address) = self.addresses.iter().find(|it| !is_steerable(it)) {
            return Err(IoError::new(
                Fault::Caller,
                format!("have {address} hand requests to workers"),
                "only network interfaces do that",
                "bind xdp:// addresses only, or have the server hand them out itself",
            ));
        }
        let threads = self.settings.workers.threads;
        if threads > MAX_WORKERS {
            return Err(IoError::new(
                Fault::Caller,
                "have a network interface hand requests to workers",
                format!("{threads} workers are too many for it"),
                format!("have at most {MAX_WORKERS}, or have the server hand them out itself"),
            ));
        }
        Ok(())
    }
}

/// Opens the devices of an address, one for each dispatch thread.
fn bind_all(
    address: &Address,
    threads: usize,
    devices: &mut Vec<BoundDevice>,
) -> Result<(), Error> {
    let key = || DeviceKey::of(address);
    match address.scheme() {
        Scheme::Shm => {
            let io = <ShmIo as Device>::bind(address.as_str(), false)?;
            devices.push(BoundDevice::new(key(), PerDevice::Shm(Box::new(io))));
        }
        Scheme::Udp => {
            let first = <UdpIo as Device>::bind(address.as_str(), threads > 1)?;
            // With port 0, the others need the port that the first one got.
            let bound = first.local_address();
            devices.push(BoundDevice::new(key(), PerDevice::Udp(Box::new(first))));
            for _ in 1..threads {
                let another = <UdpIo as Device>::bind(&bound, true)?;
                devices.push(BoundDevice::new(key(), PerDevice::Udp(Box::new(another))));
            }
        }
        Scheme::Xdp => bind_queues(address, threads, devices)?,
    }
    Ok(())
}

/// Opens a queue of an interface for each dispatch thread.
fn bind_queues(
    address: &Address,
    threads: usize,
    devices: &mut Vec<BoundDevice>,
) -> Result<(), Error> {
    let first = XdpAddress::parse(address.as_str())?;
    let queue = first.queue().unwrap_or(0);
    let mut bound = None;
    for thread in 0..threads {
        // The first one has the address as it was written.
        let own = match thread {
            0 => first.clone(),
            _ => first.on_queue(queue.saturating_add(thread as u32)),
        };
        // The others need the port that the first one got.
        let own = bound.map_or(own.clone(), |bound| own.at(bound)).to_string();
        let io = <XdpIo as Device>::bind(&own, threads > 1)?;
        bound = Some(io.local_socket_address());
        let key = DeviceKey::of(&Address::parse(&own)?);
        devices.push(BoundDevice::new(key, PerDevice::Xdp(Box::new(io))));
    }
    Ok(())
}

/// Services that are ready to be served.
pub struct Server {
    devices: Vec<BoundDevice>,
    settings: Settings,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("addresses", &self.addresses())
            .finish_non_exhaustive()
    }
}

impl Server {
    /// A builder with the default settings.
    pub fn builder() -> ServerBuilder {
        ServerBuilder {
            addresses: Vec::new(),
            settings: Settings::default(),
            threads: 1,
        }
    }

    /// The addresses that the server is bound to, in the order in which they were bound, with the ports
    /// that port 0 became. If an address is that of every interface (`udp://0.0.0.0:9000`), clients
    /// need the name or address of a host in place of `0.0.0.0`.
    pub fn addresses(&self) -> Vec<String> {
        let mut addresses: Vec<_> = self
            .devices
            .iter()
            .map(BoundDevice::local_address)
            .collect();
        addresses.dedup();
        addresses
    }

    /// Serves, in threads of its own, until the handle is dropped. When this returns, all of them
    /// serve.
    ///
    /// # Errors
    /// The first error of a dispatch thread that could not be set up, or of its workers. All other
    /// threads have ended then.
    pub fn spawn(self) -> Result<ServerHandle, Error> {
        let mut handle = ServerHandle::new(self.addresses());
        let Settings {
            registry,
            config,
            workers,
        } = self.settings;
        let registry: Arc<Registry> = Arc::new(registry);
        for BoundDevice { key, io } in self.devices {
            let waker = for_each_device!(&io, io => io.waker());
            let thread = DispatchThread {
                requests: Arc::new(ControlRequests::new(waker)),
                registry: Arc::clone(&registry),
                config: config.clone(),
                workers: workers.clone(),
                control: handle.control(),
            };
            for_each_device!(io, io => handle.start(*io, key, thread)?);
        }
        handle.started()
    }

    /// Serves until a device fails, and returns its error. This thread sleeps.
    pub fn run(self) -> Result<(), Error> {
        self.spawn()?.wait().map(drop)
    }

    /// Serves inside an executor until a device fails, and returns its error. The dispatch threads are
    /// the server's own, and the executor's threads do not wait for them. Dropping the future shuts the
    /// server down, which blocks for a second at most.
    pub async fn serve(self) -> Result<(), Error> {
        let ended = self.serve_until(std::future::pending(), Duration::ZERO);
        ended.await.map(drop)
    }

    /// Serves as [`Server::serve`] does until `stop` is ready, such as a signal's future. Then refuses
    /// new calls and sessions with UNAVAILABLE, and finishes the calls in progress, at most for
    /// `timeout`. True if all of them were finished.
    pub async fn serve_until(
        self,
        stop: impl Future<Output = ()>,
        timeout: Duration,
    ) -> Result<bool, Error> {
        self.spawn()?.ended_or(stop, timeout).await
    }
}
