use starling_io::{Ecn, Source};

use super::*;

const MS: u64 = 1_000_000;

fn fabric(config: FabricConfig) -> (Fabric, HostId, HostId) {
    let mut fabric = Fabric::new(config);
    let (left, right) = (fabric.add_host(), fabric.add_host());
    (fabric, left, right)
}

fn send(fabric: &mut Fabric, from: HostId, to: HostId, bytes: &[u8]) {
    let address = fabric.address(to);
    fabric
        .send(from, address, Ecn::Capable, bytes.to_vec())
        .expect("the link has room");
}

/// Runs until no event is left; returns the turns with their times.
fn turns(fabric: &mut Fabric) -> Vec<(u64, Step)> {
    let mut turns = Vec::new();
    while let Some(step) = fabric.step() {
        turns.push((fabric.now_ns(), step));
    }
    turns
}

#[test]
fn a_datagram_arrives_after_its_delay_and_causes_one_turn() {
    let (mut fabric, left, right) = fabric(FabricConfig::default());
    send(&mut fabric, left, right, &[0; 934]);
    // 1000 bytes on a link of 25 Gb/s, 1 us of propagation, 300 ns to notice.
    assert_eq!(turns(&mut fabric), [(320 + 1000 + 300, Step::Turn(right))]);
    assert_eq!(fabric.receive_queue(right), (1, 934));
}

#[test]
fn events_come_in_the_order_of_their_times_and_ties_in_insertion_order() {
    let (mut fabric, left, right) = fabric(FabricConfig::default());
    fabric.set_timer(50, 1);
    fabric.wake_at(right, 50);
    fabric.set_timer(50, 2);
    fabric.wake_at(left, 60);
    fabric.wake_at(left, 40);
    let expected = [
        (40, Step::Turn(left)),
        (50, Step::Timer(1)),
        (50, Step::Turn(right)),
        (50, Step::Timer(2)),
    ];
    assert_eq!(turns(&mut fabric), expected);
}

#[test]
fn the_receive_queue_is_bounded_in_datagrams_and_bytes() {
    let receive = ReceiveLimits {
        datagrams: 3,
        bytes: 1000,
    };
    let config = FabricConfig {
        receive,
        ..FabricConfig::default()
    };
    let (mut small, left, right) = fabric(config.clone());
    for _ in 0..5 {
        send(&mut small, left, right, &[0; 10]);
    }
    turns(&mut small);
    assert_eq!(small.receive_queue(right), (3, 30));
    assert_eq!(small.counters().dropped[&DropCause::QueueFull], 2);
    let (mut large, left, right) = fabric(config);
    for _ in 0..3 {
        send(&mut large, left, right, &[0; 400]);
    }
    turns(&mut large);
    assert_eq!(large.receive_queue(right), (2, 800));
}

#[test]
fn a_paused_host_receives_but_does_not_run() {
    let (mut fabric, left, right) = fabric(FabricConfig::default());
    fabric.wake_at(right, 10);
    fabric.pause(right, MS);
    send(&mut fabric, left, right, &[1]);
    assert_eq!(turns(&mut fabric), [(MS, Step::Turn(right))]);
    assert_eq!(fabric.receive_queue(right), (1, 1));
}

#[test]
fn a_crash_loses_all_state_and_is_reported_as_port_unreachable() {
    let (mut fabric, left, right) = fabric(FabricConfig {
        port_unreachable: true,
        ..FabricConfig::default()
    });
    let address = fabric.address(right);
    let peer = fabric.host_mut(left).peers.open(address);
    send(&mut fabric, left, right, &[1]);
    turns(&mut fabric);
    fabric.wake_at(right, 10 * MS);
    fabric.crash(right);
    assert_eq!(fabric.receive_queue(right), (0, 0));
    send(&mut fabric, left, right, &[2]);
    // Only the sender gets a turn, for the ICMP error.
    let steps: Vec<Step> = turns(&mut fabric).iter().map(|&(_, step)| step).collect();
    assert_eq!(steps, [Step::Turn(left)]);
    let suspected = starling_io::IoEvent::PeerGone(peer, starling_io::PeerGone::Suspected);
    assert_eq!(fabric.host(left).events, [suspected]);
    fabric.restart(right);
    send(&mut fabric, left, right, &[3]);
    turns(&mut fabric);
    assert_eq!(fabric.receive_queue(right), (1, 1));
}

#[test]
fn corruption_is_found_on_the_wire_and_not_in_a_switch() {
    let corrupting = |undetected| {
        let (mut fabric, left, right) = fabric(FabricConfig::default());
        let ppm = 1_000_000;
        let fault = Fault::Corrupt { ppm, undetected };
        fabric.add_rule(Rule::everywhere(0, MS, fault));
        for _ in 0..10 {
            send(&mut fabric, left, right, &[0x55; 64]);
        }
        turns(&mut fabric);
        let mut received = Vec::new();
        while let Some((.., bytes)) = fabric.read(right) {
            received.push(bytes.to_vec());
        }
        (received, fabric.counters().clone())
    };
    let (received, counters) = corrupting(false);
    assert!(received.is_empty());
    assert_eq!(counters.dropped[&DropCause::Checksum], 10);
    let (received, counters) = corrupting(true);
    assert_eq!(received.len(), 10);
    assert!(
        received
            .iter()
            .filter(|bytes| *bytes != &[0x55; 64])
            .count()
            >= 8
    );
    assert_eq!(counters.corrupted, 10);
}

#[test]
fn delayed_datagrams_are_overtaken_and_copies_arrive_late() {
    let (mut fabric, left, right) = fabric(FabricConfig::default());
    let everywhere = |fault| Rule::everywhere(0, MS, fault);
    fabric.add_rule(everywhere(Fault::Reorder {
        ppm: 300_000,
        delay_ns: 50_000,
    }));
    fabric.add_rule(everywhere(Fault::Duplicate {
        ppm: 300_000,
        delay_ns: 50_000,
    }));
    for number in 0..50 {
        send(&mut fabric, left, right, &[number]);
    }
    turns(&mut fabric);
    let mut order = Vec::new();
    while let Some((.., bytes)) = fabric.read(right) {
        order.push(bytes[0]);
    }
    assert_eq!(order.len() as u64, 50 + fabric.counters().duplicated);
    assert!(fabric.counters().duplicated > 5);
    assert!(!order.is_sorted());
    for number in 0..50 {
        assert!(order.contains(&number), "{number} was lost");
    }
}

#[test]
fn a_misrouted_datagram_reaches_another_host_and_a_starved_queue_is_short() {
    let mut fabric = Fabric::new(FabricConfig::default());
    let hosts: Vec<HostId> = (0..4).map(|_| fabric.add_host()).collect();
    let ppm = 1_000_000;
    fabric.add_rule(Rule::everywhere(0, MS, Fault::Misroute { ppm }));
    for _ in 0..40 {
        send(&mut fabric, hosts[0], hosts[1], &[1]);
    }
    turns(&mut fabric);
    let held = hosts.iter().map(|&host| fabric.receive_queue(host).0);
    let held: Vec<usize> = held.collect();
    assert_eq!(held.iter().sum::<usize>(), 40);
    assert_eq!(held[0], 0, "no datagram returns to its sender");
    assert!(held[1..].iter().all(|&count| count > 2), "{held:?}");
    assert_eq!(fabric.counters().misrouted, 40);

    let (mut fabric, left, right) = self::fabric(FabricConfig::default());
    let starve = Fault::Starve { datagrams: 3 };
    fabric.add_rule(Rule::everywhere(0, MS, starve));
    for _ in 0..5 {
        send(&mut fabric, left, right, &[1]);
    }
    turns(&mut fabric);
    assert_eq!(fabric.receive_queue(right).0, 3);
}

#[test]
fn datagrams_from_and_to_unknown_addresses_do_no_harm() {
    let (mut fabric, left, right) = fabric(FabricConfig::default());
    let unknown = "192.0.2.9:1".parse().unwrap();
    fabric.inject(5, unknown, right, vec![9; 3]);
    fabric.send(left, unknown, Ecn::Capable, vec![1]).unwrap();
    turns(&mut fabric);
    let (source, ..) = fabric.read(right).unwrap();
    assert_eq!(source, Source::Unknown(unknown));
    assert_eq!(fabric.counters().dropped[&DropCause::NoHost], 1);
}

#[test]
fn a_forged_datagram_and_a_replay_have_the_source_that_they_claim() {
    let (mut fabric, left, right) = fabric(FabricConfig::default());
    fabric.host_mut(right).peers.open(left.address());
    fabric.inject(0, left.address(), right, vec![1]);
    turns(&mut fabric);
    fabric.replay(left, right, vec![2]);
    turns(&mut fabric);
    let peer = Source::Peer(starling_io::PeerId(0));
    for (is_genuine, byte) in [(false, 1), (true, 2)] {
        let (source, _, genuine, bytes) = fabric.read(right).unwrap();
        assert_eq!(
            (source, genuine, &bytes[..]),
            (peer, is_genuine, &[byte][..])
        );
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let run = |seed| {
        let (mut fabric, left, right) = fabric(FabricConfig {
            seed,
            ..FabricConfig::default()
        });
        fabric.add_rule(Rule::everywhere(0, MS, Fault::Loss { ppm: 300_000 }));
        fabric.add_rule(Rule::everywhere(0, MS, Fault::Jitter { max_ns: 2_000 }));
        for number in 0..100 {
            send(&mut fabric, left, right, &[number; 30]);
        }
        turns(&mut fabric);
        fabric.trace().hash()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
