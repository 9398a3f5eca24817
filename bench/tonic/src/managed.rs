//! The suite `managed` over tonic: alone, and through a proxy at each end, as a service mesh has it.
//!
//! ```text
//!  proxies=0:  client ──────── tcp ───────▶ server
//!  proxies=2:  client ─ tcp ─▶ Envoy ─ tcp ─▶ Envoy ─ tcp ─▶ server
//! ```
//!
//! Proxies stand beside if they are found: see [`proxy`]. They have both cores. Their processor time is counted with
//! that of client and server.

pub(crate) mod proxy;

use std::io::{copy, sink, stdin};
use std::net::{SocketAddr, TcpListener};

use starling_bench::callers::{Callers, EchoStub};
use starling_bench::floor::SMALL_BYTES;
use starling_bench::managed::CALLERS;
use starling_bench::managed::goodput::{REQUESTS, Requests};
use starling_bench::pin::{pin_to, two_cores};
use starling_bench::process::{RoleProcess, announce};
use starling_bench::{BenchError, Benchmark, Context, Sample};
use tokio::runtime::Handle;
use tonic::transport::Channel;

use self::proxy::{Kind, Policy, Proxy};
use crate::api::bench::Payload;
use crate::api::bench::echo_client::EchoClient;
use crate::channel::{self, Stub, measure_at};
use crate::{SYSTEM, failed};

/// Role of a process that runs a proxy. Its arguments: which, the path of its program, its policy, the address behind
/// it, and the two cores.
pub(crate) const ROLE: &str = "proxy";

pub(crate) fn benchmarks() -> Vec<Benchmark> {
    let alone = CALLERS.map(|callers| {
        let case = format!("proxies=0 {}", callers.case());
        Benchmark::new("grpc", SYSTEM, case, move |context| {
            channel::measure(context, callers)
        })
    });
    let mut benchmarks = Vec::from(alone);
    for kind in Kind::ALL {
        // Nobody waits for proxies that are not there.
        if let Some(program) = kind.find() {
            benchmarks.extend(through(kind, &program.to_string_lossy()));
        }
    }
    benchmarks
}

/// The benchmarks through two proxies: of Envoy all, of others the rate.
fn through(kind: Kind, program: &str) -> Vec<Benchmark> {
    let mut benchmarks = Vec::new();
    let path = move |context: &Context, program: &str| Path::start(context, kind, program);
    for callers in CALLERS {
        let case = format!("{}=2 {}", kind.case(), callers.case());
        let program = program.to_owned();
        if kind != Kind::Envoy && matches!(callers, Callers::Threads(_)) {
            continue;
        }
        benchmarks.push(Benchmark::new("grpc", SYSTEM, case, move |context| {
            let path = path(context, &program)?;
            measure_at(
                context,
                &path.processes(),
                path.address(),
                callers,
                Stub::new,
            )
        }));
    }
    for requests in REQUESTS.into_iter().filter(|_| kind == Kind::Envoy) {
        let case = format!("{}=2 {}", kind.case(), requests.case());
        let program = program.to_owned();
        benchmarks.push(Benchmark::new("grpc", SYSTEM, case, move |context| {
            goodput(context, &path(context, &program)?, requests)
        }));
    }
    benchmarks
}

/// A server with two proxies before it.
struct Path {
    server: RoleProcess,
    near_server: RoleProcess,
    near_client: RoleProcess,
}

impl Path {
    fn start(context: &Context, kind: Kind, program: &str) -> Result<Self, BenchError> {
        let server = context.launcher.start(channel::ROLE, &[])?;
        let proxy = |upstream| start_proxy(context, (kind, program), Policy::None, upstream);
        let near_server = proxy(&server)?;
        let near_client = proxy(&near_server)?;
        Ok(Self {
            server,
            near_server,
            near_client,
        })
    }

    fn address(&self) -> &str {
        self.near_client.address()
    }

    fn processes(&self) -> [&RoleProcess; 3] {
        [&self.server, &self.near_server, &self.near_client]
    }
}

/// Starts a proxy, of a kind and by the path of its program, before what listens at an address.
pub(crate) fn start_proxy(
    context: &Context,
    (kind, program): (Kind, &str),
    policy: Policy,
    upstream: &RoleProcess,
) -> Result<RoleProcess, BenchError> {
    let upstream = upstream.address().trim_start_matches("http://");
    let cores = [context.cores.client, context.cores.server].map(|core| core.to_string());
    let [first, second] = &cores;
    let arguments = [
        kind.program(),
        program,
        policy.name(),
        upstream,
        first,
        second,
    ];
    context.launcher.start_client(ROLE, &arguments)
}

fn goodput(context: &Context, path: &Path, requests: Requests) -> Result<Sample, BenchError> {
    let callers = requests.callers();
    let stub = |channel: Channel, runtime: &Handle| SinkStub {
        client: EchoClient::new(channel),
        runtime: runtime.clone(),
        bytes: requests.bytes,
    };
    let sample = measure_at(context, &path.processes(), path.address(), callers, stub)?;
    Ok(requests.goodput(&sample))
}

#[derive(Clone)]
struct SinkStub {
    client: EchoClient<Channel>,
    /// For plain threads.
    runtime: Handle,
    bytes: usize,
}

impl EchoStub for SinkStub {
    fn wait(&mut self, number: u64) -> Result<(), BenchError> {
        let runtime = self.runtime.clone();
        runtime.block_on(self.call(number))
    }

    async fn call(&mut self, _number: u64) -> Result<(), BenchError> {
        let data = vec![7; self.bytes];
        let answer = self.client.sink(Payload { data }).await.map_err(failed)?;
        match answer.into_inner().data.len() {
            SMALL_BYTES => Ok(()),
            bytes => Err(BenchError::WrongEcho {
                scheme: "grpc",
                system: SYSTEM,
                what: format!("a request was answered with {bytes} bytes"),
            }),
        }
    }
}

/// Runs a proxy until the standard input ends.
pub(crate) fn serve(arguments: &[String]) -> Result<(), BenchError> {
    let bad = || BenchError::BadRoleArguments {
        role: ROLE.into(),
        why: "expected a kind, a path, a policy, an address, and the numbers of two cores".into(),
    };
    let [kind, program, policy, upstream, cores @ ..] = arguments else {
        return Err(bad());
    };
    let kind = Kind::named(kind).ok_or_else(bad)?;
    let policy = Policy::named(policy).ok_or_else(bad)?;
    let upstream: SocketAddr = upstream.parse().map_err(|_| bad())?;
    pin_to(&two_cores(cores).ok_or_else(bad)?)?;
    let listen = free_address()?;
    let mut proxy = Proxy::start((kind, program), policy, listen, upstream)?;
    proxy.wait_until_it_listens(listen)?;
    announce(&format!("http://{listen}"))?;
    // An error ends the proxy just as the end of the input does.
    let _ = copy(&mut stdin(), &mut sink());
    Ok(())
}

/// A port that nobody has, for as long as nobody takes it.
fn free_address() -> Result<SocketAddr, BenchError> {
    let listener = TcpListener::bind("127.0.0.1:0");
    let address = listener.and_then(|listener| listener.local_addr());
    address.map_err(BenchError::io("looking for a free port"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tonic_has_a_benchmark_of_all_callers_alone_and_through_proxies() {
        let names: Vec<String> = benchmarks().iter().map(ToString::to_string).collect();
        assert!(names.len() >= CALLERS.len());
        assert_eq!(names[0], "tonic/grpc proxies=0 threads=1");
        let names = |kind| {
            let through = through(kind, "a-proxy");
            through.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let envoy = names(Kind::Envoy);
        assert_eq!(envoy.len(), CALLERS.len() + REQUESTS.len());
        assert_eq!(envoy[0], "tonic/grpc proxies=2 threads=1");
        assert_eq!(envoy[3], "tonic/grpc proxies=2 requests=8KiB");
        let rate = "tonic/grpc nginx=2 current-thread tasks=128";
        assert_eq!(names(Kind::Nginx), [rate]);
    }

    #[test]
    fn the_role_wants_its_arguments() {
        let wrong = ["envoy", "envoy", "none", "here", "1", "2"].map(String::from);
        for arguments in [&[][..], &wrong[..1], &wrong] {
            let error = serve(arguments).unwrap_err();
            assert!(error.to_string().contains(ROLE), "{error}");
        }
    }
}
