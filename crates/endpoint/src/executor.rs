//! Runs futures in the endpoint's thread. A task is polled only after its waker was used.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll, Waker};

use parking_lot::Mutex;

use crate::handler_panic::discard;
use crate::local::{LocalFuture, MAX_FUTURES, Shared};
use crate::slab::Slab;
use crate::sleep_state::SleepState;

/// The key of the future that [`crate::Endpoint::block_on`] runs.
const MAIN: u64 = u64::MAX;

/// Tasks to be polled, in order; at most one entry for a task. Wakers may be used in any thread.
struct Ready {
    any: AtomicBool,
    /// `None` after the endpoint was dropped: an entry would keep its own queue alive.
    queue: Mutex<Option<VecDeque<Arc<TaskWaker>>>>,
    sleep: Arc<SleepState>,
}

struct TaskWaker {
    key: u64,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl std::task::Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            let mut queue = self.ready.queue.lock();
            let Some(tasks) = queue.as_mut() else {
                return;
            };
            tasks.push_back(Arc::clone(self));
            self.ready.any.store(true, Ordering::SeqCst);
            drop(queue);
            self.ready.sleep.wake();
        }
    }
}

struct Task {
    future: LocalFuture,
    waker: Waker,
}

/// The tasks of an endpoint.
pub(crate) struct Executor {
    shared: Arc<Shared>,
    ready: Arc<Ready>,
    tasks: Slab<Option<Task>>,
    main: Waker,
    main_woken: bool,
    /// The tasks of this turn. Kept because of its memory.
    turn: VecDeque<Arc<TaskWaker>>,
}

impl Executor {
    pub(crate) fn new(shared: Arc<Shared>, sleep: Arc<SleepState>) -> Self {
        let ready = Arc::new(Ready {
            any: AtomicBool::new(false),
            queue: Mutex::new(Some(VecDeque::new())),
            sleep,
        });
        Self {
            main: waker(MAIN, &ready),
            shared,
            ready,
            tasks: Slab::new(MAX_FUTURES),
            main_woken: false,
            turn: VecDeque::new(),
        }
    }

    /// Whether [`Executor::run`] has something to do.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.shared.is_busy() || self.ready.any.load(Ordering::Acquire)
    }

    /// Announces a sleep. False if there is something to do.
    pub(crate) fn may_sleep(&self) -> bool {
        self.ready.sleep.begin();
        !self.ready.any.load(Ordering::SeqCst) && !self.shared.is_busy()
    }

    /// Ends the sleep.
    pub(crate) fn end_sleep(&self) {
        self.ready.sleep.end();
    }

    /// Starts spawned futures, and polls each task that is ready now, once. Returns how many were
    /// polled, and how many of them panicked.
    pub(crate) fn run(&mut self) -> (usize, u64) {
        let mut panics = 0;
        for future in self.shared.take_spawned() {
            let Ok(key) = self.tasks.insert(None) else {
                panic!("{MAX_FUTURES} tasks at once");
            };
            let waker = waker(key, &self.ready);
            waker.wake_by_ref();
            if let Some(place) = self.tasks.get_mut(key) {
                *place = Some(Task { future, waker });
            }
        }
        if let Some(queue) = self.ready.queue.lock().as_mut() {
            self.ready.any.store(false, Ordering::Relaxed);
            std::mem::swap(queue, &mut self.turn);
        }
        let polled = self.turn.len();
        for task_waker in self.turn.drain(..) {
            // A wake from here on queues the task again.
            task_waker.queued.store(false, Ordering::Release);
            let key = task_waker.key;
            if key == MAIN {
                self.main_woken = true;
                continue;
            }
            let Some(Some(task)) = self.tasks.get_mut(key) else {
                continue;
            };
            let mut cx = TaskContext::from_waker(&task.waker);
            let future = task.future.as_mut();
            match catch_unwind(AssertUnwindSafe(|| future.poll(&mut cx))) {
                Ok(Poll::Pending) => continue,
                Ok(Poll::Ready(())) => {}
                Err(panic) => {
                    discard(panic);
                    panics += 1;
                }
            }
            let task = self.tasks.remove(key);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(task))) {
                discard(panic);
                panics += 1;
            }
        }
        (polled, panics)
    }

    /// The waker of the future that the endpoint's owner waits for.
    pub(crate) fn main(&self) -> Waker {
        self.main.clone()
    }

    /// Whether that future was woken since the last call of this function.
    pub(crate) fn take_main_woken(&mut self) -> bool {
        std::mem::take(&mut self.main_woken)
    }
}

fn waker(key: u64, ready: &Arc<Ready>) -> Waker {
    Waker::from(Arc::new(TaskWaker {
        key,
        queued: AtomicBool::new(false),
        ready: Arc::clone(ready),
    }))
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.shared.close();
        let queue = self.ready.queue.lock().take();
        drop(queue);
    }
}
