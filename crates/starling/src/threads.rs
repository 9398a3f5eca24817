//! The threads of this process that run endpoints, for those who ask what they have: `starling inspect`, and
//! the page of metrics.
//!
//! ```text
//!  who asks ── Question, kick ──▶ Questions of an endpoint ──▶ between two turns: ThreadReport
//!     ▲                                                             │
//!     └────────────────────── Answer ◀──────────────────────────────┘
//! ```
//!
//! A thread reads one flag in each turn. It answers if it takes turns; else the question waits until it is
//! dropped by whoever asks.

mod report;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;
use parking_lot::Mutex;

use crate::channel_call::Shared;
use crate::channel_state::ChannelState;

pub(crate) use report::{ClientSessionRow, ServerSessionRow, ThreadReport, Wanted};

/// Questions that wait for one thread, at most.
const MAX_WAITING: usize = 64;
/// How long whoever asks waits for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadRole {
    /// It serves: a server's dispatch thread.
    Server,
    /// It makes the calls of channels.
    Channels,
    /// It belongs to the program: an [`Endpoint`](crate::Endpoint).
    Endpoint,
}

impl ThreadRole {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Channels => "channels",
            Self::Endpoint => "endpoint",
        }
    }
}

/// The questions to one endpoint.
#[derive(Default)]
pub(crate) struct Questions {
    is_pending: AtomicBool,
    waiting: Mutex<Vec<Question>>,
}

impl Questions {
    /// Whether there is one.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.is_pending.load(Ordering::Acquire)
    }

    /// Answers all questions so far.
    #[cold]
    pub(crate) fn answer(&self, mut report: impl FnMut(&Wanted) -> ThreadReport) {
        self.is_pending.store(false, Ordering::Release);
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for mut question in waiting {
            // Nobody waits for it any more.
            if Arc::strong_count(&question.answer) > 1 {
                question.report = Some(report(&question.wanted));
            }
        }
    }

    fn push(&self, question: Question) {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= MAX_WAITING {
            waiting.retain(|question| Arc::strong_count(&question.answer) > 1);
        }
        if waiting.len() < MAX_WAITING {
            waiting.push(question);
            self.is_pending.store(true, Ordering::Release);
        }
    }
}

/// A question on its way. Dropping it answers it, perhaps with nothing.
struct Question {
    wanted: Wanted,
    report: Option<ThreadReport>,
    answer: Arc<Cell>,
}

impl Drop for Question {
    fn drop(&mut self) {
        *self.answer.result.lock() = Some(self.report.take());
        self.answer.waker.wake();
    }
}

#[derive(Default)]
struct Cell {
    /// `Some(None)`: the endpoint is gone.
    result: Mutex<Option<Option<ThreadReport>>>,
    waker: AtomicWaker,
}

/// An answer to come.
pub(crate) struct Answer(Arc<Cell>);

impl Answer {
    /// The answer; `None` if the endpoint is gone.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<Option<ThreadReport>> {
        self.0.waker.register(cx.waker());
        match self.0.result.lock().take() {
            Some(report) => Poll::Ready(report),
            None => Poll::Pending,
        }
    }

    /// Waits for it in this thread.
    fn wait_until(&self, until: Instant) -> Option<ThreadReport> {
        struct Unpark(std::thread::Thread);
        impl std::task::Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Arc::new(Unpark(std::thread::current())).into();
        let cx = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(report) = self.poll(&cx) {
                return report;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            std::thread::park_timeout(left);
        }
    }
}

/// A channel of the process.
pub(crate) struct ChannelRow {
    pub(crate) address: String,
    pub(crate) state: ChannelState,
    pub(crate) calls_outstanding: usize,
    pub(crate) capacity: usize,
}

/// All channels of the process, and so many that those which are gone are looked for at the next one.
static CHANNELS: Mutex<(Vec<Weak<Shared>>, usize)> = Mutex::new((Vec::new(), 0));

/// Adds a channel, for its life.
pub(crate) fn add_channel(channel: &Arc<Shared>) {
    uptime();
    let (channels, sweep_at) = &mut *CHANNELS.lock();
    if channels.len() >= *sweep_at {
        channels.retain(|channel| channel.strong_count() > 0);
        *sweep_at = 2 * channels.len() + 64;
    }
    channels.push(Arc::downgrade(channel));
}

/// At most so many channels.
pub(crate) fn channels(most: usize) -> Vec<ChannelRow> {
    // Dropped without the lock: each may be the last reference.
    let all: Vec<_> = (CHANNELS.lock().0.iter())
        .filter_map(Weak::upgrade)
        .filter(|channel| channel.is_of_this_process())
        .take(most)
        .collect();
    let row = |channel: &Arc<Shared>| ChannelRow {
        address: channel.address.clone(),
        state: channel.transport.state(),
        calls_outstanding: channel.permits.taken(),
        capacity: channel.permits.capacity(),
    };
    all.iter().map(row).collect()
}

/// Since the first endpoint or channel of the process.
pub(crate) fn uptime() -> Duration {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    BEGUN.get_or_init(Instant::now).elapsed()
}

/// A thread of the process.
#[derive(Clone)]
struct Thread {
    number: u64,
    role: ThreadRole,
    questions: Weak<Questions>,
    kick: Arc<dyn Fn() + Send + Sync>,
}

static THREADS: Mutex<Vec<Thread>> = Mutex::new(Vec::new());

/// Adds an endpoint, until its questions are dropped. `kick` has it take a turn.
pub(crate) fn add(
    role: ThreadRole,
    questions: &Arc<Questions>,
    kick: impl Fn() + Send + Sync + 'static,
) {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    uptime();
    let mut threads = THREADS.lock();
    threads.retain(|thread| thread.questions.strong_count() > 0);
    threads.push(Thread {
        number: NEXT.fetch_add(1, Ordering::Relaxed),
        role,
        questions: Arc::downgrade(questions),
        kick: Arc::new(kick),
    });
}

/// A thread that was asked.
pub(crate) struct Asked {
    pub(crate) number: u64,
    pub(crate) role: ThreadRole,
    pub(crate) answer: Answer,
}

/// Asks one thread, or all.
pub(crate) fn ask(number: Option<u64>, wanted: &Wanted) -> Vec<Asked> {
    let threads: Vec<_> = (THREADS.lock().iter())
        .filter(|thread| number.is_none_or(|number| thread.number == number))
        .cloned()
        .collect();
    let mut asked = Vec::new();
    for thread in threads {
        let Some(questions) = thread.questions.upgrade() else {
            continue;
        };
        let cell = Arc::new(Cell::default());
        questions.push(Question {
            wanted: wanted.clone(),
            report: None,
            answer: Arc::clone(&cell),
        });
        (thread.kick)();
        asked.push(Asked {
            number: thread.number,
            role: thread.role,
            answer: Answer(cell),
        });
    }
    asked
}

/// Has each endpoint behind channels take a turn, unless it takes turns already.
pub(crate) fn kick_channels() {
    let kicks: Vec<_> = (THREADS.lock().iter())
        .filter(|thread| thread.role == ThreadRole::Channels)
        .filter(|thread| thread.questions.strong_count() > 0)
        .map(|thread| Arc::clone(&thread.kick))
        .collect();
    // Without the lock: a turn runs callers' wakers.
    for kick in kicks {
        kick();
    }
}

/// The reports of all threads that answer in time. Blocks.
pub(crate) fn wait_for_all() -> Vec<(u64, ThreadRole, ThreadReport)> {
    let asked = ask(None, &Wanted::default());
    let until = Instant::now() + PATIENCE;
    asked
        .into_iter()
        .filter_map(|asked| Some((asked.number, asked.role, asked.answer.wait_until(until)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_gone_or_asked_too_often_answers_nothing() {
        let questions = Arc::new(Questions::default());
        add(ThreadRole::Endpoint, &questions, || {});
        let number = THREADS.lock().last().expect("just added").number;
        let soon = || Instant::now() + Duration::from_millis(1);
        let kept: Vec<_> = (0..MAX_WAITING)
            .flat_map(|_| ask(Some(number), &Wanted::default()))
            .collect();
        assert_eq!(kept.len(), MAX_WAITING);
        let refused = ask(Some(number), &Wanted::default()).remove(0);
        assert!(
            matches!(*refused.answer.0.result.lock(), Some(None)),
            "at once"
        );
        // Those that nobody waits for make room.
        drop(kept);
        let asked = ask(Some(number), &Wanted::default()).remove(0);
        assert!(asked.answer.0.result.lock().is_none() && questions.is_pending());
        assert_eq!(questions.waiting.lock().len(), 1);
        drop(questions);
        assert!(asked.answer.wait_until(soon()).is_none());
        assert!(ask(Some(number), &Wanted::default()).is_empty());
    }

    #[test]
    fn whoever_reads_the_counts_of_calls_has_the_endpoints_behind_channels_take_a_turn() {
        use std::sync::atomic::AtomicUsize;
        let questions = Arc::new(Questions::default());
        let kicks = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        for (role, place) in [(ThreadRole::Channels, 0), (ThreadRole::Server, 1)] {
            let kicks = Arc::clone(&kicks);
            add(role, &questions, move || {
                kicks[place].fetch_add(1, Ordering::Relaxed);
            });
        }
        crate::metrics::snapshot();
        crate::metrics::page(0, 1);
        let [channels, server] = [0, 1].map(|place| kicks[place].load(Ordering::Relaxed));
        // Other tests read counts, too.
        assert!(channels >= 2 && server == 0, "{channels} {server}");
    }
}
