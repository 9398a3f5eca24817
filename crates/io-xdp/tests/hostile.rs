//! Ethernet frames of a hostile sender, which reach the device's interface. They change the counts of
//! the device and nothing else.
#![allow(unsafe_code)]

mod common;

use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use common::raw::{GOOD, Sender, ipv4, udp};
use common::{Net, receive};
use starling_io::{PacketIo, PacketRx};
use starling_io_xdp::{Drops, XdpConfig, XdpIo};
use starling_netns::{Shape, inside, run};

/// Receives all datagrams that have arrived, and drops them.
fn drain(device: &mut XdpIo) {
    while device.split().0.rx_burst().expect("a healthy device") > 0 {}
}

/// The kernel counts a frame without a chunk in two places.
#[test]
fn a_frame_without_room_is_counted_once() {
    let Some(net) = Net::new("a_frame_without_room_is_counted_once") else {
        return;
    };
    let mut device = net.at_b("xdp://vb/10.77.0.2:9000?frames=64");
    assert_eq!(device.capabilities().rx_queue_datagrams, 64);
    let sender = Sender::new(&net.a);
    (0..100).for_each(|_| assert!(sender.send(&GOOD)));
    let begun = Instant::now();
    while device.drops().ring_full < 36 {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "some are missing"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    receive(&mut device, 64);
    let expected = Drops {
        ring_full: 36,
        ..Drops::default()
    };
    assert_eq!(device.drops(), expected);
}

#[test]
fn bad_frames_are_dropped_and_counted() {
    let Some(net) = Net::new("bad_frames_are_dropped_and_counted") else {
        return;
    };
    let mut device = net.at_b("xdp://vb/10.77.0.2:9000");
    let sender = Sender::new(&net.a);

    assert!(sender.send(&GOOD));
    assert_eq!(receive(&mut device, 1)[0].bytes, b"good one");
    assert_eq!(device.drops(), Drops::default());

    // The program lets these through to the device, which checks more.
    let changed = |changes: &[(usize, u8)]| {
        let mut frame = GOOD;
        for &(at, value) in changes {
            frame[at] = value;
        }
        assert!(sender.send(&frame));
    };
    changed(&[(40, 1)]); // A checksum, and a wrong one.
    changed(&[(24, 0)]); // The same of the IP header.
    changed(&[(39, 200)]); // Longer than its packet.
    changed(&[(39, 7)]); // Shorter than its header.
    changed(&[(17, 200), (25, 0x89), (24, 0x65)]); // An IP packet longer than the frame.
    changed(&[(34, 0), (35, 0)]); // From port 0.
    changed(&[(26, 127), (24, 0xf1), (25, 0x2c)]); // From 127.77.0.1, which would be this host.
    changed(&[(29, 2), (25, 0x2c)]); // From the device's own address.
    assert!(sender.send(&GOOD));
    assert_eq!(receive(&mut device, 1)[0].bytes, b"good one");
    let expected = Drops {
        udp_checksum: 1,
        header_checksum: 1,
        length: 2,
        truncated: 1,
        source: 3,
        ..Drops::default()
    };
    assert_eq!(device.drops(), expected);
}

/// An interface in promiscuous mode receives such frames. Any interface may receive some that a switch
/// floods.
#[test]
fn frames_for_other_hardware_are_not_received() {
    let Some(net) = Net::new("frames_for_other_hardware_are_not_received") else {
        return;
    };
    run(&net.b, "ip link set vb promisc on").expect("it is there");
    let mut device = net.at_b("xdp://vb/10.77.0.2:9000");
    let sender = Sender::new(&net.a);
    for at in 0..6 {
        let mut other = GOOD;
        other[at] ^= 1 << at;
        assert!(sender.send(&other));
    }
    assert!(sender.send(&GOOD));
    // Multicast arrives by the kernel, if the kernel accepts it.
    assert_eq!(receive(&mut device, 1)[0].bytes, b"good one");
    assert_eq!(device.drops(), Drops::default());
}

/// In generic mode the kernel may have merged datagrams before the program sees them.
#[test]
fn merged_datagrams_are_received_one_by_one() {
    let Some(net) = Net::new("merged_datagrams_are_received_one_by_one") else {
        return;
    };
    for (mode, address, from) in [
        ("generic", "10.77.0.2", "10.77.0.1:0"),
        ("generic", "[fd77::2]", "[fd77::1]:0"),
        ("driver", "10.77.0.2", "10.77.0.1:0"),
    ] {
        let mut device = net.at_b(&format!("xdp://vb/{address}:0?mode={mode}"));
        let socket = inside(&net.a, || std::net::UdpSocket::bind(from)).expect("its address");
        let segment: libc::c_int = 100;
        // SAFETY: the pointer is valid for the length beside it.
        let set = unsafe {
            let len = size_of::<libc::c_int>() as libc::socklen_t;
            let value = (&raw const segment).cast();
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_UDP,
                libc::UDP_SEGMENT,
                value,
                len,
            )
        };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
        // Together no larger than a packet can be.
        let five: Vec<u8> = (0..500_usize).map(|at| (at / 100) as u8).collect();
        socket
            .send_to(&five, device.local_socket_address())
            .expect("a route");
        let received = receive(&mut device, 5);
        for (number, datagram) in received.iter().enumerate() {
            assert_eq!(datagram.bytes, [number as u8; 100], "{mode} {address}");
        }
        assert_eq!(device.drops(), Drops::default());
    }
}

#[test]
fn random_frames_change_nothing() {
    let Some(net) = Net::new("random_frames_change_nothing") else {
        return;
    };
    let mut device = net.at_b("xdp://vb/10.77.0.2:9000");
    let sender = Sender::new(&net.a);
    // xorshift64 (Marsaglia, 2003): the same frames in each run.
    let mut state = 0x5eed_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    for round in 0..5000 {
        let mut frame = GOOD.to_vec();
        frame.resize(14 + random() % 1400, 0);
        for _ in 0..random() % 8 {
            let at = random() % frame.len().min(64);
            frame[at] = random() as u8;
        }
        // The kernel takes no frame that is too short.
        let _ = sender.send(&frame);
        if round % 100 == 0 {
            drain(&mut device);
        }
    }
    drain(&mut device);
    assert!(device.drops().udp_checksum + device.drops().header_checksum > 0);
    assert!(sender.send(&GOOD));
    assert_eq!(receive(&mut device, 1)[0].bytes, b"good one");
}

/// Bad frames fill all of the packet memory while the receiver sleeps.
#[test]
fn a_device_wakes_after_a_flood_of_bad_frames() {
    let Some(net) = Net::new("a_device_wakes_after_a_flood_of_bad_frames") else {
        return;
    };
    let config = XdpConfig {
        rx_frames: 64,
        ..XdpConfig::default()
    };
    let bind = || XdpIo::bind("xdp://vb/10.77.0.2:9000", config);
    let mut device = inside(&net.b, bind).expect("a device");
    let sender = Sender::new(&net.a);
    let mut bad = GOOD;
    bad[40] = 1;
    for _ in 0..64 {
        assert!(sender.send(&bad));
    }
    while device.drops().udp_checksum < 64 {
        assert_eq!(device.split().0.rx_burst().expect("a healthy device"), 0);
    }
    // It arrives while the device sleeps, when no further burst gives chunks back.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            assert!(sender.send(&GOOD));
        });
        assert_eq!(receive_after_wait(&mut device), b"good one");
    });
}

/// Sleeps first, then takes the one datagram that there is.
fn receive_after_wait(device: &mut XdpIo) -> Vec<u8> {
    device
        .wait(Some(Duration::from_secs(60)))
        .expect("a healthy device");
    receive(device, 1).remove(0).bytes
}

/// Small frames before large ones, burst after burst: reassembly takes no more memory than that of
/// one burst.
#[test]
fn memory_for_large_frames_is_reused() {
    let shape = Shape {
        mtu: 9000,
        ..Shape::default()
    };
    let Some(net) = Net::with_shape("memory_for_large_frames_is_reused", shape) else {
        return;
    };
    let mut device = net.at_b("xdp://vb/10.77.0.2:9000");
    let sender = Sender::new(&net.a);
    let large = large_frame(8000);
    let mut round = || {
        assert!(sender.send(&GOOD) && sender.send(&large));
        let received = receive(&mut device, 2);
        assert_eq!(received[1].bytes.len(), 8000);
    };
    (0..100).for_each(|_| round());
    let before = resident_bytes();
    (0..12_000).for_each(|_| round());
    let grown = resident_bytes().saturating_sub(before);
    // Other tests in this process take some for their devices.
    assert!(grown < 48 << 20, "{grown} bytes more for 96 MB received");
}

/// A frame like [`GOOD`] with so many bytes.
fn large_frame(bytes: usize) -> Vec<u8> {
    ipv4(&[], 0, 17, &udp(9000, &vec![7; bytes], None))
}

/// Memory of this process that is not swapped out.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages = statm.split(' ').nth(1).expect("its second figure");
    // In pages of the smallest size that Linux has.
    pages.parse::<usize>().expect("a number") * 4096
}
