//! Interceptors around streams, at clients and servers: their begin, their messages and their end.

#[path = "../common/mod.rs"]
mod common;
mod faults;
mod kinds;
#[path = "../streams/service.rs"]
#[allow(dead_code, reason = "the tests of streams use all of it")]
mod service;
mod waits;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{any_addresses, wait_until};
use kinds::{Adds, Answers, Counts, InFront, Maps, RefusesInFront, Sends, Writes, logged};
use parking_lot::Mutex;
use service::{builder, end, number, range};
use starling::{
    CallOptions, Caller, Channel, Code, Endpoint, Interceptor, Metadata, ServerHandle,
    StreamReceiver, block_on,
};
use starling_test_protos::streams::{Number, StreamsClient};

/// A server with an interceptor, or a channel with it.
pub(crate) fn start(
    address: &str,
    interceptor: impl Interceptor,
    at_server: bool,
) -> (ServerHandle, Arc<service::Counts>, StreamsClient<Channel>) {
    let (builder, counts) = builder(address);
    let builder = match at_server {
        true => builder.interceptor(interceptor),
        false => {
            let server = builder.build().expect("a server").spawn().expect("threads");
            let channel = Channel::lazy(server.address()).expect("a channel");
            let client = StreamsClient::new(channel.intercept(interceptor));
            return (server, counts, client);
        }
    };
    let server = builder.build().expect("a server").spawn().expect("threads");
    let channel = Channel::lazy(server.address()).expect("a channel");
    (server, counts, StreamsClient::new(channel))
}

pub(crate) async fn values(numbers: &mut StreamReceiver<Number>) -> Vec<u64> {
    let mut values = Vec::new();
    while let Some(number) = numbers.message().await.expect("a good end") {
        values.push(number.message().value());
    }
    values
}

/// Uses all kinds of streams behind an interceptor that adds 100 to requests and 1,000 to responses.
async fn use_all<C: Caller>(client: StreamsClient<C>, padding: u32) {
    let mut numbers = client.count(&range(0, 50, padding));
    assert!(values(&mut numbers).await.into_iter().eq(1_100..1_150));
    let last = numbers.trailers().expect("the stream is over");
    assert_eq!(last.value("last"), Some(&b"150"[..]));

    let mut add = client.add();
    for value in 0..50 {
        add.send(&number(value, padding as usize))
            .await
            .expect("room");
    }
    let sum = add.finish().await.expect("a sum");
    assert_eq!(sum.message().sum(), (100..150).sum::<u64>() + 1_000);

    let (mut there, mut back) = client.echo();
    for value in 0..50 {
        there
            .send(&number(value, padding as usize))
            .await
            .expect("room");
        let echo = back.message().await.expect("no end").expect("an echo");
        assert_eq!(echo.message().value(), value + 1_100);
    }
    there.close();
    assert!(back.message().await.expect("a good end").is_none());
    assert!(back.message().await.expect("it stays").is_none());
}

fn adds() -> Adds {
    Adds {
        request: 100,
        response: 1_000,
    }
}

#[test]
fn messages_are_changed_in_both_directions_at_both_ends() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for at_server in [false, true] {
        for address in any_addresses() {
            let (server, counts, client) = start(&address, adds(), at_server);
            for padding in [0, 3_000] {
                block_on(use_all(client.clone(), padding));
            }
            runtime.block_on(async {
                let tasks = (0..8).map(|_| tokio::spawn(use_all(client.clone(), 100)));
                futures::future::try_join_all(tasks)
                    .await
                    .expect("no panic");
            });
            wait_until(|| counts.running.load(Ordering::SeqCst) == 0);
            assert_eq!(counts.dropped.load(Ordering::SeqCst), 0);
            end(server);
        }
    }
}

#[test]
fn a_local_channel_has_interceptors() {
    for address in any_addresses() {
        let (builder, _counts) = builder(&address);
        let server = builder.build().expect("a server").spawn().expect("threads");
        let mut endpoint = Endpoint::client(server.address()).expect("an endpoint");
        let channel = endpoint.channel(server.address()).expect("a channel");
        let client = StreamsClient::new(channel.intercept(adds()));
        endpoint
            .block_on(use_all(client, 1_000))
            .expect("no device fails");
        end(server);
    }
}

#[test]
fn handlers_in_a_runtime_have_interceptors() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (builder, _counts) = builder("mem://stream-interceptors-runtime");
    let handle = runtime.handle().clone();
    let builder = builder.nested_executor(move |task| drop(handle.spawn(task)));
    let server = builder.interceptor(adds()).build().expect("a server");
    let server = server.spawn().expect("threads");
    let channel = Channel::lazy(server.address()).expect("a channel");
    block_on(use_all(StreamsClient::new(channel), 1_000));
    end(server);
}

#[test]
fn interceptors_see_requests_in_order_and_responses_in_the_other_order() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let writes = |name| Writes(name, Arc::clone(&log));
    let (builder, _counts) = builder("mem://stream-interceptors-order");
    let builder = builder.interceptor(writes("c")).interceptor(writes("d"));
    let server = builder.build().expect("a server").spawn().expect("threads");
    let channel = Channel::lazy(server.address()).expect("a channel");
    let channel = channel.intercept(writes("a")).intercept(writes("b"));
    let mut numbers = StreamsClient::new(channel).count(&range(0, 1, 0));
    assert!(log.lock().is_empty(), "a stream begins when it is polled");
    assert_eq!(block_on(values(&mut numbers)), [0]);
    let seen = logged(&log);
    let only = |what: &str| -> Vec<String> {
        let seen = seen.iter().filter(|entry| entry.ends_with(what));
        seen.map(|entry| entry.replace(what, "")).collect()
    };
    assert_eq!(only(" begins"), ["a", "b", "c", "d"]);
    assert_eq!(only(" request"), ["a", "b", "c", "d"]);
    assert_eq!(only(" response"), ["d", "c", "b", "a"]);
    assert_eq!(only(" ok"), ["d", "c", "b", "a"]);
    let trailers = numbers.trailers().expect("the stream is over");
    assert_eq!(trailers.value("seen"), Some(&b"dcba"[..]));
    assert_eq!(trailers.value("last"), Some(&b"1"[..]));
    end(server);
}

#[test]
fn the_end_is_seen_and_changed_at_both_ends() {
    for at_server in [false, true] {
        for (from, to) in [
            (Code::DataLoss, Code::NotFound),
            (Code::DataLoss, Code::Ok),
            (Code::Ok, Code::NotFound),
        ] {
            let address = format!("mem://stream-ends-{at_server}-{from:?}-{to:?}");
            let (server, _counts, client) = start(&address, Maps(from, to), at_server);
            let mut numbers = client.count(&range(0, 3, 0).with_code(from as u32));
            for value in 0..3 {
                let item = numbers.wait().expect("no end").expect("a number");
                assert_eq!(item.message().value(), value);
            }
            match (to, numbers.wait()) {
                (Code::Ok, end) => assert!(end.expect("mapped").is_none()),
                (code, Err(status)) => assert_eq!(status.code(), code, "{status}"),
                (_, Ok(_)) => panic!("it is to fail"),
            }
            end(server);
        }
    }
}

#[test]
fn an_interceptor_answers_a_stream_in_place_of_the_server() {
    for at_server in [false, true] {
        let start = |name: &str, answer| {
            let address = format!("mem://stream-answers-{at_server}-{name}");
            start(&address, answer, at_server)
        };
        let (server, counts, client) = start("number", Answers::Number(7));
        let mut numbers = client.count(&range(0, 3, 0));
        assert_eq!(block_on(values(&mut numbers)), [7]);
        let trailers = numbers.trailers().expect("the stream is over");
        assert_eq!(trailers.value("by"), Some(&b"interceptor"[..]));
        assert_eq!(counts.sent.load(Ordering::SeqCst), 0);
        end(server);

        let (server, _, client) = start("sum", Answers::Sum(5));
        let mut add = client.add();
        // The stream may be over before the server has read anything.
        let _ = add.send_wait(&number(1, 0));
        assert_eq!(add.finish_wait().expect("a sum").message().sum(), 5);
        end(server);

        let (server, _, client) = start("nothing", Answers::Nothing);
        assert!(block_on(values(&mut client.count(&range(0, 3, 0)))).is_empty());
        end(server);

        let (server, counts, client) = start("status", Answers::Status(Code::PermissionDenied));
        let (mut there, mut back) = client.echo();
        let refused = back.wait().expect_err("it is refused");
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(!refused.may_have_run(), "at server {at_server}");
        let late = there.send_wait(&number(1, 0)).expect_err("it is over");
        assert_eq!(late.code(), Code::PermissionDenied, "{late}");
        assert_eq!(counts.read.load(Ordering::SeqCst), 0);
        end(server);
    }
}

#[test]
fn a_dropped_receiver_drops_the_interceptors() {
    let counts = Counts::default();
    let (server, its_counts, client) = start("mem://stream-drops", counts.clone(), false);
    let mut numbers = client.count(&range(0, u64::MAX, 0));
    numbers.wait().expect("no end").expect("a number");
    assert_eq!(counts.running.load(Ordering::SeqCst), 1);
    drop(numbers);
    assert_eq!(counts.running.load(Ordering::SeqCst), 0);
    // A stream that is never polled, and one that was only written to.
    drop(client.count(&range(0, 3, 0)));
    let (mut there, back) = client.echo();
    there.send_wait(&number(1, 0)).expect("room");
    drop(back);
    assert_eq!(counts.running.load(Ordering::SeqCst), 0);
    assert_eq!(counts.ended.load(Ordering::SeqCst), 0);
    wait_until(|| its_counts.running.load(Ordering::SeqCst) == 0);
    let late = there.send_wait(&number(1, 0)).expect_err("cancelled");
    assert_eq!(late.code(), Code::Cancelled, "{late}");
    end(server);
}

#[test]
fn metadata_goes_in_front_of_a_stream() {
    let (server, _counts, client) = start("mem://stream-metadata", Sends("token", "t-8"), false);
    let mut numbers = client.count(&range(0, 1, 0));
    assert!(numbers.metadata().is_none() && numbers.trailers().is_none());
    assert_eq!(block_on(values(&mut numbers)), [0]);
    let headers = numbers.metadata().expect("the server sent it");
    assert_eq!(headers.value("token-back"), Some(&b"t-8"[..]));
    end(server);
}

#[test]
fn initial_metadata_goes_through_the_interceptors_of_both_ends_once() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let in_front = |name| InFront(name, Arc::clone(&log));
    let (builder, _counts) = builder("mem://stream-in-front");
    let builder = builder.interceptor(in_front("server-first"));
    let server = builder.interceptor(in_front("server-last")).build();
    let server = server.expect("a server").spawn().expect("threads");
    let channel = Channel::lazy(server.address()).expect("a channel");
    let channel = channel.intercept(in_front("client-first"));
    let client = StreamsClient::new(channel.intercept(in_front("client-last")));

    // Of a handler that sends some, and waits.
    let (there, mut back) = client.wait();
    let headers = back.initial_metadata_wait().expect("the server sends it");
    assert_eq!(back.metadata(), Some(headers.clone()));
    assert_eq!(headers.view().iter().count(), 5, "{headers:?}");
    let through = [
        "server-last: waits",
        "server-first: waits server-last",
        "client-last: waits server-last server-first",
        "client-first: waits server-last server-first client-last",
    ];
    assert_eq!(std::mem::take(&mut *log.lock()), through);
    drop((there, back));
    // Of one that only sends messages, to a reader that does not ask.
    let mut numbers = client.count(&range(0, 3, 0));
    assert_eq!(block_on(values(&mut numbers)), [0, 1, 2]);
    let through = [
        "server-last: ",
        "server-first: server-last",
        "client-last: server-last server-first",
        "client-first: server-last server-first client-last",
    ];
    assert_eq!(std::mem::take(&mut *log.lock()), through);
    assert_eq!(
        numbers
            .metadata()
            .expect("it has come")
            .view()
            .iter()
            .count(),
        4
    );
    // Of one that sends nothing else.
    let options = CallOptions::default()
        .metadata("token", "t-9")
        .expect("a key");
    let mut numbers = client.count_with(&range(0, 0, 0), &options);
    assert!(block_on(values(&mut numbers)).is_empty());
    assert_eq!(std::mem::take(&mut *log.lock()).len(), 4);
    let headers = numbers.metadata().expect("it has come");
    assert_eq!(headers.value("token-back"), Some(&b"t-9"[..]));
    // Nothing is in front of an end.
    let mut numbers = client.count(&range(0, 0, 0));
    assert!(block_on(values(&mut numbers)).is_empty());
    assert_eq!(*log.lock(), [""; 0]);
    end(server);
}

#[test]
fn initial_metadata_that_is_refused_ends_the_stream_and_is_seen_once() {
    for at_server in [true, false] {
        let refuses = RefusesInFront::default();
        let (server, _counts, client) =
            start("mem://stream-refuses-in-front", refuses.clone(), at_server);
        let mut numbers = client.count(&range(0, 3, 0));
        let first = numbers.initial_metadata_wait().expect_err("refused");
        assert_eq!(first.code(), Code::PermissionDenied, "{first}");
        assert_eq!(numbers.metadata().unwrap_or_default(), Metadata::new());
        let ended = numbers.wait().expect_err("refused");
        assert_eq!(ended.code(), Code::PermissionDenied, "{ended}");
        assert_eq!(refuses.0.load(Ordering::SeqCst), 1, "at server {at_server}");
        end(server);
    }
}
