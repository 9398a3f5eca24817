//! The highest load of a server of many cores before its tail latency is too long, by queue model:
//! figures 2 and 9 of RPCValet (ASPLOS 2019), with the dispatch code that ships.
//!
//! Requests arrive at random (Poisson), with several distributions of service times. Each row has
//! the highest load at which the 99th percentile stays within ten times the mean service time.
//! Beside the queue models stands the ideal: one queue that costs nothing.

mod model;

use std::convert::Infallible;

use starling_endpoint::jbsq::QueueModel;

use super::{Bench, Curve, Plot};
use crate::queueing::{self, SLO, Search, Service, arrivals};
use crate::rng::mix;

pub(super) const NAME: &str = "slo";

/// Mean time of a handler, ns.
const MEAN_NS: f64 = 10_000.0;
/// Requests a worker may have.
const DEPTH: u8 = 2;
/// Requests of one run.
const REQUESTS: usize = 200_000;
/// The resolution of the search for the limit, and how far into saturation the sweep goes.
const SEARCH: Search = Search {
    steps: 20,
    halvings: 5,
    until: 10.0 * SLO,
};

/// A system in the comparison.
#[derive(Clone, Copy)]
enum System {
    Ideal,
    Policy(QueueModel),
}

impl System {
    /// RPCValet's name: queues, by workers that take from each.
    fn name(self, workers: usize) -> String {
        match self {
            Self::Ideal => "ideal".into(),
            Self::Policy(QueueModel::SingleQueue) => format!("1x{workers}"),
            Self::Policy(QueueModel::Grouped(groups)) => format!("{groups}x{}", workers / groups),
            Self::Policy(QueueModel::Partitioned) => format!("{workers}x1"),
        }
    }

    /// The 99th percentile in multiples of the mean service time.
    fn p99(self, service: Service, workers: usize, load: f64, seed: u64, count: usize) -> f64 {
        let arrivals = arrivals(service, MEAN_NS, workers, load, seed);
        let latencies_ns = match self {
            Self::Ideal => queueing::ideal(workers, arrivals, count),
            Self::Policy(model) => model::dispatched(model, DEPTH, workers, arrivals, count),
        };
        latencies_ns.value_at_quantile(0.99) as f64 / MEAN_NS
    }
}

pub(super) fn run(bench: &mut Bench<'_>) {
    let (sizes, count): (&[usize], _) = if bench.options.quick {
        (&[16], REQUESTS / 10)
    } else {
        (&[16, 64], REQUESTS)
    };
    let systems = [
        System::Ideal,
        System::Policy(QueueModel::SingleQueue),
        System::Policy(QueueModel::Grouped(4)),
        System::Policy(QueueModel::Partitioned),
    ];
    let total = sizes.len() * Service::ALL.len();
    for (at, &workers) in sizes.iter().enumerate() {
        for (index, service) in Service::ALL.into_iter().enumerate() {
            let case = format!("{}/{workers}", service.name());
            bench.progress(at * Service::ALL.len() + index, total, &case);
            let mut curves = Vec::new();
            let mut ideal = 0.0;
            for system in systems {
                let name = system.name(workers);
                let seed = bench.options.seed;
                let tail = |load| Ok(system.p99(service, workers, load, seed, count));
                let Ok::<_, Infallible>((limit, points)) = SEARCH.run(tail);
                let case = format!("{}/{name}/{workers}", service.name());
                bench.row(&case, "throughput_under_slo", "of capacity", limit, None);
                match system {
                    System::Ideal => ideal = limit,
                    System::Policy(_) => {
                        bench.row(&case, "of the ideal", "%", 100.0 * limit / ideal, None);
                    }
                }
                let findings = &mut bench.findings;
                findings.trace_hash = points.iter().fold(findings.trace_hash, |hash, (_, p99)| {
                    mix(hash ^ p99.to_bits())
                });
                curves.push(Curve { name, points });
            }
            bench.findings.plots.push(Plot {
                title: format!("{workers} workers, {} service times", service.name()),
                x: "load, of capacity",
                y: "p99, in mean service times",
                log: (false, true),
                curves,
            });
        }
    }
}
