//! Traces: spans of calls at both ends, and their context in metadata, from call to nested call.

mod clients;
#[path = "../common/mod.rs"]
mod common;
mod service;
mod spans;

use std::sync::Once;

use common::{any_addresses, payload, wait_until};
use service::serve;
use spans::{Span, of_trace};
use starling::trace::TraceContext;
use starling::{CallOptions, Channel, Code, Endpoint};
use starling_test_protos::blocking::{BlockingClient, Line};
use starling_test_protos::streams::{Number, Range, StreamsClient};
use starling_test_protos::test::{Failure, RelayRequest, TestClient};

/// Traces are enabled, and no call begins one.
fn enable() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(spans::Keep).expect("the only one");
        starling::trace::enable(0.0);
    });
}

/// A context that no other test has.
fn root() -> TraceContext {
    use std::hash::{BuildHasher, RandomState};
    let id = RandomState::new().hash_one(0);
    let context = TraceContext::new(u128::from(id) << 8 | 7, id | 1, true);
    context.expect("no zeros").with_tracestate("vendor=x")
}

fn hex(context: &TraceContext) -> (String, String) {
    let (trace, span) = (context.trace_id(), context.span_id());
    (format!("{trace:032x}"), format!("{span:016x}"))
}

/// The spans of a trace as a path: each is the parent of the next. All are over.
fn path(root: &TraceContext, len: usize) -> Vec<Span> {
    let (trace, mut parent) = hex(root);
    wait_until(|| {
        let spans = of_trace(&trace);
        spans.len() >= len && spans.iter().all(|span| span.is_over)
    });
    let mut spans = of_trace(&trace);
    let mut path = Vec::new();
    while let Some(at) = spans
        .iter()
        .position(|span| span.field("parent_id") == parent)
    {
        let span = spans.swap_remove(at);
        parent = span.field("span_id").to_owned();
        path.push(span);
    }
    assert!(
        spans.is_empty() && path.len() == len,
        "{path:?} and {spans:?}"
    );
    path
}

fn kinds(path: &[Span]) -> Vec<(&str, &str)> {
    path.iter()
        .map(|span| (span.field("otel.kind"), span.field("otel.name")))
        .collect()
}

#[test]
fn a_trace_goes_through_all_kinds_of_handlers_and_their_own_calls() {
    enable();
    for address in any_addresses() {
        let (server, next) = (serve(&address), serve(&common::shm_address()));
        let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
        let relay = RelayRequest::new()
            .with_address(next.address())
            .with_bytes(b"x");
        // By a nested handler's future, whose channel is local or not.
        let context = root();
        let entered = context.clone().enter();
        client.relay(&relay).wait().expect("an answer");
        drop(entered);
        let spans = path(&context, 4);
        let names = [
            ("client", "test.Test/Relay"),
            ("server", "test.Test/Relay"),
            ("client", "test.Test/Inspect"),
            ("server", "test.Test/Inspect"),
        ];
        assert_eq!(kinds(&spans), names);
        assert_eq!(spans[0].field("server.address"), server.address());
        assert_eq!(spans[1].field("rpc.system.name"), "starling");
        assert!(!spans[1].field("client.address").is_empty());
        assert!(
            spans
                .iter()
                .all(|span| span.field("rpc.response.status_code") == "OK")
        );
        assert_eq!(spans[1].events, 1, "a handler's events are in its span");
        // By a worker's thread, with a channel.
        let context = root();
        let entered = context.clone().enter();
        client
            .work(&payload(next.address().as_bytes()))
            .wait()
            .expect("an answer");
        drop(entered);
        let spans = path(&context, 4);
        assert_eq!(
            kinds(&spans)[1..3],
            [
                ("server", "test.Test/Work"),
                ("client", "test.Test/Inspect")
            ]
        );
        // By the handler of a stream.
        let streams = StreamsClient::new(Channel::lazy(server.address()).expect("a channel"));
        let context = root();
        let entered = context.clone().enter();
        let mut sum = streams.add();
        drop(entered);
        let address = starling::Bytes::copy_from_slice(next.address().as_bytes());
        sum.send_wait(&Number::new().with_padding_bytes(address))
            .expect("room");
        sum.finish_wait().expect("an answer");
        let spans = path(&context, 4);
        assert_eq!(
            kinds(&spans)[..3],
            [
                ("client", "streams.Streams/Add"),
                ("server", "streams.Streams/Add"),
                ("client", "test.Test/Inspect"),
            ]
        );
    }
}

#[test]
fn a_trace_goes_on_in_the_thread_of_a_handler_with_streams() {
    enable();
    for address in any_addresses() {
        let (server, next) = (serve(&address), serve(&common::shm_address()));
        let client = BlockingClient::new(Channel::lazy(server.address()).expect("a channel"));
        let context = root();
        let entered = context.clone().enter();
        let mut letters = client.spell(&Line::new().with_text(next.address()));
        drop(entered);
        assert!(letters.wait().expect("no failure").is_none());
        let (trace, _) = hex(&context);
        wait_until(|| {
            let spans = of_trace(&trace);
            spans.len() == 6 && spans.iter().all(|span| span.is_over)
        });
        let spans = of_trace(&trace);
        let is_of = |span: &&Span, kind, name| {
            span.field("otel.kind") == kind && span.field("otel.name") == name
        };
        let own = spans
            .iter()
            .find(|span| is_of(span, "server", "blocking.Blocking/Spell"))
            .expect("a span");
        assert_eq!(own.events, 1, "the handler's event is in its span");
        let calls = spans
            .iter()
            .filter(|span| is_of(span, "client", "test.Test/Inspect"));
        let parents: Vec<_> = calls.map(|span| span.field("parent_id")).collect();
        assert_eq!(parents, [own.field("span_id"); 2]);
    }
}

#[test]
fn handlers_get_the_context_and_its_state_in_metadata() {
    enable();
    for address in any_addresses() {
        let server = serve(&address);
        let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
        let context = root();
        let entered = context.clone().enter();
        let report = client.inspect(&payload(b"")).wait().expect("a report");
        drop(entered);
        let seen = report.metadata();
        let (parent, state) = (seen.value("traceparent"), seen.value("tracestate"));
        let seen = TraceContext::parse(parent.expect("it was sent"), state).expect("well formed");
        assert_eq!(
            (seen.trace_id(), seen.tracestate()),
            (context.trace_id(), Some("vendor=x"))
        );
        assert_eq!(hex(&seen).1, path(&context, 2)[0].field("span_id"));
        // A context that the caller gives by itself is the parent.
        let own = root();
        let options = CallOptions::default().metadata("traceparent", own.traceparent());
        client
            .inspect_with(&payload(b""), &options.expect("a key"))
            .wait()
            .expect("a report");
        path(&own, 2);
    }
}

#[test]
fn an_endpoints_calls_and_calls_without_generated_code_take_part() {
    enable();
    for address in any_addresses() {
        let server = serve(&address);
        let mut endpoint = Endpoint::client(server.address()).expect("an endpoint");
        let client = TestClient::new(endpoint.channel(server.address()).expect("a channel"));
        let context = root();
        let nothing = payload(b"");
        let calls = async {
            client.inspect(&nothing).await.expect("a report");
            // Bound by now: the fast way.
            client.inspect(&nothing).await.expect("a report");
        };
        endpoint
            .block_on(context.clone().scope(calls))
            .expect("a device");
        let (trace, span) = hex(&context);
        wait_until(|| of_trace(&trace).iter().filter(|span| span.is_over).count() == 4);
        let children = of_trace(&trace);
        let roots = children
            .iter()
            .filter(|child| child.field("parent_id") == span);
        assert_eq!(roots.count(), 2);
        let context = root();
        let entered = context.clone().enter();
        let channel = Channel::lazy(server.address()).expect("a channel");
        let call = channel.call_protobuf("/test.Test/Inspect", &[], &CallOptions::default());
        call.wait().expect("a report");
        drop(entered);
        path(&context, 2);
    }
}

#[test]
fn spans_end_with_the_status_of_their_calls() {
    enable();
    for address in any_addresses() {
        let server = serve(&address);
        let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
        let context = root();
        let entered = context.clone().enter();
        let failure = Failure::new().with_code(Code::NotFound as u32);
        client.fail(&failure).wait().expect_err("as asked for");
        drop(entered);
        for span in path(&context, 2) {
            assert_eq!(span.field("rpc.response.status_code"), "NOT_FOUND");
            assert_eq!(span.field("otel.status_code"), "ERROR");
        }
        let context = root();
        let entered = context.clone().enter();
        client
            .panic(&payload(b""))
            .wait()
            .expect_err("as asked for");
        drop(entered);
        for span in path(&context, 2) {
            assert_eq!(span.field("rpc.response.status_code"), "INTERNAL");
        }
        // Given up by the caller.
        let context = root();
        let entered = context.clone().enter();
        let call = client.wait(&payload(b""));
        let streams = StreamsClient::new(Channel::lazy(server.address()).expect("a channel"));
        let (mut sender, receiver) = streams.wait();
        sender.send_wait(&Number::new()).expect("room");
        drop(entered);
        let (trace, _) = hex(&context);
        // Its server has begun to run it.
        let mut call = Box::pin(call);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        wait_until(|| {
            assert!(call.as_mut().poll(&mut cx).is_pending());
            of_trace(&trace).len() == 4
        });
        drop((call, sender, receiver));
        wait_until(|| of_trace(&trace).iter().all(|span| span.is_over));
        for span in of_trace(&trace) {
            assert_eq!(
                span.field("rpc.response.status_code"),
                "CANCELLED",
                "{span:?}"
            );
        }
        let context = root();
        let entered = context.clone().enter();
        let mut numbers = streams.count(&Range::new().with_to(3));
        drop(entered);
        while numbers.wait().expect("numbers").is_some() {}
        drop(numbers);
        assert!(
            path(&context, 2)
                .iter()
                .all(|span| span.field("rpc.response.status_code") == "OK")
        );
    }
}

#[test]
fn what_is_not_sampled_is_passed_on_without_spans_and_what_is_malformed_is_ignored() {
    enable();
    let server = serve("mem://tracing-unsampled");
    let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
    let context = TraceContext::new(0xabcdef, 0x123, false).expect("no zeros");
    let entered = context.clone().enter();
    let report = client.inspect(&payload(b"")).wait().expect("a report");
    drop(entered);
    let seen = report.metadata().value("traceparent").map(<[u8]>::to_vec);
    assert_eq!(seen, Some(context.traceparent().into_bytes()));
    assert!(of_trace(&hex(&context).0).is_empty());
    for wrong in [
        "nonsense",
        "00-0-0-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ] {
        let options = CallOptions::default()
            .metadata("traceparent", wrong)
            .expect("a key");
        client
            .inspect_with(&payload(b""), &options)
            .wait()
            .expect("a report");
    }
    assert!(spans::count() < 10_000);
}
