//! Wakes a caller at a deadline, by the timers of the endpoint behind channels.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use atomic_waker::AtomicWaker;

use crate::executor::Executor;

/// A caller to wake at a deadline, unless it gives up before.
#[derive(Debug, Default)]
pub struct DeadlineWaker {
    cancelled: AtomicBool,
    caller: AtomicWaker,
    /// The task of [`wake_at`].
    task: AtomicWaker,
}

impl DeadlineWaker {
    /// Has this waker woken at the deadline.
    pub(crate) fn register(&self, waker: &Waker) {
        self.caller.register(waker);
    }

    /// The caller does not wait any more.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        drop(self.caller.take());
        self.task.wake();
    }

    /// The deadline has passed.
    pub fn wake(&self) {
        self.caller.wake();
    }

    /// Ready when the caller has given up. Wakes the task that polled last.
    pub fn poll_cancelled(&self, cx: &Context<'_>) -> Poll<()> {
        self.task.register(cx.waker());
        match self.cancelled.load(Ordering::Acquire) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

/// Waits for the deadline and wakes the caller. Returns early if the caller gives up.
pub(super) async fn wake_at(deadline: Instant, waker: Arc<DeadlineWaker>, executor: Arc<Executor>) {
    loop {
        // The caller reads another clock than the endpoint's, so that one decides: when the caller
        // is woken, it must not find that there is time left.
        let left = deadline.saturating_duration_since(executor.time.now());
        if left.is_zero() {
            return waker.wake();
        }
        let mut sleep = pin!(executor.local.sleep(left));
        let cancelled = std::future::poll_fn(|cx| {
            if waker.poll_cancelled(cx).is_ready() {
                return Poll::Ready(true);
            }
            sleep.as_mut().poll(cx).map(|()| false)
        });
        if cancelled.await {
            return;
        }
    }
}
