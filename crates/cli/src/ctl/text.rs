//! Listings to read.

use std::fmt::Write;

use starling::managed::{DatapathView, ListingView, QuotaNumbersView, QuotaUseView};
use starling_service::{OnFailure, PolicyKind, PolicySpec};

use super::quotas::size;

/// Columns, as wide as what is in them.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let cell = shown(cell);
            let _ = write!(line, "{cell:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Applications choose names, and plug-ins texts: none of them may move the operator's cursor.
pub(super) fn shown(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

pub(super) fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

pub(super) fn listing(listing: ListingView<'_>) -> String {
    let mut rows = vec![row(&[
        "POLICY", "KIND", "PASSED", "DELAYED", "REFUSED", "HELD", "FOR", "SETTINGS",
    ])];
    for policy in listing.policies().iter() {
        let (name, kind, scope, settings) = match PolicySpec::parse(policy.policy()) {
            Ok(spec) => {
                let scope = serde_json::to_string(&spec.scope).unwrap_or_default();
                (spec.name, spec.kind, scope, spec.settings.to_string())
            }
            // A newer service.
            Err(_) => (
                policy.policy().to_owned(),
                String::new(),
                String::new(),
                String::new(),
            ),
        };
        let numbers = [
            policy.passed(),
            policy.delayed(),
            policy.refused(),
            policy.held(),
        ];
        let mut cells = vec![name, kind];
        cells.extend(numbers.map(|number| number.to_string()));
        cells.extend([scope, settings]);
        rows.push(cells);
    }
    let mut text = match rows.len() {
        1 => "no policies\n".to_owned(),
        _ => table(&rows),
    };
    text.push_str(&failures(listing));
    let is_several = listing.runtimes().len() > 1;
    let mut rows = vec![row(&[
        "SIDE",
        "PROGRAM",
        "PROCESS",
        "USER",
        "IDENTITIES",
        "SERVER",
        "STATE",
        "POLICIES",
    ])];
    if is_several {
        rows[0].push("RUNTIME".to_owned());
    }
    rows.extend(listing.datapaths().iter().map(|of| {
        let mut cells = datapath(of);
        cells.extend(is_several.then(|| of.runtime().to_string()));
        cells
    }));
    text.push('\n');
    text.push_str(&match rows.len() {
        1 => "no applications\n".to_owned(),
        _ => table(&rows),
    });
    let mut rows = vec![row(&[
        "QUOTA OF",
        "SIDE",
        "PROGRAM",
        "PROCESS",
        "USER",
        "CALLS",
        "DATAPATHS",
        "MEMORY",
        "REFUSED",
    ])];
    rows.extend(listing.quotas().iter().map(quota));
    if rows.len() > 1 {
        text.push('\n');
        text.push_str(&table(&rows));
    }
    text.push_str(&refused(listing.refused()));
    text
}

/// The policies whose engines have failed.
fn failures(listing: ListingView<'_>) -> String {
    let mut text = String::new();
    for policy in listing.policies().iter() {
        if let (false, Ok(spec)) = (
            policy.failure().is_empty(),
            PolicySpec::parse(policy.policy()),
        ) {
            let does = match spec.on_failure {
                OnFailure::Refuse => "refuses all requests",
                OnFailure::Pass => "lets all requests pass",
            };
            let why = shown(policy.failure());
            let remedy = "`starling ctl upgrade` or `configure` begins anew";
            let _ = writeln!(
                text,
                "{} has failed, and {does}: {why}; {remedy}",
                spec.name
            );
        }
    }
    match text.is_empty() {
        true => text,
        false => format!("\n{text}"),
    }
}

/// What an application or a user has, beside its quota.
fn quota(of: QuotaUseView<'_>) -> Vec<String> {
    let (used, quota) = (of.used(), of.quota());
    let beside = |used: String, quota: String| format!("{used} of {quota}");
    vec![
        of.of().to_owned(),
        of.side().to_owned(),
        match of.program() {
            "" => "-".to_owned(),
            program => program.to_owned(),
        },
        number(of.process_opt()),
        number(of.user_opt()),
        beside(used.calls().to_string(), quota.calls().to_string()),
        beside(used.datapaths().to_string(), quota.datapaths().to_string()),
        beside(size(used.memory()), size(quota.memory())),
        of.refused().to_string(),
    ]
}

/// What was beyond a quota so far, also of applications that have ended.
fn refused(of: QuotaNumbersView<'_>) -> String {
    let counts = [
        (of.calls(), "for too many calls"),
        (of.memory(), "for their bytes"),
        (of.datapaths(), "for too many datapaths"),
    ];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<_> = counts
        .map(|(count, why)| format!("{count} {why}"))
        .collect();
    match counts.is_empty() {
        true => String::new(),
        false => format!("\nrefused by quotas so far: {}\n", counts.join(", ")),
    }
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.collect();
    match names.is_empty() {
        true => "-".to_owned(),
        false => names.join(", "),
    }
}

pub(super) fn number(number: Option<u32>) -> String {
    number.map_or("-".to_owned(), |number| number.to_string())
}

fn datapath(of: DatapathView<'_>) -> Vec<String> {
    vec![
        of.side().to_owned(),
        of.program().to_owned(),
        number(of.process_opt()),
        number(of.user_opt()),
        names(of.identities().iter()),
        of.server().to_owned(),
        of.state().to_owned(),
        names(of.policies().iter()),
    ]
}

/// What an application's move has done.
pub(super) fn moved(datapaths: u32, runtime: u32) -> String {
    match datapaths {
        0 => format!("nothing moves: its datapaths are in runtime {runtime}, or it has none\n"),
        1 => format!("moved one datapath to runtime {runtime}\n"),
        _ => format!("moved {datapaths} datapaths to runtime {runtime}\n"),
    }
}

pub(super) fn kinds(kinds: &[PolicyKind]) -> String {
    let mut text = String::new();
    for kind in kinds {
        let _ = writeln!(text, "{}\n    {}", kind.name, kind.summary);
        let _ = writeln!(text, "    settings: {}", kind.example);
    }
    text
}

pub(super) fn changes(changes: &[&str], dry_run: bool) -> String {
    if changes.is_empty() {
        return "nothing changes\n".to_owned();
    }
    let would = if dry_run { "would " } else { "" };
    let lines = changes.iter().map(|change| format!("{would}{change}\n"));
    lines.collect()
}
