//! Spans as OTLP has them in JSON: ids in hexadecimal, 64-bit numbers as texts, enumerations as numbers.

use serde_json::{Value, json};
use starling_endpoint::Code;
use starling_policy::Side;

use super::RecordedSpan;

/// Of `SpanKind` and `StatusCode`.
const SERVER: u32 = 2;
const CLIENT: u32 = 3;
const ERROR: u32 = 2;

/// An `ExportTraceServiceRequest`. `began_ns`: when the clock of the spans was at 0, in Unix time.
pub(super) fn request(service: &str, began_ns: u64, spans: &[RecordedSpan]) -> Vec<u8> {
    let spans: Vec<Value> = spans.iter().map(|span| of(span, began_ns)).collect();
    let attributes = [
        attribute("service.name", "starling-service"),
        attribute("service.instance.id", service),
    ];
    let request = json!({
        "resourceSpans": [{
            "resource": { "attributes": attributes },
            "scopeSpans": [{
                "scope": { "name": "starling", "version": env!("CARGO_PKG_VERSION") },
                "spans": spans,
            }],
        }],
    });
    request.to_string().into_bytes()
}

fn of(recorded: &RecordedSpan, began_ns: u64) -> Value {
    let (context, datapath) = (recorded.span.context, &recorded.datapath);
    let number = format!("{:#010x}", recorded.method.0);
    let method = recorded.path.as_deref().unwrap_or(&number);
    let time = |ns: u64| began_ns.saturating_add(ns).to_string();
    let mut span = json!({
        "traceId": format!("{:032x}", context.trace_id()),
        "spanId": format!("{:016x}", context.span_id()),
        "name": method,
        "kind": match datapath.side {
            Side::Client => CLIENT,
            Side::Server => SERVER,
        },
        "startTimeUnixNano": time(recorded.began_ns),
        "endTimeUnixNano": time(recorded.ended_ns),
        "attributes": [
            attribute("rpc.system.name", "starling"),
            attribute("rpc.method", method),
            attribute("rpc.response.status_code", recorded.code.name()),
            attribute("server.address", &datapath.server),
            attribute("starling.program", &datapath.program),
            attribute("starling.policy", &recorded.policy),
        ],
    });
    if let Some(parent) = recorded.span.parent_id {
        span["parentSpanId"] = json!(format!("{parent:016x}"));
    }
    if recorded.code != Code::Ok {
        span["status"] = json!({ "code": ERROR });
    }
    span
}

fn attribute(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

#[cfg(test)]
mod tests {
    use super::super::tests::span;
    use super::*;

    #[test]
    fn a_request_is_as_the_specification_has_it() {
        let spans = [span(Code::Ok, None), span(Code::NotFound, Some(7))];
        let body = request("mesh", 1_000_000, &spans);
        let value: Value = serde_json::from_slice(&body).expect("JSON");
        let spans = &value["resourceSpans"][0]["scopeSpans"][0]["spans"];
        let first = &spans[0];
        assert_eq!(first["traceId"], "00000000000000010000000000000002");
        assert_eq!(first["spanId"], "0000000000000003");
        assert_eq!(
            (&first["name"], &first["kind"]),
            (&json!("0x00001234"), &json!(3))
        );
        assert_eq!(first["startTimeUnixNano"], "1000500");
        assert_eq!(first["endTimeUnixNano"], "1001500");
        assert!(first.get("parentSpanId").is_none() && first.get("status").is_none());
        let text = first["attributes"].to_string();
        for expected in [
            r#"{"key":"rpc.response.status_code","value":{"stringValue":"OK"}}"#,
            r#"{"key":"starling.program","value":{"stringValue":"frontend"}}"#,
        ] {
            assert!(text.contains(expected), "{text}");
        }
        assert_eq!(spans[1]["parentSpanId"], "0000000000000007");
        assert_eq!(spans[1]["status"], json!({ "code": 2 }));
    }
}
