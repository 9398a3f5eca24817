//! Calls of which their callers see more than endpoints do: with interceptors, compression and bounds.

use std::sync::atomic::Ordering;
use std::time::Duration;

use starling::metrics::{CallTotals, Side};
use starling::testing::{Fault, Faults};
use starling::{
    CallOptions, Caller, Channel, Code, Compression, Endpoint, MethodConfig, MethodOptions,
    RetryPolicy, ServerHandle, ServiceConfig, Status,
};
use starling_test_protos::streams::{Number, StreamsClient};
use starling_test_protos::test::TestClient;

use crate::common::{any_addresses, payload, serve, server, wait_until};
use crate::{calls, failure, streams};

const LEN: usize = 20_000;

fn totals(side: Side, server: &ServerHandle, method: &str) -> CallTotals {
    let all = calls(side, server);
    all.get(method).cloned().unwrap_or_default()
}

async fn use_all<C: Caller>(client: TestClient<C>) {
    let message = payload(&[7; LEN]);
    client.echo(&message).await.expect("an echo");
    client.work(&message).await.expect("an echo");
    client.wait(&message).await.expect("an echo");
    let bounded = CallOptions::default().max_response_bytes(100);
    let status = client
        .echo_with(&message, &bounded)
        .await
        .expect_err("long");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
}

#[test]
fn compressed_and_bounded_calls_count_as_their_callers_see_them() {
    starling::metrics::enable();
    let compression = Compression::lz4();
    for address in any_addresses() {
        let (builder, gate) = server(&[&address]);
        gate.open.store(true, Ordering::SeqCst);
        let options = MethodOptions::default().compression(compression);
        let builder = builder.method_options("", options);
        let server = builder.build().expect("a server").spawn().expect("threads");
        let options = CallOptions::default().compression(compression);
        let channel = Channel::lazy(server.address()).expect("a channel");
        starling::block_on(use_all(
            TestClient::new(channel).with_options(options.clone()),
        ));
        let mut endpoint = Endpoint::client(server.address()).expect("an endpoint");
        let channel = endpoint.channel(server.address()).expect("a channel");
        endpoint
            .block_on(use_all(TestClient::new(channel).with_options(options)))
            .expect("a device");
        for side in [Side::Server, Side::Client] {
            for (method, count) in [("Echo", 4), ("Work", 2), ("Wait", 2)] {
                let method = format!("test.Test/{method}");
                wait_until(|| totals(side, &server, &method).calls() == count);
                let totals = totals(side, &server, &method);
                assert_eq!(totals.in_flight(), 0, "{side:?} {method}");
                assert!(
                    totals.requests.sum() >= count * LEN as u64,
                    "{side:?} {method} {totals:?}"
                );
                let responses = totals.responses.sum() / LEN as u64;
                let refused = totals.duration(Code::ResourceExhausted).count();
                let expected = match (side, count) {
                    // The server has sent what the client did not take.
                    (Side::Client, 4) => (2, 2),
                    _ => (count, 0),
                };
                assert_eq!((responses, refused), expected, "{side:?} {method}");
            }
        }
    }
}

#[test]
fn what_interceptors_make_of_calls_counts() {
    starling::metrics::enable();
    for address in any_addresses() {
        let (builder, _gate) = server(&[&address]);
        let of_server = Faults::with_seed(1).add("test.Test/Work", Fault::abort(aborted()));
        let builder = builder.interceptor(of_server);
        let server = builder.build().expect("a server").spawn().expect("threads");
        let of_client = || Faults::with_seed(1).add("test.Test/Echo", Fault::abort(aborted()));
        let channel = Channel::lazy(server.address()).expect("a channel");
        starling::block_on(fail_all(TestClient::new(channel.intercept(of_client()))));
        let mut endpoint = Endpoint::client(server.address()).expect("an endpoint");
        let channel = endpoint.channel(server.address()).expect("a channel");
        endpoint
            .block_on(fail_all(TestClient::new(channel.intercept(of_client()))))
            .expect("a device");
        let count = |side, method, code| totals(side, &server, method).duration(code).count();
        for (side, method) in [
            (Side::Client, "test.Test/Echo"),
            (Side::Client, "test.Test/Work"),
            (Side::Server, "test.Test/Work"),
        ] {
            wait_until(|| count(side, method, Code::Aborted) == 2);
            let totals = totals(side, &server, method);
            assert_eq!((totals.calls(), totals.in_flight()), (2, 0), "{side:?}");
        }
        assert_eq!(totals(Side::Server, &server, "test.Test/Echo").calls(), 0);
    }
}

fn aborted() -> Status {
    Status::new(Code::Aborted, "a test")
}

async fn fail_all<C: Caller>(client: TestClient<C>) {
    let message = payload(b"abc");
    client.echo(&message).await.expect_err("at the client");
    client.work(&message).await.expect_err("at the server");
}

#[test]
fn messages_of_streams_count_with_what_they_are_when_decompressed() {
    starling::metrics::enable();
    for address in any_addresses() {
        let server = streams::server(&address);
        let channel = Channel::lazy(server.address()).expect("a channel");
        let options = CallOptions::default().compression(Compression::lz4());
        let client = StreamsClient::new(channel).with_options(options);
        let mut sum = client.add();
        for value in 0..4 {
            let number = Number::new().with_value(value).with_padding(&[7; LEN]);
            sum.send_wait(&number).expect("room");
        }
        sum.finish_wait().expect("a sum");
        for side in [Side::Client, Side::Server] {
            wait_until(|| totals(side, &server, "streams.Streams/Add").calls() == 1);
            let add = totals(side, &server, "streams.Streams/Add");
            assert_eq!(add.requests.count(), 4, "{side:?}");
            assert_eq!(add.requests.sum() / LEN as u64, 4, "{side:?}");
        }
    }
}

#[test]
fn a_call_that_is_made_again_counts_once_with_its_retries() {
    starling::metrics::enable();
    let (server, _) = serve("mem://metrics-retries");
    let pause = Duration::from_millis(1);
    let policy = RetryPolicy::default().backoff(pause, pause, 1.0);
    let config = ServiceConfig::new().method("", MethodConfig::new().retry(policy));
    let channel = Channel::builder(server.address()).service_config(config);
    let client = TestClient::new(channel.lazy().expect("a channel"));
    let request = failure(Code::Unavailable);
    client.fail(&request).wait().expect_err("each time");
    client.echo(&payload(b"")).wait().expect("an echo");
    let fail = totals(Side::Client, &server, "test.Test/Fail");
    assert_eq!((fail.calls(), fail.retries, fail.in_flight()), (1, 3, 0));
    let echo = totals(Side::Client, &server, "test.Test/Echo");
    assert_eq!((echo.calls(), echo.retries), (1, 0));
    wait_until(|| totals(Side::Server, &server, "test.Test/Fail").calls() == 4);
    let page = starling::metrics::prometheus();
    let line = page
        .lines()
        .find(|line| line.starts_with("starling_client_retries_total{"));
    let line = line.expect("a line of retries");
    assert!(
        line.contains("test.Test/Fail") && line.ends_with(" 3"),
        "{line}"
    );
}
