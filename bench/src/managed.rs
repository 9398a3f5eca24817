//! What it costs that a service makes the calls: the same callers directly, through one service for both ends, and
//! through two, each with one end.
//!
//! ```text
//!  services=0:  client ────────────────────── udp ─────────────────────▶ server
//!  services=1:  client ─ shm ─▶ service ─ shm ─▶ server
//!  services=2:  client ─ shm ─▶ service ─ udp ─▶ service ─ shm ─▶ server
//! ```
//!
//! The client has the first core, the server the second; services have both, as proxies do that stand beside
//! (`bench/tonic`). All settings are the defaults, but that a policy `null` is attached to each service.

mod bind;
pub mod goodput;
mod idle;

use std::sync::atomic::{AtomicU64, Ordering};

use starling::{Channel, Server};
use starling_sample_services::api::bench::EchoClient;
use starling_sample_services::echo;
use starling_service::{Service, ServiceConfig, parse_policies};

use crate::benchmark::{Benchmark, Context};
use crate::callers::{Callers, Flavor};
use crate::channel::{ChannelStub, by_callers};
use crate::device::failed;
use crate::error::BenchError;
use crate::metric::Sample;
use crate::pin::{Cores, pin_to, two_cores};
use crate::process::{Launcher, RoleProcess, announce, begin_client, begin_server};

/// The name of this system in rows and errors.
const MANAGED: &str = "managed";

/// Role of a service. Its arguments: its name, and the two cores.
const SERVICE_ROLE: &str = "starling-service";
/// Role of a server. Its argument: the name of its service, or none.
pub(crate) const ECHO_ROLE: &str = "starling-managed";
/// The name of no service.
const NONE: &str = "none";

/// The policy of each service.
const POLICIES: &str = r#"[{"name": "nothing", "kind": "null"}, {"name": "nothing-there", "kind": "null",
    "for": {"side": "server"}}]"#;

/// Those that the suite measures, also through proxies.
pub const CALLERS: [Callers; 3] = [
    Callers::Threads(1),
    Callers::Threads(16),
    Callers::Tasks {
        flavor: Flavor::CurrentThread,
        count: 128,
    },
];

pub(crate) fn benchmarks() -> Vec<Benchmark> {
    let of = |callers: Callers| {
        [0, 1, 2].map(|services| {
            let case = format!("services={services} {}", callers.case());
            Benchmark::new("udp", MANAGED, case, move |context| {
                measure(context, services, callers)
            })
        })
    };
    let calls = CALLERS.into_iter().flat_map(of);
    calls
        .chain(goodput::benchmarks())
        .chain(bind::benchmarks())
        .chain([idle::benchmark()])
        .collect()
}

/// Runs the process of a role that this module has. `None`: the role is not one of them.
pub(crate) fn serve(role: &str, arguments: &[String]) -> Option<Result<(), BenchError>> {
    match role {
        SERVICE_ROLE => Some(begin_server(role, arguments).and_then(|rest| serve_service(&rest))),
        ECHO_ROLE => Some(begin_server(role, arguments).and_then(|rest| serve_echo(&rest))),
        idle::SERVICE_ROLE => {
            Some(begin_client(role, arguments).and_then(|rest| idle::serve_service(&rest)))
        }
        idle::CLIENT_ROLE => {
            Some(begin_client(role, arguments).and_then(|rest| idle::serve_application(&rest)))
        }
        _ => None,
    }
}

/// An echo server, and the services through which it is called.
struct Path {
    services: Vec<RoleProcess>,
    server: RoleProcess,
}

impl Path {
    fn start(context: &Context, services: usize) -> Result<Self, BenchError> {
        let services: Vec<_> = (0..services)
            .map(|_| start_service(&context.launcher, context.cores))
            .collect::<Result<_, _>>()?;
        let of_server = services.last().map_or(NONE, RoleProcess::address);
        let server = context.launcher.start(ECHO_ROLE, &[of_server])?;
        Ok(Self { services, server })
    }

    /// A channel that takes this way.
    fn channel(&self) -> Result<Channel, BenchError> {
        let channel = Channel::builder(self.server.address());
        let channel = match self.services.first() {
            Some(service) => channel.managed_by(service.address()),
            None => channel.direct(),
        };
        channel.lazy().map_err(failed)
    }

    fn processes(&self) -> Vec<&RoleProcess> {
        self.services.iter().chain([&self.server]).collect()
    }
}

fn measure(context: &Context, services: usize, callers: Callers) -> Result<Sample, BenchError> {
    let path = Path::start(context, services)?;
    let stub = ChannelStub {
        client: EchoClient::new(path.channel()?),
        scheme: "udp",
    };
    by_callers(context, &path.processes(), callers, &stub)
}

/// Starts a service that may use both cores. Its address is its name.
pub fn start_service(launcher: &Launcher, cores: Cores) -> Result<RoleProcess, BenchError> {
    let name = unused_name();
    let cores = [cores.client, cores.server].map(|core| core.to_string());
    let arguments = [&*name, &*cores[0], &*cores[1]];
    launcher.start(SERVICE_ROLE, &arguments)
}

/// The name of a service that nobody else has.
fn unused_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("starling-bench-{}-{number}", std::process::id())
}

fn serve_service(arguments: &[String]) -> Result<(), BenchError> {
    let bad = || BenchError::BadRoleArguments {
        role: SERVICE_ROLE.into(),
        why: "expected a name and the numbers of two cores".into(),
    };
    let [name, cores @ ..] = arguments else {
        return Err(bad());
    };
    pin_to(&two_cores(cores).ok_or_else(bad)?)?;
    let service = Service::start(ServiceConfig {
        name: name.clone(),
        policies: parse_policies(POLICIES).map_err(failed)?,
        ..ServiceConfig::default()
    });
    let service = service.map_err(failed)?;
    announce(name)?;
    service.wait().map_err(failed)
}

fn serve_echo(arguments: &[String]) -> Result<(), BenchError> {
    let [service] = arguments else {
        return Err(BenchError::BadRoleArguments {
            role: ECHO_ROLE.into(),
            why: "expected the name of a service, or `none`".into(),
        });
    };
    let builder = Server::builder().add_service(echo::server());
    let builder = match service.as_str() {
        NONE => builder.direct(),
        name => builder.managed_by(name),
    };
    let server = builder.bind("udp://127.0.0.1:0").map_err(failed)?.build();
    let server = server.map_err(failed)?.spawn().map_err(failed)?;
    announce(server.address())?;
    server.wait().map(drop).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::goodput::REQUESTS;
    use super::*;

    #[test]
    fn each_kind_of_caller_has_a_benchmark_without_and_with_services() {
        let names: Vec<String> = benchmarks().iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), 3 * CALLERS.len() + 2 * REQUESTS.len() + 3);
        assert_eq!(names[0], "managed/udp services=0 threads=1");
        assert_eq!(names[8], "managed/udp services=2 current-thread tasks=128");
    }

    #[test]
    fn roles_want_their_arguments() {
        let wrong = ["x", "1", "one"].map(String::from);
        for arguments in [&[][..], &wrong[..1], &wrong[..2], &wrong] {
            let error = serve_service(arguments).unwrap_err();
            assert!(error.to_string().contains(SERVICE_ROLE), "{error}");
        }
        let error = serve_echo(&[]).unwrap_err();
        assert!(error.to_string().contains(ECHO_ROLE), "{error}");
    }
}
