//! Servers: services behind one or several addresses, each with a dispatch thread of its own.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use starling_endpoint::{EndpointConfig, Idle, WorkerConfig};
use starling_io::{Capabilities, Fault, IoError, PacketIo, Wake};
use starling_io_shm::ShmIo;
use starling_io_udp::UdpIo;
use starling_io_xdp::{MAX_WORKERS, XdpAddress, XdpIo};

use crate::address::{Address, Scheme, Way};
use crate::core::Core;
use crate::error::Error;
use crate::plane::Plane;
use crate::registry::Registry;
use crate::service::Service;
use crate::stats::{Orders, ThreadStats};

/// How long a server that is dropped may take to finish what it is working on.
const DROP_TIMEOUT: Duration = Duration::from_secs(1);

/// Requests that wait for a worker, all methods together, unless set.
const WORKER_QUEUE: usize = 4096;

/// As many workers as the host has cores.
pub(crate) fn default_workers() -> WorkerConfig {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    WorkerConfig::new(threads, WORKER_QUEUE)
}

/// How to make a [`Server`].
#[must_use = "a builder does nothing until `build`"]
pub struct ServerBuilder {
    devices: Vec<(Way, Device)>,
    registry: Registry,
    config: EndpointConfig,
    workers: WorkerConfig,
    threads: usize,
}

enum Device {
    Udp(Box<UdpIo>),
    Shm(Box<ShmIo>),
    Xdp(Box<XdpIo>),
}

/// The same for each device.
macro_rules! each {
    ($device:expr, $io:ident => $body:expr) => {
        match $device {
            Device::Udp($io) => $body,
            Device::Shm($io) => $body,
            Device::Xdp($io) => $body,
        }
    };
}

impl Device {
    /// The address of one that cannot hand requests to workers.
    fn without_steering((_, device): &(Way, Self)) -> Option<String> {
        let steers = matches!(device, Self::Xdp(_));
        (!steers).then(|| device.local_address())
    }

    fn local_address(&self) -> String {
        each!(self, io => io.local_address())
    }

    fn capabilities(&self) -> &Capabilities {
        each!(self, io => io.capabilities())
    }

    fn waker(&self) -> Arc<dyn Wake> {
        each!(self, io => io.waker())
    }
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerBuilder").finish_non_exhaustive()
    }
}

impl ServerBuilder {
    /// Threads for each address that is bound after this, 1 unless set. Of UDP, the kernel divides
    /// the clients among them. Of AF_XDP, each has a queue of the interface, counted from the
    /// address's own, and the network card divides the clients. Shared memory always has one.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Adds an address: `udp://0.0.0.0:9000`, `udp://127.0.0.1:0` for any free port, `shm://kv`,
    /// `xdp://eth0/10.0.0.7:9000`, `xdp://eth0/10.0.0.7:9000?queue=1` for another queue of the
    /// interface than the first. A queue is one device's, of whatever process.
    /// It is taken at once. Each address has its own dispatch thread. At `udp://0.0.0.0` and
    /// `udp://[::]`, clients have to use the address that this host sends to them from: to be
    /// reached by others, such as a second one of an interface, bind each by itself instead. Where
    /// too little memory may be locked for a device on `xdp://`, `?frames=1024` behind the address has
    /// it take less, for fewer frames that wait to be received (4096 unless set).
    pub fn bind(mut self, address: &str) -> Result<Self, Error> {
        let address = Address::parse(address)?;
        let way = Way::of(&address);
        match address.scheme() {
            Scheme::Shm => {
                let io = <ShmIo as Plane>::bind(address.as_str(), false)?;
                self.devices.push((way, Device::Shm(Box::new(io))));
            }
            Scheme::Udp => {
                let first = <UdpIo as Plane>::bind(address.as_str(), self.threads > 1)?;
                // With port 0, the others have to have the port that the first one got.
                let bound = first.local_address();
                self.devices
                    .push((way.clone(), Device::Udp(Box::new(first))));
                for _ in 1..self.threads {
                    let another = <UdpIo as Plane>::bind(&bound, true)?;
                    self.devices
                        .push((way.clone(), Device::Udp(Box::new(another))));
                }
            }
            Scheme::Xdp => {
                let first = XdpAddress::parse(address.as_str())?;
                let queue = first.queue().unwrap_or(0);
                let mut bound = None;
                for thread in 0..self.threads {
                    // The first one is the address as it was written.
                    let own = match thread {
                        0 => first.clone(),
                        _ => first.on_queue(queue.saturating_add(thread as u32)),
                    };
                    // The others have to have the port that the first one got.
                    let own = bound.map_or(own.clone(), |bound| own.at(bound)).to_string();
                    let io = <XdpIo as Plane>::bind(&own, self.threads > 1)?;
                    bound = Some(io.local_socket_address());
                    let way = Way::of(&Address::parse(&own)?);
                    self.devices.push((way, Device::Xdp(Box::new(io))));
                }
            }
        }
        Ok(self)
    }

    /// Adds a service. It is shared by all threads.
    pub fn add_service<S: Service>(mut self, service: S) -> Self {
        self.registry.add(service);
        self
    }

    /// Threads for methods that run in workers, for each dispatch thread. Unless set, as many as
    /// the host has cores.
    pub fn workers(mut self, threads: usize) -> Self {
        self.workers.threads = threads;
        self
    }

    /// Sets everything about workers: threads, their queue, and who gets what.
    pub fn worker_config(mut self, config: WorkerConfig) -> Self {
        self.workers = config;
        self
    }

    /// Has the network interface's own program hand requests to workers, as far as they are plain:
    /// see [`WorkerConfig::steered`]. For servers that have `xdp://` addresses only, and methods that
    /// run in workers.
    pub fn steered(mut self) -> Self {
        self.workers.steered = true;
        self
    }

    /// What the dispatch threads do when there is nothing to do. Unless set, they spin for a moment
    /// and then sleep.
    pub fn idle(mut self, idle: Idle) -> Self {
        self.config.idle = idle;
        self
    }

    /// Sets everything about sessions, credits and timers.
    pub fn config(mut self, config: EndpointConfig) -> Self {
        self.config = config;
        self
    }

    /// The server. It has its addresses, and does not serve yet.
    ///
    /// # Errors
    /// If there is no address, if services collide, or if a setting cannot work: what can be known
    /// before there are threads is found here.
    pub fn build(mut self) -> Result<Server, Error> {
        if self.devices.is_empty() {
            return Err(Error::NoAddress);
        }
        self.registry.complete(&self.workers)?;
        if self.workers.steered
            && let Some(address) = self.devices.iter().find_map(Device::without_steering)
        {
            let error = IoError::new(
                Fault::Caller,
                format!("have {address} hand requests to workers"),
                "only network interfaces do that",
                "bind xdp:// addresses only, or have the server hand them out itself",
            );
            return Err(error.into());
        }
        let threads = self.workers.threads;
        if self.workers.steered && threads > MAX_WORKERS {
            let error = IoError::new(
                Fault::Caller,
                "have a network interface hand requests to workers",
                format!("{threads} workers are too many for it"),
                format!("have at most {MAX_WORKERS}, or have the server hand them out itself"),
            );
            return Err(error.into());
        }
        for (_, device) in &self.devices {
            self.config.check(device.capabilities())?;
        }
        Ok(Server {
            devices: self.devices,
            registry: Arc::new(self.registry),
            config: self.config,
            workers: self.workers,
        })
    }
}

/// Services that are ready to be served.
pub struct Server {
    devices: Vec<(Way, Device)>,
    registry: Arc<Registry>,
    config: EndpointConfig,
    workers: WorkerConfig,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("addresses", &self.addresses())
            .finish_non_exhaustive()
    }
}

impl Server {
    /// A server to be described.
    pub fn builder() -> ServerBuilder {
        ServerBuilder {
            devices: Vec::new(),
            registry: Registry::default(),
            config: EndpointConfig::default(),
            workers: default_workers(),
            threads: 1,
        }
    }

    /// The addresses that it is bound to, in the order in which they were bound, with the ports
    /// that port 0 became. Of one that is bound to every interface (`udp://0.0.0.0:9000`) clients
    /// need the name or address of a host in place of `0.0.0.0`.
    pub fn addresses(&self) -> Vec<String> {
        let mut addresses: Vec<_> = self
            .devices
            .iter()
            .map(|(_, device)| device.local_address())
            .collect();
        addresses.dedup();
        addresses
    }

    /// Serves, in threads of its own, until the handle is dropped. When this returns, all of them
    /// serve.
    ///
    /// # Errors
    /// If one of them, or its workers, could not be set up: that of the first such one. None is left
    /// then.
    pub fn spawn(self) -> Result<ServerHandle, Error> {
        let mut handle = ServerHandle {
            addresses: self.addresses(),
            control: Arc::new(Control::default()),
            orders: Vec::new(),
            threads: Vec::new(),
        };
        for (way, device) in self.devices {
            let orders = Arc::new(Orders::new(device.waker()));
            handle.orders.push(Arc::clone(&orders));
            let thread = DispatchThread {
                orders,
                registry: Arc::clone(&self.registry),
                config: self.config.clone(),
                workers: self.workers.clone(),
                control: Arc::clone(&handle.control),
            };
            each!(device, io => handle.start(*io, way, thread)?);
        }
        handle.started()
    }

    /// Serves until a device fails, which is the error that comes back. This thread sleeps.
    pub fn run(self) -> Result<(), Error> {
        self.spawn()?.wait().map(drop)
    }
}

/// What the dispatch threads are told.
#[derive(Default)]
struct Control {
    stop: AtomicBool,
    timeout: Mutex<Duration>,
    threads: Mutex<Progress>,
    /// It has changed.
    changed: Condvar,
}

/// How many of the dispatch threads have got how far.
#[derive(Default)]
struct Progress {
    /// They began to serve.
    serving: usize,
    /// They have ended.
    ended: usize,
}

/// Says that a thread has ended, in whatever way.
struct Ends(Arc<Control>, Arc<Orders>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.1.end();
        self.0.count(|threads| threads.ended += 1);
    }
}

impl Control {
    fn count(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.threads());
        self.changed.notify_all();
    }

    fn threads(&self) -> MutexGuard<'_, Progress> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until one of the threads has ended, or all serve if there are so many.
    fn wait_for(&self, all: Option<usize>) -> MutexGuard<'_, Progress> {
        let goes_on = |threads: &mut Progress| threads.ended == 0 && Some(threads.serving) != all;
        let waits = self.changed.wait_while(self.threads(), goes_on);
        waits.unwrap_or_else(PoisonError::into_inner)
    }

    fn timeout(&self) -> MutexGuard<'_, Duration> {
        self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a dispatch thread needs besides its device.
struct DispatchThread {
    registry: Arc<Registry>,
    config: EndpointConfig,
    workers: WorkerConfig,
    control: Arc<Control>,
    orders: Arc<Orders>,
}

impl DispatchThread {
    /// Serves until told to stop. True if everything was finished at the end.
    fn run<I: Plane>(self, io: I, way: Way) -> Result<bool, Error> {
        let mut core = Core::new(io, way, &self.config)?;
        core.serve(&self.registry, &self.workers)?;
        self.control.count(|threads| threads.serving += 1);
        let result = self.serve(&mut core);
        self.orders.leave(core.stats());
        Ok(result?)
    }

    fn serve<I: Plane>(&self, core: &mut Core<I>) -> Result<bool, IoError> {
        while !self.is_to_stop(core) {
            if core.turn()?.is_idle() {
                core.raw.wait(None)?;
            }
        }
        core.drain(*self.control.timeout())
    }

    /// Answers who asks. Whoever says that it is to stop says that there are news, too.
    #[inline]
    fn is_to_stop<I: Plane>(&self, core: &Core<I>) -> bool {
        if !self.orders.has_news() {
            return false;
        }
        self.orders.answer(|| core.stats());
        self.control.stop.load(Ordering::Acquire)
    }
}

/// A server that serves. Dropping it shuts the server down, within a second.
pub struct ServerHandle {
    addresses: Vec<String>,
    control: Arc<Control>,
    /// To each of the threads.
    orders: Vec<Arc<Orders>>,
    threads: Vec<JoinHandle<Result<bool, Error>>>,
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHandle")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

impl ServerHandle {
    fn start<I: Plane>(&mut self, io: I, way: Way, thread: DispatchThread) -> Result<(), Error> {
        let scheme = io.capabilities().scheme;
        let ends = Ends(Arc::clone(&thread.control), Arc::clone(&thread.orders));
        let thread = std::thread::Builder::new()
            .name(format!("starling-{scheme}-server"))
            .spawn(move || {
                let _ends = ends;
                thread.run(io, way)
            })
            .map_err(|error| Error::system("start a dispatch thread", error))?;
        self.threads.push(thread);
        Ok(())
    }

    /// The handle, once all threads serve. If one does not, the others are ended, and its error is
    /// what comes back.
    fn started(mut self) -> Result<Self, Error> {
        let has_failed = self.control.wait_for(Some(self.threads.len())).ended > 0;
        if has_failed {
            self.stop(DROP_TIMEOUT);
            self.join()?;
        }
        Ok(self)
    }

    /// The addresses that it is bound to, as [`Server::addresses`] has them.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The first address.
    pub fn address(&self) -> &str {
        &self.addresses[0]
    }

    /// Whether all of its threads still serve. If not, [`ServerHandle::shutdown`] says why.
    pub fn is_serving(&self) -> bool {
        self.control.threads().ended == 0
    }

    /// What each dispatch thread and its device have done, in the order of the addresses, and of the
    /// threads of one address: how many requests came, what was dropped and why, in which mode an
    /// interface works. They are asked between two turns, which costs nothing while nobody asks, so
    /// this waits for handlers that run in them, none of which may ask. Threads that have ended say what they had done by
    /// then; one that has panicked is missing.
    pub fn stats(&self) -> Vec<ThreadStats> {
        let asked: Vec<_> = self.orders.iter().map(|orders| orders.ask()).collect();
        let answers = asked.into_iter().filter_map(|answer| answer.recv().ok());
        answers.collect()
    }

    /// Shuts down: refuses new calls and sessions with UNAVAILABLE, finishes the calls that are
    /// being worked on, at most for `timeout`. True if all were finished.
    pub fn shutdown(mut self, timeout: Duration) -> Result<bool, Error> {
        self.finish(timeout)
    }

    /// Does what [`ServerHandle::shutdown`] does, for who wants to know how much was done in the
    /// end: [`ServerHandle::stats`] has it afterwards.
    pub fn finish(&mut self, timeout: Duration) -> Result<bool, Error> {
        self.stop(timeout);
        self.join()
    }

    /// Waits until the server ends, which it does only if a device fails: with the first one that
    /// does, what the others have begun is finished within a second.
    pub fn wait(mut self) -> Result<bool, Error> {
        drop(self.control.wait_for(None));
        self.stop(DROP_TIMEOUT);
        self.join()
    }

    fn stop(&self, timeout: Duration) {
        *self.control.timeout() = timeout;
        self.control.stop.store(true, Ordering::Release);
        self.orders.iter().for_each(|orders| orders.tell());
    }

    fn join(&mut self) -> Result<bool, Error> {
        let mut all_finished = true;
        let mut first_error = None;
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(Ok(finished)) => all_finished &= finished,
                Ok(Err(error)) => {
                    first_error.get_or_insert(error);
                }
                Err(_) => {
                    first_error.get_or_insert(Error::Panicked);
                }
            }
        }
        first_error.map_or(Ok(all_finished), Err)
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.stop(DROP_TIMEOUT);
            // Whoever wants to know calls `shutdown`.
            let _ = self.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl Wake for Nobody {
        fn wake(&self) {}
    }

    fn orders() -> Arc<Orders> {
        Arc::new(Orders::new(Arc::new(Nobody)))
    }

    /// Two dispatch threads, the second of which ends with an error.
    fn with_one_that_fails() -> (ServerHandle, Arc<Control>) {
        let control = Arc::new(Control::default());
        let mut handle = ServerHandle {
            addresses: vec![String::new()],
            control: Arc::clone(&control),
            orders: Vec::new(),
            threads: Vec::new(),
        };
        let its_control = Arc::clone(&control);
        handle.threads.push(std::thread::spawn(move || {
            let _ends = Ends(Arc::clone(&its_control), orders());
            its_control.count(|threads| threads.serving += 1);
            while !its_control.stop.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(true)
        }));
        let ends = Ends(Arc::clone(&control), orders());
        handle.threads.push(std::thread::spawn(move || {
            let _ends = ends;
            Err(Error::NothingToSteer)
        }));
        (handle, control)
    }

    #[test]
    fn a_server_has_not_started_if_one_of_its_threads_has_not() {
        let (handle, control) = with_one_that_fails();
        let error = handle.started().expect_err("one thread never serves");
        assert!(matches!(error, Error::NothingToSteer), "{error}");
        assert_eq!(control.threads().ended, 2, "a thread is left");
    }

    #[test]
    fn a_server_ends_with_the_first_thread_that_fails() {
        let (handle, control) = with_one_that_fails();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let _ = tell.send(handle.wait().is_err());
        });
        let told = told.recv_timeout(Duration::from_secs(2));
        control.stop.store(true, Ordering::Release);
        assert_eq!(told, Ok(true), "it waits for the thread that serves on");
    }
}
