//! What messages take that come in protobuf: it has limits, and counts while their handlers wait.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::store::Store;
use common::{Gate, server, shm_address, wait_until};
use futures::FutureExt;
use starling::{
    CallOptions, Caller, Channel, Code, DecodeLimits, Endpoint, EndpointConfig, Server,
    ServerHandle, Status, block_on,
};
use starling_test_protos::{v1, v2};

/// A server of an older version, and what it may decode.
fn old_server(limits: impl Into<DecodeLimits>) -> ServerHandle {
    Server::builder()
        .bind(&shm_address())
        .expect("a free name")
        .add_service(v1::StoreServer::new(Store::default()))
        .decode_limits(limits)
        .build()
        .expect("a server")
        .spawn()
        .expect("threads")
}

/// Puts a value by a call and by a stream.
async fn put<C: Caller>(client: &v2::StoreClient<C>, len: usize) -> [Result<(), Status>; 2] {
    let request = v2::PutRequest::new().with_value(&vec![7; len]);
    let single = client.put(&request).await.map(drop);
    let (mut requests, mut responses) = client.put_all();
    // If it fails, the response says so.
    let _ = requests.send(&request).await;
    let response = responses.message().await.map(|response| {
        response.expect("a response");
    });
    [single, response]
}

fn assert_too_large(results: [Result<(), Status>; 2], code: Code) {
    for result in results {
        let status = result.expect_err("it is too large");
        assert_eq!(status.code(), code, "{status}");
        assert!(
            status.message().contains("DecodeLimits::max_bytes"),
            "{status}"
        );
    }
}

#[test]
fn a_server_decodes_what_its_builder_says() {
    let server = old_server(2_000);
    let channel = Channel::lazy(server.address()).expect("a channel");
    let client = v2::StoreClient::new(channel);
    assert_too_large(block_on(put(&client, 3_000)), Code::InvalidArgument);
    for result in block_on(put(&client, 1_000)) {
        result.expect("it is within the limit");
    }
}

#[test]
fn a_client_decodes_what_its_builder_says() {
    let server = old_server(DecodeLimits::default());
    let channel = Channel::builder(server.address()).decode_limits(1).lazy();
    let client = v2::StoreClient::new(channel.expect("a channel"));
    assert_too_large(block_on(put(&client, 10)), Code::Internal);
    let endpoint = Endpoint::builder().reach(server.address()).decode_limits(1);
    let mut endpoint = endpoint.build().expect("an endpoint");
    let local = endpoint.channel(server.address()).expect("a channel");
    let client = v2::StoreClient::new(local);
    let results = endpoint.block_on(put(&client, 10));
    assert_too_large(results.expect("no device fails"), Code::Internal);
}

/// Numbers of one byte, which take 800,000 bytes in memory, and less than 2^20.
fn numbers() -> Vec<u8> {
    const COUNT: usize = 100_000;
    let mut bytes = vec![2 << 3 | 2];
    bytes.extend([
        (COUNT & 0x7f | 0x80) as u8,
        (COUNT >> 7 & 0x7f | 0x80) as u8,
        (COUNT >> 14) as u8,
    ]);
    bytes.resize(bytes.len() + COUNT, 1);
    bytes
}

/// Makes more calls than there is room for, and returns how many went on.
fn wait_for_room(channel: &Channel, gate: &Arc<Gate>, fit: usize) -> usize {
    let request = numbers();
    let options = CallOptions::default();
    let call = || channel.call_protobuf("/test.Test/Wait", &request, &options);
    let mut calls: Vec<_> = (0..5).map(|_| call()).collect();
    wait_until(|| {
        calls.retain_mut(|call| match call.now_or_never() {
            None => true,
            Some(result) => {
                let status = result.expect_err("the gate is closed");
                assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                assert!(status.message().contains("max_waiting_bytes"), "{status}");
                assert!(!status.may_have_run(), "{status}");
                false
            }
        });
        calls.len() <= fit
    });
    gate.open.store(true, Ordering::SeqCst);
    let went_on = calls.len();
    for call in calls {
        call.wait().expect("there was room");
    }
    gate.open.store(false, Ordering::SeqCst);
    went_on
}

#[test]
fn requests_that_wait_for_their_handlers_count_with_what_they_became() {
    let (builder, gate) = server(&["mem://decoded-waiting"]);
    let mut config = EndpointConfig {
        // For two of them: then a client has as much as is free.
        max_waiting_bytes: 4 << 20,
        ..EndpointConfig::default()
    };
    config.protocol.max_message = 1 << 20;
    let server = builder.config(config).build().expect("a server");
    let server = server.spawn().expect("threads");
    let channel = Channel::lazy(server.address()).expect("a channel");
    for _ in 0..3 {
        assert_eq!(wait_for_room(&channel, &gate, 2), 2);
    }
}
