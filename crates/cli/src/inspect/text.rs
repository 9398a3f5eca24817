//! A look at a process as tables.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

use starling::introspection::{CallSeriesView, ThreadView};

use super::Look;

/// Rows with a heading, aligned.
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(heading: &[&str]) -> Self {
        let heading = heading.iter().map(|word| (*word).to_owned());
        Self {
            rows: vec![heading.collect()],
        }
    }

    fn push(&mut self, row: impl IntoIterator<Item = String>) {
        self.rows.push(row.into_iter().collect());
    }

    fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// The table below a title; nothing if it has no rows.
    fn put(&self, title: &str, out: &mut String) {
        if self.is_empty() {
            return;
        }
        let _ = writeln!(out, "\n{title}");
        let columns = self.rows[0].len();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths);
            let cells: Vec<_> = cells
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            let _ = writeln!(out, "  {}", cells.join("  ").trim_end());
        }
    }
}

/// A look, with rates since the one before.
pub(super) fn of(look: &Look, before: Option<&Look>) -> String {
    let process = look.process.message();
    let up = Duration::from_millis(process.uptime_ms());
    let mut out = format!(
        "process {}, Starling {}, up {}\n",
        process.pid(),
        process.version(),
        duration(up.as_nanos() as u64)
    );
    threads(look).put("threads", &mut out);
    held(look).put("what clients have it hold", &mut out);
    connections(look).put("connections", &mut out);
    channels(look).put("channels", &mut out);
    calls(look, before).put("calls", &mut out);
    sessions(look).put("sessions", &mut out);
    if !process.has_metrics() {
        out.push_str("\nno calls: the process does not measure them (starling::metrics::enable)\n");
    }
    out
}

fn threads(look: &Look) -> Table {
    let mut table = Table::new(&[
        "THREAD", "ROLE", "ADDRESS", "SESSIONS", "CALLS", "WAITING", "STREAMS", "WORKERS", "MEMORY",
    ]);
    for thread in look.process.message().threads().iter() {
        let head = [format!("#{}", thread.number()), thread.role().to_owned()];
        if !thread.answered() {
            table.push(head.into_iter().chain(["does not answer".to_owned()]));
            continue;
        }
        let mode = match thread.device_mode() {
            "" => String::new(),
            mode => format!(" ({mode})"),
        };
        let sessions = format!(
            "{} in, {} out",
            thread.server_sessions(),
            thread.client_sessions()
        );
        table.push(head.into_iter().chain([
            format!("{}{mode}", thread.address()),
            sessions,
            thread.calls_outstanding().to_string(),
            thread.requests_pending().to_string(),
            thread.streams().to_string(),
            workers(&thread),
            bytes(thread.reassembling_bytes() + thread.retained_bytes()),
        ]));
    }
    table
}

fn workers(thread: &ThreadView<'_>) -> String {
    if !thread.has_workers() {
        return "-".to_owned();
    }
    let workers = thread.workers();
    let with_each: Vec<_> = workers
        .with_each()
        .iter()
        .map(|jobs| jobs.to_string())
        .collect();
    let claimed = match workers.claimed() {
        0 => String::new(),
        claimed => format!(", {claimed} claimed"),
    };
    format!("{} + {}{claimed}", with_each.join(" "), workers.waiting())
}

fn held(look: &Look) -> Table {
    let mut table = Table::new(&["THREAD", "WHAT", "NOW", "AT MOST", "ONE CLIENT", "SETTING"]);
    for thread in look.process.message().threads().iter() {
        for budget in thread.budgets().iter().filter(|budget| budget.held() > 0) {
            let text = |value| match budget.unit() {
                "bytes" => bytes(value),
                _ => value.to_string(),
            };
            table.push([
                format!("#{}", thread.number()),
                budget.what().to_owned(),
                text(budget.held()),
                text(budget.all_peers()),
                text(budget.one_peer()),
                budget.setting().to_owned(),
            ]);
        }
    }
    table
}

fn connections(look: &Look) -> Table {
    let mut table = Table::new(&["THREAD", "TO", "STATE"]);
    for thread in look.process.message().threads().iter() {
        for connection in thread.connections().iter() {
            table.push([
                format!("#{}", thread.number()),
                connection.address().to_owned(),
                connection.state().to_owned(),
            ]);
        }
    }
    table
}

fn channels(look: &Look) -> Table {
    let mut table = Table::new(&["TO", "STATE", "CALLS"]);
    for channel in look.process.message().channels().iter() {
        table.push([
            channel.address().to_owned(),
            channel.state().to_owned(),
            format!("{} of {}", channel.calls_outstanding(), channel.capacity()),
        ]);
    }
    table
}

/// The calls of a series, and those that did not end with OK.
fn count(series: &CallSeriesView<'_>) -> (u64, u64) {
    let codes = || series.codes().iter();
    let all = codes().map(|code| code.value()).sum();
    let failed = codes()
        .filter(|code| code.name() != "OK")
        .map(|code| code.value());
    (all, failed.sum())
}

fn calls(look: &Look, before: Option<&Look>) -> Table {
    let mut table = Table::new(&[
        "SIDE",
        "METHOD",
        "AT",
        "CALLS",
        "PER SECOND",
        "IN FLIGHT",
        "P50",
        "P99",
        "FAILED",
    ]);
    let key = |series: &CallSeriesView<'_>| {
        [series.side(), series.method(), series.address()].map(str::to_owned)
    };
    let mut earlier = HashMap::new();
    for page in before.into_iter().flat_map(|look| &look.calls) {
        earlier.extend((page.message().series().iter()).map(|it| (key(&it), count(&it).0)));
    }
    let elapsed = before.map(|before| look.at.duration_since(before.at).as_secs_f64());
    for page in &look.calls {
        for series in page.message().series().iter() {
            let (all, failed) = count(&series);
            if all == 0 && series.in_flight() == 0 {
                continue;
            }
            let [side, method, address] = key(&series);
            let rate = elapsed.map_or("-".to_owned(), |seconds| {
                let earlier = earlier.get(&key(&series)).copied().unwrap_or(0);
                format!(
                    "{:.0}",
                    all.saturating_sub(earlier) as f64 / seconds.max(1e-3)
                )
            });
            let time = |ns: Option<u64>| ns.map_or("-".to_owned(), duration);
            let codes = series.codes().iter().filter(|code| code.name() != "OK");
            let codes: Vec<_> = codes
                .map(|code| format!("{} {}", code.name(), code.value()))
                .collect();
            table.push([
                side,
                method,
                address,
                all.to_string(),
                rate,
                series.in_flight().to_string(),
                time(series.p50_ns_opt()),
                time(series.p99_ns_opt()),
                match failed {
                    0 => "0".to_owned(),
                    _ => codes.join(", "),
                },
            ]);
        }
    }
    table
}

fn sessions(look: &Look) -> Table {
    let mut table = Table::new(&[
        "THREAD", "SESSION", "PEER", "STATE", "SLOTS", "QUEUED", "CREDITS", "WINDOW", "RATE", "RTT",
    ]);
    for (thread, pages) in &look.sessions {
        for page in pages {
            for session in page.message().server_sessions().iter() {
                let who = session
                    .uid_opt()
                    .map_or(String::new(), |uid| format!(" uid {uid}"));
                table.push([
                    format!("#{thread}"),
                    format!("in {}", session.id()),
                    format!("{}{who}", session.peer()),
                    format!("idle {}", duration(session.idle_ns())),
                    format!(
                        "{}/{}",
                        session.executing() + session.receiving(),
                        session.slots()
                    ),
                    "-".to_owned(),
                    format!(
                        "{} of {} wanted",
                        session.credits(),
                        session.credits_wanted()
                    ),
                ]);
            }
            for session in page.message().client_sessions().iter() {
                let suspected = if session.suspected() {
                    ", suspected"
                } else {
                    ""
                };
                let member = (session.first_opt()).map_or(String::new(), |it| format!(" of {it}"));
                table.push([
                    format!("#{thread}"),
                    format!("out {}{member}", session.id()),
                    session.address().to_owned(),
                    format!("{}{suspected}", session.state()),
                    format!("{}/{}", session.busy_slots(), session.slots()),
                    session.queued().to_string(),
                    format!("{}/{}", session.credits_in_use(), session.credits()),
                    session
                        .window_opt()
                        .map_or("-".to_owned(), |it| it.to_string()),
                    session.rate_bps_opt().map_or("-".to_owned(), rate),
                    duration(session.rtt_ns()),
                ]);
            }
        }
    }
    table
}

/// A value with the largest unit that leaves at least one.
fn with_unit(value: f64, units: &[(f64, &str)]) -> String {
    let unit = units.iter().rev().find(|(size, _)| value >= *size);
    let (size, name) = unit.unwrap_or(&units[0]);
    match value / size {
        small if small < 10.0 && *size > 1.0 => format!("{small:.1} {name}"),
        large => format!("{large:.0} {name}"),
    }
}

fn duration(ns: u64) -> String {
    let units = [
        (1.0, "ns"),
        (1e3, "us"),
        (1e6, "ms"),
        (1e9, "s"),
        (60e9, "min"),
        (3600e9, "h"),
    ];
    match ns {
        0 => "-".to_owned(),
        u64::MAX => "over 69 s".to_owned(),
        ns => with_unit(ns as f64, &units),
    }
}

fn rate(bits_per_second: u64) -> String {
    let units = [(1.0, "b/s"), (1e3, "kb/s"), (1e6, "Mb/s"), (1e9, "Gb/s")];
    with_unit(bits_per_second as f64, &units)
}

fn bytes(bytes: u64) -> String {
    let units = [
        (1.0, "B"),
        (1024.0, "KiB"),
        (1048576.0, "MiB"),
        (1073741824.0, "GiB"),
    ];
    with_unit(bytes as f64, &units)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_unit_that_people_read() {
        for (ns, text) in [
            (0, "-"),
            (300, "300 ns"),
            (1_500, "1.5 us"),
            (12_345, "12 us"),
            (2_000_000_000, "2.0 s"),
            (7_200_000_000_000, "2.0 h"),
            (u64::MAX, "over 69 s"),
        ] {
            assert_eq!(duration(ns), text);
        }
        assert_eq!(
            (bytes(0), bytes(512), bytes(1536)),
            ("0 B".into(), "512 B".into(), "1.5 KiB".into())
        );
        assert_eq!(rate(25_000_000_000), "25 Gb/s");
    }

    #[test]
    fn columns_are_aligned_and_an_empty_table_is_nothing() {
        let mut out = String::new();
        let mut table = Table::new(&["A", "LONG"]);
        table.put("title", &mut out);
        assert_eq!(out, "");
        table.push(["wide".to_owned(), "x".to_owned()]);
        table.put("title", &mut out);
        assert_eq!(out, "\ntitle\n  A     LONG\n  wide  x\n");
    }
}
