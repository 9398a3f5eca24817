//! Random scenarios on all cores until the time is over, or one of them breaks a promise.

use std::io::{self, IsTerminal};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use starling_sim::harness::{Failure, Scenario, run as run_scenario, shrink};
use starling_sim::rng::Rng;

use crate::error::CliError;
use crate::output;

/// Runs that shrinking may take.
const SHRINKING_RUNS: usize = 500;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// How long to hunt.
    #[arg(long, default_value_t = 1.0, value_parser = parse_minutes)]
    minutes: f64,
    /// The first seed; the others follow it. Drawn from the clock unless given.
    #[arg(long)]
    seed: Option<u64>,
    /// Threads; all cores unless told otherwise.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

fn parse_minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| "expected a number".to_string())?;
    if !(0.0..=100_000.0).contains(&minutes) {
        return Err("expected 0 to 100000".into());
    }
    Ok(minutes)
}

/// What all threads have seen together.
#[derive(Default)]
struct Sum {
    runs: AtomicU64,
    answered: AtomicU64,
    dropped: AtomicU64,
    virtual_ms: AtomicU64,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let first = arguments.seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let nanos = now.map_or(0, |since| since.as_nanos() as u64);
        Rng::new(nanos).next_u64() >> 16
    });
    let threads = arguments.threads.map_or_else(
        || thread::available_parallelism().map_or(1, usize::from),
        usize::from,
    );
    let end = Instant::now() + Duration::from_secs_f64(arguments.minutes * 60.0);
    eprintln!("hunting from seed {first} on {threads} threads");
    let (next, stop) = (AtomicU64::new(first), AtomicBool::new(false));
    let (sum, found) = (Sum::default(), Mutex::new(None));
    let bar = progress_bar();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) && Instant::now() < end {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if let Some(failure) = look(seed, &sum) {
                        stop.store(true, Ordering::Relaxed);
                        let mut found = found.lock().expect("no thread panics with it");
                        found.get_or_insert(failure);
                    }
                    bar.set_message(format!("{} runs", sum.runs.load(Ordering::Relaxed)));
                }
            });
        }
    });
    bar.finish_and_clear();
    let summary = format!(
        "{} runs from seed {first}: {} calls answered, {} datagrams lost to faults, {:.1} s of virtual time\n",
        sum.runs.into_inner(),
        sum.answered.into_inner(),
        sum.dropped.into_inner(),
        sum.virtual_ms.into_inner() as f64 / 1e3,
    );
    output::print(&summary)?;
    match found.into_inner().expect("no thread panics with it") {
        None => Ok(()),
        Some(failure) => {
            let seed = failure.scenario.seed;
            eprintln!("seed {seed} breaks a promise; shrinking it");
            let smallest = shrink(failure, None, SHRINKING_RUNS);
            eprintln!("replay: starling sim run random --seed {seed}");
            Err(CliError::Promise(smallest))
        }
    }
}

/// Runs one seed.
fn look(seed: u64, sum: &Sum) -> Option<Box<Failure>> {
    let report = match run_scenario(&Scenario::from_seed(seed)) {
        Ok(report) => report,
        Err(failure) => return Some(failure),
    };
    let add = |total: &AtomicU64, count: u64| total.fetch_add(count, Ordering::Relaxed);
    add(&sum.runs, 1);
    add(&sum.answered, report.outcomes.answered);
    add(&sum.dropped, report.counters.dropped.values().sum());
    add(&sum.virtual_ms, report.virtual_ns / 1_000_000);
    None
}

fn progress_bar() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
    ProgressBar::new_spinner().with_style(style.expect("the template is a constant"))
}
