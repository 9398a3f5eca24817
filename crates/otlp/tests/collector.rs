//! A collector gets the spans and the metrics of calls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::metrics::v1::{Metric, metric};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use starling::{Channel, Request, Server, Status};
use starling_otlp::{Otlp, OtlpError};
use starling_test_protos::hello::{Hello, HelloClient, HelloReplyMut, HelloRequest, HelloServer};
use tonic::transport::server::TcpIncoming;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// What the collector was sent.
#[derive(Clone, Default)]
struct Collected {
    spans: Arc<Mutex<Vec<Span>>>,
    /// The latest, by name.
    metrics: Arc<Mutex<HashMap<String, Metric>>>,
    names: Arc<Mutex<Vec<String>>>,
}

#[tonic::async_trait]
impl TraceService for Collected {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let scopes = request
            .into_inner()
            .resource_spans
            .into_iter()
            .flat_map(|it| it.scope_spans);
        self.spans
            .lock()
            .unwrap()
            .extend(scopes.flat_map(|scope| scope.spans));
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Collected {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, tonic::Status> {
        for of_resource in request.into_inner().resource_metrics {
            let attributes = of_resource.resource.unwrap_or_default().attributes;
            self.names.lock().unwrap().push(format!("{attributes:?}"));
            for metric in of_resource
                .scope_metrics
                .into_iter()
                .flat_map(|it| it.metrics)
            {
                self.metrics
                    .lock()
                    .unwrap()
                    .insert(metric.name.clone(), metric);
            }
        }
        Ok(tonic::Response::new(ExportMetricsServiceResponse::default()))
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

fn wait_until(mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "it does not happen"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Collected {
    /// The calls of `Greet` that the server's durations have.
    fn calls_of_greet(&self) -> u64 {
        let metrics = self.metrics.lock().unwrap();
        let Some(metric::Data::Histogram(durations)) = metrics
            .get("rpc.server.call.duration")
            .and_then(|metric| metric.data.clone())
        else {
            return 0;
        };
        let of_greet = durations
            .data_points
            .into_iter()
            .filter(|point| format!("{:?}", point.attributes).contains("hello.Hello/Greet"));
        of_greet
            .map(|point| {
                assert_eq!(point.bucket_counts.iter().sum::<u64>(), point.count);
                assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
                point.count
            })
            .sum()
    }
}

/// The calls within the program's own span are its children, and those at the server theirs.
fn check_spans(spans: &[Span]) {
    let own = spans
        .iter()
        .find(|span| span.name == "own")
        .expect("it was exported");
    let of_calls: Vec<_> = spans
        .iter()
        .filter(|span| span.name == "hello.Hello/Greet")
        .collect();
    assert_eq!(of_calls.len(), 4, "{of_calls:?}");
    assert!(of_calls.iter().all(|span| span.trace_id == own.trace_id));
    let of_kind = |kind: SpanKind| of_calls.iter().filter(move |span| span.kind == kind as i32);
    for client in of_kind(SpanKind::Client) {
        assert_eq!(client.parent_span_id, own.span_id);
        let child = of_kind(SpanKind::Server).find(|span| span.parent_span_id == client.span_id);
        let child = child.expect("its server's span");
        let text = format!("{:?}", child.attributes);
        assert!(
            text.contains("rpc.response.status_code") && text.contains("client.address"),
            "{text}"
        );
    }
    assert_eq!(of_kind(SpanKind::Client).count(), 2);
    let failed = of_calls
        .iter()
        .filter(|span| format!("{:?}", span.attributes).contains("NOT_FOUND"));
    assert_eq!(failed.count(), 2);
}

#[test]
fn spans_and_metrics_of_calls_reach_a_collector() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let collected = Collected::default();
    let address = runtime.block_on(async {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).expect("a free port");
        let address = incoming.local_addr().expect("bound");
        let collector = tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(collected.clone()))
            .add_service(MetricsServiceServer::new(collected.clone()));
        tokio::spawn(collector.serve_with_incoming(incoming));
        address
    });
    let otlp = Otlp::builder(&format!("http://{address}"))
        .service_name("greeter")
        .metrics_interval(Duration::from_millis(20))
        .share_of_roots(0.0)
        .start()
        .expect("an export");
    tracing_subscriber::registry().with(otlp.layer()).init();
    let builder = Server::builder().bind("mem://otlp").expect("a free name");
    let server = builder
        .add_service(HelloServer::new(Greeter))
        .build()
        .expect("a server");
    let server = server.spawn().expect("threads");
    let client = HelloClient::new(Channel::lazy(server.address()).expect("a channel"));
    // In no trace.
    client
        .greet(&HelloRequest::new().with_name("x"))
        .wait()
        .expect("a reply");
    {
        // The program's own span is the parent.
        let own = tracing::info_span!("own");
        let _entered = own.enter();
        client
            .greet(&HelloRequest::new().with_name("x"))
            .wait()
            .expect("a reply");
        client
            .greet(&HelloRequest::new())
            .wait()
            .expect_err("nobody");
    }
    wait_until(|| collected.calls_of_greet() == 3);
    assert!(collected.names.lock().unwrap()[0].contains("greeter"));
    otlp.shut_down();
    check_spans(&collected.spans.lock().unwrap());
    assert!(
        collected
            .metrics
            .lock()
            .unwrap()
            .contains_key("starling.endpoint.requests")
    );
    // A second one is refused, with what to do.
    let second = Otlp::builder("http://127.0.0.1:1").start();
    assert!(matches!(second, Err(OtlpError::TracerIsSet)));
}

#[test]
fn an_address_that_is_none_is_refused_before_anything_is_enabled() {
    let error = Otlp::builder("not an address")
        .start()
        .expect_err("malformed");
    assert!(
        error.to_string().contains("write http://HOST:4317"),
        "{error}"
    );
}
