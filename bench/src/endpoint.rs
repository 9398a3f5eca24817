//! Starling's benchmarks through the raw interface of an endpoint: calls with a continuation,
//! inline handlers, one thread on each side that polls without end.
//!
//! | module | holds |
//! |---|---|
//! | `settings` | what the suites change in an endpoint's configuration |
//! | `server` | the server's process |
//! | `caller` | a client's endpoint, which checks its answers; one call at a time |
//! | `load` | many calls in flight, on any number of sessions |
//! | `dispatch` | what a worker costs the dispatch thread |
//! | `interference` | short requests beside long ones |
//! | `memory` | the memory of an idle session, measured from outside |

pub(crate) mod caller;
mod dispatch;
mod interference;
mod load;
pub(crate) mod memory;
mod server;
mod settings;

use starling_endpoint::{Idle, WorkerConfig};
use starling_io_shm::ShmIo;
use starling_io_tcp::TcpIo;
use starling_io_udp::UdpIo;

use crate::benchmark::Benchmark;
use crate::breakdown;
use crate::device::{Device, SYSTEM};
use crate::error::BenchError;
use crate::floor::IN_FLIGHT;
use crate::process::{begin_client, begin_server};
use crate::suite::{LARGE_BYTES, SESSIONS, Suite, size_case};

use caller::Source;
use load::Shape;
use memory::Side;
use settings::{Factor, Settings};

/// Sizes of the batches that requests are issued in (eRPC, section 6.2, figure 4).
const BATCHES: [u64; 3] = [1, 3, 11];

/// Requests at a worker at a time, at most.
const DEPTHS: [u8; 3] = [1, 2, 8];

/// The size of the batches in the suite of factors, as in eRPC's table 3.
const FACTORS_BATCH: u64 = 3;

/// Requests a second in the suite `interference`: a third of the rate of one thread that is client
/// and server, without bundling.
const UDP_RATE: f64 = 40_000.0;

/// The same over shared memory, where the long requests are most of the work: a fifth of the time
/// of the thread that runs them.
const SHM_RATE: f64 = 400_000.0;

/// Starling's benchmarks of a suite, on each device of this host.
pub fn benchmarks(suite: Suite) -> Vec<Benchmark> {
    match suite {
        Suite::Dispatch => return workers(),
        Suite::Interference => {
            let mut benchmarks = interference::benchmarks::<UdpIo>(UDP_RATE);
            benchmarks.extend(interference::benchmarks::<ShmIo>(SHM_RATE));
            return benchmarks;
        }
        _ => {}
    }
    let mut benchmarks = on::<UdpIo>(suite);
    benchmarks.extend(on::<ShmIo>(suite));
    if matches!(suite, Suite::Rtt | Suite::Rate | Suite::Large) {
        benchmarks.extend(on::<TcpIo>(suite));
    }
    benchmarks
}

/// Runs the process of a role that this module has. `None`: the role is not one of them.
pub fn serve(role: &str, arguments: &[String]) -> Option<Result<(), BenchError>> {
    match role {
        server::ROLE => Some(begin_server(role, arguments).and_then(|rest| server::serve(&rest))),
        memory::ROLE => Some(begin_client(role, arguments).and_then(|rest| memory::hold(&rest))),
        _ => None,
    }
}

pub(crate) fn on<I: Device>(suite: Suite) -> Vec<Benchmark> {
    match suite {
        Suite::Rtt => vec![Benchmark::new(
            I::SCHEME,
            SYSTEM,
            "",
            caller::latencies::<I>,
        )],
        Suite::Rate => {
            let mut benchmarks = vec![rate::<I>("", &Settings::one_session(), Shape::default())];
            benchmarks.extend(BATCHES.map(|batch| {
                let shape = Shape {
                    batch,
                    ..Shape::default()
                };
                rate::<I>(&format!("batch={batch}"), &Settings::one_session(), shape)
            }));
            benchmarks
        }
        Suite::Large => LARGE_BYTES
            .into_iter()
            .flat_map(|size| large::<I>(SYSTEM, size))
            .collect(),
        Suite::Sessions => SESSIONS.into_iter().flat_map(sessions::<I>).collect(),
        Suite::Factors => {
            let shape = Shape {
                batch: FACTORS_BATCH,
                ..Shape::default()
            };
            let mut benchmarks = vec![rate::<I>("baseline", &Settings::one_session(), shape)];
            benchmarks.extend(Factor::ALL.map(|factor| {
                let settings = Settings {
                    off: Some(factor),
                    ..Settings::one_session()
                };
                rate::<I>(&format!("off={}", factor.name()), &settings, shape)
            }));
            benchmarks
        }
        Suite::Breakdown => vec![breakdown::benchmark::<I>()],
        // Their benchmarks differ by more than the device.
        Suite::Dispatch
        | Suite::Slo
        | Suite::Interference
        | Suite::Channel
        | Suite::Streams
        | Suite::Observe
        | Suite::Managed
        | Suite::Policies => vec![],
    }
}

/// Workers of several depths and idle policies.
fn workers() -> Vec<Benchmark> {
    let usual = WorkerConfig::new(1, 1).idle;
    let idle = [("spin", Idle::Spin), ("adaptive", usual)];
    let cases = DEPTHS
        .into_iter()
        .flat_map(|depth| idle.map(|(name, idle)| (depth, name, idle)));
    cases
        .map(|(depth, name, idle)| {
            let case = format!("depth={depth} {name}");
            Benchmark::new(ShmIo::SCHEME, SYSTEM, case, move |context| {
                dispatch::cost(context, depth, idle)
            })
        })
        .collect()
}

fn rate<I: Device>(case: &str, settings: &Settings, shape: Shape) -> Benchmark {
    let settings = *settings;
    Benchmark::new(I::SCHEME, SYSTEM, case, move |context| {
        load::rate::<I>(context, &settings, shape)
    })
}

/// The rate with [`IN_FLIGHT`] calls in flight, under another name than the suite `rate` has for it.
pub(crate) fn rate_in_flight<I: Device>(system: &'static str) -> Benchmark {
    let case = format!("in-flight={IN_FLIGHT}");
    Benchmark {
        system,
        ..rate::<I>(&case, &Settings::one_session(), Shape::default())
    }
}

/// Requests of so many bytes, from the device's memory, and from ordinary memory where that differs.
pub(crate) fn large<I: Device>(system: &'static str, size: usize) -> Vec<Benchmark> {
    // Over other devices that row says nothing: they copy, or have no such memory here.
    let copied = (I::SCHEME == ShmIo::SCHEME).then_some(Source::Ordinary);
    let sources = [Source::Device].into_iter().chain(copied);
    let of_source = |source: Source| {
        let case = format!("{}{}", size_case(size), source.suffix());
        Benchmark::new(I::SCHEME, system, case, move |context| {
            caller::throughput::<I>(context, size, source)
        })
    };
    sources.map(of_source).collect()
}

/// The rate over `sessions` sessions, and the memory of either side if there are others to
/// compare one with.
fn sessions<I: Device>(sessions: usize) -> Vec<Benchmark> {
    let case = format!("sessions={sessions}");
    // All 60 requests have to fit into the slots of the sessions.
    let settings = if sessions as u64 * u64::from(Settings::default().slots) < IN_FLIGHT {
        Settings::one_session()
    } else {
        Settings::default()
    };
    let shape = Shape {
        sessions,
        ..Shape::default()
    };
    let mut benchmarks = vec![rate::<I>(&case, &settings, shape)];
    if sessions > 1 {
        benchmarks.extend([Side::Client, Side::Server].map(|side| {
            Benchmark::new(
                I::SCHEME,
                SYSTEM,
                format!("{case} {}", side.name()),
                move |context| memory::of_session::<I>(context, sessions, side),
            )
        }));
    }
    benchmarks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(suite: Suite) -> Vec<String> {
        let benchmarks = benchmarks(suite);
        benchmarks.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_suite_has_the_same_benchmarks_over_udp_and_shm() {
        // The suites of workers are not about a device.
        for suite in Suite::ALL
            .into_iter()
            .filter(|suite| !matches!(suite, Suite::Dispatch | Suite::Slo | Suite::Interference))
        {
            let mut names = names(suite);
            // Over shared memory the large requests are measured from ordinary memory, too.
            names.retain(|name| !name.ends_with(" copied"));
            // A few suites have it beside.
            names.retain(|name| !name.starts_with("starling/tcp"));
            for scheme in ["starling/udp", "starling/shm"] {
                let of_scheme = names.iter().filter(|name| name.starts_with(scheme));
                assert_eq!(of_scheme.count() * 2, names.len(), "{names:?}");
            }
        }
    }

    #[test]
    fn a_case_names_what_varies() {
        let of_rtt = ["starling/udp", "starling/shm", "starling/tcp"];
        assert_eq!(names(Suite::Rtt), of_rtt);
        assert_eq!(
            names(Suite::Rate)[..4],
            [
                "starling/udp",
                "starling/udp batch=1",
                "starling/udp batch=3",
                "starling/udp batch=11",
            ]
        );
        assert_eq!(
            names(Suite::Large)[3..9],
            [
                "starling/shm 64KiB",
                "starling/shm 64KiB copied",
                "starling/shm 1MiB",
                "starling/shm 1MiB copied",
                "starling/shm 8MiB",
                "starling/shm 8MiB copied",
            ]
        );
        assert_eq!(
            names(Suite::Sessions)[..4],
            [
                "starling/udp sessions=1",
                "starling/udp sessions=100",
                "starling/udp sessions=100 client",
                "starling/udp sessions=100 server",
            ]
        );
        let factors = names(Suite::Factors);
        assert_eq!(factors[0], "starling/udp baseline");
        assert!(factors.contains(&"starling/shm off=congestion_control".into()));
        assert_eq!(factors.len(), 2 * (1 + Factor::ALL.len()));
    }

    #[test]
    fn an_unknown_role_is_left_to_other_modules() {
        assert!(serve("somebody-else", &[]).is_none());
    }
}
