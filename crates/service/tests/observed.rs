//! What policies record of calls: counts for Prometheus.

mod mesh;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../starling/tests/metrics/parser.rs"]
mod parser;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mesh::{Mesh, direct, echo_at};
use starling::managed::{MetricsRequest, OperatorClient, PolicyChange};
use starling::{Channel, Code, Request, Server, ServerHandle, Status};
use starling_sample_services::api::bench::{EchoClient, Payload};
use starling_service::ServiceConfig;
use starling_test_protos::hello::{Hello, HelloClient, HelloReplyMut, HelloRequest, HelloServer};

/// Who manages a service.
struct Operator(OperatorClient<Channel>);

impl Operator {
    fn of(mesh: &Mesh) -> Self {
        let address = format!("shm://{}.control", mesh.name);
        Self(OperatorClient::new(direct(&address)))
    }

    fn attach(&self, json: &str) -> Result<(), Status> {
        let change = PolicyChange::new().with_what(json);
        self.0.attach(&change).wait().map(drop)
    }

    fn configure(&self, json: &str) {
        let change = PolicyChange::new().with_what(json);
        self.0.configure(&change).wait().expect(json);
    }

    fn upgrade(&self, name: &str) {
        let change = PolicyChange::new().with_what(name);
        self.0.upgrade(&change).wait().expect(name);
    }

    fn detach(&self, name: &str) {
        let change = PolicyChange::new().with_what(name);
        self.0.detach(&change).wait().expect(name);
    }

    fn metrics(&self) -> String {
        let response = self.0.metrics(&MetricsRequest::new()).wait();
        response.expect("a text").message().text().to_owned()
    }

    /// A sample, 0 if it is missing.
    fn sample(&self, name: &str) -> f64 {
        let page = parser::parse(&self.metrics());
        page.samples.get(name).copied().unwrap_or(0.0)
    }
}

/// Greets all who have a name.
struct Greeter;

impl Hello for Greeter {
    fn greet(
        &self,
        request: Request<'_, HelloRequest>,
        _: HelloReplyMut<'_>,
    ) -> Result<(), Status> {
        match request.message().name() {
            "" => Err(Status::not_found("nobody")),
            _ => Ok(()),
        }
    }
}

fn serve(mesh: &Mesh) -> ServerHandle {
    let server = Server::builder().add_service(HelloServer::new(Greeter));
    let server = server.managed_by(&mesh.name).bind("udp://127.0.0.1:0");
    let server = server.expect("an address").build().expect("a free port");
    server.spawn().expect("threads")
}

fn program() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").expect("a name");
    name.trim_end().to_owned()
}

#[test]
fn calls_are_counted_by_method_at_both_sides() {
    let mesh = Mesh::with(ServiceConfig {
        metrics: Some("127.0.0.1:0".to_owned()),
        ..ServiceConfig::default()
    });
    let operator = Operator::of(&mesh);
    assert_eq!(operator.metrics(), "", "there is no policy");
    for json in [
        r#"{"name":"out","kind":"metrics"}"#,
        r#"{"name":"in","kind":"metrics","for":{"side":"server"}}"#,
    ] {
        operator.attach(json).expect(json);
    }
    let server = serve(&mesh);
    let client = HelloClient::new(mesh.channel(server.address()));
    for name in ["a", "b", ""] {
        // Those without a name are not found.
        let _ = client.greet(&HelloRequest::new().with_name(name)).wait();
    }
    for (policy, side) in [("out", "client"), ("in", "server")] {
        let labels = format!(
            "policy=\"{policy}\",program=\"{}\",side=\"{side}\",server_address=\"{}\",rpc_method=\"hello.Hello/Greet\"",
            program(),
            server.address()
        );
        let calls = |code: &str| {
            let name = "starling_service_call_duration_seconds_count";
            operator.sample(&format!(
                "{name}{{{labels},rpc_response_status_code=\"{code}\"}}"
            ))
        };
        assert_eq!((calls("OK"), calls("NOT_FOUND")), (2.0, 1.0), "{side}");
        let size = |name: &str| {
            operator.sample(&format!("starling_service_{name}_bytes_count{{{labels}}}"))
        };
        assert_eq!((size("request_size"), size("response_size")), (3.0, 2.0));
        let passed =
            format!("starling_policy_passed_total{{policy=\"{policy}\",kind=\"metrics\"}}");
        assert_eq!(operator.sample(&passed), 3.0);
    }
    // The page shows the same.
    let address = mesh.service().metrics_address().expect("a page");
    let mut connection = TcpStream::connect(address).expect("the page");
    connection
        .write_all(b"GET /metrics HTTP/1.1\r\n\r\n")
        .expect("a request");
    let mut page = String::new();
    connection.read_to_string(&mut page).expect("an answer");
    let (head, body) = page.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert_eq!(body, operator.metrics());
}

#[test]
fn refusals_of_later_policies_are_counted_and_further_series_as_the_rest() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    for json in [
        r#"{"name":"calls","kind":"metrics","settings":{"series":1}}"#,
        r#"{"name":"ill","kind":"fault","settings":{"fail":1,"code":"ABORTED"}}"#,
    ] {
        operator.attach(json).expect(json);
    }
    let [first, second] = [0, 1].map(|_| echo_at("udp://127.0.0.1:0"));
    for server in [&first, &second, &second] {
        let client = EchoClient::new(mesh.channel(server.address()));
        let status = client.call(&Payload::new()).wait().expect_err("a fault");
        assert_eq!(status.code(), Code::Aborted);
    }
    let text = operator.metrics();
    let count = |of: &str| {
        let is_it = |line: &&str| {
            line.starts_with("starling_service_call_duration_seconds_count") && line.contains(of)
        };
        let line = text.lines().find(is_it).unwrap_or_default();
        line.rsplit(' ').next().unwrap_or_default().to_owned()
    };
    let of_first = format!("{}\",rpc_method=\"bench.Echo/Call\"", first.address());
    assert_eq!(count(&of_first), "1", "{text}");
    let of_rest =
        "program=\"_OTHER\",side=\"_OTHER\",server_address=\"_OTHER\",rpc_method=\"_OTHER\"";
    assert_eq!(count(of_rest), "2", "{text}");
}

/// Attached, configured, upgraded and detached under load from several threads: no call fails, and all are counted.
#[test]
fn changes_under_load_fail_no_call_and_lose_no_count() {
    const ROUNDS: usize = 20;
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = mesh.echo_at("udp://127.0.0.1:0");
    let client = EchoClient::new(mesh.channel(server.address()));
    let (over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let echo = client.call(&Payload::new().with_data(&[7; 32])).wait();
                    echo.expect("no call fails");
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let more = || {
            let before = calls.load(Ordering::Relaxed);
            while calls.load(Ordering::Relaxed) < before + 8 {
                std::thread::yield_now();
            }
        };
        // This one stays, and is changed.
        let kept = |series: usize| {
            format!(r#"{{"name":"calls","kind":"metrics","settings":{{"series":{series}}}}}"#)
        };
        operator.attach(&kept(1)).expect("a policy");
        for round in 0..ROUNDS {
            let json = r#"{"name":"more","kind":"metrics"}"#;
            operator.attach(json).expect(json);
            operator.configure(&kept(round + 2));
            more();
            operator.upgrade("calls");
            more();
            operator.detach("more");
        }
        over.store(true, Ordering::Relaxed);
    });
    let counted = operator.metrics();
    let is_count = |line: &&str| {
        line.starts_with("starling_service_call_duration_seconds_count{policy=\"calls\"")
    };
    let counts = counted.lines().filter(is_count).map(|line| {
        assert!(line.contains("rpc_response_status_code=\"OK\""), "{line}");
        let count = line.rsplit(' ').next().expect("a value");
        count.parse::<f64>().expect("a number")
    });
    let counts: f64 = counts.sum();
    let passed = operator.sample("starling_policy_passed_total{policy=\"calls\",kind=\"metrics\"}");
    assert_eq!(counts, passed);
    assert!(counts >= (16 * ROUNDS) as f64, "{counts}");
}
