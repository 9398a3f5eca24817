//! Compressed messages: of calls and of streams, by all kinds of callers and handlers, over all devices that
//! need no root.

#[path = "../common/mod.rs"]
mod common;
mod limits;
mod peers;
mod raw;
#[path = "../streams/service.rs"]
#[allow(dead_code, reason = "the tests of streams use all of it")]
mod service;
mod streams;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Gate, any_addresses, payload, server};
use parking_lot::Mutex;
use starling::{
    CallOptions, Caller, Channel, Compression, Endpoint, InterceptedCall, InterceptedResponse,
    Interceptor, MethodOptions, Next, Request, Server, ServerHandle, Status, block_on,
};
use starling_test_protos::hello::{Hello, HelloClient, HelloReplyMut, HelloRequest, HelloServer};
use starling_test_protos::test::{Payload, TestClient};

/// All algorithms, as these tests use them.
pub(crate) fn algorithms() -> [Compression; 3] {
    ["gzip", "zstd", "lz4"].map(|name| Compression::by_name(name).expect("a feature of the tests"))
}

/// Bytes that get much shorter.
pub(crate) fn text(len: usize) -> Vec<u8> {
    let words = b"all work and no play makes a dull benchmark; ";
    words.iter().copied().cycle().take(len).collect()
}

/// A server that compresses its responses, if it is told how.
pub(crate) fn start(
    address: &str,
    compression: Option<Compression>,
) -> (ServerHandle, Arc<Gate>, Channel) {
    let options = MethodOptions {
        compression,
        ..MethodOptions::default()
    };
    let (builder, gate) = server(&[address]);
    let builder = builder.method_options("", options);
    gate.open.store(true, Ordering::SeqCst);
    let server = builder.build().expect("a server").spawn().expect("threads");
    let channel = Channel::lazy(server.address()).expect("a channel");
    (server, gate, channel)
}

async fn use_all<C: Caller>(client: TestClient<C>, len: usize) {
    let message = payload(&text(len));
    let responses = [
        client.echo(&message).await,
        client.work(&message).await,
        client.wait(&message).await,
    ];
    for response in responses {
        let response = response.expect("an echo");
        assert!(response.message().bytes() == text(len), "of {len} bytes");
    }
}

#[test]
fn messages_of_all_sizes_come_back_by_all_algorithms_callers_and_handlers() {
    for compression in algorithms() {
        for address in any_addresses() {
            let (server, _gate, channel) = start(&address, Some(compression));
            let options = CallOptions::default()
                .compression(compression)
                .metadata("who", "me")
                .expect("a key");
            for len in [0, 10, 1_023, 1_024, 5_000, 100_000, 2_000_000] {
                let client = TestClient::new(channel.clone()).with_options(options.clone());
                block_on(use_all(client, len));
            }
            let mut endpoint = Endpoint::client(server.address()).expect("an endpoint");
            let local = endpoint.channel(server.address()).expect("a channel");
            for len in [10, 5_000, 100_000] {
                let client = TestClient::new(local.clone()).with_options(options.clone());
                let calls = use_all(client, len);
                endpoint.block_on(calls).expect("no device fails");
            }
        }
    }
}

/// Datagrams that the server and the channel received since this was called last.
struct Received {
    server: u64,
    channel: u64,
}

impl Received {
    fn now(server: &ServerHandle, channel: &Channel) -> Self {
        Self {
            server: server.stats()[0].endpoint.datagrams,
            channel: channel.stats().expect("it works").endpoint.datagrams,
        }
    }

    fn since(&self, before: &Self) -> [u64; 2] {
        [self.server - before.server, self.channel - before.channel]
    }
}

/// Says so many bytes if its request is their number, and how many its request has if not. So one message of a
/// call is large at most: whoever receives one answers its datagrams with others, up to one each.
struct OneLarge;

impl Hello for OneLarge {
    fn greet(
        &self,
        request: Request<'_, HelloRequest>,
        mut response: HelloReplyMut<'_>,
    ) -> Result<(), Status> {
        let name = request.message().name();
        match name.parse() {
            Ok(len) => response.set_text(&large(len)),
            Err(_) => response.set_text(&name.len().to_string()),
        };
        Ok(())
    }
}

/// The same as `text`.
fn large(len: usize) -> String {
    String::from_utf8(text(len)).expect("words")
}

#[test]
fn only_what_is_asked_for_is_compressed() {
    const LEN: usize = 8 << 20;
    // A datagram of this device takes 64 KiB.
    const MANY: u64 = 128;
    let lz4 = Compression::lz4();
    let large_request = HelloRequest::new().with_name(&large(LEN));
    let large_response = HelloRequest::new().with_name(&LEN.to_string());
    let none = CallOptions::default();
    let cases = [
        // The server, the client; whether requests and responses are.
        (None, none.clone(), [false, false]),
        (Some(lz4), none.clone(), [false, false]),
        (None, none.clone().compression(lz4), [true, false]),
        (Some(lz4), none.clone().compression(lz4), [true, true]),
        (
            Some(lz4),
            none.clone().accept_compressed(true),
            [false, true],
        ),
        (
            Some(lz4),
            none.clone().compression(lz4).accept_compressed(false),
            [true, false],
        ),
        (
            Some(lz4),
            none.clone().compression(lz4.min_bytes(LEN as u32 * 2)),
            [false, true],
        ),
        (
            Some(lz4.min_bytes(LEN as u32 * 2)),
            none.clone().compression(lz4),
            [true, false],
        ),
        (
            Some(Compression::off()),
            none.clone().compression(lz4),
            [true, false],
        ),
        (
            Some(lz4),
            none.compression(Compression::off()),
            [false, false],
        ),
    ];
    for (index, (at_server, options, expected)) in cases.into_iter().enumerate() {
        let address = format!("mem://compression-asked-{index}");
        let options_of_all = MethodOptions {
            compression: at_server,
            max_request_bytes: Some(2 * LEN),
            ..MethodOptions::default()
        };
        let server = Server::builder()
            .bind(&address)
            .expect("a free address")
            .add_service(HelloServer::new(OneLarge))
            .method_options("", options_of_all);
        let server = server.build().expect("a server").spawn().expect("threads");
        let channel = Channel::lazy(server.address()).expect("a channel");
        let client = HelloClient::new(channel.clone());
        // The first call opens the session, and asks what the server has.
        client
            .greet(&HelloRequest::new())
            .wait()
            .expect("an answer");
        let mut received = [0, 0];
        for (end, request, len) in [(0, &large_request, 7), (1, &large_response, LEN)] {
            let before = Received::now(&server, &channel);
            let response = client.greet_with(request, &options).wait();
            assert_eq!(response.expect("an answer").message().text().len(), len);
            received[end] = Received::now(&server, &channel).since(&before)[end];
        }
        let compressed = received.map(|datagrams| datagrams < MANY);
        assert_eq!(compressed, expected, "case {index}: {received:?} datagrams");
    }
}

/// Counts the bytes of messages as it sees them.
struct Meter(Arc<AtomicUsize>);

impl Interceptor for Meter {
    async fn intercept(
        &self,
        mut call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        let message = call.message::<Payload>()?;
        self.0
            .fetch_add(message.view().bytes().len(), Ordering::SeqCst);
        call.set_message(&message)?;
        let response = next.run(call).await?;
        let message = response.message::<Payload>()?;
        self.0
            .fetch_add(message.view().bytes().len(), Ordering::SeqCst);
        Ok(response)
    }
}

#[test]
fn interceptors_see_messages_as_they_are() {
    for compression in algorithms() {
        for address in any_addresses() {
            let bytes = Arc::new(AtomicUsize::new(0));
            let (builder, gate) = server(&[&address]);
            gate.open.store(true, Ordering::SeqCst);
            let options = MethodOptions::default().compression(compression);
            let builder = builder.method_options("test.Test", options);
            let builder = builder.interceptor(Meter(Arc::clone(&bytes)));
            let server = builder.build().expect("a server").spawn().expect("threads");
            let options = CallOptions::default().compression(compression);
            let channel = Channel::lazy(server.address()).expect("a channel");
            let channel = channel.intercept(Meter(Arc::clone(&bytes)));
            let client = TestClient::new(channel).with_options(options.clone());
            block_on(use_all(client, 100_000));
            assert_eq!(bytes.swap(0, Ordering::SeqCst), 3 * 4 * 100_000);
            let mut endpoint = Endpoint::client(server.address()).expect("an endpoint");
            let local = endpoint.channel(server.address()).expect("a channel");
            let local = local.intercept(Meter(Arc::clone(&bytes)));
            let calls = use_all(TestClient::new(local).with_options(options), 50_000);
            endpoint.block_on(calls).expect("no device fails");
            assert_eq!(bytes.load(Ordering::SeqCst), 3 * 4 * 50_000);
        }
    }
}

#[test]
fn calls_without_generated_code_are_compressed() {
    let log = Mutex::new(Vec::new());
    for compression in algorithms() {
        let (server, _gate, channel) = start("mem://compression-protobuf", Some(compression));
        let options = CallOptions::default().compression(compression);
        // A payload with one field of 100,000 bytes.
        let request = [&[0x0a, 0xa0, 0x8d, 0x06][..], &text(100_000)].concat();
        let call = channel.call_protobuf("/test.Test/Echo", &request, &options);
        let response = call.wait().expect("an echo");
        assert!(response.body() == request);
        log.lock().push(server.stats()[0].endpoint.datagrams);
    }
    // Connect, request, little else.
    assert!(
        log.lock().iter().all(|datagrams| *datagrams < 10),
        "{log:?}"
    );
}
