//! Time that a test moves by hand.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use starling_io::ManualTime;

use crate::time::Time;

/// How often the state of others is looked at, by the machine's time.
const LOOK_EVERY: Duration = Duration::from_micros(50);
/// Threads from which nothing is heard for so long, by the machine's time, are not waited for.
const GIVE_UP_AFTER: Duration = Duration::from_millis(50);

/// Time that stands still until a test moves it: for deadlines, timeouts, keepalive, pauses between
/// attempts to connect, and sleeps of handlers ([`NestedContext::sleep`](crate::NestedContext::sleep)).
/// Clones are the same clock. Servers, channels and endpoints take it by the `clock` method of their
/// builders, and one test gives it to both ends. A channel to several servers cannot have one.
///
/// ```
/// # use starling_test_protos::hello::*;
/// # fn check(greeter: impl Hello) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use starling::testing::TestClock;
/// use starling::{CallOptions, Channel, Server};
///
/// let clock = TestClock::new();
/// let server = Server::builder().bind("mem://patience")?.clock(&clock);
/// let server = server.add_service(HelloServer::new(greeter)).build()?.spawn()?;
/// let channel = Channel::builder(server.address()).clock(&clock).lazy()?;
/// let client = HelloClient::new(channel);
///
/// let options = CallOptions::with_timeout(Duration::from_secs(3600));
/// let call = client.greet_with(&HelloRequest::new(), &options);
/// clock.advance(Duration::from_secs(3600));
/// # drop(call);
/// # Ok(())
/// # }
/// ```
///
/// Messages go back and forth without any move. A move first waits until they have, so that nothing that is
/// under way times out; then it wakes all event loops that sleep by this clock, in whichever threads they are
/// (plain threads, tasks of tokio, dispatch threads), and waits again until they rest. It knows that over
/// `mem://`; over other devices, or if a loop is stuck, it waits until nothing has changed for 50 ms. It does
/// not know what the test's own threads and tasks do: what is to sleep must have begun before time is moved.
/// Where a test does not see that, it uses [`TestClock::advance_until`].
///
/// A server or a channel that shuts down does so by the machine's time. Event loops with such a clock do not
/// spin before they sleep.
#[derive(Clone)]
pub struct TestClock(Arc<ManualTime>);

impl TestClock {
    /// A clock that reads the machine's time of now, and stands still.
    pub fn new() -> Self {
        Self(ManualTime::new())
    }

    /// The time now. Deadlines that handlers see are in this time.
    pub fn now(&self) -> Instant {
        self.0.instant()
    }

    /// Moves the time, and waits until all event loops have taken that in. In a task of a runtime with one
    /// thread, use [`TestClock::advance_in_task`]: the runtime does nothing meanwhile.
    ///
    /// # Panics
    /// If it was moved by more than 292 years in all.
    pub fn advance(&self, by: Duration) {
        self.settle();
        self.0.advance(by);
        self.settle();
    }

    /// [`TestClock::advance`] for tasks: others of the same thread run meanwhile.
    ///
    /// # Panics
    /// As there.
    pub async fn advance_in_task(&self, by: Duration) {
        self.settle_in_task().await;
        self.0.advance(by);
        self.settle_in_task().await;
    }

    /// Moves the time step by step, until `done`.
    ///
    /// # Panics
    /// If that is not so after `most` of this clock's time.
    #[track_caller]
    pub fn advance_until(&self, step: Duration, most: Duration, mut done: impl FnMut() -> bool) {
        let begun = self.now();
        while !done() {
            assert!(
                self.now() - begun < most,
                "it has not happened after {most:?} of the test's clock"
            );
            self.advance(step);
        }
    }

    /// Waits until all event loops rest.
    fn settle(&self) {
        let mut settling = Settling::new();
        while !settling.is_over(&self.0) {
            std::thread::sleep(LOOK_EVERY);
        }
    }

    async fn settle_in_task(&self) {
        let mut settling = Settling::new();
        poll_fn(|cx| match settling.is_over(&self.0) {
            true => Poll::Ready(()),
            false => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        })
        .await;
    }

    pub(crate) fn time(&self) -> Time {
        Time::manual(Arc::clone(&self.0))
    }
}

impl Default for TestClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TestClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TestClock").field(&self.0).finish()
    }
}

/// Looks at the event loops until they rest.
struct Settling {
    rests: Vec<Option<u64>>,
    /// When they were seen to be as in `rests` first.
    since: Instant,
}

impl Settling {
    fn new() -> Self {
        Self {
            rests: Vec::new(),
            since: Instant::now(),
        }
    }

    /// Loops that rest now may wake each other before they are looked at: they have rested at once if all of
    /// them are seen in the same rests twice.
    fn is_over(&mut self, time: &ManualTime) -> bool {
        let rests = time.rests();
        if rests != self.rests {
            self.rests = rests;
            self.since = Instant::now();
            return false;
        }
        rests.iter().all(Option::is_some) || self.since.elapsed() >= GIVE_UP_AFTER
    }
}
