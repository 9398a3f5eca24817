//! eRPC, section 6.5, after Timely's figure 22: during an incast of 100, separate threads on all
//! nodes but the victim exchange RPCs of 64 kB each way, one outstanding each. How much do these
//! suffer from the queue of the incast?
//!
//! The paper does not name the pairs. Here every call goes to another thread drawn at random, as in
//! Timely's traffic. So calls meet at their ends without any incast, and share a link there.

use hdrhistogram::Histogram;
use starling_proto::{Congestion, RequestError};

use super::capture::{Capture, times};
use super::cluster::{Cluster, LARGEST};
use super::fair_share::Ideal;
use super::incast::{cx4, node_config};
use super::machine::{Answer, Application, Call};
use super::{Bench, MS, US};
use crate::fabric::HostId;
use crate::net::NodeId;
use crate::rng::Rng;

pub(super) const NAME: &str = "background";

const CLIENTS: u32 = 100;
const BYTES: usize = 64 << 10;
/// Data rate of a link without headers: that of an incast without congestion control.
const LINK_GBPS: f64 = 23.0;

/// Congestion control, whether there is an incast, and the paper's 99th percentile in us.
const CASES: [(Congestion, bool, &str, Option<f64>); 5] = [
    (Congestion::Off, false, "no incast, no cc", None),
    (Congestion::Dctcp, false, "no incast, dctcp", None),
    (Congestion::Dctcp, true, "dctcp", Some(274.0)),
    (Congestion::Timely, true, "timely", Some(274.0)),
    (Congestion::Off, true, "no cc", None),
];

const WARM_UP_NS: u64 = 10 * MS;
const MEASURED_NS: u64 = 10 * MS;

struct Both {
    /// The first host of the background traffic; all later ones belong to it.
    first: u32,
    /// Threads that each of them calls.
    partners: u64,
    incast: bool,
    rng: Rng,
    sent: u64,
    begun_ns: Vec<u64>,
    latency_ns: Histogram<u64>,
}

impl Both {
    fn next(&mut self, host: HostId, now_ns: u64, calls: &mut Vec<Call>) {
        self.sent += 1;
        let Some(index) = host.0.checked_sub(self.first) else {
            calls.push(Call {
                channel: 0,
                tag: self.sent,
                len: LARGEST,
            });
            return;
        };
        self.begun_ns[index as usize] = now_ns;
        calls.push(Call {
            channel: self.rng.below(self.partners) as usize,
            tag: self.sent,
            len: BYTES,
        });
    }
}

impl Application for Both {
    fn serve(&mut self, host: HostId, _: u64, _: &[u8]) -> Answer {
        let len = if host.0 >= self.first { BYTES } else { 32 };
        Answer { len, extra_ns: 0 }
    }

    fn connected(&mut self, host: HostId, channel: usize, now_ns: u64, calls: &mut Vec<Call>) {
        let begins = if host.0 >= self.first {
            channel == 0
        } else {
            self.incast
        };
        if begins {
            self.next(host, now_ns, calls);
        }
    }

    fn ended(
        &mut self,
        host: HostId,
        _: u64,
        result: Result<&[u8], RequestError>,
        now_ns: u64,
        calls: &mut Vec<Call>,
    ) {
        assert!(result.is_ok(), "a request of {host:?} failed: {result:?}");
        if let Some(index) = host.0.checked_sub(self.first) {
            self.latency_ns
                .saturating_record(now_ns - self.begun_ns[index as usize]);
        }
        self.next(host, now_ns, calls);
    }
}

pub(super) fn run(bench: &mut Bench<'_>) {
    for (index, (congestion, incast, case, paper)) in CASES.into_iter().enumerate() {
        bench.progress(index, CASES.len(), case);
        let shortest_ns = measure(bench, congestion, incast, case, paper);
        if index == 0 {
            ideal(bench, shortest_ns);
        }
    }
}

/// The same calls on a network that shares its links fairly, at once, and without a queue, and
/// whose delays are those of the shortest call that was seen.
fn ideal(bench: &mut Bench<'_>, shortest_ns: u64) {
    let (warm_up_ns, measured_ns) = times_of(bench);
    let rate = LINK_GBPS / 8.0;
    let bytes = BYTES as f64;
    let ideal = Ideal {
        threads: threads_of(bench) as usize,
        bytes,
        rate,
        delay_ns: (shortest_ns as f64 - 2.0 * bytes / rate).max(1.0),
    };
    let mut rng = Rng::new(bench.options.seed);
    let until_ns = (warm_up_ns + measured_ns) as f64;
    let latency_ns = ideal.latencies(&mut rng, warm_up_ns as f64, until_ns);
    let us = |quantile: f64| latency_ns.value_at_quantile(quantile) as f64 / 1e3;
    let case = "no incast, ideal";
    bench.row(case, "64 kB RPC p50", "us", us(0.5), None);
    bench.row(case, "64 kB RPC p99", "us", us(0.99), None);
}

fn threads_of(bench: &Bench<'_>) -> u32 {
    let nodes = bench.options.nodes;
    nodes.map_or(CLIENTS, |nodes| nodes.max(4) - 1)
}

/// The warm-up time, and the measured time.
fn times_of(bench: &Bench<'_>) -> (u64, u64) {
    if bench.options.quick {
        (MS, MS)
    } else {
        (WARM_UP_NS, MEASURED_NS)
    }
}

/// Returns the shortest time that an RPC took, ns.
fn measure(
    bench: &mut Bench<'_>,
    congestion: Congestion,
    incast: bool,
    case: &str,
    paper: Option<f64>,
) -> u64 {
    let clients = threads_of(bench);
    let (warm_up_ns, measured_ns) = times_of(bench);
    let mut cluster = Cluster::new(cx4(bench.options.seed, clients + 1));
    let config = node_config(congestion);
    let server = cluster.add(&config);
    cluster.machine(server).capture = Some(Capture::new());
    let flood: Vec<HostId> = (0..clients).map(|_| cluster.add(&config)).collect();
    let threads: Vec<HostId> = (1..=clients)
        .map(|node| cluster.add_on(NodeId(node), &config))
        .collect();
    for &client in &flood {
        let at_ns = cluster.rng.below(100 * US);
        cluster.open(client, server, at_ns);
    }
    for (index, &client) in threads.iter().enumerate() {
        for step in 1..threads.len() {
            let partner = threads[(index + step) % threads.len()];
            let at_ns = cluster.rng.below(100 * US);
            cluster.open(client, partner, at_ns);
        }
    }
    let mut app = Both {
        first: threads[0].0,
        partners: threads.len() as u64 - 1,
        incast,
        rng: cluster.rng.fork(),
        sent: 0,
        begun_ns: vec![0; threads.len()],
        latency_ns: times(),
    };
    cluster.run(&mut app, warm_up_ns);
    app.latency_ns.reset();
    if let Some(capture) = &mut cluster.machine(server).capture {
        capture.restart();
    }
    cluster.run(&mut app, warm_up_ns + measured_ns);
    let us = |quantile: f64| app.latency_ns.value_at_quantile(quantile) as f64 / 1e3;
    bench.row(case, "64 kB RPC p50", "us", us(0.5), None);
    bench.row(case, "64 kB RPC p99", "us", us(0.99), paper);
    let done = app.latency_ns.len() as f64 / measured_ns as f64 * 1e6;
    bench.row(case, "64 kB RPCs", "k/s", done, None);
    let capture = cluster.machine(server).capture.as_ref();
    let bytes: u64 = capture.map_or(0, |capture| capture.received.iter().sum());
    let gbps = bytes as f64 * 8.0 / measured_ns as f64;
    bench.row(case, "incast bandwidth", "Gb/s", gbps, None);
    bench.finish(&mut cluster);
    app.latency_ns.min()
}
