//! Table 4 of eRPC: a client sends 8 MB requests, one at a time, over a link of 100 Gb/s that loses
//! packets at random.
//!
//! Two nodes, a cable, datagrams of 4 kB as on the paper's InfiniBand, 32 credits. Loss is in both
//! directions. The paper falls to a quarter of its lossless rate at 1e-4 and to 3% at 1e-3, with
//! go-back-N and a timeout of 5 ms.

use starling_proto::{Config, RequestError};

use super::capture::times;
use super::cluster::{Cluster, LARGEST};
use super::machine::{Application, Call};
use super::{Bench, Curve, MS, Plot};
use crate::cpu::CpuModel;
use crate::fabric::{FabricConfig, Fault, HostId, LinkConfig, Rule};

pub(super) const NAME: &str = "loss";

/// One packet in so many is lost, and the paper's bandwidth in Gb/s.
const CASES: [(u64, &str, Option<f64>); 6] = [
    (0, "0", Some(75.0)),
    (10_000_000, "1e-7", Some(73.0)),
    (1_000_000, "1e-6", Some(71.0)),
    (100_000, "1e-5", Some(57.0)),
    (10_000, "1e-4", Some(18.0)),
    (1_000, "1e-3", Some(2.5)),
];

/// A larger request would not fit the paper's largest message.
const REQUEST_BYTES: usize = LARGEST;

/// Requests of a case: 1.2 million packets, answers included.
const REQUESTS: u64 = 300;

/// A client that keeps one request outstanding.
struct OneByOne {
    begun_ns: u64,
    done: u64,
    wanted: u64,
    times_ns: hdrhistogram::Histogram<u64>,
}

impl OneByOne {
    fn next(&mut self, now_ns: u64, calls: &mut Vec<Call>) {
        self.begun_ns = now_ns;
        calls.push(Call {
            channel: 0,
            tag: self.done,
            len: REQUEST_BYTES,
        });
    }
}

impl Application for OneByOne {
    fn connected(&mut self, _: HostId, _: usize, now_ns: u64, calls: &mut Vec<Call>) {
        self.next(now_ns, calls);
    }

    fn ended(
        &mut self,
        _: HostId,
        tag: u64,
        result: Result<&[u8], RequestError>,
        now_ns: u64,
        calls: &mut Vec<Call>,
    ) {
        assert_eq!(result.map(<[u8]>::len), Ok(32), "request {tag}");
        self.times_ns.saturating_record(now_ns - self.begun_ns);
        self.done += 1;
        self.next(now_ns, calls);
    }

    fn is_done(&self) -> bool {
        self.done >= self.wanted
    }
}

pub(super) fn run(bench: &mut Bench<'_>) {
    let mut lossless = 0.0;
    let mut curve = Vec::new();
    let mut paper_curve = Vec::new();
    for (index, (one_in, case, paper)) in CASES.into_iter().enumerate() {
        bench.progress(index, CASES.len(), case);
        let requests = if bench.options.quick { 3 } else { REQUESTS };
        let gbps = measure(bench, one_in, case, paper, requests);
        if one_in == 0 {
            lossless = gbps;
        } else {
            let share = 100.0 * gbps / lossless;
            let paper_share = paper.map(|paper| 100.0 * paper / 73.0);
            bench.row(case, "share of lossless", "%", share, paper_share);
            curve.push((1.0 / one_in as f64, gbps));
            paper_curve.extend(paper.map(|paper| (1.0 / one_in as f64, paper)));
        }
    }
    bench.findings.plots.push(Plot {
        title: "8 MB requests at 100 Gb/s with loss".into(),
        x: "probability of loss",
        y: "bandwidth, Gb/s",
        log: (true, false),
        curves: vec![
            Curve {
                name: "Starling".into(),
                points: curve,
            },
            Curve {
                name: "eRPC (table 4)".into(),
                points: paper_curve,
            },
        ],
    });
}

/// Runs one case; returns the bandwidth in Gb/s.
fn measure(
    bench: &mut Bench<'_>,
    one_in: u64,
    case: &str,
    paper: Option<f64>,
    requests: u64,
) -> f64 {
    let link = LinkConfig {
        rate_bps: 100_000_000_000,
        // The delays of card, cable and card.
        propagation_ns: 1_000,
        queue_bytes: 128 << 10,
    };
    let mut cluster = Cluster::new(FabricConfig {
        seed: bench.options.seed,
        max_datagram: 4096 + 32,
        link,
        cpu: CpuModel::POLLED,
        ..FabricConfig::default()
    });
    let config = Config {
        link_rate_bps: link.rate_bps,
        ..Config::default()
    };
    let client = cluster.add(&config);
    let server = cluster.add(&config);
    if one_in > 0 {
        let rule = Rule::everywhere(0, u64::MAX, Fault::RareLoss { one_in });
        cluster.fabric.lock().add_rule(rule);
    }
    cluster.open(client, server, 0);
    let mut app = OneByOne {
        begun_ns: 0,
        done: 0,
        wanted: requests,
        times_ns: times(),
    };
    cluster.run(&mut app, 60_000 * MS);
    assert!(
        app.is_done(),
        "{} of {requests} requests in a minute",
        app.done
    );
    assert_eq!(cluster.machine(server).executed, requests, "at most once");
    let bits = (app.done * REQUEST_BYTES as u64 * 8) as f64;
    let gbps = bits / cluster.now_ns() as f64;
    bench.row(case, "bandwidth", "Gb/s", gbps, paper);
    let p99_us = app.times_ns.value_at_quantile(0.99) as f64 / 1e3;
    bench.row(case, "request p99", "us", p99_us, None);
    let lost: u64 = cluster.fabric.lock().counters().dropped.values().sum();
    bench.row(case, "losses", "packets", lost as f64, None);
    bench.finish(&mut cluster);
    gbps
}
