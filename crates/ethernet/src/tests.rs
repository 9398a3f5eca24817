use super::*;
use proptest::prelude::*;

const MAC_A: Mac = [2, 0, 0, 0, 0, 1];
const MAC_B: Mac = [2, 0, 0, 0, 0, 2];
const INTERFACE: u32 = 7;

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn ends(v6: bool) -> [SocketAddr; 2] {
    match v6 {
        false => ["10.0.0.1:1000", "10.0.0.2:2000"].map(address),
        true => ["[fd00::1]:1000", "[fd00::2]:2000"].map(address),
    }
}

fn frame(from: &SocketAddr, to: &SocketAddr, payload: &[u8]) -> Vec<u8> {
    let template = Template::new(MAC_A, from, to, true);
    let mut frame = vec![0; template.len()];
    frame.extend_from_slice(payload);
    template.write(MAC_B, &mut frame);
    frame
}

/// The checksums were computed by hand.
#[test]
fn a_frame_has_the_bytes_of_the_standards() {
    let (from, to) = (address("192.168.0.31:1024"), address("192.168.0.30:80"));
    let frame = frame(&from, &to, b"hi");
    let expected: [&[u8]; 4] = [
        &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00],
        // 0x4502 + 30 + 0x4000 + 0x4011 + 0xc0a8 + 31 + 0xc0a8 + 30 = 0x246be, so ~0x46c0.
        &[0x45, 2, 0, 30, 0, 0, 0x40, 0, 64, 17, 0xb9, 0x3f],
        &[192, 168, 0, 31, 192, 168, 0, 30],
        // 0xc0a8 + 31 + 0xc0a8 + 30 + 17 + 10 + 1024 + 80 + 10 + 0x6869 = 0x1ee6b, so ~0xee6c.
        &[4, 0, 0, 80, 0, 10, 0x11, 0x93, b'h', b'i'],
    ];
    assert_eq!(frame, expected.concat());
}

/// Two addresses of hosts on one link: of IPv4, of global IPv6, or link-local.
fn any_ends() -> impl Strategy<Value = [SocketAddr; 2]> {
    let ends = (0..3_u8, any::<[u128; 2]>(), [1..=u16::MAX, 1..=u16::MAX]);
    ends.prop_map(|(kind, bits, ports)| {
        [0, 1].map(|end| {
            let (bits, port) = (bits[end], ports[end]);
            let low = bits & ((1 << 64) - 1);
            match kind {
                // From 1.0.0.0 on, below what is this host's own.
                0 => {
                    let ip = Ipv4Addr::from((1 << 24) + bits as u32 % (126 << 24));
                    SocketAddrV4::new(ip, port).into()
                }
                1 => SocketAddrV6::new((0b001 << 125 | bits >> 3).into(), port, 0, 0).into(),
                _ => SocketAddrV6::new((0xfe80 << 112 | low).into(), port, 0, INTERFACE).into(),
            }
        })
    })
}

proptest! {
    #[test]
    fn whoever_writes_is_read_as_who_it_is(
        [from, to] in any_ends(),
        ecn: bool,
        payload in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        prop_assume!(from.ip() != to.ip());
        let template = Template::new(MAC_A, &from, &to, ecn);
        let mut frame = vec![0; template.len()];
        frame.extend_from_slice(&payload);
        template.write(MAC_B, &mut frame);
        let expected = Received {
            source: from,
            ecn: if ecn { Ecn::Capable } else { Ecn::NotCapable },
            start: template.len(),
            len: payload.len(),
        };
        prop_assert_eq!(parse(&frame, &to, INTERFACE), Ok(expected));
        prop_assert_eq!(&frame[template.len()..], &payload[..]);
    }

    #[test]
    fn a_frame_that_was_made_parses(
        v6: bool,
        payload in proptest::collection::vec(any::<u8>(), 0..2000),
        padding in 0..30_usize,
    ) {
        let [a, b] = ends(v6);
        let mut frame = frame(&a, &b, &payload);
        // Short frames are padded on their way.
        frame.resize(frame.len() + padding, 0xaa);
        let received = parse(&frame, &b, INTERFACE).expect("a good frame");
        prop_assert_eq!(received.source, a);
        prop_assert_eq!(received.ecn, Ecn::Capable);
        prop_assert_eq!(&frame[received.start..received.start + received.len], &payload[..]);
        prop_assert!(parse(&frame, &a, INTERFACE).is_err(), "for another");
    }

    #[test]
    fn a_frame_is_the_same_wherever_its_payload_lies(
        v6: bool,
        payload in proptest::collection::vec(any::<u8>(), 0..2000),
        cuts: [prop::sample::Index; 2],
    ) {
        let [from, to] = ends(v6);
        let template = Template::new(MAC_A, &from, &to, true);
        let mut cuts = cuts.map(|cut| cut.index(payload.len() + 1));
        cuts.sort_unstable();
        let (front, gathered, back) = (
            &payload[..cuts[0]],
            &payload[cuts[0]..cuts[1]],
            &payload[cuts[1]..],
        );
        let mut parts = vec![0; template.len()];
        parts.extend_from_slice(front);
        parts.extend_from_slice(back);
        template.write_around(MAC_B, &mut parts, gathered, back.len());
        let at = template.len() + front.len();
        parts.splice(at..at, gathered.iter().copied());
        prop_assert_eq!(parts, frame(&from, &to, &payload));
    }

    #[test]
    fn a_damaged_bit_is_noticed(
        v6: bool,
        payload in proptest::collection::vec(any::<u8>(), 0..100),
        bit: prop::sample::Index,
    ) {
        let [a, b] = ends(v6);
        let good = frame(&a, &b, &payload);
        let mut bad = good.clone();
        // Ethernet has a checksum of its own. IPv6 relies on it for all its fields but the addresses.
        let bit = bit.index(good.len() * 8 - 14 * 8) + 14 * 8;
        bad[bit / 8] ^= 1 << (bit % 8);
        let unprotected = v6 && bit / 8 < 14 + 8;
        // The checksum cannot detect a change of its field into "no checksum" or into the partial sum.
        let field = if v6 { 60..62 } else { 40..42 };
        if !unprotected && !field.contains(&(bit / 8)) {
            prop_assert!(parse(&bad, &b, INTERFACE).is_err());
        }
    }

    #[test]
    fn a_frame_that_was_cut_off_is_noticed(v6: bool, at: prop::sample::Index) {
        let [a, b] = ends(v6);
        let frame = frame(&a, &b, &[7; 100]);
        let cut = &frame[..at.index(frame.len())];
        prop_assert!(parse(cut, &b, INTERFACE).is_err());
    }
}

#[test]
fn any_bytes_are_read_without_harm() {
    bolero::check!().for_each(|bytes: &[u8]| {
        for v6 in [false, true] {
            let [a, b] = ends(v6);
            // As they are, and with headers that lead further in.
            let _ = parse(bytes, &b, INTERFACE);
            let mut damaged = frame(&a, &b, &[7; 40]);
            for (place, byte) in bytes.chunks_exact(2).map(|pair| (pair[0], pair[1])) {
                let place = usize::from(place) % damaged.len();
                damaged[place] = byte;
            }
            if let Ok(received) = parse(&damaged, &b, INTERFACE) {
                assert!(received.start + received.len <= damaged.len());
            }
        }
    });
}

/// What the harness above keeps, so that a fuzzer begins with something.
#[test]
fn the_kept_frames_are_those_of_two_ends() {
    let kept: [&[u8]; 2] = [
        include_bytes!("__fuzz__/tests__any_bytes_are_read_without_harm/corpus/ipv4"),
        include_bytes!("__fuzz__/tests__any_bytes_are_read_without_harm/corpus/ipv6"),
    ];
    for (v6, kept) in [false, true].into_iter().zip(kept) {
        let [a, b] = ends(v6);
        assert_eq!(frame(&a, &b, b"a payload"), kept);
    }
}

/// A good Ethernet frame with a change, and its checksums corrected.
fn changed(v6: bool, change: impl Fn(&mut Vec<u8>)) -> Result<Received, Drop> {
    let [a, b] = ends(v6);
    let mut frame = frame(&a, &b, b"payload.");
    change(&mut frame);
    if !v6 && frame.len() >= 34 {
        frame[24..26].fill(0);
        let checksum = !fold(sum(&frame[14..34]));
        frame[24..26].copy_from_slice(&checksum.to_ne_bytes());
    }
    parse(&frame, &b, INTERFACE)
}

#[test]
fn each_reason_for_a_drop_is_distinguished() {
    let v4 = |at: usize, value: u8| changed(false, |frame| frame[at] = value);
    let v6 = |at: usize, value: u8| changed(true, |frame| frame[at] = value);
    assert!(
        v4(14, 0x45).is_ok() && v6(14, 0x60).is_ok(),
        "nothing changed"
    );
    for (result, reason) in [
        (changed(false, |frame| frame.truncate(13)), Drop::Truncated),
        (changed(false, |frame| frame.truncate(33)), Drop::Truncated),
        (changed(false, |frame| frame.truncate(49)), Drop::Truncated),
        (changed(true, |frame| frame.truncate(69)), Drop::Truncated),
        (v4(12, 0x86), Drop::NotIp), // Type 8600.
        (changed(false, |frame| frame[13] = 6), Drop::NotIp), // ARP
        (v4(14, 0x65), Drop::NotIp),
        (v6(14, 0x40), Drop::NotIp),
        (v4(14, 0x44), Drop::NotIp),
        (v4(14, 0x46), Drop::Options),
        (v4(20, 0x20), Drop::Fragment), // More follow.
        (v4(21, 0x01), Drop::Fragment), // Not the first.
        (v4(23, 6), Drop::NotUdp),
        (v6(20, 44), Drop::NotUdp), // A fragment header.
        (v4(17, 27), Drop::Length), // No room for UDP's header.
        (v4(17, 19), Drop::Length), // Not even for IP's.
        (v4(39, 7), Drop::Length),
        (v4(39, 17), Drop::Length),
        (v4(41, 0x55), Drop::UdpChecksum),
        (
            changed(true, |frame| frame[60..62].fill(0)),
            Drop::UdpChecksum,
        ),
        (v4(33, 9), Drop::NotOurs),
        (v4(37, 9), Drop::NotOurs),
        (v4(26, 224), Drop::Source),
        (changed(false, |frame| frame[26..30].fill(0)), Drop::Source),
        (changed(false, |frame| frame[34..36].fill(0)), Drop::Source),
        (v6(22, 0xff), Drop::Source),
    ] {
        assert_eq!(result, Err(reason));
    }
    let [a, b] = ends(false);
    let mut frame = frame(&a, &b, b"");
    frame[24] ^= 1;
    assert_eq!(parse(&frame, &b, INTERFACE), Err(Drop::HeaderChecksum));
}

#[test]
fn a_checksum_may_be_missing_in_ipv4_and_partial_in_both() {
    assert!(changed(false, |frame| frame[40..42].fill(0)).is_ok());
    for v6 in [false, true] {
        let (addresses, checksum) = if v6 {
            (22..54, 60..62)
        } else {
            (26..34, 40..42)
        };
        let partial = changed(v6, |frame| {
            let length = word(16);
            let pseudo = fold(sum(&frame[addresses.clone()]) + word(17) + length);
            frame[checksum.clone()].copy_from_slice(&pseudo.to_ne_bytes());
        });
        assert!(partial.is_ok(), "{partial:?}");
    }
}

#[test]
fn a_frame_with_swapped_ends_parses() {
    for v6 in [false, true] {
        let [a, b] = ends(v6);
        let mut frame = frame(&a, &b, b"there and back");
        swap_ends(&mut frame);
        let received = parse(&frame, &a, INTERFACE).expect("a good frame");
        assert_eq!(received.source, b);
        assert_eq!(frame[..12], [MAC_A, MAC_B].concat());
        for len in 0..frame.len() {
            swap_ends(&mut frame[..len]);
        }
    }
}

#[test]
fn congestion_marks_are_read() {
    for (bits, ecn) in [
        (0, Ecn::NotCapable),
        (1, Ecn::Capable),
        (2, Ecn::Capable),
        (3, Ecn::CongestionExperienced),
    ] {
        let v4 = changed(false, |frame| frame[15] = 0xfc | bits);
        let v6 = changed(true, |frame| frame[15] = bits << 4);
        assert_eq!(v4.expect("good").ecn, ecn);
        assert_eq!(v6.expect("good").ecn, ecn);
    }
}

#[test]
fn a_link_local_sender_has_the_scope_of_the_interface() {
    // One that every network knows is written to as well.
    for local in ["[fe80::2%7]:2000", "[fd00::2]:2000"].map(address) {
        let frame = frame(&address("[fe80::1]:1000"), &local, b"");
        let source = parse(&frame, &local, INTERFACE)
            .expect("a good frame")
            .source;
        assert_eq!(source, address("[fe80::1%7]:1000"));
    }
}

#[test]
fn a_checksum_of_zero_is_sent_as_all_ones() {
    let [a, b] = ends(false);
    // The payload makes up for whatever the rest sums up to.
    let zero = frame(&a, &b, &[0, 0]);
    let checksum = [zero[40], zero[41]];
    let frame = frame(&a, &b, &checksum);
    assert_eq!(frame[40..42], [0xff, 0xff]);
    assert!(parse(&frame, &b, INTERFACE).is_ok());
}
