//! Peers that reach a server and never open a session.

mod common;

use common::{impatient, payload, server, shm_address};
use starling::Channel;
use starling_io::{PacketIo, PacketTx};
use starling_io_shm::{ShmConfig, ShmIo};
use starling_test_protos::test::TestClient;

/// A process that writes into the shared memory and then ends, whether hostile or killed, leaves
/// nothing behind.
#[test]
fn peers_that_go_without_a_session_leave_room_for_others() {
    let (builder, _gate) = server(&[&shm_address()]);
    let server = builder.build().unwrap().spawn().unwrap();
    for _ in 0..ShmConfig::default().max_peers + 100 {
        let mut peer_io = ShmIo::client(ShmConfig::default()).unwrap();
        let peer = peer_io.open_peer(server.address()).unwrap();
        let (_, tx) = peer_io.split();
        tx.append(peer, b"nonsense", b"", b"and more of it", b"")
            .unwrap();
        tx.flush().unwrap();
    }
    let client = TestClient::new(Channel::lazy(server.address()).unwrap());
    let answer = client.echo(&payload(b"room?")).wait();
    assert_eq!(answer.unwrap().message().bytes(), b"room?");
}

/// A connection with a first datagram that opens no session.
fn unknown_peer(address: &str) -> ShmIo {
    let mut peer_io = ShmIo::client(ShmConfig::default()).unwrap();
    let peer = peer_io.open_peer(address).unwrap();
    let (_, tx) = peer_io.split();
    tx.append(peer, b"nonsense", b"", b"and more of it", b"")
        .unwrap();
    tx.flush().unwrap();
    peer_io
}

/// Whoever sends something, and opens no session, keeps no place from others.
#[test]
fn peers_that_stay_without_a_session_make_room_for_others() {
    let address = format!("{}?peers=3&peers_of_one=3", shm_address());
    let (builder, _gate) = server(&[&address]);
    let server = builder.build().unwrap().spawn().unwrap();
    let client = TestClient::new(Channel::lazy(server.address()).unwrap());
    let call = || client.echo(&payload(b"room?")).wait();
    assert!(call().is_ok());
    let mut unknown = Vec::new();
    for _ in 0..20 {
        unknown.push(unknown_peer(server.address()));
        // The server reads from all in turn, so it has read that before the next one comes.
        assert!((0..3).all(|_| call().is_ok()));
    }
    let newcomer = Channel::builder(server.address()).endpoint_config(impatient());
    let newcomer = TestClient::new(newcomer.lazy().unwrap());
    let answer = newcomer.echo(&payload(b"room?")).wait();
    assert_eq!(answer.unwrap().message().bytes(), b"room?");
}
