//! Many peers. The process has only one test, because it counts the open files.

mod common;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use common::{Device, name, open_files};
use starling_io::{IoEvent, PacketIo, PeerGone, PeerId, PeerRefusal};
use starling_io_shm::ShmConfig;
use starling_io_testing::PATIENCE;

#[test]
fn a_hundred_peers_are_served_alike() {
    let address = name("hundred");
    let files_before = open_files();
    let config = ShmConfig {
        ring_bytes: 64 << 10,
        max_peers: 100,
        ..ShmConfig::default()
    };
    let mut server = Device::bind(&address, &config);
    let mut clients: Vec<(Device, PeerId)> = (0..100)
        .map(|_| {
            let mut client = Device::client(&config);
            let peer = client.open_peer(&address).unwrap();
            (client, peer)
        })
        .collect();
    for round in 0u32..3 {
        for (number, (client, peer)) in (0u32..).zip(&mut clients) {
            client.send(*peer, &(number * 10 + round).to_ne_bytes());
        }
        let mut received = HashMap::new();
        while received.len() < 100 {
            let (from, datagram) = server.receive();
            server.send(from, &datagram);
            assert!(received.insert(from, datagram).is_none());
        }
        for (number, (client, peer)) in (0u32..).zip(&mut clients) {
            let expected = (number * 10 + round).to_ne_bytes().to_vec();
            assert_eq!(client.receive(), (*peer, expected));
        }
    }
    // The device still serves idle peers after they have become cold.
    for _ in 0..10_000 {
        assert_eq!(server.poll(), 0);
    }
    let (client, peer) = &mut clients[77];
    client.send(*peer, b"still here");
    assert_eq!(server.receive().1, b"still here");
    // The device refuses one peer more.
    let mut late = Device::client(&config);
    let peer = late.open_peer(&address).unwrap();
    server.wait(None).unwrap();
    late.wait(None).unwrap();
    let refused = PeerGone::Refused(PeerRefusal::Full);
    assert_eq!(late.event(), Some(IoEvent::PeerGone(peer, refused)));
    assert_eq!(server.report().count("peers_refused"), Some(1));
    drop(late);
    drop(clients);
    let mut gone = 0;
    while gone < 100 {
        server.wait(None).unwrap();
        while let Some(IoEvent::PeerGone(peer, PeerGone::Certain)) = server.event() {
            server.close_peer(peer);
            gone += 1;
        }
    }
    drop(server);
    // Another thread closes the last of them.
    let start = Instant::now();
    while open_files() != files_before {
        assert!(start.elapsed() < PATIENCE, "{} files", open_files());
        std::thread::sleep(Duration::from_millis(1));
    }
}
