//! Times and sleeps for what stands around calls: by the clock of the channel or the endpoint.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use starling_endpoint::Sleep;

use crate::channel_call::{DeadlineTimer, Shared};
use crate::executor::Executor;

/// Where a call's time comes from.
#[derive(Clone)]
pub(crate) enum Timer {
    /// The endpoint behind a channel.
    Channel(Arc<Shared>),
    /// The endpoint of a server, or of a local channel.
    Endpoint(Arc<Executor>),
}

impl Timer {
    pub(crate) fn now(&self) -> Instant {
        match self {
            Self::Channel(shared) => shared.time.now(),
            Self::Endpoint(executor) => executor.time.now(),
        }
    }

    /// The time that is left until then.
    pub(super) fn until(&self, time: Instant) -> Duration {
        time.saturating_duration_since(self.now())
    }

    /// Ends after this time.
    pub(super) fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send + use<> {
        let until = self.now().checked_add(duration);
        let (timer, mut alarm) = (self.clone(), Alarm::default());
        poll_fn(move |cx| alarm.poll(&timer, until, cx))
    }
}

/// Wakes a task at a time.
#[derive(Default)]
pub(super) struct Alarm {
    of_channel: DeadlineTimer,
    of_endpoint: Option<Sleep>,
}

impl Alarm {
    /// Ready at this time, which is always the same. Never without one.
    pub(super) fn poll(
        &mut self,
        timer: &Timer,
        time: Option<Instant>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let executor = match timer {
            Timer::Channel(shared) => return self.of_channel.poll(time, shared, cx),
            Timer::Endpoint(executor) => executor,
        };
        let Some(time) = time else {
            return Poll::Pending;
        };
        loop {
            let left = timer.until(time);
            if left.is_zero() {
                return Poll::Ready(());
            }
            let sleep = self
                .of_endpoint
                .get_or_insert_with(|| executor.local.sleep(left));
            if Pin::new(sleep).poll(cx).is_pending() {
                return Poll::Pending;
            }
            // The endpoint's clock is a little ahead of the other one.
            self.of_endpoint = None;
        }
    }
}
