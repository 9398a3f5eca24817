//! The background thread behind channels: an endpoint that makes calls for other threads.
//!
//! ```text
//!  callers' threads                         driver's thread
//!  encode ─▶ inbox (lock-free) ─▶ wake ─▶ turn ─▶ endpoint ─▶ network
//!  CallCell ◀──────────────────────────── continuation
//! ```
//!
//! Each call holds a permit from before it enters the inbox until it ends, and adds at most one more
//! command. So the channels' capacities bound the inbox.

mod command;
mod deadline_waker;
mod event_loop;
mod inbox;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{JoinHandle, ThreadId};

use starling_endpoint::{EndpointConfig, Status};
use starling_io::MessageMemory;
use starling_io_shm::ShmIo;
use starling_io_udp::UdpIo;
use starling_io_xdp::XdpIo;

use crate::address::{Address, DeviceKey, Scheme};
use crate::core::Core;
use crate::device::Device;
use crate::error::Error;
use crate::stats::ThreadStats;

pub(crate) use command::{Command, Reply, Submission};
pub(crate) use deadline_waker::DeadlineWaker;
use event_loop::EventLoop;
use inbox::{CloseGuard, Inbox};

/// A background thread with an endpoint. It ends with its last channel.
pub(crate) struct Driver {
    inbox: Arc<Inbox>,
    /// The memory for messages of the thread's device.
    pub(crate) memory: MessageMemory,
    next_channel: AtomicU64,
    thread: Option<JoinHandle<()>>,
    thread_id: ThreadId,
}

/// The drivers that channels share unless they have their own. There is one for each device.
static SHARED: Mutex<Vec<(DeviceKey, Weak<Driver>)>> = Mutex::new(Vec::new());

impl Driver {
    /// The driver for this address that the channels of the process share.
    pub(crate) fn shared(address: &Address) -> Result<Arc<Self>, Error> {
        let key = DeviceKey::of(address);
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|(_, driver)| driver.strong_count() > 0);
        let works = |driver: &Arc<Self>| driver.inbox.failure().is_none();
        let mut reaching = shared.iter().filter(|(own, _)| own.reaches(&key));
        if let Some(driver) = reaching.find_map(|(_, driver)| driver.upgrade().filter(works)) {
            return Ok(driver);
        }
        let driver = Arc::new(Self::start(address, &EndpointConfig::default())?);
        shared.push((key, Arc::downgrade(&driver)));
        Ok(driver)
    }

    /// Starts a new driver.
    pub(crate) fn start(address: &Address, config: &EndpointConfig) -> Result<Self, Error> {
        match address.scheme() {
            Scheme::Udp => Self::start_on::<UdpIo>(address, config),
            Scheme::Shm => Self::start_on::<ShmIo>(address, config),
            Scheme::Xdp => Self::start_on::<XdpIo>(address, config),
        }
    }

    fn start_on<I: Device>(address: &Address, config: &EndpointConfig) -> Result<Self, Error> {
        let io = I::client(address.as_str())?;
        let (scheme, memory) = (address.scheme(), io.memory());
        let inbox = Inbox::new(io.waker());
        let (config, its_inbox) = (config.clone(), Arc::clone(&inbox));
        let thread = std::thread::Builder::new()
            .name(format!("starling-{scheme}"))
            .spawn(move || {
                let guard = CloseGuard(Arc::clone(&its_inbox));
                let result = Core::new(io, &config)
                    .and_then(|core| Ok(EventLoop::new(core, its_inbox).run()?));
                if let Err(error) = result {
                    guard.0.fail(error.to_string());
                }
            })
            .map_err(|error| Error::system("start a thread for channels", error))?;
        Ok(Self {
            inbox,
            memory,
            next_channel: AtomicU64::new(0),
            thread_id: thread.thread().id(),
            thread: Some(thread),
        })
    }

    /// A number for a new channel.
    pub(crate) fn next_channel(&self) -> u64 {
        self.next_channel.fetch_add(1, Ordering::Relaxed)
    }

    /// Counters of the thread.
    pub(crate) fn stats(&self) -> Result<ThreadStats, Status> {
        let (answer, answered) = channel();
        self.send(Command::Report(answer));
        answered
            .recv()
            .map_err(|_| command::stopped(self.inbox.failure()))
    }

    pub(crate) fn send(&self, command: Command) {
        self.inbox.push(command);
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Driver(..)")
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.inbox.stop();
        // The thread itself may drop the last reference, with a call's reply.
        if std::thread::current().id() != self.thread_id
            && let Some(thread) = self.thread.take()
        {
            // The panic hook has reported a panic there already.
            let _ = thread.join();
        }
    }
}
