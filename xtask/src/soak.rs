//! `cargo xtask soak`: the test `soak` of the facade, for minutes in place of seconds.

use std::process::ExitCode;

use crate::run::{cargo, succeeds};

const HELP: &str = "\
Usage: cargo xtask soak [--minutes N] [--seed S]

Callers of all kinds (threads, tasks of runtimes, executors, calls that are dropped or never polled)
share the endpoint of each scheme (udp, shm, mem) while all threads are preempted at random. Fails if
a caller waits for 20 s, which is a lost wake-up, if a call ends twice or not at all, or if a thread,
a descriptor or a call is left. Prints progress every 10 s.

  --minutes N   How long; 5 unless set. May be a fraction.
  --seed S      The first round's seed, as a failure prints it; fresh unless set.";

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
    let mut test = cargo(&[
        "test",
        "-p",
        "starling",
        "--test",
        "soak",
        "--",
        "--nocapture",
    ]);
    let seconds = (options.minutes * 60.0).ceil() as u64;
    test.env("STARLING_SOAK_SECONDS", seconds.to_string());
    if let Some(seed) = options.seed {
        test.env("STARLING_SOAK_SEED", seed.to_string());
    }
    match succeeds(&mut test) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
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
