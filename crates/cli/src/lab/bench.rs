//! `starling bench`: runs suites and prints their figures.

mod breakdown;
mod policies;
mod slo;

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use starling_bench::benchmark::Network;
use starling_bench::pin::{Cores, pin_thread};
use starling_bench::process::Launcher;
use starling_bench::runner::{self, Plan};
use starling_bench::selection::Selection;
use starling_bench::timeline::{Kept, Timeline};
use starling_bench::{Benchmark, Context, Metric, Row, Suite, benchmarks, table};

use crate::error::CliError;
use crate::lab::role;
use crate::output;

/// The defaults of a suite: seconds of one measurement, and repetitions.
fn usual(suite: Suite) -> (f64, usize) {
    match suite {
        // A benchmark measures some twelve loads, and the tail latency of each needs many requests.
        Suite::Slo => (0.8, 1),
        _ => (0.4, 5),
    }
}

/// The same with `--quick`: long enough to see that everything runs.
const QUICK: (f64, usize) = (0.05, 1);

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// The suites to run, in this order; `all` stands for all of them.
    #[arg(required_unless_present = "list", value_parser = parse_suites)]
    suites: Vec<Suites>,
    /// Prints the suites and their benchmarks, and measures nothing.
    #[arg(long)]
    list: bool,
    /// Prints one JSON object per line; see below for its keys.
    #[arg(long)]
    json: bool,
    /// Makes one short measurement of each benchmark, to see that everything works; the figures mean
    /// nothing.
    #[arg(long)]
    quick: bool,
    /// How long each measurement takes; in the suite `slo`, each of some twelve loads.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// How often each benchmark of a suite is measured, in turn with the others. Figures are medians.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1000))]
    repetitions: Option<u16>,
    /// Runs only the benchmarks of this system, on this scheme, whose case begins with CASE; `--list`
    /// prints all three. May be repeated.
    #[arg(long, value_name = "SYSTEM[/SCHEME[/CASE]]")]
    only: Vec<Selection>,
    /// The file for the picture of the suite `breakdown`, `slo` or `policies` [default: starling-SUITE.svg;
    /// with --json: no picture].
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// The default file for the picture of a suite; not all suites have one.
fn picture(suite: Suite) -> Option<&'static str> {
    match suite {
        Suite::Breakdown => Some("starling-breakdown.svg"),
        Suite::Slo => Some("starling-slo.svg"),
        Suite::Policies => Some("starling-policies.svg"),
        _ => None,
    }
}

/// Whether the chosen benchmarks of a suite make a picture.
fn is_drawn(suite: Suite, only: &[Selection]) -> bool {
    let is_chosen =
        |benchmark: &Benchmark| only.is_empty() || only.iter().any(|only| only.selects(benchmark));
    let is_of_live =
        |benchmark: &Benchmark| benchmark.case == policies::CASE && is_chosen(benchmark);
    match suite {
        Suite::Policies => benchmarks::of(suite).iter().any(is_of_live),
        _ => picture(suite).is_some(),
    }
}

const HELP: &str = "\
The client runs on the first core and the server on the second. Keep both free of other work. If that
is not possible, root can give the benchmark priority: `nice -n -15 starling bench ...`.
Compare figures of one run only: the speed of a virtual machine's cores changes within seconds.

A benchmark is named SYSTEM/SCHEME CASE, as in `starling/udp batch=3`. The system `raw` is the floor:
the least that any program could pay for the same exchange. The scheme is the device or transport.
Over `shm` the case ends with the placement of the two cores: `near` (a cache line goes to the other
core and back within 130 ns), `far` (300 ns and more) or `mixed`.

slo: a worker sleeps for as long as its request says, 4 ms on average, so that two cores can host 16
workers. A case is a distribution of these times and a dispatch policy: 1x16 (any worker may run any
request), 4x4 (a flow belongs to one of four groups of workers), 16x1 (a flow belongs to one worker),
steered (the XDP program assigns requests). throughput_under_slo is the highest load, as a share of
capacity, at which the 99th percentile is within ten mean service times. `of the ideal` compares it
with a model: one queue that costs nothing and gets the same requests. The suite takes ten minutes or
more.

large: over veth, the interfaces have Starling's XDP program in rows of xdp, and no program in all
other rows. TCP has further rows with the program on the interfaces (`attached`).

interference: 40 thousand requests a second over udp, 400 thousand over shm, arrive at random times.
One thread on the first core is client and dispatch thread; a worker has the second core. One request
in a hundred is long: it takes 50 us of processor time. Latencies are those of the short requests. The
cases: there are no long requests; a worker runs them and sleeps soon after; a worker runs them and
stays awake for 2 ms (`wakeful`); the dispatch thread runs them.

channel: what users take, with default settings on both sides. The systems: `channel` is clones of one
starling::Channel, `local` a LocalChannel, `mutex` a LocalChannel behind a lock, `endpoint` the raw
endpoint of the suite `rate`. A case is a number of plain threads, or of tasks in a tokio runtime of one
thread or of two workers; each makes one call after the other. Further cases: 1,000 calls of 100 ms at
once (`slow`: how long until all are answered, and small calls behind them), 100 connected channels that
nobody uses (`idle`), and a driver that stands still for 10 ms ten times a second (`held`). All threads
of the client share the first core. cpu is processor time of both processes per call; the server's is
counted in steps of 10 ms. Do not run it by chrt: a thread that spins would keep the core from the one
that it waits for.

policies: two applications call through one service in the case `live`, while the policies of the first
one change. Its picture is the time line of the last repetition: calls a second, the changes, and the
mean around them. With --json it is in further rows, one for 10 ms of an application (rate) and two for a
change: how long it took, and the longest time around it in which the changed application had no answer
(gap). They have one more key: at_ms, the time since the line's beginning.

With --json each row is one object with these keys:
  suite, system, scheme, case   what was measured; with metric, the name of the row
  metric, unit                  what the values are: p50 in ns, rate in per_s, cpu in ns
  value, min, max, repetitions  the median of the repetitions, their extremes, and their number
`starling sim run --json` prints the same keys.

Examples:
  starling bench rtt
  starling bench channel --only channel/udp --only tonic
  starling bench slo --only ideal --only starling/xdp/gev
  starling bench rate --only starling --only raw/shm --repetitions 9
  starling bench breakdown --svg breakdown.svg
  starling bench all --json > figures.jsonl";

/// The suites that one word of the command line stands for.
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
        eprintln!("warning: this process may use only one core; client and server share it");
    }
    let suites = || arguments.suites.iter().flat_map(|suites| &suites.0);
    let pictures: Vec<&Suite> = suites()
        .filter(|suite| is_drawn(**suite, &arguments.only))
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
        timeline: Kept::default(),
    };
    let veth = starling_bench::veth::is_possible()
        .inspect_err(|problem| eprintln!("left out: benchmarks over xdp and veth ({problem})"))
        .is_ok();
    pin_thread(cores.client)?;
    for suite in suites() {
        let (seconds, repetitions) = if arguments.quick {
            QUICK
        } else {
            usual(*suite)
        };
        let context = Context {
            seconds: arguments.seconds.unwrap_or(seconds),
            ..context.clone()
        };
        let plan = Plan {
            repetitions: arguments.repetitions.map_or(repetitions, usize::from),
            only: arguments.only.clone(),
        };
        let bar = progress_bar(arguments.json);
        let rows = runner::run(
            suite.name(),
            benchmarks_of(*suite, veth),
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
        let timeline = context.timeline.take();
        output::print(&report(*suite, &rows, timeline.as_ref(), arguments.json))?;
        let drawn = match suite {
            Suite::Slo => Some(slo::svg(&rows)),
            Suite::Breakdown => Some(breakdown::svg(&rows)),
            _ => timeline.as_ref().map(policies::svg),
        };
        if let Some((usual, svg)) = picture(*suite).zip(drawn) {
            save(usual, arguments, &svg)?;
        }
    }
    Ok(())
}

/// Fails if there is not exactly one picture for the file, or if the file cannot be written. The check
/// comes before all measurements.
fn check_svg(file: &Path, pictures: &[&Suite]) -> Result<(), String> {
    match pictures {
        [] => {
            let of = "`breakdown`, `slo` and, with its case `live`, `policies`";
            return Err(format!("--svg is for the suites {of}: leave it out"));
        }
        [_] => {}
        [first, second, ..] => {
            return Err(format!(
                "--svg is for one picture, and {first} and {second} have one each: run one at a time"
            ));
        }
    }
    let directory = file.parent().filter(|parent| *parent != Path::new(""));
    if file.is_dir() || directory.is_some_and(|directory| !directory.is_dir()) {
        return Err(format!(
            "--svg {}: name a file in a directory that exists",
            file.display()
        ));
    }
    Ok(())
}

/// Writes the picture of a suite and prints the name of its file.
fn save(usual: &str, arguments: &Arguments, svg: &str) -> Result<(), CliError> {
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

/// All benchmarks of a suite.
fn benchmarks_of(suite: Suite, veth: bool) -> Vec<Benchmark> {
    let mut benchmarks = benchmarks::of(suite);
    if veth {
        benchmarks.extend(starling_bench::veth::benchmarks(suite));
    }
    benchmarks.extend(starling_bench_tonic::benchmarks(suite));
    benchmarks
}

fn list() -> String {
    let mut text = String::new();
    for suite in Suite::ALL {
        let names: Vec<String> = benchmarks_of(suite, true)
            .iter()
            .map(ToString::to_string)
            .collect();
        let _ = writeln!(text, "{suite}: {}", suite.about());
        let _ = writeln!(text, "    {}", names.join(", "));
    }
    text
}

fn report(suite: Suite, rows: &[Row], timeline: Option<&Timeline>, json: bool) -> String {
    if json {
        let of_line = timeline.map_or_else(Vec::new, |it| it.to_json(suite.name()));
        let rows = rows.iter().map(Row::to_json).chain(of_line);
        return rows.map(|row| format!("{row}\n")).collect();
    }
    let table = match suite {
        Suite::Breakdown => table::render_by_metric(rows, Metric::RoundTrip),
        Suite::Slo => {
            // The picture and the JSON rows have the tail latency at each load.
            let is_tail = |row: &&Row| matches!(row.metric, Metric::Tail { .. });
            let rows: Vec<Row> = rows.iter().filter(|row| !is_tail(row)).cloned().collect();
            table::render(&rows)
        }
        _ => table::render(rows),
    };
    format!("{suite}: {}\n{table}\n", suite.about())
}

/// A progress bar on standard error, if that is a terminal.
fn progress_bar(json: bool) -> ProgressBar {
    if json || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}");
    ProgressBar::new(0).with_style(style.expect("the template is a constant"))
}
