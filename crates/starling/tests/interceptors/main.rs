//! Interceptors at clients and servers, around all kinds of handlers.

#[path = "../common/mod.rs"]
mod common;
mod faults;
mod kinds;
mod nested;
#[path = "../streams/service.rs"]
#[allow(dead_code, reason = "the tests of streams use all of it")]
mod stream_service;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{any_addresses, payload, report_of, server, wait_until};
use kinds::{Answers, Repeats, Rewrites, TOKEN, Token, TokenCheck, Writes, logged};
use parking_lot::Mutex;
use starling::{CallOptions, Channel, Code, ServerHandle, Side, block_on};
use starling_test_protos::test::TestClient;

fn start(builder: starling::ServerBuilder) -> (ServerHandle, Channel) {
    let server = builder.build().expect("a server").spawn().expect("threads");
    let channel = Channel::lazy(server.address()).expect("a channel");
    (server, channel)
}

#[test]
fn a_token_passes_and_a_call_without_one_does_not_run() {
    for address in any_addresses() {
        let (builder, gate) = server(&[&address]);
        gate.open.store(true, Ordering::SeqCst);
        let (server, channel) = start(builder.interceptor(TokenCheck));
        let without = TestClient::new(channel.clone());
        let with = TestClient::new(channel.intercept(Token(TOKEN)));
        let message = payload(&[7; 3000]);
        // An inline handler, one in a worker, and a nested one.
        for call in [
            without.echo(&message),
            without.work(&message),
            without.wait(&message),
        ] {
            let status = call.wait().expect_err("no token");
            assert_eq!(status.code(), Code::Unauthenticated, "{status}");
            assert!(!status.may_have_run(), "{status}");
        }
        assert_eq!(gate.runs.load(Ordering::SeqCst), 0);
        for call in [
            with.echo(&message),
            with.work(&message),
            with.wait(&message),
        ] {
            let response = call.wait().expect("the token is good");
            assert_eq!(response.into_message(), message);
        }
        assert_eq!(gate.runs.load(Ordering::SeqCst), 1, "of echo");
        // Without generated code, and of reflection.
        let path = "/test.Test/Echo";
        let options = CallOptions::default();
        let status = channel
            .call_protobuf(path, &[], &options)
            .wait()
            .expect_err("no token");
        assert_eq!(status.code(), Code::Unauthenticated, "{status}");
        let channel = channel.intercept(Token(TOKEN));
        let request = [&[10, 2][..], b"hi"].concat();
        let response = channel.call_protobuf(path, &request, &options).wait();
        assert_eq!(response.expect("an echo").body(), request);
        drop(server);
    }
}

#[test]
fn the_first_interceptor_sees_a_call_first_and_its_response_last() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let (builder, _gate) = server(&["mem://interceptors-in-order"]);
    let writes = |name| Writes(name, Arc::clone(&log));
    let (_server, channel) = start(builder.interceptor(writes("c")).interceptor(writes("d")));
    let channel = channel.intercept(writes("a")).intercept(writes("b"));
    let client = TestClient::new(channel);
    let response = client.echo(&payload(b"x")).wait().expect("an echo");
    assert_eq!(response.metadata().value("seen"), Some(&b"dcba"[..]));
    let log = std::mem::take(&mut *log.lock());
    let expected = ["a", "b", "c", "d", "d ok", "c ok", "b ok", "a ok"];
    assert_eq!(log, expected);
}

#[test]
fn messages_metadata_and_deadlines_can_be_changed_at_both_ends() {
    for side in [Side::Client, Side::Server] {
        for address in any_addresses() {
            let (builder, _gate) = server(&[&address]);
            let rewrites = Rewrites;
            let client = match side {
                Side::Client => {
                    let (server, channel) = start(builder);
                    (server, TestClient::new(channel.intercept(rewrites)))
                }
                Side::Server => {
                    let (server, channel) = start(builder.interceptor(rewrites));
                    (server, TestClient::new(channel))
                }
            };
            let (_server, client) = client;
            for size in [1, 100_000] {
                let response = client
                    .echo(&payload(&vec![1; size]))
                    .wait()
                    .expect("an echo");
                let bytes = response.message().bytes();
                // Each way adds 1 to each byte.
                assert!(
                    bytes.len() == size && bytes.iter().all(|b| *b == 3),
                    "{side:?} {size}"
                );
                assert_eq!(response.metadata().value("who"), Some(&b"interceptor"[..]));
            }
            let response = client.work(&payload(&[1; 10])).wait().expect("an echo");
            assert_eq!(response.message().bytes(), [3; 10]);
            let report = client.inspect(&payload(b"")).wait().expect("a report");
            let (remaining_us, who) = report_of(&report);
            assert!(
                (1..=7_000_000).contains(&remaining_us),
                "{side:?} {remaining_us}"
            );
            assert_eq!(who, "interceptor");
        }
    }
}

#[test]
fn an_interceptor_answers_in_place_of_the_server() {
    let (builder, gate) = server(&["mem://interceptors-answer"]);
    let (_server, channel) = start(builder.interceptor(Answers(payload(b"server"))));
    let client = TestClient::new(channel.clone());
    let response = client.echo(&payload(b"x")).wait().expect("an answer");
    assert_eq!(response.into_message(), payload(b"server"));
    let raw = channel.call_protobuf("/test.Test/Echo", &[], &CallOptions::default());
    assert_eq!(raw.wait().expect("an answer").body(), b"\n\x06server");
    let client = TestClient::new(channel.intercept(Answers(payload(b"client"))));
    let response = client.echo(&payload(b"x")).wait().expect("an answer");
    assert_eq!(response.into_message(), payload(b"client"));
    assert_eq!(gate.runs.load(Ordering::SeqCst), 0);
}

#[test]
fn a_client_may_repeat_a_call_and_a_server_may_not_run_it_twice() {
    let (builder, gate) = server(&["mem://interceptors-repeat"]);
    let (_server, channel) = start(builder);
    let client = TestClient::new(channel.intercept(Repeats));
    client.echo(&payload(b"x")).wait().expect("an echo");
    assert_eq!(gate.runs.load(Ordering::SeqCst), 2);

    let (builder, gate) = server(&["mem://interceptors-repeat-2"]);
    let (_server, channel) = start(builder.interceptor(Repeats));
    let status = TestClient::new(channel).echo(&payload(b"x")).wait();
    let status = status.expect_err("it ran");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert_eq!(gate.runs.load(Ordering::SeqCst), 1);
}

#[test]
fn one_service_can_have_its_own() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let (gate, other) = (Arc::default(), Arc::clone(&log));
    let service = starling_test_protos::test::TestServer::new(common::Service(gate));
    let builder = starling::Server::builder()
        .bind("mem://interceptors-one")
        .expect("a name")
        .add_intercepted(service, Writes("own", other))
        .interceptor(Writes("all", Arc::clone(&log)));
    let (_server, channel) = start(builder);
    TestClient::new(channel.clone())
        .echo(&payload(b"x"))
        .wait()
        .expect("an echo");
    assert_eq!(logged(&log), ["all", "own", "own ok", "all ok"]);
    // Reflection has only the server's.
    let path = "/starling.reflection.Reflection/ListServices";
    let services = channel.call_protobuf(path, &[], &CallOptions::default());
    services.wait().expect("a list");
    assert_eq!(logged(&log), ["all", "all ok"]);
}

#[test]
fn calls_with_interceptors_run_in_tasks_and_end_when_they_are_dropped() {
    let (builder, gate) = server(&["mem://interceptors-tasks"]);
    let (server, channel) = start(builder);
    let begun = Arc::new(AtomicUsize::new(0));
    let client = TestClient::new(channel.intercept(kinds::Counts(Arc::clone(&begun))));
    let calls: Vec<_> = (0..100u32)
        .map(|i| client.echo(&payload(&i.to_le_bytes())))
        .collect();
    assert_eq!(
        begun.load(Ordering::SeqCst),
        0,
        "a call begins when it is polled"
    );
    block_on(async {
        for (i, result) in futures::future::join_all(calls)
            .await
            .into_iter()
            .enumerate()
        {
            let response = result.expect("an echo");
            assert_eq!(response.message().bytes(), (i as u32).to_le_bytes());
        }
    });
    assert_eq!(begun.load(Ordering::SeqCst), 100);
    let mut waits = Box::pin(client.wait(&payload(b"x")));
    block_on(async {
        let first = futures::poll!(&mut waits);
        assert!(first.is_pending());
    });
    wait_until(|| {
        block_on(async { futures::poll!(&mut waits).is_pending() });
        gate.waiting.load(Ordering::SeqCst) == 1
    });
    drop(waits);
    wait_until(|| gate.dropped.load(Ordering::SeqCst) == 1);
    wait_until(|| channel.calls_outstanding() == 0);
    drop(server);
}

#[test]
fn a_deadline_also_ends_a_call_whose_interceptor_waits() {
    let (builder, gate) = server(&["mem://interceptors-wait"]);
    let (_server, channel) = start(builder.interceptor(kinds::Never));
    let timeout = CallOptions::with_timeout(Duration::from_millis(30));
    let client = TestClient::new(channel.clone()).with_options(timeout.clone());
    let status = client.echo(&payload(b"x")).wait().expect_err("it waits");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    let client = TestClient::new(channel.intercept(kinds::Never)).with_options(timeout);
    let begun = Instant::now();
    let status = client.echo(&payload(b"x")).wait().expect_err("it waits");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert!(!status.may_have_run());
    assert!(begun.elapsed() >= Duration::from_millis(30));
    assert_eq!(gate.runs.load(Ordering::SeqCst), 0);
}
