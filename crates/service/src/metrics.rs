//! What policies have counted, in Prometheus' exposition format.

use std::fmt;
use std::sync::Arc;

use starling_metrics::{CallTotals, Kind, LabelledCalls, TextWriter, write_labelled};
use starling_plugin_host::FaultCounts;
use starling_policy::{PolicySpec, Series, Side};

use crate::runtime::Counts;
use crate::spans::SpanCounts;

/// OpenTelemetry's name for the rest.
const OTHER: &str = "_OTHER";

/// A policy with what it has done, and its series with the methods' names.
#[derive(Debug)]
pub(crate) struct PolicyMetrics {
    pub(crate) spec: PolicySpec,
    pub(crate) counts: Counts,
    pub(crate) has_failed: bool,
    pub(crate) series: Vec<(Series, Option<Arc<str>>)>,
}

/// A series with its counts of a moment.
struct Counted<'a> {
    policy: &'a str,
    program: String,
    side: &'static str,
    server: String,
    method: String,
    totals: CallTotals,
}

impl<'a> Counted<'a> {
    fn new(policy: &'a str, series: &Series, name: Option<&str>) -> Self {
        let totals = series.recorder.totals();
        let Some(labels) = &series.labels else {
            return Self {
                policy,
                program: OTHER.to_owned(),
                side: OTHER,
                server: OTHER.to_owned(),
                method: OTHER.to_owned(),
                totals,
            };
        };
        let number = || format!("{:#010x}", labels.method.0);
        Self {
            policy,
            program: labels.program.clone(),
            side: match labels.side {
                Side::Client => "client",
                Side::Server => "server",
            },
            server: labels.server.clone(),
            method: name.map_or_else(number, str::to_owned),
            totals,
        }
    }

    fn labels(&self) -> Vec<(&str, &str)> {
        vec![
            ("policy", self.policy),
            ("program", &self.program),
            ("side", self.side),
            ("server_address", &self.server),
            ("rpc_method", &self.method),
        ]
    }
}

/// All of it. Not for a runtime's thread: it takes long.
pub(crate) fn text(
    report: &[PolicyMetrics],
    spans: Option<SpanCounts>,
    faults: Option<FaultCounts>,
) -> String {
    let mut text = String::new();
    let mut out = TextWriter::new(&mut text);
    let written = write(&mut out, report, spans).and_then(|()| match faults {
        Some(faults) => write_faults(&mut out, faults),
        None => Ok(()),
    });
    written.expect("a string takes all text");
    text
}

/// What has gone wrong with plug-ins.
fn write_faults(out: &mut TextWriter<&mut String>, faults: FaultCounts) -> fmt::Result {
    let name = "starling_plugin_faults_total";
    let help = "What plug-ins did wrong: files that were not taken, calls that panicked, blocked, returned nonsense.";
    out.family(name, help, Kind::Counter)?;
    for (fault, count) in [
        ("file", faults.files),
        ("panic", faults.panics),
        ("block", faults.blocks),
        ("malformed", faults.malformed),
    ] {
        out.sample(name, &[("fault", fault)], count)?;
    }
    Ok(())
}

fn write(
    out: &mut TextWriter<&mut String>,
    report: &[PolicyMetrics],
    spans: Option<SpanCounts>,
) -> fmt::Result {
    let mut counted = Vec::new();
    for policy in report {
        for (series, name) in &policy.series {
            let policy = &policy.spec.name;
            counted.push(Counted::new(policy, series, name.as_deref()));
        }
    }
    counted.retain(|counted| counted.totals.calls() > 0);
    let calls = counted.iter().map(|counted| LabelledCalls {
        labels: counted.labels(),
        totals: &counted.totals,
    });
    let calls: Vec<_> = calls.collect();
    if !calls.is_empty() {
        write_labelled(out, "starling_service", &calls)?;
    }
    write_policies(out, report)?;
    let Some(spans) = spans else {
        return Ok(());
    };
    for (name, help, count) in [
        (
            "exported",
            "Spans that the collector has taken.",
            spans.exported,
        ),
        (
            "dropped",
            "Spans that were lost: the queue was full, or the collector did not take them.",
            spans.dropped,
        ),
    ] {
        let name = format!("starling_service_spans_{name}_total");
        out.family(&name, help, Kind::Counter)?;
        out.sample(&name, &[], count)?;
    }
    Ok(())
}

/// What all policies have done.
fn write_policies(out: &mut TextWriter<&mut String>, report: &[PolicyMetrics]) -> fmt::Result {
    type Count = fn(&PolicyMetrics) -> u64;
    let families: [(_, _, _, Count); 5] = [
        (
            "passed_total",
            "Requests that a policy let pass.",
            Kind::Counter,
            |of| of.counts.passed,
        ),
        (
            "delayed_total",
            "Of these, those that waited.",
            Kind::Counter,
            |of| of.counts.delayed,
        ),
        (
            "refused_total",
            "Requests that a policy refused.",
            Kind::Counter,
            |of| of.counts.refused,
        ),
        ("held", "Requests that wait now.", Kind::Gauge, |of| {
            of.counts.held as u64
        }),
        (
            "failed",
            "1: the engine of the policy has failed.",
            Kind::Gauge,
            |of| of.has_failed.into(),
        ),
    ];
    if report.is_empty() {
        return Ok(());
    }
    for (name, help, kind, count) in families {
        let name = format!("starling_policy_{name}");
        out.family(&name, help, kind)?;
        for of in report {
            let labels = [("policy", &*of.spec.name), ("kind", &*of.spec.kind)];
            out.sample(&name, &labels, count(of))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use starling_endpoint::{Code, MethodId};
    use starling_metrics::{CallRecorder, Writers};
    use starling_policy::SeriesLabels;

    use super::*;

    #[test]
    fn series_have_labels_and_the_rest_has_none_of_its_own() {
        let recorder = || {
            let recorder = CallRecorder::new(Writers::One);
            recorder.record(Code::Ok, 1000, 32, Some(8));
            Arc::new(recorder)
        };
        let labels = SeriesLabels {
            side: Side::Server,
            program: "frontend".to_owned(),
            server: "udp://h:1".to_owned(),
            method: MethodId(0x12),
        };
        let series = |labels: Option<SeriesLabels>| Series {
            labels: labels.map(Arc::new),
            recorder: recorder(),
        };
        let spec = PolicySpec::parse(r#"{"name":"calls","kind":"metrics"}"#).expect("a policy");
        let report = vec![PolicyMetrics {
            spec,
            counts: Default::default(),
            has_failed: true,
            series: vec![
                (series(Some(labels.clone())), None),
                (series(Some(labels)), Some("kv.Kv/Get".into())),
                (series(None), None),
            ],
        }];
        let spans = SpanCounts {
            exported: 5,
            dropped: 7,
        };
        let faults = FaultCounts {
            panics: 3,
            ..FaultCounts::default()
        };
        let text = text(&report, Some(spans), Some(faults));
        let name = "starling_service_call_duration_seconds_count";
        let of = |program: &str, side: &str, server: &str, method: &str| {
            format!(
                "{name}{{policy=\"calls\",program=\"{program}\",side=\"{side}\",server_address=\"{server}\",\
                 rpc_method=\"{method}\",rpc_response_status_code=\"OK\"}} 1"
            )
        };
        for line in [
            &*of("frontend", "server", "udp://h:1", "0x00000012"),
            &*of("frontend", "server", "udp://h:1", "kv.Kv/Get"),
            &*of(OTHER, OTHER, OTHER, OTHER),
            "starling_policy_refused_total{policy=\"calls\",kind=\"metrics\"} 0",
            "starling_policy_failed{policy=\"calls\",kind=\"metrics\"} 1",
            "starling_plugin_faults_total{fault=\"panic\"} 3",
            "starling_service_spans_exported_total 5",
            "starling_service_spans_dropped_total 7",
        ] {
            assert!(text.lines().any(|own| own == line), "{line}\n{text}");
        }
    }
}
