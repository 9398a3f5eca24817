//! `cargo xtask figures`: measures the promises of SPECIFICATION.md and writes the tables there.
//!
//! ```text
//! figures/promises.toml ──▶ commands ──▶ rows (JSON) ──▶ figures/results.json
//!          │                                                      │
//!          └───────────────▶ SPECIFICATION.md ◀───────────────────┘
//! ```
//!
//! Whether a promise holds is computed from its bound and its last result, never typed. A test
//! compares the tables with those that these two files give.

mod promises;
mod render;
mod results;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::instructions;
use crate::run::{cargo, command, succeeds};
use promises::{Measurement, Promise, Promises, Row};
use results::{Measured, Results};

/// The options of the command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Renders and compares only.
    check: bool,
    /// Only promises whose id contains this.
    only: Option<String>,
    /// The number of times that each command runs, in place of the file's.
    repetitions: Option<usize>,
}

impl Options {
    /// `None`: the command line makes no sense.
    pub(crate) fn parse(arguments: &[&str]) -> Option<Self> {
        let mut options = Self::default();
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            match *word {
                "--check" => options.check = true,
                "--only" => options.only = Some((*words.next()?).to_owned()),
                "--repetitions" => {
                    let count = words.next()?.parse().ok().filter(|count| *count > 0);
                    options.repetitions = Some(count?);
                }
                _ => return None,
            }
        }
        Some(options)
    }
}

pub(crate) fn run(options: &Options) -> ExitCode {
    match try_run(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn try_run(options: &Options) -> Result<bool, String> {
    let promises = Promises::parse(&read("figures/promises.toml")?)?;
    let mut results = Results::parse(&read("figures/results.json")?)?;
    let specification = read("SPECIFICATION.md")?;
    if options.check {
        let rendered = render::specification(&specification, &promises, &results)?;
        if rendered != specification {
            return Err(
                "SPECIFICATION.md differs from figures/: run `cargo xtask figures --only nothing`"
                    .into(),
            );
        }
        return Ok(true);
    }
    let good = measure(options, &promises, &mut results)?;
    let rendered = render::specification(&specification, &promises, &results)?;
    write("SPECIFICATION.md", &rendered)?;
    Ok(good)
}

/// Runs the commands of the chosen promises. Results are written after each, so that an
/// interruption loses one command only.
fn measure(options: &Options, promises: &Promises, results: &mut Results) -> Result<bool, String> {
    let chosen = |promise: &&Promise| {
        let only = options.only.as_deref().unwrap_or("");
        promise.id.contains(only) && promise.value.is_some()
    };
    let chosen: Vec<&Promise> = promises.promises.iter().filter(chosen).collect();
    let is_needed = |m: &&Measurement| chosen.iter().any(|promise| promise.command == m.id);
    let needed: Vec<&Measurement> = promises.commands.iter().filter(is_needed).collect();
    if needed.is_empty() {
        eprintln!("no promise is chosen: nothing is measured");
        return Ok(true);
    }
    let build = ["build", "--release", "--bin", "starling"];
    if !succeeds(&mut cargo(&build)) {
        return Ok(false);
    }
    let (date, machine) = (today()?, machine());
    let mut good = true;
    for (index, measurement) in needed.iter().enumerate() {
        let at = format!("[{}/{}]", index + 1, needed.len());
        let runs = all_runs(measurement, options.repetitions, &at);
        good &= runs.iter().all(Option::is_some);
        let runs: Vec<Vec<Row>> = runs.into_iter().flatten().collect();
        for promise in chosen.iter().filter(|p| p.command == measurement.id) {
            let Some(figure) = promise.evaluate(&runs) else {
                eprintln!("{at} {}: no row of this run is about it", promise.id);
                continue;
            };
            let machine = if measurement.simulated {
                String::new()
            } else {
                machine.clone()
            };
            let measured = Measured::new(figure, &date, machine);
            let verdict = render::verdict(promise, Some(&measured));
            eprintln!("{at} {}: {} {verdict}", promise.id, measured.figure.median);
            results.insert(&promise.id, measured);
        }
        write("figures/results.json", &results.to_json())?;
    }
    Ok(good)
}

/// The rows of each run of a command; `None` for a run that failed.
fn all_runs(
    measurement: &Measurement,
    repetitions: Option<usize>,
    at: &str,
) -> Vec<Option<Vec<Row>>> {
    let extra = measurement.arguments_of_runs(repetitions);
    let count = extra.len();
    let mut runs = Vec::new();
    for (index, extra) in extra.into_iter().enumerate() {
        let began = Instant::now();
        eprintln!("{at} run {} of {count}: {}", index + 1, measurement.run);
        let rows = if measurement.run == instructions::COMMAND {
            instructions::count_all().map(|counts| counts.iter().map(Row::of_count).collect())
        } else {
            one_run(&mut command_of(&measurement.run, &extra))
        };
        match &rows {
            Some(rows) => eprintln!("{at} {} rows, {:.0?}", rows.len(), began.elapsed()),
            None => eprintln!("{at} FAILED: {}", measurement.run),
        }
        runs.push(rows);
    }
    runs
}

/// The command of a line, with the `starling` of the release build.
fn command_of(line: &str, extra: &[String]) -> Command {
    let mut words = line.split(' ').map(|word| match word {
        "starling" => crate::release_binary().into_os_string(),
        word => word.into(),
    });
    let program = words.next().unwrap_or_default();
    let mut command = command(program, &[]);
    command.args(words).arg("--json").args(extra);
    command
}

fn one_run(command: &mut Command) -> Option<Vec<Row>> {
    let output = command.stderr(std::process::Stdio::inherit()).output();
    let output = output.map_err(|error| eprintln!("cannot be run: {error}"));
    let output = output.ok().filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(Row::parse).collect()
}

fn path(name: &str) -> PathBuf {
    crate::root().join(name)
}

fn read(name: &str) -> Result<String, String> {
    std::fs::read_to_string(path(name)).map_err(|error| format!("{name}: {error}"))
}

fn write(name: &str, text: &str) -> Result<(), String> {
    std::fs::write(path(name), text).map_err(|error| format!("{name}: {error}"))
}

fn today() -> Result<String, String> {
    let output = Command::new("date").args(["-u", "+%F"]).output();
    let output = output.map_err(|error| format!("date cannot be run: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Processor, number of cores and kernel.
fn machine() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let models = cpus.lines().filter(|line| line.starts_with("model name"));
    let count = models.clone().count();
    let model = models.filter_map(|line| line.split_once(": ")).next();
    let model = model.map_or("unknown processor", |(_, model)| model);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel: Vec<&str> = kernel.trim().splitn(3, '.').take(2).collect();
    format!("{count} cores, {model}, Linux {}", kernel.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_specification_is_what_promises_and_results_give() {
        let check = Options {
            check: true,
            ..Options::default()
        };
        assert_eq!(try_run(&check), Ok(true));
    }

    #[test]
    fn the_specification_has_at_most_230_lines() {
        let lines = read("SPECIFICATION.md").unwrap().lines().count();
        assert!(lines <= 230, "{lines} lines");
    }

    #[test]
    fn each_promise_has_a_name_a_command_and_a_short_note_and_each_result_a_promise() {
        let promises = Promises::parse(&read("figures/promises.toml").unwrap()).unwrap();
        let results = Results::parse(&read("figures/results.json").unwrap()).unwrap();
        let mut ids: Vec<&str> = promises.promises.iter().map(|p| p.id.as_str()).collect();
        for id in results.ids() {
            assert!(ids.contains(&id), "{id} has a result and is no promise");
        }
        ids.sort_unstable();
        let twice = ids.windows(2).find(|pair| pair[0] == pair[1]);
        assert_eq!(twice, None, "an id stands for one promise");
        for promise in &promises.promises {
            let known = promises.commands.iter().any(|m| m.id == promise.command);
            assert!(known, "{}: no command {}", promise.id, promise.command);
            assert!(
                promise.note.len() <= 120,
                "{}: the note is long",
                promise.id
            );
        }
    }

    #[test]
    fn options_are_read() {
        let options = Options::parse(&["--only", "rtt", "--repetitions", "2"]);
        let expected = Options {
            check: false,
            only: Some("rtt".into()),
            repetitions: Some(2),
        };
        assert_eq!(options, Some(expected));
        assert_eq!(Options::parse(&["--only"]), None);
        assert_eq!(Options::parse(&["--repetitions", "0"]), None);
        assert_eq!(Options::parse(&["--fast"]), None);
    }

    #[test]
    fn the_release_build_is_run_with_json() {
        let command = command_of(
            "chrt -f 1 starling bench rtt",
            &["--seed".into(), "2".into()],
        );
        assert_eq!(command.get_program(), "chrt");
        let arguments: Vec<_> = command.get_args().collect();
        assert_eq!(arguments[2], crate::release_binary());
        assert_eq!(arguments[3..], ["bench", "rtt", "--json", "--seed", "2"]);
    }
}
