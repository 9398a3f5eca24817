//! More peers than places.

mod common;

use std::collections::VecDeque;

use common::hostile_peer::HostilePeer;
use common::{Device, name};
use starling_io::{IoEvent, PacketIo, PeerGone, PeerRefusal};
use starling_io_shm::ShmConfig;

/// The one that has been silent for longest goes, and nobody who has sent something.
#[test]
fn silent_peers_make_room_for_others() {
    let config = ShmConfig {
        ring_bytes: 64 << 10,
        max_peers: 8,
        ..ShmConfig::default()
    };
    let mut server = Device::bind(&name("silent"), &config);
    let mut known = Device::client(&config);
    let peer = known.open_peer(&server.local_address()).unwrap();
    known.send(peer, b"known");
    let (from, _) = server.receive();
    let mut silent = VecDeque::new();
    for number in 0..20u64 {
        silent.push_back(HostilePeer::connected(&mut server));
        if silent.len() > 7 {
            assert!(silent.pop_front().unwrap().was_cut_off());
        }
        let evicted = server.report().count("peers_evicted");
        assert_eq!(evicted, Some(number.saturating_sub(6)));
    }
    let mut newcomer = Device::client(&config);
    let to_server = newcomer.open_peer(&server.local_address()).unwrap();
    newcomer.send(to_server, b"let me in");
    let (new, datagram) = server.receive();
    assert_eq!(datagram, b"let me in");
    for (number, client, peer) in [(from, &mut known, peer), (new, &mut newcomer, to_server)] {
        server.send(number, b"hello");
        assert_eq!(client.receive(), (peer, b"hello".to_vec()));
    }
    assert_eq!(server.event(), None, "nobody knew those who went");
    assert_eq!(server.report().count("peers_refused"), Some(0));
}

/// A place is free as soon as its peer has hung up, also if the device learns of that and of the newcomer
/// at once. The newcomer gets the number, and not the end of the one before.
#[test]
fn a_newcomer_gets_the_place_of_one_that_has_just_gone() {
    let config = ShmConfig {
        ring_bytes: 64 << 10,
        max_peers: 1,
        ..ShmConfig::default()
    };
    let mut server = Device::bind(&name("just-gone"), &config);
    for _ in 0..10 {
        let silent = HostilePeer::connected(&mut server);
        let mut client = Device::client(&config);
        let peer = client.open_peer(&server.local_address()).unwrap();
        client.send(peer, b"next");
        drop(silent);
        let (from, datagram) = server.receive();
        assert_eq!(datagram, b"next");
        server.send(from, b"hello");
        assert_eq!(client.receive(), (peer, b"hello".to_vec()));
        drop(client);
        assert_eq!(
            server.wait_for_event(),
            IoEvent::PeerGone(from, PeerGone::Certain)
        );
        server.close_peer(from);
    }
    let counts = ["peers_refused", "peers_evicted"].map(|name| server.report().count(name));
    assert_eq!(counts, [Some(0), Some(0)]);
}

/// A datagram that is not received yet keeps its peer, too.
#[test]
fn with_peers_that_have_sent_no_place_is_left() {
    let config = ShmConfig {
        ring_bytes: 64 << 10,
        max_peers: 3,
        ..ShmConfig::default()
    };
    let mut server = Device::bind(&name("not-silent"), &config);
    let hostile_peers: Vec<_> = (0..3u8)
        .map(|number| {
            let hostile = HostilePeer::connected(&mut server);
            hostile.publish(0, &[number]);
            hostile
        })
        .collect();
    let mut late = Device::client(&config);
    let peer = late.open_peer(&server.local_address()).unwrap();
    server.wait(None).unwrap();
    let refused = PeerGone::Refused(PeerRefusal::Full);
    assert_eq!(late.wait_for_event(), IoEvent::PeerGone(peer, refused));
    let mut received: Vec<_> = (0..3).map(|_| server.receive()).collect();
    received.sort_unstable();
    for (number, (_, datagram)) in (0u8..).zip(&received) {
        assert_eq!(datagram[..], [number]);
    }
    // A peer that the endpoint has closed is one that has not sent.
    server.close_peer(received[1].0);
    let peer = late.open_peer(&server.local_address()).unwrap();
    late.send(peer, b"now");
    assert_eq!(server.receive().1, b"now");
    let counts = ["peers_refused", "peers_evicted"].map(|name| server.report().count(name));
    assert_eq!(counts, [Some(1), Some(1)]);
    drop(hostile_peers);
}
