//! Who finds the backends of a channel.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use atomic_waker::AtomicWaker;
use starling_balance::{Backoff, Random, Resolved};
use starling_endpoint::Status;

use super::balancer::Balancer;
use crate::address::Address;
use crate::driver::Driver;
use crate::executor::Executor;
use crate::interceptor::BoxFuture;
use crate::lookup;

/// The shortest time between an answer and the next question.
const PAUSE: Duration = Duration::from_millis(10);
/// The shortest time between an answer and one that is asked for because a backend failed.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// Pauses after answers that could not be used.
const AGAIN: Backoff = Backoff {
    initial: Duration::from_millis(100),
    max: Duration::from_secs(30),
    multiplier: 2.0,
    jitter: 0.2,
};

/// Finds the backends of a channel: [`ChannelBuilder::resolver`](crate::ChannelBuilder::resolver).
///
/// It is asked when the channel is first used, and then again after each answer; when an answer is due is its
/// own business. One that asks others from time to time begins with [`Resolving::due`]. One that is told of
/// changes waits for the next change.
///
/// ```
/// use starling::{Resolved, Resolver, Resolving, Status};
/// use std::time::Duration;
///
/// /// The addresses are lines of a file.
/// struct File(std::path::PathBuf);
///
/// impl Resolver for File {
///     async fn resolve(&self, request: Resolving) -> Result<Vec<Resolved>, Status> {
///         request.due(Duration::from_secs(10)).await;
///         let text = std::fs::read_to_string(&self.0);
///         let text = text.map_err(|error| Status::unavailable(error.to_string()))?;
///         Ok(text.lines().map(Resolved::from).collect())
///     }
/// }
/// ```
///
/// It runs in a thread in the background that all balanced channels share, so it must not block: their calls wait
/// meanwhile. It is no task of tokio's: what needs a runtime is spawned there, and awaited here.
///
/// An answer that names no usable backend is an error. After an error, the backends of the last good answer
/// stay, and the next question comes after a pause that grows to 30 s. Duplicates, texts that are no addresses,
/// and what is beyond 4,096 backends are left out, with a warning.
pub trait Resolver: Send + Sync + 'static {
    /// The backends, when it is time to say.
    ///
    /// # Errors
    /// Why they are not known. Calls fail with it while there are no backends.
    fn resolve(
        &self,
        request: Resolving,
    ) -> impl Future<Output = Result<Vec<Resolved>, Status>> + Send;
}

/// A resolver of any type.
pub(crate) trait AnyResolver: Send + Sync {
    fn resolve(&self, request: Resolving) -> BoxFuture<'_, Result<Vec<Resolved>, Status>>;
}

impl<R: Resolver> AnyResolver for R {
    fn resolve(&self, request: Resolving) -> BoxFuture<'_, Result<Vec<Resolved>, Status>> {
        Box::pin(Resolver::resolve(self, request))
    }
}

/// What the channel and its resolver's task tell each other.
#[derive(Default)]
pub(super) struct ResolverSignals {
    /// A backend has failed: others may be known by now.
    is_wanted: AtomicBool,
    is_closed: AtomicBool,
    waker: AtomicWaker,
    task: AtomicWaker,
}

impl ResolverSignals {
    /// A backend has failed.
    pub(super) fn request(&self) {
        self.is_wanted.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// The channel needs no answers any more.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.task.wake();
    }
}

/// A question to a [`Resolver`].
pub struct Resolving {
    signals: Arc<ResolverSignals>,
    executor: Arc<Executor>,
    /// Nothing was answered, or nothing that could be used.
    is_due: bool,
}

impl Resolving {
    /// Waits until an answer is wanted: at once if there is no good one, else when `refresh` has passed since the
    /// last one, or a backend has failed, but at least a second after the last one.
    pub async fn due(&self, refresh: Duration) {
        if self.is_due {
            return;
        }
        self.sleep(refresh.min(FAILURE_PAUSE)).await;
        let mut rest = pin!(self.sleep(refresh.saturating_sub(FAILURE_PAUSE)));
        poll_fn(|cx| {
            self.signals.waker.register(cx.waker());
            match self.signals.is_wanted.load(Ordering::Acquire) {
                true => Poll::Ready(()),
                false => rest.as_mut().poll(cx),
            }
        })
        .await;
    }

    /// Whether an answer is wanted at once, because there is no good one yet.
    pub fn is_due(&self) -> bool {
        self.is_due
    }

    /// Waits for so long.
    pub async fn sleep(&self, time: Duration) {
        self.executor.local.sleep(time).await;
    }
}

impl fmt::Debug for Resolving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolving")
            .field("is_due", &self.is_due)
            .finish_non_exhaustive()
    }
}

/// A host name stands for several addresses, each of which is a backend.
pub(crate) struct HostName {
    pub(crate) address: Address,
    pub(crate) refresh: Duration,
}

impl Resolver for HostName {
    async fn resolve(&self, request: Resolving) -> Result<Vec<Resolved>, Status> {
        request.due(self.refresh).await;
        let found = lookup::look_up(&self.address).await?;
        Ok(found.into_iter().map(Resolved::from).collect())
    }
}

/// Asks a resolver again and again, until the channel is gone or needs no answers.
pub(super) async fn ask(
    balancer: Weak<Balancer>,
    signals: Arc<ResolverSignals>,
    resolver: Arc<dyn AnyResolver>,
    executor: Arc<Executor>,
    driver: Weak<Driver>,
) {
    let mut asking = pin!(async {
        let (mut failures, mut is_due) = (0, true);
        loop {
            signals.is_wanted.store(false, Ordering::Release);
            let request = Resolving {
                signals: Arc::clone(&signals),
                executor: Arc::clone(&executor),
                is_due,
            };
            let answer = answer(&*resolver, request).await;
            let Some(balancer) = balancer.upgrade() else {
                return;
            };
            is_due = !balancer.handle_answer(&signals, answer);
            drop(balancer);
            let pause = match is_due {
                false => {
                    failures = 0;
                    PAUSE
                }
                true => {
                    let random = &mut Random::new(executor.random());
                    let pause_ns = AGAIN.pause_ns(failures, random);
                    failures += 1;
                    Duration::from_nanos(pause_ns)
                }
            };
            executor.local.sleep(pause).await;
        }
    });
    poll_fn(|cx| {
        let waker = Waker::from(Arc::new(LoopWaker {
            task: cx.waker().clone(),
            driver: Weak::clone(&driver),
        }));
        let cx = &mut Context::from_waker(&waker);
        signals.task.register(cx.waker());
        match signals.is_closed.load(Ordering::Acquire) {
            true => Poll::Ready(()),
            false => asking.as_mut().poll(cx),
        }
    })
    .await;
}

/// Wakes a resolver's task, and the loop that it runs in: what the resolver waits for may come from any thread, while
/// the loop sleeps.
struct LoopWaker {
    task: Waker,
    driver: Weak<Driver>,
}

impl Wake for LoopWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.task.wake_by_ref();
        if let Some(driver) = self.driver.upgrade() {
            driver.wake();
        }
    }
}

/// One answer. A panic of the resolver is an error.
async fn answer(resolver: &dyn AnyResolver, request: Resolving) -> Result<Vec<Resolved>, Status> {
    let panicked =
        || Status::internal("the channel's resolver panicked; standard error has the text");
    let asked = catch_unwind(AssertUnwindSafe(|| resolver.resolve(request)));
    let Ok(mut asked) = asked else {
        return Err(panicked());
    };
    poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| asked.as_mut().poll(cx)));
        polled.unwrap_or_else(|_| Poll::Ready(Err(panicked())))
    })
    .await
}
