//! In a cluster in which every node calls every other, one node dies and comes back. When do the
//! others notice, which calls suffer, and is the node used again?
//!
//! The load is open: each node calls another one, drawn at random, at fixed intervals, independent
//! of its earlier calls. So calls that wait for the dead node delay other calls only if an endpoint
//! does so internally.

use hdrhistogram::Histogram;
use starling_proto::{Config, Congestion, RequestError};

use super::capture::times;
use super::cluster::Cluster;
use super::incast::{cx4, node_config};
use super::machine::{Application, Call};
use super::{Bench, MS, US};
use crate::fabric::HostId;
use crate::rng::Rng;

pub(super) const NAME: &str = "node-failure";

const NODES: u32 = 100;
/// Time between two calls of a node; with `quick`, the longer one.
const INTERVALS_NS: [u64; 2] = [50 * US, 500 * US];
/// How long a peer may be silent.
const PEER_TIMEOUT_NS: u64 = 200 * MS;
const KEEPALIVE_NS: u64 = 20 * MS;

/// Times of the run: calm, the node is dead, it is back.
const CALM_NS: u64 = 50 * MS;
const DEAD_NS: u64 = 400 * MS;
const BACK_NS: u64 = 450 * MS;

/// The calls to living nodes in one part of the run.
struct Period {
    issued: u64,
    answered: u64,
    latency_ns: Histogram<u64>,
}

impl Period {
    fn new() -> Self {
        Self {
            issued: 0,
            answered: 0,
            latency_ns: times(),
        }
    }
}

/// The fields of a call's tag.
#[derive(Clone, Copy)]
struct Tag {
    server: u32,
    issued_ns: u64,
}

impl Tag {
    fn pack(self) -> u64 {
        u64::from(self.server) << 48 | self.issued_ns
    }

    fn unpack(word: u64) -> Self {
        Self {
            server: (word >> 48) as u32,
            issued_ns: word & ((1 << 48) - 1),
        }
    }
}

struct Load {
    nodes: u32,
    victim: u32,
    rng: Rng,
    died_ns: u64,
    back_ns: u64,
    /// The parts of the run before the victim's death and while it is dead.
    parts: [Period; 2],
    /// When each node first learnt that the victim is dead.
    learnt_ns: Vec<Option<u64>>,
    /// Calls to living nodes that failed.
    failed: u64,
    /// When each node first got an answer from the victim that is back.
    heard_ns: Vec<Option<u64>>,
}

impl Load {
    fn period(&mut self, issued_ns: u64) -> Option<&mut Period> {
        if issued_ns < self.died_ns {
            Some(&mut self.parts[0])
        } else if issued_ns < self.back_ns {
            Some(&mut self.parts[1])
        } else {
            None
        }
    }
}

impl Application for Load {
    fn ended(
        &mut self,
        host: HostId,
        tag: u64,
        result: Result<&[u8], RequestError>,
        now_ns: u64,
        _: &mut Vec<Call>,
    ) {
        let Tag { server, issued_ns } = Tag::unpack(tag);
        let index = host.0 as usize;
        if server == self.victim {
            match result {
                Ok(_) if issued_ns >= self.back_ns => {
                    self.heard_ns[index].get_or_insert(now_ns);
                }
                Ok(_) => {}
                Err(_) => {
                    self.learnt_ns[index].get_or_insert(now_ns);
                }
            }
            return;
        }
        self.failed += u64::from(result.is_err() && host.0 != self.victim);
        if result.is_ok()
            && host.0 != self.victim
            && let Some(period) = self.period(issued_ns)
        {
            period.answered += 1;
            period.latency_ns.saturating_record(now_ns - issued_ns);
        }
    }

    /// `word` is the node that calls.
    fn handle_timer(&mut self, word: u64, now_ns: u64, calls: &mut Vec<(HostId, Call)>) {
        let client = word as u32;
        let channel = self.rng.below(u64::from(self.nodes) - 1);
        let server = channel as u32 + u32::from(channel as u32 >= client);
        if client == self.victim && (self.died_ns..self.back_ns).contains(&now_ns) {
            return;
        }
        if server != self.victim
            && client != self.victim
            && let Some(period) = self.period(now_ns)
        {
            period.issued += 1;
        }
        let tag = Tag {
            server,
            issued_ns: now_ns,
        };
        let call = Call {
            channel: channel as usize,
            tag: tag.pack(),
            len: 64,
        };
        calls.push((HostId(client), call));
    }
}

pub(super) fn run(bench: &mut Bench<'_>) {
    bench.progress(0, 1, "a node dies and returns");
    let nodes = bench
        .options
        .nodes
        .unwrap_or(if bench.options.quick { 10 } else { NODES })
        .max(3);
    let mut cluster = Cluster::new(cx4(bench.options.seed, nodes));
    let config = Config {
        peer_timeout_ns: PEER_TIMEOUT_NS,
        keepalive_ns: KEEPALIVE_NS,
        connect_timeout_ns: PEER_TIMEOUT_NS,
        ..node_config(Congestion::Dctcp)
    };
    let hosts: Vec<HostId> = (0..nodes).map(|_| cluster.add(&config)).collect();
    for &client in &hosts {
        for &server in hosts.iter().filter(|&&server| server != client) {
            cluster.machine(client).plan_open(server);
        }
    }
    cluster.open_spread(10 * US);
    let victim = cluster.rng.below(u64::from(nodes)) as u32;
    let begin_ns = 10 * MS;
    let died_ns = begin_ns + CALM_NS;
    let back_ns = died_ns + DEAD_NS;
    let end_ns = back_ns + BACK_NS;
    let mut app = Load {
        nodes,
        victim,
        rng: cluster.rng.fork(),
        died_ns,
        back_ns,
        parts: [Period::new(), Period::new()],
        learnt_ns: vec![None; nodes as usize],
        failed: 0,
        heard_ns: vec![None; nodes as usize],
    };
    let interval_ns = INTERVALS_NS[usize::from(bench.options.quick)];
    for node in 0..nodes {
        let start_ns = begin_ns + cluster.rng.below(interval_ns);
        cluster.repeat(u64::from(node), start_ns, interval_ns);
    }
    cluster.run(&mut app, died_ns);
    cluster.crash(HostId(victim));
    cluster.run(&mut app, back_ns);
    cluster.restart(HostId(victim));
    cluster.run(&mut app, end_ns);

    report(bench, &app);
    bench.finish(&mut cluster);
}

fn report(bench: &mut Bench<'_>, app: &Load) {
    let case = "";
    let others = (0..app.nodes as usize).filter(|&node| node != app.victim as usize);
    let latest = |times: &[Option<u64>], since_ns: u64| {
        let seen = others.clone().filter_map(|node| times[node]);
        seen.max()
            .map(|at_ns| (at_ns - since_ns) as f64 / MS as f64)
    };
    let share = |times: &[Option<u64>]| {
        let count = others.clone().filter(|&n| times[n].is_some()).count();
        100.0 * count as f64 / f64::from(app.nodes - 1)
    };
    let learnt = share(&app.learnt_ns);
    bench.row(case, "callers that learn of the death", "%", learnt, None);
    if let Some(ms) = latest(&app.learnt_ns, app.died_ns) {
        bench.row(case, "the last one after", "ms", ms, None);
    }
    let returned = share(&app.heard_ns);
    bench.row(case, "callers that use it again", "%", returned, None);
    if let Some(ms) = latest(&app.heard_ns, app.back_ns) {
        bench.row(case, "the last one after its return", "ms", ms, None);
    }
    let failed = app.failed as f64;
    bench.row(case, "failed calls to the living", "", failed, None);
    for (name, period) in ["before", "while it is dead"].iter().zip(&app.parts) {
        let share = 100.0 * period.answered as f64 / period.issued as f64;
        bench.row(name, "calls to the living answered", "%", share, None);
        let us = |quantile: f64| period.latency_ns.value_at_quantile(quantile) as f64 / 1e3;
        bench.row(name, "latency p50", "us", us(0.5), None);
        bench.row(name, "latency p99", "us", us(0.99), None);
    }
    let [before, after] = &app.parts;
    let p99 = |period: &Period| period.latency_ns.value_at_quantile(0.99) as f64;
    let slower = 100.0 * (p99(after) / p99(before) - 1.0);
    bench.row(case, "others slower at p99", "%", slower, None);
}
