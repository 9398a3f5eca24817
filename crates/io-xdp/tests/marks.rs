//! Congestion marks over AF_XDP: the device reports marks, and its datagrams can be marked.

mod common;

use std::net::UdpSocket;

use common::raw::Tap;
use common::{Net, PREAMBLE, by_the_kernel, check_no_drops, receive, until_not_needed};
use rustix::net::sockopt::{set_ip_tos, set_ipv6_tclass};
use starling_io::{Ecn, PacketIo, PacketTx};
use starling_io_xdp::{XdpConfig, XdpIo};
use starling_netns::{IPV4, IPV6, inside};

/// Addresses of `va` and `vb`, as text for devices and for sockets.
fn ends() -> [([String; 2], [&'static str; 2]); 2] {
    [
        (IPV4.map(String::from), IPV4),
        (IPV6.map(|ip| format!("[{ip}]")), IPV6),
    ]
}

#[test]
fn congestion_marks_are_reported_for_each_datagram() {
    let Some(net) = Net::new("congestion_marks_are_reported_for_each_datagram") else {
        return;
    };
    for (hosts, [_, from]) in ends() {
        let mut a = net.at_a(&format!("xdp://va/{}:0", hosts[0]));
        let address = a.local_socket_address();
        // The kernel lets a plain socket set the mark that a switch would set.
        let socket = inside(&net.b, || UdpSocket::bind((from, 0))).expect("its address");
        let before = by_the_kernel(&net.a);
        for (bits, expected) in [
            (0b00, Ecn::NotCapable),
            (0b11, Ecn::CongestionExperienced),
            (0b10, Ecn::Capable),
            (0b11, Ecn::CongestionExperienced),
            (0b01, Ecn::Capable),
            // The rest of the byte, which routers use, does not matter.
            (0xb8 | 0b11, Ecn::CongestionExperienced),
            (0xfc, Ecn::NotCapable),
        ] {
            let set = match address.is_ipv4() {
                true => set_ip_tos(&socket, bits),
                false => set_ipv6_tclass(&socket, bits.into()),
            };
            set.expect("of one's own socket");
            socket.send_to(b"marked", address).expect("a route");
            let datagram = receive(&mut a, 1).remove(0);
            assert_eq!(datagram.ecn, expected, "{hosts:?}: {bits:#b}");
            assert_eq!(datagram.bytes, b"marked");
        }
        assert_eq!(by_the_kernel(&net.a), before, "past the kernel's sockets");
        check_no_drops(&a);
    }
}

/// Traffic class, or type of service, of a frame from this port.
fn traffic_class(frame: &[u8], port: u16) -> Option<u8> {
    let (class, at) = match frame.get(12..14)? {
        [0x08, 0x00] => (frame[15], 34),
        [0x86, 0xdd] => (frame[14] << 4 | frame[15] >> 4, 54),
        _ => return None,
    };
    (frame.get(at..at + 2)? == port.to_be_bytes()).then_some(class)
}

#[test]
fn datagrams_are_ecn_capable_if_the_settings_say_so() {
    let Some(net) = Net::new("datagrams_are_ecn_capable_if_the_settings_say_so") else {
        return;
    };
    for (hosts, [_, to]) in ends() {
        for (ecn, expected) in [(true, 0b10), (false, 0b00)] {
            let socket = inside(&net.b, || UdpSocket::bind((to, 0))).expect("its address");
            let config = XdpConfig {
                ecn,
                ..XdpConfig::default()
            };
            let address = format!("xdp://va/{}:0", hosts[0]);
            let mut a = inside(&net.a, || XdpIo::bind(&address, config)).expect("a device");
            let port = socket.local_addr().expect("bound").port();
            let peer = a.open_peer(&format!("xdp://va/{}:{port}", hosts[1]));
            let (peer, tap) = (peer.expect("a route"), Tap::new(&net.b));
            let own = a.local_socket_address().port();
            let mut send = || {
                let tx = a.split().1;
                tx.append(peer, PREAMBLE, b"", b"", b"").expect("room");
                tx.flush().expect("a healthy device");
                let frame = tap.next(|frame| traffic_class(frame, own).is_some());
                assert_eq!(traffic_class(&frame, own), Some(expected), "{hosts:?}");
                let mut buffer = [0; 16];
                assert_eq!(
                    socket.recv(&mut buffer).expect("it arrives"),
                    PREAMBLE.len()
                );
            };
            // By the kernel, too.
            until_not_needed([&net.a], &mut send);
            send();
        }
    }
}
