//! The tables of SPECIFICATION.md, between their markers.
//!
//! `<!-- figures: NAME: begin -->` and `<!-- figures: NAME: end -->` are around the table of a section of
//! the promises, around the list of `commands`, and around `measured`, which says where and when.

use std::fmt::Write as _;

use super::promises::{Measurement, Promise, Promises};
use super::results::{Measured, Results};

const HEADER: &str = "\
| id | what | bound | last: median [range], placement | holds? | command | note |
|---|---|---|---|---|---|---|
";

/// The document with its tables as they have to be.
pub(super) fn specification(
    document: &str,
    promises: &Promises,
    results: &Results,
) -> Result<String, String> {
    let mut text = replace(document, "measured", &measured(results))?;
    text = replace(&text, "commands", &commands(promises))?;
    let mut sections: Vec<&str> = Vec::new();
    for promise in &promises.promises {
        if !sections.contains(&promise.section.as_str()) {
            sections.push(&promise.section);
        }
    }
    for section in sections {
        let mut table = HEADER.to_owned();
        for promise in promises.promises.iter().filter(|p| p.section == section) {
            table += &row(promise, results.get(&promise.id));
        }
        text = replace(&text, section, &table)?;
    }
    Ok(text)
}

/// Puts `content` between the markers of `name`.
fn replace(document: &str, name: &str, content: &str) -> Result<String, String> {
    let begin = format!("<!-- figures: {name}: begin -->\n");
    let end = format!("<!-- figures: {name}: end -->\n");
    let parts = document.split_once(&begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(&end)?;
        Some((before, after))
    });
    let (before, after) = parts.ok_or(format!("SPECIFICATION.md has no markers for {name}"))?;
    Ok(format!("{before}{begin}{content}{end}{after}"))
}

fn measured(results: &Results) -> String {
    let mut text = String::new();
    for (machine, (first, last)) in results.machines() {
        let days = match first == last {
            true => first.to_owned(),
            false => format!("{first} to {last}"),
        };
        let machine = match machine {
            "" => "in virtual time, on any machine",
            machine => machine,
        };
        let _ = writeln!(text, "- {days}: {machine}");
    }
    text
}

fn commands(promises: &Promises) -> String {
    let mut text = "| command | as it is run |\n|---|---|\n".to_owned();
    let _ = writeln!(text, "| sim NAME | `starling sim run NAME` |");
    let is_usual = |m: &Measurement| {
        let name = m.id.strip_prefix("sim ");
        name.is_some_and(|name| m.shown() == format!("`starling sim run {name}`"))
    };
    let mut groups: Vec<(String, Vec<&Measurement>)> = Vec::new();
    for command in promises.commands.iter().filter(|m| !is_usual(m)) {
        // Commands that differ by their name only have one line.
        let (id, shown) = (&command.id, command.shown());
        let alike = shown.replace(&format!(" bench {id} "), " bench NAME ");
        match groups.iter_mut().find(|(other, _)| *other == alike) {
            Some((_, group)) => group.push(command),
            None => groups.push((alike, vec![command])),
        }
    }
    for (alike, group) in groups {
        let ids: Vec<&str> = group.iter().map(|command| command.id.as_str()).collect();
        let shown = match &group[..] {
            [one] => one.shown(),
            _ => alike,
        };
        let _ = writeln!(text, "| {} | {shown} |", ids.join(", "));
    }
    text
}

fn row(promise: &Promise, measured: Option<&Measured>) -> String {
    let Promise {
        id,
        what,
        unit,
        command,
        note,
        ..
    } = promise;
    let bound = [("at least", promise.at_least), ("at most", promise.at_most)];
    let bound: Vec<String> = bound
        .into_iter()
        .filter_map(|(words, bound)| Some(format!("{words} {}", shown(bound?, unit))))
        .collect();
    let bound = match bound.is_empty() {
        true => "-".to_owned(),
        false => bound.join(", "),
    };
    let mut last = measured.map_or_else(|| "-".to_owned(), |measured| with_range(measured, unit));
    if !promise.placement.is_empty() && measured.is_some() {
        let _ = write!(last, ", {}", promise.placement);
    }
    let verdict = verdict(promise, measured);
    let row = format!("| {id} | {what} | {bound} | {last} | {verdict} | {command} | {note}");
    format!("{} |\n", row.trim_end())
}

/// Whether a promise holds: the median must be within the bounds.
pub(super) fn verdict(promise: &Promise, measured: Option<&Measured>) -> &'static str {
    let Some(measured) = measured else {
        return "not measured";
    };
    match promise.holds(measured.figure.median) {
        None => "no bound",
        Some(true) => "holds",
        Some(false) => "**owed**",
    }
}

fn with_range(measured: &Measured, unit: &str) -> String {
    let figure = measured.figure;
    let (scale, name) = scale_of(figure.median, unit);
    let short = |value: f64| short(value / scale, name);
    let (low, high) = (short(figure.low), short(figure.high));
    match low == high {
        true => shown(figure.median, unit),
        false => format!("{} [{low}-{high}]{}", short(figure.median), suffix(name)),
    }
}

/// A value with its unit, in a size that is easy to read.
fn shown(value: f64, unit: &str) -> String {
    let (scale, name) = scale_of(value, unit);
    format!("{}{}", short(value / scale, name), suffix(name))
}

fn suffix(name: &str) -> String {
    match name {
        "" | "x" => String::new(),
        "%" => "%".to_owned(),
        name => format!(" {name}"),
    }
}

/// The divisor by which a value is shown, and the unit of the quotient.
fn scale_of<'a>(value: f64, unit: &'a str) -> (f64, &'a str) {
    let steps: &[(f64, &'a str)] = match unit {
        "ns" => &[(1e6, "ms"), (1e3, "us"), (1.0, "ns")],
        "per_s" => &[(1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")],
        "bytes_per_s" => &[(1e9, "GB/s"), (1e6, "MB/s"), (1.0, "B/s")],
        unit => return (1.0, unit),
    };
    let step = steps.iter().find(|(scale, _)| value.abs() >= *scale);
    step.copied().unwrap_or(steps[steps.len() - 1])
}

/// Three figures, ratios with two decimals at most.
fn short(value: f64, unit: &str) -> String {
    let decimals = match value.abs() {
        v if v >= 99.95 || v == v.trunc() && (unit != "x" || v >= 10.0) => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    match decimals > 0 && unit != "x" {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::super::promises::Figure;
    use super::*;

    #[test]
    fn values_are_shown_in_units_of_their_size() {
        assert_eq!(shown(250.0, "ns"), "250 ns");
        assert_eq!(shown(6_400.0, "ns"), "6.4 us");
        assert_eq!(shown(3e6, "per_s"), "3 M/s");
        assert_eq!(shown(21.9e9, "bytes_per_s"), "21.9 GB/s");
        assert_eq!(shown(1.1, "x"), "1.10");
        assert_eq!(shown(98.94, "%"), "98.9%");
        assert_eq!(shown(2048.0, "B"), "2048 B");
    }

    #[test]
    fn a_range_has_the_unit_of_its_median() {
        let measured = |median, low, high| {
            let figure = Figure {
                median,
                low,
                high,
                runs: 3,
            };
            Measured::new(figure, "2026-11-22", String::new())
        };
        let text = with_range(&measured(1040.0, 990.0, 1100.0), "ns");
        assert_eq!(text, "1.04 [0.99-1.1] us");
        assert_eq!(with_range(&measured(1.0, 1.0, 1.0), "x"), "1.00");
    }

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let document = "a\n<!-- figures: t: begin -->\nold\n<!-- figures: t: end -->\nb\n";
        let once = replace(document, "t", "new\n").unwrap();
        let expected = "a\n<!-- figures: t: begin -->\nnew\n<!-- figures: t: end -->\nb\n";
        assert_eq!(once, expected);
        assert_eq!(replace(&once, "t", "new\n").unwrap(), once);
        assert!(replace(document, "u", "").is_err());
    }
}
