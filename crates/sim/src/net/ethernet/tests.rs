use std::collections::BTreeSet;

use super::*;

fn ends() -> [SocketAddr; 2] {
    ["10.0.0.1:4000", "10.1.2.3:4000"].map(|text| text.parse().expect("an address"))
}

fn frame(framing: Framing, ecn: Ecn, datagram: &[u8]) -> Vec<u8> {
    let [from, to] = ends();
    let mut frame = datagram.to_vec();
    framing.wrap(from, to, ecn, &mut frame);
    frame
}

/// Frames of any length and content.
fn frames(count: u64) -> impl Iterator<Item = (Framing, Vec<u8>, Rng)> {
    (0..count).map(|seed| {
        let mut rng = Rng::new(seed);
        let framing = rng.pick(&Framing::ALL);
        let datagram: Vec<u8> = (0..rng.log_range(0, 1500))
            .map(|_| rng.next_u64() as u8)
            .collect();
        (framing, frame(framing, Ecn::Capable, &datagram), rng)
    })
}

#[test]
fn a_wrapped_datagram_is_read_with_its_marks() {
    let [from, to] = ends();
    for framing in Framing::ALL {
        for ecn in [Ecn::NotCapable, Ecn::Capable, Ecn::CongestionExperienced] {
            for len in [0, 1, 8, 1472, 65_507] {
                let datagram = vec![0xa5; len];
                let mut frame = frame(framing, ecn, &datagram);
                let received = framing.read(&frame, to).expect("a good frame");
                assert_eq!((received.source, received.ecn), (from, ecn));
                assert_eq!(&frame[received.start..][..received.len], datagram);
                assert_eq!(received.start, framing.headers());
                assert_eq!(framing.read(&frame, from), Err(Drop::NotOurs));
                framing.mark(&mut frame);
                let marked = framing
                    .read(&frame, to)
                    .expect("the mark keeps the frame valid");
                assert_eq!(marked.ecn, Ecn::CongestionExperienced);
            }
        }
    }
}

#[test]
fn every_damage_is_noticed_and_all_reasons_come_up() {
    let [_, to] = ends();
    let mut reasons = BTreeSet::new();
    for (framing, mut frame, mut rng) in frames(50_000) {
        let mut bytes = Payload::take(&mut frame);
        framing.damage(&mut rng, &mut bytes);
        if rng.chance(500_000) {
            framing.mark(&mut bytes);
        }
        let read = framing.read(&bytes, to);
        reasons.insert(read.expect_err("a damaged frame"));
    }
    // No fragments, because the header's checksum is checked first.
    let expected = [
        Drop::Truncated,
        Drop::NotIp,
        Drop::Options,
        Drop::NotUdp,
        Drop::Length,
        Drop::HeaderChecksum,
        Drop::UdpChecksum,
        Drop::NotOurs,
    ];
    for reason in expected {
        assert!(
            reasons.contains(&reason),
            "{reason:?} is not in {reasons:?}"
        );
    }
}

/// A checksum that looks like one left to a card proves nothing, so no bit is flipped where only
/// that checksum could tell.
#[test]
fn a_frame_with_a_partial_checksum_is_damaged_elsewhere() {
    let [_, to] = ends();
    for framing in Framing::ALL {
        let partial = (0..=u16::MAX)
            .map(|word| frame(framing, Ecn::Capable, &word.to_be_bytes()))
            .find(|frame| !framing.has_checksum(frame));
        let partial = partial.expect("one payload in 65536");
        let mut flipped = partial.clone();
        *flipped.last_mut().expect("bytes") ^= 1;
        assert!(framing.read(&flipped, to).is_ok(), "nothing told");
        for seed in 0..1_000 {
            let mut bytes = Payload::take(&mut partial.clone());
            framing.damage(&mut Rng::new(seed), &mut bytes);
            assert!(framing.read(&bytes, to).is_err());
        }
    }
}
