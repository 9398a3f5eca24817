//! The figures of a scenario or a random run: a table for people, JSON for programs.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};
use starling_sim::scenario::{Findings, NamedScenario, Row};

/// One JSON object per line, with the keys that [`starling_bench::row`] lists.
pub(super) fn json(rows: &[Row]) -> String {
    let line = |row: &Row| {
        let mut object = Map::new();
        object.insert("suite".into(), row.scenario.into());
        object.insert("system".into(), "starling".into());
        object.insert("scheme".into(), "sim".into());
        object.insert("case".into(), row.case.clone().into());
        object.insert("metric".into(), row.metric.as_ref().into());
        object.insert("unit".into(), row.unit.into());
        // A run is deterministic, so one repetition shows all.
        for key in ["value", "min", "max"] {
            object.insert(key.into(), row.value.into());
        }
        object.insert("repetitions".into(), 1.into());
        if let Some(paper) = row.paper {
            object.insert("paper".into(), paper.into());
        }
        Value::Object(object).to_string() + "\n"
    };
    rows.iter().map(line).collect()
}

/// The rows as a table under a title.
pub(super) fn rows(title: &str, rows: &[Row]) -> String {
    let mut lines = vec![["case", "metric", "Starling", "paper", "unit"].map(String::from)];
    let mut last = None;
    for row in rows {
        let case = if last == Some(&row.case) {
            String::new()
        } else {
            row.case.clone()
        };
        last = Some(&row.case);
        let paper = row.paper.map_or(String::new(), figure);
        let (metric, value) = (row.metric.to_string(), figure(row.value));
        lines.push([case, metric, value, paper, row.unit.to_owned()]);
    }
    let mut text = format!("{title}\n");
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max();
    let widths: Vec<usize> = (0..5).filter_map(width).collect();
    for line in &lines {
        let [case, metric, value, paper, unit] = line;
        let _ = writeln!(
            text,
            "  {case:a$}  {metric:b$}  {value:>c$}  {paper:>d$}  {unit}",
            a = widths[0],
            b = widths[1],
            c = widths[2],
            d = widths[3],
        );
    }
    text
}

/// The report about a scenario: its table, a line about its runs, the files of its plots.
pub(super) fn text(
    named: &NamedScenario,
    findings: &Findings,
    took: Duration,
    files: &[PathBuf],
) -> String {
    let mut text = rows(&format!("{}: {}", named.name, named.about), &findings.rows);
    let seconds = took.as_secs_f64();
    let _ = writeln!(
        text,
        "  {} datagrams, {:.1} ms of virtual time, in {seconds:.1} s: {:.2} M datagrams a second; trace {:016x}",
        findings.packets,
        findings.virtual_ns as f64 / 1e6,
        findings.packets as f64 / seconds / 1e6,
        findings.trace_hash,
    );
    let unique: BTreeSet<_> = files.iter().collect();
    for file in unique {
        let _ = writeln!(text, "  plot: {}", file.display());
    }
    text
}

/// A figure as text, with three or four significant digits.
fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 1000.0 || v == v.trunc() => 0,
        v if v >= 100.0 => 1,
        v if v >= 1.0 => 2,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(paper: Option<f64>) -> Row {
        Row {
            scenario: "loss",
            case: "1e-4".into(),
            metric: "bandwidth".into(),
            unit: "Gb/s",
            value: 96.25,
            paper,
        }
    }

    #[test]
    fn a_row_has_the_key_paper_only_if_the_paper_has_the_figure() {
        let with: Value = serde_json::from_str(&json(&[row(Some(18.0))])).unwrap();
        let expected = serde_json::json!({
            "suite": "loss", "system": "starling", "scheme": "sim", "case": "1e-4",
            "metric": "bandwidth", "unit": "Gb/s", "value": 96.25, "min": 96.25, "max": 96.25,
            "repetitions": 1, "paper": 18.0,
        });
        assert_eq!(with, expected);
        let without: Value = serde_json::from_str(&json(&[row(None)])).unwrap();
        assert!(without.get("paper").is_none());
    }

    #[test]
    fn figures_are_short() {
        let shown = [96.25, 1149.951, 0.9968, 12.0, 123.45].map(figure);
        assert_eq!(shown, ["96.25", "1150", "0.9968", "12", "123.5"]);
    }
}
