//! A call allocates nothing in the engines that see all calls.

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../message/tests/common/counting.rs"]
mod counting;

use std::alloc::System;

use counting::{Counting, most_in_use};
use starling_call::{CallOptions, Code, MethodId};
use starling_policy::{Datapath, Kind, PolicyEnd, PolicyEngine, PolicyRequest, Side, Verdict};

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting(System);

/// Calls of four methods, of which one in eight fails.
fn calls(engine: &mut dyn PolicyEngine, datapath: &Datapath) {
    let mut options = CallOptions::default();
    for call in 0..1000_u32 {
        let method = MethodId(call % 4);
        let mut request = PolicyRequest {
            now_ns: 1000,
            call: call.into(),
            method,
            datapath,
            options: &mut options,
            body: b"",
            message: None,
        };
        let verdict = engine.on_request(&mut request, 0);
        assert!(matches!(verdict, Verdict::Pass));
        let code = match call % 8 {
            0..4 => Code::Ok,
            4..7 => Code::NotFound,
            _ => Code::Internal,
        };
        let end = PolicyEnd {
            now_ns: 5000,
            call: call.into(),
            method,
            code,
            datapath,
            since_ns: 1000,
            request_bytes: 32,
            response_bytes: Some(8),
        };
        engine.on_end(&end);
        assert_eq!(engine.end_span(&end), None);
    }
}

#[test]
fn calls_allocate_nothing_once_their_series_is_there() {
    let datapath = Datapath {
        id: 1,
        side: Side::Client,
        program: "frontend".to_owned(),
        server: "udp://h:1".to_owned(),
    };
    for (kind, settings) in [
        ("metrics", serde_json::json!({})),
        ("metrics", serde_json::json!({ "series": 2 })),
        ("tracing", serde_json::json!({ "share": 0 })),
    ] {
        let kind = Kind::find(kind).expect("it is there");
        let mut engine = kind.build(&settings).expect("settings");
        // The first calls begin the series.
        calls(&mut *engine, &datapath);
        let (most, ()) = most_in_use(|| calls(&mut *engine, &datapath));
        assert_eq!(most, 0, "{} {settings}", kind.name);
    }
}
