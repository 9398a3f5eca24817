//! Rows as a table for people.

use std::collections::BTreeSet;

use crate::metric::Metric;
use crate::row::Row;

/// The rows of one suite as a table: a line for each benchmark, a column for each metric, the
/// spread of the repetitions in brackets.
pub fn render(rows: &[Row]) -> String {
    let metrics: BTreeSet<Metric> = rows.iter().map(|row| row.metric).collect();
    let mut header: Vec<String> = ["system", "scheme", "case"].map(String::from).to_vec();
    header.extend(metrics.iter().map(|metric| metric.name().to_string()));
    let mut lines: Vec<Vec<String>> = vec![header];
    let mut last: Option<[&str; 3]> = None;
    for row in rows {
        let group = [row.system, row.scheme, row.case.as_str()];
        if last != Some(group) {
            let mut line = group.map(String::from).to_vec();
            line.resize(3 + metrics.len(), String::new());
            lines.push(line);
            last = Some(group);
        }
        let column = 3 + metrics.iter().take_while(|&&m| m != row.metric).count();
        let line = lines.last_mut().expect("the row's line was just pushed");
        line[column] = cell(row);
    }
    align(&lines)
}

/// The transposed table, for more metrics than benchmarks: a line for each metric, and for each
/// benchmark a column of values and one of their shares of the metric `whole`.
pub fn render_by_metric(rows: &[Row], whole: Metric) -> String {
    let mut header = vec!["stage".to_string(), String::new(), String::new()];
    let mut lines: Vec<(Metric, Vec<String>)> = Vec::new();
    for group in groups(rows) {
        // Probes and floors have no such metric.
        let Some(of) = group.iter().find(|row| row.metric == whole) else {
            continue;
        };
        let name = format!("{} {}", of.scheme, of.case);
        header.extend([name.trim_end().to_string(), "share".into()]);
        for row in group {
            let at = lines.iter().position(|(metric, _)| *metric == row.metric);
            let at = at.unwrap_or_else(|| {
                let line = [row.metric.name(), "", ""].map(String::from).to_vec();
                lines.push((row.metric, line));
                lines.len() - 1
            });
            let line = &mut lines[at].1;
            line.resize(header.len() - 2, String::new());
            line.push(cell(row));
            line.push(format!("{:.0}%", 100.0 * row.value / of.value));
        }
    }
    let lines = lines.into_iter().map(|(_, line)| line);
    align(&std::iter::once(header).chain(lines).collect::<Vec<_>>())
}

/// The rows of each benchmark, which follow one another.
pub fn groups(rows: &[Row]) -> impl Iterator<Item = &[Row]> {
    rows.chunk_by(|a, b| (a.scheme, a.system, &a.case) == (b.scheme, b.system, &b.case))
}

fn cell(row: &Row) -> String {
    let value = human(row.metric, row.value);
    if row.repetitions == 1 {
        return value;
    }
    let low = human(row.metric, row.min);
    let high = human(row.metric, row.max);
    format!("{value} [{low} .. {high}]")
}

/// A value with three significant digits, in a unit of its size.
pub fn human(metric: Metric, value: f64) -> String {
    match metric {
        Metric::Rate => scaled(value, &[(1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")]),
        Metric::Throughput => scaled(value, &[(1e9, "GB/s"), (1e6, "MB/s"), (1.0, "B/s")]),
        Metric::Memory => scaled(value, &[(1_048_576.0, "MiB"), (1024.0, "KiB"), (1.0, "B")]),
        Metric::ThroughputUnderSlo => format!("{value:.3}"),
        Metric::Tail { .. } => format!("{value:.1}"),
        Metric::OfIdeal | Metric::Busy => format!("{value:.0}%"),
        Metric::OfCore => format!("{value:.3}%"),
        Metric::OfUnobserved | Metric::OfPlain => format!("{value:.1}%"),
        Metric::OfAlone | Metric::TailOfPlain => format!("{value:.2}"),
        // All others are times.
        _ => scaled(value, &[(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")]),
    }
}

/// A value with three significant digits, in the first unit of which it is at least one.
pub fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let &(scale, unit) = units
        .iter()
        .find(|(scale, _)| value >= *scale)
        .unwrap_or(&units[units.len() - 1]);
    let value = value / scale;
    let decimals = match value {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {unit}")
}

/// Pads cells to equal widths: the first three columns to the left, the others, which are figures,
/// to the right.
pub fn align(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let mut padded = String::new();
        for (column, cell) in line.iter().enumerate() {
            let width = widths[column];
            let cell = if column < 3 {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            };
            padded.push_str(&cell);
            padded.push_str("  ");
        }
        text.push_str(padded.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(system: &'static str, metric: Metric, value: f64, repetitions: usize) -> Row {
        Row {
            suite: "rtt",
            scheme: "udp",
            system,
            case: String::new(),
            metric,
            value,
            min: value / 2.0,
            max: value * 2.0,
            repetitions,
        }
    }

    #[test]
    fn a_benchmark_is_a_line_and_a_metric_a_column() {
        let rows = [
            row("raw", Metric::P50, 4200.0, 1),
            row("raw", Metric::P99, 9000.0, 1),
            row("tonic", Metric::P50, 76_000.0, 1),
        ];
        let expected = "\
system  scheme  case      p50      p99
raw     udp           4.20 us  9.00 us
tonic   udp           76.0 us
";
        assert_eq!(render(&rows), expected);
    }

    #[test]
    fn by_metric_a_metric_is_a_line() {
        let rows = [
            row("starling", Metric::P50, 25.0, 1),
            row("starling", Metric::P99, 100.0, 1),
        ];
        let expected = "\
stage          udp  share
p50        25.0 ns    25%
p99         100 ns   100%
";
        assert_eq!(render_by_metric(&rows, Metric::P99), expected);
    }

    #[test]
    fn several_repetitions_show_their_spread() {
        let text = render(&[row("raw", Metric::Rate, 2e6, 5)]);
        assert!(text.contains("2.00 M/s [1.00 M/s .. 4.00 M/s]"), "{text}");
    }

    #[test]
    fn a_value_is_shown_in_a_unit_of_its_size() {
        assert_eq!(human(Metric::P50, 119.6), "120 ns");
        assert_eq!(human(Metric::P99, 0.0), "0.00 ns");
        assert_eq!(human(Metric::P999, 2.5e6), "2.50 ms");
        assert_eq!(human(Metric::Rate, 97_000.0), "97.0 k/s");
        assert_eq!(human(Metric::Throughput, 1.48e9), "1.48 GB/s");
        assert_eq!(human(Metric::Memory, 2048.0), "2.00 KiB");
    }
}
