//! Threads for worker handlers with streams. Each has one while it runs, for it waits for its client there.
//!
//! ```text
//!  the handler's future, in the dispatch thread ── run ──▶ an idle thread, or a new one: the handler
//!        ▲                                                         │
//!        └────────────── Outcome: its result, which wakes ◀────────┘
//! ```
//!
//! The thread that became idle last runs the next handler, so those that are not needed end after [`KEEP`].

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use starling_endpoint::{Peer, Status, status_of_panic};

use crate::client_counts::{ClientCounts, ClientNumber};

/// Threads of a server, unless set.
const THREADS: usize = 512;
/// How long an idle thread stays.
const KEEP: Duration = Duration::from_secs(10);

thread_local! {
    /// This is a thread for such handlers.
    static IS_ONE: Cell<bool> = const { Cell::new(false) };
}

/// Has the threads of this process for such handlers decode one message at a time, as long as the result lives: what a
/// message will take is known when it is decoded. Other threads do not wait.
#[cold]
pub(super) fn decode_alone() -> Option<MutexGuard<'static, ()>> {
    static DECODES: Mutex<()> = Mutex::new(());
    IS_ONE.get().then(|| DECODES.lock())
}

/// The threads of one server.
pub(crate) struct StreamThreads {
    most: AtomicUsize,
    pool: Arc<Mutex<Pool>>,
}

#[derive(Default)]
struct Pool {
    /// The handlers that run, or are about to, of each client.
    clients: ClientCounts,
    /// Threads without a handler, the last one on top.
    idle: Vec<Idle>,
    /// Threads so far.
    begun: u64,
    is_closed: bool,
}

struct Idle {
    thread: u64,
    jobs: Sender<Job>,
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
        self.pool.lock().clients.all()
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
        let mut pool = self.pool.lock();
        let most = self.most();
        let Some(client) = pool.clients.add(client, most) else {
            return Err(Status::resource_exhausted(format!(
                "the server has {most} threads for worker handlers with streams, for one client no more than are \
                 free: end some streams, or have the server raise `stream_threads`"
            )));
        };
        let outcome = Arc::new(Mutex::new(Slot::Running(None)));
        let mut job = Job {
            handler: Box::new(handler),
            client,
            outcome: Arc::clone(&outcome),
        };
        // One in the list takes its job: it leaves the list before it ends.
        while let Some(idle) = pool.idle.pop() {
            match idle.jobs.send(job) {
                Ok(()) => return Ok(Outcome(outcome)),
                Err(refused) => job = refused.0,
            }
        }
        pool.begun += 1;
        let number = pool.begun;
        if let Err(error) = self.start_thread(number, job) {
            pool.clients.remove(client);
            return Err(Status::resource_exhausted(format!(
                "the server's system gives it no thread for a worker handler with streams: {error}"
            )));
        }
        Ok(Outcome(outcome))
    }

    fn start_thread(&self, number: u64, job: Job) -> std::io::Result<()> {
        let pool = Arc::clone(&self.pool);
        let builder = thread::Builder::new().name("starling-stream".to_owned());
        builder.spawn(move || work(&pool, number, job)).map(drop)
    }
}

/// Threads that run a handler go on until it returns.
impl Drop for StreamThreads {
    fn drop(&mut self) {
        let mut pool = self.pool.lock();
        pool.is_closed = true;
        pool.idle.clear();
    }
}

impl fmt::Debug for StreamThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamThreads(..)")
    }
}

/// One thread, with its first job.
fn work(pool: &Mutex<Pool>, thread: u64, mut job: Job) {
    IS_ONE.set(true);
    while let Some(next) = next_job(pool, thread, &execute(pool, job, thread)) {
        job = next;
    }
}

/// Runs a handler. Then the thread is idle, and its next job comes from what this returns.
fn execute(pool: &Mutex<Pool>, job: Job, thread: u64) -> Receiver<Job> {
    let Job {
        handler,
        client,
        outcome,
    } = job;
    let result = catch_unwind(AssertUnwindSafe(handler));
    let result = result.unwrap_or_else(|panic| Err(status_of_panic(panic)));
    let (sender, jobs) = channel();
    // First, so that a client that has heard of the end finds room for its next stream.
    let mut pool = pool.lock();
    pool.clients.remove(client);
    if !pool.is_closed {
        let jobs = sender;
        pool.idle.push(Idle { thread, jobs });
    }
    drop(pool);
    let was = std::mem::replace(&mut *outcome.lock(), Slot::Ended(result));
    if let Slot::Running(Some(waker)) = was {
        waker.wake();
    }
    jobs
}

/// None: there was none for long, or the server has ended.
fn next_job(pool: &Mutex<Pool>, thread: u64, jobs: &Receiver<Job>) -> Option<Job> {
    match jobs.recv_timeout(KEEP) {
        Ok(job) => return Some(job),
        Err(RecvTimeoutError::Disconnected) => return None,
        Err(RecvTimeoutError::Timeout) => {}
    }
    let mut pool = pool.lock();
    if let Some(place) = pool.idle.iter().position(|idle| idle.thread == thread) {
        pool.idle.remove(place);
        return None;
    }
    drop(pool);
    // It was sent just now.
    jobs.recv().ok()
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
        assert_eq!(pool.lock().idle.len(), 1);
        drop(threads);
        release.send(()).expect("it waits");
        assert_eq!(block_on(slow.expect("room")), Ok(()));
        let begun = std::time::Instant::now();
        while Arc::strong_count(&pool) > 1 {
            assert!(begun.elapsed() < KEEP / 2, "a thread stays");
            thread::sleep(Duration::from_millis(1));
        }
        assert!(pool.lock().idle.is_empty());
    }

    #[test]
    fn the_thread_that_became_idle_last_runs_the_next_handler() {
        let threads = StreamThreads::default();
        let id_of_next = || {
            let (say, heard) = mpsc::channel();
            let next = threads.run(&client("one"), move || {
                say.send(thread::current().id()).expect("a listener");
                Ok(())
            });
            block_on(next.expect("room")).expect("no failure");
            heard.recv().expect("an id")
        };
        let barrier = Arc::new(std::sync::Barrier::new(8));
        let burst: Vec<_> = (0..8)
            .map(|_| {
                let barrier = Arc::clone(&barrier);
                let waits = threads.run(&client("one"), move || {
                    barrier.wait();
                    Ok(())
                });
                waits.expect("room")
            })
            .collect();
        for outcome in burst {
            assert_eq!(block_on(outcome), Ok(()));
        }
        let first = id_of_next();
        assert!((0..20).all(|_| id_of_next() == first));
        assert_eq!(threads.pool.lock().idle.len(), 8);
    }

    #[test]
    fn one_message_is_decoded_at_a_time_in_all_threads() {
        static DECODING: AtomicUsize = AtomicUsize::new(0);
        assert!(decode_alone().is_none(), "this is another thread");
        let servers = [StreamThreads::default(), StreamThreads::default()];
        let outcomes: Vec<_> = (0..16)
            .map(|number| {
                let decodes = servers[number % 2].run(&client("one"), || {
                    let _alone = decode_alone();
                    assert_eq!(DECODING.fetch_add(1, Ordering::SeqCst), 0);
                    thread::sleep(Duration::from_millis(2));
                    DECODING.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                });
                decodes.expect("room")
            })
            .collect();
        for outcome in outcomes {
            assert_eq!(block_on(outcome), Ok(()));
        }
    }
}
