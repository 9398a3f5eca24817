//! What policies record of calls: counts for Prometheus, spans for a collector.

mod collector;
mod mesh;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../starling/tests/metrics/parser.rs"]
mod parser;

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use collector::Collector;
use mesh::{Mesh, echo_at};
use starling::managed::{MetricsRequest, OperatorClient, PolicyChange};
use starling::{CallOptions, Channel, Code, Request, Server, ServerHandle, Status};
use starling_sample_services::api::bench::{EchoClient, Payload};
use starling_service::ServiceConfig;
use starling_test_protos::hello::{Hello, HelloClient, HelloReplyMut, HelloRequest, HelloServer};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Who manages a service.
struct Operator(OperatorClient<Channel>);

impl Operator {
    fn of(mesh: &Mesh) -> Self {
        Self(mesh.operator())
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

/// Greets all who have a name, and keeps what came as `traceparent`.
#[derive(Clone, Default)]
struct Greeter(Arc<Mutex<Vec<Option<String>>>>);

impl Hello for Greeter {
    fn greet(
        &self,
        request: Request<'_, HelloRequest>,
        _: HelloReplyMut<'_>,
    ) -> Result<(), Status> {
        let parent = request.metadata().value("traceparent");
        let parent = parent.map(|text| String::from_utf8_lossy(text).into_owned());
        self.0.lock().expect("no panic").push(parent);
        match request.message().name() {
            "" => Err(Status::not_found("nobody")),
            _ => Ok(()),
        }
    }
}

impl Greeter {
    fn serve(&self, mesh: &Mesh) -> ServerHandle {
        let server = Server::builder().add_service(HelloServer::new(self.clone()));
        let server = server.managed_by(&mesh.name).bind("udp://127.0.0.1:0");
        let server = server.expect("an address").build().expect("a free port");
        server.spawn().expect("threads")
    }

    /// The `traceparent` with which the last call came.
    fn last(&self) -> Option<String> {
        let seen = self.0.lock().expect("no panic");
        seen.last().expect("a call").clone()
    }
}

fn greet(client: &HelloClient<Channel>, name: &str, parent: Option<&str>) -> Code {
    let mut options = CallOptions::default();
    if let Some(parent) = parent {
        options = options.metadata("traceparent", parent).expect("short");
    }
    let call = client.clone().with_options(options);
    let result = call.greet(&HelloRequest::new().with_name(name)).wait();
    result.map_or_else(|status| status.code(), |_| Code::Ok)
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
    let server = Greeter::default().serve(&mesh);
    let client = HelloClient::new(mesh.channel(server.address()));
    for name in ["a", "b", ""] {
        greet(&client, name, None);
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

#[test]
fn spans_reach_a_collector_and_their_context_the_server() {
    let collector = Collector::start();
    let mesh = Mesh::with(ServiceConfig {
        otlp: Some(collector.address()),
        ..ServiceConfig::default()
    });
    let operator = Operator::of(&mesh);
    let greeter = Greeter::default();
    let server = greeter.serve(&mesh);
    let client = HelloClient::new(mesh.channel(server.address()));
    let out = r#"{"name":"out","kind":"tracing","settings":{"share":1}}"#;
    operator.attach(out).expect(out);
    assert_eq!(greet(&client, "a", Some(PARENT)), Code::Ok);
    let went_on = greeter.last().expect("a context");
    assert_eq!(went_on[..35], PARENT[..35], "the same trace");
    assert_ne!(went_on[36..52], PARENT[36..52], "a span of its own");
    assert_eq!(greet(&client, "", None), Code::NotFound);
    let root = greeter.last().expect("a context");
    // Nobody samples it, and neither does the policy.
    let unsampled = PARENT.replace("-01", "-00");
    assert_eq!(greet(&client, "a", Some(&unsampled)), Code::Ok);
    assert_eq!(greeter.last(), Some(unsampled));
    operator.configure(r#"{"name":"out","kind":"tracing","settings":{"share":0}}"#);
    assert_eq!(greet(&client, "a", Some(PARENT)), Code::Ok);
    assert_eq!(greeter.last().as_deref(), Some(PARENT));
    assert_eq!(greet(&client, "a", None), Code::Ok);
    assert_eq!(greeter.last(), None);

    let spans = collector.wait_for(2);
    let (first, second) = (&spans[0], &spans[1]);
    assert_eq!(first["traceId"], PARENT[3..35]);
    assert_eq!(first["parentSpanId"], PARENT[36..52]);
    assert_eq!(first["spanId"], went_on[36..52]);
    assert_eq!(first["name"], "hello.Hello/Greet");
    assert_eq!(first["kind"], 3);
    let time = |field: &str| {
        let text = first[field].as_str().expect("a text");
        text.parse::<u64>().expect("a number")
    };
    assert!(time("startTimeUnixNano") <= time("endTimeUnixNano"));
    let attributes = first["attributes"].to_string();
    for value in [&program(), server.address(), "out", "OK"] {
        let expected = format!("{{\"stringValue\":\"{value}\"}}");
        assert!(attributes.contains(&expected), "{attributes}");
    }
    assert_eq!(second["spanId"], root[36..52]);
    assert!(second.get("parentSpanId").is_none(), "{second}");
    assert!(second["attributes"].to_string().contains("NOT_FOUND"));
    // The collector has them a moment before the service knows.
    let until = std::time::Instant::now() + mesh::LONG;
    while operator.sample("starling_service_spans_exported_total") < 2.0 {
        assert!(std::time::Instant::now() < until, "{}", operator.metrics());
    }
    assert_eq!(operator.sample("starling_service_spans_dropped_total"), 0.0);
}

#[test]
fn spans_that_nobody_would_see_are_refused_and_nothing_changes() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let json = r#"{"name":"out","kind":"tracing"}"#;
    let status = operator.attach(json).expect_err("there is no collector");
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(
        status.message().contains("otlp: http://HOST:4318"),
        "{status}"
    );
    assert_eq!(operator.metrics(), "");
    let config = ServiceConfig {
        name: mesh::name(),
        otlp: Some("127.0.0.1:4318".to_owned()),
        ..ServiceConfig::default()
    };
    let error = starling_service::Service::start(config).expect_err("no address");
    assert!(
        error.to_string().contains("write http://HOST:4318"),
        "{error}"
    );
}

/// Attached, configured, upgraded and detached under load from several threads: no call fails, and none is counted or
/// recorded twice, or not at all.
#[test]
fn changes_under_load_fail_no_call_and_lose_no_count() {
    const ROUNDS: usize = 20;
    let collector = Collector::start();
    let mesh = Mesh::with(ServiceConfig {
        otlp: Some(collector.address()),
        ..ServiceConfig::default()
    });
    let operator = Operator::of(&mesh);
    let server = mesh.echo_at("udp://127.0.0.1:0");
    let client = EchoClient::new(mesh.channel(server.address()));
    let (over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let passed = |policy: &str, kind: &str| {
        let name = format!("starling_policy_passed_total{{policy=\"{policy}\",kind=\"{kind}\"}}");
        operator.sample(&name)
    };
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
        // These stay, and are changed.
        let kept = |series: usize, share: f64| {
            [
                format!(r#"{{"name":"calls","kind":"metrics","settings":{{"series":{series}}}}}"#),
                format!(r#"{{"name":"traces","kind":"tracing","settings":{{"share":{share}}}}}"#),
            ]
        };
        for json in kept(1, 0.01) {
            operator.attach(&json).expect(&json);
        }
        for round in 0..ROUNDS {
            for kind in ["metrics", "tracing"] {
                let json = format!(r#"{{"name":"more-{kind}","kind":"{kind}"}}"#);
                operator.attach(&json).expect(&json);
            }
            for json in kept(round + 2, 0.01 + 0.001 * round as f64) {
                operator.configure(&json);
            }
            more();
            operator.upgrade("calls");
            operator.upgrade("traces");
            more();
            operator.detach("more-metrics");
            operator.detach("more-tracing");
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
    assert_eq!(counts, passed("calls", "metrics"));
    assert!(counts >= (16 * ROUNDS) as f64, "{counts}");
    drop(mesh);
    // The service has sent all when it has ended.
    let spans = collector.spans();
    let ids: HashSet<_> = spans
        .iter()
        .map(|span| span["spanId"].to_string())
        .collect();
    assert_eq!(ids.len(), spans.len(), "none twice");
}
