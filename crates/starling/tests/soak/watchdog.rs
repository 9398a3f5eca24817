//! Who waits for a call, since when, and the end of the process if one waits too long.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use starling::Channel;

use crate::world::{SCHEMES, Tally, World};

/// A caller that waits longer has lost a wake-up. Much more than any load explains.
const BOUND: Duration = Duration::from_secs(20);

/// Looks in a row that find a caller waiting while every thread of the process sleeps: whatever it
/// waits for, nobody does it. No load makes this so, for a thread that wants a core does not sleep.
/// 400 ms, for keepalives go out every 500 ms, and whoever sends one finds what was forgotten.
const QUIET_LOOKS: u32 = 20;

/// Time between two looks.
const STEP: Duration = Duration::from_millis(20);

/// The longest wait that has ended.
pub(crate) static LONGEST_MS: AtomicU64 = AtomicU64::new(0);

/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);

/// A caller, for the watchdog.
pub(crate) struct Place {
    kind: &'static str,
    begun: Instant,
    /// Milliseconds after `begun`, plus 1. 0: it does not wait.
    waits_since: AtomicU64,
    scheme: AtomicU8,
}

impl Place {
    /// The caller waits for a call while what this returns lives.
    pub(crate) fn waiting(&self, scheme: usize) -> Waiting<'_> {
        self.scheme.store(scheme as u8, Ordering::Relaxed);
        let now = self.begun.elapsed().as_millis() as u64 + 1;
        self.waits_since.store(now, Ordering::Relaxed);
        Waiting(self)
    }

    /// How long it has waited by now.
    fn waited(&self) -> Duration {
        match self.waits_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => self
                .begun
                .elapsed()
                .saturating_sub(Duration::from_millis(since)),
        }
    }

    fn scheme(&self) -> &'static str {
        SCHEMES[usize::from(self.scheme.load(Ordering::Relaxed))]
    }
}

pub(crate) struct Waiting<'a>(&'a Place);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let waited = self.0.waited().as_millis() as u64;
        LONGEST_MS.fetch_max(waited, Ordering::Relaxed);
        self.0.waits_since.store(0, Ordering::Relaxed);
    }
}

/// What the watchdog knows of the round that runs.
#[derive(Default)]
struct Round {
    places: Vec<Weak<Place>>,
    world: Weak<World>,
}

#[derive(Default)]
pub(crate) struct Watchdog {
    seed: AtomicU64,
    round: Mutex<Round>,
    stopped: AtomicBool,
}

impl Watchdog {
    pub(crate) fn begin_round(&self, seed: u64) {
        self.seed.store(seed, Ordering::Relaxed);
        *self.round.lock().expect("no panic") = Round::default();
    }

    /// Says whose channels to ask if somebody waits too long.
    pub(crate) fn watch_over(&self, world: &Arc<World>) {
        self.round.lock().expect("no panic").world = Arc::downgrade(world);
    }

    pub(crate) fn place(&self, kind: &'static str) -> Arc<Place> {
        let place = Arc::new(Place {
            kind,
            begun: Instant::now(),
            waits_since: AtomicU64::new(0),
            scheme: AtomicU8::new(0),
        });
        let mut round = self.round.lock().expect("no panic");
        if round.places.len() == round.places.capacity() {
            round.places.retain(|place| place.strong_count() > 0);
        }
        round.places.push(Arc::downgrade(&place));
        place
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Watches until it is stopped.
    pub(crate) fn watch(&self, tally: &Tally) {
        let begun = Instant::now();
        let (mut next, mut quiet_looks) = (PROGRESS, 0);
        while !self.stopped.load(Ordering::Relaxed) {
            std::thread::sleep(STEP);
            let round = self.round.lock().expect("no panic");
            let places: Vec<Arc<Place>> = round.places.iter().filter_map(Weak::upgrade).collect();
            let world = round.world.clone();
            drop(round);
            let seed = self.seed.load(Ordering::Relaxed);
            let longest = places.iter().max_by_key(|place| place.waited());
            let is_long = longest.is_some_and(|place| place.waited() > STEP);
            quiet_looks = match is_long && all_others_sleep() {
                true => quiet_looks + 1,
                false => 0,
            };
            let is_lost =
                |place: &&Arc<Place>| place.waited() > BOUND || quiet_looks >= QUIET_LOOKS;
            if let Some(place) = longest.filter(is_lost) {
                let channels = world
                    .upgrade()
                    .map_or_else(Vec::new, |world| world.channels());
                fail(seed, &lost(place, &places, &channels));
            }
            if begun.elapsed() >= next {
                next += PROGRESS;
                say(&format!(
                    "{} s, seed {seed}: {tally}",
                    begun.elapsed().as_secs()
                ));
            }
        }
    }
}

/// Not by `println!`, whose output a test keeps until its end.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "soak: {line}");
}

/// Ends the process, for nothing can end those that wait.
pub(crate) fn fail(seed: u64, what: &str) -> ! {
    say(&format!(
        "FAILED: {what}\nto see it again: cargo xtask soak --seed {seed}"
    ));
    std::process::exit(1);
}

fn lost(place: &Place, places: &[Arc<Place>], channels: &[Channel]) -> String {
    let mut text = format!(
        "a caller waits for {:?} over {}: {}\nthreads:\n{}",
        place.waited(),
        place.scheme(),
        place.kind,
        threads()
    );
    for place in places.iter().filter(|place| place.waited() > STEP) {
        let (kind, scheme) = (place.kind, place.scheme());
        let _ = writeln!(text, "waits for {:?} over {scheme}: {kind}", place.waited());
    }
    for channel in channels {
        let _ = writeln!(
            text,
            "{channel:?}, outstanding: {}",
            channel.calls_outstanding()
        );
        let (answer, stats) = mpsc::channel();
        let channel = channel.clone();
        std::thread::spawn(move || drop(answer.send(channel.stats())));
        let _ = match stats.recv_timeout(Duration::from_secs(5)) {
            Ok(stats) => writeln!(text, "{stats:?}"),
            Err(_) => writeln!(text, "its stats do not come either"),
        };
    }
    std::thread::sleep(Duration::from_secs(1));
    let ended = if place.waited() < Duration::from_secs(1) {
        "ended"
    } else {
        "did not end"
    };
    let _ = writeln!(text, "after its stats were asked for, the call {ended}");
    text
}

/// Has a panic of any thread, but those that callers want, end the process at once: a caller that is
/// gone may hide what was wrong.
pub(crate) fn fail_at_panics(watchdog: &Arc<Watchdog>) {
    let watchdog = Arc::downgrade(watchdog);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        let Some(watchdog) = watchdog.upgrade() else {
            return;
        };
        fail(watchdog.seed.load(Ordering::Relaxed), "a thread panicked");
    }));
}

/// Whether no thread but the calling one runs or wants to.
fn all_others_sleep() -> bool {
    let entries = std::fs::read_dir("/proc/self/task").expect("a process has threads");
    let stats = entries
        .flatten()
        .map(|entry| std::fs::read_to_string(entry.path().join("stat")));
    // The state follows the name in parentheses. A thread that has just ended did not sleep.
    let sleeps = |stat: &String| {
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('S'))
    };
    stats
        .filter(|stat| !stat.as_ref().is_ok_and(sleeps))
        .count()
        <= 1
}

/// The threads of this process: name, state and where they sleep.
pub(crate) fn threads() -> String {
    let mut text = String::new();
    let entries = std::fs::read_dir("/proc/self/task").expect("a process has threads");
    for entry in entries.flatten() {
        let read = |name: &str| {
            let text = std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
            text.trim().to_owned()
        };
        let status = read("status");
        let state = status
            .lines()
            .find(|line| line.starts_with("State"))
            .unwrap_or("");
        let _ = writeln!(text, "  {} {state} {}", read("comm"), read("wchan"));
    }
    text
}
