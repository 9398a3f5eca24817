//! The device between two network namespaces joined by a veth pair with an MTU of 1500. Loopback
//! has no small paths, no segmentation and no network slower than the sender.

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::net::Net;
use common::{PREAMBLE, bind, receive, receive_payloads, set_option};
use starling_io::{Ecn, Fault, PacketIo, PacketTx, Source, TxError};
use starling_io_udp::{UdpConfig, UdpIo};
use starling_netns::{MAC_B, inside, run};

/// The timeout of a sleep that no datagram ends.
const PAUSE: Duration = Duration::from_millis(20);

/// Payload of a full datagram on a path with an MTU of 1500, IPv4.
const FULL: usize = 1472;

/// Sends 300 numbered datagrams, each eighth of them short, and checks that they arrive unchanged
/// and in order. Returns the number of packets on the wire.
fn transfer(net: &Net, v6: bool, sender: &UdpConfig, receiver: &UdpConfig) -> u64 {
    let (mut a, _) = net.devices(v6, sender);
    let (_, mut b) = net.devices(v6, receiver);
    transfer_between(net, &mut a, &mut b)
}

/// The same, between existing devices.
fn transfer_between(net: &Net, a: &mut UdpIo, b: &mut UdpIo) -> u64 {
    let v6 = a.local_socket_address().is_ipv6();
    let to_b = a.open_peer(&b.local_address()).expect("a route");
    let to_a = b.open_peer(&a.local_address()).expect("a route");
    let full = if v6 { FULL - 20 } else { FULL };
    assert_eq!(a.max_datagram(to_b), full);
    assert_eq!(b.max_datagram(to_a), full);
    let frame = |number: u32| {
        let len = if number % 8 == 7 { 100 } else { full - 8 };
        let mut frame = vec![number as u8; len];
        frame[..4].copy_from_slice(&number.to_be_bytes());
        frame
    };
    let before = net.packets_sent();
    for turn in 0..10 {
        let tx = a.split().1;
        for number in turn * 30..turn * 30 + 30 {
            tx.append(to_b, PREAMBLE, &frame(number), b"", b"")
                .expect("room");
            tx.seal(to_b);
        }
        tx.flush().expect("flush");
    }
    for (number, datagram) in receive(b, 300).iter().enumerate() {
        assert!(
            datagram.bytes[8..] == frame(number as u32),
            "datagram {number}"
        );
        assert_eq!(datagram.ecn, Ecn::Capable);
    }
    net.packets_sent() - before
}

#[test]
fn full_datagrams_cross_the_kernels_network_stack_together() {
    let Some(net) = Net::new("full_datagrams_cross_the_kernels_network_stack_together") else {
        return;
    };
    let on = UdpConfig::default();
    let no_gso = UdpConfig {
        gso: false,
        ..UdpConfig::default()
    };
    let no_gro = UdpConfig {
        gro: false,
        ..UdpConfig::default()
    };
    for v6 in [false, true] {
        // Runs of eight: 300 datagrams are about 40 packets, plus some of neighbour discovery.
        let packets = transfer(&net, v6, &on, &on);
        assert!(packets < 80, "{packets} packets with GSO");
        let packets = transfer(&net, v6, &on, &no_gro);
        assert!(
            packets < 80,
            "{packets} packets with GSO, taken apart by the receiver"
        );
        let packets = transfer(&net, v6, &no_gso, &on);
        assert!(packets >= 300, "{packets} packets without GSO");
    }
}

/// Switches the checksums of the device's datagrams on or off. Without checksums the kernel refuses
/// to segment.
fn omit_checksums(device: &UdpIo, omit: bool) {
    set_option(device, libc::SOL_SOCKET, libc::SO_NO_CHECK, i32::from(omit));
}

#[test]
fn segmentation_that_the_kernel_refuses_loses_nothing_and_is_not_tried_again() {
    let test = "segmentation_that_the_kernel_refuses_loses_nothing_and_is_not_tried_again";
    let Some(net) = Net::new(test) else {
        return;
    };
    let (mut a, mut b) = net.devices(false, &UdpConfig::default());
    omit_checksums(&a, true);
    let packets = transfer_between(&net, &mut a, &mut b);
    assert!(packets >= 300, "{packets} packets where GSO is refused");
    omit_checksums(&a, false);
    let packets = transfer_between(&net, &mut a, &mut b);
    assert!(packets >= 300, "{packets} packets after it was");
}

#[test]
fn a_device_adapts_to_a_path_that_shrinks() {
    let Some(net) = Net::new("a_device_adapts_to_a_path_that_shrinks") else {
        return;
    };
    for (v6, gso) in [(false, true), (false, false), (true, true)] {
        run(&net.a, "ip link set va mtu 1500").expect("back to normal");
        let config = UdpConfig {
            gso,
            ..UdpConfig::default()
        };
        let (mut a, mut b) = net.devices(v6, &config);
        let to_b = a.open_peer(&b.local_address()).expect("a route");
        let full = a.max_datagram(to_b);
        run(&net.a, "ip link set va mtu 1400").expect("a smaller path");
        let tx = a.split().1;
        for _ in 0..10 {
            tx.append(to_b, PREAMBLE, &vec![1; full - 8], b"", b"")
                .expect("room");
        }
        tx.append(to_b, PREAMBLE, b"small", b"", b"").expect("room");
        tx.flush().expect("flush");
        // The ten are lost, the small one arrives, and the next one fits the path.
        assert_eq!(receive_payloads(&mut b, 1)[0], b"preamblesmall");
        assert_eq!(a.max_datagram(to_b), full - 100);
        assert_eq!(a.poll_event(), None, "its own errors are no events");
        let tx = a.split().1;
        tx.append(to_b, PREAMBLE, &vec![2; full - 108], b"", b"")
            .expect("room");
        tx.flush().expect("flush");
        assert_eq!(receive_payloads(&mut b, 1)[0].len(), full - 100);
    }
}

#[test]
fn datagrams_that_the_kernel_has_no_room_for_are_kept_up_to_a_bound() {
    let Some(net) = Net::new("datagrams_that_the_kernel_has_no_room_for_are_kept_up_to_a_bound")
    else {
        return;
    };
    // Datagrams to a neighbour whose hardware address is unknown wait in the kernel, charged to the
    // socket, until it is known. The kernel asks for it a hundred times before it drops them.
    run(&net.b, "ip link set vb arp off").expect("a deaf neighbour");
    run(&net.a, "ip neigh flush dev va").expect("forgotten");
    inside(&net.a, || {
        let patience = "/proc/sys/net/ipv4/neigh/va/mcast_solicit";
        fs::write(patience, "100").expect("a patient kernel");
    });
    let config = UdpConfig {
        tx_buffer_bytes: 64 << 10,
        gso: false,
        ..UdpConfig::default()
    };
    let (mut a, mut b) = net.devices(false, &config);
    let to_b = a.open_peer(&b.local_address()).expect("a route");
    let tx = a.split().1;
    let mut accepted = 0_u32;
    let refused = loop {
        let mut frame = [0; FULL - 8];
        frame[..4].copy_from_slice(&accepted.to_be_bytes());
        match tx.append(to_b, PREAMBLE, &frame, b"", b"") {
            Ok(()) => accepted += 1,
            Err(refused) => break refused,
        }
        assert!(accepted < 1000, "no bound");
        tx.flush().expect("flush");
    };
    assert_eq!(refused, TxError::Full);

    let known = format!("ip neigh replace 10.77.0.2 lladdr {MAC_B} dev va");
    run(&net.a, &known).expect("a neighbour made known");
    a.wait(None).expect("ended by room to send");
    let mut received = Vec::new();
    while received.len() < accepted as usize {
        a.split().1.flush().expect("flush");
        received.extend(common::receive_burst(&mut b));
    }
    for (number, datagram) in received.iter().enumerate() {
        assert_eq!(datagram.bytes[8..12], (number as u32).to_be_bytes());
    }
    assert_eq!(received.len(), accepted as usize);
}

#[test]
fn a_full_queue_to_one_peer_loses_datagrams_and_delays_no_other_peer() {
    let test = "a_full_queue_to_one_peer_loses_datagrams_and_delays_no_other_peer";
    let Some(net) = Net::new(test) else {
        return;
    };
    for gso in [false, true] {
        let config = UdpConfig {
            gso,
            ..UdpConfig::default()
        };
        let (mut a, mut b) = net.devices(false, &config);
        // A neighbour of `a` in its own namespace, whose path does not use that queue.
        run(&net.a, "ip link set lo up").expect("loopback");
        let (mut other, _) = net.devices(false, &config);
        let to_b = a.open_peer(&b.local_address()).expect("a route");
        let to_other = a.open_peer(&other.local_address()).expect("a route");
        // Room for three full datagrams, each of which takes a minute to leave.
        let slow = "tc qdisc replace dev va root tbf rate 200bit burst 1600 limit 4600";
        run(&net.a, slow).expect("a slow interface");

        let tx = a.split().1;
        // The first messages find room, whether they are one datagram or many.
        for number in 0..60 {
            tx.append(to_b, PREAMBLE, &[number; FULL - 8], b"", b"")
                .expect("room");
            if number % 20 == 19 {
                tx.flush().expect("flush");
            }
        }
        tx.append(to_other, PREAMBLE, b"meanwhile", b"", b"")
            .expect("room");
        tx.flush().expect("flush");
        let dropped = tx.dropped();
        assert!((20..60).contains(&dropped), "{dropped} dropped");
        assert_eq!(receive_payloads(&mut other, 1)[0], b"preamblemeanwhile");
        let begun = Instant::now();
        a.wait(Some(PAUSE)).expect("a healthy socket");
        assert!(begun.elapsed() >= PAUSE, "it did not sleep");

        run(&net.a, "tc qdisc del dev va root").expect("as before");
        let tx = a.split().1;
        tx.append(to_b, PREAMBLE, b"again", b"", b"").expect("room");
        tx.flush().expect("flush");
        let mut received = Vec::new();
        while received != b"preambleagain" {
            received = common::receive_burst(&mut b).pop().expect("one").bytes;
        }
    }
}

#[test]
fn a_link_local_peer_is_on_the_devices_interface_or_its_address_names_one() {
    let test = "a_link_local_peer_is_on_the_devices_interface_or_its_address_names_one";
    let Some(net) = Net::new(test) else {
        return;
    };
    let on = |namespace, interface: &str, host: &str| {
        let add = format!("ip address add {host}/64 dev {interface} nodad");
        run(namespace, &add).expect("an address more");
        inside(namespace, || bind(&format!("[{host}%{interface}]")))
    };
    let (mut a, mut b) = (
        on(&net.a, "va", "fe80::77:1"),
        on(&net.b, "vb", "fe80::77:2"),
    );
    let without = |device: &UdpIo| {
        let address = device.local_socket_address();
        format!("udp://[{}]:{}", address.ip(), address.port())
    };
    let to_b = a.open_peer(&without(&b)).expect("a route");
    let to_a = b.open_peer(&without(&a)).expect("a route");
    let tx = a.split().1;
    tx.append(to_b, PREAMBLE, b"x", b"", b"").expect("room");
    tx.flush().expect("flush");
    assert_eq!(receive(&mut b, 1)[0].source, Source::Peer(to_a));

    for host in ["[::]", "[fd77::1]"] {
        let mut device = inside(&net.a, || bind(host));
        let error = device.open_peer(&without(&b)).expect_err("of which?");
        assert_eq!(error.fault, Fault::Caller);
        assert!(error.to_string().contains("[fe80::1%eth0]"), "{error}");
        let full = without(&b).replace(']', "%va]");
        inside(&net.a, || device.open_peer(&full)).expect("the address names an interface");
    }
}
