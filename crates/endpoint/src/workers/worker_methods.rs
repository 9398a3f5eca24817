//! Which methods run in workers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use starling_call::MethodId;

use super::job::WorkerHandler;

/// The methods that run in workers, shared with the threads that claim requests.
#[derive(Default)]
pub(crate) struct WorkerMethods {
    /// Increases with each change of the table.
    pub(super) version: AtomicU64,
    table: Mutex<Arc<Table>>,
}

pub(super) type Table = HashMap<MethodId, WorkerHandler>;

impl WorkerMethods {
    /// Sets the handler of a method; `None` if it does not run in workers.
    pub(crate) fn set(&self, method: MethodId, handler: Option<WorkerHandler>) {
        let mut table = self.lock();
        let table = Arc::make_mut(&mut table);
        match handler {
            Some(handler) => table.insert(method, handler),
            None => table.remove(&method),
        };
        self.version.fetch_add(1, Ordering::Release);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Arc<Table>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
