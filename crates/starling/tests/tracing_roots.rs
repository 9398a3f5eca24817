//! Calls that belong to no trace begin one, if they are to.

mod common;
#[path = "tracing/spans.rs"]
mod spans;

use common::{payload, serve, wait_until};
use starling::Channel;
use starling::trace::TraceContext;
use starling_test_protos::test::TestClient;

#[test]
fn the_share_of_calls_that_begin_a_trace_is_as_set() {
    tracing::subscriber::set_global_default(spans::Keep).expect("the only one");
    starling::trace::enable(1.0);
    let (server, _) = serve("mem://tracing-roots");
    let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
    let report = client.inspect(&payload(b"")).wait().expect("a report");
    let parent = report
        .metadata()
        .value("traceparent")
        .expect("a trace was begun");
    let context = TraceContext::parse(parent, None).expect("well formed");
    assert!(context.is_sampled());
    let trace = format!("{:032x}", context.trace_id());
    wait_until(|| {
        spans::of_trace(&trace)
            .iter()
            .filter(|span| span.is_over)
            .count()
            == 2
    });
    let root = &spans::of_trace(&trace)[0];
    assert_eq!(
        (root.field("parent_id"), root.field("otel.kind")),
        ("", "client")
    );

    starling::trace::enable(0.0);
    let report = client.inspect(&payload(b"")).wait().expect("a report");
    assert!(report.metadata().value("traceparent").is_none());

    starling::trace::enable(0.25);
    let before = spans::count();
    const CALLS: usize = 4000;
    for _ in 0..CALLS {
        client.inspect(&payload(b"")).wait().expect("a report");
    }
    // A server begins traces, too, of the calls that come without one: 1/4 + 3/4 * 1/4, with two spans or one.
    let spans = spans::count() - before;
    let expected = CALLS / 4 * 2 + CALLS * 3 / 16;
    assert!(
        spans.abs_diff(expected) < expected / 5,
        "{spans} spans, about {expected} expected"
    );
}
