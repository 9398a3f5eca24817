//! Calls that futures wait for: who drives for them.

use super::{Command, SharedLoop};
use crate::driver_task::{TaskHandle, TaskState};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

/// A call that a future waits for.
pub struct Watch<C: Command>(Watcher<C>);

/// Who drives for the future.
enum Watcher<C: Command> {
    Background(Arc<SharedLoop<C>>),
    Task(Arc<TaskState>),
}

impl<C: Command> Watch<C> {
    /// The driver task of the future's executor drives for it.
    pub fn by_task(task: &TaskHandle) -> Self {
        let task = Arc::clone(&task.0);
        task.begin_call();
        Self(Watcher::Task(task))
    }

    /// Whether this driver task drives for it.
    pub fn is_by(&self, task: &TaskHandle) -> bool {
        matches!(&self.0, Watcher::Task(own) if Arc::ptr_eq(own, &task.0))
    }
}

impl<C: Command> Drop for Watch<C> {
    fn drop(&mut self) {
        match &self.0 {
            Watcher::Background(shared) => {
                shared.watched.fetch_sub(1, Ordering::Relaxed);
            }
            Watcher::Task(task) => task.end_call(),
        }
    }
}

impl<C: Command> SharedLoop<C> {
    /// Says that a call is waited for by a future of an executor without a driver task, so that the
    /// background does not let it wait.
    pub fn watch(shared: &Arc<Self>) -> Watch<C> {
        shared.watched.fetch_add(1, Ordering::Relaxed);
        Watch(Watcher::Background(Arc::clone(shared)))
    }
}
