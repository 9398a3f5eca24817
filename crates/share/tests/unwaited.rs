//! A command that nobody waits for is executed although the driver sleeps in the device, for as long as its own call
//! takes: a caller, or the keeper. And nobody wakes up for nothing.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Wake as WakeTask, Waker};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use starling_io::{IoError, MonotonicClock, ReactorWait, Wake};
use starling_share::{Command, DriverTask, EventLoop, SharedLoop, Step, Waiter};

/// Nothing takes so long.
const LONG: Duration = Duration::from_secs(60);

/// Says that it was executed.
struct Mark(Arc<AtomicBool>);

impl Command for Mark {
    fn refuse(self, _: &str) {}
}

/// A device in which nothing arrives.
#[derive(Default)]
struct Silence {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
    sleeps: AtomicUsize,
}

impl Silence {
    /// Sets whether a thread sleeps in it, and whether it was woken.
    fn change(&self, change: impl FnOnce(&mut (bool, bool))) {
        change(&mut self.state.lock().expect("no panic"));
        self.changed.notify_all();
    }

    /// Waits for a state, no longer than `limit`.
    fn wait_until(&self, limit: Duration, done: impl Fn(&(bool, bool)) -> bool) {
        let state = self.state.lock().expect("no panic");
        let waited = self
            .changed
            .wait_timeout_while(state, limit, |state| !done(state));
        drop(waited.expect("no panic"));
    }
}

impl Wake for Silence {
    fn wake(&self) {
        self.change(|(_, woken)| *woken = true);
    }
}

/// A loop whose only call is never over.
struct Endless(Arc<Silence>);

impl EventLoop for Endless {
    type Command = Mark;

    fn resume(&mut self) -> Result<(), IoError> {
        Ok(())
    }

    fn execute(&mut self, command: Mark) {
        command.0.store(true, Ordering::SeqCst);
    }

    fn turn(&mut self) -> Result<Step, IoError> {
        Ok(Step::Idle)
    }

    fn sleep(&mut self, limit: Option<Duration>) -> Result<(), IoError> {
        self.0.sleeps.fetch_add(1, Ordering::SeqCst);
        self.0.change(|(asleep, _)| *asleep = true);
        self.0
            .wait_until(limit.unwrap_or(2 * LONG), |(_, woken)| *woken);
        self.0.change(|state| *state = (false, false));
        Ok(())
    }

    fn begin_wait(&mut self) -> Result<ReactorWait, IoError> {
        Ok(ReactorWait::Unsupported)
    }

    fn spins(&mut self) -> bool {
        false
    }

    fn is_expecting(&self) -> bool {
        true
    }

    fn next_timer_ns(&mut self) -> Option<u64> {
        None
    }

    fn end(self: Box<Self>, _: Option<&str>) {}
}

type Shared = Arc<SharedLoop<Mark>>;

/// A loop over a silent device, with its keeper.
fn start() -> (Arc<Silence>, Shared, JoinHandle<()>) {
    let device = Arc::<Silence>::default();
    let endless = Box::new(Endless(Arc::clone(&device)));
    let shared = SharedLoop::new(endless, Arc::clone(&device) as _, MonotonicClock::new());
    let shared = Arc::new(shared);
    let kept = Arc::clone(&shared);
    (device, shared, std::thread::spawn(move || kept.keep()))
}

/// Leaves a command. Whether it is executed in time.
fn is_executed(shared: &Shared) -> bool {
    let executed = Arc::<AtomicBool>::default();
    shared.push(Mark(Arc::clone(&executed)));
    let begun = Instant::now();
    while !executed.load(Ordering::SeqCst) && begun.elapsed() < LONG {
        std::thread::sleep(Duration::from_millis(1));
    }
    executed.load(Ordering::SeqCst)
}

#[test]
fn the_keeper_wakes_a_driver_for_commands_of_others() {
    let (device, shared, keeper) = start();
    let (send, receive) = std::sync::mpsc::channel();
    let waited = Arc::clone(&shared);
    let caller = std::thread::spawn(move || {
        let waiter = Waiter::of_this_thread();
        send.send(Arc::clone(&waiter)).expect("the test waits");
        waited.wait(&waiter);
    });
    let waiter: Arc<Waiter> = receive.recv().expect("the caller sends it");
    device.wait_until(LONG, |(asleep, _)| *asleep);
    let is_executed = is_executed(&shared);
    // Not before: the caller would execute it when its wait ends.
    waiter.notify();
    caller.join().expect("no panic");
    shared.stop();
    keeper.join().expect("no panic");
    assert!(is_executed, "the driver slept on");
}

#[test]
fn a_keeper_that_drives_executes_commands_of_others() {
    let (device, shared, keeper) = start();
    let watch = SharedLoop::watch(&shared);
    // Has the keeper drive, for good: it expects something.
    shared.call_background();
    device.wait_until(LONG, |(asleep, _)| *asleep);
    let first = is_executed(&shared);
    // Now with a timer that was set before the keeper slept.
    let second = is_executed(&shared);
    drop(watch);
    shared.stop();
    keeper.join().expect("no panic");
    assert!(first && second, "the keeper slept on: {first} {second}");
}

/// Has a thread poll.
struct Unpark(Thread);

impl WakeTask for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn the_keeper_sleeps_on_for_a_task_whose_call_takes_long() {
    let (device, shared, keeper) = start();
    let (task, handle) = DriverTask::new(&shared, None);
    handle.begin_call();
    shared.push(Mark(Arc::default()));
    let executor = std::thread::spawn(move || {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut task = pin!(task);
        while task
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
        {
            std::thread::park();
        }
    });
    device.wait_until(LONG, |(asleep, _)| *asleep);
    let count = |time| {
        let before = device.sleeps.load(Ordering::SeqCst);
        std::thread::sleep(time);
        device.sleeps.load(Ordering::SeqCst) - before
    };
    // First what was left, and twice the time for which the keeper looks after it.
    count(Duration::from_millis(50));
    let sleeps = count(Duration::from_millis(500));
    handle.end_call();
    shared.stop();
    keeper.join().expect("no panic");
    executor.join().expect("no panic");
    assert!(sleeps <= 2, "{sleeps} sleeps");
}
