//! The kinds of callers: each is a function that makes some calls, in its own way.

use std::future::Future;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use futures::future::{join_all, select_all};
use starling::{Channel, block_on};
use tokio::runtime::{Builder, Runtime};

use crate::common::LONG;
use crate::executor;
use crate::preemption::{choose_priority, disturb, nap_sometimes};
use crate::random::Random;
use crate::watchdog::Place;
use crate::world::{Call, SCHEMES, World};

type Kind = fn(&Arc<World>, &mut Random);

const KINDS: [Kind; 13] = [
    wait_in_a_thread,
    wait_in_a_thread,
    wait_for_all,
    wait_for_the_first,
    drop_midway,
    never_poll,
    panic_in_a_waker,
    hand_to_another_thread,
    by_hand,
    in_a_runtime,
    in_a_runtime_that_is_shut_down,
    renew_channels,
    have_an_endpoint,
];

/// One thread of callers, until the round ends.
pub(crate) fn act(world: &Arc<World>, mut random: Random) {
    choose_priority(&mut random);
    while !world.has_ended() {
        random.one_of(&KINDS)(world, &mut random);
    }
}

async fn await_at(place: &Place, call: Call) {
    let _waiting = place.waiting(call.scheme);
    call.await;
}

fn wait_in_a_thread(world: &Arc<World>, random: &mut Random) {
    let place = world.watchdog.place("a thread in `wait`");
    for _ in 0..random.below(50) {
        block_on(await_at(&place, world.call(random)));
        disturb(random);
    }
}

/// Calls of several endpoints at once, of which the thread drives one.
fn wait_for_all(world: &Arc<World>, random: &mut Random) {
    let place = world
        .watchdog
        .place("a thread in `block_on` of several calls");
    for _ in 0..random.below(20) {
        let count = 1 + random.below(8);
        let calls: Vec<Call> = (0..count).map(|_| world.call(random)).collect();
        let waiting = place.waiting(calls[0].scheme);
        match random.percent(20) {
            // Waits within a wait.
            true => block_on(async { calls.into_iter().for_each(block_on) }),
            false => drop(block_on(join_all(calls))),
        }
        drop(waiting);
        disturb(random);
    }
}

/// The other calls are dropped when the first one ends.
fn wait_for_the_first(world: &Arc<World>, random: &mut Random) {
    let place = world
        .watchdog
        .place("a thread in `block_on` of the first call of several");
    for _ in 0..random.below(20) {
        let calls: Vec<Call> = (0..1 + random.below(6))
            .map(|_| world.call(random))
            .collect();
        let waiting = place.waiting(calls[0].scheme);
        let ((), _, others) = block_on(select_all(calls));
        drop(waiting);
        disturb(random);
        drop(others);
    }
}

fn drop_midway(world: &Arc<World>, random: &mut Random) {
    for _ in 0..random.below(50) {
        let mut call = pin!(world.call(random));
        for _ in 0..random.below(3) {
            let mut cx = Context::from_waker(Waker::noop());
            if call.as_mut().poll(&mut cx).is_ready() {
                break;
            }
            disturb(random);
        }
    }
}

fn never_poll(world: &Arc<World>, random: &mut Random) {
    let calls: Vec<Call> = (0..random.below(20)).map(|_| world.call(random)).collect();
    std::thread::sleep(random.micros(20_000));
    if random.percent(50) {
        let place = world
            .watchdog
            .place("a thread in `wait` for a call that ran unpolled");
        for call in calls {
            block_on(await_at(&place, call));
        }
    }
}

/// A waker that panics, in the thread that drives.
struct Bomb;

/// What it panics with, without the message of a panic.
pub(crate) struct WantedPanic;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        nap_sometimes();
        resume_unwind(Box::new(WantedPanic));
    }
}

fn panic_in_a_waker(world: &Arc<World>, random: &mut Random) {
    let bomb = Waker::from(Arc::new(Bomb));
    let place = world
        .watchdog
        .place("a thread in `wait` for a call whose first waker panics");
    for _ in 0..random.below(10) {
        let mut call = world.call(random);
        let poll = pin!(&mut call).poll(&mut Context::from_waker(&bomb));
        disturb(random);
        if poll.is_pending() {
            block_on(await_at(&place, call));
        }
    }
}

fn hand_to_another_thread(world: &Arc<World>, random: &mut Random) {
    let mut call = world.call(random);
    if pin!(&mut call)
        .poll(&mut Context::from_waker(Waker::noop()))
        .is_ready()
    {
        return;
    }
    let place = world
        .watchdog
        .place("a thread in `wait` for a call that another one polled");
    let other = std::thread::spawn(move || block_on(await_at(&place, call)));
    disturb(random);
    other.join().unwrap_or_else(|panic| resume_unwind(panic));
}

fn by_hand(world: &Arc<World>, random: &mut Random) {
    let make = |random: &mut Random| {
        let (world, mut random) = (Arc::clone(world), random.fork());
        let place = world.watchdog.place("a future of an executor made by hand");
        async move {
            for _ in 0..random.below(10) {
                await_at(&place, world.call(&mut random)).await;
                disturb(&mut random);
            }
        }
    };
    let futures = (0..random.below(20)).map(|_| make(random)).collect();
    executor::run(futures, random);
}

fn runtime(random: &mut Random) -> Runtime {
    let mut builder = match random.percent(50) {
        true => Builder::new_current_thread(),
        false => Builder::new_multi_thread(),
    };
    let runtime = builder
        .worker_threads(1 + random.below(3) as usize)
        .enable_all()
        .build();
    runtime.expect("a runtime")
}

/// A task that makes calls. It yields, sleeps, or blocks its runtime in between.
async fn make_calls(world: Arc<World>, mut random: Random, calls: u64) {
    let place = world.watchdog.place("a task of a runtime");
    for _ in 0..calls {
        if random.percent(20) {
            let waiting = place.waiting(0);
            let joined = (0..random.below(5)).map(|_| world.call(&mut random));
            join_all(joined.collect::<Vec<_>>()).await;
            drop(waiting);
        } else {
            await_at(&place, world.call(&mut random)).await;
        }
        match random.below(20) {
            0 => tokio::time::sleep(random.micros(3_000)).await,
            1..4 => tokio::task::yield_now().await,
            4..6 => disturb(&mut random),
            _ => {}
        }
    }
}

fn in_a_runtime(world: &Arc<World>, random: &mut Random) {
    let runtime = runtime(random);
    let (tasks, calls) = (1 + random.below(30), 1 + random.below(20));
    runtime.block_on(async {
        let spawn = |_| tokio::spawn(make_calls(Arc::clone(world), random.fork(), calls));
        for task in (0..tasks).map(spawn).collect::<Vec<_>>() {
            task.await.expect("no panic");
        }
    });
}

fn in_a_runtime_that_is_shut_down(world: &Arc<World>, random: &mut Random) {
    let runtime = runtime(random);
    for _ in 0..1 + random.below(30) {
        runtime.spawn(make_calls(Arc::clone(world), random.fork(), u64::MAX));
    }
    let length = random.micros(20_000);
    runtime.block_on(async { tokio::time::sleep(length).await });
    // The runtime stands still: its driver task, too, if it has no other threads.
    std::thread::sleep(random.micros(5_000));
    match random.below(3) {
        0 => runtime.shutdown_background(),
        1 => runtime.shutdown_timeout(LONG),
        _ => drop(runtime),
    }
}

fn renew_channels(world: &Arc<World>, random: &mut Random) {
    for _ in 0..1 + random.below(3) {
        match random.percent(30) {
            true => world.drop_channels(),
            false => world.renew_channel(random),
        }
        std::thread::sleep(random.micros(2_000));
    }
    let place = world.watchdog.place("a thread in `Channel::stats`");
    let scheme = random.below(SCHEMES.len() as u64) as usize;
    let _waiting = place.waiting(scheme);
    world.channel(scheme).stats().expect("an endpoint");
}

/// Calls through an endpoint that begins and ends with them.
fn have_an_endpoint(world: &Arc<World>, random: &mut Random) {
    let place = world
        .watchdog
        .place("a thread in `wait` on its own endpoint");
    let scheme = random.below(SCHEMES.len() as u64) as usize;
    let channel = Channel::builder(&world.addresses[scheme])
        .own_endpoint()
        .lazy();
    let channel = channel.expect("a channel");
    for _ in 0..random.below(10) {
        let call = world.call_through(channel.clone(), scheme, random);
        block_on(await_at(&place, call));
    }
    // The endpoint ends with calls out.
    let call = world.call_through(channel, scheme, random);
    std::thread::sleep(Duration::from_micros(random.below(300)));
    drop(call);
}
