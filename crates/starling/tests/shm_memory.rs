//! Large fields in the memory of a shared-memory device, in both directions.

mod common;

use common::{payload, server, shm_address};
use starling::Channel;
use starling_test_protos::test::{Payload, TestClient};

const LARGE: usize = 4 << 20;

fn byte_at(at: usize, round: usize) -> u8 {
    (at * 31 / 7 + round) as u8
}

#[test]
fn large_fields_in_device_memory_arrive_both_ways() {
    let (builder, _) = server(&[&shm_address()]);
    let server = builder.build().expect("a server").spawn().expect("threads");
    let channel = Channel::lazy(server.address()).expect("a channel");
    let client = TestClient::new(channel.clone());
    // Once: the connection's own welcome has arrived by then.
    client.echo(&payload(b"hello")).wait().expect("an echo");
    assert!(channel.memory().is_of_device());
    let mut kept = Vec::new();
    for round in 0..30 {
        let value = channel.memory().make(LARGE, |room| {
            for (at, byte) in room.iter_mut().enumerate() {
                *byte = byte_at(at, round);
            }
        });
        // Now and then there is no room for another one, which is then made in ordinary memory.
        if kept.len() == 20 {
            kept.clear();
        }
        kept.push(value.clone());
        let mut request = Payload::new();
        request.set_bytes_bytes(value);
        // The handler makes its answer in `Request::memory()`.
        let response = client.echo(&request).wait().expect("an echo");
        let bytes = response.message().bytes();
        assert_eq!(bytes.len(), LARGE);
        let mut expected = (0..LARGE).map(|at| byte_at(at, round));
        assert!(bytes.iter().all(|byte| Some(*byte) == expected.next()));
    }
    let stats = channel.stats().expect("the stats");
    assert!(stats.device.count("tx_gathered") > Some(0));
    let of_server = server.stats();
    let answers = of_server
        .iter()
        .filter_map(|it| it.device.count("tx_gathered"));
    assert!(answers.sum::<u64>() > 0, "they went through the ring");
}

/// Nobody has asked for the device's memory: the channel puts large requests there by itself.
#[test]
fn large_requests_go_by_device_memory_unasked() {
    let (builder, _) = server(&[&shm_address()]);
    let server = builder.build().expect("a server").spawn().expect("threads");
    // Its device sends to nobody else, who might have the heap already.
    let channel = Channel::builder(server.address()).own_endpoint().lazy();
    let channel = channel.expect("a channel");
    let client = TestClient::new(channel.clone());
    let gathered = || {
        channel
            .stats()
            .expect("the stats")
            .device
            .count("tx_gathered")
    };
    let mut last = None;
    for round in 0..30 {
        let value: Vec<u8> = (0..LARGE).map(|at| byte_at(at, round)).collect();
        let response = client.echo(&payload(&value)).wait().expect("an echo");
        assert!(response.message().bytes() == value);
        // The connection's own welcome has arrived with the first answer.
        let now = gathered();
        assert!(round == 0 || now > last, "{now:?} after {last:?}");
        last = now;
    }
}
