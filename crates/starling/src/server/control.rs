//! How a server's handle controls its dispatch threads: it counts them, stops them, and asks for their
//! stats.
//!
//! ```text
//!  another thread                  dispatch thread
//!  request ─▶ pending, wake ─────▶ between two turns: sends its stats, or stops
//! ```
//!
//! A dispatch thread reads one flag in each turn, for all kinds of control requests. A request for stats
//! always gets an answer: a thread that ends leaves its last stats behind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event_listener::Event;
use starling_io::Wake;

use crate::stats::ThreadStats;

/// The state that all dispatch threads of a server share with its handle.
#[derive(Default)]
pub(crate) struct Control {
    stop: AtomicBool,
    drain_timeout: Mutex<Duration>,
    threads: Mutex<Progress>,
    /// `threads` has changed.
    changed: Condvar,
    /// The same, for futures.
    event: Event,
}

/// How far the dispatch threads are.
#[derive(Default)]
pub(crate) struct Progress {
    /// Threads that have begun to serve.
    pub(crate) serving: usize,
    /// Threads that have ended.
    pub(crate) ended: usize,
}

impl Control {
    /// Has the threads stop, and finish their work within `timeout`.
    pub(crate) fn stop(&self, timeout: Duration) {
        *self.lock_timeout() = timeout;
        self.stop.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(crate) fn drain_timeout(&self) -> Duration {
        *self.lock_timeout()
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.threads());
        self.changed.notify_all();
        self.event.notify(usize::MAX);
    }

    pub(crate) fn threads(&self) -> MutexGuard<'_, Progress> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until a thread has ended, or `serving` threads serve.
    pub(crate) fn wait_for(&self, serving: Option<usize>) -> MutexGuard<'_, Progress> {
        let waits = |threads: &mut Progress| threads.ended == 0 && Some(threads.serving) != serving;
        let threads = self.changed.wait_while(self.threads(), waits);
        threads.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits in a future until so many threads have ended.
    pub(crate) async fn ended(&self, threads: usize) {
        while self.threads().ended < threads {
            let listener = self.event.listen();
            // The thread may have ended before there was a listener.
            if self.threads().ended < threads {
                listener.await;
            }
        }
    }

    fn lock_timeout(&self) -> MutexGuard<'_, Duration> {
        let timeout = self.drain_timeout.lock();
        timeout.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Requests of other threads to one dispatch thread.
pub(crate) struct ControlRequests {
    /// There is a request, or the server is to stop.
    pending: AtomicBool,
    waker: Arc<dyn Wake>,
    stats: Mutex<StatsRequests>,
}

#[derive(Default)]
struct StatsRequests {
    waiting: Vec<Sender<ThreadStats>>,
    /// The stats of a thread that does not serve any more.
    last: Option<ThreadStats>,
    has_ended: bool,
}

impl ControlRequests {
    pub(crate) fn new(waker: Arc<dyn Wake>) -> Self {
        Self {
            pending: AtomicBool::new(false),
            waker,
            stats: Mutex::default(),
        }
    }

    /// Has the thread handle its requests.
    pub(crate) fn notify(&self) {
        self.pending.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Requests the thread's stats. A thread that has panicked sends none.
    pub(crate) fn request_stats(&self) -> Receiver<ThreadStats> {
        let (answer, answered) = channel();
        let mut stats = self.stats();
        match &stats.last {
            Some(last) => {
                // Cannot fail: this function has the receiver.
                let _ = answer.send(last.clone());
            }
            None if stats.has_ended => {}
            None => stats.waiting.push(answer),
        }
        drop(stats);
        self.notify();
        answered
    }

    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Answers all requests so far. A later request is pending again.
    #[cold]
    pub(crate) fn answer(&self, stats: impl FnOnce() -> ThreadStats) {
        self.pending.swap(false, Ordering::AcqRel);
        let waiting = std::mem::take(&mut self.stats().waiting);
        if !waiting.is_empty() {
            send_to_all(waiting, &stats());
        }
    }

    /// The thread does not serve any more. Answers later requests with these stats.
    pub(crate) fn leave_last(&self, last: ThreadStats) {
        let mut stats = self.stats();
        send_to_all(std::mem::take(&mut stats.waiting), &last);
        stats.last = Some(last);
    }

    /// The thread has ended, perhaps by a panic. Requests without an answer end, too.
    fn close(&self) {
        let mut stats = self.stats();
        stats.has_ended = true;
        stats.waiting.clear();
    }

    fn stats(&self) -> MutexGuard<'_, StatsRequests> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn send_to_all(waiting: Vec<Sender<ThreadStats>>, stats: &ThreadStats) {
    for answer in waiting {
        // The thread that asked may be gone.
        let _ = answer.send(stats.clone());
    }
}

/// Counts a dispatch thread as ended when it is dropped, by a panic, too.
pub(crate) struct EndGuard(pub(crate) Arc<Control>, pub(crate) Arc<ControlRequests>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.1.close();
        self.0.count(|threads| threads.ended += 1);
    }
}
