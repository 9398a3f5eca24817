//! Compressed messages of streams.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use starling::{
    CallOptions, Caller, Channel, Code, Compression, Endpoint, MethodConfig, MethodOptions,
    ServerHandle, ServiceConfig, Status, block_on,
};
use starling_endpoint::header::STREAM_RESPONSE_LEN;
use starling_endpoint::{StreamFlags, StreamPosition};
use starling_message::Bytes;
use starling_stream::{BUNDLE_BYTES, LENGTH, ServerStream};
use starling_test_protos::streams::StreamsClient;
use starling_test_protos::{v1, v2};

use crate::algorithms;
use crate::common::store::Store;
use crate::common::{any_addresses, shm_address, wait_until};
use crate::raw::RawServer;
use crate::service::{builder, end, number, range};

fn start(address: &str, options: MethodOptions) -> (ServerHandle, StreamsClient<Channel>) {
    let (builder, _counts) = builder(address);
    let server = builder.method_options("streams.Streams", options).build();
    let server = server.expect("a server").spawn().expect("threads");
    let channel = Channel::lazy(server.address()).expect("a channel");
    (server, StreamsClient::new(channel))
}

async fn use_all<C: Caller>(client: StreamsClient<C>, padding: usize) {
    let mut numbers = client.count(&range(0, 100, padding as u32));
    for value in 0..100 {
        let item = numbers.message().await.expect("no end").expect("a number");
        assert_eq!(item.message().value(), value);
        assert_eq!(item.message().padding().len(), padding);
    }
    assert!(numbers.message().await.expect("a good end").is_none());
    let mut add = client.add();
    for value in 0..100 {
        add.send(&number(value, padding)).await.expect("room");
    }
    let sum = add.finish().await.expect("a sum");
    assert_eq!(sum.message().sum(), (0..100).sum::<u64>());
    let (mut there, mut back) = client.echo();
    for value in 0..100 {
        // Packed ones and others in turn.
        let padding = padding * (value as usize % 2);
        there.send(&number(value, padding)).await.expect("room");
        let echo = back.message().await.expect("no end").expect("an echo");
        assert_eq!(echo.message().value(), value);
        assert_eq!(echo.message().padding().len(), padding);
    }
    there.close();
    assert!(back.message().await.expect("a good end").is_none());
}

#[test]
fn messages_of_streams_come_back_by_all_algorithms_and_callers() {
    for compression in algorithms() {
        for address in any_addresses() {
            let packs = MethodOptions::default().compression(compression);
            let (server, client) = start(&address, packs);
            let options = CallOptions::default().compression(compression);
            let only_responses = CallOptions::default().accept_compressed(true);
            for padding in [0, 1_500, 50_000] {
                for options in [&options, &only_responses] {
                    let client = client.clone().with_options(options.clone());
                    block_on(use_all(client, padding));
                }
                block_on(use_all(client.clone(), padding));
            }
            let mut endpoint = Endpoint::client(server.address()).expect("an endpoint");
            let local = endpoint.channel(server.address()).expect("a channel");
            let local = StreamsClient::new(local).with_options(options);
            endpoint
                .block_on(use_all(local, 3_000))
                .expect("no device fails");
            end(server);
        }
    }
}

#[test]
fn packed_messages_of_a_stream_are_few_bytes() {
    const ITEMS: u64 = 64;
    let lz4 = Compression::lz4();
    for at_server in [false, true] {
        let address = format!("mem://compression-streams-{at_server}");
        let options = match at_server {
            true => MethodOptions::default().compression(lz4),
            false => MethodOptions::default(),
        };
        let (server, client) = start(&address, options);
        let options = CallOptions::default().compression(lz4);
        let client = client.with_options(options);
        let mut numbers = client.count(&range(0, ITEMS, 1 << 20));
        assert_eq!(
            numbers.blocking().filter(Result::is_ok).count() as u64,
            ITEMS
        );
        let sent = server.stats()[0].protocol.responses_sent;
        // Else each message is a call of its own, and more.
        assert_eq!(sent < ITEMS, at_server, "{sent} answers");
        end(server);
    }
}

#[test]
fn a_message_beyond_a_bound_ends_the_stream_with_a_status_that_says_whose_it_is() {
    const MOST: usize = 10_000;
    let client = CallOptions::default;
    let (free, config) = (MethodOptions::default, MethodConfig::new);
    let (few, many) = (MOST as u32, u32::MAX);
    let cases = [
        (
            free().max_request_bytes(MOST),
            client(),
            config(),
            "MethodOptions::max_request_bytes",
        ),
        (
            free().max_response_bytes(MOST),
            client(),
            config(),
            "MethodOptions::max_response_bytes",
        ),
        (
            free(),
            client().max_request_bytes(MOST),
            config().max_bytes(many, many),
            "CallOptions::max_request_bytes",
        ),
        (
            free(),
            client().max_response_bytes(MOST),
            config().max_bytes(many, many),
            "CallOptions::max_response_bytes",
        ),
        (
            free(),
            client(),
            config().max_bytes(few, many),
            "service config, sends 10000 at most: send less, or raise maxRequestMessageBytes there",
        ),
        (
            free(),
            client(),
            config().max_bytes(many, few),
            "service config, takes 10000 at most: ask for less, or raise maxResponseMessageBytes there",
        ),
    ];
    for (index, (at_server, at_client, config, says)) in cases.into_iter().enumerate() {
        let config = ServiceConfig::new().method("", config);
        for compression in [None, Some(Compression::lz4())] {
            let mut at_server = at_server.clone();
            at_server.compression = compression;
            let mut at_client = at_client.clone();
            if let Some(compression) = compression {
                at_client = at_client.compression(compression);
            }
            let address = format!("mem://streams-bound-{index}-{}", compression.is_some());
            let (builder, counts) = builder(&address);
            let server = builder.method_options("streams.Streams/Echo", at_server);
            let server = server.build().expect("a server").spawn().expect("threads");
            let channel = Channel::builder(server.address()).service_config(config.clone());
            let channel = channel.lazy().expect("a channel");
            let client = StreamsClient::new(channel).with_options(at_client);
            let (mut there, mut back) = client.echo();
            there.send_wait(&number(1, 100)).expect("a short one");
            back.wait().expect("no end").expect("an echo");
            let sent = there.send_wait(&number(2, MOST));
            let status: Status = match back.wait() {
                Err(status) => status,
                Ok(_) => panic!("{says}: it passed"),
            };
            for status in sent.err().iter().chain([&status]) {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                assert!(status.message().contains(says), "{status}");
            }
            drop(there);
            wait_until(|| counts.running.load(Ordering::SeqCst) == 0);
            end(server);
        }
    }
}

/// Messages are converted between packing and unpacking.
#[test]
fn versions_of_a_schema_exchange_packed_protobuf() {
    for compression in algorithms() {
        let packs = MethodOptions::default().compression(compression);
        let server = starling::Server::builder()
            .bind(&shm_address())
            .expect("a free name")
            .add_service(v1::StoreServer::new(Store::default()))
            .method_options("", packs)
            .build()
            .expect("a server")
            .spawn()
            .expect("threads");
        let channel = Channel::lazy(server.address()).expect("a channel");
        let options = CallOptions::default().compression(compression.min_bytes(100));
        let client = v2::StoreClient::new(channel).with_options(options.clone());
        block_on(exchange(client));
        let mut endpoint = Endpoint::client(server.address()).expect("an endpoint");
        let local = endpoint.channel(server.address()).expect("a channel");
        let client = v2::StoreClient::new(local).with_options(options);
        endpoint
            .block_on(exchange(client))
            .expect("no device fails");
    }
}

async fn exchange<C: Caller>(client: v2::StoreClient<C>) {
    for len in [10, 5_000, 200_000] {
        let request = v2::PutRequest::new()
            .with_value(&vec![7; len])
            .with_tags(["unknown to the server"]);
        let before = client.put(&v2::PutRequest::new()).await.expect("a size");
        let before = before.message().size();
        let after = client.put(&request).await.expect("through protobuf");
        assert_eq!(after.message().size(), before + len as u64);
        let (mut requests, mut responses) = client.put_all();
        for count in 2..10 {
            requests.send(&request).await.expect("room");
            let response = responses.message().await.expect("no end");
            let size = response.expect("a response").message().size();
            assert_eq!(size, before + count * len as u64);
        }
    }
}

/// What a server that has no algorithm got of a client that packs its messages, while nobody reads them.
#[derive(Default)]
struct Unpacked {
    requests: usize,
    /// Bytes of its requests with items.
    bodies: Vec<usize>,
    violation: Option<String>,
}

#[test]
fn messages_that_are_unpacked_for_their_server_keep_its_window_and_go_by_few() {
    const WINDOW: u32 = 256 << 10;
    const MOST_REQUESTS: usize = 100;
    for padding in [1_000, 100_000] {
        let address = format!("mem://compression-unpacked-{padding}");
        let seen = Arc::new(Mutex::new(Unpacked::default()));
        let (its_seen, mut stream) = (Arc::clone(&seen), None);
        let path = "/streams.Streams/Add";
        let _server =
            RawServer::start_with(&address, Some(0), path, move |_, request, mut reply| {
                let mut position = request.stream().expect("a request of a stream");
                // Each is answered at once.
                position.flags = position.flags.with_if(true, StreamFlags::ANSWER);
                let stream =
                    stream.get_or_insert_with(|| ServerStream::new(position.id, WINDOW, 0));
                let mut seen = its_seen.lock();
                let body = Bytes::copy_from_slice(request.body());
                seen.bodies.extend((!body.is_empty()).then_some(body.len()));
                if let Err(violation) = stream.handle_request(position, body, ()) {
                    seen.violation.get_or_insert(violation.to_string());
                }
                let is_over = seen.requests == MOST_REQUESTS;
                let answer = StreamPosition {
                    id: position.id,
                    number: seen.requests as u64,
                    received: position.number + 1,
                    window: WINDOW,
                    flags: StreamFlags::NONE.with_if(is_over, StreamFlags::END),
                    ..StreamPosition::default()
                };
                seen.requests += 1;
                while stream.poll_answer().is_some() {}
                reply.set_stream(answer, None, STREAM_RESPONSE_LEN);
                reply.ok();
            });
        let options = CallOptions::default().compression(Compression::lz4());
        let client = StreamsClient::new(Channel::lazy(&address).expect("a channel"));
        let mut add = client.with_options(options).add();
        let mut sent = 0;
        while add.send_wait(&number(0, padding)).is_ok() {
            sent += 1;
        }
        let seen = seen.lock();
        assert_eq!(seen.violation, None, "an honest client");
        let largest = seen.bodies.iter().max().copied().unwrap_or_default();
        let item = padding + 100;
        assert!(
            largest <= BUNDLE_BYTES.max(item + LENGTH),
            "{largest} bytes"
        );
        let most_unread = WINDOW as usize + BUNDLE_BYTES.max(item);
        let unread: usize = seen.bodies.iter().sum();
        assert!(unread <= most_unread, "{unread} bytes of {sent} items");
        assert!(unread >= item, "{unread} bytes");
    }
}
