//! What policies of a service cost the calls that pass them, and what it costs to change them live (mRPC, figures 6
//! and 7).
//!
//! ```text
//!  benchmark ── attach, detach ──▶ service          turns of 20 ms: without, with, with, without, ...
//!  callers ─── calls, always ────▶ service ──▶ server of hotel.Reservation
//! ```
//!
//! Callers call without a break, 128 at once; the policy comes and goes under them, so that nothing else differs
//! between the turns. One request of 100 has a customer whom the access control refuses; only the others count.
//!
//! The case `live` has two applications, with 4 calls at once each. A policy of the first one is attached, configured,
//! upgraded and detached, a hundred times each. A call that fails ends the benchmark. Its time line has the calls that
//! its figures are of. The case `live-adapter` replaces the first one's adapter a hundred times instead; its server is
//! in no service, and reached over UDP.

mod beside;
mod load;

pub use load::{HOTEL, ONE_OF, customer};

use std::thread::sleep;
use std::time::{Duration, Instant};

use starling::managed::{AdapterUpgrade, OperatorClient, PolicyChange, SchemaAddition};
use starling::{CallOptions, Channel, Server};
use starling_sample_services::api::hotel::RESERVATION_SERVICE;
use starling_sample_services::hotel;

use self::load::Load;
use crate::benchmark::{Benchmark, Context};
use crate::device::failed;
use crate::error::BenchError;
use crate::managed::start_service;
use crate::metric::{Metric, Sample};
use crate::process::{RoleProcess, announce, begin_client, begin_server};
use crate::timeline::{Change, Timeline, now_ns};

/// Role of a server. Its argument: the name of its service, or nothing if it has none.
const SERVER_ROLE: &str = "starling-hotel";
/// Role of a client. Its arguments: the name of its service, and the server. A line of its input asks for its counts
/// since the last one.
const CLIENT_ROLE: &str = "starling-guest";
/// The same, with large requests.
const BULK_ROLE: &str = "starling-bulk";

/// The system in rows.
const MANAGED: &str = "managed";

const TURN: Duration = Duration::from_millis(20);
/// From a change of policies to the turn that it is for.
const SETTLE: Duration = Duration::from_millis(2);
/// Calls at once.
pub const IN_FLIGHT: usize = 128;
const IN_FLIGHT_LIVE: usize = 4;
/// How often each change is made, and how often if a measurement is so short that its figures mean nothing.
const ROUNDS: usize = 100;
const ROUNDS_OF_SHORT: usize = 5;
const SHORT_SECONDS: f64 = 0.1;
/// How long the callers are watched around a change.
const WATCHED: Duration = Duration::from_millis(20);

/// The policies that are measured, and their settings.
const POLICIES: [(&str, &str); 3] = [
    ("null", "{}"),
    ("rate-limit", "{}"),
    (
        "access-control",
        r#"{"deny": "request.customerName in ['Mallory', 'Trudy']"}"#,
    ),
];

pub(crate) fn benchmarks() -> Vec<Benchmark> {
    let cost = POLICIES.map(|(kind, settings)| {
        Benchmark::new("udp", MANAGED, kind, move |context| {
            cost(context, kind, settings)
        })
    });
    let live = LIVE.iter().map(|case| {
        Benchmark::new("udp", MANAGED, case.name, move |context| {
            live(context, case)
        })
    });
    cost.into_iter()
        .chain([beside::benchmark()])
        .chain(live)
        .collect()
}

/// Runs the process of a role that this module has. `None`: the role is not one of them.
pub(crate) fn serve(role: &str, arguments: &[String]) -> Option<Result<(), BenchError>> {
    match role {
        SERVER_ROLE => Some(begin_server(role, arguments).and_then(|rest| serve_hotel(&rest))),
        CLIENT_ROLE => Some(begin_client(role, arguments).and_then(|rest| {
            call_always(CLIENT_ROLE, &rest, |service, server| {
                load::guests(service, server, IN_FLIGHT_LIVE)
            })
        })),
        BULK_ROLE => Some(
            begin_client(role, arguments)
                .and_then(|rest| call_always(BULK_ROLE, &rest, beside::load)),
        ),
        _ => None,
    }
}

fn serve_hotel(arguments: &[String]) -> Result<(), BenchError> {
    let [service] = arguments else {
        return Err(bad(SERVER_ROLE, "expected the name of a service"));
    };
    let builder = Server::builder().add_service(hotel::server());
    let builder = match service.is_empty() {
        true => builder.direct(),
        false => builder.managed_by(service),
    };
    let server = builder.bind("udp://127.0.0.1:0").map_err(failed)?.build();
    let server = server.map_err(failed)?.spawn().map_err(failed)?;
    announce(server.address())?;
    server.wait().map(drop).map_err(failed)
}

/// A client whose arguments are its service and the server.
fn call_always(
    role: &str,
    arguments: &[String],
    load: impl FnOnce(&str, &str) -> Result<Load, BenchError>,
) -> Result<(), BenchError> {
    let [service, server] = arguments else {
        return Err(bad(role, "expected a service and an address"));
    };
    load::serve(load(service, server)?, server)
}

fn bad(role: &str, why: &str) -> BenchError {
    BenchError::BadRoleArguments {
        role: role.into(),
        why: why.into(),
    }
}

/// The operator of a service.
struct Operator(OperatorClient<Channel>);

impl Operator {
    /// One that has made the schema known.
    fn of(service: &RoleProcess) -> Result<Self, BenchError> {
        let address = format!("shm://{}.control", service.address());
        let channel = Channel::builder(&address).direct().lazy().map_err(failed)?;
        let options = CallOptions::with_timeout(Duration::from_secs(10));
        let client = OperatorClient::new(channel).with_options(options);
        let schema = SchemaAddition::new().with_schema(RESERVATION_SERVICE.schema);
        client.add_schema(&schema).wait().map_err(failed)?;
        Ok(Self(client))
    }

    fn attach(&self, policy: &str) -> Result<(), BenchError> {
        let change = PolicyChange::new().with_what(policy);
        self.0.attach(&change).wait().map(drop).map_err(failed)
    }

    fn detach(&self, name: &str) -> Result<(), BenchError> {
        let change = PolicyChange::new().with_what(name);
        self.0.detach(&change).wait().map(drop).map_err(failed)
    }

    /// The change of the case `live-adapter`.
    fn upgrade_adapter(&self, _: &str, process: u32) -> Result<(), BenchError> {
        let upgrade = AdapterUpgrade::new().with_kind("udp").with_process(process);
        let upgraded = self.0.upgrade_adapters(&upgrade).wait().map_err(failed)?;
        let stayed = upgraded.message().stayed();
        match stayed.iter().next() {
            None => Ok(()),
            Some(why) => Err(failed(why)),
        }
    }

    /// One of the changes of the case `live`.
    fn change(&self, what: &str, process: u32) -> Result<(), BenchError> {
        let policy = |burst: usize| {
            format!(
                r#"{{"name":"live","kind":"rate-limit","for":{{"process":{process}}},"settings":{{"burst":{burst}}}}}"#
            )
        };
        let upgraded = PolicyChange::new().with_what("live");
        match what {
            "attach" => self.attach(&policy(1)),
            "configure" => {
                let change = PolicyChange::new().with_what(&policy(2));
                self.0.configure(&change).wait().map(drop).map_err(failed)
            }
            "upgrade" => self.0.upgrade(&upgraded).wait().map(drop).map_err(failed),
            _ => self.detach("live"),
        }
    }
}

/// The rate of calls with something in their way, of that without, and what it costs a call, in ns. `rate` measures one
/// of both.
pub fn in_turns(
    seconds: f64,
    mut rate: impl FnMut(bool) -> Result<f64, BenchError>,
) -> Result<Sample, BenchError> {
    rate(true)?;
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let (mut ratios, mut costs, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    while ratios.len() < 5 || Instant::now() < until {
        let mut pair = [0.0; 2];
        for with in [[false, true], [true, false]][ratios.len() % 2] {
            pair[usize::from(with)] = rate(with)?;
        }
        let [without, with] = pair;
        ratios.push(with / without * 100.0);
        costs.push((1.0 / with - 1.0 / without) * 1e9);
        rates.push(with);
    }
    Ok(vec![
        (Metric::Rate, median(rates)),
        (Metric::OfPlain, median(ratios)),
        (Metric::Cost, median(costs)),
    ])
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The rate with a policy, of that without, in turns.
fn cost(context: &Context, kind: &str, settings: &str) -> Result<Sample, BenchError> {
    let service = start_service(&context.launcher, context.cores)?;
    let operator = Operator::of(&service)?;
    // That of all managed benchmarks.
    operator.detach("nothing")?;
    operator.detach("nothing-there")?;
    let server = context.launcher.start(SERVER_ROLE, &[service.address()])?;
    let policy = format!(
        r#"{{"name":"measured","kind":"{kind}","for":{{"methods":["hotel.Reservation/Make"]}},"settings":{settings}}}"#
    );
    let load = load::guests(service.address(), server.address(), IN_FLIGHT)?;
    let rate_in_turn = |with: bool| {
        if with {
            operator.attach(&policy)?;
        }
        sleep(SETTLE);
        load.take()?;
        let begun = Instant::now();
        sleep(TURN);
        let passed = load.take()?.passed as f64;
        let rate = passed / begun.elapsed().as_secs_f64();
        if with {
            operator.detach("measured")?;
        }
        Ok::<f64, BenchError>(rate)
    };
    let sample = in_turns(context.seconds, rate_in_turn)?;
    load.stop()?;
    Ok(sample)
}

/// What is changed under load.
struct Live {
    name: &'static str,
    /// In this order.
    changes: &'static [&'static str],
    change: fn(&Operator, &str, u32) -> Result<(), BenchError>,
    /// Whether the applications' server is in the service, too.
    is_server_managed: bool,
    has_timeline: bool,
}

const LIVE: [Live; 2] = [
    Live {
        name: "live",
        changes: &["attach", "configure", "upgrade", "detach"],
        change: Operator::change,
        is_server_managed: true,
        has_timeline: true,
    },
    Live {
        name: "live-adapter",
        changes: &["replace"],
        change: Operator::upgrade_adapter,
        is_server_managed: false,
        has_timeline: false,
    },
];

/// Two applications, of which one has something changed.
fn live(context: &Context, case: &Live) -> Result<Sample, BenchError> {
    let service = start_service(&context.launcher, context.cores)?;
    let operator = Operator::of(&service)?;
    let of_server = if case.is_server_managed {
        service.address()
    } else {
        ""
    };
    let server = context.launcher.start(SERVER_ROLE, &[of_server])?;
    let start = || {
        let arguments = [service.address(), server.address()];
        context.launcher.start_client(CLIENT_ROLE, &arguments)
    };
    let (mut changed, mut other) = (start()?, start()?);
    let process = changed.pid();
    let rounds = match context.seconds < SHORT_SECONDS {
        true => ROUNDS_OF_SHORT,
        false => ROUNDS,
    };
    let (mut gaps, mut plain_gaps, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let (begun_ns, mut changes, mut unchanged_ns) = (now_ns(), Vec::new(), Vec::new());
    for number in 0..case.changes.len() * rounds {
        let (what, mut passed) = (case.changes[number % case.changes.len()], [0.0; 2]);
        for with in [[false, true], [true, false]][number % 2] {
            load::ask(&mut changed)?;
            load::ask(&mut other)?;
            let (at_ns, begun) = (now_ns(), Instant::now());
            if with {
                (case.change)(&operator, what, process)?;
            }
            let took_ns = begun.elapsed().as_nanos() as u64;
            sleep(WATCHED.saturating_sub(begun.elapsed()));
            let gap_ns = load::ask(&mut changed)?.gap_ns;
            if with {
                gaps.push(gap_ns as f64);
                changes.push(Change {
                    what,
                    at_ns,
                    took_ns,
                    gap_ns,
                });
            } else {
                plain_gaps.push(gap_ns as f64);
                unchanged_ns.push(at_ns);
            }
            let of_other = load::ask(&mut other)?.passed as f64;
            passed[usize::from(with)] = of_other / begun.elapsed().as_secs_f64();
        }
        ratios.push(passed[1] / passed[0] * 100.0);
    }
    let applications = [
        ("changed", load::intervals(&mut changed)?),
        ("other", load::intervals(&mut other)?),
    ];
    let period = (begun_ns, now_ns());
    let timeline = Timeline::new(period, &applications, changes, &unchanged_ns);
    if case.has_timeline {
        context.timeline.keep(timeline);
    }
    let more_ns = median(gaps.clone()) - median(plain_gaps);
    Ok(vec![
        (Metric::Gap, median(gaps)),
        (Metric::LongerGap, more_ns),
        (Metric::OfPlain, median(ratios)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_has_a_benchmark_and_can_be_attached() {
        let names: Vec<_> = benchmarks().iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), POLICIES.len() + 3);
        assert_eq!(names[0], "managed/udp null");
        assert_eq!(names[3], "managed/udp small-first");
        assert_eq!(names[4], "managed/udp live");
        assert_eq!(names[5], "managed/udp live-adapter");
        for (kind, settings) in POLICIES {
            let policy = format!(
                r#"[{{"name":"a","kind":"{kind}","for":{{"methods":["a.A/B"]}},"settings":{settings}}}]"#
            );
            assert!(
                starling_service::parse_policies(&policy).is_ok(),
                "{policy}"
            );
        }
    }

    #[test]
    fn roles_want_their_arguments_and_others_are_left_alone() {
        assert!(serve("somebody-else", &[]).is_none());
        let error = serve_hotel(&[]).unwrap_err();
        assert!(error.to_string().contains(SERVER_ROLE), "{error}");
        let error = call_always(CLIENT_ROLE, &[], beside::load).err().unwrap();
        assert!(error.to_string().contains(CLIENT_ROLE), "{error}");
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(Vec::new()), 0.0);
    }
}
