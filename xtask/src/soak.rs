//! `cargo xtask soak`: the test `soak` of the facade, a hunt, and the planted bugs, side by side for minutes or hours.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::planted::{self, Build};
use crate::run::{cargo, command, succeeds};

const HELP: &str = "\
Usage: cargo xtask soak [--minutes N | --hours N] [--seed S]

Three things side by side:

Callers of all kinds (threads, tasks of runtimes, executors, calls that are dropped or never polled)
share the endpoint of each scheme (udp, shm, mem) while all threads are preempted at random. Fails if
a caller waits for 20 s, which is a lost wake-up, if a call ends twice or not at all, or if a thread,
a descriptor or a call is left. Prints progress every 10 s.

A hunt (starling sim hunt) makes random runs of the simulator. Fails if a run breaks a promise; from
an hour on also if a branch that a promise depends on was never taken.

Planted bugs (cargo xtask planted --help), one after the other. Fails if one is not found in ten
minutes.

The time begins when all is built.

  --minutes N   How long; 5 unless set. May be a fraction.
  --hours N     The same in hours.
  --seed S      The callers only, with the first round's seed, as a failure prints it.";

/// How long it runs unless it is told.
const MINUTES: f64 = 5.0;

/// The options of the command line.
#[derive(Debug, PartialEq)]
struct Options {
    minutes: f64,
    seed: Option<u64>,
}

impl Options {
    /// `None`: the command line makes no sense.
    fn parse(arguments: &[&str]) -> Option<Self> {
        let mut options = Self {
            minutes: MINUTES,
            seed: None,
        };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            match *word {
                "--minutes" => options.minutes = words.next()?.parse().ok()?,
                "--hours" => options.minutes = 60.0 * words.next()?.parse::<f64>().ok()?,
                "--seed" => options.seed = Some(words.next()?.parse().ok()?),
                _ => return None,
            }
        }
        (options.minutes > 0.0 && options.minutes.is_finite()).then_some(options)
    }
}

pub(crate) fn run(arguments: &[&str]) -> ExitCode {
    if arguments == ["--help"] {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let Some(options) = Options::parse(arguments) else {
        eprintln!("{HELP}");
        return ExitCode::from(2);
    };
    let succeeded = match options.seed {
        Some(_) => callers(&options),
        None => all(&options),
    };
    match succeeded {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// The callers, the hunt and the planted bugs, side by side. Whether all went well.
fn all(options: &Options) -> bool {
    let built = succeeds(&mut cargo(&[
        "test", "-p", "starling", "--test", "soak", "--no-run",
    ]));
    let build = match Build::new() {
        Ok(build) if built => build,
        Ok(_) => return false,
        Err(error) => {
            eprintln!("{error}");
            return false;
        }
    };
    let end = Instant::now() + Duration::from_secs_f64(options.minutes * 60.0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let planted = scope.spawn(|| planted::run_until(&build, end, &stop));
        let hunt = scope.spawn(|| hunt(&build, options));
        let callers = callers(options);
        let hunt = hunt.join().expect("it does not panic");
        // A bug that is not found by then has had no fair share of time.
        stop.store(true, Ordering::Relaxed);
        let planted = planted.join().expect("it does not panic");
        for (what, went_well) in [
            ("callers", callers),
            ("hunt", hunt),
            ("planted bugs", planted),
        ] {
            println!(
                "soak: {what}: {}",
                if went_well { "passed" } else { "FAILED" }
            );
        }
        callers && hunt && planted
    })
}

fn callers(options: &Options) -> bool {
    let arguments = [
        "test",
        "-p",
        "starling",
        "--test",
        "soak",
        "--",
        "--nocapture",
    ];
    let mut test = cargo(&arguments);
    let seconds = (options.minutes * 60.0).ceil() as u64;
    test.env("STARLING_SOAK_SECONDS", seconds.to_string());
    if let Some(seed) = options.seed {
        test.env("STARLING_SOAK_SEED", seed.to_string());
    }
    succeeds(&mut test)
}

/// A hunt with half of the cores.
fn hunt(build: &Build, options: &Options) -> bool {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let (threads, minutes) = (
        (threads / 2).max(1).to_string(),
        options.minutes.to_string(),
    );
    let arguments = ["sim", "hunt", "--minutes", &minutes, "--threads", &threads];
    let mut hunt = command(build.hunt(), &arguments);
    if options.minutes >= 60.0 {
        hunt.arg("--all-branches");
    }
    succeeds(&mut hunt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let options = |minutes, seed| Some(Options { minutes, seed });
        assert_eq!(Options::parse(&[]), options(MINUTES, None));
        let both = ["--minutes", "0.5", "--seed", "7"];
        assert_eq!(Options::parse(&both), options(0.5, Some(7)));
        assert_eq!(Options::parse(&["--hours", "1"]), options(60.0, None));
        for wrong in [
            &["--minutes"][..],
            &["--minutes", "0"],
            &["--seed", "x"],
            &["--fast"],
        ] {
            assert_eq!(Options::parse(wrong), None, "{wrong:?}");
        }
    }
}
