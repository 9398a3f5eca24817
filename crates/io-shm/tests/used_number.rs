//! A server that breaks the rings of its client, and the next server that gets its number.

mod common;

use std::os::unix::fs::FileExt;

use common::hostile_peer::HostileServer;
use common::{Device, PREAMBLE, name};
use starling_io::{PacketIo, PacketTx, TxError};
use starling_io_shm::ShmConfig;

/// The client finds that the heads are impossible, and closes the peer before the device acts on it. The
/// next peer has the same number.
#[test]
fn a_fault_of_a_closed_peer_does_not_cut_off_the_next_one_with_its_number() {
    let config = ShmConfig {
        ring_bytes: 64 << 10,
        ..ShmConfig::default()
    };
    let hostile = HostileServer::bind(&name("used-number-hostile"));
    let mut server = Device::bind(&name("used-number"), &config);
    let mut client = Device::client(&config);
    let broken = client.open_peer(&hostile.address).unwrap();
    let (_socket, memory) = hostile.accept();
    // The heads of the rings that the connecting side produces into.
    memory.write_all_at(&u64::MAX.to_ne_bytes(), 0).unwrap();
    let (_, tx) = client.split();
    let error = loop {
        if let Err(error) = tx.append(broken, PREAMBLE, &[1; 500], b"", b"") {
            break error;
        }
    };
    assert_eq!(error, TxError::Gone);
    client.close_peer(broken);
    let peer = client.open_peer(&server.local_address()).unwrap();
    assert_eq!(peer, broken, "the device uses the number again");
    client.send(peer, b"hello");
    assert_eq!(client.event(), None);
    let (from, datagram) = server.receive();
    assert_eq!(datagram, b"hello");
    server.send(from, b"hello");
    assert_eq!(client.receive(), (peer, b"hello".to_vec()));
    assert_eq!(client.event(), None);
    assert_eq!(client.report().count("peers_cut_off"), Some(0));
}
