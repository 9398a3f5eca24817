//! Named scenarios at the scale of the papers: each measures the protocol that ships on a fabric of
//! hosts, network cards, switches and busy threads. Its results are rows.
//!
//! ```text
//!  name, seed, nodes ──▶ Cluster (fabric + machines + one Application) ──▶ rows, plots
//! ```
//!
//! A row has the figure that the paper has for the same case, where it has one. Rates, delays and
//! costs of the fabric are those of [`crate::net::Topology::cx4`] and [`crate::CpuModel::POLLED`]
//! unless a scenario says otherwise.

mod all_to_all;
mod background;
mod capture;
mod cluster;
mod descheduled;
mod fair_share;
#[cfg(test)]
mod fairness;
mod incast;
mod loss;
mod machine;
mod monitor;
mod node_failure;
mod overload;
mod paths;
mod slo;

use std::borrow::Cow;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::check::{Violation, no_overflow};
use crate::fabric::Fabric;
use crate::rng::mix;
use cluster::Cluster;
use monitor::enforce;

/// Nanoseconds in a microsecond.
const US: u64 = 1_000;
/// Nanoseconds in a millisecond.
const MS: u64 = 1_000_000;

/// One figure of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The scenario, or `random` for a random run.
    pub scenario: &'static str,
    /// The parameters of the case.
    pub case: String,
    /// The measured quantity: `bandwidth`, `rtt p50`, ...
    pub metric: Cow<'static, str>,
    /// Its unit: `Gb/s`, `us`, ...
    pub unit: &'static str,
    /// Our figure.
    pub value: f64,
    /// The paper's.
    pub paper: Option<f64>,
}

/// A curve of a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Points, by their first coordinate.
    pub points: Vec<(f64, f64)>,
}

/// A picture of a scenario's figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Its title.
    pub title: String,
    /// The horizontal axis, with its unit.
    pub x: &'static str,
    /// The vertical axis, with its unit.
    pub y: &'static str,
    /// Both axes are logarithmic, or only the vertical one, or none.
    pub log: (bool, bool),
    /// The curves.
    pub curves: Vec<Curve>,
}

/// How a scenario is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Seed of the random generator.
    pub seed: u64,
    /// Nodes, where a scenario lets one choose.
    pub nodes: Option<u32>,
    /// Shortest run, to see that everything works. Its figures mean nothing.
    pub quick: bool,
}

/// The results of a scenario.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// The figures.
    pub rows: Vec<Row>,
    /// The pictures.
    pub plots: Vec<Plot>,
    /// Hash over the traces of all runs: the same for the same options.
    pub trace_hash: u64,
    /// Datagrams that left a host, all runs together.
    pub packets: u64,
    /// Virtual time that passed, ns.
    pub virtual_ns: u64,
}

/// The progress of a scenario.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    /// Cases done.
    pub done: usize,
    /// The number of cases.
    pub total: usize,
    /// The case that is run now.
    pub now: &'a str,
}

/// Receives the progress of a scenario.
pub type OnProgress<'a> = dyn FnMut(Progress<'_>) + 'a;

/// A scenario that can be asked for by name.
#[derive(Clone, Copy)]
pub struct NamedScenario {
    /// Its name.
    pub name: &'static str,
    /// A line about its purpose.
    pub about: &'static str,
    /// Whether [`Options::nodes`] has an effect.
    pub takes_nodes: bool,
    run: fn(&mut Bench<'_>),
}

/// All of them.
pub const ALL: [NamedScenario; 9] = [
    NamedScenario {
        name: loss::NAME,
        about: "8 MB requests through losses of 1e-7 to 1e-3 at 100 Gb/s (eRPC, table 4)",
        takes_nodes: false,
        run: loss::run,
    },
    NamedScenario {
        name: incast::NAME,
        about: "20 to 100 clients send 8 MB requests to one server (eRPC, table 5)",
        takes_nodes: false,
        run: incast::run,
    },
    NamedScenario {
        name: background::NAME,
        about: "64 kB RPCs between all nodes during an incast of 100 (eRPC, section 6.5)",
        takes_nodes: true,
        run: background::run,
    },
    NamedScenario {
        name: all_to_all::NAME,
        about: "every thread of 100 nodes calls every thread, 60 in flight (eRPC, figure 5)",
        takes_nodes: true,
        run: all_to_all::run,
    },
    NamedScenario {
        name: node_failure::NAME,
        about: "a node of 100 dies and returns: who notices when, and who suffers",
        takes_nodes: true,
        run: node_failure::run,
    },
    NamedScenario {
        name: overload::NAME,
        about: "a server is offered up to three times what it can do, inline and in workers",
        takes_nodes: true,
        run: overload::run,
    },
    NamedScenario {
        name: descheduled::NAME,
        about: "client and server on cores that are away for 1 to 20 ms, a tenth of the time",
        takes_nodes: false,
        run: descheduled::run,
    },
    NamedScenario {
        name: paths::NAME,
        about: "long paths, and incasts through switches that mark nothing",
        takes_nodes: false,
        run: paths::run,
    },
    NamedScenario {
        name: slo::NAME,
        about: "the load of 16 and 64 workers with a tail latency of ten service times (RPCValet)",
        takes_nodes: false,
        run: slo::run,
    },
];

/// The scenario of that name.
pub fn find(name: &str) -> Option<NamedScenario> {
    ALL.into_iter().find(|named| named.name == name)
}

/// A promise that was broken in a named scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioFailure {
    /// The promise.
    pub violation: Violation,
    scenario: &'static str,
    options: Options,
}

impl ScenarioFailure {
    /// The command that runs the same again.
    pub fn replay_command(&self) -> String {
        let Options { seed, nodes, quick } = self.options;
        let mut command = format!("starling sim run {} --seed {seed}", self.scenario);
        if let Some(nodes) = nodes {
            command += &format!(" --nodes {nodes}");
        }
        if quick {
            command += " --quick";
        }
        command
    }
}

impl fmt::Display for ScenarioFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "VIOLATION in {}: {}", self.scenario, self.violation)?;
        write!(f, "replay: {}", self.replay_command())
    }
}

impl std::error::Error for ScenarioFailure {}

/// Runs a scenario; `on_progress` receives its progress. Returns its results and how long it took.
///
/// # Errors
/// A promise that was broken.
pub fn run(
    named: &NamedScenario,
    options: Options,
    on_progress: &mut OnProgress<'_>,
) -> Result<(Findings, Duration), ScenarioFailure> {
    let started = Instant::now();
    let nodes = options.nodes.filter(|_| named.takes_nodes);
    let options = Options { nodes, ..options };
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let mut bench = Bench {
            scenario: named.name,
            options,
            findings: Findings::default(),
            on_progress,
        };
        (named.run)(&mut bench);
        bench.findings
    }));
    match ran {
        Ok(findings) => Ok((findings, started.elapsed())),
        Err(payload) => Err(ScenarioFailure {
            violation: Violation::of_panic(payload),
            scenario: named.name,
            options,
        }),
    }
}

/// The run of a scenario: its options, and the results so far.
struct Bench<'a> {
    scenario: &'static str,
    options: Options,
    findings: Findings,
    on_progress: &'a mut OnProgress<'a>,
}

impl Bench<'_> {
    fn progress(&mut self, done: usize, total: usize, now: &str) {
        (self.on_progress)(Progress { done, total, now });
    }

    fn row(
        &mut self,
        case: &str,
        metric: &'static str,
        unit: &'static str,
        value: f64,
        paper: Option<f64>,
    ) {
        // JSON has no NaN or infinity. A scenario without a figure leaves the row out.
        assert!(value.is_finite(), "{metric} of {case:?} is {value}");
        self.findings.rows.push(Row {
            scenario: self.scenario,
            case: case.to_owned(),
            metric: metric.into(),
            unit,
            value,
            paper,
        });
    }

    /// Ends a cluster's run with the final checks, and adds it to the sums.
    fn finish(&mut self, cluster: &mut Cluster) {
        cluster.settle();
        enforce(no_overflow(cluster.fabric.lock().counters()));
        self.account(&cluster.fabric.lock());
    }

    /// Adds a run that is over to the sums.
    fn account(&mut self, fabric: &Fabric) {
        let findings = &mut self.findings;
        findings.packets += fabric.counters().sent;
        findings.virtual_ns += fabric.now_ns();
        findings.trace_hash = mix(findings.trace_hash ^ fabric.trace().hash());
    }
}

#[cfg(test)]
mod tests;
