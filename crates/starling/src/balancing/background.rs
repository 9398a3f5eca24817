//! Where the tasks of balanced channels run: in the event loop of `mem` devices, which costs nothing while they
//! sleep, has timers, and is driven by its keeper.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use atomic_waker::AtomicWaker;

use crate::address::Address;
use crate::driver::Driver;
use crate::error::Error;
use crate::executor::Executor;

/// Any address of the scheme: only the loop is used.
const ADDRESS: &str = "mem://starling-balancing";

/// The loop that the tasks of the process's balanced channels share.
pub(super) fn driver() -> Result<Arc<Driver>, Error> {
    Driver::shared(&Address::parse(ADDRESS)?)
}

/// Wakes a task of the loop from any thread. What comes before the task has seen the last one is one.
pub(super) struct Notifier {
    notified: AtomicBool,
    task: AtomicWaker,
    driver: Arc<Driver>,
}

impl Notifier {
    pub(super) fn new(driver: Arc<Driver>) -> Arc<Self> {
        Arc::new(Self {
            notified: AtomicBool::new(false),
            task: AtomicWaker::new(),
            driver,
        })
    }

    pub(super) fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    pub(super) fn notify(&self) {
        if !self.notified.swap(true, Ordering::AcqRel) {
            self.task.wake();
            self.driver.wake();
        }
    }

    fn poll_notified(&self, cx: &Context<'_>) -> Poll<()> {
        self.task.register(cx.waker());
        match self.notified.swap(false, Ordering::AcqRel) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Waits until it is notified, or for so long.
    pub(super) async fn wait(&self, executor: &Executor, limit: Option<Duration>) {
        let Some(limit) = limit else {
            return poll_fn(|cx| self.poll_notified(cx)).await;
        };
        let mut sleep = pin!(executor.local.sleep(limit));
        poll_fn(|cx| match self.poll_notified(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => sleep.as_mut().poll(cx),
        })
        .await;
    }
}

impl Wake for Notifier {
    fn wake(self: Arc<Self>) {
        self.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notify();
    }
}
