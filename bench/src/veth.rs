//! Benchmarks over a veth pair: client and server each have a network namespace, which this process
//! makes and which end with it. It is the smallest network with a path through a driver, and the
//! only one on a single host on which AF_XDP can be compared with other devices.
//!
//! The interfaces are those of [`starling_netns`]. During a benchmark of AF_XDP they have an XDP
//! program. During other benchmarks they have none, because it would take their offloads away. TCP
//! is also measured with the program: that is TCP's throughput on an interface that Starling uses.

use std::sync::{Arc, Mutex, PoisonError};

use starling_io_udp::UdpIo;
use starling_io_xdp::{XdpConfig, XdpIo};
use starling_netns::{NamespaceGuard, Pair, Shape};

use crate::benchmark::{Benchmark, Context, Measure, Network};
use crate::device::{Device, failed};
use crate::endpoint;
use crate::error::BenchError;
use crate::floor::{tcp, udp, xdp};
use crate::slo;
use crate::suite::{LARGE_BYTES, Suite, size_case};

/// The MTU of ordinary networks, in bytes.
const USUAL_MTU: u32 = 1500;

/// MTUs, in bytes, that large requests are measured with: the usual one, that of jumbo frames, and
/// about the largest that a device supports.
const MTUS: [u32; 3] = [USUAL_MTU, 9000, 57_000];

/// Whether benchmarks over a veth pair can run here, and if not, why.
pub fn is_possible() -> Result<(), String> {
    let pair = pair(USUAL_MTU)?;
    let bind = || XdpIo::bind("xdp://va/0.0.0.0:0", XdpConfig::default()).map(drop);
    starling_netns::inside(&pair.a, bind).map_err(|error| error.to_string())
}

/// The benchmarks of a suite over a veth pair.
pub fn benchmarks(suite: Suite) -> Vec<Benchmark> {
    let mut benchmarks = endpoint::on::<XdpIo>(suite);
    match suite {
        Suite::Rtt => {
            benchmarks.insert(0, Benchmark::new("xdp", "raw", "", xdp::latencies));
            benchmarks.push(named(
                "veth",
                Benchmark::new("udp", "raw", "", udp::latencies),
            ));
            benchmarks.extend(named_all("veth", endpoint::on::<UdpIo>(suite)));
        }
        Suite::Rate => {
            benchmarks.insert(0, Benchmark::new("xdp", "raw", "", xdp::rate));
            benchmarks.extend(named_all("veth", endpoint::on::<UdpIo>(suite)));
        }
        Suite::Large => {
            let of_mtu = |mtu| {
                let mut benchmarks = endpoint::on::<XdpIo>(suite);
                benchmarks.extend(endpoint::on::<UdpIo>(suite));
                benchmarks.extend(streams());
                let mtu_case = format!("veth mtu={mtu}");
                let named = named_all(&mtu_case, benchmarks);
                let attached = named_all(&format!("{mtu_case} attached"), streams());
                let attached = attached.into_iter().map(move |benchmark| {
                    let measure = beside_devices(benchmark.measure);
                    Benchmark {
                        measure,
                        ..benchmark
                    }
                });
                let named = named.into_iter().chain(attached);
                named.map(move |benchmark| over(mtu, benchmark))
            };
            return MTUS.into_iter().flat_map(of_mtu).collect();
        }
        // Their results depend on the device only by its speed.
        Suite::Sessions
        | Suite::Factors
        | Suite::Dispatch
        | Suite::Interference
        | Suite::Channel
        | Suite::Streams
        | Suite::Observe
        | Suite::Managed
        | Suite::Policies => return vec![],
        Suite::Breakdown => {}
        Suite::Slo => benchmarks = slo::benchmarks_over_veth(),
    }
    let over = |benchmark| over(USUAL_MTU, benchmark);
    benchmarks.into_iter().map(over).collect()
}

/// Large requests over TCP: a stream for each size.
fn streams() -> Vec<Benchmark> {
    let waiting = tcp::Waiting::Polling;
    let stream = |size| {
        let case = format!("{} {}", size_case(size), waiting.name());
        let measure = move |context: &Context| tcp::throughput(context, size, waiting);
        Benchmark::new("tcp", "tcp", case, measure)
    };
    LARGE_BYTES.map(stream).into()
}

/// Measures while both interfaces have a device of AF_XDP, and so its program.
fn beside_devices(mut measure: Measure) -> Measure {
    Box::new(move |context| {
        let pair = context.launcher.pair();
        let pair = pair.expect("devices are only on interfaces of a pair");
        let (client, server) = (context.network.client(), context.network.server());
        let _client = <XdpIo as Device>::client(client).map_err(failed)?;
        let bind = || <XdpIo as Device>::server(server).map_err(failed);
        let _server = starling_netns::inside(&pair.b, bind)?;
        measure(context)
    })
}

/// The benchmark with one more word in its case.
fn named(word: &str, benchmark: Benchmark) -> Benchmark {
    let case = format!("{} {word}", benchmark.case);
    Benchmark {
        case: case.trim_start().to_owned(),
        ..benchmark
    }
}

fn named_all(word: &str, benchmarks: Vec<Benchmark>) -> Vec<Benchmark> {
    benchmarks
        .into_iter()
        .map(|benchmark| named(word, benchmark))
        .collect()
}

/// The benchmark, measured over a pair of this MTU.
fn over(mtu: u32, benchmark: Benchmark) -> Benchmark {
    let mut measure = benchmark.measure;
    let measure = move |context: &Context| {
        let what = "making a veth pair";
        let pair =
            pair(mtu).map_err(|problem| BenchError::io(what)(std::io::Error::other(problem)))?;
        let context = Context {
            launcher: context.launcher.clone().with_servers_in(Arc::clone(&pair)),
            network: Network::Veth,
            ..context.clone()
        };
        let _guard = NamespaceGuard::in_namespace(&pair.a)
            .map_err(BenchError::io("entering a namespace"))?;
        measure(&context)
    };
    Benchmark {
        measure: Box::new(measure),
        ..benchmark
    }
}

/// The pair of this MTU; the first call makes it.
fn pair(mtu: u32) -> Result<Arc<Pair>, String> {
    static PAIRS: Mutex<Vec<(u32, Arc<Pair>)>> = Mutex::new(Vec::new());
    let mut pairs = PAIRS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, pair)) = pairs.iter().find(|(known, _)| *known == mtu) {
        return Ok(Arc::clone(pair));
    }
    let pair = Arc::new(Pair::with_shape(Shape {
        mtu,
        ..Shape::default()
    })?);
    pairs.push((mtu, Arc::clone(&pair)));
    Ok(pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_names_the_network() {
        let names =
            |suite| -> Vec<String> { benchmarks(suite).iter().map(ToString::to_string).collect() };
        assert_eq!(
            names(Suite::Rtt),
            [
                "raw/xdp",
                "starling/xdp",
                "raw/udp veth",
                "starling/udp veth"
            ]
        );
        let large = names(Suite::Large);
        assert_eq!(large.len(), MTUS.len() * 4 * LARGE_BYTES.len());
        assert_eq!(large[0], "starling/xdp 64KiB veth mtu=1500");
        assert_eq!(large[11], "tcp/tcp 8MiB polling veth mtu=1500 attached");
        assert_eq!(large[20], "tcp/tcp 8MiB polling veth mtu=9000");
        assert!(names(Suite::Sessions).is_empty());
    }
}
