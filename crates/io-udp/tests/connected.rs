//! The connected socket: a second socket, which the device connects to its busiest peer.

mod common;

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use common::{PREAMBLE, bind, receive, receive_burst};
use rustix::event::{PollFd, PollFlags, poll};
use starling_io::{IoEvent, PacketIo, PacketRx, PacketTx, PeerGone, PeerId, ReactorWait, Source};
use starling_io_udp::{UdpConfig, UdpIo};

/// One end of a conversation: a device, and its number for the other end.
type End<'a> = (&'a mut UdpIo, PeerId);

/// Sends one datagram; the receiver polls for events, as an event loop does.
fn cross(from: &mut End<'_>, to: &mut End<'_>, number: usize) {
    let tx = from.0.split().1;
    let number = number.to_le_bytes();
    tx.append(from.1, PREAMBLE, &number, b"", b"")
        .expect("room");
    tx.flush().expect("flush");
    let datagram = receive(to.0, 1).remove(0);
    assert_eq!(datagram.bytes[8..], number);
    assert_eq!(datagram.source, Source::Peer(to.1));
    assert_eq!(to.0.poll_event(), None);
}

/// `count` datagrams, each answered before the next.
fn ping_pong(mut client: End<'_>, mut server: End<'_>, count: usize) {
    for number in 0..count {
        cross(&mut client, &mut server, number);
        cross(&mut server, &mut client, number);
    }
}

/// Connected sockets on the device's address. Another test's device may have the same port of another address.
///
/// The kernel may leave some out of a table that changes while it is read, as other tests' sockets make it do, or show
/// some twice.
fn connected_sockets_of(device: &UdpIo) -> usize {
    let counts = (0..8).map(|_| listed_sockets_of(device));
    counts.max().unwrap_or(0)
}

fn listed_sockets_of(device: &UdpIo) -> usize {
    let address = device.local_socket_address();
    let (table, octets) = match address.ip() {
        IpAddr::V4(ip) => ("/proc/self/net/udp", ip.octets().to_vec()),
        IpAddr::V6(ip) => ("/proc/self/net/udp6", ip.octets().to_vec()),
    };
    // The kernel prints an address as words of 32 bits in the machine's byte order.
    let words = octets.chunks_exact(4);
    let words = words.map(|word| u32::from_ne_bytes(word.try_into().expect("four bytes")));
    let mut local: String = words.map(|word| format!("{word:08X}")).collect();
    local += &format!(":{:04X}", address.port());
    // Columns: number, local address, remote address, state, where 01 is connected, five others, inode.
    let connected_inode = |row: &str| {
        let columns: Vec<_> = row.split_whitespace().take(10).collect();
        (columns[1] == local && columns[3] == "01").then(|| columns[9].to_owned())
    };
    let rows = std::fs::read_to_string(table).expect("procfs");
    let inodes: HashSet<_> = rows.lines().filter_map(connected_inode).collect();
    inodes.len()
}

#[test]
fn a_busy_peer_gets_a_connected_socket_until_others_send() {
    for host in ["127.0.0.1", "[::1]"] {
        let (mut client, mut server, mut other) = (bind(host), bind(host), bind(host));
        let to_server = client.open_peer(&server.local_address()).expect(host);
        let to_client = server.open_peer(&client.local_address()).expect(host);
        ping_pong((&mut client, to_server), (&mut server, to_client), 200);
        assert_eq!(
            (connected_sockets_of(&client), connected_sockets_of(&server)),
            (0, 0)
        );
        ping_pong((&mut client, to_server), (&mut server, to_client), 200);
        assert_eq!(
            (connected_sockets_of(&client), connected_sockets_of(&server)),
            (1, 1)
        );

        // No other device can have the port, although two sockets of this one are bound to it.
        let error = UdpIo::bind(&server.local_address(), UdpConfig::default());
        let error = error.err().expect("the port is in use");
        assert!(error.to_string().contains("another"), "{error}");

        // Datagrams from others arrive beside the connected socket. Many of them close it.
        let from_other = other.open_peer(&server.local_address()).expect(host);
        let to_other = server.open_peer(&other.local_address()).expect(host);
        ping_pong((&mut other, from_other), (&mut server, to_other), 10);
        assert_eq!(connected_sockets_of(&server), 1);
        ping_pong((&mut other, from_other), (&mut server, to_other), 100);
        assert_eq!(connected_sockets_of(&server), 0);
        ping_pong((&mut client, to_server), (&mut server, to_client), 500);
        assert_eq!(
            connected_sockets_of(&server),
            0,
            "the next one takes a longer run"
        );
        ping_pong((&mut client, to_server), (&mut server, to_client), 600);
        assert_eq!(connected_sockets_of(&server), 1);
        server.close_peer(to_client);
        ping_pong((&mut other, from_other), (&mut server, to_other), 1);
        assert_eq!(
            connected_sockets_of(&server),
            0,
            "a connected socket closes with its peer"
        );
    }
}

/// A reactor does not say which of the two sockets has something.
#[test]
fn the_first_burst_after_a_reactors_wait_has_what_came_whichever_socket_has_it() {
    let (mut client, mut server) = (bind("127.0.0.1"), bind("127.0.0.1"));
    let to_server = client.open_peer(&server.local_address()).expect("a peer");
    let to_client = server.open_peer(&client.local_address()).expect("a peer");
    ping_pong((&mut client, to_server), (&mut server, to_client), 400);
    assert_eq!(connected_sockets_of(&server), 1);
    let descriptor = server.descriptor().expect("it has one");
    for number in 0..10_u8 {
        assert_eq!(server.split().0.rx_burst().expect("nothing fails"), 0);
        assert_eq!(
            server.begin_wait().expect("nothing fails"),
            ReactorWait::Begun
        );
        let tx = client.split().1;
        tx.append(to_server, PREAMBLE, &[number], b"", b"")
            .expect("room");
        tx.flush().expect("flush");
        let mut ready = [PollFd::new(&descriptor, PollFlags::IN)];
        poll(&mut ready, None).expect("a descriptor");
        server.end_wait().expect("nothing fails");
        assert_eq!(server.split().0.rx_burst().expect("nothing fails"), 1);
    }
}

#[test]
fn a_device_does_not_sleep_over_datagrams_in_a_closing_connected_socket() {
    /// Far longer than a datagram takes to arrive.
    const LONG: Duration = Duration::from_secs(60);
    for host in ["127.0.0.1", "[::1]"] {
        let (mut client, mut server, mut other) = (bind(host), bind(host), bind(host));
        let to_server = client.open_peer(&server.local_address()).expect(host);
        let to_client = server.open_peer(&client.local_address()).expect(host);
        ping_pong((&mut client, to_server), (&mut server, to_client), 400);
        assert_eq!(connected_sockets_of(&server), 1);

        let from_other = other.open_peer(&server.local_address()).expect(host);
        let tx = other.split().1;
        for _ in 0..64 {
            tx.append(from_other, PREAMBLE, b"x", b"", b"")
                .expect("room");
            tx.seal(from_other);
        }
        tx.flush().expect("flush");
        assert_eq!(receive(&mut server, 64).len(), 64);
        while server.split().0.rx_burst().expect("a healthy socket") > 0 {}
        // This closes the connected socket, which is still drained.
        assert_eq!(server.poll_event(), None);
        let tx = client.split().1;
        tx.append(to_server, PREAMBLE, b"late", b"", b"")
            .expect("room");
        tx.flush().expect("flush");

        let begun = Instant::now();
        server.wait(Some(LONG)).expect("a healthy socket");
        assert_eq!(server.split().0.rx_burst().expect("a healthy socket"), 1);
        assert!(
            begun.elapsed() < LONG / 2,
            "{host}: it slept over a datagram"
        );
        assert_eq!(server.split().0.rx_burst().expect("a healthy socket"), 0);
        assert_eq!(connected_sockets_of(&server), 0, "nothing more is in it");
    }
}

#[test]
fn a_connected_socket_carries_what_the_main_socket_does() {
    let (mut client, mut server) = (bind("127.0.0.1"), bind("127.0.0.1"));
    let mut other = bind("127.0.0.1");
    let to_server = client.open_peer(&server.local_address()).expect("loopback");
    let to_client = server.open_peer(&client.local_address()).expect("loopback");
    let to_other = client.open_peer(&other.local_address()).expect("loopback");
    ping_pong((&mut client, to_server), (&mut server, to_client), 400);
    assert_eq!(connected_sockets_of(&client), 1);

    // Datagrams to the connected peer and to another one alternate within one flush.
    let tx = client.split().1;
    for number in 0..20_u8 {
        for peer in [to_server, to_other] {
            tx.append(peer, PREAMBLE, &[number], b"", b"")
                .expect("room");
            if number % 3 == 0 {
                tx.seal(peer);
            }
        }
    }
    let large = vec![7; 40_000];
    tx.append(to_server, PREAMBLE, b"", &large, b"")
        .expect("room");
    tx.flush().expect("flush");
    for (device, with_large) in [(&mut server, true), (&mut other, false)] {
        let mut bytes = Vec::new();
        while bytes.len() < 20 + if with_large { large.len() } else { 0 } {
            for datagram in receive_burst(device) {
                bytes.extend_from_slice(&datagram.bytes[PREAMBLE.len()..]);
            }
        }
        assert_eq!(bytes[..20], (0..20).collect::<Vec<u8>>());
        assert_eq!(bytes[20..], large[..bytes.len() - 20]);
    }

    // A closed port of the connected peer is reported as an event, as without one.
    drop(server);
    let tx = client.split().1;
    tx.append(to_server, PREAMBLE, b"?", b"", b"")
        .expect("room");
    tx.flush().expect("flush");
    client
        .wait(Some(Duration::from_secs(20)))
        .expect("a healthy socket");
    assert_eq!(client.split().0.rx_burst().expect("a healthy socket"), 0);
    let gone = IoEvent::PeerGone(to_server, PeerGone::Suspected);
    assert_eq!(client.poll_event(), Some(gone));
}
