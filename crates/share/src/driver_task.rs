//! A task of an executor that drives the loop for the executor's other tasks.
//!
//! An executor's thread must not sleep for one call, and a task that sent its own call at once would
//! leave nothing to combine. So tasks only leave their commands, and the driver task runs after them:
//! it executes what all of them have left, takes one turn, which sends it in one flush and wakes the
//! tasks whose calls are over, and lets these run. No thread is switched.
//!
//! ```text
//!  tasks: push ──▶ inbox ──▶ driver task: execute all, one turn ──▶ device
//!    ▲                            │    ▲
//!    └── woken: their calls ended ┘    └─ again, after the tasks that are ready
//!
//!  ACTIVE: it will look into the inbox     PARKED: a push wakes it     GONE: the executor ended
//! ```
//!
//! It spins as long as a thread would before it sleeps. Then it parks. The executor's reactor waits for the
//! device in its place, or the keeper, until something arrives or a push wakes the task again.
//!
//! No wake-up is lost: a caller pushes and then looks at the task's state. The task parks and then
//! looks into the inbox. Both have a full fence in between.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::shared_loop::{Command, SharedLoop};
use crate::sync::atomic::{AtomicU8, AtomicUsize, Ordering, fence};
use crate::sync::{Arc, Mutex, lock};

const ACTIVE: u8 = 0;
const PARKED: u8 = 1;
const GONE: u8 = 2;

/// What callers and other drivers know of a driver task.
pub(crate) struct TaskState {
    state: AtomicU8,
    /// Calls that the executor's other tasks wait for.
    calls: AtomicUsize,
    /// The executor's reactor watches the device while the task is parked.
    has_reactor: bool,
    waker: Mutex<Option<Waker>>,
}

impl TaskState {
    /// Has the task polled, unless it will be anyway. False if it is gone.
    pub(crate) fn wake(&self) -> bool {
        let (from, to) = (PARKED, ACTIVE);
        let state = self
            .state
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed);
        if state.is_ok() {
            let waker = lock(&self.waker).clone();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        state != Err(GONE)
    }

    /// A task of the executor begins to wait for a call.
    pub(crate) fn begin_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end_call(&self) {
        self.calls.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the executor needs a driver. A call that this misses has its command in the inbox.
    pub(crate) fn has_calls(&self) -> bool {
        self.calls.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn has_reactor(&self) -> bool {
        self.has_reactor
    }

    pub(crate) fn park(&self) {
        self.set(PARKED);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn unpark(&self) {
        self.set(ACTIVE);
    }

    /// A swap, not a store: loom orders only these with what [`TaskState::wake`] does.
    fn set(&self, state: u8) {
        self.state.swap(state, Ordering::SeqCst);
    }

    fn is_parked(&self) -> bool {
        self.state.load(Ordering::Relaxed) == PARKED
    }
}

/// Has a driver task look into the inbox.
#[derive(Clone)]
pub struct TaskHandle(pub(crate) Arc<TaskState>);

impl TaskHandle {
    /// Whether the task has ended, with its executor or with the loop.
    pub fn is_gone(&self) -> bool {
        self.0.state.load(Ordering::Relaxed) == GONE
    }

    /// Whether the task is about to look into the inbox.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.0.state.load(Ordering::Relaxed) == ACTIVE
    }

    /// Whether both are of the same task.
    #[inline]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The task drives for one more call of its executor, until [`TaskHandle::end_call`].
    #[inline]
    pub fn begin_call(&self) {
        self.0.begin_call();
    }

    /// See [`TaskHandle::begin_call`].
    #[inline]
    pub fn end_call(&self) {
        self.0.end_call();
    }

    /// To be called after a push. False if the task is gone, with its executor.
    pub fn wake(&self) -> bool {
        fence(Ordering::SeqCst);
        // A load first: the task is mostly active.
        self.0.state.load(Ordering::Relaxed) == ACTIVE || self.0.wake()
    }
}

/// An executor's reactor, which watches the descriptor of the loop's device.
pub trait Reactor: Send {
    /// Ready if the descriptor was readable since the last call that returned this. Pending: `cx` is woken when
    /// it becomes readable.
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

/// What a driver task did last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It was parked: much may have arrived since.
    Rested,
    /// It took a turn.
    Driving,
}

/// How a driver task goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It drives again, after the tasks that are ready.
    Again(Progress),
    /// It waits until it is woken.
    Park,
    /// The loop has ended.
    End,
}

/// The task's future; see the module's documentation.
pub struct DriverTask<C: Command> {
    shared: Arc<SharedLoop<C>>,
    state: Arc<TaskState>,
    reactor: Option<Box<dyn Reactor>>,
    progress: Progress,
}

impl<C: Command> DriverTask<C> {
    /// A task, for an executor to run, and what wakes it. Without a reactor the keeper sleeps in its place.
    pub fn new(
        shared: &Arc<SharedLoop<C>>,
        reactor: Option<Box<dyn Reactor>>,
    ) -> (Self, TaskHandle) {
        let state = Arc::new(TaskState {
            state: AtomicU8::new(ACTIVE),
            calls: AtomicUsize::new(0),
            has_reactor: reactor.is_some(),
            waker: Mutex::new(None),
        });
        let task = Self {
            shared: Arc::clone(shared),
            state: Arc::clone(&state),
            reactor,
            progress: Progress::Rested,
        };
        (task, TaskHandle(state))
    }
}

impl<C: Command> Future for DriverTask<C> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        {
            let mut waker = lock(&self.state.waker);
            if !waker
                .as_ref()
                .is_some_and(|kept| kept.will_wake(cx.waker()))
            {
                *waker = Some(cx.waker().clone());
            }
        }
        let Self {
            shared,
            state,
            reactor,
            progress,
        } = &mut *self;
        let mut is_readable = || match reactor {
            Some(reactor) => reactor.poll_readable(cx).is_ready(),
            None => false,
        };
        let next = if state.is_parked() {
            match shared.drive_arrived(state, &mut is_readable) {
                Some(next) => next,
                // Woken by the executor for no reason, or before it parked. If it took the role from the
                // keeper, the keeper would wake it, and so on.
                None => return Poll::Pending,
            }
        } else {
            shared.drive_in_task(state, *progress, &mut is_readable)
        };
        self.progress = match next {
            Next::Again(progress) => {
                cx.waker().wake_by_ref();
                progress
            }
            Next::Park => Progress::Rested,
            Next::End => return Poll::Ready(()),
        };
        Poll::Pending
    }
}

impl<C: Command> Drop for DriverTask<C> {
    fn drop(&mut self) {
        self.state.set(GONE);
        // It holds what the executor has for the task.
        let waker = lock(&self.state.waker).take();
        drop(waker);
        self.shared.leave(&self.state);
    }
}
