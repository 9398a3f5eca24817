//! Threads for worker handlers with streams. Each has one while it runs, for it waits for its client there.
//!
//! ```text
//!  the handler's future, in the dispatch thread ── run ──▶ an idle thread, or a new one: the handler
//!        ▲                                                         │
//!        └────────────── Outcome: its result, which wakes ◀────────┘
//! ```
//!
//! A thread that has nothing to do ends after [`KEEP`].

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use starling_endpoint::{Peer, Status};

use crate::client_counts::{ClientCounts, ClientNumber};

/// Threads of a server, unless set.
const THREADS: usize = 512;
/// How long an idle thread stays.
const KEEP: Duration = Duration::from_secs(10);

/// The threads of one server.
pub(crate) struct StreamThreads {
    most: AtomicUsize,
    pool: Arc<Pool>,
}

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    has_job: Condvar,
}

#[derive(Default)]
struct State {
    /// The handlers that run, or are about to, of each client.
    clients: ClientCounts,
    /// Not more than there are idle threads.
    jobs: VecDeque<Job>,
    idle: usize,
    is_closed: bool,
}

struct Job {
    handler: Handler,
    client: ClientNumber,
    outcome: Arc<Mutex<Slot>>,
}

type Handler = Box<dyn FnOnce() -> Result<(), Status> + Send>;

impl Default for StreamThreads {
    fn default() -> Self {
        Self {
            most: AtomicUsize::new(THREADS),
            pool: Arc::default(),
        }
    }
}

impl StreamThreads {
    /// Threads at once, at most.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    pub(crate) fn bound(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
    }

    /// Handlers that run now.
    pub(crate) fn running(&self) -> usize {
        self.pool.state.lock().clients.all()
    }

    /// Runs a client's handler in a thread.
    ///
    /// # Errors
    /// If the client or all clients have as many as they may, or the system gives no thread. It does not run then.
    pub(crate) fn run(
        &self,
        client: &Peer,
        handler: impl FnOnce() -> Result<(), Status> + Send + 'static,
    ) -> Result<Outcome, Status> {
        let mut state = self.pool.state.lock();
        let most = self.most();
        let Some(client) = state.clients.add(client, most) else {
            return Err(Status::resource_exhausted(format!(
                "the server has {most} threads for worker handlers with streams, for one client no more than are \
                 free: end some streams, or have the server raise `stream_threads`"
            )));
        };
        if state.idle <= state.jobs.len() {
            if let Err(error) = self.start_thread() {
                state.clients.remove(client);
                return Err(Status::resource_exhausted(format!(
                    "the server's system gives it no thread for a worker handler with streams: {error}"
                )));
            }
            state.idle += 1;
        }
        let outcome = Arc::new(Mutex::new(Slot::Running(None)));
        state.jobs.push_back(Job {
            handler: Box::new(handler),
            client,
            outcome: Arc::clone(&outcome),
        });
        drop(state);
        self.pool.has_job.notify_one();
        Ok(Outcome(outcome))
    }

    fn start_thread(&self) -> std::io::Result<()> {
        let pool = Arc::clone(&self.pool);
        let builder = thread::Builder::new().name("starling-stream".to_owned());
        builder.spawn(move || pool.work()).map(drop)
    }
}

/// Threads that run a handler go on until it returns.
impl Drop for StreamThreads {
    fn drop(&mut self) {
        self.pool.state.lock().is_closed = true;
        self.pool.has_job.notify_all();
    }
}

impl fmt::Debug for StreamThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamThreads(..)")
    }
}

impl Pool {
    /// One thread, which is idle whenever it holds the lock.
    fn work(&self) {
        let mut state = self.state.lock();
        let mut is_late = false;
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.idle -= 1;
                drop(state);
                self.execute(job);
                state = self.state.lock();
                is_late = false;
            } else if is_late || state.is_closed {
                state.idle -= 1;
                return;
            } else {
                is_late = self.has_job.wait_for(&mut state, KEEP).timed_out();
            }
        }
    }

    fn execute(&self, job: Job) {
        let Job {
            handler,
            client,
            outcome,
        } = job;
        let result = catch_unwind(AssertUnwindSafe(handler)).unwrap_or_else(|panic| {
            discard(panic);
            Err(Status::internal(
                "the server's handler panicked: see the server's log",
            ))
        });
        // First, so that a client that has heard of the end finds room for its next stream.
        let mut state = self.state.lock();
        state.clients.remove(client);
        state.idle += 1;
        drop(state);
        let was = std::mem::replace(&mut *outcome.lock(), Slot::Ended(result));
        if let Slot::Running(Some(waker)) = was {
            waker.wake();
        }
    }
}

/// Drops what a handler panicked with, whose `drop` may panic as well: what that carries is leaked.
#[cold]
fn discard(panic: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(another);
    }
}

enum Slot {
    Running(Option<Waker>),
    Ended(Result<(), Status>),
}

/// Ready when the handler has returned.
pub(crate) struct Outcome(Arc<Mutex<Slot>>);

impl Future for Outcome {
    type Output = Result<(), Status>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self.0.lock() {
            Slot::Ended(result) => Poll::Ready(result.clone()),
            Slot::Running(Some(waker)) => {
                waker.clone_from(cx.waker());
                Poll::Pending
            }
            Slot::Running(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::wait::block_on;

    fn client(name: &str) -> Peer {
        Peer::new(name, None, None)
    }

    #[test]
    fn a_handler_that_waits_holds_up_no_other_and_threads_are_used_again() {
        let threads = StreamThreads::default();
        let (release, held) = mpsc::channel::<()>();
        let slow = threads.run(&client("one"), move || {
            held.recv().expect("a word");
            Ok(())
        });
        let mut used = std::collections::HashSet::new();
        for _ in 0..100 {
            let (say, heard) = mpsc::channel();
            let quick = threads.run(&client("one"), move || {
                say.send(thread::current().id()).expect("a listener");
                Err(Status::aborted("as asked"))
            });
            let result = block_on(quick.expect("room"));
            assert_eq!(result, Err(Status::aborted("as asked")));
            used.insert(heard.recv().expect("an id"));
        }
        assert_eq!(used.len(), 1, "one was idle each time");
        assert_eq!(threads.running(), 1);
        release.send(()).expect("it waits");
        assert_eq!(block_on(slow.expect("room")), Ok(()));
        assert_eq!(threads.running(), 0);
    }

    #[test]
    fn a_client_has_half_of_the_threads_and_hears_when_there_are_no_more() {
        let threads = StreamThreads::default();
        threads.bound(8);
        let mut releases = Vec::new();
        let mut outcomes = Vec::new();
        let mut begin = |name| {
            let (release, held) = mpsc::channel::<()>();
            let outcome = threads.run(&client(name), move || {
                let _ = held.recv();
                Ok(())
            })?;
            releases.push(release);
            outcomes.push(outcome);
            Ok::<(), Status>(())
        };
        let of_one = (0..8).filter(|_| begin("one").is_ok()).count();
        let of_another = (0..8).filter(|_| begin("another").is_ok()).count();
        assert_eq!((of_one, of_another), (4, 2));
        let status = begin("one").expect_err("too many");
        assert!(status.message().contains("`stream_threads`"), "{status}");
        drop(releases);
        for outcome in outcomes {
            assert_eq!(block_on(outcome), Ok(()));
        }
        assert_eq!(threads.running(), 0);
    }

    #[test]
    fn a_panic_is_a_status_and_its_thread_goes_on() {
        let threads = StreamThreads::default();
        let panics = threads.run(&client("one"), || {
            std::panic::resume_unwind(Box::new("as asked"))
        });
        let status = block_on(panics.expect("room")).expect_err("a panic");
        assert!(status.message().contains("panicked"), "{status}");
        let next = threads.run(&client("one"), || Ok(()));
        assert_eq!(block_on(next.expect("room")), Ok(()));
    }

    #[test]
    fn idle_threads_end_with_their_server_and_others_finish_their_handler() {
        let threads = StreamThreads::default();
        let (release, held) = mpsc::channel::<()>();
        let slow = threads.run(&client("one"), move || {
            held.recv().expect("a word");
            Ok(())
        });
        let quick = threads.run(&client("one"), || Ok(()));
        assert_eq!(block_on(quick.expect("room")), Ok(()));
        let pool = Arc::clone(&threads.pool);
        drop(threads);
        release.send(()).expect("it waits");
        assert_eq!(block_on(slow.expect("room")), Ok(()));
        let begun = std::time::Instant::now();
        while Arc::strong_count(&pool) > 1 {
            assert!(begun.elapsed() < KEEP / 2, "a thread stays");
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(pool.state.lock().idle, 0);
    }
}
