//! What a thread has done, for others to ask.
//!
//! ```text
//!  who asks                         dispatch thread
//!  a way to answer ─▶ news, wake ─▶ between two turns ─▶ its counts
//! ```
//!
//! The news are the flag that the thread looks at in each turn anyway, to be told to stop. Who asks
//! is never left waiting: what the thread counted last stays behind when it ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use starling_endpoint::{ProtocolStats, Stats};
use starling_io::{DeviceReport, Wake};

/// What one thread's endpoint and its device have done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadStats {
    /// The address of the device: what peers reach it at.
    pub address: String,
    /// What the endpoint did.
    pub endpoint: Stats,
    /// What its session protocol did, and which frames it dropped.
    pub protocol: ProtocolStats,
    /// What the device is, and has counted.
    pub device: DeviceReport,
}

/// What others want of a dispatch thread.
pub(crate) struct Orders {
    /// Somebody asks, or the server is to stop.
    news: AtomicBool,
    waker: Arc<dyn Wake>,
    asked: Mutex<Asked>,
}

#[derive(Default)]
struct Asked {
    /// Who waits for an answer.
    waiting: Vec<Sender<ThreadStats>>,
    /// The counts of a thread that serves no more.
    last: Option<ThreadStats>,
    has_ended: bool,
}

impl Orders {
    pub(crate) fn new(waker: Arc<dyn Wake>) -> Self {
        Self {
            news: AtomicBool::new(false),
            waker,
            asked: Mutex::default(),
        }
    }

    /// Has the thread look what is new.
    pub(crate) fn tell(&self) {
        self.news.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Asks the thread what it has done. Nothing comes of one that has panicked.
    pub(crate) fn ask(&self) -> Receiver<ThreadStats> {
        let (answer, answered) = channel();
        let mut asked = self.asked();
        match &asked.last {
            Some(last) => {
                // Its other end is here.
                let _ = answer.send(last.clone());
            }
            None if asked.has_ended => {}
            None => asked.waiting.push(answer),
        }
        drop(asked);
        self.tell();
        answered
    }

    /// Whether something is new, for the thread itself.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.news.load(Ordering::Acquire)
    }

    /// Answers all who have asked. What is new from now on is news again.
    #[cold]
    pub(crate) fn answer(&self, stats: impl FnOnce() -> ThreadStats) {
        self.news.swap(false, Ordering::AcqRel);
        let waiting = std::mem::take(&mut self.asked().waiting);
        if !waiting.is_empty() {
            tell_all(waiting, &stats());
        }
    }

    /// The thread serves no more, after all this.
    pub(crate) fn leave(&self, last: ThreadStats) {
        let mut asked = self.asked();
        tell_all(std::mem::take(&mut asked.waiting), &last);
        asked.last = Some(last);
    }

    /// The thread ends, in whatever way.
    pub(crate) fn end(&self) {
        let mut asked = self.asked();
        asked.has_ended = true;
        // Who waits hears that nothing comes.
        asked.waiting.clear();
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell_all(waiting: Vec<Sender<ThreadStats>>, stats: &ThreadStats) {
    for answer in waiting {
        // Who has asked may be gone.
        let _ = answer.send(stats.clone());
    }
}
