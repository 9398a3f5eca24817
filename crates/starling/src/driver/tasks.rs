//! The tasks of tokio runtimes that drive the endpoint behind channels, one for each runtime.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use starling_share::{DriverTask, Reactor, TaskHandle};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id};

use super::Shared;

/// The driver tasks, by their runtimes.
pub(super) struct Tasks {
    all: Mutex<Vec<(Id, TaskHandle)>>,
    /// For the runtimes' reactors.
    device: Option<OwnedFd>,
    /// Tells the drivers of a process apart.
    driver: u64,
}

/// The task that a thread used last, so that a call needs no lock to find it.
struct Last {
    driver: u64,
    runtime: Id,
    task: TaskHandle,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

impl Tasks {
    /// The tasks of a driver with this device.
    pub(super) fn new(device: Option<OwnedFd>) -> Self {
        static DRIVERS: AtomicU64 = AtomicU64::new(0);
        Self {
            all: Mutex::default(),
            device,
            driver: DRIVERS.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// What `with` makes of the driver task of this thread's runtime, which is spawned if there is none.
    /// `None` if the thread is in no runtime.
    pub(super) fn with_this_runtimes<T>(
        &self,
        shared: &Arc<Shared>,
        with: impl FnOnce(&TaskHandle) -> T,
    ) -> Option<T> {
        let runtime = Handle::try_current().ok()?;
        let id = runtime.id();
        // Taken, not borrowed: `with` may call a waker.
        let last = LAST.try_with(RefCell::take).ok().flatten();
        let last = match last {
            Some(last)
                if last.driver == self.driver && last.runtime == id && !last.task.is_gone() =>
            {
                last
            }
            _ => Last {
                driver: self.driver,
                runtime: id,
                task: self.find(&runtime, shared),
            },
        };
        let made = with(&last.task);
        let _ = LAST.try_with(|kept| kept.replace(Some(last)));
        Some(made)
    }

    fn find(&self, runtime: &Handle, shared: &Arc<Shared>) -> TaskHandle {
        let id = runtime.id();
        let mut tasks = self.all.lock();
        let own = tasks.iter().find(|(of, _)| *of == id);
        if let Some((_, task)) = own.filter(|(_, task)| !task.is_gone()) {
            return task.clone();
        }
        tasks.retain(|(_, task)| !task.is_gone());
        let (task, handle) = DriverTask::new(shared, self.reactor());
        tasks.push((id, handle.clone()));
        drop(tasks);
        runtime.spawn(task);
        handle
    }

    /// The reactor of this thread's runtime, if it has one.
    fn reactor(&self) -> Option<Box<dyn Reactor>> {
        // A runtime that was built without `enable_io` panics, and has no way to ask.
        if cfg!(panic = "abort") {
            return None;
        }
        let device = self.device.as_ref()?.try_clone().ok()?;
        #[allow(
            deprecated,
            reason = "sound for an `OwnedFd`; what replaces it is unsafe, and new"
        )]
        let register = || AsyncFd::with_interest(device, Interest::READABLE);
        let registered = catch_unwind(AssertUnwindSafe(register)).ok()?.ok()?;
        Some(Box::new(RuntimeReactor(registered)))
    }

    /// The loop has ended: so do its tasks.
    pub(super) fn end(&self) {
        for (_, task) in &*self.all.lock() {
            task.wake();
        }
    }
}

/// A runtime's reactor, which watches the device.
struct RuntimeReactor(AsyncFd<OwnedFd>);

impl Reactor for RuntimeReactor {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.0.poll_read_ready(cx) {
            Poll::Ready(Ok(mut ready)) => {
                ready.clear_ready();
                Poll::Ready(())
            }
            // The runtime ends, and drops the task.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}
