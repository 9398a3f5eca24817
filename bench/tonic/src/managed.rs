//! The suite `managed` over tonic: alone, and through a proxy at each end, as a service mesh has it.
//!
//! ```text
//!  proxies=0:  client ──────── tcp ───────▶ server
//!  proxies=2:  client ─ tcp ─▶ Envoy ─ tcp ─▶ Envoy ─ tcp ─▶ server
//! ```
//!
//! Envoy stands beside if it is found: the program that `STARLING_ENVOY` names, or `envoy` on the path. Each has one
//! worker, HTTP/2 at both sides, no access log, and both cores. The processor time of the proxies is not counted.

use std::io::{copy, sink, stdin};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use starling_bench::callers::Callers;
use starling_bench::managed::CALLERS;
use starling_bench::pin::{pin_to, two_cores};
use starling_bench::process::{RoleProcess, announce};
use starling_bench::{BenchError, Benchmark, Context, Metric, Sample};

use crate::channel::{self, measure_at};
use crate::{SYSTEM, failed};

/// Role of a process that runs a proxy. Its arguments: Envoy's path, the address behind it, and the two cores.
pub(crate) const ROLE: &str = "envoy";

/// The program, if it is not on the path.
const VARIABLE: &str = "STARLING_ENVOY";

/// How long a proxy may take to listen.
const LISTENS: Duration = Duration::from_secs(20);

pub(crate) fn benchmarks() -> Vec<Benchmark> {
    let alone = CALLERS.map(|callers| {
        let case = format!("proxies=0 {}", callers.case());
        Benchmark::new("grpc", SYSTEM, case, move |context| {
            channel::measure(context, callers)
        })
    });
    let envoy = find_envoy();
    let through = CALLERS.into_iter().filter_map(|callers| {
        let envoy = envoy.clone()?;
        let case = format!("proxies=2 {}", callers.case());
        Some(Benchmark::new("grpc", SYSTEM, case, move |context| {
            measure(context, &envoy, callers)
        }))
    });
    alone.into_iter().chain(through).collect()
}

fn find_envoy() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(VARIABLE) {
        return Some(path.into());
    }
    let path = std::env::var_os("PATH")?;
    let mut candidates = std::env::split_paths(&path).map(|directory| directory.join("envoy"));
    candidates.find(|candidate| candidate.is_file())
}

fn measure(context: &Context, envoy: &Path, callers: Callers) -> Result<Sample, BenchError> {
    let server = context.launcher.start(channel::ROLE, &[])?;
    let proxy = |upstream: &RoleProcess| {
        let upstream = upstream.address().trim_start_matches("http://");
        let cores = [context.cores.client, context.cores.server].map(|core| core.to_string());
        let arguments = [&*envoy.to_string_lossy(), upstream, &*cores[0], &*cores[1]];
        context.launcher.start_client(ROLE, &arguments)
    };
    let near_server = proxy(&server)?;
    let near_client = proxy(&near_server)?;
    let mut sample = measure_at(context, &server, near_client.address(), callers)?;
    sample.retain(|(metric, _)| *metric != Metric::Cpu);
    Ok(sample)
}

/// Runs a proxy until the standard input ends.
pub(crate) fn serve(arguments: &[String]) -> Result<(), BenchError> {
    let bad = || BenchError::BadRoleArguments {
        role: ROLE.into(),
        why: "expected a path, an address, and the numbers of two cores".into(),
    };
    let [envoy, upstream, cores @ ..] = arguments else {
        return Err(bad());
    };
    let upstream: SocketAddr = upstream.parse().map_err(|_| bad())?;
    pin_to(&two_cores(cores).ok_or_else(bad)?)?;
    let listen = free_address()?;
    let mut proxy = Proxy::start(envoy, listen, upstream)?;
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

/// An Envoy, which is killed when this is dropped.
struct Proxy(Child);

impl Proxy {
    fn start(envoy: &str, listen: SocketAddr, upstream: SocketAddr) -> Result<Self, BenchError> {
        let child = Command::new(envoy)
            .args([
                "--concurrency",
                "1",
                "--use-dynamic-base-id",
                "--log-level",
                "error",
            ])
            .args(["--config-yaml", &config(listen, upstream)])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        child
            .map(Self)
            .map_err(BenchError::io(format!("starting {envoy}")))
    }

    fn wait_until_it_listens(&mut self, listen: SocketAddr) -> Result<(), BenchError> {
        let until = Instant::now() + LISTENS;
        while TcpStream::connect(listen).is_err() {
            let ended = self.0.try_wait();
            let ended = ended.map_err(BenchError::io("asking whether Envoy has ended"))?;
            if ended.is_some() || Instant::now() >= until {
                return Err(failed(std::io::Error::other(
                    "Envoy does not listen; its message is above",
                )));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An HTTP/2 proxy in YAML.
fn config(listen: SocketAddr, upstream: SocketAddr) -> String {
    let address = |address: SocketAddr| {
        format!(
            "{{socket_address: {{address: {}, port_value: {}}}}}",
            address.ip(),
            address.port()
        )
    };
    let (listen, upstream) = (address(listen), address(upstream));
    let types = "type.googleapis.com/envoy.extensions";
    format!(
        r#"
static_resources:
  listeners:
  - address: {listen}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {types}.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          codec_type: HTTP2
          route_config:
            virtual_hosts:
            - {{name: all, domains: ["*"], routes: [{{match: {{prefix: "/"}}, route: {{cluster: up, timeout: 0s}}}}]}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": {types}.filters.http.router.v3.Router}}
  clusters:
  - name: up
    type: STATIC
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": {types}.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{http2_protocol_options: {{}}}}
    load_assignment:
      cluster_name: up
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {upstream}}}}}]}}]
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tonic_has_a_benchmark_of_all_callers_alone() {
        let names: Vec<String> = benchmarks().iter().map(ToString::to_string).collect();
        assert!(names.len() == CALLERS.len() || names.len() == 2 * CALLERS.len());
        assert_eq!(names[0], "tonic/grpc proxies=0 threads=1");
    }

    #[test]
    fn a_proxy_is_told_where_it_listens_and_what_is_behind_it() {
        let [listen, upstream] = ["127.0.0.1:7", "127.0.0.2:8"].map(|at| at.parse().unwrap());
        let config = config(listen, upstream);
        assert!(
            config.contains("{address: 127.0.0.1, port_value: 7}"),
            "{config}"
        );
        assert!(
            config.contains("{address: 127.0.0.2, port_value: 8}"),
            "{config}"
        );
        assert_eq!(config.matches('{').count(), config.matches('}').count());
    }

    #[test]
    fn the_role_wants_its_arguments() {
        let wrong = ["envoy", "here", "1", "2"].map(String::from);
        for arguments in [&[][..], &wrong[..1], &wrong] {
            let error = serve(arguments).unwrap_err();
            assert!(error.to_string().contains(ROLE), "{error}");
        }
    }
}
