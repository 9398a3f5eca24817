//! `starling sim`: the protocol that ships in a simulated datacenter.
//!
//! `run` makes the runs of a named scenario, or one random run, and prints figures; `hunt` makes
//! random runs until its time is over or a run breaks a promise.

mod hunt;
mod options;
mod random;
mod table;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use starling_sim::scenario::{self, NamedScenario, Options, Plot};

use crate::error::CliError;
use crate::lab::curves;
use crate::output;

use options::{RANDOM, Run};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a named scenario, or the random run of a seed.
    #[command(after_help = RUN_HELP)]
    Run(Box<Run>),
    /// Lists the scenarios.
    List,
    /// Makes random runs on all cores, and shrinks the first run that breaks a promise.
    #[command(after_help = HUNT_HELP)]
    Hunt(hunt::Arguments),
}

const RUN_HELP: &str = "\
Time is virtual: figures do not depend on this machine or on its load.

Exit status 0: the run kept every promise that the checkers watch: each request runs at most once,
each call ends in time and with its own answer, credits and queues stay within bounds, hosts hold no
session or memory at the end, DCTCP is fair in an incast. 1: the run broke a promise; the message has
the command that replays it. 2: the command line is wrong, or plots cannot be written. Other figures
do not change the status; SPECIFICATION.md has the promises about them.

With --json each row is one object with the keys of `starling bench --json`: suite (the scenario),
system (starling), scheme (sim), case, metric, unit, value, min, max, repetitions. A run is
deterministic: repetitions is 1, and min and max are the value. The key paper has the paper's
figure where there is one.

Examples:
  starling sim run loss
  starling sim run incast --seed 7 --json
  starling sim run random --seed 4242";

const HUNT_HELP: &str = "\
Exit status 0: all runs kept every promise. 1: a run broke a promise; the output has the smallest
run that breaks it and the command that replays it.

Example:
  starling sim hunt --minutes 10";

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    match &arguments.command {
        Command::Run(run) if run.name == RANDOM => random::run(run),
        Command::Run(run) => run_named(run),
        Command::List => output::print(&list()),
        Command::Hunt(arguments) => hunt::run(arguments),
    }
}

fn list() -> String {
    let lines = scenario::ALL
        .iter()
        .map(|named| format!("{:14} {}\n", named.name, named.about));
    lines.collect::<String>() + &format!("{RANDOM:14} the random run of a seed, with checkers\n")
}

fn run_named(arguments: &Run) -> Result<(), CliError> {
    if arguments.only.is_some() || arguments.plant.is_some() {
        let name = &arguments.name;
        return Err(CliError::Usage(format!(
            "--only and --plant are for `run {RANDOM}`, not for {name}"
        )));
    }
    let chosen: Vec<NamedScenario> = if arguments.name == "all" {
        scenario::ALL.into()
    } else {
        let found = scenario::find(&arguments.name);
        let found = found.ok_or_else(|| unknown(&arguments.name))?;
        if arguments.nodes.is_some() && !found.takes_nodes {
            eprintln!(
                "note: {} has its own number of nodes, whatever --nodes says",
                found.name
            );
        }
        vec![found]
    };
    if let Some(directory) = plot_directory(arguments) {
        // A run may take minutes, so this error must come before it.
        check_writable(&directory)?;
    }
    let options = Options {
        seed: arguments.seed,
        nodes: arguments.nodes,
        quick: arguments.quick,
    };
    for named in chosen {
        let bar = progress_bar(arguments.json);
        let ran = scenario::run(&named, options, &mut |progress| {
            bar.set_length(progress.total as u64);
            bar.set_position(progress.done as u64);
            bar.set_message(format!("{}: {}", named.name, progress.now));
        });
        bar.finish_and_clear();
        let (findings, took) = ran?;
        let files = write_plots(arguments, named.name, &findings.plots)?;
        let text = if arguments.json {
            table::json(&findings.rows)
        } else {
            table::text(&named, &findings, took, &files)
        };
        output::print(&text)?;
    }
    Ok(())
}

fn unknown(name: &str) -> CliError {
    let names: Vec<&str> = scenario::ALL.iter().map(|named| named.name).collect();
    CliError::Usage(format!(
        "there is no scenario {name}; there are {}, {RANDOM} and all",
        names.join(", ")
    ))
}

/// The directory for plots. `None`: the run draws no plots.
fn plot_directory(arguments: &Run) -> Option<PathBuf> {
    match &arguments.svg {
        Some(directory) => Some(directory.clone()),
        None if arguments.json => None,
        None => Some(PathBuf::from(".")),
    }
}

/// Fails if this process cannot make a file in the directory.
fn check_writable(directory: &Path) -> Result<(), CliError> {
    let path = directory.join(format!("starling-sim-{}.tmp", std::process::id()));
    let made = std::fs::File::create_new(&path).and_then(|_| std::fs::remove_file(&path));
    made.map_err(|source| CliError::PlotDirectory {
        directory: directory.to_owned(),
        source,
    })
}

/// Writes the scenario's plots; returns their files.
fn write_plots(arguments: &Run, name: &str, plots: &[Plot]) -> Result<Vec<PathBuf>, CliError> {
    let Some(directory) = plot_directory(arguments) else {
        return Ok(Vec::new());
    };
    let mut files = Vec::new();
    for (index, plot) in plots.iter().enumerate() {
        let number = if index == 0 {
            String::new()
        } else {
            format!("-{}", index + 1)
        };
        let path = directory.join(format!("starling-sim-{name}{number}.svg"));
        std::fs::write(&path, curves::svg(plot)).map_err(|source| CliError::File {
            path: path.clone(),
            source,
        })?;
        files.push(path);
    }
    Ok(files)
}

/// A progress bar on standard error, if that is a terminal.
fn progress_bar(json: bool) -> ProgressBar {
    if json || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {elapsed}");
    ProgressBar::new(0).with_style(style.expect("the template is a constant"))
}
