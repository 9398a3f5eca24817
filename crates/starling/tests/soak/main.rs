//! Soak: callers of all kinds share the endpoint of each scheme while their threads, the server's and
//! the keepers' are preempted at random. No wake-up may be lost: a caller that waits for 20 s has lost
//! one.
//!
//! ```text
//!  rounds of a second: server, three channels, a dozen threads of callers ─▶ all calls end ─▶ no thread
//!                          ▲ preempted at random                              or descriptor is left
//! ```
//!
//! `cargo xtask soak --minutes N --seed S` runs it for long; as a test it takes some seconds. A seed
//! decides what callers do, not what the kernel does: the same seed makes a failure likely, not sure.
//!
//! | module | holds |
//! |---|---|
//! | `callers` | the kinds of callers |
//! | `executor` | an executor made by hand |
//! | `preemption` | what happens to threads |
//! | `watchdog` | who waits too long; progress |
//! | `world` | the channels that callers share, and what became of their calls |

mod callers;
#[path = "../common/mod.rs"]
mod common;
mod executor;
mod preemption;
mod random;
mod watchdog;
mod world;

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::{any_addresses, server};
use random::Random;
use watchdog::{Watchdog, fail, fail_at_panics, say, threads};
use world::{Tally, World};

/// How long a round's callers begin calls.
const ROUND: Duration = Duration::from_millis(1_000);

/// A number from the environment.
fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}")),
    )
}

fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    // Short enough to be typed.
    now.expect("a clock after 1970").as_micros() as u64 % 1_000_000_000
}

/// Threads and open descriptors of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    threads: usize,
    descriptors: usize,
}

impl Held {
    fn now() -> Self {
        let count = |path| std::fs::read_dir(path).map_or(0, Iterator::count);
        Self {
            threads: count("/proc/self/task"),
            descriptors: count("/proc/self/fd"),
        }
    }

    /// Waits until no more is held than now.
    fn restored(self, seed: u64) {
        let begun = Instant::now();
        loop {
            let now = Self::now();
            if now.threads <= self.threads && now.descriptors <= self.descriptors {
                return;
            }
            if begun.elapsed() > Duration::from_secs(20) {
                let links = std::fs::read_dir("/proc/self/fd").expect("descriptors");
                let links = links
                    .flatten()
                    .map(|entry| std::fs::read_link(entry.path()));
                let links: Vec<_> = links.collect();
                let threads = threads();
                fail(
                    seed,
                    &format!("left: {now:?} after {self:?}\n{threads}{links:?}"),
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// One round. Returns how many echoes the server ran.
fn round(
    seed: u64,
    length: Duration,
    watchdog: &Arc<Watchdog>,
    tally: &Arc<Tally>,
    held: Option<Held>,
) -> u64 {
    let mut random = Random::new(seed, 0);
    watchdog.begin_round(seed);
    preemption::install(seed);
    let addresses = any_addresses();
    let (builder, gate) = server(&addresses.each_ref().map(String::as_str));
    let server = builder.build().expect("a server").spawn();
    let server = server.expect("threads");
    let world = World::new(seed, watchdog, tally, server.addresses(), &gate);
    let world = Arc::new(world);
    let place = watchdog.place("the end of a round");
    let waiting = OnceLock::new();
    watchdog.watch_over(&world);
    std::thread::scope(|scope| {
        // Few callers heal nothing that others have lost, many meet more often.
        for _ in 0..1 + random.below(13) {
            let (world, random) = (&world, random.fork());
            scope.spawn(move || callers::act(world, random));
        }
        let (of_gate, of_hog, of_preemptor) = (random.fork(), random.fork(), random.fork());
        let world = &world;
        scope.spawn(move || world.swing_gate(of_gate));
        scope.spawn(move || preemption::hog(&world.ended, of_hog));
        scope.spawn(move || preemption::preempt(&world.ended, of_preemptor));
        std::thread::sleep(length);
        world.ended.store(true, Ordering::Relaxed);
        waiting.get_or_init(|| place.waiting(0));
    });
    let mut world = world;
    let begun = Instant::now();
    let world = loop {
        // A runtime that was shut down in the background drops its tasks a little later.
        match Arc::try_unwrap(world) {
            Ok(world) => break world,
            Err(shared) => world = shared,
        }
        if begun.elapsed() > Duration::from_secs(20) {
            fail(seed, "tasks of a runtime that was shut down are left");
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    world.settle();
    server
        .shutdown(Duration::from_secs(20))
        .expect("no device fails");
    if let Some(held) = held {
        held.restored(seed);
    }
    drop(waiting);
    gate.runs.load(Ordering::SeqCst)
}

#[test]
fn no_wake_up_is_lost_under_random_preemption() {
    let length = Duration::from_secs(setting("STARLING_SOAK_SECONDS").unwrap_or(2));
    let first = setting("STARLING_SOAK_SEED").unwrap_or_else(fresh_seed);
    println!("seeds: {first} and up");
    let (watchdog, tally) = (Arc::new(Watchdog::default()), Arc::new(Tally::default()));
    fail_at_panics(&watchdog);
    std::thread::scope(|scope| {
        scope.spawn(|| watchdog.watch(&tally));
        // What is made once and stays.
        let mut runs = round(first, Duration::ZERO, &watchdog, &tally, None);
        let (held, begun) = (Held::now(), Instant::now());
        let mut seed = first;
        while begun.elapsed() < length {
            let left = length.saturating_sub(begun.elapsed());
            runs += round(seed, ROUND.min(left), &watchdog, &tally, Some(held));
            if let Err(what) = tally.check(runs) {
                fail(seed, &what);
            }
            tally.rounds.fetch_add(1, Ordering::Relaxed);
            seed = seed.wrapping_add(1);
        }
        watchdog.stop();
    });
    say(&format!("{tally}"));
}
