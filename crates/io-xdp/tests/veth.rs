//! Devices at both ends of a veth pair.

mod common;

use std::time::{Duration, Instant};

use common::{
    Net, PREAMBLE, by_the_kernel, check_no_drops, meet, send_one, transfer, until_not_needed,
};
use starling_io::{PacketIo, PacketRx, PacketTx, Source};
use starling_io_udp::{UdpConfig, UdpIo};
use starling_io_xdp::{Mode, XdpConfig, XdpIo};
use starling_netns::{Shape, inside, run};

#[test]
fn datagrams_cross_in_both_directions_and_versions() {
    let Some(net) = Net::new("datagrams_cross_in_both_directions_and_versions") else {
        return;
    };
    for hosts in [
        starling_netns::IPV4.map(String::from),
        starling_netns::IPV6.map(|ip| format!("[{ip}]")),
    ] {
        let mut b = net.at_b(&format!("xdp://vb/{}:0", hosts[1]));
        let port = b.local_socket_address().port();
        let to_b = format!("xdp://va/{}:{port}", hosts[1]);
        let mut a = inside(&net.a, || XdpIo::client(&to_b, Default::default())).expect("a route");
        assert_eq!(a.mode(), Mode::Driver, "veth has no zero-copy");
        let (to_b, to_a) = meet(&mut a, &mut b, &to_b);
        // The kernel is needed until both know the other's next hop.
        let before = until_not_needed([&net.a, &net.b], || {
            send_one(&mut a, &mut b, to_b);
            send_one(&mut b, &mut a, to_a);
        });
        transfer(&mut a, &mut b, to_b, to_a);
        transfer(&mut b, &mut a, to_a, to_b);
        assert_eq!(
            before,
            [&net.a, &net.b].map(by_the_kernel),
            "it was not needed"
        );
        check_no_drops(&a);
        check_no_drops(&b);
    }
}

/// The address of such a peer is ambiguous without the interface.
#[test]
fn link_local_peers_reach_a_global_address() {
    let test = "link_local_peers_reach_a_global_address";
    let Some(net) = Net::new(test) else {
        return;
    };
    run(&net.a, "ip address add fe80::77/64 dev va nodad").expect("root");
    let mut b = net.at_b("xdp://vb/[fd77::2]:0");
    let port = b.local_socket_address().port();
    let mut a = net.at_a("xdp://va/[fe80::77%va]:0");
    // So that even the first arrives by the ring: the kernel would tell the interface.
    run(
        &net.a,
        "ip neigh replace fd77::2 lladdr 02:00:00:00:00:02 dev va",
    )
    .expect("root");
    let to_b = format!("xdp://va/[fd77::2]:{port}");
    let (to_b, to_a) = meet(&mut a, &mut b, &to_b);
    transfer(&mut a, &mut b, to_b, to_a);
    until_not_needed([&net.a, &net.b], || send_one(&mut b, &mut a, to_a));
    transfer(&mut b, &mut a, to_a, to_b);
    check_no_drops(&a);
    check_no_drops(&b);
}

#[test]
fn a_kernel_socket_can_be_the_other_end() {
    let Some(net) = Net::new("a_kernel_socket_can_be_the_other_end") else {
        return;
    };
    for (any, host) in [("0.0.0.0", "10.77.0.2"), ("[::]", "[fd77::2]")] {
        let mut b = inside(&net.b, || {
            UdpIo::bind(&format!("udp://{any}:0"), UdpConfig::default())
        })
        .expect("a socket");
        let port = b.local_socket_address().port();
        let to_b = format!("xdp://va/{host}:{port}");
        let mut a = inside(&net.a, || XdpIo::client(&to_b, Default::default())).expect("a route");
        let (to_b, to_a) = meet(&mut a, &mut b, &to_b);
        // Datagrams that leave by the ring overtake those that the kernel still has.
        until_not_needed([&net.a], || send_one(&mut a, &mut b, to_b));
        transfer(&mut a, &mut b, to_b, to_a);
        transfer(&mut b, &mut a, to_a, to_b);
        check_no_drops(&a);
    }
}

/// By the queue of its device a client reaches another queue of the server than by its kernel
/// socket. A datagram that the XDP program leaves to the kernel reaches any socket of the port.
#[test]
fn a_sender_keeps_its_device_by_ring_and_by_socket() {
    let test = "a_sender_keeps_its_device_by_ring_and_by_socket";
    let shape = Shape {
        queues: 2,
        ..Shape::default()
    };
    let Some(net) = Net::with_shape(test, shape) else {
        return;
    };
    let config = XdpConfig {
        reuse_port: true,
        ..XdpConfig::default()
    };
    let to = "10.77.0.2:9000".parse().expect("an address");
    for mode in ["generic", "driver"] {
        let mut devices = [0, 1].map(|queue| {
            let address = format!("xdp://vb/10.77.0.2:9000?queue={queue}&mode={mode}");
            inside(&net.b, || XdpIo::bind(&address, config.clone())).expect("a device")
        });
        // Some of eight clients change the queue.
        for _ in 0..8 {
            let mut a = net.at_a("xdp://va/10.77.0.1:0");
            let peer = a.open_peer("xdp://va/10.77.0.2:9000").expect("a route");
            a.split().1.send_to_unknown(to, b"by the kernel");
            let (first, source, _) = receive_at_any(&mut devices);
            let Source::Unknown(address) = source else {
                panic!("nobody is known yet: {source:?}");
            };
            let tx = devices[first].split().1;
            let known = Source::Peer(tx.accept_peer(address).expect("room"));
            for _ in 0..3 {
                send_to(&mut a, peer, b"past it");
                let (at, source, bytes) = receive_at_any(&mut devices);
                assert_eq!((at, source), (first, known), "{mode}");
                assert_eq!(bytes, b"preamblepast it");
                a.split().1.send_to_unknown(to, b"by the kernel");
                let (at, source, bytes) = receive_at_any(&mut devices);
                assert_eq!((at, source), (first, known), "{mode}");
                assert_eq!(bytes, b"by the kernel");
            }
        }
    }
}

fn send_to(from: &mut XdpIo, to: starling_io::PeerId, text: &[u8]) {
    let tx = from.split().1;
    tx.append(to, PREAMBLE, text, b"", b"").expect("room");
    tx.seal(to);
    tx.flush().expect("a healthy device");
}

/// The next datagram of any of the devices, and the index of the device.
fn receive_at_any(devices: &mut [XdpIo]) -> (usize, Source, Vec<u8>) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        for (at, device) in devices.iter_mut().enumerate() {
            device.wait(Some(Duration::ZERO)).expect("a healthy device");
            let rx = device.split().0;
            if rx.rx_burst().expect("a healthy device") > 0 {
                let datagram = rx.datagram(0);
                return (at, datagram.source, datagram.bytes.to_vec());
            }
        }
    }
    panic!("a datagram is missing");
}
