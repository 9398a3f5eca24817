//! The tasks of tokio runtimes that drive the endpoint behind channels, one for each runtime.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use starling_share::{DriverTask, TaskHandle};
use tokio::runtime::{Handle, Id};

use super::Shared;

/// The driver tasks, by their runtimes.
pub(super) struct Tasks {
    all: Mutex<Vec<(Id, TaskHandle)>>,
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

impl Default for Tasks {
    fn default() -> Self {
        static DRIVERS: AtomicU64 = AtomicU64::new(0);
        Self {
            all: Mutex::default(),
            driver: DRIVERS.fetch_add(1, Ordering::Relaxed),
        }
    }
}

impl Tasks {
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
        let (task, handle) = DriverTask::new(shared);
        tasks.push((id, handle.clone()));
        drop(tasks);
        runtime.spawn(task);
        handle
    }

    /// The loop has ended: so do its tasks.
    pub(super) fn end(&self) {
        for (_, task) in &*self.all.lock() {
            task.wake();
        }
    }
}
