//! Malformed frames of each kind. The device drops plain ones for its port, and counts the reason.
//! The kernel gets all others unchanged. The device goes on with all of its memory.

mod common;

use common::raw::{GOOD, Sender, Tap, check_header, ethernet, ipv4, ipv6, udp, udp_v6};
use common::{Net, receive};
use starling_io::{PacketIo, PacketRx};
use starling_io_xdp::{Drops, XdpConfig, XdpIo};
use starling_netns::{inside, run};

/// Chunks of the device to receive into.
const CHUNKS: usize = 64;

/// The fate of a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// The kernel gets it, and makes nothing of it that concerns the device.
    Kernel,
    /// The kernel gets it, and with it the device a datagram of these bytes.
    Socket(&'static [u8]),
    /// The device drops it for this reason.
    Dropped(Reason),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Reason {
    Truncated,
    Length,
    HeaderChecksum,
    UdpChecksum,
    Source,
}

impl Reason {
    fn count(self, drops: &mut Drops) -> &mut u64 {
        match self {
            Self::Truncated => &mut drops.truncated,
            Self::Length => &mut drops.length,
            Self::HeaderChecksum => &mut drops.header_checksum,
            Self::UdpChecksum => &mut drops.udp_checksum,
            Self::Source => &mut drops.source,
        }
    }
}

/// The frame with some bytes changed.
fn changed(frame: &[u8], changes: &[(usize, u8)]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    for &(at, value) in changes {
        frame[at] = value;
    }
    frame
}

/// The frame cut off at every place. Its headers, to the end of the port, have `headers` bytes.
fn cut_off(frame: &[u8], headers: usize) -> Vec<(Vec<u8>, Fate)> {
    let cut = |len| {
        let fate = match len < headers {
            true => Fate::Kernel,
            false => Fate::Dropped(Reason::Truncated),
        };
        (frame[..len].to_vec(), fate)
    };
    (14..frame.len()).map(cut).collect()
}

/// Frames that are neither IPv4 nor IPv6, or contradict their type.
fn of_no_version() -> Vec<(Vec<u8>, Fate)> {
    // An ARP request for 10.77.0.2.
    let arp = [
        0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 77, 0, 9, 0, 0, 0, 0, 0, 0, 10, 77, 0, 2,
    ];
    let mut frames = vec![
        ethernet(0x88b5, b"an experiment"),
        ethernet(0x0806, &[]),
        ethernet(0x0806, &[0xff; 28]),
        ethernet(0x0806, &[0; 100]),
        // A length instead of a type.
        ethernet(0x05ff, &GOOD[14..]),
        changed(&GOOD, &[(14, 0x55)]),
        changed(&GOOD, &[(14, 0x44)]),
        changed(&GOOD, &[(12, 0x86), (13, 0xdd)]),
        changed(&ipv6(17, &udp_v6(9000, b"v6")), &[(12, 8), (13, 0)]),
    ];
    frames.extend((0..arp.len()).map(|len| ethernet(0x0806, &arp[..len])));
    // Hardware and protocol, lengths of addresses, operation.
    for at in [1, 2, 4, 5, 7] {
        frames.push(ethernet(0x0806, &changed(&arp, &[(at, 99)])));
    }
    let kernels = |frame| (frame, Fate::Kernel);
    frames.into_iter().map(kernels).collect()
}

fn of_ipv4() -> Vec<(Vec<u8>, Fate)> {
    let whole = udp(9000, b"by the socket", None);
    let plain = ipv4(&[], 0, 17, &whole);
    let other_port = ipv4(&[], 0, 17, &udp(9001, b"", None));
    // More fragments follow; the offset is in words of eight bytes.
    let (more, second) = (0x2000, 2);
    let mut frames = vec![
        // Options: none, of an impossible length, beyond the header.
        (ipv4(&[1; 4], 0, 17, &whole), Fate::Socket(b"by the socket")),
        (ipv4(&[0x44, 0, 0, 0], 0, 17, &whole), Fate::Kernel),
        (ipv4(&[7, 200, 4, 0], 0, 17, &whole), Fate::Kernel),
        (changed(&plain, &[(14, 0x4f)]), Fate::Kernel),
        // Fragments, by the number of their packet: a single one, two that belong together, and one
        // beyond the end of any packet.
        (
            with_header(&ipv4(&[], 100, 17, &whole), &[(18, 9)]),
            Fate::Kernel,
        ),
        (ipv4(&[], more, 17, &whole[..16]), Fate::Kernel),
        (
            ipv4(&[], second, 17, &whole[16..]),
            Fate::Socket(b"by the socket"),
        ),
        (
            with_header(&ipv4(&[], 0x1fff, 17, &whole), &[(18, 8)]),
            Fate::Kernel,
        ),
        // Other protocols, and garbage in them.
        (ipv4(&[], 0, 1, &[0xff; 8]), Fate::Kernel),
        (ipv4(&[], 0, 6, &[0xff; 20]), Fate::Kernel),
        (ipv4(&[], 0, 255, &[]), Fate::Kernel),
        // Frames for other addresses are not parsed.
        (other_port.clone(), Fate::Kernel),
        (changed(&other_port, &[(24, 0)]), Fate::Kernel),
        (changed(&other_port, &[(39, 3)]), Fate::Kernel),
        (changed(&other_port, &[(40, 1)]), Fate::Kernel),
    ];
    let length = Fate::Dropped(Reason::Length);
    frames.extend([
        // The packet's length ends within its header, or within the UDP header.
        (with_header(&GOOD, &[(17, 19)]), length),
        (with_header(&GOOD, &[(17, 27)]), length),
        // The UDP length ends within its header, or is one too many, or far too many.
        (changed(&GOOD, &[(39, 7)]), length),
        (changed(&GOOD, &[(39, 0)]), length),
        (changed(&GOOD, &[(39, 17)]), length),
        (changed(&GOOD, &[(38, 0xff)]), length),
        (
            with_header(&GOOD, &[(16, 0xff)]),
            Fate::Dropped(Reason::Truncated),
        ),
        (
            changed(&GOOD, &[(24, 0)]),
            Fate::Dropped(Reason::HeaderChecksum),
        ),
        (
            changed(&GOOD, &[(22, 63)]),
            Fate::Dropped(Reason::HeaderChecksum),
        ),
        (
            changed(&GOOD, &[(40, 1)]),
            Fate::Dropped(Reason::UdpChecksum),
        ),
        (
            changed(&GOOD, &[(40, 0xff), (41, 0xff)]),
            Fate::Dropped(Reason::UdpChecksum),
        ),
        (
            changed(&GOOD, &[(34, 0), (35, 0)]),
            Fate::Dropped(Reason::Source),
        ),
    ]);
    // Impossible senders: this network, this host, multicast, broadcast.
    for first in [0, 127, 224, 240, 255] {
        let frame = with_header(&GOOD, &[(26, first)]);
        frames.push((frame, Fate::Dropped(Reason::Source)));
    }
    frames.extend(cut_off(&GOOD, 42));
    frames
}

/// The same for an IPv4 packet, with its header checksum corrected.
fn with_header(frame: &[u8], changes: &[(usize, u8)]) -> Vec<u8> {
    let mut frame = changed(frame, changes);
    check_header(&mut frame);
    frame
}

fn of_ipv6() -> Vec<(Vec<u8>, Fate)> {
    let whole = udp_v6(9000, b"by the socket");
    let behind = |next: u8, header: &[u8]| ipv6(next, &[header, &whole].concat());
    let arrives = Fate::Socket(b"by the socket");
    // An option that is only padding, and headers with their length that name the next one.
    let (pad, options, hops, route, fragment) = ([1, 4, 0, 0, 0, 0], 60, 0, 43, 44);
    let with_pad = |next: u8, words: u8| [&[next, words][..], &pad].concat();
    let two = [with_pad(options, 0), with_pad(17, 0)].concat();
    let good = ipv6(17, &whole);
    let other_port = ipv6(17, &udp_v6(9001, b""));
    let mut frames = vec![
        (behind(options, &with_pad(17, 0)), arrives),
        (behind(hops, &with_pad(17, 0)), arrives),
        (behind(options, &two), arrives),
        (behind(options, &with_pad(17, 255)), Fate::Kernel),
        (behind(hops, &[17, 0, 0xc2, 200, 0, 0, 0, 0]), Fate::Kernel),
        (behind(route, &[17, 0, 0, 9, 0, 0, 0, 0]), Fate::Kernel),
        // Fragments: a whole packet, two that belong together, and a single one.
        (behind(fragment, &[17, 0, 0, 0, 0, 0, 0, 1]), arrives),
        (
            ipv6(
                fragment,
                &[&[17, 0, 0, 1, 0, 0, 0, 2], &whole[..16]].concat(),
            ),
            Fate::Kernel,
        ),
        (
            ipv6(
                fragment,
                &[&[17, 0, 0, 16, 0, 0, 0, 2], &whole[16..]].concat(),
            ),
            arrives,
        ),
        (behind(fragment, &[17, 0, 8, 1, 0, 0, 0, 3]), Fate::Kernel),
        (other_port.clone(), Fate::Kernel),
        (changed(&other_port, &[(60, 0), (61, 0)]), Fate::Kernel),
        (changed(&other_port, &[(59, 3)]), Fate::Kernel),
    ];
    // Authentication, encryption, no next header, ICMP, and an unassigned one.
    for next in [51, 50, 59, 58, 253] {
        frames.push((ipv6(next, &[0xff; 24]), Fate::Kernel));
    }
    for (changes, reason) in [
        (&[(60, 0), (61, 0)][..], Reason::UdpChecksum),
        (&[(60, good[60] ^ 1)], Reason::UdpChecksum),
        (&[(62, b'B')], Reason::UdpChecksum),
        // The UDP length ends within its header, or is one too many. The same for the packet's
        // length.
        (&[(59, 7)], Reason::Length),
        (&[(59, 22)], Reason::Length),
        (&[(19, 7)], Reason::Length),
        (&[(19, 22)], Reason::Truncated),
        (&[(18, 0xff)], Reason::Truncated),
        (&[(54, 0), (55, 0)], Reason::Source),
        // Impossible senders: multicast, the device itself, this host, unspecified.
        (&[(22, 0xff)], Reason::Source),
        (&[(37, 2)], Reason::Source),
        (&[(22, 0), (23, 0)], Reason::Source),
        (&[(22, 0), (23, 0), (37, 0)], Reason::Source),
        // An IPv4 address in one of IPv6.
        (&[(22, 0), (23, 0), (32, 0xff), (33, 0xff)], Reason::Source),
    ] {
        frames.push((changed(&good, changes), Fate::Dropped(reason)));
    }
    frames.extend(cut_off(&good, 62));
    frames
}

/// Sends each of the frames with a good one after it, and checks which of them arrive and where.
fn check(net: &Net, host: &str, good: &[u8], frames: &[(Vec<u8>, Fate)]) {
    let (tap, sender) = (Tap::new(&net.b), Sender::new(&net.a));
    for mode in ["driver", "generic"] {
        let config = XdpConfig {
            rx_frames: CHUNKS as u32,
            ..XdpConfig::default()
        };
        let address = format!("xdp://vb/{host}:9000?mode={mode}");
        let mut device = inside(&net.b, || XdpIo::bind(&address, config)).expect("a device");
        let mut expected = Drops::default();
        for (frame, fate) in frames {
            assert!(sender.send(frame), "{frame:02x?}");
            let mut datagrams = vec![&b"good one"[..]];
            match fate {
                Fate::Kernel => assert_eq!(&tap.next_sent(), frame),
                Fate::Socket(bytes) => {
                    assert_eq!(&tap.next_sent(), frame);
                    datagrams.insert(0, bytes);
                }
                Fate::Dropped(reason) => *reason.count(&mut expected) += 1,
            }
            assert!(sender.send(good));
            let received = receive(&mut device, datagrams.len());
            let mut received: Vec<_> = received
                .into_iter()
                .map(|datagram| datagram.bytes)
                .collect();
            received.sort();
            assert_eq!(received, datagrams, "{mode}, {fate:?}: {frame:02x?}");
            assert_eq!(device.drops(), expected, "{mode}, {fate:?}: {frame:02x?}");
        }
        // The kernel got no frame that was for the device.
        let last = ethernet(0x88b5, b"the end");
        assert!(sender.send(&last));
        assert_eq!(tap.next_sent(), last);

        // The chunks of the last burst go back with this one.
        assert_eq!(device.split().0.rx_burst().expect("a healthy device"), 0);
        (0..CHUNKS).for_each(|_| assert!(sender.send(good)));
        receive(&mut device, CHUNKS);
        assert_eq!(device.drops(), expected, "there was room for all");
        drop(device);
        // The rest of this host's network still works.
        run(&net.a, "ip neigh flush dev va").expect("root");
        net.await_carrier().expect("the kernel answers");
    }
}

#[test]
fn frames_over_ipv4_that_are_malformed_go_to_the_kernel_or_are_counted() {
    let test = "frames_over_ipv4_that_are_malformed_go_to_the_kernel_or_are_counted";
    let Some(net) = Net::new(test) else {
        return;
    };
    let frames = [of_no_version(), of_ipv4()].concat();
    check(&net, starling_netns::IPV4[1], &GOOD, &frames);
}

#[test]
fn frames_over_ipv6_that_are_malformed_go_to_the_kernel_or_are_counted() {
    let test = "frames_over_ipv6_that_are_malformed_go_to_the_kernel_or_are_counted";
    let Some(net) = Net::new(test) else {
        return;
    };
    let host = format!("[{}]", starling_netns::IPV6[1]);
    let good = ipv6(17, &udp_v6(9000, b"good one"));
    let frames = [of_no_version(), of_ipv6()].concat();
    check(&net, &host, &good, &frames);
}
