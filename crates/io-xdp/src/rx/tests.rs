use std::time::Duration;

use starling_io::{PacketIo, PacketRx};
use starling_netns::inside;

use super::*;
use crate::testing::device;

#[test]
fn a_chunk_has_one_owner() {
    let Some((_pair, mut device)) = device("a_chunk_has_one_owner") else {
        return;
    };
    let rx = device.split().0;
    let of = |address| Descriptor {
        address,
        len: 100,
        options: 0,
    };
    assert!(rx.hold(of(256)));
    assert!(!rx.hold(of(256)), "it is held");
    assert!(!rx.hold(of(300)), "the same chunk");
    let chunk = rx.shared.umem.layout.chunk as u64;
    assert!(rx.hold(of(chunk + 256)));
    assert!(!rx.hold(of(2 * chunk - 50)), "beyond its chunk");
    let slots = rx.shared.umem.layout.tx_start() as u64;
    for address in [slots, u64::MAX, u64::MAX - 100] {
        assert!(!rx.hold(of(address)), "no chunk");
    }
    assert_eq!(rx.counts.drops().descriptor, 6);
    rx.give_back();
    assert!(rx.hold(of(256)), "it was given back");
    // None of these came from the ring.
    rx.chunks.subtract(3 + 6);
}

/// A sleeping dispatcher must not keep chunks that the kernel could receive into.
#[test]
fn chunks_of_answers_go_to_the_kernel_before_a_sleep() {
    let name = "chunks_of_answers_go_to_the_kernel_before_a_sleep";
    let Some((pair, mut device)) = device(name) else {
        return;
    };
    // None of the datagrams here matches.
    let table = starling_io::MatchTable {
        value: [0xff; 16],
        mask: [0xff; 16],
        length_at: 0,
        length_from: 0,
        key_at: 0,
    };
    let steered = inside(&pair.b, || device.steer(1, 1, &table)).expect("a worker");
    let rx = device.split().0;
    let exchange = rx.exchange.clone().expect("there is a worker");
    // Held as if a worker had received into it.
    let chunk = rx.shared.umem.layout.chunk as u64;
    assert!(exchange.answered.push(chunk).is_ok());
    device.wait(Some(Duration::ZERO)).expect("a healthy device");
    assert!(exchange.answered.is_empty());
    // It did not come from a ring.
    exchange.chunks.subtract(1);
    drop(steered);
}

/// Datagrams that this host sends to itself always come by the socket.
#[test]
fn a_flood_by_the_socket_leaves_the_ring_its_turn() {
    let Some((pair, mut device)) = device("a_flood_by_the_socket_leaves_the_ring_its_turn") else {
        return;
    };
    starling_netns::run(&pair.b, "ip link set lo up").expect("every namespace has it");
    let socket = |namespace| {
        let bind = || std::net::UdpSocket::bind("0.0.0.0:0");
        inside(namespace, bind).expect("a free port")
    };
    let (itself, other) = (socket(&pair.b), socket(&pair.a));
    let address = device.local_socket_address();
    for _ in 0..500 {
        itself.send_to(b"by the socket", address).expect("a route");
    }
    device.wait(None).expect("a healthy device");
    other.send_to(b"by the ring", address).expect("a route");
    let mut bursts = 0;
    loop {
        let rx = device.split().0;
        let count = rx.rx_burst().expect("a healthy device");
        bursts += usize::from(count > 0);
        if (0..count).any(|index| rx.datagram(index).bytes == b"by the ring") {
            break;
        }
    }
    assert!(bursts <= 4, "it came after {bursts} bursts");
}
