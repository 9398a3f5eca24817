//! Table 5 of eRPC: 20, 50 and 100 clients, a node each, send 8 MB requests to one server on the
//! CX4 cluster, one outstanding each; with congestion control and without.
//!
//! Datagrams carry 1 kB of data, as eRPC's do on that cluster, and 32 credits allow a client 32 of
//! them. Round-trip times are measured at the clients, for each packet; bandwidth and fairness by
//! the bytes of each client that the server read.

use starling_proto::{Config, Congestion, RequestError};

use super::capture::{Capture, jain, times};
use super::cluster::{Cluster, LARGEST};
use super::machine::{Application, Call};
use super::monitor::enforce;
use super::{Bench, Curve, MS, Plot, US};
use crate::check::fair;
use crate::cpu::CpuModel;
use crate::fabric::{FabricConfig, HostId};
use crate::net::{Marking, SwitchConfig, Topology};

pub(super) const NAME: &str = "incast";

/// Clients; congestion control; the paper's figures: Gb/s, RTT at 50% and at 99% in us.
const CASES: [(u32, Congestion, [f64; 3]); 9] = [
    (20, Congestion::Dctcp, [21.8, 39.0, 67.0]),
    (50, Congestion::Dctcp, [18.4, 34.0, 174.0]),
    (100, Congestion::Dctcp, [22.8, 349.0, 969.0]),
    (20, Congestion::Timely, [21.8, 39.0, 67.0]),
    (20, Congestion::Off, [23.1, 202.0, 204.0]),
    (50, Congestion::Timely, [18.4, 34.0, 174.0]),
    (50, Congestion::Off, [23.0, 524.0, 524.0]),
    (100, Congestion::Timely, [22.8, 349.0, 969.0]),
    (100, Congestion::Off, [23.0, 1056.0, 1060.0]),
];

/// Data bytes of a datagram.
pub(super) const DATA_BYTES: usize = 1024;

/// Marks of the switches: a queue of 65 kB takes 21 us to leave at 25 Gb/s.
const MARKING: Marking = Marking::Threshold { bytes: 65_000 };

/// The least that DCTCP's fairness among clients may be, by Jain's index.
const MIN_FAIRNESS: f64 = 0.95;

/// The time before the measurement, in which sessions open and rates converge.
const WARM_UP_NS: u64 = 50 * MS;
const MEASURED_NS: u64 = 200 * MS;

/// Clients that keep one large request outstanding each.
struct Clients {
    sent: u64,
}

impl Clients {
    fn next(&mut self, calls: &mut Vec<Call>) {
        self.sent += 1;
        calls.push(Call {
            channel: 0,
            tag: self.sent,
            len: LARGEST,
        });
    }
}

impl Application for Clients {
    fn connected(&mut self, _: HostId, _: usize, _: u64, calls: &mut Vec<Call>) {
        self.next(calls);
    }

    fn ended(
        &mut self,
        host: HostId,
        _: u64,
        result: Result<&[u8], RequestError>,
        _: u64,
        calls: &mut Vec<Call>,
    ) {
        assert!(result.is_ok(), "a request of {host:?} failed: {result:?}");
        self.next(calls);
    }
}

/// The switches of the cluster.
fn switch() -> SwitchConfig {
    SwitchConfig {
        marking: MARKING,
        ..SwitchConfig::default()
    }
}

/// The fabric of a CX4 cluster of `nodes`, with datagrams as eRPC sends them.
pub(super) fn cx4(seed: u64, nodes: u32) -> FabricConfig {
    cx4_of(seed, nodes, switch())
}

fn cx4_of(seed: u64, nodes: u32, switch: SwitchConfig) -> FabricConfig {
    FabricConfig {
        seed,
        max_datagram: DATA_BYTES + 32,
        topology: Topology::cx4_with(nodes, switch),
        cpu: CpuModel::POLLED,
        ..FabricConfig::default()
    }
}

/// The protocol on a node of it.
pub(super) fn node_config(congestion: Congestion) -> Config {
    Config {
        congestion,
        link_rate_bps: 25_000_000_000,
        // A hundred clients' largest messages at once.
        reassembly_bytes: 1 << 30,
        ..Config::default()
    }
}

pub(super) fn run(bench: &mut Bench<'_>) {
    let mut curves = Vec::new();
    for (index, (clients, congestion, paper)) in CASES.into_iter().enumerate() {
        let with = match congestion {
            Congestion::Off => "no cc",
            Congestion::Timely => "timely",
            Congestion::Dctcp => "dctcp",
        };
        let case = format!("{clients} {with}");
        bench.progress(index, CASES.len(), &case);
        let points = measure(bench, clients, congestion, switch(), &case, Some(paper));
        curves.push(Curve { name: case, points });
    }
    bench.findings.plots.push(Plot {
        title: "Round trips of packets during incast".into(),
        x: "percentile",
        y: "round-trip time, us",
        log: (false, true),
        curves,
    });
}

/// Returns percentiles of round-trip times.
pub(super) fn measure(
    bench: &mut Bench<'_>,
    clients: u32,
    congestion: Congestion,
    switch: SwitchConfig,
    case: &str,
    paper: Option<[f64; 3]>,
) -> Vec<(f64, f64)> {
    let (warm_up_ns, measured_ns) = if bench.options.quick {
        (8 * MS, 4 * MS)
    } else {
        (WARM_UP_NS, MEASURED_NS)
    };
    let nodes = (clients + 1).max(100);
    let mut cluster = Cluster::new(cx4_of(bench.options.seed, nodes, switch));
    let config = node_config(congestion);
    let server = cluster.add(&config);
    cluster.machine(server).capture = Some(Capture::new());
    let mut hosts = Vec::new();
    for _ in 0..clients {
        let client = cluster.add(&config);
        cluster.machine(client).capture = Some(Capture::new());
        hosts.push(client);
    }
    for &client in &hosts {
        let at_ns = cluster.rng.below(100 * US);
        cluster.open(client, server, at_ns);
    }
    let mut app = Clients { sent: 0 };
    cluster.run(&mut app, warm_up_ns);
    for machine in &mut cluster.machines {
        if let Some(capture) = &mut machine.capture {
            capture.restart();
        }
    }
    cluster.run(&mut app, warm_up_ns + measured_ns);

    let received = cluster.machine(server).capture.as_ref();
    let received = received.map(|capture| capture.received.clone());
    let received = received.expect("the server has a capture");
    let gbps = received.iter().sum::<u64>() as f64 * 8.0 / measured_ns as f64;
    let mut rtt_ns = times();
    for &client in &hosts {
        if let Some(capture) = &cluster.machine(client).capture {
            rtt_ns.add(&capture.rtt_ns).expect("the same bounds");
        }
    }
    let us = |quantile: f64| rtt_ns.value_at_quantile(quantile) as f64 / 1e3;
    bench.row(case, "bandwidth", "Gb/s", gbps, paper.map(|it| it[0]));
    bench.row(case, "rtt p50", "us", us(0.5), paper.map(|it| it[1]));
    bench.row(case, "rtt p99", "us", us(0.99), paper.map(|it| it[2]));
    bench.row(case, "fairness", "Jain", jain(&received), None);
    // The paper's cluster marks queued packets. There DCTCP promises to share a port fairly.
    if congestion == Congestion::Dctcp && paper.is_some() {
        enforce(fair(&received, MIN_FAIRNESS));
    }
    let (port, busy_ns) = {
        let fabric = cluster.fabric.lock();
        (fabric.downlink(server), fabric.busy_ns(server))
    };
    bench.row(
        case,
        "longest queue",
        "kB",
        port.most_queued as f64 / 1e3,
        None,
    );
    let dropped: u64 = cluster.fabric.lock().counters().dropped.values().sum();
    bench.row(case, "dropped packets", "", dropped as f64, None);
    let retransmissions = cluster.stats().retransmissions;
    bench.row(case, "timeouts", "", retransmissions as f64, None);
    let busy = 100.0 * busy_ns as f64 / cluster.now_ns() as f64;
    bench.row(case, "server thread busy", "%", busy, None);
    bench.finish(&mut cluster);
    let marks = [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9];
    marks.map(|mark| (mark, us(mark / 100.0))).to_vec()
}
