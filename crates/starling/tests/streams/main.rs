//! Streams through generated code, over all devices that need no root, by threads, tasks and endpoints.

#[path = "../common/mod.rs"]
mod common;
mod faults;
mod forms;
mod gone;
mod malformed;
mod memory;
mod raw;
mod resting;
mod service;
mod slow_network;

use std::sync::atomic::Ordering;

use common::{any_addresses, wait_until};
use futures::{SinkExt, StreamExt};
use service::{builder, end, number, range, serve};
use starling::{CallOptions, Caller, Code, Endpoint, Metadata, block_on};
use starling_test_protos::streams::StreamsClient;

/// Counts, adds and echoes by one client, in whatever waits for it.
async fn use_all<C: Caller>(client: &StreamsClient<C>, count: u64, padding: u32) {
    let mut numbers = client.count(&range(5, 5 + count, padding));
    for expected in 5..5 + count {
        let next = numbers.message().await.expect("no end").expect("a number");
        assert_eq!(next.message().value(), expected);
        let bytes = next.message().padding();
        assert!(bytes.len() == padding as usize && bytes.iter().all(|b| *b == expected as u8));
    }
    assert!(numbers.message().await.expect("a good end").is_none());
    // The end stays.
    assert!(numbers.message().await.expect("a good end").is_none());
    let last = numbers.trailers().expect("the stream is over");
    assert_eq!(last.value("last"), Some((5 + count).to_string().as_bytes()));

    let mut add = client.add();
    for value in 0..count {
        add.send(&number(value, padding as usize))
            .await
            .expect("room");
    }
    let sum = add.finish().await.expect("a sum");
    assert_eq!(sum.message().count(), count);
    assert_eq!(sum.message().sum(), (0..count).sum::<u64>());

    let (mut there, mut back) = client.echo();
    for value in 0..count {
        there
            .send(&number(value, padding as usize))
            .await
            .expect("room");
        let echo = back.message().await.expect("no end").expect("an echo");
        assert_eq!(echo.message().value(), value);
    }
    there.close();
    assert!(back.message().await.expect("a good end").is_none());
}

#[test]
fn a_plain_thread_uses_all_kinds_of_streams() {
    for address in any_addresses() {
        let (server, counts, client) = serve(&address);
        for (count, padding) in [(0, 0), (1, 10), (500, 0), (300, 5_000), (5, 200_000)] {
            block_on(use_all(&client, count, padding));
        }
        wait_until(|| counts.running.load(Ordering::SeqCst) == 0);
        assert_eq!(counts.dropped.load(Ordering::SeqCst), 0);
        end(server);
    }
}

#[test]
fn tasks_of_a_runtime_use_all_kinds_of_streams_at_once() {
    for address in any_addresses() {
        let (server, counts, client) = serve(&address);
        let mut runtimes = [
            tokio::runtime::Builder::new_current_thread(),
            tokio::runtime::Builder::new_multi_thread(),
        ];
        for builder in &mut runtimes {
            let runtime = builder.enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let tasks = (0..20).map(|task| {
                    let client = client.clone();
                    tokio::spawn(async move { use_all(&client, 100, task * 100).await })
                });
                for task in tasks.collect::<Vec<_>>() {
                    task.await.expect("no panic");
                }
            });
        }
        assert_eq!(counts.dropped.load(Ordering::SeqCst), 0);
        end(server);
    }
}

#[test]
fn the_thread_of_an_endpoint_uses_all_kinds_of_streams() {
    for address in any_addresses() {
        let (server, _counts, _client) = serve(&address);
        let mut endpoint = Endpoint::client(server.address()).expect("an endpoint");
        let channel = endpoint.channel(server.address()).expect("a channel");
        let client = StreamsClient::new(channel);
        let run = use_all(&client, 200, 300);
        endpoint.block_on(run).expect("the device works");
        drop((client, endpoint));
        end(server);
    }
}

#[test]
fn iterators_streams_and_sinks_read_and_write() {
    let (server, _counts, client) = serve("mem://streams-iterators");
    let mut numbers = client.count(&range(0, 100, 0));
    let values: Result<Vec<_>, _> = (numbers.blocking())
        .map(|item| item.map(|item| item.message().value()))
        .collect();
    assert!(values.expect("a good end").into_iter().eq(0..100));

    let mut add = client.add();
    for value in [3, 4, 5] {
        add.send_wait(&number(value, 0)).expect("room");
    }
    let sum = add.finish_wait().expect("a sum");
    assert_eq!((sum.message().sum(), sum.message().count()), (12, 3));

    block_on(async {
        let (mut there, back) = client.echo();
        let sending = async {
            for value in 0..1000 {
                SinkExt::send(&mut there, number(value, 100))
                    .await
                    .expect("room");
            }
            SinkExt::close(&mut there).await.expect("an end");
        };
        let reading = back.map(|item| item.expect("no failure").message().value());
        let (values, ()) = futures::join!(reading.collect::<Vec<_>>(), sending);
        assert!(values.into_iter().eq(0..1000));
    });
    end(server);
}

#[test]
fn metadata_goes_in_front_of_the_messages_and_behind_them() {
    let (server, _counts, client) = serve("mem://streams-metadata");
    let options = CallOptions::default()
        .metadata("token", "t-7")
        .expect("a key");
    for count in [0, 3] {
        let mut numbers = client.count_with(&range(0, count, 0), &options);
        assert!(numbers.trailers().is_none());
        let values = numbers.blocking().map(|item| item.expect("no failure"));
        assert_eq!(values.count() as u64, count);
        let headers = numbers.metadata().expect("the server sent it");
        assert_eq!(headers.value("token-back"), Some(&b"t-7"[..]));
        let trailers = numbers.trailers().expect("the stream is over");
        assert_eq!(trailers.value("last"), Some(count.to_string().as_bytes()));
    }
    end(server);
}

#[test]
fn a_client_waits_for_initial_metadata_alone() {
    for address in any_addresses() {
        let (server, _counts, client) = serve(&address);
        // Without a message, and later than the stream's first answer.
        let (there, mut back) = client.wait();
        let headers = back.initial_metadata_wait().expect("the server sends it");
        assert_eq!(headers.value("waits"), Some(&b"here"[..]));
        let again = back.initial_metadata_wait().expect("it stays");
        assert_eq!(again, headers);
        drop((there, back));
        // Messages come without.
        let mut numbers = client.count(&range(0, 2, 0));
        let headers = numbers.initial_metadata_wait().expect("messages");
        assert_eq!(headers, Metadata::new());
        assert_eq!(numbers.blocking().count(), 2);
        // Nothing comes but the end.
        let mut numbers = client.count(&range(0, 0, 0));
        let headers = numbers.initial_metadata_wait().expect("a good end");
        assert_eq!(headers, Metadata::new());
        let mut failing = range(0, 0, 0);
        failing.set_code(Code::DataLoss as u32);
        let mut numbers = client.count(&failing);
        let ended = numbers.initial_metadata_wait().expect_err("as requested");
        assert_eq!(ended.code(), Code::DataLoss, "{ended}");
        let ended = numbers.wait().expect_err("as requested");
        assert_eq!(ended.code(), Code::DataLoss, "{ended}");
        end(server);
    }
}

#[test]
fn thousands_of_streams_share_a_channel() {
    const STREAMS: u64 = 3_000;
    for address in any_addresses() {
        let (server, counts, client) = serve(&address);
        let mut streams: Vec<_> = (0..STREAMS).map(|_| client.echo()).collect();
        for round in 0..2 {
            for (index, (there, _)) in streams.iter_mut().enumerate() {
                let value = number(index as u64 + round, 0);
                there.send_wait(&value).expect("room");
            }
            for (index, (_, back)) in streams.iter_mut().enumerate() {
                let echo = back.wait().expect("no end").expect("an echo");
                assert_eq!(echo.message().value(), index as u64 + round);
            }
        }
        assert_eq!(counts.running.load(Ordering::SeqCst) as u64, STREAMS);
        // Other calls pass those that wait.
        let mut numbers = client.count(&range(0, 3, 0));
        assert_eq!(numbers.blocking().count(), 3);
        drop(streams);
        wait_until(|| counts.running.load(Ordering::SeqCst) == 0);
        end(server);
    }
}

#[test]
fn handlers_run_in_a_runtime_of_the_users() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for address in any_addresses() {
        let (builder, counts) = builder(&address);
        let handle = runtime.handle().clone();
        let server = builder.nested_executor(move |task| drop(handle.spawn(task)));
        let server = server.build().expect("a server").spawn().expect("threads");
        let channel = starling::Channel::lazy(server.address()).expect("a channel");
        block_on(use_all(&StreamsClient::new(channel), 300, 2_000));
        assert_eq!(counts.dropped.load(Ordering::SeqCst), 0);
        end(server);
    }
}
