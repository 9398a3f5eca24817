//! Figure 5 of eRPC: 100 nodes of the CX4 cluster with 1 to 10 threads each, every thread with a
//! session to every other one, 60 requests of 32 B in flight a thread, issued three at a time to
//! threads drawn at random.
//!
//! With ten threads a node has 9,990 sessions as client and as many as server: 19,980. First all
//! sessions are opened, then the load begins; measuring begins after a millisecond of it.

use hdrhistogram::Histogram;
use starling_proto::{Config, Congestion, RequestError};

use super::capture::times;
use super::cluster::Cluster;
use super::incast::{cx4, node_config};
use super::machine::{Answer, Application, Call, Machine};
use super::monitor::enforce;
use super::{Bench, Curve, MS, Plot, US};
use crate::check::Violation;
use crate::fabric::HostId;
use crate::net::NodeId;
use crate::rng::Rng;

pub(super) const NAME: &str = "all-to-all";

/// Threads a node, congestion control, and the paper's figures: million requests a second and node,
/// median latency, 99.99th percentile in us (an upper bound), retransmissions a second and node
/// (another).
const CASES: [(u32, Congestion, [Option<f64>; 4]); 5] = [
    (1, Congestion::Dctcp, [None, Some(12.7), None, None]),
    (2, Congestion::Dctcp, [None; 4]),
    (5, Congestion::Off, [None; 4]),
    (5, Congestion::Dctcp, [None; 4]),
    (
        10,
        Congestion::Dctcp,
        [Some(12.3), None, Some(700.0), Some(1700.0)],
    ),
];

const IN_FLIGHT: usize = 60;
const BATCH: usize = 3;
const BYTES: usize = 32;

/// Time in which the sessions of one thread are opened, for each of them.
const OPENING_NS: u64 = 20 * US;
const RAMP_NS: u64 = MS;
const MEASURED_NS: u64 = 3 * MS;

/// Places of a tag that say which request in flight it is.
const PLACE_BITS: u32 = 6;

/// One thread's requests.
pub(super) struct Thread {
    channels: u64,
    /// When the request in each place was issued.
    issued_ns: [u64; IN_FLIGHT],
    free: Vec<usize>,
    sequence: u64,
}

impl Thread {
    pub(super) fn new(channels: usize) -> Self {
        Self {
            channels: channels as u64,
            issued_ns: [0; IN_FLIGHT],
            free: (0..IN_FLIGHT).collect(),
            sequence: 0,
        }
    }

    /// Fills free places with requests, in whole batches.
    fn issue(&mut self, rng: &mut Rng, now_ns: u64, mut call: impl FnMut(Call)) {
        while self.free.len() >= BATCH {
            for _ in 0..BATCH {
                let place = self.free.pop().expect("a batch is free");
                self.issued_ns[place] = now_ns;
                self.sequence += 1;
                call(Call {
                    channel: rng.below(self.channels) as usize,
                    tag: self.sequence << PLACE_BITS | place as u64,
                    len: BYTES,
                });
            }
        }
    }
}

struct Mesh {
    threads: Vec<Thread>,
    rng: Rng,
    connected: u64,
    wanted: u64,
    running: bool,
    done: u64,
    latency_ns: Histogram<u64>,
}

impl Application for Mesh {
    fn serve(&mut self, _: HostId, _: u64, _: &[u8]) -> Answer {
        Answer {
            len: BYTES,
            extra_ns: 0,
        }
    }

    fn connected(&mut self, _: HostId, _: usize, _: u64, _: &mut Vec<Call>) {
        self.connected += 1;
    }

    fn ended(
        &mut self,
        host: HostId,
        tag: u64,
        result: Result<&[u8], RequestError>,
        now_ns: u64,
        calls: &mut Vec<Call>,
    ) {
        enforce(answered(host, result));
        let place = (tag & ((1 << PLACE_BITS) - 1)) as usize;
        let thread = &mut self.threads[host.0 as usize];
        self.latency_ns
            .saturating_record(now_ns - thread.issued_ns[place]);
        self.done += 1;
        thread.free.push(place);
        thread.issue(&mut self.rng, now_ns, |call| calls.push(call));
    }

    /// The word is the thread that begins.
    fn handle_timer(&mut self, word: u64, now_ns: u64, calls: &mut Vec<(HostId, Call)>) {
        let host = HostId(word as u32);
        let thread = &mut self.threads[word as usize];
        thread.issue(&mut self.rng, now_ns, |call| calls.push((host, call)));
    }

    fn is_done(&self) -> bool {
        !self.running && self.connected == self.wanted
    }
}

/// Fails unless the call was answered. The scenario has no faults, so no call has a reason to fail.
fn answered(host: HostId, result: Result<&[u8], RequestError>) -> Result<(), Violation> {
    let text = match result {
        Ok(response) if response.len() == BYTES => return Ok(()),
        Ok(response) => format!("{host:?} got {} bytes for {BYTES}", response.len()),
        Err(error) => format!("a request of {host:?} failed: {error}"),
    };
    Err(Violation::new("no failure without a cause", text))
}

pub(super) fn run(bench: &mut Bench<'_>) {
    let cases = if bench.options.quick {
        &CASES[..2]
    } else {
        &CASES[..]
    };
    let mut curves: Vec<Curve> = ["p50", "p99", "p99.9", "p99.99"]
        .map(|name| Curve {
            name: name.into(),
            points: Vec::new(),
        })
        .into();
    for (index, &(threads, congestion, paper)) in cases.iter().enumerate() {
        let case = match congestion {
            Congestion::Off => format!("{threads} threads, no cc"),
            _ => format!("{threads} threads"),
        };
        bench.progress(index, cases.len(), &case);
        let latencies = measure(bench, threads, congestion, &case, paper);
        if congestion == Congestion::Off {
            continue;
        }
        for (curve, latency) in curves.iter_mut().zip(latencies) {
            curve.points.push((f64::from(threads), latency));
        }
    }
    bench.findings.plots.push(Plot {
        title: "Latency of 32 B RPCs, every thread to every thread".into(),
        x: "threads a node",
        y: "latency, us",
        log: (false, true),
        curves,
    });
}

/// Runs one case; returns latencies in us.
fn measure(
    bench: &mut Bench<'_>,
    threads: u32,
    congestion: Congestion,
    case: &str,
    paper: [Option<f64>; 4],
) -> [f64; 4] {
    let quick = bench.options.quick;
    let nodes = bench.options.nodes.unwrap_or(if quick { 10 } else { 100 });
    let (mut cluster, mut app) = open_sessions(bench.options.seed, nodes, threads, congestion);
    let ramp_ns = if quick { MS / 10 } else { RAMP_NS };
    let measured_ns = if quick { MS / 5 } else { MEASURED_NS };
    app.running = true;
    let begin_ns = cluster.now_ns();
    for index in 0..app.threads.len() {
        let at_ns = begin_ns + cluster.rng.below(20 * US);
        cluster.fabric.lock().set_timer(at_ns, index as u64);
    }
    cluster.run(&mut app, begin_ns + ramp_ns);
    app.latency_ns.reset();
    app.done = 0;
    let before = cluster.stats();
    cluster.run(&mut app, begin_ns + ramp_ns + measured_ns);
    let again = cluster.stats().retransmissions - before.retransmissions;

    let per_node = |count: u64| count as f64 / f64::from(nodes) / measured_ns as f64;
    let rate = per_node(app.done) * 1e3;
    bench.row(case, "rate a node", "M/s", rate, paper[0]);
    let us = |quantile: f64| app.latency_ns.value_at_quantile(quantile) as f64 / 1e3;
    let latencies = [us(0.5), us(0.99), us(0.999), us(0.9999)];
    bench.row(case, "latency p50", "us", latencies[0], paper[1]);
    bench.row(case, "latency p99", "us", latencies[1], None);
    bench.row(case, "latency p99.9", "us", latencies[2], None);
    bench.row(case, "latency p99.99", "us", latencies[3], paper[2]);
    let rate = per_node(again) * 1e9;
    bench.row(case, "retransmissions a node", "1/s", rate, paper[3]);
    let counts = cluster.machines.iter().map(Machine::session_counts);
    let sessions: usize = counts.map(|(client, server)| client + server).sum();
    let sessions = sessions as f64 / f64::from(nodes);
    bench.row(case, "sessions a node", "", sessions, None);
    let drops: u64 = cluster.fabric.lock().counters().dropped.values().sum();
    bench.row(case, "datagrams dropped", "", drops as f64, None);
    bench.finish(&mut cluster);
    latencies
}

/// A cluster whose threads all have a session to every other one.
fn open_sessions(seed: u64, nodes: u32, threads: u32, congestion: Congestion) -> (Cluster, Mesh) {
    let mut fabric = cx4(seed, nodes);
    // Messages of 32 B need less, but sessions ask for as much as they may.
    fabric.receive.datagrams = 4096;
    let mut cluster = Cluster::new(fabric);
    let config = Config {
        max_sessions: 1 << 20,
        ..node_config(congestion)
    };
    let mut hosts = Vec::new();
    for node in 0..nodes {
        for _ in 0..threads {
            hosts.push(cluster.add_on(NodeId(node), &config));
        }
    }
    let others = hosts.len() - 1;
    for &client in &hosts {
        for &server in hosts.iter().filter(|&&server| server != client) {
            cluster.machine(client).plan_open(server);
        }
    }
    cluster.open_spread(OPENING_NS);
    let wanted = (hosts.len() * others) as u64;
    let mut app = Mesh {
        threads: hosts.iter().map(|_| Thread::new(others)).collect(),
        rng: cluster.rng.fork(),
        connected: 0,
        wanted,
        running: false,
        done: 0,
        latency_ns: times(),
    };
    cluster.run(&mut app, 60_000 * MS);
    if app.connected != wanted {
        let text = format!("{} of {wanted} sessions open in a minute", app.connected);
        enforce(Err(Violation::new("nothing stays stuck", text)));
    }
    (cluster, app)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Findings, Options};

    #[test]
    fn congestion_control_costs_little_where_nothing_is_congested() {
        let rate = |congestion| {
            let mut bench = Bench {
                scenario: NAME,
                options: Options {
                    seed: 1,
                    nodes: None,
                    quick: true,
                },
                findings: Findings::default(),
                on_progress: &mut |_| {},
            };
            measure(&mut bench, 2, congestion, "", [None; 4]);
            let rate = |row: &&crate::scenario::Row| row.metric == "rate a node";
            let row = bench.findings.rows.iter().find(rate);
            row.expect("the rate is measured").value
        };
        let (with, without) = (rate(Congestion::Dctcp), rate(Congestion::Off));
        assert!(with >= 0.95 * without, "{with} and {without} M/s");
    }
}
