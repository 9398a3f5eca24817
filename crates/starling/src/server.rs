//! Servers: services at one or several addresses, each with dispatch threads of its own.

mod control;
mod direct;
mod handle;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use starling_io::{Fault, IoError};

use crate::address::Address;
use crate::error::Error;
use crate::health::Health;
use crate::managed::{ManagedListener, Management};
use crate::plane::{Listener, Serving};
use crate::registry::Registry;
use crate::settings::{Settings, settings_methods};

pub(crate) use control::{Control, ControlRequests};
pub(crate) use direct::{DirectListener, serve_on};
pub use handle::ServerHandle;

/// The settings of a [`Server`].
#[must_use = "a builder does nothing until `build`"]
pub struct ServerBuilder {
    addresses: Vec<Address>,
    listeners: Vec<Box<dyn Listener>>,
    settings: Settings,
    threads: usize,
    management: Management,
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerBuilder").finish_non_exhaustive()
    }
}

impl ServerBuilder {
    /// Dispatch threads for each address. The default is 1. Over UDP and TCP, the kernel divides the
    /// clients among the threads. Over AF_XDP, each thread has a queue of the interface, counted from the
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

    /// Adds a listener of another plane, or of your own.
    pub fn listen(mut self, listener: impl Listener + 'static) -> Self {
        self.listeners.push(Box::new(listener));
        self
    }

    /// Has the managed service with this name listen at the server's addresses, whatever `STARLING_SERVICE` says: its
    /// clients come by the service, which the server reaches over shared memory. `mem://` stays within the process.
    pub fn managed_by(mut self, service: impl Into<String>) -> Self {
        self.management = Management::By(service.into());
        self
    }

    /// Listens itself, whatever `STARLING_SERVICE` says.
    pub fn direct(mut self) -> Self {
        self.management = Management::Direct;
        self
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
        if self.addresses.is_empty() && self.listeners.is_empty() {
            return Err(Error::NoAddress);
        }
        (self.settings.registry).complete(&self.settings.workers)?;
        if self.settings.workers.steered {
            self.check_steering()?;
        }
        let mut listeners = self.listeners;
        for address in &self.addresses {
            if let Some(service) = self.management.service_for(address) {
                let listener = ManagedListener::bind(&service, address, &self.settings.config)?;
                listeners.push(Box::new(listener));
                continue;
            }
            let device = address.device();
            listeners.extend(device.listen(address, self.threads, &self.settings.config)?);
        }
        Ok(Server {
            listeners,
            settings: self.settings,
        })
    }

    fn check_steering(&self) -> Result<(), IoError> {
        if !self.listeners.is_empty() {
            return Err(IoError::new(
                Fault::Caller,
                "have listeners of other planes hand requests to workers",
                "only network interfaces do that",
                "bind xdp:// addresses only, or have the server hand them out itself",
            ));
        }
        let most = |address: &Address| address.device().max_steered_workers();
        if let Some(address) = self.addresses.iter().find(|it| most(it) == 0) {
            return Err(IoError::new(
                Fault::Caller,
                format!("have {address} hand requests to workers"),
                "only network interfaces do that",
                "bind xdp:// addresses only, or have the server hand them out itself",
            ));
        }
        let threads = self.settings.workers.threads;
        let most = self.addresses.iter().map(most).min().unwrap_or(0);
        if threads > most {
            return Err(IoError::new(
                Fault::Caller,
                "have a network interface hand requests to workers",
                format!("{threads} workers are too many for it"),
                format!("have at most {most}, or have the server hand them out itself"),
            ));
        }
        Ok(())
    }
}

/// Services that are ready to be served.
pub struct Server {
    listeners: Vec<Box<dyn Listener>>,
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
            listeners: Vec::new(),
            settings: Settings::default(),
            threads: 1,
            management: Management::default(),
        }
    }

    /// The addresses that the server is bound to, in the order in which they were bound, with the ports
    /// that port 0 became. If an address is that of every interface (`udp://0.0.0.0:9000`), clients
    /// need the name or address of a host in place of `0.0.0.0`.
    pub fn addresses(&self) -> Vec<String> {
        let mut addresses: Vec<_> = self
            .listeners
            .iter()
            .map(|listener| listener.local_address())
            .collect();
        addresses.dedup();
        addresses
    }

    /// The statuses that health checks get. Everything is NOT_SERVING until the server serves.
    pub fn health(&self) -> Health {
        self.settings.registry.health.clone()
    }

    /// Serves, in threads of its own, until the handle is dropped. When this returns, all of them
    /// serve.
    ///
    /// # Errors
    /// The first error of a dispatch thread that could not be set up, or of its workers. All other
    /// threads have ended then.
    pub fn spawn(self) -> Result<ServerHandle, Error> {
        let mut handle = ServerHandle::new(self.addresses(), self.health());
        let Settings {
            registry,
            config,
            workers,
            time,
        } = self.settings;
        let registry: Arc<Registry> = Arc::new(registry);
        for listener in self.listeners {
            let serving = Serving {
                requests: Arc::new(ControlRequests::new(listener.waker())),
                registry: Arc::clone(&registry),
                config: config.clone(),
                workers: workers.clone(),
                time: time.clone(),
                control: handle.control(),
            };
            handle.start(listener, serving)?;
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
