//! The proxies that stand beside: HTTP/2 at both sides, one worker, no access log, and all connections kept.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use starling_bench::BenchError;
use tempfile::TempDir;

use crate::failed;

/// How long a proxy may take to listen.
const LISTENS: Duration = Duration::from_secs(20);

/// What a proxy does with calls beside passing them on. Only Envoy has policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    None,
    /// Refuses reservations by the customer's name.
    AccessControl,
}

impl Policy {
    /// Its name in a case.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::AccessControl => "access-control",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        let mut all = [Self::None, Self::AccessControl].into_iter();
        all.find(|policy| policy.name() == name)
    }

    /// Envoy's filter for it.
    fn filter(self) -> String {
        if self == Self::None {
            return String::new();
        }
        let script = include_str!("access.lua").lines();
        let script: String = script.map(|line| format!("{:18}{line}\n", "")).collect();
        format!(
            r#"
          - name: envoy.filters.http.lua
            typed_config:
              "@type": {TYPES}.filters.http.lua.v3.Lua
              default_source_code:
                inline_string: |
{script}"#
        )
    }
}

/// What the names of Envoy's types begin with.
const TYPES: &str = "type.googleapis.com/envoy.extensions";

/// A program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Envoy,
    Haproxy,
    Nginx,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Envoy, Self::Haproxy, Self::Nginx];

    /// The name of its program.
    pub(super) fn program(self) -> &'static str {
        match self {
            Self::Envoy => "envoy",
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
        }
    }

    /// What is before the number of proxies in the name of a case.
    pub(super) fn case(self) -> &'static str {
        match self {
            Self::Envoy => "proxies",
            other => other.program(),
        }
    }

    /// The program: that which `STARLING_ENVOY`, `STARLING_HAPROXY` or `STARLING_NGINX` names, or the one on the path.
    pub(crate) fn find(self) -> Option<PathBuf> {
        let variable = format!("STARLING_{}", self.program().to_uppercase());
        if let Some(path) = std::env::var_os(variable) {
            return Some(path.into());
        }
        let path = std::env::var_os("PATH")?;
        let mut candidates = std::env::split_paths(&path).map(|it| it.join(self.program()));
        candidates.find(|candidate| candidate.is_file())
    }

    pub(super) fn named(program: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.program() == program)
    }

    fn config(
        self,
        policy: Policy,
        listen: SocketAddr,
        upstream: SocketAddr,
        folder: &str,
    ) -> String {
        match self {
            Self::Envoy => envoy(listen, upstream, policy),
            Self::Haproxy => haproxy(listen, upstream),
            Self::Nginx => nginx(listen, upstream, folder),
        }
    }

    fn command(self, program: &str, config: &str, folder: &str) -> Command {
        let mut command = Command::new(program);
        match self {
            Self::Envoy => command
                .args(["--concurrency", "1", "--use-dynamic-base-id"])
                .args(["--log-level", "error", "-c", config]),
            Self::Haproxy => command.args(["-db", "-f", config]),
            Self::Nginx => command.args(["-p", folder, "-c", config]),
        };
        command
    }
}

/// A proxy, which is killed when this is dropped.
pub(super) struct Proxy {
    kind: Kind,
    child: Child,
    /// It has its configuration there.
    _folder: TempDir,
}

impl Proxy {
    pub(super) fn start(
        (kind, program): (Kind, &str),
        policy: Policy,
        listen: SocketAddr,
        upstream: SocketAddr,
    ) -> Result<Self, BenchError> {
        let folder = tempfile::tempdir().map_err(BenchError::io("making a folder"))?;
        let path = folder.path().to_string_lossy().into_owned();
        let config = format!("{path}/proxy.yaml");
        let written = fs::File::create(&config).and_then(|mut file| {
            file.write_all(kind.config(policy, listen, upstream, &path).as_bytes())
        });
        written.map_err(BenchError::io("writing a proxy's configuration"))?;
        let child = kind
            .command(program, &config, &path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        Ok(Self {
            kind,
            child: child.map_err(BenchError::io(format!("starting {program}")))?,
            _folder: folder,
        })
    }

    pub(super) fn wait_until_it_listens(&mut self, listen: SocketAddr) -> Result<(), BenchError> {
        let until = Instant::now() + LISTENS;
        while TcpStream::connect(listen).is_err() {
            let ended = self.child.try_wait();
            let ended = ended.map_err(BenchError::io("asking whether a proxy has ended"))?;
            if ended.is_some() || Instant::now() >= until {
                return Err(failed(std::io::Error::other(format!(
                    "{} does not listen; its message is above",
                    self.kind.program()
                ))));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn envoy(listen: SocketAddr, upstream: SocketAddr, policy: Policy) -> String {
    let address = |address: SocketAddr| {
        format!(
            "{{socket_address: {{address: {}, port_value: {}}}}}",
            address.ip(),
            address.port()
        )
    };
    let (listen, upstream) = (address(listen), address(upstream));
    let filter = policy.filter();
    format!(
        r#"
static_resources:
  listeners:
  - address: {listen}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          codec_type: HTTP2
          route_config:
            virtual_hosts:
            - {{name: all, domains: ["*"], routes: [{{match: {{prefix: "/"}}, route: {{cluster: up, timeout: 0s}}}}]}}
          http_filters:{filter}
          - name: envoy.filters.http.router
            typed_config: {{"@type": {TYPES}.filters.http.router.v3.Router}}
  clusters:
  - name: up
    type: STATIC
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": {TYPES}.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{http2_protocol_options: {{}}}}
    load_assignment:
      cluster_name: up
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {upstream}}}}}]}}]
"#
    )
}

fn haproxy(listen: SocketAddr, upstream: SocketAddr) -> String {
    format!(
        "global
  nbthread 1
defaults
  mode http
  timeout connect 1s
  timeout client 1m
  timeout server 1m
frontend all
  bind {listen} proto h2
  default_backend up
backend up
  server up {upstream} proto h2
"
    )
}

fn nginx(listen: SocketAddr, upstream: SocketAddr, folder: &str) -> String {
    // One process, and connections that are not closed after so many requests.
    format!(
        "daemon off;
master_process off;
pid {folder}/pid;
error_log stderr error;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_max_body_size 0;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000000;
  http2_max_concurrent_streams 1024;
  upstream up {{ server {upstream}; keepalive 1024; keepalive_requests 1000000000; }}
  server {{
    listen {listen} http2;
    location / {{ grpc_pass grpc://up; }}
  }}
}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_proxy_is_told_where_it_listens_and_what_is_behind_it() {
        let [listen, upstream] = ["127.0.0.1:7", "127.0.0.2:8"].map(|at| at.parse().unwrap());
        for kind in Kind::ALL {
            let config = kind.config(Policy::None, listen, upstream, "/folder");
            let both = match kind {
                Kind::Envoy => [
                    "{address: 127.0.0.1, port_value: 7}",
                    "{address: 127.0.0.2, port_value: 8}",
                ],
                _ => ["127.0.0.1:7", "127.0.0.2:8"],
            };
            assert!(
                both.iter().all(|address| config.contains(address)),
                "{config}"
            );
            assert_eq!(config.matches('{').count(), config.matches('}').count());
            assert_eq!(Kind::named(kind.program()), Some(kind));
        }
    }

    #[test]
    fn envoy_has_the_filter_of_its_policy_before_the_router() {
        let at = "127.0.0.1:7".parse().unwrap();
        let config = |policy| Kind::Envoy.config(policy, at, at, "/folder");
        assert!(!config(Policy::None).contains("filters.http.lua"));
        let strict = config(Policy::AccessControl);
        let [lua, script, router] = ["filters.http.lua.v3.Lua", "Mallory", "http.router"]
            .map(|text| strict.find(text).expect(text));
        assert!(lua < script && script < router, "{strict}");
        let is_inside = |line: &&str| line.starts_with(&" ".repeat(18));
        let lines = strict
            .lines()
            .skip_while(|it| !it.contains("inline_string"));
        let script_lines = lines.skip(1).take_while(is_inside).count();
        assert_eq!(script_lines, include_str!("access.lua").lines().count());
        for policy in [Policy::None, Policy::AccessControl] {
            assert_eq!(Policy::named(policy.name()), Some(policy));
        }
    }
}
