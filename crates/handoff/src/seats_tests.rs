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
fn items_are_taken_in_order_lap_after_lap() {
    let (mut desk, seats) = desk(2);
    let (mut next, mut first) = (0_u64, 0);
    for round in 0..100 {
        let many = round % SLOTS + 1;
        for number in 0..many as u64 {
            desk.give(1, Box::new(next + number));
        }
        assert!(seats.is_empty(0) && !seats.is_empty(1));
        assert!(desk.take_back().is_none(), "nobody has taken any");
        for number in 0..many as u64 {
            let mut taken = seats.take(1, first).expect("it was given");
            assert_eq!(*taken, next + number);
            *taken += 1000;
            first = taken.slot() + 1;
        }
        assert!(seats.take(1, first).is_none());
        let mut back: Vec<u64> = std::iter::from_fn(|| desk.take_back())
            .map(|back| {
                assert_eq!(back.seat, 1);
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
    let (mut desk, seats) = desk(1);
    desk.give(0, Box::new(0_u64));
    let stuck = seats.take(0, 0).expect("it was given");
    for number in 1..50 {
        desk.give(0, Box::new(number));
        let other = seats.take(0, 0).expect("it was given");
        assert_ne!(other.slot(), stuck.slot());
        drop(other);
        let back = desk.take_back().expect("it came back");
        assert_eq!((*back.item, back.seat), (number, 0));
        assert!(desk.take_back().is_none());
    }
    drop(stuck);
    assert_eq!(desk.take_back().map(|back| *back.item), Some(0));
}

#[test]
fn one_look_finds_what_is_there_and_ends() {
    let (mut desk, seats) = desk::<u64>(70);
    for seat in [0, 63, 64, 69] {
        desk.give(seat, Box::new(seat as u64));
        desk.give(seat, Box::new(seat as u64));
        drop(seats.take(seat, 0));
    }
    desk.prefetch();
    let found = std::iter::from_fn(|| desk.take_back()).map(|back| *back.item);
    assert_eq!(found.collect::<Vec<_>>(), [0, 63, 64, 69]);
    // A seat that the look has passed is for the next one.
    drop(seats.take(0, 0));
    drop(seats.take(69, 0));
    assert_eq!(desk.take_back().map(|back| back.seat), Some(0));
    drop(seats.take(63, 0));
    assert_eq!(desk.take_back().map(|back| back.seat), Some(63));
    desk.give(0, Box::new(0));
    drop(seats.take(0, 0));
    assert_eq!(desk.take_back().map(|back| back.seat), Some(69));
    assert!(desk.take_back().is_none());
    assert_eq!(desk.take_back().map(|back| back.seat), Some(0));
}

#[test]
#[should_panic(expected = "seat 0 has no free slot")]
fn a_seat_has_so_many_slots() {
    let (mut desk, seats) = desk(1);
    for _ in 0..SLOTS {
        desk.give(0, Box::new(0_u64));
        // Taken is not back.
        std::mem::forget(seats.take(0, 0));
    }
    desk.give(0, Box::new(0_u64));
}

#[test]
fn a_panic_of_who_took_an_item_gives_it_back() {
    let (mut desk, seats) = desk(1);
    desk.give(0, Box::new(1_u64));
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let mut taken = seats.take(0, 0).expect("it was given");
        *taken = 2;
        panic!("as planned");
    }));
    assert!(panic.is_err());
    assert_eq!(desk.take_back().map(|back| *back.item), Some(2));
}

/// In each state that an item can be in, with laps of both kinds.
#[test]
fn whoever_is_left_drops_what_is_left() {
    let count = Arc::default();
    for laps in 0..4 {
        let (mut desk, seats) = desk(2);
        for number in 0..SLOTS as u64 * laps {
            desk.give(0, Counted::new(&count, number));
            drop(seats.take(0, 0));
            assert_eq!(desk.take_back().map(|back| back.item.1), Some(number));
            assert!(desk.take_back().is_none());
        }
        let other_worker = seats.clone();
        for number in 0..4 {
            desk.give(0, Counted::new(&count, number));
        }
        desk.give(1, Counted::new(&count, 4));
        assert_eq!(count.load(Ordering::Relaxed), 5);
        drop(seats.take(0, 0));
        drop(seats.take(0, 0));
        drop(desk.take_back());
        // Now one is back and seen, one back and not seen, one taken, two given.
        let taken = seats.take(0, 0);
        drop(desk);
        assert_eq!(count.load(Ordering::Relaxed), 4);
        drop(taken);
        drop(seats);
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

/// Steps in any order, against queues.
#[test]
fn random_steps_agree_with_a_model() {
    const SEATS: usize = 3;
    bolero::check!().with_type::<Vec<Step>>().for_each(|steps| {
        let (mut desk, seats) = desk(SEATS);
        let mut given: [VecDeque<u64>; SEATS] = Default::default();
        let mut taken: Vec<Taken<'_, u64>> = Vec::new();
        let (mut done, mut outstanding, mut next) = (Vec::new(), [0; SEATS], 0);
        for step in steps {
            match step {
                Step::Give(seat) => {
                    let seat = usize::from(*seat) % SEATS;
                    if outstanding[seat] < SLOTS {
                        outstanding[seat] += 1;
                        desk.give(seat, Box::new(next));
                        given[seat].push_back(next);
                        next += 1;
                    }
                }
                Step::Take(seat, first) => {
                    let seat = usize::from(*seat) % SEATS;
                    assert_eq!(seats.is_empty(seat), given[seat].is_empty());
                    let one = seats.take(seat, usize::from(*first));
                    assert_eq!(one.is_none(), given[seat].is_empty());
                    if let Some(one) = one {
                        given[seat].retain(|number| *number != *one);
                        taken.push(one);
                    }
                }
                Step::Finish(which) if !taken.is_empty() => {
                    let one = taken.swap_remove(usize::from(*which) % taken.len());
                    done.push(*one);
                }
                Step::Finish(_) => {}
                Step::TakeBack => {
                    if let Some(back) = desk.take_back() {
                        outstanding[back.seat] -= 1;
                        let at = done.iter().position(|number| *number == *back.item);
                        done.swap_remove(at.expect("it was done, and not seen before"));
                    }
                }
            }
        }
        // Two looks: one may be under way.
        for _ in 0..2 {
            while let Some(back) = desk.take_back() {
                done.retain(|number| *number != *back.item);
            }
        }
        assert!(done.is_empty());
    });
}

/// Two workers that take from both seats; every item is changed once and comes back once.
#[test]
fn between_threads_nothing_is_lost_or_doubled() {
    let many = if cfg!(miri) { 200 } else { 20_000 };
    let (mut desk, seats) = desk::<u64>(2);
    std::thread::scope(|scope| {
        for own in 0..2 {
            let seats = seats.clone();
            scope.spawn(move || {
                let mut first = 0;
                loop {
                    let taken = seats.take(own, first).or_else(|| seats.take(1 - own, 0));
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
            while let Some(seat) = (0..2).find(|seat| load[*seat] < SLOTS)
                && sent < many
            {
                load[seat] += 1;
                desk.give(seat, Box::new(2 * sent as u64));
                sent += 1;
            }
            while let Some(one) = desk.take_back() {
                load[one.seat] -= 1;
                assert_eq!(*one.item % 2, 1, "it was changed once");
                back[*one.item as usize / 2] += 1;
            }
            std::thread::yield_now();
        }
        assert!(back.iter().all(|times| *times == 1));
        desk.give(0, Box::new(u64::MAX));
        desk.give(1, Box::new(u64::MAX));
    });
}
