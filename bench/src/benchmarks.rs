//! The benchmarks of each suite that need no other library: floors, baselines that the standard
//! library has, and Starling.

use crate::benchmark::Benchmark;
use crate::channel;
use crate::endpoint;
use crate::floor::{cache_line, handover, memcpy, ring, tcp, udp};
use crate::managed;
use crate::observe;
use crate::policies;
use crate::slo;
use crate::streams;
use crate::suite::{LARGE_BYTES, Suite, size_case};

/// The benchmarks of a suite on this host, without those over a veth pair.
pub fn of(suite: Suite) -> Vec<Benchmark> {
    let mut benchmarks = floors(suite);
    benchmarks.extend(match suite {
        Suite::Slo => slo::benchmarks(),
        Suite::Channel => channel::benchmarks(),
        Suite::Streams => streams::benchmarks(),
        Suite::Observe => observe::benchmarks(),
        Suite::Managed => managed::benchmarks(),
        Suite::Policies => policies::benchmarks(),
        _ => endpoint::benchmarks(suite),
    });
    benchmarks
}

/// The floors and baselines of a suite that need no other library. A suite that compares Starling
/// with itself has none.
pub fn floors(suite: Suite) -> Vec<Benchmark> {
    match suite {
        Suite::Rtt => vec![
            Benchmark::new("udp", "raw", "", udp::latencies),
            Benchmark::new("shm", "raw", "", cache_line::latencies),
        ],
        Suite::Rate => vec![
            Benchmark::new("udp", "raw", "", udp::rate),
            Benchmark::new("shm", "raw", "", ring::rate),
        ],
        Suite::Large => LARGE_BYTES
            .into_iter()
            .flat_map(|size| {
                let case = size_case(size);
                let tcp = tcp::Waiting::ALL.map(|waiting| {
                    let case = format!("{case} {}", waiting.name());
                    Benchmark::new("tcp", "tcp", case, move |context| {
                        tcp::throughput(context, size, waiting)
                    })
                });
                let memcpy = Benchmark::new("memory", "memcpy", &case, move |context| {
                    memcpy::throughput(context, size)
                });
                let handover = Benchmark::new("shm", "raw", &case, move |context| {
                    handover::throughput(context, size)
                });
                tcp.into_iter().chain([memcpy, handover])
            })
            .collect(),
        Suite::Sessions
        | Suite::Factors
        | Suite::Breakdown
        | Suite::Dispatch
        | Suite::Slo
        | Suite::Interference
        | Suite::Channel
        | Suite::Streams
        | Suite::Observe
        | Suite::Managed
        | Suite::Policies => vec![],
    }
}
