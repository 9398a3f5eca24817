//! Every interleaving of callers with each other and with the keeper, with at most two preemptions.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p starling-share --lib --release loom
//! ```

use std::future::Future;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use starling_io::{IoError, MonotonicClock, ReactorWait, Wake};

use super::{Descriptor, PollTask};
use crate::{Command, DriverTask, EventLoop, Reactor, SharedLoop, Step, TaskHandle, Waiter, Watch};

/// A device whose sleep ends when it is woken. Its answers arrive while the driver sleeps.
#[derive(Default)]
struct Device {
    woken: Mutex<bool>,
    changed: Condvar,
    descriptor: Descriptor,
}

/// The device, as the loop's callers know it. The trait's `Arc` is the standard library's.
struct DeviceWaker(Arc<Device>);

impl Wake for DeviceWaker {
    fn wake(&self) {
        *self.0.woken.lock().expect("no panic") = true;
        self.0.changed.notify_one();
        self.0.descriptor.set_readable();
    }
}

/// A loop whose calls are sent by a turn and answered by a later one.
struct Echo {
    device: Arc<Device>,
    /// So many commands have to come before any is answered.
    needed: usize,
    taken: Vec<Arc<Waiter>>,
    sent: Vec<Arc<Waiter>>,
    executed: Arc<Mutex<usize>>,
}

impl Echo {
    fn has_answers(&self) -> bool {
        !self.sent.is_empty() && *self.executed.lock().expect("no panic") >= self.needed
    }
}

impl EventLoop for Echo {
    type Command = Arc<Waiter>;

    fn resume(&mut self) -> Result<(), IoError> {
        Ok(())
    }

    fn execute(&mut self, command: Arc<Waiter>) {
        *self.executed.lock().expect("no panic") += 1;
        self.taken.push(command);
    }

    fn turn(&mut self) -> Result<Step, IoError> {
        let answered = self.has_answers();
        if answered {
            for waiter in self.sent.drain(..) {
                waiter.notify();
            }
        }
        self.sent.append(&mut self.taken);
        Ok(if answered { Step::Busy } else { Step::Idle })
    }

    fn sleep(&mut self, _: Option<Duration>) -> Result<(), IoError> {
        if !self.has_answers() {
            let mut woken = self.device.woken.lock().expect("no panic");
            while !std::mem::take(&mut *woken) {
                woken = self.device.changed.wait(woken).expect("no panic");
            }
        }
        Ok(())
    }

    fn begin_wait(&mut self) -> Result<ReactorWait, IoError> {
        let mut woken = self.device.woken.lock().expect("no panic");
        Ok(match std::mem::take(&mut *woken) || self.has_answers() {
            true => ReactorWait::Ready,
            false => ReactorWait::Begun,
        })
    }

    fn spins(&mut self) -> bool {
        false
    }

    fn is_expecting(&self) -> bool {
        !self.sent.is_empty() || !self.taken.is_empty()
    }

    fn next_timer_ns(&mut self) -> Option<u64> {
        None
    }

    fn end(self: Box<Self>, _: Option<&str>) {
        for waiter in self.sent.into_iter().chain(self.taken) {
            waiter.notify();
        }
    }
}

impl Command for Arc<Waiter> {
    fn refuse(self, _: &str) {
        self.notify();
    }
}

/// A shared loop that answers at once, and how many commands it has executed.
fn shared() -> (Arc<SharedLoop<Arc<Waiter>>>, Arc<Mutex<usize>>) {
    shared_that_needs(1)
}

/// The same, with the number of commands that have to come before any is answered.
fn shared_that_needs(needed: usize) -> (Arc<SharedLoop<Arc<Waiter>>>, Arc<Mutex<usize>>) {
    let (shared, executed, _) = shared_on_a_device(needed);
    (shared, executed)
}

/// The same, with the loop's device.
fn shared_on_a_device(
    needed: usize,
) -> (Arc<SharedLoop<Arc<Waiter>>>, Arc<Mutex<usize>>, Arc<Device>) {
    let device = Arc::new(Device::default());
    let executed = Arc::new(Mutex::new(0));
    let event_loop = Echo {
        device: Arc::clone(&device),
        needed,
        taken: Vec::new(),
        sent: Vec::new(),
        executed: Arc::clone(&executed),
    };
    let waker = std::sync::Arc::new(DeviceWaker(Arc::clone(&device)));
    let shared = SharedLoop::new(Box::new(event_loop), waker, MonotonicClock::new());
    (Arc::new(shared), executed, device)
}

/// One call of a thread that sleeps until the call is over.
fn call(shared: &SharedLoop<Arc<Waiter>>) {
    let waiter = Waiter::of_this_thread();
    shared.push(Arc::clone(&waiter));
    shared.wait(&waiter);
    assert!(waiter.is_notified());
}

/// One call of an executor's future: the thread drives one turn and then only waits.
fn call_of_future(shared: &Arc<SharedLoop<Arc<Waiter>>>) {
    let waiter = Waiter::of_this_thread();
    let _watch = SharedLoop::watch(shared);
    shared.push(Arc::clone(&waiter));
    shared.drive_once();
    while !waiter.is_notified() {
        waiter.park();
    }
}

/// Calls of a runtime's tasks, one after the other: the thread runs its driver task meanwhile.
fn calls_in_a_runtime(shared: &Arc<SharedLoop<Arc<Waiter>>>, calls: usize) {
    let (task, handle) = calls_in_a_runtime_that_stops(shared, calls);
    drop(task);
    assert!(!handle.wake(), "the task is gone");
}

type Task = std::pin::Pin<Box<DriverTask<Arc<Waiter>>>>;

/// The same. The driver task remains, and nobody runs it any more.
fn calls_in_a_runtime_that_stops(
    shared: &Arc<SharedLoop<Arc<Waiter>>>,
    calls: usize,
) -> (Option<Task>, TaskHandle) {
    calls_in_a_runtime_with(shared, calls, None)
}

fn calls_in_a_runtime_with(
    shared: &Arc<SharedLoop<Arc<Waiter>>>,
    calls: usize,
    reactor: Option<Box<dyn Reactor>>,
) -> (Option<Task>, TaskHandle) {
    let (task, handle) = DriverTask::new(shared, reactor);
    // An executor drops a task that has ended.
    let mut task = Some(Box::pin(task));
    let runtime = Waiter::of_this_thread();
    // The task is spawned.
    runtime.offer();
    let waker = Waker::from(std::sync::Arc::new(PollTask(Arc::clone(&runtime))));
    let mut cx = Context::from_waker(&waker);
    for _ in 0..calls {
        let mut watch = Watch::by_task(&handle);
        if handle.is_active() {
            shared.submit(Arc::clone(&runtime), &handle);
        } else {
            shared.push(Arc::clone(&runtime));
        }
        if !handle.wake() {
            watch = SharedLoop::watch(shared);
            shared.drive_once();
        }
        while !runtime.take_notified() {
            if runtime.take_offered() {
                task.take_if(|task| task.as_mut().poll(&mut cx) == Poll::Ready(()));
            } else {
                runtime.park();
            }
        }
    }
    (task, handle)
}

/// Makes calls while the keeper's thread runs, and ends the loop after them.
fn with_keeper(shared: &Arc<SharedLoop<Arc<Waiter>>>, calls: impl FnOnce()) {
    let kept = Arc::clone(shared);
    let keeper = thread::spawn(move || kept.keep());
    calls();
    shared.stop();
    keeper.join().expect("no panic");
}

/// Makes calls in this thread and, at the same time, others in another one. Returns what those return.
fn beside<T: 'static>(
    shared: &Arc<SharedLoop<Arc<Waiter>>>,
    others: impl FnOnce(&Arc<SharedLoop<Arc<Waiter>>>) -> T + 'static,
    calls: impl FnOnce(),
) -> T {
    let other = Arc::clone(shared);
    let thread = thread::spawn(move || others(&other));
    calls();
    thread.join().expect("no panic")
}

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(model);
}

#[test]
fn loom_two_callers_that_share_the_role_both_end() {
    check(|| {
        let (shared, executed) = shared();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || call(&other));
        call(&shared);
        thread.join().expect("no panic");
        assert_eq!(*executed.lock().expect("no panic"), 2);
    });
}

#[test]
fn loom_a_caller_that_calls_twice_leaves_the_role_to_the_other() {
    check(|| {
        let (shared, executed) = shared();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || call(&other));
        call(&shared);
        call(&shared);
        thread.join().expect("no panic");
        assert_eq!(*executed.lock().expect("no panic"), 3);
    });
}

#[test]
fn loom_the_keeper_drives_for_a_future() {
    check(|| {
        let (shared, executed) = shared();
        with_keeper(&shared, || call_of_future(&shared));
        assert_eq!(*executed.lock().expect("no panic"), 1);
    });
}

#[test]
fn loom_a_caller_a_future_and_the_keeper_all_end() {
    check(|| {
        let (shared, executed) = shared();
        with_keeper(&shared, || {
            beside(&shared, call_of_future, || call(&shared))
        });
        assert_eq!(*executed.lock().expect("no panic"), 2);
    });
}

#[test]
fn loom_a_driver_that_sleeps_executes_what_others_push() {
    check(|| {
        let (shared, executed) = shared_that_needs(2);
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || call(&other));
        call(&shared);
        thread.join().expect("no panic");
        assert_eq!(*executed.lock().expect("no panic"), 2);
    });
}

#[test]
fn loom_a_caller_that_needs_no_role_any_more_passes_the_offer_on() {
    check(|| {
        let (shared, _) = shared();
        let (idle, other) = (Arc::clone(&shared), Arc::clone(&shared));
        let listed = Arc::new(Mutex::new(None));
        let its_listed = Arc::clone(&listed);
        // What this thread waits for is not the loop's.
        let bystander = thread::spawn(move || {
            let waiter = Waiter::of_this_thread();
            *its_listed.lock().expect("no panic") = Some(Arc::clone(&waiter));
            idle.wait(&waiter);
        });
        let thread = thread::spawn(move || call(&other));
        call(&shared);
        let waiter = loop {
            let waiter = listed.lock().expect("no panic").take();
            match waiter {
                Some(waiter) => break waiter,
                None => thread::yield_now(),
            }
        };
        waiter.notify();
        thread.join().expect("no panic");
        bystander.join().expect("no panic");
    });
}

#[test]
fn loom_commands_after_the_end_are_refused() {
    check(|| {
        let (shared, _) = shared();
        let kept = Arc::clone(&shared);
        let keeper = thread::spawn(move || kept.keep());
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || call_of_future(&other));
        shared.stop();
        call(&shared);
        thread.join().expect("no panic");
        keeper.join().expect("no panic");
        call(&shared);
    });
}

#[test]
fn loom_a_task_drives_and_leaves_the_sleep_to_the_keeper() {
    check(|| {
        let (shared, executed) = shared();
        with_keeper(&shared, || calls_in_a_runtime(&shared, 2));
        assert_eq!(*executed.lock().expect("no panic"), 2);
    });
}

#[test]
fn loom_a_task_a_caller_and_the_keeper_all_end() {
    check(|| {
        let (shared, executed) = shared();
        with_keeper(&shared, || {
            beside(
                &shared,
                |shared| calls_in_a_runtime(shared, 1),
                || call(&shared),
            )
        });
        assert_eq!(*executed.lock().expect("no panic"), 2);
    });
}

#[test]
fn loom_a_task_that_leaves_while_the_keeper_lists_it_holds_up_no_future() {
    check(|| {
        let (shared, executed) = shared_that_needs(2);
        with_keeper(&shared, || {
            beside(
                &shared,
                |shared| calls_in_a_runtime(shared, 1),
                || call_of_future(&shared),
            )
        });
        assert_eq!(*executed.lock().expect("no panic"), 2);
    });
}

#[test]
fn loom_the_calls_of_two_runtimes_that_need_each_other_end() {
    check(|| {
        let (shared, executed) = shared_that_needs(2);
        with_keeper(&shared, || {
            beside(
                &shared,
                |shared| calls_in_a_runtime(shared, 1),
                || calls_in_a_runtime(&shared, 1),
            );
        });
        assert_eq!(*executed.lock().expect("no panic"), 2);
    });
}

#[test]
fn loom_a_runtime_that_stops_holds_up_no_caller() {
    check(|| {
        let (shared, executed) = shared();
        let mut stopped = None;
        with_keeper(&shared, || {
            let others = |shared: &Arc<_>| calls_in_a_runtime_that_stops(shared, 1);
            stopped = Some(beside(&shared, others, || call(&shared)));
            call(&shared);
        });
        drop(stopped);
        assert_eq!(*executed.lock().expect("no panic"), 3);
    });
}

#[test]
fn loom_a_runtime_that_submits_and_then_stops_holds_up_no_caller() {
    check(|| {
        let (shared, _) = shared();
        let mut stopped = None;
        with_keeper(&shared, || {
            let others = |shared: &Arc<_>| {
                let (task, handle) = calls_in_a_runtime_that_stops(shared, 1);
                handle.begin_call();
                shared.submit(Waiter::of_this_thread(), &handle);
                (task, handle)
            };
            stopped = Some(beside(&shared, others, || call(&shared)));
        });
        drop(stopped);
    });
}

#[test]
fn loom_two_runtimes_with_reactors_need_no_keeper() {
    check(|| {
        let (shared, executed, device) = shared_on_a_device(2);
        let others = |device: &Arc<Device>| {
            let device = Arc::clone(device);
            move |shared: &Arc<_>| {
                let reactor = device.descriptor.reactor();
                calls_in_a_runtime_with(shared, 1, Some(reactor));
            }
        };
        let here = others(&device);
        beside(&shared, others(&device), || here(&shared));
        assert_eq!(*executed.lock().expect("no panic"), 2);
    });
}

#[test]
fn loom_a_runtime_with_a_reactor_and_a_caller_need_no_keeper() {
    check(|| {
        let (shared, executed, device) = shared_on_a_device(1);
        let others = move |shared: &Arc<_>| {
            calls_in_a_runtime_with(shared, 1, Some(device.descriptor.reactor()));
        };
        beside(&shared, others, || call(&shared));
        assert_eq!(*executed.lock().expect("no panic"), 2);
    });
}

#[test]
fn loom_a_task_sees_the_end() {
    check(|| {
        let (shared, _) = shared();
        let kept = Arc::clone(&shared);
        let keeper = thread::spawn(move || kept.keep());
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || calls_in_a_runtime(&other, 1));
        shared.stop();
        thread.join().expect("no panic");
        keeper.join().expect("no panic");
    });
}
