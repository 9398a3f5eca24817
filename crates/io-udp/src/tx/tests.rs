use super::*;
use crate::sys::addr::Family;
use socket2::{Domain, Socket, Type};

/// A sending half with room for three peers and datagrams of 1000 bytes.
fn small() -> UdpTx {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
    let settings = TxSettings {
        max_peers: 3,
        largest: 1000,
        interface: 0,
        gso: true,
        gro: true,
        ecn: true,
    };
    let probe = Probe::new(([0, 0, 0, 0], 0).into()).expect("a socket");
    let shared = Arc::new(Shared::new(socket, Family::V4));
    UdpTx::new(shared, probe, &settings)
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

#[test]
fn a_run_that_no_longer_fits_its_path_does_not_turn_segmentation_off() {
    let mut tx = small();
    let peer = tx.accept_peer(address(100)).expect("room");
    // The limit before the path shrank.
    tx.peers[0].max_datagram = 1400;
    let invalid = io::Error::from_raw_os_error(libc::EINVAL);
    let outcome = tx.classify_error(&invalid, 1, Some(1001), peer);
    assert!(matches!(outcome, SendOutcome::DropDatagram) && tx.gso);
    assert_eq!(tx.max_datagram(peer), 1000);
    let outcome = tx.classify_error(&invalid, 1, Some(1000), peer);
    assert!(matches!(outcome, SendOutcome::Retry) && !tx.gso);
}

#[test]
fn send_run_cuts_its_bytes_into_datagrams() {
    let mut tx = small();
    let receiver = std::net::UdpSocket::bind(address(0)).expect("a free port");
    let peer = tx.accept_peer(receiver.local_addr().expect("it is bound"));
    let peer = peer.expect("room");
    let bytes: Vec<u8> = (0..2500_u32).map(|at| (at * 31 / 7) as u8).collect();
    let parts = [&bytes[..300], &bytes[300..1900], &bytes[1900..]];
    let sent = tx.send_run(peer, parts.into_iter(), 3, Some(1000));
    sent.expect("loopback cuts");
    let mut buffer = [0; 2000];
    for expected in bytes.chunks(1000) {
        let len = receiver.recv(&mut buffer).expect("it arrives");
        assert_eq!(&buffer[..len], expected);
    }
    tx.send_run(peer, parts[..1].iter().copied(), 1, None)
        .expect("one is not cut");
    assert_eq!(receiver.recv(&mut buffer).expect("it arrives"), 300);
    assert_eq!(tx.sent, 4);
    tx.gso = false;
    let refused = tx.send_run(peer, parts.into_iter(), 3, Some(1000));
    let refused = refused.expect_err("segmentation is off");
    assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
    tx.remove_peer(peer);
    let refused = tx.send_run(peer, parts[..1].iter().copied(), 1, None);
    assert_eq!(
        refused.expect_err("gone").kind(),
        io::ErrorKind::NotConnected
    );
}

#[test]
fn only_datagrams_that_the_socket_has_no_room_for_stay_queued() {
    let mut tx = small();
    let peer = tx.accept_peer(address(100)).expect("room");
    let mut outcome_of =
        |errno| tx.classify_error(&io::Error::from_raw_os_error(errno), 1, None, peer);
    assert!(matches!(outcome_of(libc::EAGAIN), SendOutcome::Keep));
    assert!(matches!(
        outcome_of(libc::ENOBUFS),
        SendOutcome::DropMessage
    ));
    assert!(matches!(outcome_of(libc::ENOMEM), SendOutcome::DropMessage));
}

#[test]
fn the_number_of_peers_is_bounded_and_numbers_are_reused() {
    let mut tx = small();
    for number in 0..3 {
        let peer = tx.accept_peer(address(100 + number)).expect("room");
        assert_eq!(peer, PeerId(number.into()));
    }
    let error = tx.accept_peer(address(200)).expect_err("the fourth");
    assert!(error.to_string().contains("3 peers already"), "{error}");
    assert_eq!(tx.accept_peer(address(101)).expect("known"), PeerId(1));
    tx.remove_peer(PeerId(1));
    assert_eq!(tx.accept_peer(address(200)).expect("room again"), PeerId(1));
}
