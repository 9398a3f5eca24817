//! How connections end, slow readers, and sleeping.

mod common;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use common::{
    PATIENCE, PREAMBLE, Raw, append, client, connect, drive, event, receive, receive_one, send,
    server,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use starling_io::{IoEvent, PacketIo, PacketRx, PacketTx, PeerGone, PeerId, ReactorWait, TxError};
use starling_io_tcp::{TcpConfig, TcpIo};

#[test]
fn a_port_where_nothing_listens_is_reported_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("tcp://{}", listener.local_addr().expect("bound"));
    drop(listener);
    let mut client = client();
    // The kernel may know at once, or soon.
    match client.open_peer(&address) {
        Ok(peer) => {
            let _ = append(&mut client, peer, b"anybody?");
            assert_eq!(
                event(&mut client),
                IoEvent::PeerGone(peer, PeerGone::Certain)
            );
            assert_eq!(append(&mut client, peer, b"late"), Err(TxError::Gone));
        }
        Err(error) => assert!(error.to_string().contains("start the server"), "{error}"),
    }
}

#[test]
fn what_a_peer_sent_last_arrives_before_its_end_and_the_next_server_is_reached() {
    let mut first = server(&TcpConfig::default());
    let address = first.local_address();
    let mut client = client();
    let peer = connect(&mut client, &first);
    send(&mut client, peer, b"hello");
    let (from, _) = receive_one(&mut first);
    for number in 0..100u8 {
        append(&mut first, from, &[number; 1000]).expect("room");
        first.split().1.seal(from);
    }
    // Not flushed, and something is unread.
    send(&mut client, peer, b"unread");
    drop(first);
    for (number, datagram) in receive(&mut client, 100).iter().enumerate() {
        assert_eq!(datagram.bytes[8..], [number as u8; 1000]);
    }
    let mut next = TcpIo::bind(&address, TcpConfig::default()).expect("the port is free");
    // It does not take the connection that is over for one to the next server.
    let again = client.open_peer(&address).expect("loopback");
    assert_ne!(again, peer);
    send(&mut client, again, b"again");
    let gone = IoEvent::PeerGone(peer, PeerGone::Certain);
    assert_eq!(event(&mut client), gone);
    client.close_peer(peer);
    // It may have connected already.
    while next.split().0.rx_burst().expect("healthy") == 0 {
        for device in [&mut client, &mut next] {
            let soon = Some(Duration::from_millis(1));
            device.wait(soon).expect("healthy");
        }
    }
    assert_eq!(next.split().0.datagram(0).bytes[8..], *b"again");
    send(&mut client, again, b"still");
    assert_eq!(receive_one(&mut next).1, b"still");
}

#[test]
fn a_client_that_is_gone_is_reported_if_it_was_known_and_not_if_it_was_closed() {
    let mut server = server(&TcpConfig::default());
    for is_closed in [false, true] {
        let mut client = client();
        let peer = connect(&mut client, &server);
        send(&mut client, peer, b"hello");
        let (from, _) = receive_one(&mut server);
        if is_closed {
            server.close_peer(from);
            // What it sends makes it known again.
            send(&mut client, peer, b"here still");
            assert_eq!(receive_one(&mut server), (from, b"here still".to_vec()));
            server.close_peer(from);
        }
        drop(client);
        if is_closed {
            // Its number is free again.
            let mut other = common::client();
            let peer = connect(&mut other, &server);
            drive(&mut server, |server| server.poll_event().is_none());
            send(&mut other, peer, b"next");
            receive_one(&mut server);
            continue;
        }
        assert_eq!(
            event(&mut server),
            IoEvent::PeerGone(from, PeerGone::Certain)
        );
        server.close_peer(from);
    }
}

/// Fills all that takes something for a peer that reads nothing.
fn fill(server: &mut TcpIo, to: PeerId) -> usize {
    let mut filled = 0;
    loop {
        match append(server, to, &[7; 60_000]) {
            Ok(()) => filled += 60_000,
            Err(error) => {
                assert_eq!(error, TxError::Full);
                return filled;
            }
        }
        server.split().1.flush().expect("a healthy device");
    }
}

#[test]
fn a_slow_reader_holds_up_nobody_else_and_gets_all_in_the_end() {
    let mut server = server(&TcpConfig::default());
    let (mut slow, mut quick) = (client(), client());
    let mut meet = |client: &mut TcpIo| {
        let peer = connect(client, &server);
        send(client, peer, b"hello");
        (peer, receive_one(&mut server).0)
    };
    let (of_slow, of_quick) = (meet(&mut slow).1, meet(&mut quick).1);
    let filled = fill(&mut server, of_slow);
    assert!(filled < 64 << 20, "{filled} bytes wait for one peer");
    for number in 0..100u8 {
        send(&mut server, of_quick, &[number]);
        assert_eq!(receive_one(&mut quick).1, [number]);
    }
    assert_eq!(
        append(&mut server, of_slow, &[7; 60_000]),
        Err(TxError::Full)
    );
    let mut received = 0;
    while received < filled {
        let rx = slow.split().0;
        let burst = rx.rx_burst().expect("a healthy device");
        for index in 0..burst {
            let bytes = rx.datagram(index).bytes;
            assert!(bytes[8..].iter().all(|&byte| byte == 7));
            received += bytes.len() - PREAMBLE.len();
        }
        if burst == 0 {
            // The server sends what waits when the kernel says that there is room.
            let soon = Some(Duration::from_millis(1));
            server.wait(soon).expect("a healthy device");
            slow.wait(soon).expect("a healthy device");
        }
    }
    assert_eq!(received, filled);
    append(&mut server, of_slow, b"more").expect("room again");
}

#[test]
fn a_peer_that_reads_nothing_and_hangs_up_is_reported() {
    let mut server = server(&TcpConfig::default());
    let mut peer = Raw::connect(&server);
    peer.send(&[common::HELLO, &*common::framed(b"hello")].concat());
    let (from, _) = receive_one(&mut server);
    fill(&mut server, from);
    drop(peer);
    assert_eq!(
        event(&mut server),
        IoEvent::PeerGone(from, PeerGone::Certain)
    );
    assert_eq!(append(&mut server, from, b"late"), Err(TxError::Gone));
    server.close_peer(from);
}

#[test]
fn an_idle_device_sleeps_and_wakes_for_a_waker_and_for_a_datagram() {
    let mut server = server(&TcpConfig::default());
    let mut client = client();
    let peer = connect(&mut client, &server);
    send(&mut client, peer, b"hello");
    receive_one(&mut server);
    let begun = Instant::now();
    let pause = Duration::from_millis(50);
    while begun.elapsed() < pause {
        // The first wait ends early for the timer that looks for silent peers, perhaps.
        assert_eq!(server.split().0.rx_burst().expect("a healthy device"), 0);
        server.wait(Some(pause)).expect("a healthy device");
    }
    server.waker().wake();
    server.wait(None).expect("it returns");
    send(&mut client, peer, b"wake up");
    server.wait(None).expect("it returns");
    assert_eq!(receive_one(&mut server).1, b"wake up");
}

/// Whether a reactor would see a change.
fn is_readable(file: &impl std::os::fd::AsFd, timeout: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let mut files = [PollFd::new(file, PollFlags::IN)];
    poll(&mut files, Some(&timeout)).expect("a descriptor") == 1
}

#[test]
fn a_reactor_wakes_for_connections_datagrams_room_and_the_waker() {
    let mut server = server(&TcpConfig::default());
    let mut client = client();
    let watched = server.descriptor().expect("it has one");
    let park = |server: &mut TcpIo, cause: &mut dyn FnMut()| {
        while server.begin_wait().expect("healthy") != ReactorWait::Begun {
            assert_eq!(server.split().0.rx_burst().expect("healthy"), 0);
        }
        cause();
        assert!(is_readable(&watched, PATIENCE));
        server.end_wait().expect("healthy");
    };
    let address = server.local_address();
    let mut peer = None;
    park(&mut server, &mut || {
        peer = Some(client.open_peer(&address).expect("loopback"));
    });
    let peer = peer.expect("it was opened");
    client.wait(Some(PATIENCE)).expect("healthy");
    park(&mut server, &mut || send(&mut client, peer, b"hello"));
    let (from, _) = receive_one(&mut server);
    let waker = server.waker();
    park(&mut server, &mut || waker.wake());
    fill(&mut server, from);
    park(&mut server, &mut || {
        while client.split().0.rx_burst().expect("healthy") > 0
            || !is_readable(&watched, Duration::ZERO)
        {
            client
                .wait(Some(Duration::from_millis(1)))
                .expect("healthy");
        }
    });
}
