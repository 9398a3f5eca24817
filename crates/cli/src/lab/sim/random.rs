//! `starling sim run random`: the random run of a seed, with the features of its plan and its
//! outcomes as rows.

use starling_sim::harness::{Report, RunPlan, run_with_bug};
use starling_sim::scenario::Row;

use super::options::{RANDOM, Run};
use super::table;
use crate::error::CliError;
use crate::output;

/// Makes the random run of a seed, with all entries of its plan or with those that `--only` names.
pub(super) fn run(arguments: &Run) -> Result<(), CliError> {
    if arguments.nodes.is_some() || arguments.quick || arguments.svg.is_some() {
        return Err(CliError::Usage(format!(
            "--nodes, --quick and --svg are not for `run {RANDOM}`: the seed determines the run"
        )));
    }
    let mut plan = RunPlan::from_seed(arguments.seed);
    if let Some(subset) = &arguments.only {
        subset.check(&plan).map_err(CliError::Usage)?;
        plan = subset.of(&plan);
    }
    let report = run_with_bug(&plan, arguments.plant).map_err(CliError::Promise)?;
    let rows = rows(&plan, &report);
    if arguments.json {
        return output::print(&table::json(&rows));
    }
    let title = format!("seed {} keeps every promise", arguments.seed);
    let trace = format!(
        "{} datagrams, {:.1} ms of virtual time; trace {:016x}",
        report.counters.sent,
        report.virtual_ns as f64 / 1e6,
        report.trace_hash
    );
    output::print(&(table::rows(&title, &rows) + &format!("  {trace}\n")))
}

fn rows(plan: &RunPlan, report: &Report) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |case: &str, metric: &str, value: u64| {
        rows.push(Row {
            scenario: RANDOM,
            case: case.to_owned(),
            metric: metric.to_owned().into(),
            unit: "",
            value: value as f64,
            paper: None,
        });
    };
    for (kind, count) in plan.coverage() {
        row("drawn", &kind, count);
    }
    let outcomes = &report.outcomes;
    row("calls", "answered", outcomes.answered);
    row("calls", "failed", outcomes.failed);
    row("calls", "cancelled", outcomes.cancelled);
    row("calls", "not made", outcomes.not_made);
    row("calls", "abandoned by a crash", outcomes.abandoned);
    row("calls", "run by a handler", outcomes.executed);
    let counters = &report.counters;
    row("datagrams", "sent", counters.sent);
    row("datagrams", "delivered", counters.delivered);
    for (cause, &count) in &counters.dropped {
        row("datagrams", &format!("dropped: {cause:?}"), count);
    }
    for (reason, &count) in &counters.frames.dropped {
        let metric = format!("dropped as a frame: {reason:?}");
        row("datagrams", &metric, count);
    }
    row("datagrams", "duplicated", counters.duplicated);
    row("datagrams", "corrupted", counters.corrupted);
    row("datagrams", "misrouted", counters.misrouted);
    row("datagrams", "held back", counters.delayed);
    row("datagrams", "marked by a switch", report.marked);
    rows
}
