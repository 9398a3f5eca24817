//! Every interleaving of a dispatcher with its workers. With a worker that sleeps, those
//! interleavings with at most three preemptions.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p starling-handoff --lib --release loom
//! ```
//!
//! The code under test is the code that ships, over loom's atomics. Items are cells that loom guards:
//! loom finds an access that no slot orders, even if it does no harm, and items that are never
//! dropped. Loom has no `membarrier`, so the sleepers are checked with two full fences. That
//! `membarrier` is as strong is the kernel's promise.

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Notify};
use loom::thread;

use crate::{Dispatcher, ItemGuard, Mailboxes, Sleepers, dispatcher};

/// An item whose accesses loom sees, and whose leak loom reports.
struct Item {
    number: UnsafeCell<u64>,
    _alive: Arc<()>,
}

impl Item {
    fn new(number: u64) -> Box<Self> {
        Box::new(Self {
            number: UnsafeCell::new(number),
            _alive: Arc::new(()),
        })
    }

    fn read(&self) -> u64 {
        // SAFETY: loom checks that no thread writes meanwhile.
        self.number.with(|number| unsafe { *number })
    }

    fn add(&self, more: u64) {
        // SAFETY: loom checks that no other thread has access meanwhile.
        self.number.with_mut(|number| unsafe { *number += more });
    }
}

fn add(taken: ItemGuard<'_, Item>, more: u64) {
    taken.add(more);
}

fn take_all_back(dispatcher: &mut Dispatcher<Item>, many: usize) -> Vec<u64> {
    let mut back = Vec::new();
    while back.len() < many {
        match dispatcher.poll_returned() {
            Some(one) => back.push(one.item.read()),
            None => thread::yield_now(),
        }
    }
    back
}

#[test]
fn loom_items_go_there_and_back_through_the_same_slots() {
    loom::model(|| {
        let (mut dispatcher, mailboxes) = dispatcher::<Item>(1);
        let worker = thread::spawn(move || {
            let (mut first, mut seen) = (0, 0);
            while seen < 2 {
                match mailboxes.take(0, first) {
                    Some(taken) => {
                        assert_eq!(taken.read(), seen, "in order");
                        first = taken.slot();
                        seen += 1;
                        add(taken, 10);
                    }
                    None => thread::yield_now(),
                }
            }
        });
        for number in 0..2 {
            dispatcher.push(0, Item::new(number));
            assert_eq!(take_all_back(&mut dispatcher, 1), [number + 10]);
        }
        worker.join().expect("no panic");
    });
}

#[test]
fn loom_two_workers_do_not_take_the_same_item() {
    loom::model(|| {
        let (mut dispatcher, mailboxes) = dispatcher::<Item>(1);
        dispatcher.push(0, Item::new(0));
        dispatcher.push(0, Item::new(1));
        let workers: [_; 2] = std::array::from_fn(|_| {
            let mailboxes = mailboxes.clone();
            thread::spawn(move || {
                let mut took = 0;
                while let Some(taken) = mailboxes.take(0, 0) {
                    took += 1;
                    add(taken, 10);
                }
                took
            })
        });
        let took = workers.map(|worker| worker.join().expect("no panic"));
        assert_eq!(took[0] + took[1], 2);
        let mut back = take_all_back(&mut dispatcher, 2);
        back.sort_unstable();
        assert_eq!(back, [10, 11]);
    });
}

/// Either side ends, at any moment. Loom reports an item that is not dropped.
#[test]
fn loom_no_item_leaks_when_the_dispatcher_is_dropped() {
    loom::model(|| {
        let (mut dispatcher, mailboxes) = dispatcher::<Item>(1);
        dispatcher.push(0, Item::new(0));
        dispatcher.push(0, Item::new(1));
        let worker = thread::spawn(move || {
            if let Some(taken) = mailboxes.take(0, 0) {
                add(taken, 10);
            }
        });
        drop(dispatcher.poll_returned());
        drop(dispatcher);
        worker.join().expect("no panic");
    });
}

/// Runs `many` items, by turns awake and asleep.
fn work_and_sleep(mailboxes: &Mailboxes<Item>, sleepers: &Sleepers, bell: &Notify, many: u64) {
    for _ in 0..many {
        let taken = loop {
            let found = mailboxes.take(0, 0);
            let found =
                found.or_else(|| sleepers.sleep(0, || mailboxes.take(0, 0), |_| bell.wait()));
            if let Some(found) = found {
                break found;
            }
        };
        add(taken, 10);
    }
}

/// A wake-up that is lost would leave the worker parked for ever: loom reports the deadlock.
#[test]
fn loom_a_sleeping_worker_is_woken_for_an_item() {
    let mut model = loom::model::Builder::new();
    // All interleavings would take hours.
    model.preemption_bound = Some(3);
    model.check(|| {
        let (mut dispatcher, mailboxes) = dispatcher::<Item>(1);
        let shared = Arc::new((Sleepers::new(1), Notify::new()));
        let its = Arc::clone(&shared);
        let worker = thread::spawn(move || work_and_sleep(&mailboxes, &its.0, &its.1, 2));
        for number in 0..2 {
            dispatcher.push(0, Item::new(number));
            if shared.0.any() && shared.0.mark_awake(0) {
                shared.1.notify();
            }
        }
        worker.join().expect("no panic");
        assert_eq!(take_all_back(&mut dispatcher, 2).len(), 2);
    });
}
