//! Two devices in one process: the behaviour on which a user of the crate can rely.

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::{Device, PREAMBLE, name};
use starling_io::{
    Fault, IoError, IoEvent, PacketIo, PacketRx, PacketTx, PeerGone, PeerId, Source, TxError,
};
use starling_io_shm::{ShmConfig, ShmIo};

fn pair(test: &str, config: &ShmConfig) -> (Device, Device, PeerId) {
    let name = name(test);
    let server = Device::bind(&name, config);
    let mut client = Device::client(config);
    let peer = client.open_peer(&name).unwrap();
    (server, client, peer)
}

fn fault(result: Result<PeerId, IoError>) -> Fault {
    result.unwrap_err().fault
}

#[test]
fn malformed_addresses_and_taken_names_are_refused() {
    let address = name("addresses");
    let mut server = Device::bind(&address, &ShmConfig::default());
    assert_eq!(server.local_address(), address);
    let taken = ShmIo::bind(&address, ShmConfig::default()).err().unwrap();
    assert_eq!(taken.fault, Fault::Host);
    assert!(taken.to_string().contains("choose another name"), "{taken}");
    for malformed in ["", "shm://", "udp://127.0.0.1:1", "shm://a/b", "shm://ä"] {
        let error = ShmIo::bind(malformed, ShmConfig::default()).err().unwrap();
        assert_eq!(error.fault, Fault::Caller, "{error}");
        assert_eq!(fault(server.open_peer(malformed)), Fault::Caller);
    }
    let nobody = server.open_peer(&name("nobody")).unwrap_err();
    assert_eq!(nobody.fault, Fault::Peer);
    assert!(nobody.to_string().contains("start the server"), "{nobody}");
    drop(server);
    Device::bind(&address, &ShmConfig::default());
}

#[test]
fn datagrams_cross_both_ways() {
    let (mut server, mut client, peer) = pair("both-ways", &ShmConfig::default());
    assert_eq!(client.capabilities().scheme, "shm");
    assert_eq!(client.max_datagram(peer), 65536);
    client.send(peer, b"question");
    let (from, datagram) = server.receive();
    assert_eq!(datagram, b"question");
    assert_eq!(server.max_datagram(from), 65536);
    let large: Vec<u8> = (0..65528u32).map(|i| ((i * 7) >> 3) as u8).collect();
    server.send(from, &large);
    assert_eq!(client.receive(), (peer, large));
    // Frames share a datagram until it is sealed.
    let (_, tx) = client.split();
    tx.append(peer, PREAMBLE, b"a", b"b", b"c").unwrap();
    tx.append(peer, PREAMBLE, b"d", b"", b"").unwrap();
    tx.seal(peer);
    tx.seal(peer);
    tx.append(peer, PREAMBLE, b"e", b"", b"").unwrap();
    tx.flush().unwrap();
    tx.flush().unwrap();
    assert_eq!(server.receive().1, b"abcd");
    assert_eq!(server.receive().1, b"e");
    assert_eq!(server.poll(), 0);
}

#[test]
fn frames_cross_at_the_flush_and_all_of_them_arrive() {
    let (mut server, mut client, peer) = pair("flush", &ShmConfig::default());
    let (_, tx) = client.split();
    tx.append(peer, PREAMBLE, b"x", b"", b"").unwrap();
    server.wait(Some(Duration::ZERO)).unwrap();
    assert_eq!(server.poll(), 0);
    client.close_peer(peer);
    let (_, tx) = client.split();
    assert_eq!(tx.append(peer, PREAMBLE, b"", b"", b""), Err(TxError::Gone));
    tx.flush().unwrap();
    // The peer has sent no datagram, so its end causes no event.
    server.wait(Some(Duration::ZERO)).unwrap();
    assert_eq!(server.event(), None);
    let again = client.open_peer(&server.local_address()).unwrap();
    assert_eq!(again, peer, "the device uses the number again");
    client.send(again, b"published before the end");
    client.close_peer(again);
    let (from, datagram) = server.receive();
    assert_eq!(datagram, b"published before the end");
    server.wait(None).unwrap();
    let gone = IoEvent::PeerGone(from, PeerGone::Certain);
    assert_eq!(server.event(), Some(gone));
    assert_eq!(server.event(), None);
    server.close_peer(from);
    server.close_peer(from);
}

#[test]
fn a_full_ring_refuses_an_append_and_room_ends_a_wait() {
    let config = ShmConfig {
        ring_bytes: 64 << 10,
        ..ShmConfig::default()
    };
    let (mut server, mut client, peer) = pair("full", &config);
    let body = vec![3; 4000];
    let mut sent = 0;
    while client
        .split()
        .1
        .append(peer, PREAMBLE, &[], &body, &[])
        .is_ok()
    {
        sent += 1;
    }
    assert!(sent >= 12, "{sent}");
    client.split().1.flush().unwrap();
    let server = thread::spawn(move || {
        // The client sleeps by now or will soon. Either way it is woken for the room.
        for _ in 0..sent {
            assert_eq!(server.receive().1.len(), 4000);
        }
        server
    });
    while client.split().1.append(peer, PREAMBLE, &[], &body, &[]) == Err(TxError::Full) {
        client.wait(None).unwrap();
    }
    client.split().1.flush().unwrap();
    let mut server = server.join().unwrap();
    assert_eq!(server.receive().1.len(), 4000);
}

#[test]
fn two_sleepers_wake_each_other() {
    let (mut server, mut client, peer) = pair("sleepers", &ShmConfig::default());
    const ROUNDS: u32 = 3000;
    let echo = thread::spawn(move || {
        for _ in 0..ROUNDS {
            let (from, datagram) = server.receive();
            server.send(from, &datagram);
        }
    });
    for round in 0..ROUNDS {
        let body = vec![round as u8; 1 + (round as usize * 37) % 3000];
        client.send(peer, &body);
        assert_eq!(client.receive(), (peer, body));
    }
    echo.join().unwrap();
    client.wait(None).unwrap();
    let gone = IoEvent::PeerGone(peer, PeerGone::Certain);
    assert_eq!(client.event(), Some(gone));
    let (_, tx) = client.split();
    assert_eq!(tx.append(peer, PREAMBLE, b"", b"", b""), Err(TxError::Gone));
}

#[test]
fn a_stream_arrives_in_order_through_small_rings() {
    let config = ShmConfig {
        ring_bytes: 64 << 10,
        ..ShmConfig::default()
    };
    let (mut server, mut client, peer) = pair("stream", &config);
    const DATAGRAMS: u64 = 20_000;
    let reader = thread::spawn(move || {
        let mut next = 0u64;
        while next < DATAGRAMS {
            let (_, datagram) = server.receive();
            for frame in datagram.chunks_exact(16) {
                assert_eq!(frame[..8], next.to_ne_bytes());
                next += 1;
            }
        }
    });
    for number in 0..DATAGRAMS {
        let frame = number.to_ne_bytes();
        while client
            .split()
            .1
            .append(peer, PREAMBLE, &frame, &[1; 8], &[])
            == Err(TxError::Full)
        {
            client.split().1.flush().unwrap();
            client.wait(None).unwrap();
        }
        if number % 7 == 0 {
            client.split().1.flush().unwrap();
        }
    }
    client.split().1.flush().unwrap();
    reader.join().unwrap();
}

#[test]
fn the_waker_ends_a_wait_from_another_thread() {
    let mut device = Device::client(&ShmConfig::default());
    let waker = device.waker();
    // A wake before the wait ends it at once, and does not end the next one.
    waker.wake();
    waker.wake();
    device.wait(None).unwrap();
    let woken = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&woken);
    let other = thread::spawn(move || {
        flag.store(true, Ordering::SeqCst);
        waker.wake();
    });
    while !woken.load(Ordering::SeqCst) {
        device.wait(None).unwrap();
    }
    other.join().unwrap();
}

#[test]
fn a_device_can_talk_to_itself() {
    let address = name("itself");
    let mut device = Device::bind(&address, &ShmConfig::default());
    let peer = device.open_peer(&address).unwrap();
    device.send(peer, b"echo");
    let (from, datagram) = device.receive();
    assert_ne!(from, peer);
    assert_eq!(datagram, b"echo");
}

#[test]
fn an_address_is_one_peer_while_that_peer_lives() {
    let address = name("once");
    let mut server = Device::bind(&address, &ShmConfig::default());
    let mut client = Device::client(&ShmConfig::default());
    let peer = client.open_peer(&address).unwrap();
    assert_eq!(client.open_peer(&address).unwrap(), peer);
    client.send(peer, b"hello");
    assert_eq!(server.receive().1, b"hello");
    assert_eq!(client.open_peer(&address).unwrap(), peer);
    // The next device with the name is another peer, even before the first one is closed.
    drop(server);
    let mut server = Device::bind(&address, &ShmConfig::default());
    let other = client.open_peer(&address).unwrap();
    assert_ne!(other, peer);
    client.send(other, b"hello again");
    assert_eq!(server.receive().1, b"hello again");
    client.close_peer(peer);
    assert_eq!(client.open_peer(&address).unwrap(), other);
}

/// Only the end that opened a connection closes it, because that end may be using it again.
#[test]
fn a_closed_peer_is_known_again_with_its_next_datagram() {
    let (mut server, mut client, peer) = pair("again", &ShmConfig::default());
    for _ in 0..3 {
        client.send(peer, b"hello");
        let (from, datagram) = server.receive();
        assert_eq!(datagram, b"hello");
        server.close_peer(from);
        assert_eq!(client.open_peer(&server.local_address()).unwrap(), peer);
    }
    client.send(peer, b"the last");
    let (from, _) = server.receive();
    client.close_peer(peer);
    let gone = IoEvent::PeerGone(from, PeerGone::Certain);
    assert_eq!(server.wait_for_event(), gone);
    server.close_peer(from);

    let again = client.open_peer(&server.local_address()).unwrap();
    client.send(again, b"and silent after that");
    let (from, _) = server.receive();
    server.close_peer(from);
    client.close_peer(again);
    server.wait(None).unwrap();
    assert_eq!(server.event(), None, "it left before it was one again");
}

#[test]
fn bursts_are_bounded_and_fair() {
    let address = name("fair");
    let mut server = Device::bind(&address, &ShmConfig::default());
    let mut clients = [0, 1].map(|_| {
        let mut client = Device::client(&ShmConfig::default());
        let peer = client.open_peer(&address).unwrap();
        (client, peer)
    });
    for _ in 0..500 {
        for (client, peer) in &mut clients {
            let peer = *peer;
            let (_, tx) = client.split();
            tx.append(peer, PREAMBLE, b"x", b"", b"").unwrap();
            tx.flush().unwrap();
        }
    }
    // Until both are accepted: a wait may end after the first one.
    for _ in 0..4 {
        server.wait(Some(Duration::ZERO)).unwrap();
    }
    let mut served = HashMap::<PeerId, usize>::new();
    for _ in 0..10 {
        let (rx, _) = server.split();
        let count = rx.rx_burst().unwrap();
        assert!(count <= starling_io::MAX_BURST);
        for index in 0..count {
            let Source::Peer(peer) = rx.datagram(index).source else {
                panic!("every sender is a peer");
            };
            *served.entry(peer).or_default() += 1;
        }
    }
    assert_eq!(served.len(), 2);
    let (most, least) = (served.values().max(), served.values().min());
    assert!(most.unwrap() - least.unwrap() <= starling_io::MAX_BURST);
}
