//! The tasks of tokio runtimes that drive the endpoint behind channels, one for each runtime.

use parking_lot::Mutex;
use starling_share::{DriverTask, TaskHandle};
use std::sync::Arc;
use tokio::runtime::{Handle, Id};

use super::Shared;

/// The driver tasks, by their runtimes.
#[derive(Default)]
pub(super) struct Tasks(Mutex<Vec<(Id, TaskHandle)>>);

impl Tasks {
    /// The driver task of this thread's runtime, which is spawned if there is none. `None` if the
    /// thread is in no runtime.
    pub(super) fn of_this_runtime(&self, shared: &Arc<Shared>) -> Option<TaskHandle> {
        let runtime = Handle::try_current().ok()?;
        let id = runtime.id();
        let mut tasks = self.0.lock();
        let own = tasks.iter().find(|(of, _)| *of == id);
        if let Some((_, task)) = own.filter(|(_, task)| !task.is_gone()) {
            return Some(task.clone());
        }
        tasks.retain(|(_, task)| !task.is_gone());
        let (task, handle) = DriverTask::new(shared);
        tasks.push((id, handle.clone()));
        drop(tasks);
        runtime.spawn(task);
        Some(handle)
    }

    /// The loop has ended: so do its tasks.
    pub(super) fn end(&self) {
        for (_, task) in &*self.0.lock() {
            task.wake();
        }
    }
}
