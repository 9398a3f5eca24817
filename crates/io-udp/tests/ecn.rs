//! Congestion marks on a real path: interfaces and switches can mark the device's datagrams, and the
//! device reports the marks of each datagram, however the kernel segments and merges.
//!
//! ```text
//!   device ─▶ GSO ─▶ (tc) ─▶ va ═════ vb ─▶ (XDP) ─▶ GRO ─▶ device
//!                    one packet a run       one packet a datagram
//! ```
//!
//! The kernel (Linux 6.18) treats a run of datagrams in one buffer as follows. If the run is marked,
//! all its datagrams are, because segmentation copies its header. If one datagram is marked, no other
//! one is: GRO merges only neighbours with equal bits, so the mark ends one run and begins another.

mod common;

use std::net::UdpSocket;
use std::time::Duration;

use common::marker::{Marker, Place};
use common::net::Net;
use common::{PREAMBLE, receive, set_option};
use starling_io::{Ecn, PacketIo, PacketTx};
use starling_io_udp::{UdpConfig, UdpIo};
use starling_netns::inside;

/// Datagrams in a burst. The kernel merges at most 64 into one buffer.
const BURST: usize = 24;

/// Sends a burst of full datagrams to `address`; returns their size.
fn send_burst(a: &mut UdpIo, address: &str) -> usize {
    let to = a.open_peer(address).expect("a route");
    let full = a.max_datagram(to);
    let tx = a.split().1;
    for number in 0..BURST {
        let frame = vec![number as u8; full - PREAMBLE.len()];
        tx.append(to, PREAMBLE, &frame, b"", b"").expect("room");
        tx.seal(to);
    }
    tx.flush().expect("flush");
    full
}

/// Sends a burst of full datagrams from `a` to `b`; returns the ECN bits of each, in order.
fn burst(a: &mut UdpIo, b: &mut UdpIo) -> Vec<Ecn> {
    let full = send_burst(a, &b.local_address());
    let received = receive(b, BURST);
    for (number, datagram) in received.iter().enumerate() {
        let expected = vec![number as u8; full - PREAMBLE.len()];
        assert!(
            datagram.bytes[PREAMBLE.len()..] == expected,
            "datagram {number}"
        );
    }
    received.iter().map(|datagram| datagram.ecn).collect()
}

/// Sends one small datagram; returns its ECN bits.
fn single(a: &mut UdpIo, b: &mut UdpIo) -> Ecn {
    let to_b = a.open_peer(&b.local_address()).expect("a route");
    let tx = a.split().1;
    tx.append(to_b, PREAMBLE, b"single", b"", b"")
        .expect("room");
    tx.flush().expect("flush");
    receive(b, 1)[0].ecn
}

/// Devices that know each other. A device reads ECN bits only once it knows a path that is not
/// loopback.
fn devices(net: &Net, v6: bool, a: &UdpConfig, b: &UdpConfig) -> (UdpIo, UdpIo) {
    let (mut a, mut b) = (net.devices(v6, a).0, net.devices(v6, b).1);
    a.open_peer(&b.local_address()).expect("a route");
    b.open_peer(&a.local_address()).expect("a route");
    (a, b)
}

/// The ECN bits of a burst with one datagram in `every` marked.
fn one_in(every: usize) -> Vec<Ecn> {
    let bits = |number| match number % every {
        0 => Ecn::CongestionExperienced,
        _ => Ecn::Capable,
    };
    (1..=BURST).map(bits).collect()
}

/// All combinations of GSO and GRO.
fn configs() -> [UdpConfig; 4] {
    [(true, true), (true, false), (false, true), (false, false)].map(|(gso, gro)| UdpConfig {
        gso,
        gro,
        ..UdpConfig::default()
    })
}

#[test]
fn a_mark_on_a_single_datagram_arrives() {
    let test = "a_mark_on_a_single_datagram_arrives";
    let Some(net) = Net::new(test) else { return };
    for place in [Place::Leaving, Place::Arriving] {
        let (namespace, interface) = match place {
            Place::Leaving => (&net.a, "va"),
            Place::Arriving => (&net.b, "vb"),
        };
        let Some(mut marker) = Marker::new(test, namespace, interface, place) else {
            return;
        };
        for v6 in [false, true] {
            let config = UdpConfig::default();
            let (mut a, mut b) = devices(&net, v6, &config, &config);
            for _ in 0..3 {
                marker.mark_one_in(0);
                assert_eq!(single(&mut a, &mut b), Ecn::Capable);
                assert_eq!((marker.seen(), marker.marked()), (1, 0));
                marker.mark_one_in(1);
                assert_eq!(single(&mut a, &mut b), Ecn::CongestionExperienced);
                assert_eq!((marker.seen(), marker.marked()), (1, 1));
            }
        }
    }
}

#[test]
fn datagrams_that_are_not_ecn_capable_are_not_marked() {
    let test = "datagrams_that_are_not_ecn_capable_are_not_marked";
    let Some(net) = Net::new(test) else { return };
    let Some(mut marker) = Marker::new(test, &net.b, "vb", Place::Arriving) else {
        return;
    };
    let config = UdpConfig {
        ecn: false,
        ..UdpConfig::default()
    };
    for v6 in [false, true] {
        let (mut a, mut b) = devices(&net, v6, &config, &UdpConfig::default());
        marker.mark_one_in(1);
        assert_eq!(single(&mut a, &mut b), Ecn::NotCapable);
        assert_eq!(marker.seen(), 0);
    }
}

#[test]
fn a_mark_on_a_whole_run_is_on_every_datagram() {
    let test = "a_mark_on_a_whole_run_is_on_every_datagram";
    let Some(net) = Net::new(test) else { return };
    let Some(mut marker) = Marker::new(test, &net.a, "va", Place::Leaving) else {
        return;
    };
    for v6 in [false, true] {
        for config in configs() {
            let (mut a, mut b) = devices(&net, v6, &config, &config);
            marker.mark_one_in(0);
            assert_eq!(burst(&mut a, &mut b), [Ecn::Capable; BURST], "{config:?}");
            let packets = marker.seen();
            assert_eq!(packets, if config.gso { 1 } else { BURST as u64 });
            marker.mark_one_in(1);
            let all = [Ecn::CongestionExperienced; BURST];
            assert_eq!(burst(&mut a, &mut b), all, "{config:?}");
            if !config.gso {
                marker.mark_one_in(5);
                assert_eq!(burst(&mut a, &mut b), one_in(5), "{config:?}");
            }
        }
    }
}

#[test]
fn a_mark_on_one_datagram_of_a_run_stays_on_that_datagram() {
    let test = "a_mark_on_one_datagram_of_a_run_stays_on_that_datagram";
    let Some(net) = Net::new(test) else { return };
    net.merge_at_b();
    let Some(mut marker) = Marker::new(test, &net.b, "vb", Place::Arriving) else {
        return;
    };
    for v6 in [false, true] {
        for config in configs() {
            let (mut a, mut b) = devices(&net, v6, &config, &config);
            marker.mark_one_in(0);
            assert_eq!(burst(&mut a, &mut b), [Ecn::Capable; BURST], "{config:?}");
            assert_eq!(marker.seen(), BURST as u64, "one packet a datagram");
            for every in [1, 2, 5, BURST] {
                marker.mark_one_in(every as u64);
                assert_eq!(burst(&mut a, &mut b), one_in(every), "{config:?}, {every}");
                assert_eq!(marker.marked() as usize, BURST / every);
            }
        }
    }
}

#[test]
fn the_kernel_merges_datagrams_but_not_across_a_mark() {
    let test = "the_kernel_merges_datagrams_but_not_across_a_mark";
    let Some(net) = Net::new(test) else { return };
    net.merge_at_b();
    let Some(mut marker) = Marker::new(test, &net.b, "vb", Place::Arriving) else {
        return;
    };
    for (v6, host) in [(false, "10.77.0.2"), (true, "[fd77::2]")] {
        let (mut a, _) = net.devices(v6, &UdpConfig::default());
        let b = inside(&net.b, || UdpSocket::bind(format!("{host}:0"))).expect("its address");
        set_option(&b, libc::SOL_UDP, libc::UDP_GRO, 1);
        b.set_read_timeout(Some(Duration::from_secs(20)))
            .expect("not zero");
        let address = format!("udp://{}", b.local_addr().expect("bound"));
        let mut buffer = vec![0; 1 << 16];
        for every in [0, 5] {
            marker.mark_one_in(every as u64);
            let full = send_burst(&mut a, &address);
            let (mut begin, mut runs) = (0, 0);
            while begin < BURST {
                let len = b.recv(&mut buffer).expect("it arrives");
                let end = begin + len / full;
                let marked = (begin + 1..=end).filter(|number| every > 0 && number % every == 0);
                let alike = [0, end - begin].contains(&marked.count());
                assert!(
                    alike,
                    "{begin} to {end} in one buffer, marks at each {every}"
                );
                (begin, runs) = (end, runs + 1);
            }
            assert!(runs < BURST, "nothing was merged");
        }
    }
}
