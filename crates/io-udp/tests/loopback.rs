//! The device over the loopback interface, which needs no privileges.

mod common;

use std::net::UdpSocket;

use common::{
    FRAME, PREAMBLE, ReceivedDatagram, bind, bind_with, receive, receive_burst, receive_payloads,
    text,
};
use starling_io::{
    Ecn, Fault, IoEvent, MAX_BURST, PacketIo, PacketRx, PacketTx, PeerGone, Source, TxError,
};
use starling_io_udp::{UdpConfig, UdpIo};

const HOSTS: [&str; 2] = ["127.0.0.1", "[::1]"];

#[test]
fn echo_over_both_ip_versions() {
    for host in HOSTS {
        let (mut client, mut server) = (bind(host), bind(host));
        let to_server = client.open_peer(&server.local_address()).expect(host);
        let tx = client.split().1;
        tx.append(to_server, PREAMBLE, b"he", b"ll", b"o")
            .expect("room");
        tx.flush().expect("flush");

        let request = receive(&mut server, 1).remove(0);
        assert_eq!(text(&request.bytes), "preamblehello");
        let Source::Unknown(address) = request.source else {
            panic!("no peer was accepted yet");
        };
        let tx = server.split().1;
        let to_client = tx.accept_peer(address).expect("room for a peer");
        tx.append(to_client, PREAMBLE, b"back", b"", b"")
            .expect("room");
        tx.flush().expect("flush");

        let reply = receive(&mut client, 1).remove(0);
        assert_eq!(text(&reply.bytes), "preambleback");
        assert_eq!(reply.source, Source::Peer(to_server));
    }
}

#[test]
fn a_socket_on_all_interfaces_exchanges_datagrams_with_both_ip_versions() {
    let mut server = bind("[::]");
    let port = server.local_socket_address().port();
    for host in HOSTS {
        let mut client = bind(host);
        let peer = client
            .open_peer(&format!("udp://{host}:{port}"))
            .expect(host);
        let tx = client.split().1;
        tx.append(peer, PREAMBLE, b"x", b"", b"").expect("room");
        tx.flush().expect("flush");
        let request = receive(&mut server, 1).remove(0);
        assert_eq!(
            request.source,
            Source::Unknown(client.local_socket_address())
        );
        let back = server.open_peer(&client.local_address()).expect(host);
        let tx = server.split().1;
        tx.append(back, PREAMBLE, b"y", b"", b"").expect("room");
        tx.flush().expect("flush");
        let reply = receive(&mut client, 1).remove(0);
        assert_eq!(reply.source, Source::Peer(peer));
    }
}

#[test]
fn frames_for_one_peer_share_a_datagram_until_it_is_sealed_or_full() {
    let config = UdpConfig {
        max_datagram: Some(600),
        ..UdpConfig::default()
    };
    let (mut client, mut server) = (bind_with("127.0.0.1", config), bind("127.0.0.1"));
    let peer = client.open_peer(&server.local_address()).expect("loopback");
    assert_eq!(client.max_datagram(peer), 600);
    let tx = client.split().1;
    for frame in [b"a", b"b", b"c"] {
        tx.append(peer, PREAMBLE, frame, b"", b"").expect("room");
    }
    tx.seal(peer);
    tx.append(peer, PREAMBLE, b"d", b"", b"").expect("room");
    // Fills the datagram exactly: 8 + 1 + 591.
    tx.append(peer, PREAMBLE, &[b'e'; 591], b"", b"")
        .expect("room");
    tx.append(peer, PREAMBLE, b"f", b"", b"").expect("room");
    tx.flush().expect("flush");
    tx.append(peer, PREAMBLE, b"g", b"", b"").expect("room");
    tx.flush().expect("flush");
    let received = receive_payloads(&mut server, 4);
    assert_eq!(text(&received[0]), "preambleabc");
    assert_eq!(received[1].len(), 600);
    assert_eq!(text(&received[2]), "preamblef");
    assert_eq!(text(&received[3]), "preambleg");
}

#[test]
fn datagrams_to_a_peer_keep_their_order_whether_copied_or_gathered() {
    let (mut client, mut server) = (bind("127.0.0.1"), bind("127.0.0.1"));
    let mut other = bind("127.0.0.1");
    let peer = client.open_peer(&server.local_address()).expect("loopback");
    let aside = client.open_peer(&other.local_address()).expect("loopback");
    let large = vec![7; 40_000];
    let mut expected = Vec::new();
    let tx = client.split().1;
    // More datagrams than staging slots, so that some leave before the flush.
    for round in 0..150_u32 {
        let head = round.to_be_bytes();
        // A large body joins the open datagram, or follows sealed ones.
        let body = if round % 10 == 3 { &large[..] } else { &[] };
        tx.append(peer, PREAMBLE, &head, body, b"!").expect("room");
        if round % 4 != 2 {
            tx.seal(peer);
        }
        if round % 10 == 0 {
            tx.append(aside, PREAMBLE, &head, b"", b"").expect("room");
        }
        expected.extend_from_slice(&head);
        expected.extend_from_slice(body);
        expected.push(b'!');
    }
    tx.flush().expect("flush");
    assert!(receive_frames(&mut server, expected.len()) == expected);
    let numbers: Vec<_> = (0..150_u32).step_by(10).map(u32::to_be_bytes).collect();
    assert_eq!(receive_frames(&mut other, 60), numbers.concat());
}

/// Receives `len` bytes of frames, over any number of datagrams.
fn receive_frames(device: &mut UdpIo, len: usize) -> Vec<u8> {
    let mut frames = Vec::new();
    while frames.len() < len {
        for ReceivedDatagram { bytes, .. } in receive_burst(device) {
            frames.extend_from_slice(bytes.strip_prefix(PREAMBLE).expect("a preamble"));
        }
    }
    frames
}

#[test]
fn the_largest_datagrams_arrive() {
    for (host, largest) in [("127.0.0.1", 65_507), ("[::1]", 65_488)] {
        let (mut client, mut server) = (bind(host), bind(host));
        let peer = client.open_peer(&server.local_address()).expect("loopback");
        assert_eq!(client.max_datagram(peer), largest);
        let tx = client.split().1;
        assert_eq!(tx.max_datagram(peer), largest);
        let head: Vec<u8> = (0..largest - 8).map(|i| i as u8).collect();
        // One copied, one gathered.
        tx.append(peer, PREAMBLE, &head, b"", b"").expect("room");
        tx.append(peer, PREAMBLE, b"", &head, b"").expect("room");
        tx.flush().expect("flush");
        for payload in receive_payloads(&mut server, 2) {
            assert!(payload[8..] == head, "{host}: the bytes differ");
        }
    }
}

#[test]
#[should_panic(expected = "exceeds the largest datagram")]
fn appending_a_frame_larger_than_any_datagram_panics() {
    let mut client = bind("127.0.0.1");
    let peer = client.open_peer("udp://127.0.0.1:9").expect("loopback");
    let _ = client
        .split()
        .1
        .append(peer, PREAMBLE, b"", &[0; 65_500], b"");
}

#[test]
fn a_burst_is_bounded_and_the_rest_follows_in_the_next() {
    let mut server = bind("127.0.0.1");
    let sender = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    let count = 3 * MAX_BURST as u32 + 5;
    for number in 0..count {
        sender
            .send_to(&number.to_be_bytes(), server.local_socket_address())
            .expect("loopback");
    }
    let payloads = receive_payloads(&mut server, count as usize);
    let expected: Vec<_> = (0..count).map(|n| n.to_be_bytes().to_vec()).collect();
    assert_eq!(payloads, expected);
    assert_eq!(server.split().0.rx_burst().expect("no error"), 0);
}

#[test]
fn an_empty_datagram_is_received() {
    let mut server = bind("127.0.0.1");
    let sender = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    for payload in [&b""[..], b"x", b"", b""] {
        sender
            .send_to(payload, server.local_socket_address())
            .expect("loopback");
    }
    let lens: Vec<_> = receive_payloads(&mut server, 4)
        .iter()
        .map(Vec::len)
        .collect();
    assert_eq!(lens, [0, 1, 0, 0]);
}

#[test]
fn the_receive_queue_holds_what_its_capabilities_promise() {
    let config = UdpConfig {
        rx_buffer_bytes: 256 << 10,
        ..UdpConfig::default()
    };
    for payload in [0, 1, 200, 1200, 1472, 9000, 65_507] {
        let mut server = bind_with("127.0.0.1", config.clone());
        let capabilities = server.capabilities().clone();
        assert_eq!(capabilities.rx_queue_bytes, 256 << 10);
        let by_bytes = capabilities.rx_queue_bytes / payload.max(1);
        let count = capabilities.rx_queue_datagrams.min(by_bytes);
        let sender = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        for _ in 0..count {
            sender
                .send_to(&vec![0; payload], server.local_socket_address())
                .expect("loopback");
        }
        let received = receive_payloads(&mut server, count);
        assert_eq!(received.len(), count, "datagrams of {payload} bytes");
    }
}

#[test]
fn sent_datagrams_are_ecn_capable_unless_configured_otherwise() {
    for (host, ecn, expected) in [
        ("127.0.0.1", true, Ecn::Capable),
        ("[::1]", true, Ecn::Capable),
        ("127.0.0.1", false, Ecn::NotCapable),
    ] {
        let config = UdpConfig {
            ecn,
            ..UdpConfig::default()
        };
        let (mut client, mut server) = (bind_with(host, config), bind(host));
        assert_eq!(client.capabilities().ecn, ecn);
        let peer = client.open_peer(&server.local_address()).expect("loopback");
        let tx = client.split().1;
        for _ in 0..40 {
            tx.append(peer, PREAMBLE, b"x", b"", b"").expect("room");
            tx.seal(peer);
        }
        tx.flush().expect("flush");
        // The first two may be received singly; the others came together.
        let received = receive(&mut server, 40);
        assert!(
            received[2..]
                .iter()
                .all(|datagram| datagram.ecn == expected)
        );
    }
}

#[test]
fn congestion_marks_on_single_datagrams_are_reported() {
    for (host, v6) in [("127.0.0.1", false), ("[::1]", true)] {
        let mut server = bind(host);
        let sender = UdpSocket::bind(format!("{host}:0")).expect("loopback");
        let options = socket2::SockRef::from(&sender);
        if v6 {
            options.set_tclass_v6(0b11).expect("traffic class");
        } else {
            options.set_tos_v4(0b11).expect("type of service");
        }
        let marks: Vec<_> = (0..60)
            .map(|_| {
                sender
                    .send_to(b"x", server.local_socket_address())
                    .expect("loopback");
                let ecn = receive(&mut server, 1)[0].ecn;
                // An idle poll, as after every single datagram.
                assert_eq!(server.split().0.rx_burst().expect("no error"), 0);
                ecn
            })
            .collect();
        let first = marks
            .iter()
            .position(|&ecn| ecn == Ecn::CongestionExperienced)
            .expect("one of the first is sampled");
        assert!(first <= 16, "{host}: the first mark was seen at {first}");
        assert!(
            marks[first..]
                .iter()
                .all(|&ecn| ecn == Ecn::CongestionExperienced)
        );
    }
}

#[test]
fn accepting_makes_an_unknown_address_a_peer_and_closing_makes_it_unknown_again() {
    let mut server = bind("127.0.0.1");
    let sender = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    let address = sender.local_addr().expect("bound");
    let hail = |server: &mut UdpIo| {
        sender
            .send_to(b"x", server.local_socket_address())
            .expect("loopback");
        receive(server, 1)[0].source
    };
    assert_eq!(hail(&mut server), Source::Unknown(address));
    server.split().1.send_to_unknown(address, b"who are you");
    let mut buffer = [0; 32];
    assert_eq!(sender.recv(&mut buffer).expect("an answer"), 11);

    let peer = server
        .split()
        .1
        .accept_peer(address)
        .expect("room for a peer");
    assert_eq!(
        server.split().1.accept_peer(address).expect("the same"),
        peer
    );
    assert_eq!(
        server.open_peer(&format!("udp://{address}")).expect("same"),
        peer
    );
    assert_eq!(hail(&mut server), Source::Peer(peer));

    let tx = server.split().1;
    tx.append(peer, PREAMBLE, b"never sent", b"", b"")
        .expect("room");
    server.close_peer(peer);
    server.close_peer(peer);
    assert_eq!(hail(&mut server), Source::Unknown(address));
    assert_eq!(server.max_datagram(peer), 0);
    let tx = server.split().1;
    assert_eq!(
        tx.append(peer, PREAMBLE, b"x", b"", b""),
        Err(TxError::Gone)
    );
    tx.seal(peer);
    tx.flush().expect("flush");
    tx.send_to_unknown(address, b"the only one");
    assert_eq!(sender.recv(&mut buffer).expect("an answer"), 12);
}

#[test]
fn accepting_a_peer_in_the_middle_of_a_burst_applies_to_the_rest_of_it() {
    let mut server = bind("127.0.0.1");
    let sender = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    for _ in 0..4 {
        sender
            .send_to(b"x", server.local_socket_address())
            .expect("loopback");
    }
    let (rx, tx) = server.split();
    assert_eq!(rx.rx_burst().expect("no error"), 1);
    assert_eq!(rx.rx_burst().expect("no error"), 1);
    assert_eq!(rx.rx_burst().expect("no error"), 2);
    let Source::Unknown(address) = rx.datagram(0).source else {
        panic!("no peer was accepted yet");
    };
    let peer = tx.accept_peer(address).expect("room for a peer");
    assert_eq!(rx.datagram(1).source, Source::Peer(peer));
}

#[test]
fn a_closed_port_is_reported_as_an_event_and_affects_no_other_peer() {
    for host in HOSTS {
        let (mut client, mut server) = (bind(host), bind(host));
        let dead = bind(host).local_address();
        let dead = client.open_peer(&dead).expect("loopback");
        let live = client.open_peer(&server.local_address()).expect("loopback");
        let tx = client.split().1;
        tx.append(dead, PREAMBLE, b"x", b"", b"").expect("room");
        tx.flush().expect("flush");
        for frame in [&b"1"[..], b"2"] {
            tx.append(live, PREAMBLE, frame, b"", b"").expect("room");
            tx.flush().expect("flush");
        }
        assert_eq!(receive_payloads(&mut server, 2).len(), 2);
        client.wait(None).expect("ended by the error");
        assert_eq!(client.split().0.rx_burst().expect("no error"), 0);
        let gone = IoEvent::PeerGone(dead, PeerGone::Suspected);
        assert_eq!(client.poll_event(), Some(gone));
        assert_eq!(client.poll_event(), None);
    }
}

#[test]
fn a_wait_ends_for_an_earlier_datagram_and_at_its_timeout() {
    let mut server = bind("127.0.0.1");
    let sender = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    server
        .wait(Some(std::time::Duration::from_nanos(1)))
        .expect("no error");
    sender
        .send_to(b"x", server.local_socket_address())
        .expect("loopback");
    server.wait(None).expect("no error");
    assert_eq!(server.split().0.rx_burst().expect("no error"), 1);
}

#[test]
fn no_wake_is_lost() {
    use std::sync::atomic::{AtomicU32, Ordering};
    const ROUNDS: u32 = 2000;

    let mut device = bind("127.0.0.1");
    let waker = device.waker();
    let asked = AtomicU32::new(0);
    let (done, wait_for_done) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let asked = &asked;
        scope.spawn(move || {
            for round in 1..=ROUNDS {
                asked.store(round, Ordering::SeqCst);
                waker.wake();
                wait_for_done.recv().expect("the sleeper answers");
            }
        });
        for round in 1..=ROUNDS {
            // If a wake is lost, the test hangs here.
            while asked.load(Ordering::SeqCst) < round {
                device.wait(None).expect("no error");
            }
            done.send(()).expect("the waker listens");
        }
    });
}

#[test]
fn errors_of_bad_addresses_say_what_to_do() {
    let refused = |address: &str| {
        UdpIo::bind(address, UdpConfig::default())
            .map(|_| ())
            .expect_err(address)
    };
    for (address, fault, told) in [
        ("shm://x", Fault::Caller, "udp://HOST:PORT"),
        (
            "udp://nowhere.invalid:1",
            Fault::Caller,
            "use an IP address",
        ),
        (
            "udp://192.0.2.1:9000",
            Fault::Caller,
            "address of this host",
        ),
    ] {
        let error = refused(address);
        assert_eq!(error.fault, fault, "{error}");
        assert!(error.to_string().contains(told), "{error}");
    }
    let first = bind("127.0.0.1");
    let error = refused(&first.local_address());
    assert_eq!(error.fault, Fault::Host);
    assert!(error.to_string().contains("or use another"), "{error}");
    let named = UdpIo::bind("udp://localhost:0", UdpConfig::default()).expect("a name");
    assert_ne!(named.local_socket_address().port(), 0);

    let mut client = bind("127.0.0.1");
    for (address, told) in [
        ("udp://127.0.0.1:0", "own address and port"),
        ("udp://0.0.0.0:1", "own address and port"),
        ("udp://[::1]:1", "udp://[::]:0"),
        ("udp://127.0.0.1", "udp://HOST:PORT"),
        ("udp://nowhere.invalid:1", "use an IP address"),
    ] {
        let error = client.open_peer(address).expect_err(address);
        assert!(error.to_string().contains(told), "{error}");
    }
}

#[test]
fn a_port_is_shared_only_if_both_sockets_ask_for_it() {
    let config = UdpConfig {
        reuse_port: true,
        ..UdpConfig::default()
    };
    let first = bind_with("127.0.0.1", config.clone());
    UdpIo::bind(&first.local_address(), config).expect("both agreed");
    assert!(UdpIo::bind(&first.local_address(), UdpConfig::default()).is_err());
}

#[test]
fn a_max_datagram_below_the_minimum_is_refused() {
    let config = UdpConfig {
        max_datagram: Some(UdpIo::MIN_MAX_DATAGRAM - 1),
        ..UdpConfig::default()
    };
    let error = UdpIo::bind("udp://127.0.0.1:0", config).map(|_| ());
    assert_eq!(error.expect_err("too small").fault, Fault::Caller);
}

#[test]
fn a_device_can_move_to_another_thread() {
    fn is_send<T: Send>(_: &T) {}
    let mut device = bind("127.0.0.1");
    is_send(&device);
    let peer = device.open_peer(&device.local_address()).expect("itself");
    let received = std::thread::spawn(move || {
        let tx = device.split().1;
        tx.append(peer, PREAMBLE, FRAME, b"", b"").expect("room");
        tx.flush().expect("flush");
        receive(&mut device, 1).remove(0)
    });
    let received = received.join().expect("no panic");
    assert_eq!(received.source, Source::Peer(peer));
}

/// The kernel counts such datagrams, but reports them only when asked.
#[test]
fn datagrams_that_the_socket_had_no_room_for_are_counted() {
    let config = UdpConfig {
        rx_buffer_bytes: 64 << 10,
        ..UdpConfig::default()
    };
    let mut server = bind_with(HOSTS[0], config);
    let client = UdpSocket::bind((HOSTS[0], 0)).expect("a free port");
    for _ in 0..1000 {
        let sent = client.send_to(&[0; 1000], server.local_socket_address());
        sent.expect("loopback");
    }
    let mut received = 0;
    loop {
        match server.split().0.rx_burst().expect("a healthy socket") {
            0 => break,
            count => received += count as u64,
        }
    }
    let count = |name| server.report().count(name).expect(name);
    assert_eq!(count("rx_socket"), received);
    assert!(received < 1000, "there was room for all");
    assert_eq!(count("rx_socket_dropped"), 1000 - received);
    assert_eq!((count("tx_socket"), count("tx_lost")), (0, 0));
}
