//! Tests of the program on an interface.

use rustix::net::{AddressFamily, Protocol, SendFlags, SocketFlags, SocketType};
use rustix::net::{sendto, socket_with};
use starling_io::{PacketIo, PacketRx};
use starling_netns::{Pair, inside};

use super::*;
use crate::testing::device;
use crate::{XdpConfig, XdpIo};

/// Two namespaces and the program. None, having said so, where they cannot be made.
fn loaded(test: &str) -> Option<(Pair, LoadedProgram)> {
    let made = Pair::new().and_then(|pair| {
        let own = LoadedProgram::load("load the program").map_err(|error| error.to_string())?;
        Ok((pair, own))
    });
    if let Err(problem) = &made {
        println!("skipped: {test} needs root, `ip` of iproute2 and AF_XDP ({problem})");
    }
    made.ok()
}

#[test]
fn a_program_that_is_there_already_is_noticed_in_any_mode() {
    for first in [GENERIC, DRIVER] {
        // Each on an interface of its own: a process that lists links keeps each open for a moment.
        let Some((pair, own)) = loaded("a_program_that_is_there_already_is_noticed_in_any_mode")
        else {
            return;
        };
        inside(&pair.a, || {
            let interface = Netlink::new(0).and_then(|mut netlink| netlink.link("va"));
            let interface = interface.expect("it is there").index;
            let attach = |mode| bpf::attach(own.program.as_fd(), interface, mode);
            let _link = attach(first).expect("nothing is there");
            for second in [GENERIC, DRIVER] {
                let error = attach(second).expect_err("there is one");
                assert!(is_taken(&error), "{first}, {second}: {error}");
            }
        });
    }
}

/// The kernel's list of links has those of all processes, and those that are being made.
#[test]
fn links_that_other_processes_make_and_remove_do_no_harm() {
    let name = "links_that_other_processes_make_and_remove_do_no_harm";
    let Some((pair, own)) = loaded(name) else {
        return;
    };
    std::thread::scope(|scope| {
        let maker = scope.spawn(|| {
            inside(&pair.a, || {
                let interface = Netlink::new(0).and_then(|mut netlink| netlink.link("va"));
                let interface = interface.expect("it is there").index;
                // A process that looks at a link keeps it open for a moment.
                let attach = |_| bpf::attach(own.program.as_fd(), interface, GENERIC).is_ok();
                assert!((0..50).filter(|&round: &u32| attach(round)).count() > 0);
            });
        });
        while !maker.is_finished() {
            // No program has this number.
            let found = bpf::link_of(u32::MAX).expect("the kernel tells");
            assert!(found.is_none());
        }
    });
}

/// A device polls its socket only when something may be there.
#[test]
fn a_port_counts_only_datagrams_that_may_be_for_it() {
    let name = "a_port_counts_only_datagrams_that_may_be_for_it";
    let Some((pair, mut device)) = device(name) else {
        return;
    };
    let send = |family, protocol: u32, packet: &[u8], to: &str| {
        let to: std::net::SocketAddr = to.parse().expect("an address");
        let protocol = Protocol::from_raw(protocol.try_into().expect("not zero"));
        let flags = SocketFlags::CLOEXEC;
        inside(&pair.a, || {
            let socket = socket_with(family, SocketType::RAW, flags, Some(protocol));
            let socket = socket.expect("root");
            sendto(&socket, packet, SendFlags::empty(), &to).expect("a route");
        });
    };
    let shared = std::sync::Arc::clone(device.shared());
    let port = device.local_socket_address().port();
    let udp = |to: u16| {
        let mut packet = [0; 16];
        packet[..2].copy_from_slice(&1000_u16.to_be_bytes());
        packet[2..4].copy_from_slice(&to.to_be_bytes());
        packet[5] = 16;
        packet
    };
    let mut counts = |what: &str, expected: u64, packets: &dyn Fn()| {
        // The kernels send packets of their own now and then (MLD has options), but not every time.
        let seen = (0..20).map(|_| {
            let before = shared.program.passed(port);
            packets();
            // A received datagram comes after the datagrams that were sent before it.
            send(AddressFamily::INET, 17, &udp(port), "10.77.0.2:0");
            while device.split().0.rx_burst().expect("a healthy device") == 0 {
                std::thread::yield_now();
            }
            shared.program.passed(port) - before
        });
        let seen: Vec<u64> = seen.take_while(|count| *count != expected).collect();
        assert!(seen.len() < 20, "{what}: {seen:?}");
    };
    counts("its own datagram", 0, &|| {});
    counts("one for port 0", 0, &|| {
        send(AddressFamily::INET, 17, &udp(0), "10.77.0.2:0");
    });
    counts("other protocols over IPv6", 0, &|| {
        for protocol in [47, 50, 89, 132] {
            send(AddressFamily::INET6, protocol, &[0; 16], "[fd77::2]:0");
        }
    });
    // A fragment of no packet, and options without meaning.
    counts("what may have UDP behind it", 2, &|| {
        for protocol in [44, 60] {
            let packet = [17, 0, 0, 0, 0, 0, 0, 0];
            send(AddressFamily::INET6, protocol, &packet, "[fd77::2]:0");
        }
    });
}

/// Two versions must not write to each other's maps.
#[test]
fn another_version_of_this_program_is_recognised() {
    let name = "another_version_of_this_program_is_recognised";
    let Some((pair, _)) = loaded(name) else {
        return;
    };
    // Another version drops a packet in some place where this version passes it on.
    let (pass, drop) = ([0xb4, 0, 0, 0, 2, 0, 0, 0], [0xb4, 0, 0, 0, 1, 0, 0, 0]);
    let at = OBJECT
        .windows(8)
        .position(|instruction| instruction == pass);
    let at = at.expect("most packets are passed on");
    let object = [&OBJECT[..at], &drop, &OBJECT[at + 8..]].concat();
    let other =
        LoadedProgram::of_object(&object, "load another version").expect("as good as this one");
    let seen = |interface: &str| {
        let interfaces = crate::interfaces().expect("the kernel tells");
        let found = interfaces.into_iter().find(|found| found.name == interface);
        found.expect("it is there").program
    };
    let bind = |address| XdpIo::bind(address, XdpConfig::default());
    inside(&pair.a, || {
        let interface = Netlink::new(0).and_then(|mut netlink| netlink.link("va"));
        let interface = interface.expect("it is there").index;
        let _link =
            bpf::attach(other.program.as_fd(), interface, DRIVER).expect("nothing is there");
        assert!(matches!(seen("va"), Some(Occupant::OtherVersion { .. })));
        let text = bind("xdp://va/0.0.0.0:0")
            .expect_err("it is not ours")
            .to_string();
        for expected in [
            "another version of Starling has its program there",
            "two versions cannot share an interface",
            "that use va",
        ] {
            assert!(text.contains(expected), "{expected:?} is not in: {text}");
        }
        assert!(
            !text.contains("xdp off"),
            "a link cannot be taken off: {text}"
        );
    });
    inside(&pair.b, || {
        assert_eq!(seen("vb"), None);
        let _device = bind("xdp://vb/0.0.0.0:0").expect("nothing is there");
        assert_eq!(seen("vb"), Some(Occupant::Starling));
    });
}
