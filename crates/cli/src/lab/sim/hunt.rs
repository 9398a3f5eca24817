//! `starling sim hunt`: random runs on all cores until the time is over or a run breaks a promise.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, IsTerminal};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use starling_sim::harness::{Branches, Failure, PlantedBug, Report, RunPlan, run_with_bug, shrink};

use crate::error::CliError;
use crate::output;

/// Runs that shrinking may take.
const SHRINKING_RUNS: usize = 500;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// How long to hunt.
    #[arg(long, default_value_t = 1.0, value_parser = parse_minutes)]
    minutes: f64,
    /// The first seed; the others follow it. The hunt prints it [default: a random number].
    #[arg(long)]
    seed: Option<u64>,
    /// The number of threads [default: one for each core].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Fails if a branch that a promise depends on was never taken: for hunts of an hour.
    #[arg(long)]
    all_branches: bool,
    /// Only runs with hostile hosts, which are a tenth of all.
    #[arg(long)]
    hostile: bool,
    /// Only runs in which threads share the endpoints of clients, which are an eighth of all.
    #[arg(long)]
    shared: bool,
    /// Plants a deliberate bug, to see that a checker finds it: handler-twice, for example.
    #[arg(long, value_name = "BUG", value_parser = super::options::parse_planted_bug)]
    plant: Option<PlantedBug>,
}

fn parse_minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| "expected a number".to_string())?;
    if !(0.0..=100_000.0).contains(&minutes) {
        return Err("expected 0 to 100000".into());
    }
    Ok(minutes)
}

/// Counts over the runs of all threads.
#[derive(Debug, Default)]
struct Sum {
    runs: u64,
    answered: u64,
    failed: u64,
    sent: u64,
    virtual_ns: u64,
    /// Features of the plans that the seeds drew, by kind.
    drawn: BTreeMap<String, u64>,
    /// Datagrams that a fault or a switch changed, by kind of change.
    struck: BTreeMap<String, u64>,
    /// Branches that a promise depends on.
    branches: Branches,
}

impl Sum {
    fn add(&mut self, plan: &RunPlan, report: &Report) {
        let (outcomes, counters) = (&report.outcomes, &report.counters);
        self.runs += 1;
        self.answered += outcomes.answered;
        self.failed += outcomes.failed;
        self.sent += counters.sent;
        self.virtual_ns += report.virtual_ns;
        self.branches.add(&report.branches);
        for (kind, count) in plan.coverage() {
            *self.drawn.entry(kind).or_default() += count;
        }
        let mut struck = |kind: String, count| *self.struck.entry(kind).or_default() += count;
        for (cause, &count) in &counters.dropped {
            struck(format!("dropped: {cause:?}"), count);
        }
        for (reason, &count) in &counters.frames.dropped {
            struck(format!("dropped as a frame: {reason:?}"), count);
        }
        struck("duplicated".into(), counters.duplicated);
        struck("corrupted".into(), counters.corrupted);
        struck("misrouted".into(), counters.misrouted);
        struck("held back".into(), counters.delayed);
        struck("marked by a switch".into(), report.marked);
    }

    /// The counts as a table. `cpu` is the processor time of all threads.
    fn text(&self, first: u64, cpu: Duration) -> String {
        let mut text = format!(
            "{} runs from seed {first}: {} calls answered, {} failed, {} datagrams, {:.1} h of virtual \
             time in {:.2} core-hours\n",
            self.runs,
            self.answered,
            self.failed,
            self.sent,
            self.virtual_ns as f64 / 3.6e12,
            cpu.as_secs_f64() / 3600.0,
        );
        let mut list = |title: &str, counts: &mut dyn Iterator<Item = (&str, u64)>| {
            let _ = writeln!(text, "  {title}");
            for (kind, count) in counts {
                let _ = writeln!(text, "    {kind:40} {count:>12}");
            }
        };
        for (title, counts) in [("drawn", &self.drawn), ("datagrams", &self.struck)] {
            list(
                title,
                &mut counts.iter().map(|(kind, count)| (kind.as_str(), *count)),
            );
        }
        list("branches", &mut self.branches.counts());
        text
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    // Any random number can be the first seed.
    let first = arguments
        .seed
        .unwrap_or_else(|| RandomState::new().hash_one(0u8) >> 16);
    let threads = arguments.threads.map_or_else(
        || thread::available_parallelism().map_or(1, usize::from),
        usize::from,
    );
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(arguments.minutes * 60.0);
    eprintln!("hunting from seed {first} on {threads} threads");
    let (next, stop) = (AtomicU64::new(first), AtomicBool::new(false));
    let (sum, found) = (Mutex::new(Sum::default()), Mutex::new(None));
    let bar = progress_bar();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) && Instant::now() < end {
                    let plan = RunPlan::from_seed(next.fetch_add(1, Ordering::Relaxed));
                    let is_left_out = arguments.hostile && plan.attacks.is_empty()
                        || arguments.shared && !plan.threads;
                    if is_left_out {
                        continue;
                    }
                    match run_with_bug(&plan, arguments.plant) {
                        Ok(report) => {
                            let mut sum = sum.lock().expect("no thread panics with it");
                            sum.add(&plan, &report);
                            bar.set_message(format!("{} runs", sum.runs));
                        }
                        Err(failure) => {
                            stop.store(true, Ordering::Relaxed);
                            let mut found = found.lock().expect("no thread panics with it");
                            found.get_or_insert(failure);
                        }
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    let cpu = cpu_time().unwrap_or_default();
    let sum = sum.into_inner().expect("no thread panics with it");
    output::print(&sum.text(first, cpu))?;
    match found.into_inner().expect("no thread panics with it") {
        None if arguments.all_branches => all_taken(&sum.branches),
        None => Ok(()),
        Some(failure) => Err(CliError::Promise(smallest(failure, arguments.plant))),
    }
}

/// An error that names the branches that no run took.
fn all_taken(branches: &Branches) -> Result<(), CliError> {
    match &branches.untaken()[..] {
        [] => Ok(()),
        untaken => Err(CliError::Untaken(untaken.join(", "))),
    }
}

/// Shrinks the run of a failure.
fn smallest(failure: Box<Failure>, plant: Option<PlantedBug>) -> Box<Failure> {
    let (seed, violation) = (failure.plan.seed, &failure.violation);
    eprintln!("seed {seed} breaks a promise: {violation}; shrinking it");
    shrink(failure, plant, SHRINKING_RUNS)
}

/// Processor time of this process so far, in user mode.
fn cpu_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name may have blanks. Of the fields behind it, `state` is the first, `utime` the twelfth.
    let ticks: u64 = stat.rsplit_once(") ")?.1.split(' ').nth(11)?.parse().ok()?;
    // Linux reports it to programs in hundredths of a second.
    Some(Duration::from_millis(ticks * 10))
}

fn progress_bar() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
    ProgressBar::new_spinner().with_style(style.expect("the template is a constant"))
}
