//! Random schedules of many callers: threads, runtimes, futures of other executors, and the keeper.
//!
//! ```text
//! RUSTFLAGS="--cfg shuttle" cargo test -p starling-share --lib --release shuttle
//! ```
//!
//! A failure prints its schedule, which `shuttle::replay` runs again.

use std::collections::VecDeque;
use std::future::Future;
use std::task::{Context, Waker};
use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};
use starling_io::{IoError, MonotonicClock, ReactorWait, Wake};

use super::{Descriptor, PollTask};
use crate::sync::{Arc, Condvar, Mutex, atomic, thread};
use crate::{Command, DriverTask, EventLoop, Reactor, SharedLoop, Step, Waiter, Watch};

/// Runs a model under schedules that a preemption may end anywhere, and under such that prefer one thread
/// for long, as a busy machine does (PCT: Burckhardt et al., ASPLOS 2010).
fn check(schedules: usize, model: impl Fn() + Send + Sync + Clone + 'static) {
    let schedules = schedules * times();
    shuttle::check_random(model.clone(), schedules);
    for preemptions in [2, 4, 8] {
        shuttle::check_pct(model.clone(), schedules, preemptions);
    }
}

/// A longer search: `STARLING_SCHEDULES` times as many schedules.
fn times() -> usize {
    let times = std::env::var("STARLING_SCHEDULES");
    times.map_or(1, |times| {
        times.parse().expect("STARLING_SCHEDULES is a number")
    })
}

/// A call: over when the server has answered. Its caller may be woken before, for no reason.
struct Call {
    waiter: Arc<Waiter>,
    is_over: atomic::AtomicBool,
}

impl Call {
    fn new(waiter: &Arc<Waiter>) -> Arc<Self> {
        Arc::new(Self {
            waiter: Arc::clone(waiter),
            is_over: atomic::AtomicBool::new(false),
        })
    }

    fn is_over(&self) -> bool {
        self.is_over.load(atomic::Ordering::SeqCst)
    }

    fn finish(&self) {
        self.is_over.store(true, atomic::Ordering::SeqCst);
        self.waiter.notify();
    }
}

/// What a client and its server share.
#[derive(Default)]
struct Network {
    state: Mutex<NetworkState>,
    changed: Condvar,
    descriptor: Descriptor,
}

#[derive(Default)]
struct NetworkState {
    requests: VecDeque<Arc<Call>>,
    responses: VecDeque<Arc<Call>>,
    /// The client's device was woken.
    woken: bool,
    /// Threads that still make calls. While there are several, the server keeps one request until the
    /// next one comes.
    callers: usize,
    over: bool,
}

impl Network {
    fn change<T>(&self, change: impl FnOnce(&mut NetworkState) -> T) -> T {
        let changed = change(&mut self.state.lock().expect("no panic"));
        self.changed.notify_all();
        changed
    }

    /// The client's device has something new.
    fn arrive(&self, change: impl FnOnce(&mut NetworkState)) {
        self.change(change);
        self.descriptor.set_readable();
    }

    /// Waits until something is to be had from the state.
    fn wait<T>(&self, mut take: impl FnMut(&mut NetworkState) -> Option<T>) -> T {
        let mut state = self.state.lock().expect("no panic");
        loop {
            match take(&mut state) {
                Some(taken) => return taken,
                None => state = self.changed.wait(state).expect("no panic"),
            }
        }
    }

    /// Answers requests, a random one each time.
    fn serve(&self) {
        loop {
            let request = self.wait(|state| {
                let count = state.requests.len();
                if count > usize::from(state.callers > 1) {
                    let index = thread_rng().gen_range(0..count);
                    Some(state.requests.remove(index))
                } else {
                    state.over.then_some(None)
                }
            });
            match request {
                Some(request) => self.arrive(|state| state.responses.push_back(request)),
                None => return,
            }
        }
    }
}

/// Its waker.
struct NetworkWaker(Arc<Network>);

impl Wake for NetworkWaker {
    fn wake(&self) {
        self.0.arrive(|state| state.woken = true);
    }
}

/// A loop whose calls another thread answers.
struct Client {
    network: Arc<Network>,
    taken: Vec<Arc<Call>>,
    expected: usize,
}

impl EventLoop for Client {
    type Command = Arc<Call>;

    fn resume(&mut self) -> Result<(), IoError> {
        self.turn().map(drop)
    }

    fn execute(&mut self, command: Arc<Call>) {
        self.expected += 1;
        self.taken.push(command);
    }

    fn turn(&mut self) -> Result<Step, IoError> {
        let taken = std::mem::take(&mut self.taken);
        let responses = self.network.change(|state| {
            state.requests.extend(taken);
            std::mem::take(&mut state.responses)
        });
        self.expected -= responses.len();
        responses.iter().for_each(|call| call.finish());
        Ok(match responses.is_empty() {
            true => Step::Idle,
            false => Step::Busy,
        })
    }

    fn sleep(&mut self, _: Option<Duration>) -> Result<(), IoError> {
        self.network.wait(|state| {
            let woken = std::mem::take(&mut state.woken);
            (woken || !state.responses.is_empty()).then_some(())
        });
        Ok(())
    }

    fn begin_wait(&mut self) -> Result<ReactorWait, IoError> {
        let mut state = self.network.state.lock().expect("no panic");
        let woken = std::mem::take(&mut state.woken);
        Ok(match woken || !state.responses.is_empty() {
            true => ReactorWait::Ready,
            false => ReactorWait::Begun,
        })
    }

    fn spins(&mut self) -> bool {
        false
    }

    fn is_expecting(&self) -> bool {
        self.expected > 0
    }

    fn next_timer_ns(&mut self) -> Option<u64> {
        None
    }

    fn end(self: Box<Self>, _: Option<&str>) {}
}

impl Command for Arc<Call> {
    fn refuse(self, _: &str) {
        self.finish();
    }
}

type ClientLoop = Arc<SharedLoop<Arc<Call>>>;

/// How a thread makes calls.
type Caller = fn(&ClientLoop, usize, &World);

/// Each of these threads makes so many calls in a way of its own. A server answers them.
fn call_all(kinds: &[Caller], calls: usize, keeper: bool) {
    let network = Arc::new(Network::default());
    network.change(|state| state.callers = kinds.len());
    let served = Arc::clone(&network);
    let server = thread::spawn(move || served.serve());
    let client = Client {
        network: Arc::clone(&network),
        taken: Vec::new(),
        expected: 0,
    };
    let waker = std::sync::Arc::new(NetworkWaker(Arc::clone(&network)));
    let shared = Arc::new(SharedLoop::new(
        Box::new(client),
        waker,
        MonotonicClock::new(),
    ));
    let keeper = keeper.then(|| {
        let kept = Arc::clone(&shared);
        thread::spawn(move || kept.keep())
    });
    let world = World {
        waiters: Arc::default(),
        network: Arc::clone(&network),
    };
    let start = |&kind: &Caller| {
        let (shared, network) = (Arc::clone(&shared), Arc::clone(&network));
        let world = world.clone();
        thread::spawn(move || {
            kind(&shared, calls, &world);
            network.change(|state| state.callers -= 1);
        })
    };
    let threads: Vec<_> = kinds.iter().map(start).collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    shared.stop();
    if let Some(keeper) = keeper {
        keeper.join().expect("no panic");
    }
    network.change(|state| state.over = true);
    server.join().expect("no panic");
}

/// Those that wait or have waited. Anyone of them may be notified for no reason, as by the waker of an
/// earlier call.
#[derive(Clone, Default)]
struct World {
    waiters: Arc<Mutex<Vec<Arc<Waiter>>>>,
    network: Arc<Network>,
}

impl World {
    fn of_this_thread(&self) -> Arc<Waiter> {
        let waiter = Waiter::of_this_thread();
        self.waiters
            .lock()
            .expect("no panic")
            .push(Arc::clone(&waiter));
        waiter
    }

    fn notify_any(&self) {
        let waiters = self.waiters.lock().expect("no panic");
        if !waiters.is_empty() {
            waiters[thread_rng().gen_range(0..waiters.len())].notify();
        }
    }
}

/// A thread that sleeps until its call is over.
fn thread_calls(shared: &ClientLoop, calls: usize, world: &World) {
    let waiter = world.of_this_thread();
    for _ in 0..calls {
        let call = Call::new(&waiter);
        shared.push(Arc::clone(&call));
        loop {
            waiter.take_notified();
            if call.is_over() {
                break;
            }
            shared.wait(&waiter);
        }
        world.notify_any();
    }
}

/// A thread that gives its calls up when it is woken before they are over, as at a deadline.
fn given_up_calls(shared: &ClientLoop, calls: usize, world: &World) {
    let waiter = world.of_this_thread();
    for _ in 0..calls {
        waiter.take_notified();
        shared.push(Call::new(&waiter));
        shared.wait(&waiter);
    }
}

/// A thread that polls a future, which drives nothing.
fn future_calls(shared: &ClientLoop, calls: usize, world: &World) {
    let waiter = world.of_this_thread();
    for _ in 0..calls {
        let call = Call::new(&waiter);
        let _watch = SharedLoop::watch(shared);
        shared.push(Arc::clone(&call));
        shared.drive_once();
        while !call.is_over() {
            waiter.take_notified();
            if !call.is_over() {
                waiter.park();
            }
        }
    }
}

/// A runtime with one task that makes calls, and the driver task.
fn task_calls(shared: &ClientLoop, calls: usize, world: &World) {
    calls_in_a_runtime(shared, calls, world, None);
}

/// The same. The runtime has a reactor.
fn reactor_calls(shared: &ClientLoop, calls: usize, world: &World) {
    let reactor = world.network.descriptor.reactor();
    calls_in_a_runtime(shared, calls, world, Some(reactor));
}

fn calls_in_a_runtime(
    shared: &ClientLoop,
    calls: usize,
    world: &World,
    reactor: Option<Box<dyn Reactor>>,
) {
    let (task, handle) = DriverTask::new(shared, reactor);
    let mut task = Box::pin(task);
    let runtime = world.of_this_thread();
    // The task is spawned.
    runtime.offer();
    let waker = Waker::from(std::sync::Arc::new(PollTask(Arc::clone(&runtime))));
    let mut cx = Context::from_waker(&waker);
    for _ in 0..calls {
        let call = Call::new(&runtime);
        let _watch = Watch::<Arc<Call>>::by_task(&handle);
        if handle.is_active() && thread_rng().r#gen() {
            shared.submit(Arc::clone(&call), &handle);
        } else {
            shared.push(Arc::clone(&call));
            assert!(handle.wake(), "the task lives");
        }
        while !call.is_over() {
            runtime.take_notified();
            if runtime.take_offered() {
                assert!(task.as_mut().poll(&mut cx).is_pending());
            } else if !call.is_over() {
                runtime.park();
            }
        }
    }
}

#[test]
fn shuttle_eight_threads_make_calls_without_a_keeper() {
    check(2_000, || {
        let mut kinds = [thread_calls as Caller; 8];
        kinds[..2].fill(given_up_calls);
        call_all(&kinds, 4, false);
    });
}

#[test]
fn shuttle_threads_futures_and_runtimes_make_calls() {
    check(2_000, || {
        let kinds: [Caller; 7] = [
            thread_calls,
            thread_calls,
            given_up_calls,
            future_calls,
            future_calls,
            task_calls,
            task_calls,
        ];
        call_all(&kinds, 3, true);
    });
}

#[test]
fn shuttle_a_runtime_that_ends_leaves_its_turn_to_others() {
    check(20_000, || call_all(&[task_calls, future_calls], 1, true));
}

#[test]
fn shuttle_runtimes_with_reactors_and_threads_need_no_keeper() {
    check(2_000, || {
        let kinds: [Caller; 4] = [reactor_calls, reactor_calls, thread_calls, given_up_calls];
        call_all(&kinds, 3, false);
    });
    check(2_000, || {
        call_all(&[reactor_calls, reactor_calls], 3, false)
    });
}

#[test]
fn shuttle_all_kinds_of_callers_call_beside_runtimes_with_reactors() {
    check(2_000, || {
        let kinds: [Caller; 5] = [
            reactor_calls,
            reactor_calls,
            task_calls,
            future_calls,
            thread_calls,
        ];
        call_all(&kinds, 3, true);
    });
}
