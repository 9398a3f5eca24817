//! The slots: in one thread against their promises, and between threads by number. What only some
//! interleavings show is for loom (`loom_model`).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;

use bolero::TypeGenerator;

use super::*;

/// Counts how many of its kind there are.
struct Counted(Arc<AtomicUsize>, u64);

impl Counted {
    fn new(count: &Arc<AtomicUsize>, number: u64) -> Box<Self> {
        count.fetch_add(1, Ordering::Relaxed);
        Box::new(Self(Arc::clone(count), number))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn items_are_taken_in_order_in_every_phase() {
    let (mut dispatcher, mailboxes) = dispatcher(2);
    let (mut next, mut first) = (0_u64, 0);
    for round in 0..100 {
        let many = round % SLOTS + 1;
        for number in 0..many as u64 {
            dispatcher.push(1, Box::new(next + number));
        }
        assert!(mailboxes.is_empty(0) && !mailboxes.is_empty(1));
        assert!(dispatcher.poll_returned().is_none(), "nobody has taken any");
        for number in 0..many as u64 {
            let mut taken = mailboxes.take(1, first).expect("it was given");
            assert_eq!(*taken, next + number);
            *taken += 1000;
            first = taken.slot() + 1;
        }
        assert!(mailboxes.take(1, first).is_none());
        let mut back: Vec<u64> = std::iter::from_fn(|| dispatcher.poll_returned())
            .map(|back| {
                assert_eq!(back.mailbox, 1);
                *back.item - 1000
            })
            .collect();
        back.sort_unstable();
        assert!(back.into_iter().eq(next..next + many as u64));
        next += many as u64;
    }
}

#[test]
fn a_slot_that_does_not_come_back_stops_no_other() {
    let (mut dispatcher, mailboxes) = dispatcher(1);
    dispatcher.push(0, Box::new(0_u64));
    let stuck = mailboxes.take(0, 0).expect("it was given");
    for number in 1..50 {
        dispatcher.push(0, Box::new(number));
        let other = mailboxes.take(0, 0).expect("it was given");
        assert_ne!(other.slot(), stuck.slot());
        drop(other);
        let back = dispatcher.poll_returned().expect("it came back");
        assert_eq!((*back.item, back.mailbox), (number, 0));
        assert!(dispatcher.poll_returned().is_none());
    }
    drop(stuck);
    assert_eq!(dispatcher.poll_returned().map(|back| *back.item), Some(0));
}

#[test]
fn one_pass_polls_every_returned_item_and_ends() {
    let (mut dispatcher, mailboxes) = dispatcher::<u64>(70);
    for mailbox in [0, 63, 64, 69] {
        dispatcher.push(mailbox, Box::new(mailbox as u64));
        dispatcher.push(mailbox, Box::new(mailbox as u64));
        drop(mailboxes.take(mailbox, 0));
    }
    dispatcher.prefetch();
    let found = std::iter::from_fn(|| dispatcher.poll_returned()).map(|back| *back.item);
    assert_eq!(found.collect::<Vec<_>>(), [0, 63, 64, 69]);
    // A mailbox that the pass is beyond is for the next pass.
    drop(mailboxes.take(0, 0));
    drop(mailboxes.take(69, 0));
    assert_eq!(dispatcher.poll_returned().map(|back| back.mailbox), Some(0));
    drop(mailboxes.take(63, 0));
    assert_eq!(
        dispatcher.poll_returned().map(|back| back.mailbox),
        Some(63)
    );
    dispatcher.push(0, Box::new(0));
    drop(mailboxes.take(0, 0));
    assert_eq!(
        dispatcher.poll_returned().map(|back| back.mailbox),
        Some(69)
    );
    assert!(dispatcher.poll_returned().is_none());
    assert_eq!(dispatcher.poll_returned().map(|back| back.mailbox), Some(0));
}

#[test]
#[should_panic(expected = "mailbox 0 has no free slot")]
fn a_push_beyond_the_slots_of_a_mailbox_panics() {
    let (mut dispatcher, mailboxes) = dispatcher(1);
    let mut taken = Vec::new();
    for _ in 0..SLOTS {
        dispatcher.push(0, Box::new(0_u64));
        taken.push(mailboxes.take(0, 0));
    }
    dispatcher.push(0, Box::new(0_u64));
}

#[test]
fn a_panic_of_a_worker_returns_its_item() {
    let (mut dispatcher, mailboxes) = dispatcher(1);
    dispatcher.push(0, Box::new(1_u64));
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let mut taken = mailboxes.take(0, 0).expect("it was given");
        *taken = 2;
        panic!("as planned");
    }));
    assert!(panic.is_err());
    assert_eq!(dispatcher.poll_returned().map(|back| *back.item), Some(2));
}

/// Items in each state, in both phases.
#[test]
fn the_last_side_drops_the_items_that_are_left() {
    let count = Arc::default();
    for phases in 0..4 {
        let (mut dispatcher, mailboxes) = dispatcher(2);
        for number in 0..SLOTS as u64 * phases {
            dispatcher.push(0, Counted::new(&count, number));
            drop(mailboxes.take(0, 0));
            assert_eq!(
                dispatcher.poll_returned().map(|back| back.item.1),
                Some(number)
            );
            assert!(dispatcher.poll_returned().is_none());
        }
        let other_worker = mailboxes.clone();
        for number in 0..4 {
            dispatcher.push(0, Counted::new(&count, number));
        }
        dispatcher.push(1, Counted::new(&count, 4));
        assert_eq!(count.load(Ordering::Relaxed), 5);
        drop(mailboxes.take(0, 0));
        drop(mailboxes.take(0, 0));
        drop(dispatcher.poll_returned());
        // Now one is back and seen, one back and not seen, one taken, two given.
        let taken = mailboxes.take(0, 0);
        drop(dispatcher);
        assert_eq!(count.load(Ordering::Relaxed), 4);
        drop(taken);
        drop(mailboxes);
        assert!(!other_worker.is_empty(1));
        drop(other_worker);
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }
}

#[derive(Debug, TypeGenerator)]
enum Step {
    Give(u8),
    Take(u8, u8),
    Finish(u8),
    TakeBack,
}

/// Steps in any order, compared with queues.
#[test]
fn random_steps_agree_with_a_queue_model() {
    const MAILBOXES: usize = 3;
    bolero::check!().with_type::<Vec<Step>>().for_each(|steps| {
        let (mut dispatcher, mailboxes) = dispatcher(MAILBOXES);
        let mut given: [VecDeque<u64>; MAILBOXES] = Default::default();
        let mut taken: Vec<ItemGuard<'_, u64>> = Vec::new();
        let (mut done, mut outstanding, mut next) = (Vec::new(), [0; MAILBOXES], 0);
        for step in steps {
            match step {
                Step::Give(mailbox) => {
                    let mailbox = usize::from(*mailbox) % MAILBOXES;
                    if outstanding[mailbox] < SLOTS {
                        outstanding[mailbox] += 1;
                        dispatcher.push(mailbox, Box::new(next));
                        given[mailbox].push_back(next);
                        next += 1;
                    }
                }
                Step::Take(mailbox, first) => {
                    let mailbox = usize::from(*mailbox) % MAILBOXES;
                    assert_eq!(mailboxes.is_empty(mailbox), given[mailbox].is_empty());
                    let one = mailboxes.take(mailbox, usize::from(*first));
                    assert_eq!(one.is_none(), given[mailbox].is_empty());
                    if let Some(one) = one {
                        given[mailbox].retain(|number| *number != *one);
                        taken.push(one);
                    }
                }
                Step::Finish(which) if !taken.is_empty() => {
                    let one = taken.swap_remove(usize::from(*which) % taken.len());
                    done.push(*one);
                }
                Step::Finish(_) => {}
                Step::TakeBack => {
                    if let Some(back) = dispatcher.poll_returned() {
                        outstanding[back.mailbox] -= 1;
                        let at = done.iter().position(|number| *number == *back.item);
                        done.swap_remove(at.expect("it was done, and not seen before"));
                    }
                }
            }
        }
        // Two passes: one may be under way.
        for _ in 0..2 {
            while let Some(back) = dispatcher.poll_returned() {
                done.retain(|number| *number != *back.item);
            }
        }
        assert!(done.is_empty());
    });
}

/// Two workers that take from both mailboxes; every item is changed once and comes back once.
#[test]
fn no_item_is_lost_or_doubled_between_threads() {
    let many = if cfg!(miri) { 200 } else { 20_000 };
    let (mut dispatcher, mailboxes) = dispatcher::<u64>(2);
    std::thread::scope(|scope| {
        for own in 0..2 {
            let mailboxes = mailboxes.clone();
            scope.spawn(move || {
                let mut first = 0;
                loop {
                    let taken = mailboxes
                        .take(own, first)
                        .or_else(|| mailboxes.take(1 - own, 0));
                    let Some(mut taken) = taken else {
                        std::thread::yield_now();
                        continue;
                    };
                    if *taken == u64::MAX {
                        return;
                    }
                    *taken += 1;
                    first = taken.slot() + 1;
                }
            });
        }
        let (mut sent, mut back, mut load) = (0, vec![0_u8; many], [0; 2]);
        while back.iter().map(|times| usize::from(*times)).sum::<usize>() < many {
            while let Some(mailbox) = (0..2).find(|mailbox| load[*mailbox] < SLOTS)
                && sent < many
            {
                load[mailbox] += 1;
                dispatcher.push(mailbox, Box::new(2 * sent as u64));
                sent += 1;
            }
            while let Some(one) = dispatcher.poll_returned() {
                load[one.mailbox] -= 1;
                assert_eq!(*one.item % 2, 1, "it was changed once");
                back[*one.item as usize / 2] += 1;
            }
            std::thread::yield_now();
        }
        assert!(back.iter().all(|times| *times == 1));
        dispatcher.push(0, Box::new(u64::MAX));
        dispatcher.push(1, Box::new(u64::MAX));
    });
}
