//! What the device promises: each datagram once, in order, bounded; a peer that is gone is an event.

use std::time::Duration;

use starling_io::{
    Device, Fault, IoEvent, PacketIo, PacketRx, PacketTx, PeerGone, PeerId, Source, TxError,
};
use starling_io_mem::MemIo;
use starling_io_testing::{PREAMBLE, receive};

/// A server with a name of its own, and a client with the server as its peer.
fn pair(name: &str) -> (MemIo, MemIo, PeerId) {
    let address = format!("mem://{name}");
    let server = MemIo::bind(&address).expect("a free name");
    let mut client = MemIo::client();
    let peer = client.open_peer(&address).expect("it is bound");
    (server, client, peer)
}

fn send(device: &mut MemIo, peer: PeerId, body: &[u8]) {
    let tx = device.split().1;
    tx.append(peer, PREAMBLE, b"", body, b"").expect("room");
    tx.seal(peer);
    tx.flush().expect("a healthy device");
}

#[test]
fn datagrams_arrive_once_in_order_with_their_preamble_and_are_answered() {
    let (mut server, mut client, peer) = pair("in-order");
    for body in [&b"one"[..], b"two", b""] {
        send(&mut client, peer, body);
    }
    let received = receive(&mut server, 3);
    let bodies: Vec<_> = received.iter().map(|it| it.bytes.as_slice()).collect();
    assert_eq!(bodies, [&b"preambleone"[..], b"preambletwo", b"preamble"]);
    let Source::Peer(back) = received[0].source else {
        panic!("a sender of this process is a peer");
    };
    assert!(received.iter().all(|it| it.source == Source::Peer(back)));
    send(&mut server, back, b"answer");
    let answers = receive(&mut client, 1);
    assert_eq!(answers[0].source, Source::Peer(peer));
    assert_eq!(answers[0].bytes, b"preambleanswer");
}

#[test]
fn frames_share_a_datagram_until_it_is_full_or_sealed() {
    let (mut server, mut client, peer) = pair("bundles");
    let tx = client.split().1;
    tx.append(peer, PREAMBLE, b"a", b"b", b"c").expect("room");
    tx.append(peer, PREAMBLE, b"d", b"", b"").expect("room");
    let large = vec![7; tx.max_datagram(peer) - PREAMBLE.len()];
    tx.append(peer, PREAMBLE, b"", &large, b"").expect("room");
    tx.flush().expect("a healthy device");
    let received = receive(&mut server, 2);
    assert_eq!(received[0].bytes, b"preambleabcd");
    assert_eq!(received[1].bytes.len(), large.len() + PREAMBLE.len());
}

#[test]
fn a_sender_finds_no_room_until_the_receiver_has_read_and_is_woken_then() {
    let (mut server, mut client, peer) = pair("bounded");
    let body = vec![1; 60_000];
    let mut sent = 0;
    loop {
        let tx = client.split().1;
        match tx.append(peer, PREAMBLE, b"", &body, b"") {
            Ok(()) => sent += 1,
            Err(error) => {
                assert_eq!(error, TxError::Full);
                break;
            }
        }
        tx.seal(peer);
        tx.flush().expect("a healthy device");
        assert!(sent < 1000, "a link has no bound");
    }
    assert_eq!(receive(&mut server, sent).len(), sent);
    // The next burst gives the memory back.
    assert_eq!(server.split().0.rx_burst().expect("healthy"), 0);
    // It returns at once: the sender was woken.
    client.wait(None).expect("a healthy device");
    send(&mut client, peer, &body);
    receive(&mut server, 1);
}

#[test]
fn a_device_that_is_dropped_is_gone_for_its_peers() {
    let (mut server, client, peer) = pair("gone");
    let mut client = client;
    send(&mut client, peer, b"hello");
    let Source::Peer(back) = receive(&mut server, 1)[0].source else {
        panic!("a sender of this process is a peer");
    };
    drop(client);
    server.wait(None).expect("a healthy device");
    let event = server.poll_event();
    assert_eq!(event, Some(IoEvent::PeerGone(back, PeerGone::Certain)));
    assert_eq!(server.poll_event(), None);
    let appended = server.split().1.append(back, PREAMBLE, b"", b"late", b"");
    assert_eq!(appended, Err(TxError::Gone));
    server.close_peer(back);
}

#[test]
fn a_name_belongs_to_one_device_at_a_time() {
    let first = MemIo::bind("mem://taken").expect("a free name");
    let error = MemIo::bind("mem://taken").err().expect("it is taken");
    assert_eq!(error.fault, Fault::Host);
    drop(first);
    drop(MemIo::bind("mem://taken").expect("it is free again"));
    let mut client = MemIo::client();
    let error = client.open_peer("mem://taken").expect_err("nobody has it");
    assert_eq!(error.fault, Fault::Peer);
    assert!(
        error.to_string().contains("start the server first"),
        "{error}"
    );
}

#[test]
fn a_wait_ends_by_the_waker_of_another_thread() {
    let (mut server, client, _) = pair("waker");
    let waker = server.waker();
    let other = std::thread::spawn(move || waker.wake());
    server.wait(None).expect("a healthy device");
    other.join().expect("it only wakes");
    // A wake before the wait counts, too; then the time passes.
    server.waker().wake();
    server.wait(None).expect("a healthy device");
    server
        .wait(Some(Duration::from_millis(1)))
        .expect("a healthy device");
    drop(client);
}

#[test]
fn malformed_addresses_are_refused_with_what_to_write() {
    for text in ["mem://", "mem://a/b", "shm://a", "mem://a b"] {
        let error = MemIo::check(text).expect_err(text);
        assert_eq!(error.fault, Fault::Caller, "{text}");
        assert!(error.to_string().contains("mem://name"), "{error}");
    }
    assert!(MemIo::check(&format!("mem://{}", "n".repeat(81))).is_err());
    MemIo::check("mem://kv-1.a_b").expect("a name");
}
