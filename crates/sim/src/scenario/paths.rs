//! Paths that are hard for congestion control: so long that their own delay looks like a queue,
//! with switches that mark nothing, and with switches that hold little and drop.
//!
//! Along a long path a client sends 8 MB and gets 8 MB back, one request after the other; the
//! credits allow one window a round trip. The other cases are incasts as in [`super::incast`].

use starling_proto::{Congestion, RequestError};

use super::cluster::{Cluster, LARGEST};
use super::incast::{self, DATA_BYTES, node_config};
use super::machine::{Answer, Application, Call};
use super::{Bench, MS, US};
use crate::cpu::CpuModel;
use crate::fabric::{FabricConfig, HostId};
use crate::net::{LinkConfig, SwitchConfig};

pub(super) const NAME: &str = "paths";

/// The one-way delay, ns.
const LENGTHS: [(u64, &str); 2] = [(300 * US, "0.6 ms"), (2_500 * US, "5 ms")];

const CONTROLS: [(Congestion, &str); 3] = [
    (Congestion::Dctcp, "dctcp"),
    (Congestion::Timely, "timely"),
    (Congestion::Off, "no cc"),
];

/// A rack's port holds at most about 100 kB of it.
const SHALLOW: SwitchConfig = SwitchConfig {
    buffer_bytes: 110_000,
    alpha_log2: 3,
    latency_ns: 300,
    cut_through: true,
    marking: crate::net::Marking::Off,
};

/// A client that keeps one large request outstanding.
struct Far {
    done: u64,
}

impl Far {
    fn next(&self, calls: &mut Vec<Call>) {
        calls.push(Call {
            channel: 0,
            tag: self.done,
            len: LARGEST,
        });
    }
}

impl Application for Far {
    fn serve(&mut self, _: HostId, _: u64, request: &[u8]) -> Answer {
        Answer {
            len: request.len(),
            extra_ns: 0,
        }
    }

    fn connected(&mut self, _: HostId, _: usize, _: u64, calls: &mut Vec<Call>) {
        self.next(calls);
    }

    fn ended(
        &mut self,
        _: HostId,
        _: u64,
        result: Result<&[u8], RequestError>,
        _: u64,
        calls: &mut Vec<Call>,
    ) {
        assert!(result.is_ok(), "{result:?}");
        self.done += 1;
        self.next(calls);
    }
}

pub(super) fn run(bench: &mut Bench<'_>) {
    let total = (LENGTHS.len() + 2) * CONTROLS.len();
    let mut at = 0;
    for (way_ns, length) in LENGTHS {
        for (congestion, control) in CONTROLS {
            let case = format!("{length}, {control}");
            bench.progress(at, total, &case);
            at += 1;
            long(bench, way_ns, congestion, &case);
        }
    }
    for (switch, name, clients) in [
        (SwitchConfig::default(), "no marks", 50),
        (SHALLOW, "drops only", 20),
    ] {
        for (congestion, control) in CONTROLS {
            let case = format!("{clients} to 1, {name}, {control}");
            bench.progress(at, total, &case);
            at += 1;
            incast::measure(bench, clients, congestion, switch, &case, None);
        }
    }
}

fn long(bench: &mut Bench<'_>, way_ns: u64, congestion: Congestion, case: &str) {
    let mut cluster = Cluster::new(FabricConfig {
        seed: bench.options.seed,
        max_datagram: DATA_BYTES + 32,
        link: LinkConfig {
            propagation_ns: way_ns,
            ..LinkConfig::default()
        },
        cpu: CpuModel::POLLED,
        ..FabricConfig::default()
    });
    let config = node_config(congestion);
    let (client, server) = (cluster.add(&config), cluster.add(&config));
    cluster.open(client, server, 0);
    let mut app = Far { done: 0 };
    let requests = if bench.options.quick { 1 } else { 4 };
    while app.done < requests {
        let until_ns = cluster.now_ns() + MS;
        cluster.run(&mut app, until_ns);
    }
    let bytes = (2 * LARGEST as u64 * app.done) as f64;
    let rate = bytes / cluster.now_ns() as f64;
    let window = f64::from(config.credits) * DATA_BYTES as f64;
    let allowed = window / (2 * way_ns) as f64;
    bench.row(case, "goodput", "Gb/s", rate * 8.0, None);
    let share = 100.0 * rate / allowed;
    bench.row(case, "of what credits allow", "%", share, None);
    bench.finish(&mut cluster);
}
