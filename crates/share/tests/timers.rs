//! A timer of the loop goes off while a caller waits and no call is expected: for a task of the loop, as of an
//! interceptor that sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use starling_io::{IoError, MonotonicClock, ReactorWait, Wake};
use starling_share::{Command, EventLoop, SharedLoop, Step, Waiter};

struct Nothing;

impl Command for Nothing {
    fn refuse(self, _: &str) {}
}

/// A loop whose timer is always due. It ends the caller's wait in a turn after the caller has come.
struct Ticks {
    caller: Arc<Waiter>,
    waits: Arc<AtomicBool>,
    turns: Arc<AtomicUsize>,
}

impl EventLoop for Ticks {
    type Command = Nothing;

    fn resume(&mut self) -> Result<(), IoError> {
        Ok(())
    }

    fn execute(&mut self, _: Nothing) {}

    fn turn(&mut self) -> Result<Step, IoError> {
        match self.turns.fetch_add(1, Ordering::SeqCst) {
            // The caller comes while the keeper has the role, and parks.
            0 => {
                self.waits.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(50));
            }
            1..3 => {}
            _ => self.caller.notify(),
        }
        Ok(Step::Idle)
    }

    fn sleep(&mut self, _: Option<Duration>) -> Result<(), IoError> {
        Ok(())
    }

    fn begin_wait(&mut self) -> Result<ReactorWait, IoError> {
        Ok(ReactorWait::Ready)
    }

    fn spins(&mut self) -> bool {
        false
    }

    fn is_expecting(&self) -> bool {
        false
    }

    fn next_timer_ns(&mut self) -> Option<u64> {
        Some(0)
    }

    fn end(self: Box<Self>, _: Option<&str>) {}
}

/// A device without a sleep.
struct NoDevice;

impl Wake for NoDevice {
    fn wake(&self) {}
}

#[test]
fn a_caller_that_waits_for_a_task_of_the_loop_is_not_forgotten() {
    let waits = Arc::<AtomicBool>::default();
    let turns = Arc::<AtomicUsize>::default();
    let has_ended = Arc::<AtomicBool>::default();
    let (send, receive) = std::sync::mpsc::channel::<Arc<SharedLoop<Nothing>>>();
    let (its_waits, its_end) = (Arc::clone(&waits), Arc::clone(&has_ended));
    let (send_waiter, receive_waiter) = std::sync::mpsc::channel();
    let caller = std::thread::spawn(move || {
        let waiter = Waiter::of_this_thread();
        send_waiter
            .send(Arc::clone(&waiter))
            .expect("the test waits");
        let shared = receive.recv().expect("the test sends it");
        while !its_waits.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        shared.wait(&waiter);
        its_end.store(true, Ordering::SeqCst);
    });
    let ticks = Ticks {
        caller: receive_waiter.recv().expect("the caller sends it"),
        waits,
        turns: Arc::clone(&turns),
    };
    let shared = SharedLoop::new(Box::new(ticks), Arc::new(NoDevice), MonotonicClock::new());
    let shared = Arc::new(shared);
    send.send(Arc::clone(&shared)).expect("the caller waits");
    let kept = Arc::clone(&shared);
    let keeper = std::thread::spawn(move || kept.keep());
    // Has the keeper look.
    shared.push(Nothing);
    let begun = Instant::now();
    while !has_ended.load(Ordering::SeqCst) && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    shared.stop();
    keeper.join().expect("no panic");
    assert!(
        has_ended.load(Ordering::SeqCst),
        "the caller waits after {} turns",
        turns.load(Ordering::SeqCst)
    );
    caller.join().expect("no panic");
}
