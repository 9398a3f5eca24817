//! Metrics as text, in Prometheus' exposition format 0.0.4.
//!
//! Names and labels of calls are those of OpenTelemetry's semantic conventions for RPC (`rpc.server.call.duration`,
//! `rpc.method`, `rpc.response.status_code`, `server.address`) as Prometheus writes them. Where those have no
//! name, it begins with `starling_`.

use std::fmt::{self, Write};

use crate::histogram::HistogramTotals;
use crate::registry::{CallSeries, Side};
use crate::totals::CallTotals;

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It grows and shrinks.
    Gauge,
    /// Counts by bound, sum and count.
    Histogram,
}

/// Writes metrics as text.
#[derive(Debug)]
pub struct TextWriter<W>(W);

impl<W: Write> TextWriter<W> {
    /// A writer of metrics behind what is there.
    pub fn new(out: W) -> Self {
        Self(out)
    }

    /// Begins a metric. Its samples follow.
    ///
    /// # Errors
    /// Those of the output.
    pub fn family(&mut self, name: &str, help: &str, kind: Kind) -> fmt::Result {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n")
    }

    /// A sample with labels. A value is written as Rust writes it.
    ///
    /// # Errors
    /// Those of the output.
    pub fn sample(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        value: impl fmt::Display,
    ) -> fmt::Result {
        self.0.write_str(name)?;
        for (index, (label, text)) in labels.iter().enumerate() {
            self.0.write_char(if index == 0 { '{' } else { ',' })?;
            write!(self.0, "{label}=\"")?;
            for character in text.chars() {
                match character {
                    '\\' => self.0.write_str("\\\\")?,
                    '"' => self.0.write_str("\\\"")?,
                    '\n' => self.0.write_str("\\n")?,
                    other => self.0.write_char(other)?,
                }
            }
            self.0.write_char('"')?;
        }
        let close = if labels.is_empty() { "" } else { "}" };
        writeln!(self.0, "{close} {value}")
    }

    /// The samples of a histogram. Each bound is divided by `unit`.
    fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        totals: &HistogramTotals,
        within: impl Iterator<Item = (u64, u64)>,
        unit: f64,
    ) -> fmt::Result {
        let bucket = format!("{name}_bucket");
        let count = totals.count();
        let bounded = within.map(|(bound, values)| ((bound as f64 / unit).to_string(), values));
        for (bound, values) in bounded.chain([("+Inf".to_owned(), count)]) {
            let with_bound = [labels, &[("le", &bound)]].concat();
            self.sample(&bucket, &with_bound, values)?;
        }
        self.sample(&format!("{name}_sum"), labels, totals.sum() as f64 / unit)?;
        self.sample(&format!("{name}_count"), labels, count)
    }
}

/// Nanoseconds of a second.
const SECOND: f64 = 1e9;

/// The counts of calls, and the labels that they have in a text.
#[derive(Debug)]
pub struct LabelledCalls<'a> {
    /// Names and values.
    pub labels: Vec<(&'a str, &'a str)>,
    /// The counts.
    pub totals: &'a CallTotals,
}

/// Writes how long calls took and how large their messages were: `PREFIX_call_duration_seconds`,
/// `PREFIX_request_size_bytes` and `PREFIX_response_size_bytes`.
///
/// # Errors
/// Those of the output.
pub fn write_labelled<W: Write>(
    out: &mut TextWriter<W>,
    prefix: &str,
    calls: &[LabelledCalls<'_>],
) -> fmt::Result {
    let name = format!("{prefix}_call_duration_seconds");
    out.family(
        &name,
        "How long calls took, by the status that they ended with.",
        Kind::Histogram,
    )?;
    for LabelledCalls { labels, totals } in calls {
        for (code, durations) in totals.durations() {
            let status = ("rpc_response_status_code", code.name());
            let labels = [&labels[..], &[status]].concat();
            let within = durations.within_durations();
            out.histogram(&name, &labels, durations, within, SECOND)?;
        }
    }
    type Sizes = fn(&CallTotals) -> &HistogramTotals;
    let sizes: [(_, _, Sizes); 2] = [
        (
            "request",
            "Bytes of requests without their headers.",
            |totals| &totals.requests,
        ),
        (
            "response",
            "Bytes of responses without their headers.",
            |totals| &totals.responses,
        ),
    ];
    for (what, help, sizes) in sizes {
        let name = format!("{prefix}_{what}_size_bytes");
        out.family(&name, help, Kind::Histogram)?;
        for LabelledCalls { labels, totals } in calls {
            let sizes = sizes(totals);
            if sizes.count() > 0 {
                out.histogram(&name, labels, sizes, sizes.within_sizes(), 1.0)?;
            }
        }
    }
    Ok(())
}

/// Writes the metrics of calls.
///
/// # Errors
/// Those of the output.
pub fn write_calls<W: Write>(out: &mut TextWriter<W>, series: &[CallSeries]) -> fmt::Result {
    for side in [Side::Client, Side::Server] {
        let of_side: Vec<_> = (series.iter()).filter(|it| it.key.side == side).collect();
        if !of_side.is_empty() {
            write_side(out, side, &of_side)?;
        }
    }
    Ok(())
}

fn labels_of(series: &CallSeries) -> [(&'static str, &str); 3] {
    [
        ("rpc_system_name", "starling"),
        ("rpc_method", &series.key.method),
        ("server_address", &series.key.address),
    ]
}

fn write_side<W: Write>(
    out: &mut TextWriter<W>,
    side: Side,
    series: &[&CallSeries],
) -> fmt::Result {
    let side = match side {
        Side::Client => "client",
        Side::Server => "server",
    };
    let labelled = series.iter().map(|series| LabelledCalls {
        labels: labels_of(series).to_vec(),
        totals: &series.totals,
    });
    let labelled: Vec<_> = labelled.collect();
    write_labelled(out, &format!("rpc_{side}"), &labelled)?;
    let name = format!("starling_{side}_queue_duration_seconds");
    let help = match side {
        "client" => "How long calls waited for room in a full channel.",
        _ => "How long requests waited for a worker.",
    };
    out.family(&name, help, Kind::Histogram)?;
    for series in series {
        let queued = &series.totals.queued;
        if queued.count() > 0 {
            let within = queued.within_durations();
            out.histogram(&name, &labels_of(series), queued, within, SECOND)?;
        }
    }
    let name = format!("starling_{side}_calls_in_flight");
    out.family(&name, "Calls that have begun and not ended.", Kind::Gauge)?;
    for series in series {
        out.sample(&name, &labels_of(series), series.totals.in_flight())?;
    }
    write_messages(out, side, series)?;
    let name = format!("starling_{side}_retries_total");
    let retried: Vec<_> = (series.iter().filter(|it| it.totals.retries > 0)).collect();
    if !retried.is_empty() {
        out.family(&name, "Calls that were made once more.", Kind::Counter)?;
    }
    for series in retried {
        out.sample(&name, &labels_of(series), series.totals.retries)?;
    }
    Ok(())
}

/// Writes the messages of streams.
fn write_messages<W: Write>(
    out: &mut TextWriter<W>,
    side: &str,
    series: &[&CallSeries],
) -> fmt::Result {
    let name = format!("starling_{side}_stream_messages_total");
    out.family(&name, "Messages of streams, by direction.", Kind::Counter)?;
    for series in series {
        let totals = &series.totals;
        for (direction, messages) in [
            ("received", totals.messages_received),
            ("sent", totals.messages_sent),
        ] {
            if messages > 0 {
                let mut labels = labels_of(series).to_vec();
                labels.push(("direction", direction));
                out.sample(&name, &labels, messages)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use starling_call::Code;

    use super::*;
    use crate::cells::Writers;
    use crate::registry::{Registry, SeriesKey};

    #[test]
    fn the_text_is_that_of_the_exposition_format() {
        let registry = Registry::default();
        let key = SeriesKey {
            side: Side::Server,
            address: "shm://a\"b\\c\nd".into(),
            method: "kv.Kv/Get".into(),
        };
        let recorder = registry.recorder(&key, Writers::One);
        recorder.record_in_turn(Code::Ok, 32, 17);
        recorder.end_turn(|| 1024);
        recorder.begin();
        recorder.record_message_sent();
        let mut text = String::new();
        write_calls(&mut TextWriter::new(&mut text), &registry.snapshot()).expect("a string");
        let labels = "rpc_system_name=\"starling\",rpc_method=\"kv.Kv/Get\",\
                      server_address=\"shm://a\\\"b\\\\c\\nd\"";
        let name = "rpc_server_call_duration_seconds";
        for line in [
            format!("# TYPE {name} histogram"),
            format!(
                "{name}_bucket{{{labels},rpc_response_status_code=\"OK\",le=\"0.000000512\"}} 0"
            ),
            format!(
                "{name}_bucket{{{labels},rpc_response_status_code=\"OK\",le=\"0.000001024\"}} 1"
            ),
            format!("{name}_bucket{{{labels},rpc_response_status_code=\"OK\",le=\"+Inf\"}} 1"),
            format!("{name}_sum{{{labels},rpc_response_status_code=\"OK\"}} 0.000001024"),
            format!("{name}_count{{{labels},rpc_response_status_code=\"OK\"}} 1"),
            format!("rpc_server_request_size_bytes_bucket{{{labels},le=\"64\"}} 1"),
            format!("rpc_server_response_size_bytes_sum{{{labels}}} 17"),
            format!("starling_server_calls_in_flight{{{labels}}} 1"),
            format!("starling_server_stream_messages_total{{{labels},direction=\"sent\"}} 1"),
        ] {
            assert!(
                text.lines().any(|own| own == line),
                "{line}\nis not in\n{text}"
            );
        }
        assert!(!text.contains("client"), "there are no calls of clients");
    }

    #[test]
    fn a_sample_without_labels_has_no_braces() {
        let mut text = String::new();
        let mut out = TextWriter::new(&mut text);
        out.family("up", "Whether it is up.", Kind::Gauge)
            .expect("a string");
        out.sample("up", &[], 1).expect("a string");
        assert_eq!(text, "# HELP up Whether it is up.\n# TYPE up gauge\nup 1\n");
    }
}
