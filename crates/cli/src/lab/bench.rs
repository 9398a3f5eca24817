//! `starling bench`: runs suites and prints their figures.

mod breakdown;
mod slo;

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use starling_bench::contest::{self, Network, Only, Plan};
use starling_bench::pin::{Cores, pin_thread};
use starling_bench::process::Launcher;
use starling_bench::row::Metric;
use starling_bench::{Contestant, Context, Row, Suite, table};

use crate::error::CliError;
use crate::lab::role;
use crate::output;

/// Seconds of one measurement, and rounds, unless told otherwise.
fn usual(suite: Suite) -> (f64, usize) {
    match suite {
        // A measurement is one load of some twelve, and a tail wants many requests.
        Suite::Slo => (0.8, 1),
        _ => (0.4, 5),
    }
}

/// The same with `--quick`: enough to see that everything runs.
const QUICK: (f64, usize) = (0.05, 1);

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// Which suites to run, in this order; `all` stands for every one.
    #[arg(required_unless_present = "list", value_parser = parse_suites)]
    suites: Vec<Suites>,
    /// Prints the suites and what takes part in them, and runs nothing.
    #[arg(long)]
    list: bool,
    /// Prints one JSON object per line, with the keys bench, plane, system, case, metric, unit,
    /// value.
    #[arg(long)]
    json: bool,
    /// Runs everything once and short: figures to be believed by nobody.
    #[arg(long)]
    quick: bool,
    /// How long each measurement takes; in the suite `slo`, each load of some twelve.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// How many rounds the contestants take turns for. Figures are medians over them.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1000))]
    repetitions: Option<u16>,
    /// Runs only these, by what `--list` shows and how the case begins. May be repeated.
    #[arg(long, value_name = "SYSTEM[/PLANE[/CASE]]")]
    only: Vec<Only>,
    /// Where the picture of the suite `breakdown` or `slo` goes. With --json there is none unless
    /// this is given.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Where the picture of a suite goes unless told otherwise; not all have one.
fn picture(suite: Suite) -> Option<&'static str> {
    match suite {
        Suite::Breakdown => Some("starling-breakdown.svg"),
        Suite::Slo => Some("starling-slo.svg"),
        _ => None,
    }
}

const HELP: &str = "\
The client runs on the first core and the server on the second; keep both free of other work.
Where that cannot be, root may keep other work away: `chrt -f 1 starling bench ...`.
Compare figures of one run only: what a virtual machine's cores can do changes within seconds.
On the plane `shm` the case names the mode that the machine was in: `near` (a cache line goes to
the other core and back within 130 ns), `far` (300 ns and more) or `mixed`.

In `slo` the workers sleep for as long as each request says, 4 ms on average, so that two cores stand
for sixteen. A case is a distribution of these times and who hands out requests: 1x16 any worker may
run any, 4x4 four groups by flow, 16x1 each flow has its worker, steered the XDP program hands out. `throughput_under_slo` is the highest
load, of capacity, whose 99th percentile is within ten mean service times; `of the ideal` compares it
with one queue that costs nothing and gets the same requests. It takes ten minutes and more in all.

In `large`, what goes over veth has interfaces with Starling's program in rows of xdp, and without in
all others; TCP is also measured with it (`attached`), as it is for everyone on such an interface.

In `interference` 40 thousand requests a second over udp, 400 thousand over shm, arrive at random;
client and dispatch thread are one thread on the first core, and a worker has the second. One request
in a hundred takes 50 us of a processor, and is not sent, is run by a worker that soon sleeps or by
one that stays awake for 2 ms (`wakeful`), or by the dispatch thread; the latencies are those of the
others.

Examples:
  starling bench rtt
  starling bench slo --only ideal --only starling/xdp/gev
  starling bench rate --only starling --only raw/shm --repetitions 9
  starling bench breakdown --svg breakdown.svg
  starling bench all --json > figures.jsonl";

/// One word of the command line.
#[derive(Clone, Debug)]
struct Suites(Vec<Suite>);

fn parse_suites(word: &str) -> Result<Suites, String> {
    if word == "all" {
        return Ok(Suites(Suite::ALL.into()));
    }
    let suite = word.parse().map_err(|error| format!("{error}, all"))?;
    Ok(Suites(vec![suite]))
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number".to_string())?;
    if !(0.001..=600.0).contains(&seconds) {
        return Err("expected 0.001 to 600".into());
    }
    Ok(seconds)
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    if arguments.list {
        return output::print(&list());
    }
    let cores = Cores::of_this_process()?;
    if cores.shared() {
        eprintln!("warning: only one core may be used; client and server share it");
    }
    let suites = || arguments.suites.iter().flat_map(|suites| &suites.0);
    let pictures: Vec<&Suite> = suites()
        .filter(|suite| picture(**suite).is_some())
        .collect();
    if let Some(file) = &arguments.svg {
        check_svg(file, &pictures).map_err(CliError::Usage)?;
    }
    let program = std::env::current_exe().map_err(CliError::OwnPath)?;
    let context = Context {
        launcher: Launcher::new(program, &[role::NAME], cores),
        cores,
        seconds: 0.0,
        network: Network::Loopback,
    };
    let veth = starling_bench::veth::is_possible()
        .inspect_err(|problem| eprintln!("left out: xdp, and all over veth ({problem})"))
        .is_ok();
    pin_thread(cores.client)?;
    for suite in suites() {
        let (seconds, rounds) = if arguments.quick {
            QUICK
        } else {
            usual(*suite)
        };
        let context = Context {
            seconds: arguments.seconds.unwrap_or(seconds),
            ..context.clone()
        };
        let plan = Plan {
            rounds: arguments.repetitions.map_or(rounds, usize::from),
            only: arguments.only.clone(),
        };
        let bar = progress_bar(arguments.json);
        let rows = contest::run(
            suite.name(),
            contestants(*suite, veth),
            &plan,
            &context,
            &mut |progress| {
                bar.set_length(progress.total as u64);
                bar.set_position(progress.done as u64);
                bar.set_message(format!("{suite}: {}", progress.now));
            },
        );
        bar.finish_and_clear();
        let rows = rows?;
        output::print(&report(*suite, &rows, arguments.json))?;
        if let Some(usual) = picture(*suite) {
            draw(*suite, usual, arguments, &rows)?;
        }
    }
    Ok(())
}

/// Complains if no picture can go to a file, before anything is measured for it.
fn check_svg(file: &Path, pictures: &[&Suite]) -> Result<(), String> {
    match pictures {
        [] => return Err("--svg is for the suites `breakdown` and `slo`: leave it away".into()),
        [_] => {}
        [first, second, ..] => {
            return Err(format!(
                "--svg is for one picture, and {first} and {second} have one each: run them apart"
            ));
        }
    }
    let directory = file.parent().filter(|parent| *parent != Path::new(""));
    if file.is_dir() || directory.is_some_and(|directory| !directory.is_dir()) {
        return Err(format!(
            "--svg {}: name a file in a directory that is there",
            file.display()
        ));
    }
    Ok(())
}

/// Draws a suite, and says where.
fn draw(suite: Suite, usual: &str, arguments: &Arguments, rows: &[Row]) -> Result<(), CliError> {
    let svg = match suite {
        Suite::Slo => slo::svg(rows),
        _ => breakdown::svg(rows),
    };
    let file = match &arguments.svg {
        Some(file) => file,
        None if arguments.json => return Ok(()),
        None => Path::new(usual),
    };
    std::fs::write(file, svg).map_err(|source| CliError::File {
        path: file.to_owned(),
        source,
    })?;
    if arguments.json {
        return Ok(());
    }
    output::print(&format!("picture: {}\n", file.display()))
}

/// Whoever takes part in a suite.
fn contestants(suite: Suite, veth: bool) -> Vec<Contestant> {
    let mut contestants = suite.floors();
    contestants.extend(starling_bench::endpoint::contestants(suite));
    if veth {
        contestants.extend(starling_bench::veth::contestants(suite));
    }
    contestants.extend(starling_bench_tonic::contestants(suite));
    contestants
}

fn list() -> String {
    let mut text = String::new();
    for suite in Suite::ALL {
        let names: Vec<String> = contestants(suite, true)
            .iter()
            .map(ToString::to_string)
            .collect();
        let _ = writeln!(text, "{suite}: {}", suite.about());
        let _ = writeln!(text, "    {}", names.join(", "));
    }
    text
}

fn report(suite: Suite, rows: &[Row], json: bool) -> String {
    if json {
        return rows.iter().map(|row| row.to_json() + "\n").collect();
    }
    let table = match suite {
        Suite::Breakdown => table::render_by_metric(rows, Metric::RoundTrip),
        Suite::Slo => {
            // How it comes to that is in the picture, and for programs.
            let is_tail = |row: &&Row| matches!(row.metric, Metric::Tail { .. });
            let rows: Vec<Row> = rows.iter().filter(|row| !is_tail(row)).cloned().collect();
            table::render(&rows)
        }
        _ => table::render(rows),
    };
    format!("{suite}: {}\n{table}\n", suite.about())
}

/// On standard error, and only for somebody who sees it.
fn progress_bar(json: bool) -> ProgressBar {
    if json || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}");
    ProgressBar::new(0).with_style(style.expect("the template is a constant"))
}
