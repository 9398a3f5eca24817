//! `starling demo`: a key-value service over Starling's devices and over tonic, side by side.
//!
//! ```text
//!   this process                core 1: servers          core 0: load generators
//!     for each system:  ───▶    store of 1 M records ◀── model of the same records
//!     for each workload:
//!       for each system:  ───────────────────────────▶   calls, checks, figures
//!     table, plot, verdict
//! ```
//!
//! All servers and load generators run from the beginning to the end. Only one pair of them has calls
//! at any time. The systems take turns within each workload, because the speed of a virtual machine's
//! cores changes from one second to the next.

mod outcome;
mod plot;
mod report;
#[cfg(test)]
mod tests;

use std::fs::OpenOptions;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use starling_bench::kv::drive::Settings;
use starling_bench::kv::starling_roles::{KV_CHANNEL_CLIENT, KV_LOCAL_CLIENT, KV_SERVER};
use starling_bench::kv::{LoadProcess, RunFigures, Workload};
use starling_bench::managed::start_service;
use starling_bench::pin::Cores;
use starling_bench::process::{Launcher, RoleProcess};
use starling_bench::{BenchError, table};

use crate::error::CliError;
use crate::lab::role;
use crate::output;

use outcome::{IN_FLIGHT, Outcome};

/// The number of records in the store, and the seconds of each run.
const USUAL: (u64, f64) = (1_000_000, 3.2);

/// The same with `--quick`: enough to see that everything runs.
const QUICK: (u64, f64) = (10_000, 0.15);

/// At this load average or above, other programs take much of the two cores.
const BUSY: f64 = 1.0;

/// The default of `--svg`.
const SVG: &str = "starling-demo.svg";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// Makes short runs on fewer records, a few seconds in all, to see that everything works; the
    /// figures mean nothing.
    #[arg(long)]
    quick: bool,
    /// The file for the latency plot.
    #[arg(long, value_name = "FILE", default_value = SVG)]
    svg: PathBuf,
    /// Prints one JSON object per line, with the keys of `starling bench --json`: `suite` is
    /// `demo`, `case` is the workload.
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Starts a key-value server over udp://, over shm:// and over tonic (gRPC), and a load generator for
each, all in processes of their own: servers on the second core, load generators on the first.
They run the workloads A, B, C and E of YCSB (Zipf 0.99, 1 million records, 16-byte keys, 64-byte
values) with 64 calls in flight. Every answer is checked against a model of the store.

The systems: `channel` is a generated client on a starling::Channel, in tasks of a tokio runtime
of one thread; `managed` is the same through a service of the host, which both ends call and are
called through (`starling service run`), on both cores; `tonic` is its channel in such a runtime;
`local` is a generated client on a LocalChannel, in the thread of its endpoint. All settings are
the defaults, so an idle thread of Starling spins for 20 to 200 us and then sleeps.

The exit status is 0 if every answer was right, and does not depend on which system was faster.

Examples:
  starling demo
  starling demo --svg latencies.svg
  starling demo --quick --json";

/// A system that the demo measures.
#[derive(Debug)]
struct System {
    /// The scheme in its rows.
    scheme: &'static str,
    /// The system in its rows.
    name: &'static str,
    /// The role of its server.
    server: &'static str,
    /// The role of its load generator.
    client: &'static str,
    /// The address for the server, if the server takes one as its first argument.
    bind: Option<String>,
    /// Both ends call and are called through a service.
    is_managed: bool,
}

/// What users take first, then tonic, then the shortest path.
fn systems() -> [System; 6] {
    let starling = |name, client, scheme| System {
        scheme,
        name,
        server: KV_SERVER,
        client,
        bind: Some(match scheme {
            "udp" => "udp://127.0.0.1:0".into(),
            _ => format!("shm://starling-demo-{name}-{}", std::process::id()),
        }),
        is_managed: name == "managed",
    };
    [
        starling("channel", KV_CHANNEL_CLIENT, "udp"),
        starling("channel", KV_CHANNEL_CLIENT, "shm"),
        starling("managed", KV_CHANNEL_CLIENT, "udp"),
        System {
            scheme: "grpc",
            name: "tonic",
            server: starling_bench_tonic::KV_SERVER_ROLE,
            client: starling_bench_tonic::KV_CLIENT_ROLE,
            bind: None,
            is_managed: false,
        },
        starling("local", KV_LOCAL_CLIENT, "udp"),
        starling("local", KV_LOCAL_CLIENT, "shm"),
    ]
}

/// A running server and its load generator.
struct Pair {
    // Fields are dropped in this order, so the load generator ends before its server.
    client: LoadProcess,
    server: RoleProcess,
    service: Option<RoleProcess>,
}

impl Pair {
    fn start(
        launcher: &Launcher,
        cores: Cores,
        system: &System,
        records: u64,
    ) -> Result<Self, BenchError> {
        let service = system.is_managed.then(|| start_service(launcher, cores));
        let service = service.transpose()?;
        let records_text = records.to_string();
        let mut arguments: Vec<&str> = system.bind.iter().map(String::as_str).collect();
        arguments.push(&records_text);
        arguments.extend(service.iter().map(RoleProcess::address));
        let server = launcher.start(system.server, &arguments)?;
        let settings = Settings {
            records,
            seed: 1,
            in_flight: IN_FLIGHT,
        };
        let address = match &service {
            Some(service) => format!("shm://{}?target={}", service.address(), server.address()),
            None => server.address().to_owned(),
        };
        let client = LoadProcess::start(launcher, system.client, &address, &settings)?;
        Ok(Self {
            client,
            server,
            service,
        })
    }

    /// Processor time of the server, and of the service if there is one, ns.
    fn cpu_ns(server: &RoleProcess, service: Option<&RoleProcess>) -> u64 {
        server.cpu_ns() + service.map_or(0, RoleProcess::cpu_ns)
    }

    /// Runs a workload. Returns its figures and the processor time of the server and its service, ns.
    fn run(
        &mut self,
        workload: Workload,
        seconds: f64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(RunFigures, u64), BenchError> {
        // The load generator reports progress for the first time when the warm-up is over.
        let mut server_cpu_before_ns = None;
        let cpu_ns = || Self::cpu_ns(&self.server, self.service.as_ref());
        let figures = self.client.run(workload, seconds, &mut |calls| {
            server_cpu_before_ns.get_or_insert_with(cpu_ns);
            progress(calls);
        })?;
        let before = server_cpu_before_ns.unwrap_or(0);
        Ok((figures, cpu_ns().saturating_sub(before)))
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let cores = Cores::of_this_process()?;
    if cores.shared() {
        eprintln!("warning: this process may use only one core; client and server share it");
    }
    if let Some(load) = load_average().filter(|load| *load >= BUSY) {
        eprintln!(
            "warning: this machine is busy (load average {load}): every figure will be worse, \
             tail latencies most"
        );
    }
    let (records, seconds) = if arguments.quick { QUICK } else { USUAL };
    // A file that cannot be written is an error before the runs, which take a minute.
    let svg_error = |source| CliError::File {
        path: arguments.svg.clone(),
        source,
    };
    let mut writable = OpenOptions::new();
    writable
        .append(true)
        .create(true)
        .open(&arguments.svg)
        .map_err(svg_error)?;
    let program = std::env::current_exe().map_err(CliError::OwnPath)?;
    let launcher = Launcher::new(program, &[role::NAME], cores);
    let outcomes = outcomes(&launcher, cores, records, seconds)?;
    std::fs::write(&arguments.svg, plot::svg(&outcomes)).map_err(svg_error)?;
    if arguments.json {
        return output::print(&report::json(&outcomes));
    }
    output::print(&report::text(&outcomes, records, &arguments.svg))
}

/// The number of processes that wanted to run, on average over the last minute. `None`: unknown.
fn load_average() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split(' ').next()?.parse().ok()
}

/// Runs every workload on every system.
fn outcomes(
    launcher: &Launcher,
    cores: Cores,
    records: u64,
    seconds: f64,
) -> Result<Vec<Outcome>, CliError> {
    let systems = systems();
    let progress = Progress::new(systems.len() * (1 + Workload::YCSB.len()));
    let mut pairs = Vec::new();
    for system in &systems {
        progress.begin(&format!(
            "{}/{}: loading {records} records",
            system.name, system.scheme
        ));
        pairs.push(Pair::start(launcher, cores, system, records)?);
        progress.end();
    }
    let mut outcomes = Vec::new();
    for workload in Workload::YCSB {
        for (system, pair) in systems.iter().zip(&mut pairs) {
            let what = format!("workload {workload} on {}/{}", system.name, system.scheme);
            progress.begin(&what);
            let (figures, server_cpu_ns) = pair
                .run(workload, seconds, &mut |calls| {
                    progress.update(&what, calls)
                })
                .map_err(|error| CliError::Demo { what, error })?;
            outcomes.push(Outcome {
                scheme: system.scheme,
                system: system.name,
                workload,
                figures,
                server_cpu_ns,
            });
            progress.end();
        }
    }
    Ok(outcomes)
}

/// Progress on standard error: a bar if that is a terminal, a line for each step if not.
struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    fn new(steps: usize) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}");
            let bar = ProgressBar::new(steps as u64);
            bar.enable_steady_tick(Duration::from_millis(500));
            bar.with_style(style.expect("the template is a constant"))
        });
        Self { bar }
    }

    fn begin(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(what.to_string()),
            None => eprintln!("{what}"),
        }
    }

    fn update(&self, what: &str, calls: u64) {
        if let Some(bar) = &self.bar {
            let calls = table::scaled(calls as f64, &[(1e6, "M"), (1e3, "k"), (1.0, "")]);
            bar.set_message(format!("{what}: {calls} answers, all right"));
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
