//! What observation costs: the rate of small calls with metrics, or with traces, beside the same calls without, in
//! turns of a few milliseconds.
//!
//! | what | belongs to | the two that are compared |
//! |---|---|---|
//! | metrics | a channel, a server | have a client process in common, with one runtime, and a server process |
//! | traces | a process | have processes of their own |
//!
//! ```text
//!  benchmark                      clients                    servers
//!    turns: without, with, ─────▶ one without ─────────────▶ one without
//!           with, without, ...  └▶ one that is observed ───▶ one that is observed, too
//! ```
//!
//! Traces: one call of 1,000 begins one, and a subscriber takes its spans and keeps nothing.

use std::io::{BufRead, Write, stdin, stdout};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use starling::{Caller, Channel, Endpoint, LocalChannel, Server};
use starling_sample_services::api::bench::EchoClient;
use starling_sample_services::echo;
use tokio::runtime::Runtime;

use crate::benchmark::{Benchmark, Context};
use crate::callers::Flavor;
use crate::channel::{check, request, server::address};
use crate::device::failed;
use crate::error::BenchError;
use crate::metric::{Metric, Sample};
use crate::process::{RoleProcess, announce, begin_client, begin_server};

/// Role of servers. Its arguments: the scheme, and what is observed of each server, the one after the other.
const SERVER: &str = "starling-observed";
/// Role of clients. Its arguments: the callers, and for each client what is observed and its server's address. A line
/// of its input has the client of that number call for one turn; it answers with the calls and how long the turn took,
/// in ns.
const CLIENT: &str = "starling-observing";

/// How long one turn is.
const TURN: Duration = Duration::from_millis(10);
/// Of calls that belong to no trace, this share begins one.
const SHARE_OF_ROOTS: f64 = 0.001;

/// What is observed.
const NOTHING: &str = "nothing";
const METRICS: &str = "metrics";
const TRACES: &str = "traces";

/// Who calls, by the names in cases.
const THREAD: &str = "threads=1";
const TASKS: &str = "tasks=128";
const LOCAL: &str = "local in-flight=60";

/// Tasks, and calls at once of an endpoint.
const TASK_COUNT: usize = 128;
const IN_FLIGHT: u64 = 60;

/// The benchmarks of the suite.
pub(crate) fn benchmarks() -> Vec<Benchmark> {
    let mut benchmarks = Vec::new();
    for scheme in ["udp", "shm"] {
        for callers in [THREAD, TASKS, LOCAL] {
            for what in [METRICS, TRACES] {
                let case = format!("{what} {callers}");
                benchmarks.push(Benchmark::new(scheme, "starling", case, move |context| {
                    measure(context, scheme, what, callers)
                }));
            }
        }
    }
    benchmarks
}

/// Runs the process of a role that this module has. `None`: the role is not one of them.
pub(crate) fn serve(role: &str, arguments: &[String]) -> Option<Result<(), BenchError>> {
    match role {
        SERVER => Some(begin_server(role, arguments).and_then(|rest| serve_echo(&rest))),
        CLIENT => Some(begin_client(role, arguments).and_then(|rest| call_in_turns(&rest))),
        _ => None,
    }
}

fn measure(
    context: &Context,
    scheme: &'static str,
    what: &'static str,
    callers: &'static str,
) -> Result<Sample, BenchError> {
    let start = |what: &[&str]| Processes::start(context, scheme, what, callers);
    let mut processes = match what {
        METRICS => vec![start(&[NOTHING, METRICS])?],
        _ => vec![start(&[NOTHING])?, start(&[what])?],
    };
    let period = Duration::from_secs_f64(context.seconds);
    let turn = |which: usize| match &mut processes[..] {
        [both] => both.turn(which),
        each => each[which].turn(0),
    };
    let (rate, of_plain) = turns(turn, period)?;
    Ok(vec![
        (Metric::Rate, rate),
        (Metric::OfUnobserved, of_plain * 100.0),
    ])
}

/// A process of servers and one of their clients, which are observed, or not.
struct Processes {
    clients: RoleProcess,
    _servers: RoleProcess,
}

impl Processes {
    /// For each of `what`, a server and a client of which that is observed.
    fn start(
        context: &Context,
        scheme: &str,
        what: &[&str],
        callers: &str,
    ) -> Result<Self, BenchError> {
        let mut arguments = vec![scheme];
        arguments.extend(what);
        let servers = context.launcher.start(SERVER, &arguments)?;
        let mut arguments = vec![callers];
        for (what, address) in what.iter().zip(servers.address().split(' ')) {
            arguments.extend([what, address]);
        }
        Ok(Self {
            clients: context.launcher.start_client(CLIENT, &arguments)?,
            _servers: servers,
        })
    }

    /// Has the client of this number call for one turn.
    fn turn(&mut self, number: usize) -> Result<Turn, BenchError> {
        self.clients.write_line(&number.to_string())?;
        let said = self.clients.read_line()?;
        let numbers: Vec<u64> = said.split(' ').filter_map(|it| it.parse().ok()).collect();
        let [calls, ns] = numbers[..] else {
            return Err(self.clients.unexpected(&said));
        };
        let took = Duration::from_nanos(ns);
        Ok(Turn { calls, took })
    }
}

/// What was done in a turn.
struct Turn {
    calls: u64,
    took: Duration,
}

fn bad(role: &str, why: &str) -> BenchError {
    BenchError::BadRoleArguments {
        role: role.into(),
        why: why.into(),
    }
}

/// Has what is made from now on observed.
fn observe(what: &str) {
    match what {
        METRICS => starling::metrics::enable(),
        TRACES => {
            // There is none before, for this is the process's own.
            let _ = tracing::subscriber::set_global_default(TakeAndForget);
            starling::trace::enable(SHARE_OF_ROOTS);
        }
        _ => {}
    }
}

/// Takes spans as a subscriber does that exports them, and keeps nothing.
struct TakeAndForget;

impl tracing::Subscriber for TakeAndForget {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

fn serve_echo(arguments: &[String]) -> Result<(), BenchError> {
    let [scheme, what @ ..] = arguments else {
        return Err(bad(SERVER, "expected a scheme, and what to observe"));
    };
    let mut servers = Vec::new();
    for what in what {
        observe(what);
        let address = address(scheme).ok_or_else(|| bad(SERVER, "expected `udp` or `shm`"))?;
        let address = match scheme.as_str() {
            "shm" => format!("{address}-{what}"),
            _ => address,
        };
        let builder = Server::builder().bind(&address).map_err(failed)?;
        let built = builder.add_service(echo::server()).build();
        servers.push(built.map_err(failed)?.spawn().map_err(failed)?);
    }
    let addresses: Vec<_> = servers.iter().map(|server| server.address()).collect();
    announce(&addresses.join(" "))?;
    for server in servers {
        server.wait().map_err(failed)?;
    }
    Ok(())
}

/// Makes calls for one turn. Returns how many were answered.
type Calls = Box<dyn FnMut(Duration) -> Result<u64, BenchError>>;

fn call_in_turns(arguments: &[String]) -> Result<(), BenchError> {
    let [callers, clients @ ..] = arguments else {
        return Err(bad(CLIENT, "expected the callers, and the clients"));
    };
    // One for all: only what is observed is to differ.
    let runtime = Rc::new(Flavor::CurrentThread.runtime()?);
    let mut all = Vec::new();
    for client in clients.chunks(2) {
        let [what, address] = client else {
            return Err(bad(CLIENT, "expected an address after what is observed"));
        };
        observe(what);
        let mut calls = match callers.as_str() {
            THREAD => by_thread(address),
            TASKS => by_tasks(address, Rc::clone(&runtime)),
            LOCAL => by_endpoint(address),
            _ => Err(bad(CLIENT, "the callers are unknown")),
        }?;
        // This one connects.
        calls(TURN)?;
        all.push(calls);
    }
    announce("the servers")?;
    for line in stdin().lock().lines() {
        let line = line.map_err(BenchError::io("reading from the benchmark"))?;
        let number = line.parse().ok();
        let calls = number.and_then(|number: usize| all.get_mut(number));
        let calls = calls.ok_or_else(|| bad(CLIENT, "a line has the number of a client"))?;
        let begun = Instant::now();
        let answered = calls(TURN)?;
        let took_ns = begun.elapsed().as_nanos();
        writeln!(stdout(), "{answered} {took_ns}")
            .map_err(BenchError::io("writing to the benchmark"))?;
    }
    Ok(())
}

/// A channel with an endpoint of its own, for an endpoint that channels share is measured, or not.
fn channel(address: &str) -> Result<Channel, BenchError> {
    let builder = Channel::builder(address).own_endpoint();
    builder.lazy().map_err(failed)
}

/// The observed rate, and the median of its ratio to the other one in pairs of turns. `turn` makes one: 0 is without, 1
/// is observed.
fn turns(
    mut turn: impl FnMut(usize) -> Result<Turn, BenchError>,
    period: Duration,
) -> Result<(f64, f64), BenchError> {
    let until = Instant::now() + period;
    let (mut ratios, mut observed, mut elapsed) = (Vec::new(), 0, Duration::ZERO);
    while ratios.len() < 3 || Instant::now() < until {
        let mut rates = [0.0; 2];
        // In another order each time, so that neither always follows the other.
        let order = [[0, 1], [1, 0]][ratios.len() % 2];
        for which in order {
            let Turn { calls, took } = turn(which)?;
            rates[which] = calls as f64 / took.as_secs_f64();
            if which == 1 {
                observed += calls;
                elapsed += took;
            }
        }
        ratios.push(rates[1] / rates[0]);
    }
    ratios.sort_by(f64::total_cmp);
    let rate = observed as f64 / elapsed.as_secs_f64();
    Ok((rate, ratios[ratios.len() / 2]))
}

/// One call of a client, checked.
async fn call<C: Caller>(client: &EchoClient<C>, number: u64) -> Result<(), BenchError> {
    let answer = client.call(&request(number)).await.map_err(failed)?;
    check("starling", "observe", number, answer.message().data())
}

fn by_thread(address: &str) -> Result<Calls, BenchError> {
    let client = EchoClient::new(channel(address)?);
    Ok(Box::new(move |turn| {
        let until = Instant::now() + turn;
        let mut number = 0;
        while Instant::now() < until {
            number += 1;
            let answer = client.call(&request(number)).wait().map_err(failed)?;
            check("starling", "observe", number, answer.message().data())?;
        }
        Ok(number)
    }))
}

fn by_tasks(address: &str, runtime: Rc<Runtime>) -> Result<Calls, BenchError> {
    let client = EchoClient::new(channel(address)?);
    Ok(Box::new(move |turn| {
        let until = Instant::now() + turn;
        let one = |client: EchoClient<Channel>| async move {
            let mut number = 0;
            while Instant::now() < until {
                number += 1;
                call(&client, number).await?;
            }
            Ok::<_, BenchError>(number)
        };
        let tasks: Vec<_> = (0..TASK_COUNT)
            .map(|_| runtime.spawn(one(client.clone())))
            .collect();
        let answered = runtime.block_on(join_all(tasks));
        answered
            .into_iter()
            .map(|task| task.expect("no panic"))
            .sum()
    }))
}

fn by_endpoint(address: &str) -> Result<Calls, BenchError> {
    let mut endpoint = Endpoint::client(address).map_err(failed)?;
    let client: EchoClient<LocalChannel> =
        EchoClient::new(endpoint.channel(address).map_err(failed)?);
    Ok(Box::new(move |turn| {
        let until = Instant::now() + turn;
        let calls = async {
            let mut number = 0;
            while Instant::now() < until {
                let batch = (0..IN_FLIGHT).map(|index| call(&client, number + index));
                for answer in join_all(batch).await {
                    answer?;
                }
                number += IN_FLIGHT;
            }
            Ok(number)
        };
        endpoint.block_on(calls).map_err(failed)?
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scheme_has_all_callers_with_and_without() {
        let names: Vec<_> = benchmarks().iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), 12);
        assert_eq!(names[0], "starling/udp metrics threads=1");
        assert_eq!(names[11], "starling/shm traces local in-flight=60");
    }

    #[test]
    fn turns_compare_rates() {
        let took = Duration::from_millis(10);
        let calls = [1000, 500];
        let turn = |which: usize| {
            let calls = calls[which];
            Ok(Turn { calls, took })
        };
        let (rate, ratio) = turns(turn, Duration::ZERO).expect("nothing fails");
        assert_eq!((rate, ratio), (50_000.0, 0.5));
    }

    #[test]
    fn roles_want_their_arguments_and_others_are_left_alone() {
        assert!(serve("somebody-else", &[]).is_none());
        for error in [
            serve_echo(&[]).unwrap_err(),
            call_in_turns(&[]).unwrap_err(),
        ] {
            assert!(error.to_string().contains("starling-observ"), "{error}");
        }
    }
}
