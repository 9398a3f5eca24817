//! The demo's outcomes: a table with a verdict for people, rows for programs.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::json;
use starling_bench::Metric;
use starling_bench::table::{align, human};

use super::outcome::{IN_FLIGHT, Outcome};

/// The metric that decides which system beat the other.
const RATE: &str = "rate";

/// A figure by which the demo compares systems.
struct Figure {
    /// Its name in the table's header and in the verdict.
    name: &'static str,
    /// Its name and unit in rows.
    metric: &'static str,
    unit: &'static str,
    /// The metric whose format the figure has in the table.
    shown_as: Metric,
    more_is_better: bool,
    value: fn(&Outcome) -> f64,
}

const FIGURES: [Figure; 5] = [
    Figure {
        name: "rate",
        metric: RATE,
        unit: "per_s",
        shown_as: Metric::Rate,
        more_is_better: true,
        value: |outcome| outcome.figures.rate(),
    },
    Figure {
        name: "p50",
        metric: "p50",
        unit: "ns",
        shown_as: Metric::P50,
        more_is_better: false,
        value: |outcome| outcome.figures.latency_ns(50.0) as f64,
    },
    Figure {
        name: "p99",
        metric: "p99",
        unit: "ns",
        shown_as: Metric::P99,
        more_is_better: false,
        value: |outcome| outcome.figures.latency_ns(99.0) as f64,
    },
    Figure {
        name: "p99.9",
        metric: "p99.9",
        unit: "ns",
        shown_as: Metric::P999,
        more_is_better: false,
        value: |outcome| outcome.figures.latency_ns(99.9) as f64,
    },
    Figure {
        name: "CPU/call",
        metric: "cpu_per_call",
        unit: "ns",
        shown_as: Metric::P50,
        more_is_better: false,
        value: Outcome::cpu_per_call_ns,
    },
];

impl Figure {
    /// How many times better `ours` is than `theirs`.
    fn advantage(&self, ours: &Outcome, theirs: &Outcome) -> f64 {
        let (ours, theirs) = ((self.value)(ours), (self.value)(theirs));
        let (better, worse) = if self.more_is_better {
            (ours, theirs)
        } else {
            (theirs, ours)
        };
        better / worse.max(f64::MIN_POSITIVE)
    }
}

/// The baseline of an outcome: tonic's outcome in the same workload.
fn baseline<'a>(outcomes: &'a [Outcome], outcome: &Outcome) -> Option<&'a Outcome> {
    outcomes
        .iter()
        .find(|other| other.workload == outcome.workload && other.system == "tonic")
}

/// The rows as lines of JSON, one for each figure of each outcome.
pub(super) fn json(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let mut row = |metric: &str, unit: &str, value: f64| {
            let value = (value * 10.0).round() / 10.0;
            let row = json!({
                "suite": "demo",
                "system": outcome.system,
                "scheme": outcome.scheme,
                "case": outcome.workload.name(),
                "metric": metric,
                "unit": unit,
                "value": value,
                "min": value,
                "max": value,
                "repetitions": 1,
            });
            let _ = writeln!(text, "{row}");
        };
        for figure in &FIGURES {
            row(figure.metric, figure.unit, (figure.value)(outcome));
        }
        row("right_answers", "calls", outcome.figures.calls as f64);
    }
    text
}

/// The report for people: table, verdict, and the name of the plot's file.
pub(super) fn text(outcomes: &[Outcome], records: u64, svg: &Path) -> String {
    let mut text = table(outcomes);
    let calls: u64 = outcomes.iter().map(|outcome| outcome.figures.calls).sum();
    let in_flight = IN_FLIGHT;
    let _ = write!(
        text,
        "\nchannel: a Channel in tokio; managed: the same through a service of the host; tonic: its \
         channel in tokio;\nlocal: a LocalChannel in its endpoint's thread.\n{records} records, \
         {in_flight} calls in flight, one core for the servers and one for the load generators;\n\
         CPU/call is the processor time of both sides and of the service; xN: N times \
         better than tonic.\n\nEvery answer was right: {calls} calls, each checked against a model of \
         the store.\n{}\nLatency plot: {}\n",
        verdict(outcomes),
        svg.display()
    );
    text
}

fn table(outcomes: &[Outcome]) -> String {
    let mut header = vec!["workload".into(), String::new(), "system".into()];
    header.extend(FIGURES.iter().map(|figure| figure.name.to_string()));
    let mut lines: Vec<Vec<String>> = vec![header];
    let mut last = None;
    for outcome in outcomes {
        let first = last != Some(outcome.workload);
        last = Some(outcome.workload);
        let (name, about) = if first {
            (outcome.workload.name(), outcome.workload.about())
        } else {
            ("", "")
        };
        let mut line = vec![name.into(), about.into(), system(outcome)];
        line.extend(
            FIGURES
                .iter()
                .map(|figure| cell(figure, outcome, baseline(outcomes, outcome))),
        );
        lines.push(line);
    }
    align(&lines)
}

fn system(outcome: &Outcome) -> String {
    format!("{}/{}", outcome.system, outcome.scheme)
}

/// A value, and how many times better than the baseline's it is.
fn cell(figure: &Figure, outcome: &Outcome, baseline: Option<&Outcome>) -> String {
    let value = human(figure.shown_as, (figure.value)(outcome));
    match baseline {
        Some(baseline) if baseline.system != outcome.system => {
            let times = figure.advantage(outcome, baseline);
            let decimals = if times < 9.95 { 1 } else { 0 };
            format!("{value} {:>6}", format!("x{times:.decimals$}"))
        }
        _ => format!("{value}       "),
    }
}

/// The sentence that says whether Starling beat tonic, which the rates decide, and the list of the
/// figures in which it is behind.
fn verdict(outcomes: &[Outcome]) -> String {
    let mut slower = false;
    let mut behind = Vec::new();
    let mut compared = 0;
    for outcome in outcomes {
        let Some(baseline) =
            baseline(outcomes, outcome).filter(|baseline| baseline.system != outcome.system)
        else {
            continue;
        };
        for figure in &FIGURES {
            compared += 1;
            let times = figure.advantage(outcome, baseline);
            if times <= 1.0 {
                slower |= figure.metric == RATE;
                behind.push(format!(
                    "  {} on {}: {} x{times:.2}",
                    outcome.workload,
                    system(outcome),
                    figure.name
                ));
            }
        }
    }
    let mut text = if slower {
        "Starling did NOT beat tonic on every workload over udp and shm.".to_string()
    } else {
        "Starling beat tonic on every workload over udp and shm: more calls per second.".into()
    };
    let ahead = compared - behind.len();
    let _ = write!(text, "\nIt is ahead in {ahead} of {compared} figures");
    if behind.is_empty() {
        text.push('.');
    } else {
        let _ = write!(text, "; not in\n{}", behind.join("\n"));
    }
    text
}
