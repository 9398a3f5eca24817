//! Runs futures in the endpoint's thread. A task is polled only after its waker was used.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll, Waker};

use parking_lot::Mutex;
use starling_io::{Clock, Origin};
use starling_proto::PeerId;

use crate::handler_panic::discard;
use crate::local::{LocalFuture, Shared, Spawned};
use crate::shares::{Shares, Work};
use crate::slab::Slab;
use crate::sleep_state::SleepState;

/// The key of the future that [`crate::Endpoint::block_on`] runs.
const MAIN: u64 = u64::MAX;
/// Tasks that are polled between two readings of the clock.
const STRIDE: usize = 16;

/// Tasks that are polled in a turn. When thousands are woken at once, as the handlers of a client that is gone,
/// the others wait for the next turns: datagrams are received in between.
const TASKS_PER_TURN: usize = 256;

/// Tasks to be polled, in order; at most one entry for a task. Wakers may be used in any thread.
struct Ready {
    any: AtomicBool,
    /// `None` after the endpoint was dropped: an entry would keep its own queue alive.
    queue: Mutex<Option<VecDeque<Arc<TaskWaker>>>>,
    sleep: Arc<SleepState>,
}

/// A task that is to be polled when it is woken.
pub(crate) struct TaskWaker {
    key: u64,
    /// The peer whose request the task serves, if it serves one, and its number's epoch.
    peer: Option<(PeerId, u32)>,
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
            self.ready.sleep.leave_work();
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
    /// Futures to start, oldest first. They stay here while there are too many tasks.
    unstarted: VecDeque<Spawned>,
    main: Waker,
    main_woken: bool,
    /// The tasks of this turn. Kept because of its memory.
    turn: VecDeque<Arc<TaskWaker>>,
}

impl Executor {
    /// `max_tasks` of the futures run at once, and the others begin when one of them has ended.
    pub(crate) fn new(shared: Arc<Shared>, sleep: Arc<SleepState>, max_tasks: usize) -> Self {
        let ready = Arc::new(Ready {
            any: AtomicBool::new(false),
            queue: Mutex::new(Some(VecDeque::new())),
            sleep,
        });
        Self {
            main: waker(MAIN, None, &ready),
            shared,
            ready,
            tasks: Slab::new(max_tasks),
            unstarted: VecDeque::new(),
            main_woken: false,
            turn: VecDeque::new(),
        }
    }

    /// Whether [`Executor::run`] has something to do.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.shared.is_busy() || self.ready.any.load(Ordering::Acquire)
    }

    /// Starts spawned futures, and polls tasks that are ready now, each once. While time is shared, tasks of
    /// peers that have used theirs go to `shares`. Returns how many were polled, and how many of them panicked.
    pub(crate) fn run<C: Clock>(
        &mut self,
        shares: &mut Shares,
        clock: &C,
        origin_of: impl Fn(PeerId) -> Origin,
    ) -> (usize, u64) {
        let (mut polled, mut panics) = (0, 0);
        if self.shared.is_busy() {
            self.unstarted.extend(self.shared.take_spawned());
        }
        self.start(shares);
        self.take_ready();
        let is_timed = self.turn.len() > STRIDE || shares.is_on();
        let mut began_ns = if is_timed { clock.now_ns() } else { 0 };
        shares.begin_immediate(began_ns);
        while let Some(task_waker) = self.turn.pop_front() {
            if let Some((peer, epoch)) = task_waker.peer
                && shares.is_on()
                // Else the peer is gone, and its share with it.
                && shares.epoch(peer) == epoch
                && let now_ns = clock.now_ns()
                && !shares.admits(peer, now_ns, || origin_of(peer))
            {
                shares.push(peer, || origin_of(peer), Work::Task(task_waker));
                continue;
            }
            panics += self.poll(&task_waker);
            polled += 1;
            if is_timed && polled % STRIDE == 0 {
                let now_ns = clock.now_ns();
                shares.record_run(STRIDE, clock, now_ns, began_ns);
                began_ns = now_ns;
            }
        }
        // In the places of those that ended. They are polled next time.
        self.start(shares);
        (polled, panics)
    }

    /// Polls a task. Returns the number of panics.
    pub(crate) fn poll(&mut self, task_waker: &TaskWaker) -> u64 {
        // A wake from here on queues the task again.
        task_waker.queued.store(false, Ordering::Release);
        let key = task_waker.key;
        if key == MAIN {
            self.main_woken = true;
            return 0;
        }
        let Some(Some(task)) = self.tasks.get_mut(key) else {
            return 0;
        };
        let mut cx = TaskContext::from_waker(&task.waker);
        let future = task.future.as_mut();
        let mut panics = 0;
        match catch_unwind(AssertUnwindSafe(|| future.poll(&mut cx))) {
            Ok(Poll::Pending) => return 0,
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
        panics
    }

    /// Takes the tasks of this turn off the queue.
    fn take_ready(&mut self) {
        let mut queue = self.ready.queue.lock();
        let Some(queue) = queue.as_mut() else {
            return;
        };
        if queue.len() > TASKS_PER_TURN {
            self.turn.extend(queue.drain(..TASKS_PER_TURN));
            return self.ready.sleep.leave_work();
        }
        self.ready.any.store(false, Ordering::Relaxed);
        std::mem::swap(queue, &mut self.turn);
    }

    /// Starts futures while there are places for tasks.
    fn start(&mut self, shares: &Shares) {
        while !self.unstarted.is_empty()
            && let Ok(key) = self.tasks.insert(None)
        {
            let Some((future, peer)) = self.unstarted.pop_front() else {
                return;
            };
            let peer = peer.map(|peer| (peer, shares.epoch(peer)));
            let waker = waker(key, peer, &self.ready);
            waker.wake_by_ref();
            if let Some(place) = self.tasks.get_mut(key) {
                *place = Some(Task { future, waker });
            }
        }
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

fn waker(key: u64, peer: Option<(PeerId, u32)>, ready: &Arc<Ready>) -> Waker {
    Waker::from(Arc::new(TaskWaker {
        key,
        peer,
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex as StdMutex;

    use starling_io::{MonotonicClock, Wake};

    use super::*;
    use crate::local::LocalHandle;
    use crate::server::Abandoned;

    fn run(executor: &mut Executor) -> (usize, u64) {
        let clock = MonotonicClock::new();
        executor.run(&mut Shares::default(), &clock, |_| Origin(0))
    }

    struct Nobody;

    impl Wake for Nobody {
        fn wake(&self) {}
    }

    fn executor(max_tasks: usize) -> (Executor, Arc<Shared>, Arc<SleepState>) {
        let nobody: Arc<dyn Wake> = Arc::new(Nobody);
        let sleep = SleepState::new(nobody);
        let abandoned = Arc::new(Abandoned::new(Arc::clone(&sleep)));
        let shared = Shared::new(abandoned, Arc::clone(&sleep));
        let executor = Executor::new(Arc::clone(&shared), Arc::clone(&sleep), max_tasks);
        (executor, shared, sleep)
    }

    #[test]
    fn thousands_of_tasks_that_are_woken_at_once_are_polled_in_many_turns() {
        const TASKS: usize = 4 * TASKS_PER_TURN + 1;
        let (mut executor, shared, sleep) = executor(TASKS);
        let polled = Arc::new(StdMutex::new(Vec::new()));
        for index in 0..TASKS {
            let polled = Arc::clone(&polled);
            LocalHandle::of(&shared).spawn(async move {
                polled.lock().expect("no panic").push(index);
            });
        }
        let (mut turns, mut early) = (0, None);
        while sleep.has_work() {
            sleep.begin_work();
            let (count, panics) = run(&mut executor);
            assert!(count <= TASKS_PER_TURN, "{count} in a turn");
            assert_eq!(panics, 0);
            turns += 1;
            while shared.poll_command().is_some() {}
            // One that is spawned meanwhile comes behind them.
            early.get_or_insert_with(|| {
                let polled = Arc::clone(&polled);
                LocalHandle::of(&shared).spawn(async move {
                    polled.lock().expect("no panic").push(TASKS);
                });
            });
        }
        assert_eq!(turns, 5, "four are full");
        assert!(
            polled
                .lock()
                .expect("no panic")
                .iter()
                .copied()
                .eq(0..=TASKS)
        );
    }

    #[test]
    fn futures_beyond_the_bound_begin_when_others_have_ended() {
        const FUTURES: usize = 7;
        let (mut executor, shared, _) = executor(2);
        let begun = Arc::new(StdMutex::new(Vec::new()));
        for index in 0..FUTURES {
            let begun = Arc::clone(&begun);
            let mut polls = 0;
            let future = std::future::poll_fn(move |cx| {
                polls += 1;
                if polls == 1 {
                    begun.lock().expect("no panic").push(index);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                // A panic ends a task, too.
                assert!(index != 3, "as planned");
                Poll::Ready(())
            });
            LocalHandle::of(&shared).spawn(future);
        }
        let (mut turns, mut panicked) = (0, 0);
        while executor.is_ready() {
            let (polled, panics) = run(&mut executor);
            assert!(polled <= 2, "{polled} at once");
            panicked += panics;
            turns += 1;
            while shared.poll_command().is_some() {}
            assert!(turns < 100, "never at rest");
        }
        assert!(
            begun
                .lock()
                .expect("no panic")
                .iter()
                .copied()
                .eq(0..FUTURES)
        );
        assert_eq!(panicked, 1);
        assert!(executor.unstarted.is_empty());
        // There are places for later ones.
        LocalHandle::of(&shared).spawn(async {});
        assert_eq!(run(&mut executor), (1, 0));
    }
}
