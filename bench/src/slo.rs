//! The load at which the tail latency of a server with 16 workers becomes too long, end to end: the
//! simulated scenario `slo` (after RPCValet, ASPLOS 2019, figures 2 and 9) with a real server.
//!
//! ```text
//!  core 0                                       core 1
//!  arrivals ─▶ 89 endpoints ══ device ══▶ endpoint ─▶ jbsq ─▶ 16 workers that sleep
//!     │         (a flow each)                                     │
//!     └──── when each was due ────────▶ latency ◀── answer ◀──────┘
//! ```
//!
//! A worker holds a request by sleeping, so that two cores stand for as many as there are workers.
//! The suite compares dispatch policies, not the speed of cores. Requests are sent when they are
//! due, whether or not others were answered, and a latency begins when its request was due. Each
//! repetition has other arrivals; within a repetition all policies, and the ideal, get the same.
//!
//! A flow is the requests of one peer. Peers have consecutive numbers, which
//! [`starling_endpoint::jbsq`] spreads most evenly over workers if there is a Fibonacci number of
//! them: of 89 each worker has five or six.

mod client;
mod server;

use std::time::{Duration, Instant};

use starling_endpoint::jbsq::QueueModel;
use starling_io_shm::ShmIo;
use starling_io_udp::UdpIo;
use starling_io_xdp::XdpIo;
use starling_sim::queueing::{self, SLO, Search, Service, arrivals};

use crate::benchmark::{Benchmark, Context};
use crate::device::{Device, SYSTEM};
use crate::error::BenchError;
use crate::metric::{Metric, Sample};
use crate::process::begin_server;

/// Workers of the server.
const WORKERS: usize = 16;

/// Mean time that a worker holds a request, ns: long compared with the processor time of a request
/// on the server's core (some 50 us with all system calls and five context switches), so that this
/// core does not limit the rate, and compared with how late a sleep ends (about as much).
const MEAN_NS: f64 = 4_000_000.0;

/// Endpoints of the client; each is a flow to the server.
const FLOWS: usize = 89;

/// The shortest run whose processor time is measured: the kernel counts it in steps of 10 ms.
const MIN_CPU_PERIOD: Duration = Duration::from_millis(250);

/// How finely the limit is searched.
const SEARCH: Search = Search {
    steps: 10,
    halvings: 3,
    until: SLO,
};

/// How a server hands requests to its workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// RPCValet's name: queues x workers of each.
    name: &'static str,
    model: QueueModel,
    /// The device hands out requests, not the dispatch thread.
    steered: bool,
}

impl Policy {
    const fn of(name: &'static str, model: QueueModel) -> Self {
        Self {
            name,
            model,
            steered: false,
        }
    }

    fn find(name: &str) -> Option<Self> {
        let mut all = POLICIES.into_iter().chain([STEERED]);
        all.find(|known| known.name == name)
    }
}

/// The policies of any device.
const POLICIES: [Policy; 3] = [
    Policy::of("1x16", QueueModel::SingleQueue),
    Policy::of("4x4", QueueModel::Grouped(4)),
    Policy::of("16x1", QueueModel::Partitioned),
];

/// A single queue in effect, kept by a device that can steer: AF_XDP.
const STEERED: Policy = Policy {
    steered: true,
    ..Policy::of("steered", QueueModel::SingleQueue)
};

/// The ideal, and Starling over the devices within this host.
pub(crate) fn benchmarks() -> Vec<Benchmark> {
    let ideals = Service::ALL.map(|service| {
        let mut repetition = 0;
        Benchmark::new(
            "model",
            "ideal",
            service.name(),
            move |context: &Context| {
                repetition += 1;
                Ok(ideal(service, context.seconds, repetition))
            },
        )
    });
    let mut benchmarks = Vec::from(ideals);
    benchmarks.extend(on::<ShmIo, ShmIo>(&POLICIES));
    benchmarks.extend(on::<UdpIo, UdpIo>(&POLICIES));
    benchmarks
}

/// Starling over a veth pair. An interface's queue belongs to one device at a time, so the clients,
/// of which there are many, use the kernel's sockets.
pub(crate) fn benchmarks_over_veth() -> Vec<Benchmark> {
    on::<XdpIo, UdpIo>(&[&POLICIES[..], &[STEERED]].concat())
}

fn on<S: Device, C: Device>(policies: &[Policy]) -> Vec<Benchmark> {
    let cases = Service::ALL
        .into_iter()
        .flat_map(|service| policies.iter().map(move |&policy| (service, policy)));
    cases
        .map(|(service, policy)| {
            let case = format!("{}/{}", service.name(), policy.name);
            let mut repetition = 0;
            let benchmark = Benchmark::new(S::SCHEME, SYSTEM, case, move |context| {
                repetition += 1;
                measure::<S, C>(context, service, policy, repetition)
            });
            // Requests take milliseconds, so cache misses between the cores do not matter.
            benchmark.in_any_placement()
        })
        .collect()
}

/// Runs the process of a role that this module has. `None`: the role is not one of them.
pub(crate) fn serve(role: &str, arguments: &[String]) -> Option<Result<(), BenchError>> {
    (role == server::ROLE)
        .then(|| begin_server(role, arguments).and_then(|rest| server::serve(&rest)))
}

/// Requests of a run of `seconds` at a load; at least four.
fn requests(load: f64, seconds: f64) -> usize {
    let per_second = 1e9 / MEAN_NS * WORKERS as f64 * load;
    ((per_second * seconds) as usize).max(4)
}

/// The tail latency of the ideal, in mean service times.
fn ideal_tail(service: Service, load: f64, seconds: f64, seed: u64) -> f64 {
    let arrivals = arrivals(service, MEAN_NS, WORKERS, load, seed);
    let latencies_ns = queueing::ideal(WORKERS, arrivals, requests(load, seconds));
    latencies_ns.value_at_quantile(0.99) as f64 / MEAN_NS
}

fn ideal(service: Service, seconds: f64, seed: u64) -> Sample {
    let Ok::<_, std::convert::Infallible>(found) =
        SEARCH.run(|load| Ok(ideal_tail(service, load, seconds, seed)));
    sample(found)
}

/// The limit, and the tail latency at each step, as figures.
fn sample((limit, points): (f64, Vec<(f64, f64)>)) -> Sample {
    let mut sample = vec![(Metric::ThroughputUnderSlo, limit)];
    sample.extend(points.into_iter().map(|(load, tail)| {
        let tenths = (load * 10.0).round() as u8;
        (Metric::Tail { tenths }, tail)
    }));
    sample
}

fn measure<S: Device, C: Device>(
    context: &Context,
    service: Service,
    policy: Policy,
    seed: u64,
) -> Result<Sample, BenchError> {
    let arguments = [S::SCHEME, policy.name, context.network.server()];
    let server = context.launcher.start(server::ROLE, &arguments)?;
    let mut client = client::Client::<C>::connect(context.network.client(), server.address())?;
    let mut busy: f64 = 0.0;
    let found = SEARCH.run(|load| {
        let arrivals = arrivals(service, MEAN_NS, WORKERS, load, seed);
        let (begin_ns, begin) = (server.cpu_ns(), Instant::now());
        let tail_ns = client.run(arrivals, requests(load, context.seconds))?;
        let (used_ns, took) = (server.cpu_ns() - begin_ns, begin.elapsed());
        if took > MIN_CPU_PERIOD {
            busy = busy.max(used_ns as f64 / took.as_nanos() as f64);
        }
        Ok::<_, BenchError>(tail_ns / MEAN_NS)
    })?;
    let limit = found.0;
    let ideal = ideal(service, context.seconds, seed)[0].1;
    let mut sample = sample(found);
    // Neither limit is known above the grid's last step.
    sample.push((Metric::OfIdeal, 100.0 * limit / ideal));
    sample.push((Metric::HeldLonger, client.held_longer_ns()));
    if busy > 0.0 {
        sample.push((Metric::Busy, 100.0 * busy));
    }
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ideal_gets_the_same_requests_and_its_limit_is_near_capacity() {
        let figures = ideal(Service::Fixed, 0.5, 1);
        let (metric, limit) = figures[0];
        assert_eq!(metric, Metric::ThroughputUnderSlo);
        assert!(limit > 0.9, "{limit}");
        let tails: Vec<f64> = figures[1..].iter().map(|(_, tail)| *tail).collect();
        assert_eq!(tails.len(), 9, "{figures:?}");
        assert!(tails[0] >= 0.999 && tails[0] < 1.2, "{tails:?}");
        assert_eq!(figures[9].0, Metric::Tail { tenths: 9 });
    }

    #[test]
    fn a_case_names_the_distribution_and_the_policy() {
        let names: Vec<String> = benchmarks().iter().map(ToString::to_string).collect();
        assert_eq!(names[0], "ideal/model fixed");
        assert_eq!(names[5], "starling/shm fixed/1x16");
        assert_eq!(names[19], "starling/shm bimodal/16x1");
        assert_eq!(names[20], "starling/udp fixed/1x16");
        let over_veth = benchmarks_over_veth();
        assert_eq!(over_veth[1].to_string(), "starling/xdp fixed/4x4");
        assert_eq!(over_veth[3].to_string(), "starling/xdp fixed/steered");
    }

    #[test]
    fn a_run_has_at_least_four_requests() {
        assert_eq!(requests(0.5, 1.0), 2000);
        assert_eq!(requests(0.1, 0.0), 4);
    }
}
