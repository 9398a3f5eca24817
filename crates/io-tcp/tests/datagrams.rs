//! Datagrams between devices: of all sizes, in both directions, between many.

mod common;

use std::collections::HashMap;

use common::{
    PATIENCE, PREAMBLE, append, client, connect, count, receive, receive_frames, receive_one, send,
    server,
};
use starling_io::{Device, Fault, PacketIo, PacketTx, Source};
use starling_io_tcp::{TcpConfig, TcpIo};
use starling_io_testing::receive_burst;

/// Bytes that differ by place and seed.
fn body(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + seed) as u8).collect()
}

#[test]
fn datagrams_of_all_sizes_arrive_whole_and_in_order() {
    let (mut server, mut client) = (server(&TcpConfig::default()), client());
    let peer = connect(&mut client, &server);
    let largest = client.max_datagram(peer) - PREAMBLE.len();
    let sizes = [0, 1, 100, 5000, (16 << 10) - 1, 16 << 10, 40_000, largest];
    for (seed, size) in sizes.into_iter().enumerate() {
        send(&mut client, peer, &body(size, seed));
    }
    let expected: Vec<_> = (0..)
        .zip(sizes)
        .map(|(seed, size)| body(size, seed))
        .collect();
    let received = receive(&mut server, sizes.len());
    let Source::Peer(from) = received[0].source else {
        panic!("{:?}", received[0].source);
    };
    for (received, expected) in received.iter().zip(&expected) {
        assert_eq!(received.source, Source::Peer(from));
        assert_eq!(received.bytes[8..], **expected, "{} bytes", expected.len());
        send(&mut server, from, expected);
    }
    assert_eq!(receive_frames(&mut client, sizes.len()), expected);
    let all = sizes.len() as u64;
    assert_eq!(
        (count(&client, "tx_socket"), count(&server, "rx_socket")),
        (all, all)
    );
}

#[test]
fn frames_between_two_flushes_share_datagrams_and_a_sealed_one_takes_no_more() {
    let (mut server, mut client) = (server(&TcpConfig::default()), client());
    let peer = connect(&mut client, &server);
    for frame in [b"one", b"two"] {
        append(&mut client, peer, frame).expect("room");
    }
    client.split().1.seal(peer);
    append(&mut client, peer, b"three").expect("room");
    // The large one closes the datagram that it ends.
    append(&mut client, peer, &[4; 20_000]).expect("room");
    append(&mut client, peer, b"five").expect("room");
    client.split().1.flush().expect("a healthy device");
    let large = [&b"three"[..], &[4; 20_000]].concat();
    let expected = [b"onetwo".to_vec(), large, b"five".to_vec()];
    assert_eq!(receive_frames(&mut server, 3), expected);
    // What does not fit begins another one.
    client.split().1.limit_datagram(peer, 512);
    for _ in 0..3 {
        append(&mut client, peer, &[1; 250]).expect("room");
    }
    client.split().1.flush().expect("a healthy device");
    let lengths = receive_frames(&mut server, 2);
    assert_eq!(lengths, [vec![1; 500], vec![1; 250]]);
}

#[test]
fn thousands_of_small_datagrams_take_as_many_bursts_as_they_need() {
    let (mut server, mut client) = (server(&TcpConfig::default()), client());
    let peer = connect(&mut client, &server);
    for number in 0..2000u32 {
        append(&mut client, peer, &number.to_le_bytes()).expect("room");
        client.split().1.seal(peer);
    }
    client.split().1.flush().expect("a healthy device");
    let mut received = 0u32;
    while received < 2000 {
        for datagram in receive_burst(&mut server) {
            assert_eq!(datagram.bytes[8..], received.to_le_bytes());
            received += 1;
        }
    }
}

#[test]
fn many_clients_reach_one_server_and_get_their_own_answers() {
    let mut server = server(&TcpConfig::default());
    let mut clients: Vec<_> = (0..20).map(|_| client()).collect();
    let peers: Vec<_> = clients
        .iter_mut()
        .map(|client| connect(client, &server))
        .collect();
    for (number, (client, &peer)) in clients.iter_mut().zip(&peers).enumerate() {
        send(client, peer, &body(1000 * number, number));
    }
    let mut sources = HashMap::new();
    for datagram in receive(&mut server, 20) {
        let Source::Peer(from) = datagram.source else {
            panic!("{datagram:?}");
        };
        assert!(sources.insert(from, datagram.bytes[8..].to_vec()).is_none());
    }
    for (from, received) in &sources {
        let info = server.split().1.peer_info(*from);
        assert!(info.address.starts_with("tcp://127.0.0.1:"), "{info:?}");
        send(&mut server, *from, received);
    }
    for (number, (client, &peer)) in clients.iter_mut().zip(&peers).enumerate() {
        assert_eq!(receive_one(client), (peer, body(1000 * number, number)));
    }
    let tx = server.split().1;
    let mut origins: Vec<_> = sources.keys().map(|&peer| tx.origin(peer)).collect();
    origins.dedup();
    assert_eq!(origins.len(), 1, "all are of one host");
}

#[test]
fn a_peer_is_the_same_one_however_often_it_is_opened() {
    let (mut server, mut client) = (server(&TcpConfig::default()), client());
    let first = connect(&mut client, &server);
    assert_eq!(
        client
            .open_peer(&server.local_address())
            .expect("it is there"),
        first
    );
    client.close_peer(first);
    let second = connect(&mut client, &server);
    send(&mut client, second, b"again");
    assert_eq!(receive_one(&mut server).1, b"again");
}

#[test]
fn an_ipv6_server_is_reached_by_both_families_and_by_name() {
    let Ok(mut server) = TcpIo::bind("tcp://[::]:0", TcpConfig::default()) else {
        assert!(
            std::fs::metadata("/proc/net/if_inet6").is_err(),
            "IPv6 works here"
        );
        return;
    };
    let own = server.local_address();
    let (_, port) = own.rsplit_once(':').expect("a port");
    for host in ["127.0.0.1", "[::1]", "localhost"] {
        let mut client = client();
        let peer = client.open_peer(&format!("tcp://{host}:{port}"));
        let peer = peer.expect("loopback");
        client.wait(Some(PATIENCE)).expect("a healthy device");
        send(&mut client, peer, host.as_bytes());
        let (from, received) = receive_one(&mut server);
        assert_eq!(received, host.as_bytes());
        let info = server.split().1.peer_info(from);
        assert!(!info.address.contains("ffff"), "{info:?}");
    }
}

#[test]
fn addresses_are_checked_and_ports_have_one_server() {
    let first = server(&TcpConfig::default());
    let own = first.local_address();
    let error = TcpIo::bind(&own, TcpConfig::default())
        .err()
        .expect("taken");
    assert!(
        error.fault == Fault::Host && error.to_string().contains("ss -tlpn"),
        "{error}"
    );
    let error = TcpIo::bind("tcp://192.0.2.1:0", TcpConfig::default()).err();
    assert_eq!(error.expect("not here").fault, Fault::Caller);
    for address in ["tcp://127.0.0.1:0", "tcp://0.0.0.0:9", "tcp://[::]:9"] {
        let error = client().open_peer(address).expect_err(address);
        assert_eq!(error.fault, Fault::Caller, "{error}");
    }
    for address in ["tcp://", "udp://h:1", "tcp://h", "tcp://h:99999"] {
        let error = <TcpIo as Device>::check(address).expect_err(address);
        assert!(error.to_string().contains("parse"), "{error}");
    }
    assert!(<TcpIo as Device>::has_host_name("tcp://kv-0:1"));
    assert!(!<TcpIo as Device>::has_host_name("tcp://[::1]:1"));
    let found = <TcpIo as Device>::resolve("tcp://127.0.0.1:7").expect("an address");
    assert_eq!(found, ["tcp://127.0.0.1:7"]);
}

#[test]
fn several_threads_share_a_port() {
    let devices = <TcpIo as Device>::bind("tcp://127.0.0.1:0", 3).expect("a port");
    assert_eq!(devices.len(), 3);
    assert!(devices.iter().all(|(address, _)| *address == devices[0].0));
    assert!(!devices[0].0.ends_with(":0"));
}
