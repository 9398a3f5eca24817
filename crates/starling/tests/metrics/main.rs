//! Metrics: what is counted of calls of all kinds, at both ends, and how it is shown.

mod callers;
#[path = "../common/mod.rs"]
mod common;
mod page;
mod parser;
mod streams;
mod text;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{any_addresses, payload, serve, wait_until};
use futures::FutureExt;
use starling::metrics::{CallTotals, Side};
use starling::{CallOptions, Channel, Code, Endpoint, ServerHandle};
use starling_test_protos::test::{Failure, RelayRequest, TestClient};

/// The counts of the calls to a server, by method.
fn calls(side: Side, server: &ServerHandle) -> HashMap<String, CallTotals> {
    let all = starling::metrics::snapshot().into_iter();
    all.filter(|series| series.key.side == side && &*series.key.address == server.address())
        .map(|series| (series.key.method.to_string(), series.totals))
        .collect()
}

fn failure(code: Code) -> Failure {
    Failure::new().with_code(code as u32)
}

#[test]
fn both_ends_count_calls_of_all_kinds() {
    starling::metrics::enable();
    for address in any_addresses() {
        let (server, gate) = serve(&address);
        gate.open.store(true, Ordering::SeqCst);
        let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
        for _ in 0..3 {
            client.echo(&payload(&[7; 100])).wait().expect("an echo");
        }
        client
            .fail(&failure(Code::NotFound))
            .wait()
            .expect_err("as asked for");
        client
            .panic(&payload(b""))
            .wait()
            .expect_err("as asked for");
        client.work(&payload(&[7; 3000])).wait().expect("an echo");
        client.wait(&payload(b"abc")).wait().expect("an echo");
        client
            .wait(&payload(b"panic"))
            .wait()
            .expect_err("as asked for");
        for side in [Side::Server, Side::Client] {
            // The response leaves before the end of its turn, which counts it.
            wait_until(|| {
                calls(side, &server)
                    .get("test.Test/Echo")
                    .is_some_and(|it| it.calls() == 3)
            });
            wait_until(|| {
                calls(side, &server)
                    .get("test.Test/Panic")
                    .is_some_and(|it| it.calls() == 1)
            });
            let calls = calls(side, &server);
            let echo = &calls["test.Test/Echo"];
            assert_eq!(
                (echo.calls(), echo.errors(), echo.in_flight()),
                (3, 0, 0),
                "{side:?}"
            );
            assert!(echo.duration(Code::Ok).sum() > 0);
            assert_eq!((echo.requests.count(), echo.responses.count()), (3, 3));
            assert!(
                echo.requests.sum() >= 300 && echo.requests.sum() < 600,
                "{echo:?}"
            );
            assert_eq!(echo.requests.sum(), echo.responses.sum());
            let count = |method: &str, code| calls[method].duration(code).count();
            assert_eq!(count("test.Test/Fail", Code::NotFound), 1, "{side:?}");
            assert_eq!(count("test.Test/Panic", Code::Internal), 1, "{side:?}");
            assert_eq!(count("test.Test/Work", Code::Ok), 1);
            assert!(calls["test.Test/Work"].responses.sum() >= 3000);
            assert_eq!(count("test.Test/Wait", Code::Ok), 1);
            assert_eq!(count("test.Test/Wait", Code::Internal), 1, "{side:?}");
            assert!(calls.values().all(|totals| totals.in_flight() == 0));
        }
        let work = &calls(Side::Server, &server)["test.Test/Work"];
        assert_eq!(work.queued.count(), 1, "it waited for its worker");
    }
}

#[test]
fn calls_are_in_flight_until_they_end_and_a_dropped_one_is_cancelled() {
    starling::metrics::enable();
    for address in any_addresses() {
        let (server, gate) = serve(&address);
        let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
        let mut outstanding: Vec<_> = (0..3).map(|_| client.wait(&payload(b""))).collect();
        wait_until(|| gate.waiting.load(Ordering::SeqCst) == 3);
        for side in [Side::Server, Side::Client] {
            assert_eq!(
                calls(side, &server)["test.Test/Wait"].in_flight(),
                3,
                "{side:?}"
            );
        }
        outstanding.pop();
        let cancelled = |side| {
            let wait = &calls(side, &server)["test.Test/Wait"];
            wait.duration(Code::Cancelled).count() == 1 && wait.in_flight() == 2
        };
        wait_until(|| cancelled(Side::Client) && cancelled(Side::Server));
        gate.open.store(true, Ordering::SeqCst);
        for call in outstanding {
            call.wait().expect("an echo");
        }
        wait_until(|| calls(Side::Server, &server)["test.Test/Wait"].calls() == 3);
        // What is gone stays counted.
        drop(client);
        let address = server.address().to_owned();
        let before = calls(Side::Server, &server);
        drop(server);
        let after: Vec<_> = starling::metrics::snapshot()
            .into_iter()
            .filter(|series| *series.key.address == *address && series.key.side == Side::Server)
            .collect();
        assert_eq!(after.len(), before.len());
        for series in after {
            assert!(series.totals.calls() >= before[&*series.key.method].calls());
        }
    }
}

#[test]
fn a_callers_last_call_counts_though_nobody_drives_the_endpoint_any_more() {
    starling::metrics::enable();
    for address in any_addresses() {
        let (server, _gate) = serve(&address);
        let channel = Channel::builder(server.address()).own_endpoint().lazy();
        let client = TestClient::new(channel.expect("a channel"));
        let echoes = || calls(Side::Client, &server)["test.Test/Echo"].calls();
        for number in 1..=20 {
            client.echo(&payload(b"")).wait().expect("an echo");
            // The thread that a channel keeps may have the endpoint just now.
            wait_until(|| echoes() == number);
        }
        client.echo(&payload(b"")).wait().expect("an echo");
        drop(client);
        wait_until(|| echoes() == 21);
    }
}

#[test]
fn a_call_begins_when_the_endpoint_takes_it_which_may_have_slept_for_another_call() {
    starling::metrics::enable();
    for address in any_addresses() {
        let (server, gate) = serve(&address);
        let channel = Channel::builder(server.address()).own_endpoint().lazy();
        let client = TestClient::new(channel.expect("a channel"));
        std::thread::scope(|scope| {
            // It drives the endpoint, and sleeps there.
            let sleeper = scope.spawn(|| client.wait(&payload(b"")).wait().expect("an echo"));
            wait_until(|| gate.waiting.load(Ordering::SeqCst) == 1);
            std::thread::sleep(Duration::from_millis(300));
            let begun = Instant::now();
            client.echo(&payload(b"")).wait().expect("an echo");
            let most_ns = begun.elapsed().as_nanos() as u64;
            gate.open.store(true, Ordering::SeqCst);
            sleeper.join().expect("no panic");
            wait_until(|| calls(Side::Client, &server).contains_key("test.Test/Echo"));
            let recorded = calls(Side::Client, &server)["test.Test/Echo"].duration(Code::Ok);
            assert_eq!(recorded.count(), 1);
            assert!(
                recorded.sum() <= most_ns,
                "{} of {most_ns} ns",
                recorded.sum()
            );
        });
    }
}

#[test]
fn the_calls_of_endpoints_and_of_handlers_count() {
    starling::metrics::enable();
    for address in any_addresses() {
        let (server, gate) = serve(&address);
        gate.open.store(true, Ordering::SeqCst);
        let mut endpoint = Endpoint::client(server.address()).expect("an endpoint");
        let client = TestClient::new(endpoint.channel(server.address()).expect("a channel"));
        let (first, second) = (payload(b"1"), payload(b"2"));
        endpoint
            .block_on(async {
                client.echo(&first).await.expect("an echo");
                client.echo(&second).await.expect("an echo");
                client
                    .fail(&failure(Code::Aborted))
                    .await
                    .expect_err("as asked for");
                drop(client.wait(&first));
            })
            .expect("a device");
        let next = serve(&common::shm_address()).0;
        let request = RelayRequest::new()
            .with_address(next.address())
            .with_bytes(b"x");
        let channel = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
        channel.relay(&request).wait().expect("an echo");
        // The response leaves before the end of its turn, which counts the calls.
        let has = |side, server: &ServerHandle, method: &str| {
            calls(side, server)
                .get(method)
                .is_some_and(|it| it.calls() == 1)
        };
        wait_until(|| has(Side::Server, &server, "test.Test/Relay"));
        wait_until(|| has(Side::Client, &next, "test.Test/Echo"));
        wait_until(|| has(Side::Client, &server, "test.Test/Relay"));
        let own = calls(Side::Client, &server);
        assert_eq!(own["test.Test/Echo"].calls(), 2);
        assert_eq!(own["test.Test/Fail"].duration(Code::Aborted).count(), 1);
        assert_eq!(own["test.Test/Wait"].duration(Code::Cancelled).count(), 1);
        assert!(
            own.values().all(|totals| totals.in_flight() == 0),
            "{own:?}"
        );
    }
}

#[test]
fn a_call_that_waits_for_room_in_its_channel_counts_as_queued() {
    starling::metrics::enable();
    let (server, gate) = serve("mem://metrics-queue");
    let channel = Channel::builder(server.address())
        .capacity(1)
        .lazy()
        .expect("a channel");
    let client = TestClient::new(channel);
    let first = client.wait(&payload(b"1"));
    let second = client.wait(&payload(b"2"));
    wait_until(|| gate.waiting.load(Ordering::SeqCst) == 1);
    let opens = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(5));
        gate.open.store(true, Ordering::SeqCst);
    });
    first.wait().expect("an echo");
    second.wait().expect("an echo");
    opens.join().expect("no panic");
    wait_until(|| calls(Side::Client, &server)["test.Test/Wait"].calls() == 2);
    let wait = &calls(Side::Client, &server)["test.Test/Wait"];
    assert_eq!(wait.queued.count(), 1);
    assert!(wait.queued.quantile_ns(1.0) > Some(0));
}

#[test]
fn streams_count_as_calls_with_messages() {
    use starling_test_protos::streams::{Number, Range, StreamsClient};
    starling::metrics::enable();
    for address in any_addresses() {
        let service = streams::server(&address);
        let client = StreamsClient::new(Channel::lazy(service.address()).expect("a channel"));
        let mut numbers = client.count(&Range::new().with_to(5));
        while numbers.wait().expect("numbers").is_some() {}
        let mut sum = client.add();
        for value in 0..4 {
            sum.send_wait(&Number::new().with_value(value))
                .expect("room");
        }
        sum.finish_wait().expect("a sum");
        let (mut sender, receiver) = client.echo();
        sender.send_wait(&Number::new()).expect("room");
        drop(receiver);
        drop(sender);
        for side in [Side::Client, Side::Server] {
            let method =
                |name: &str| calls(side, &service)[&format!("streams.Streams/{name}")].clone();
            let is_over = |name| method(name).calls() == 1 && method(name).in_flight() == 0;
            wait_until(|| is_over("Count") && is_over("Add"));
            let (count, add) = (method("Count"), method("Add"));
            let own = (
                count.messages_received.max(count.messages_sent),
                add.messages_received.max(add.messages_sent),
            );
            assert_eq!(own, (5, 4), "{side:?}");
            assert_eq!(count.responses.count(), 5, "{side:?}");
            assert_eq!(add.requests.count(), 4, "{side:?}");
            assert_eq!(count.duration(Code::Ok).count(), 1);
        }
        let cancelled = || {
            let echo = &calls(Side::Client, &service)["streams.Streams/Echo"];
            echo.duration(Code::Cancelled).count() == 1
        };
        wait_until(cancelled);
    }
}

#[test]
fn a_stream_whose_end_its_client_learns_before_any_message_counts_by_that() {
    use starling_test_protos::streams::StreamsClient;
    starling::metrics::enable();
    let nobody = common::shm_address();
    let channel = Channel::builder(&nobody).lazy().expect("a channel");
    let (sender, mut receiver) = StreamsClient::new(channel).echo();
    let ended = receiver
        .initial_metadata_wait()
        .expect_err("nobody is there");
    assert_eq!(ended.code(), Code::Unavailable, "{ended}");
    drop((sender, receiver));
    let series = starling::metrics::snapshot().into_iter();
    let own: Vec<_> = series.filter(|it| *it.key.address == *nobody).collect();
    let count = |code| {
        let counts = own.iter().map(|it| it.totals.duration(code).count());
        counts.sum::<u64>()
    };
    assert_eq!((count(Code::Unavailable), count(Code::Cancelled)), (1, 0));
}

#[test]
fn calls_that_go_on_to_another_server_while_one_restarts_count_once() {
    starling::metrics::enable();
    let (stays, _gate) = serve(&common::shm_address());
    let restarting = common::shm_address();
    let channel = Channel::balanced([stays.address(), &restarting]).lazy();
    let channel = channel.expect("a channel");
    let name = channel.address().to_owned();
    let client = TestClient::new(channel);
    let is_over = AtomicBool::new(false);
    let made = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    client.echo(&payload(b"")).wait().expect("one stays");
                    made.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..40 {
            let (server, _gate) = serve(&restarting);
            std::thread::sleep(Duration::from_millis(10));
            server.shutdown(common::LONG).expect("no device fails");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let addresses = [stays.address(), &restarting, &name];
    let series = || {
        let all = starling::metrics::snapshot().into_iter();
        all.filter(|it| it.key.side == Side::Client && addresses.contains(&&*it.key.address))
            .filter(|it| &*it.key.method == "test.Test/Echo")
    };
    let calls = || series().map(|it| it.totals.calls()).sum::<u64>();
    wait_until(|| calls() >= made.load(Ordering::Relaxed));
    assert_eq!(calls(), made.load(Ordering::Relaxed));
    let failed = series().map(|it| it.totals.errors()).sum::<u64>();
    let in_flight = series().map(|it| it.totals.in_flight()).sum::<u64>();
    assert_eq!((failed, in_flight), (0, 0));
}

#[test]
fn nested_handlers_on_an_executor_lose_no_count() {
    starling::metrics::enable();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .build();
    let runtime = runtime.expect("a runtime");
    let next = serve("mem://metrics-next").0;
    let handle = runtime.handle().clone();
    let (builder, _gate) = common::server(&["mem://metrics-executor"]);
    let builder = builder.nested_executor(move |task| drop(handle.spawn(task)));
    let server = builder.build().expect("a server").spawn().expect("threads");
    let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
    let request = RelayRequest::new()
        .with_address(next.address())
        .with_bytes(b"x");
    const CALLS: u64 = 2000;
    for _ in 0..CALLS / 100 {
        let calls: Vec<_> = (0..100).map(|_| client.relay(&request)).collect();
        calls
            .into_iter()
            .for_each(|call| drop(call.wait().expect("an echo")));
    }
    for (side, server, method) in [
        (Side::Client, &server, "test.Test/Relay"),
        (Side::Server, &server, "test.Test/Relay"),
        (Side::Client, &next, "test.Test/Echo"),
        (Side::Server, &next, "test.Test/Echo"),
    ] {
        wait_until(|| calls(side, server)[method].calls() == CALLS);
        assert_eq!(
            calls(side, server)[method].requests.count(),
            CALLS,
            "{side:?} {method}"
        );
        assert_eq!(
            calls(side, server)[method].in_flight(),
            0,
            "{side:?} {method}"
        );
    }
}

#[test]
fn calls_that_no_backend_makes_count_too() {
    starling::metrics::enable();
    let nobody = [common::shm_address(), common::shm_address()];
    let channel = Channel::balanced(&nobody).lazy().expect("a channel");
    let name = channel.address().to_owned();
    let client = TestClient::new(channel);
    client
        .echo(&payload(b""))
        .wait()
        .expect_err("nobody is there");
    let options = CallOptions::waiting().timeout(Duration::from_millis(5));
    let late = client.work_with(&payload(b""), &options).wait();
    late.expect_err("nobody comes");
    let count = |method: &str, code| {
        let all = starling::metrics::snapshot().into_iter();
        let own =
            all.filter(|series| *series.key.address == *name && &*series.key.method == method);
        own.map(|series| series.totals.duration(code).count())
            .sum::<u64>()
    };
    assert_eq!(count("test.Test/Echo", Code::Unavailable), 1);
    assert_eq!(count("test.Test/Work", Code::DeadlineExceeded), 1);
}

/// The calls of a method that ended so, of a channel or a server of this name.
fn count(name: &str, method: &str, code: Code) -> u64 {
    let all = starling::metrics::snapshot().into_iter();
    let own = all.filter(|series| &*series.key.address == name && &*series.key.method == method);
    own.map(|series| series.totals.duration(code).count()).sum()
}

#[test]
fn calls_that_are_given_up_before_a_backend_has_them_count_as_cancelled() {
    starling::metrics::enable();
    let (server, gate) = serve("mem://metrics-given-up");
    let full = Channel::builder(server.address()).capacity(1);
    let full = TestClient::new(full.lazy().expect("a channel"));
    let first = full.wait(&payload(b"1"));
    for _ in 0..3 {
        drop(full.echo(&payload(b"")));
        let mut polled = std::pin::pin!(full.echo(&payload(b"")).into_future());
        assert!(
            polled.as_mut().now_or_never().is_none(),
            "it waits for room"
        );
    }
    gate.open.store(true, Ordering::SeqCst);
    first.wait().expect("an echo");
    assert_eq!(
        count(server.address(), "test.Test/Echo", Code::Cancelled),
        6
    );

    let nobody = Channel::balanced([common::shm_address(), common::shm_address()]);
    let nobody = nobody.lazy().expect("a channel");
    let name = nobody.address().to_owned();
    let client = TestClient::new(nobody).with_options(CallOptions::waiting());
    for _ in 0..3 {
        drop(client.echo(&payload(b"")));
    }
    wait_until(|| count(&name, "test.Test/Echo", Code::Cancelled) == 3);
}

#[test]
fn each_of_many_methods_counts_by_itself() {
    starling::metrics::enable();
    let (server, _) = serve("mem://metrics-many-methods");
    let channel = Channel::lazy(server.address()).expect("a channel");
    for number in 0..300 {
        let call = channel.call_protobuf(
            &format!("/many.Many/M{number}"),
            &[],
            &CallOptions::default(),
        );
        call.wait().expect_err("no server has it");
    }
    for number in 0..300 {
        let method = format!("many.Many/M{number}");
        assert_eq!(
            count(server.address(), &method, Code::Unimplemented),
            1,
            "{method}"
        );
    }
}

#[test]
fn a_channel_to_many_servers_has_a_short_name() {
    let servers: Vec<_> = (0..300)
        .map(|number| format!("mem://many-{number}"))
        .collect();
    let channel = Channel::balanced(&servers).lazy().expect("a channel");
    let name = channel.address();
    assert_eq!(
        name,
        "mem://many-0, mem://many-1, mem://many-2 and 297 more"
    );
    let channel = Channel::balanced(&servers[..4]).lazy().expect("a channel");
    assert!(
        channel.address().ends_with(", mem://many-3"),
        "{}",
        channel.address()
    );
}
