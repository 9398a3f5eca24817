//! Tests of whole fabrics with switches: arrivals, their times and order, and losses.

use starling_io::Ecn;

use super::*;
use crate::cpu::{CpuModel, Work};
use crate::fabric::{Fabric, FabricConfig, HostId, Step};

const MS: u64 = 1_000_000;

fn fabric(topology: Topology) -> (Fabric, Vec<HostId>) {
    let nodes = topology.nodes.expect("a topology with cables");
    let mut fabric = Fabric::new(FabricConfig {
        topology,
        ..FabricConfig::default()
    });
    let hosts = (0..nodes).map(|_| fabric.add_host()).collect();
    (fabric, hosts)
}

fn send(fabric: &mut Fabric, from: HostId, to: HostId, bytes: Vec<u8>) {
    let address = fabric.address(to);
    let sent = fabric.send(from, address, Ecn::Capable, bytes);
    sent.expect("the link has room");
}

fn run(fabric: &mut Fabric) {
    while fabric.step().is_some() {}
}

fn slow(rate_bps: u64) -> LinkConfig {
    LinkConfig {
        rate_bps,
        propagation_ns: 100,
        queue_bytes: 1 << 20,
    }
}

/// A small switch that marks early.
fn small_switch() -> SwitchConfig {
    SwitchConfig {
        buffer_bytes: 10_000,
        alpha_log2: 0,
        latency_ns: 300,
        cut_through: false,
        marking: Marking::Threshold { bytes: 2_000 },
    }
}

#[test]
fn a_switch_adds_its_latency_and_cut_through_saves_a_transmission() {
    let arrival_ns = |cut_through| {
        let switch = SwitchConfig {
            cut_through,
            ..small_switch()
        };
        let link = slow(1_000_000_000);
        let (mut fabric, hosts) = fabric(Topology::one_switch(2, link, switch));
        send(&mut fabric, hosts[0], hosts[1], vec![0; 934]);
        assert_eq!(fabric.step(), Some(Step::Turn(hosts[1])));
        fabric.now_ns() - fabric.config().poll_ns
    };
    // 1000 bytes take 8 us on each of two links of 100 ns.
    assert_eq!(arrival_ns(false), 16_000 + 200 + 300);
    assert_eq!(arrival_ns(true), 8_000 + 200 + 300);
}

#[test]
fn an_incast_fills_the_buffer_is_marked_and_loses_what_does_not_fit() {
    let link = slow(1_000_000_000);
    let (mut fabric, hosts) = fabric(Topology::one_switch(11, link, small_switch()));
    for &from in &hosts[1..] {
        send(&mut fabric, from, hosts[0], vec![0; 934]);
    }
    run(&mut fabric);
    let port = fabric.downlink(hosts[0]);
    // Ten at once: with alpha 1 the port gets half of the buffer of ten.
    assert_eq!(port.dropped, 5);
    assert_eq!(fabric.counters().dropped[&DropCause::SwitchFull], 5);
    assert_eq!(
        port.marked, 3,
        "packets that found a queue of 2000 bytes or more"
    );
    assert_eq!(port.most_queued, 5_000);
    assert_eq!(fabric.receive_queue(hosts[0]).0, 5);
    let mut marked = 0;
    while let Some((_, ecn, ..)) = fabric.read(hosts[0]) {
        marked += u64::from(ecn == Ecn::CongestionExperienced);
    }
    assert_eq!(marked, 3);
}

#[test]
fn flows_spread_over_equal_paths_and_stay_in_order() {
    let tree = Topology::fat_tree(4, slow(10_000_000_000), SwitchConfig::default());
    let (mut fabric, hosts) = fabric(tree);
    for number in 0..50 {
        for &from in &hosts[..8] {
            let to = hosts[15 - from.0 as usize];
            send(&mut fabric, from, to, vec![number]);
        }
    }
    run(&mut fabric);
    for &to in &hosts[8..] {
        let mut order = Vec::new();
        while let Some((.., bytes)) = fabric.read(to) {
            order.push(bytes[0]);
        }
        assert_eq!(order.len(), 50);
        assert!(order.is_sorted(), "a flow overtook itself");
    }
    let cores = &fabric.network().switches[16..];
    let used = cores.iter().filter(|core| {
        let mut ports = core.ports.iter();
        ports.any(|&port| fabric.network().ports[port as usize].stats.bytes > 0)
    });
    assert!(used.count() >= 2, "all flows took one path");
}

#[test]
fn a_cut_cable_carries_nothing_until_it_is_mended() {
    let link = slow(10_000_000_000);
    let (mut fabric, hosts) = fabric(Topology::one_switch(2, link, SwitchConfig::default()));
    fabric.cut_cable(1, Outage::once(0, MS));
    send(&mut fabric, hosts[0], hosts[1], vec![1]);
    send(&mut fabric, hosts[1], hosts[0], vec![2]);
    run(&mut fabric);
    assert_eq!(fabric.counters().dropped[&DropCause::LinkDown], 2);
    fabric.set_timer(MS, 0);
    run(&mut fabric);
    send(&mut fabric, hosts[0], hosts[1], vec![3]);
    run(&mut fabric);
    assert_eq!(fabric.receive_queue(hosts[1]).0, 1);
}

/// Four of five cables from a rack to the spine are out: their flows take the fifth, and return
/// later.
#[test]
fn flows_of_a_cut_cable_take_another_path() {
    let (mut fabric, hosts) = fabric(Topology::cx4_with(20, SwitchConfig::default()));
    let spine = End::Switch(5);
    let cables = Topology::cx4_with(20, SwitchConfig::default()).cables;
    let uplinks = |cable: &&(usize, Cable)| cable.1.ends == [End::Switch(0), spine];
    let cables: Vec<_> = cables.into_iter().enumerate().collect();
    let cut: Vec<usize> = cables.iter().filter(uplinks).map(|(at, _)| *at).collect();
    assert_eq!(cut.len(), 5);
    for &cable in &cut[..4] {
        fabric.cut_cable(cable, Outage::once(0, MS));
    }
    let across = |fabric: &mut Fabric| {
        for &from in &hosts[..4] {
            for &to in &hosts[4..] {
                send(fabric, from, to, vec![0; 100]);
            }
        }
        run(fabric);
    };
    across(&mut fabric);
    assert_eq!(fabric.counters().delivered, 64);
    assert!(fabric.counters().dropped.is_empty());
    // All five are out, so no path is left.
    for &cable in &cut {
        fabric.cut_cable(cable, Outage::once(2 * MS, 3 * MS));
    }
    fabric.set_timer(2 * MS, 0);
    while fabric.step() != Some(Step::Timer(0)) {}
    across(&mut fabric);
    assert_eq!(fabric.counters().dropped[&DropCause::LinkDown], 64);
}

#[test]
fn a_flapping_cable_is_down_now_and_then_until_it_is_mended() {
    let flap = Outage {
        start_ns: 100,
        end_ns: 1_000,
        down_ns: 10,
        up_ns: 90,
    };
    let down: Vec<u64> = (0..2_000).filter(|&now_ns| flap.is_down(now_ns)).collect();
    assert_eq!(down.len(), 90);
    assert_eq!((down[0], down[9], down[10], down[89]), (100, 109, 200, 909));
}

/// Two threads of a node share its link. A busy thread sends when its turn is over, and then reads
/// the datagrams that came meanwhile.
#[test]
fn a_thread_is_busy_for_what_its_turn_costs() {
    let link = slow(10_000_000_000);
    let mut fabric = Fabric::new(FabricConfig {
        topology: Topology::one_switch(2, link, SwitchConfig::default()),
        cpu: CpuModel {
            turn_ns: 1_000,
            ..CpuModel::FREE
        },
        ring: 2,
        ..FabricConfig::default()
    });
    let threads = [0, 0].map(|node| fabric.add_host_on(NodeId(node)));
    let server = fabric.add_host_on(NodeId(1));
    let address = fabric.address(server);
    for thread in threads {
        fabric.wake_at(thread, 0);
        assert_eq!(fabric.step(), Some(Step::Turn(thread)));
        for _ in 0..2 {
            let sent = fabric.send(thread, address, Ecn::Capable, vec![0; 934]);
            sent.expect("room in the ring");
        }
        let full = fabric.send(thread, address, Ecn::Capable, vec![0; 934]);
        assert!(full.is_err(), "the ring holds two");
        assert_eq!(fabric.end_turn(thread, Work::default()), 1_000);
    }
    let mut turns = Vec::new();
    while let Some(Step::Turn(host)) = fabric.step() {
        let read = std::iter::from_fn(|| fabric.read(host)).count();
        turns.push((fabric.now_ns(), host, read));
        fabric.end_turn(host, Work::default());
    }
    // The starved threads get a turn when the ring has room, at the end of the first one. The
    // first datagram has 800 ns, 500 of latencies and 300 to be seen; the server then is busy.
    let expected = [
        (1_000, threads[0], 0),
        (1_000, threads[1], 0),
        (1_000 + 800 + 500 + 300, server, 1),
        (3_600, server, 1),
        (4_600, server, 1),
        (5_600, server, 1),
    ];
    assert_eq!(turns, expected);
}

#[test]
fn time_spent_in_a_turn_is_seen_by_its_clock_and_what_was_flushed_leaves_meanwhile() {
    let link = slow(10_000_000_000);
    let mut fabric = Fabric::new(FabricConfig {
        topology: Topology::one_switch(2, link, SwitchConfig::default()),
        cpu: CpuModel {
            turn_ns: 1_000,
            ..CpuModel::FREE
        },
        ..FabricConfig::default()
    });
    let hosts = [fabric.add_host(), fabric.add_host()];
    fabric.wake_at(hosts[0], 0);
    assert_eq!(fabric.step(), Some(Step::Turn(hosts[0])));
    for _ in 0..2 {
        fabric.spend(hosts[0], 5_000);
        send(&mut fabric, hosts[0], hosts[1], vec![0; 934]);
        fabric.flushed(hosts[0]);
    }
    assert_eq!(fabric.host_now_ns(hosts[0]), 10_000);
    send(&mut fabric, hosts[0], hosts[1], vec![0; 934]);
    assert_eq!(fabric.end_turn(hosts[0], Work::default()), 11_000);
    assert_eq!(fabric.host_now_ns(hosts[0]), 0);
    let mut arrivals = Vec::new();
    while let Some(Step::Turn(host)) = fabric.step() {
        assert_eq!(host, hosts[1]);
        arrivals.push(fabric.now_ns() - 800 - 500 - 300);
        while fabric.read(host).is_some() {}
    }
    assert_eq!(arrivals, [5_000, 10_000, 11_000]);
}
