//! Peers that say nothing, nonsense or too much, and too many of them.

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use common::{HELLO, Raw, client, connect, count, drive, event, framed, receive_one, send, server};
use starling_io::{IoEvent, PacketIo, PeerGone, PeerRefusal};
use starling_io_tcp::TcpConfig;

/// Sends bytes as a peer's first, and waits until the server has closed the connection.
fn check_cut_off(bytes: &[u8]) {
    let mut server = server(&TcpConfig::default());
    let mut honest = client();
    let to_server = connect(&mut honest, &server);
    send(&mut honest, to_server, b"before");
    let (from, _) = receive_one(&mut server);
    let mut hostile = Raw::connect(&server);
    hostile.send(bytes);
    drive(&mut server, |_| hostile.is_closed());
    assert_eq!(count(&server, "peers_cut_off"), 1);
    assert_eq!(server.poll_event(), None, "nobody knew it");
    send(&mut honest, to_server, b"after");
    assert_eq!(receive_one(&mut server), (from, b"after".to_vec()));
}

#[test]
fn a_peer_that_begins_with_nonsense_is_cut_off() {
    check_cut_off(b"GET / HTTP/1.1\r\n\r\n");
    check_cut_off(b"\x16\x03\x01\x02\0\x01");
    check_cut_off(b"\x5aTCP\x02\0\0\0");
    check_cut_off(&[0; 100_000]);
}

#[test]
fn a_datagram_that_is_too_short_or_too_long_ends_its_connection() {
    for length in [0, 7, 65_560, u32::MAX] {
        check_cut_off(&[&HELLO[..], &length.to_le_bytes()].concat());
    }
}

#[test]
fn what_came_before_a_bad_length_is_delivered_and_the_end_reported() {
    let mut server = server(&TcpConfig::default());
    let mut hostile = Raw::connect(&server);
    hostile.send(&[&HELLO[..], &framed(b"good"), &[0xff; 100]].concat());
    let (from, received) = receive_one(&mut server);
    assert_eq!(received, b"good");
    assert_eq!(
        event(&mut server),
        IoEvent::PeerGone(from, PeerGone::Certain)
    );
    server.close_peer(from);
    drive(&mut server, |_| hostile.is_closed());
}

#[test]
fn a_datagram_in_single_bytes_arrives() {
    let mut server = server(&TcpConfig::default());
    let mut slow = Raw::connect(&server);
    slow.0.set_nodelay(true).expect("a socket");
    let bytes = [&HELLO[..], &framed(b"bit by bit")].concat();
    let (last, others) = bytes.split_last().expect("not empty");
    for byte in others {
        slow.send(&[*byte]);
        server.wait(Some(Duration::ZERO)).expect("healthy");
        drive(&mut server, |_| true);
    }
    slow.send(&[*last]);
    assert_eq!(receive_one(&mut server).1, b"bit by bit");
}

#[test]
fn a_peer_that_stays_silent_or_stops_within_a_datagram_is_disconnected() {
    let config = TcpConfig {
        silent_timeout: Duration::from_millis(300),
        ..TcpConfig::default()
    };
    let mut server = server(&config);
    let mut known = Raw::connect(&server);
    known.send(&[&HELLO[..], &framed(b"known")].concat());
    receive_one(&mut server);
    let mut stalled = [(); 4].map(|()| Raw::connect(&server));
    stalled[1].send(&HELLO[..3]);
    stalled[2].send(HELLO);
    stalled[3].send(&[&HELLO[..], &framed(&[0; 1000])[..500]].concat());
    drive(&mut server, |_| stalled.iter_mut().all(Raw::is_closed));
    assert_eq!(count(&server, "peers_timed_out"), 4);
    assert!(!known.is_closed(), "it has said something");
    assert_eq!(server.poll_event(), None);
}

#[test]
fn more_peers_than_places_of_a_host_displace_silent_ones_and_nobody_else() {
    let config = TcpConfig {
        max_peers: 16,
        max_peers_of_one: 8,
        ..TcpConfig::default()
    };
    let mut server = server(&config);
    let mut known = client();
    let to_server = connect(&mut known, &server);
    send(&mut known, to_server, b"known");
    let (from, _) = receive_one(&mut server);
    // They come in waves, as the queue of the kernel takes them.
    for _ in 0..20 {
        let mut crowd: Vec<_> = (0..100).map(|_| Raw::connect(&server)).collect();
        drive(&mut server, |_| {
            let left = crowd
                .iter_mut()
                .filter_map(|it| (!it.is_closed()).then_some(()));
            left.count() == 7
        });
    }
    assert_eq!(count(&server, "peers_refused"), 0);
    assert!(count(&server, "peers_evicted") >= 20 * 93 - 7 * 20);
    send(&mut known, to_server, b"still");
    assert_eq!(receive_one(&mut server), (from, b"still".to_vec()));
}

#[test]
fn a_host_that_has_all_its_places_is_refused_with_the_reason() {
    let config = TcpConfig {
        max_peers_of_one: 3,
        ..TcpConfig::default()
    };
    let mut server = server(&config);
    let mut clients = [(); 3].map(|()| client());
    for client in &mut clients {
        let peer = connect(client, &server);
        send(client, peer, b"mine");
        receive_one(&mut server);
    }
    let mut late = client();
    let peer = connect(&mut late, &server);
    send(&mut late, peer, &[1; 50_000]);
    drive(&mut server, |server| count(server, "peers_refused") == 1);
    let full = PeerGone::Refused(PeerRefusal::Full);
    assert_eq!(event(&mut late), IoEvent::PeerGone(peer, full));
    // A place is free again when one has gone.
    let [first, ..] = clients;
    drop(first);
    let IoEvent::PeerGone(gone, _) = event(&mut server);
    server.close_peer(gone);
    late.close_peer(peer);
    let peer = connect(&mut late, &server);
    send(&mut late, peer, b"now");
    assert_eq!(receive_one(&mut server).1, b"now");
}

/// What a client reports of a server that begins with these bytes.
fn reported_of(bytes: &'static [u8]) -> PeerGone {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("tcp://{}", listener.local_addr().expect("bound"));
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.write_all(bytes).expect("room");
        let _ = stream.read(&mut [0; 8]);
    });
    let mut client = client();
    let peer = client.open_peer(&address).expect("loopback");
    let IoEvent::PeerGone(gone, how) = event(&mut client);
    assert_eq!(gone, peer);
    drop(client);
    server.join().expect("no panic");
    how
}

#[test]
fn a_client_says_what_is_wrong_with_a_server() {
    let refused = PeerGone::Refused;
    assert_eq!(
        reported_of(b"220 mail.example ESMTP\r\n"),
        refused(PeerRefusal::Nonsense)
    );
    assert_eq!(
        reported_of(b"\x5aTCP\x07\0\0\0"),
        refused(PeerRefusal::OtherVersion)
    );
    assert_eq!(
        reported_of(b"\x5aTCP\x01\x01\0\0"),
        refused(PeerRefusal::Full)
    );
    assert_eq!(
        reported_of(b"\x5aTCP\x01\x63\0\0"),
        refused(PeerRefusal::Unacceptable)
    );
    assert_eq!(
        reported_of(b"\x5aTCP\x01\0\0\0\xff\xff\xff\xff"),
        PeerGone::Certain
    );
}

#[test]
fn a_server_tells_a_peer_of_another_version_which_one_it_has() {
    let mut server = server(&TcpConfig::default());
    let mut other = Raw::connect(&server);
    other.send(b"\x5aTCP\x09\0\0\0");
    let mut answer = [0; 8];
    drive(&mut server, |server| count(server, "peers_cut_off") == 1);
    other.0.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, HELLO);
}
