//! Metrics as OTLP has them.

use std::time::SystemTime;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use starling::metrics::{CallSeries, HistogramTotals, Side, ThreadCounters};

/// Series of calls, or threads, of one request: it stays below the 4 MiB that a collector takes.
const ROWS: usize = 64;
/// Bytes of the labels of its series, at most, unless one has more: each is there for each code and histogram.
const LABEL_BYTES: usize = 32 << 10;

pub(crate) fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

fn attribute(key: &str, value: &str) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            value: Some(any_value::Value::StringValue(value.to_owned())),
        }),
        ..KeyValue::default()
    }
}

/// From when to when the counts are.
#[derive(Clone, Copy)]
struct Times {
    begun: u64,
    now: u64,
}

/// All metrics, in requests of bounded size.
pub(crate) fn requests<'a>(
    service_name: &'a str,
    begun: u64,
    calls: &'a [CallSeries],
    threads: &'a [ThreadCounters],
) -> impl Iterator<Item = ExportMetricsServiceRequest> + 'a {
    let now = unix_ns();
    let times = Times { begun, now };
    let mut left = calls;
    let of_calls = std::iter::from_fn(move || {
        let (request, rest) = left.split_at(rows(left));
        left = rest;
        (!request.is_empty()).then_some(request)
    });
    let of_calls = of_calls.map(move |calls| request(service_name, times, calls, &[]));
    let of_threads = threads.chunks(ROWS);
    of_calls.chain(of_threads.map(move |threads| request(service_name, times, &[], threads)))
}

/// How many of these series one request has.
fn rows(calls: &[CallSeries]) -> usize {
    let mut bytes = 0;
    let fits = |series: &&CallSeries| {
        bytes += series.key.method.len() + series.key.address.len();
        bytes <= LABEL_BYTES
    };
    let fitting = calls.iter().take(ROWS).take_while(fits).count();
    fitting.max(calls.len().min(1))
}

fn request(
    service_name: &str,
    times: Times,
    calls: &[CallSeries],
    threads: &[ThreadCounters],
) -> ExportMetricsServiceRequest {
    let mut metrics = Vec::new();
    for side in [Side::Client, Side::Server] {
        let of_side: Vec<_> = calls
            .iter()
            .filter(|series| series.key.side == side)
            .collect();
        metrics.extend(of_calls(side, &of_side, times));
    }
    metrics.extend(of_threads(threads, times));
    let scope = InstrumentationScope {
        name: "starling".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..InstrumentationScope::default()
    };
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(Resource {
                attributes: vec![attribute("service.name", service_name)],
                ..Resource::default()
            }),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(scope),
                metrics,
                schema_url: String::new(),
            }],
            schema_url: String::new(),
        }],
    }
}

fn labels(series: &CallSeries) -> Vec<KeyValue> {
    vec![
        attribute("rpc.system.name", "starling"),
        attribute("rpc.method", &series.key.method),
        attribute("server.address", &series.key.address),
    ]
}

/// Values by bound, as OTLP has them: of each bucket, not up to each bound.
fn point(
    totals: &HistogramTotals,
    within: impl Iterator<Item = (u64, u64)>,
    unit: f64,
    attributes: Vec<KeyValue>,
    times: Times,
) -> HistogramDataPoint {
    let (mut bounds, mut counts, mut before) = (Vec::new(), Vec::new(), 0);
    for (bound, values) in within {
        bounds.push(bound as f64 / unit);
        counts.push(values - before);
        before = values;
    }
    counts.push(totals.count() - before);
    HistogramDataPoint {
        attributes,
        start_time_unix_nano: times.begun,
        time_unix_nano: times.now,
        count: totals.count(),
        sum: Some(totals.sum() as f64 / unit),
        bucket_counts: counts,
        explicit_bounds: bounds,
        ..HistogramDataPoint::default()
    }
}

fn metric(name: String, unit: &str, data: metric::Data) -> Metric {
    Metric {
        name,
        unit: unit.into(),
        data: Some(data),
        ..Metric::default()
    }
}

fn histogram(name: String, unit: &str, points: Vec<HistogramDataPoint>) -> Metric {
    let data = Histogram {
        data_points: points,
        aggregation_temporality: AggregationTemporality::Cumulative.into(),
    };
    metric(name, unit, metric::Data::Histogram(data))
}

fn number(value: u64, attributes: Vec<KeyValue>, times: Times) -> NumberDataPoint {
    NumberDataPoint {
        attributes,
        start_time_unix_nano: times.begun,
        time_unix_nano: times.now,
        value: Some(number_data_point::Value::AsInt(value as i64)),
        ..NumberDataPoint::default()
    }
}

fn sum(name: String, unit: &str, points: Vec<NumberDataPoint>) -> Metric {
    let data = Sum {
        data_points: points,
        aggregation_temporality: AggregationTemporality::Cumulative.into(),
        is_monotonic: true,
    };
    metric(name, unit, metric::Data::Sum(data))
}

/// Nanoseconds of a second.
const SECOND: f64 = 1e9;

fn of_calls(side: Side, series: &[&CallSeries], times: Times) -> Vec<Metric> {
    let side = match side {
        Side::Client => "client",
        Side::Server => "server",
    };
    let mut durations = Vec::new();
    for series in series {
        for (code, totals) in series.totals.durations() {
            let mut attributes = labels(series);
            attributes.push(attribute("rpc.response.status_code", code.name()));
            let within = totals.within_durations();
            durations.push(point(totals, within, SECOND, attributes, times));
        }
    }
    let sizes = |totals: fn(&CallSeries) -> &HistogramTotals| {
        let some = series.iter().filter(|series| totals(series).count() > 0);
        some.map(|series| {
            let totals = totals(series);
            point(totals, totals.within_sizes(), 1.0, labels(series), times)
        })
        .collect()
    };
    let queued = (series.iter())
        .filter(|series| series.totals.queued.count() > 0)
        .map(|series| {
            let queued = &series.totals.queued;
            point(
                queued,
                queued.within_durations(),
                SECOND,
                labels(series),
                times,
            )
        });
    let retries = (series.iter())
        .filter(|series| series.totals.retries > 0)
        .map(|series| number(series.totals.retries, labels(series), times))
        .collect();
    let in_flight = (series.iter()).map(|it| number(it.totals.in_flight(), labels(it), times));
    let gauge = Gauge {
        data_points: in_flight.collect(),
    };
    let all = vec![
        histogram(format!("rpc.{side}.call.duration"), "s", durations),
        histogram(
            format!("rpc.{side}.request.size"),
            "By",
            sizes(|it| &it.totals.requests),
        ),
        histogram(
            format!("rpc.{side}.response.size"),
            "By",
            sizes(|it| &it.totals.responses),
        ),
        histogram(
            format!("starling.{side}.queue.duration"),
            "s",
            queued.collect(),
        ),
        metric(
            format!("starling.{side}.calls_in_flight"),
            "{call}",
            metric::Data::Gauge(gauge),
        ),
        sum(
            format!("starling.{side}.stream_messages"),
            "{message}",
            messages(series, times),
        ),
        sum(format!("starling.{side}.retries"), "{call}", retries),
    ];
    all.into_iter().filter(has_points).collect()
}

/// The messages of streams.
fn messages(series: &[&CallSeries], times: Times) -> Vec<NumberDataPoint> {
    let mut points = Vec::new();
    for series in series {
        let totals = &series.totals;
        for (direction, count) in [
            ("received", totals.messages_received),
            ("sent", totals.messages_sent),
        ] {
            if count > 0 {
                let mut attributes = labels(series);
                attributes.push(attribute("direction", direction));
                points.push(number(count, attributes, times));
            }
        }
    }
    points
}

fn has_points(metric: &Metric) -> bool {
    match &metric.data {
        Some(metric::Data::Histogram(data)) => !data.data_points.is_empty(),
        Some(metric::Data::Sum(data)) => !data.data_points.is_empty(),
        Some(metric::Data::Gauge(data)) => !data.data_points.is_empty(),
        _ => false,
    }
}

fn of_threads(threads: &[ThreadCounters], times: Times) -> Vec<Metric> {
    let mut metrics: Vec<Metric> = Vec::new();
    for thread in threads {
        let stats = &thread.stats;
        let parts = [
            ("endpoint", stats.endpoint.counts().to_vec()),
            ("protocol", stats.protocol.counts().to_vec()),
            ("device", stats.device.counts.clone()),
        ];
        for (part, counts) in parts {
            for (name, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
                let attributes = vec![
                    attribute("address", &stats.address),
                    attribute("role", thread.role),
                    attribute("thread", &thread.number.to_string()),
                ];
                let point = number(count, attributes, times);
                let name = format!("starling.{part}.{name}");
                match metrics.iter_mut().find(|metric| metric.name == name) {
                    Some(Metric {
                        data: Some(metric::Data::Sum(sum)),
                        ..
                    }) => sum.data_points.push(point),
                    _ => metrics.push(sum(name, "1", vec![point])),
                }
            }
        }
    }
    metrics
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use prost::Message;
    use starling::Code;
    use starling::metrics::SeriesKey;
    use starling_metrics::{Registry, Writers};

    use super::*;

    /// What a collector takes, unless it is told otherwise.
    const MOST: usize = 4 << 20;

    /// Series with as many points as they can have, at this address.
    fn full(series: usize, address: &str) -> Vec<CallSeries> {
        let registry = Registry::default();
        let key = |number| SeriesKey {
            side: Side::Server,
            address: address.into(),
            method: format!("a.package.of.some.depth.Service/Method{number}").into(),
        };
        let recorder = registry.recorder(&key(0), Writers::Many);
        for code in Code::ALL {
            for bits in 0..40 {
                recorder.end_with(code, 1 << bits, 1 << bits, Some(1 << bits));
                recorder.record_queued(1 << bits);
            }
        }
        let totals = registry.snapshot().remove(0).totals;
        let of = |number| CallSeries {
            key: key(number),
            totals: totals.clone(),
        };
        (0..series).map(of).collect()
    }

    #[test]
    fn all_series_go_in_requests_that_a_collector_takes() {
        let address = "udp://storage-node-17.rack-3.example.com:9000";
        // Longer names make more requests of them.
        for (address, most) in [(address, 16), (&address.repeat(100), 500)] {
            check(&full(1000, address), most);
        }
    }

    fn check(calls: &[CallSeries], most: usize) {
        let requests: Vec<_> = requests("kv", 1, calls, &[]).collect();
        assert!(requests.len() <= most, "{}", requests.len());
        let mut seen = HashSet::new();
        for request in &requests {
            assert!(request.encoded_len() < MOST, "{}", request.encoded_len());
            let text = format!("{request:?}");
            let methods = text.split("Service/Method").skip(1);
            seen.extend(methods.filter_map(|it| it.split('"').next().map(str::to_owned)));
        }
        assert_eq!(seen.len(), calls.len());
        assert!(super::requests("kv", 1, &[], &[]).next().is_none());
    }
}
