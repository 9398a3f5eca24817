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
    /// Has the driver task of this thread's runtime look into the inbox, and spawns it if there is
    /// none. False if the thread is in no runtime.
    pub(super) fn rouse(&self, shared: &Arc<Shared>) -> bool {
        let Ok(runtime) = Handle::try_current() else {
            return false;
        };
        let id = runtime.id();
        let mut tasks = self.0.lock();
        let own = tasks.iter().position(|(of, _)| *of == id);
        if let Some(own) = own {
            if tasks[own].1.rouse() {
                return true;
            }
            tasks.swap_remove(own);
        }
        let (task, handle) = DriverTask::new(shared);
        tasks.push((id, handle));
        drop(tasks);
        runtime.spawn(task);
        true
    }

    /// The loop has ended: so do its tasks.
    pub(super) fn end(&self) {
        for (_, task) in &*self.0.lock() {
            task.rouse();
        }
    }
}
