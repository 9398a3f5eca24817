//! A collector that is not there, comes and goes: the program is told once each time.

use std::fmt::Debug;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use starling::Server;
use starling_otlp::Otlp;
use tokio::runtime::Runtime;
use tonic::transport::server::TcpIncoming;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// What the program is told by the exporter.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<(Level, String)>>>);

impl Told {
    fn all(&self) -> Vec<(Level, String)> {
        self.0.lock().unwrap().clone()
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        self.0 += &format!("{value:?}");
    }
}

impl<S: Subscriber> Layer<S> for Told {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if metadata.target().starts_with("starling_otlp") {
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.lock().unwrap().push((*metadata.level(), text.0));
        }
    }
}

/// Counts what it is sent.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<usize>>);

#[tonic::async_trait]
impl MetricsService for Collector {
    async fn export(
        &self,
        _: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, tonic::Status> {
        *self.0.lock().unwrap() += 1;
        Ok(tonic::Response::new(ExportMetricsServiceResponse::default()))
    }
}

impl Collector {
    fn requests(&self) -> usize {
        *self.0.lock().unwrap()
    }

    /// Takes metrics at this address while the runtime lives.
    fn serve(&self, address: SocketAddr) -> Runtime {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let service = MetricsServiceServer::new(self.clone());
        runtime.block_on(async {
            let incoming = TcpIncoming::bind(address).expect("the port is free");
            let server = tonic::transport::Server::builder().add_service(service);
            tokio::spawn(server.serve_with_incoming(incoming));
        });
        runtime
    }
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        let waited = begun.elapsed();
        assert!(waited < Duration::from_secs(60), "it does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_program_is_told_once_when_the_collector_goes_and_when_it_is_back() {
    let told = Told::default();
    tracing_subscriber::registry().with(told.clone()).init();
    let free = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
    let address = free.expect("a free port");
    let otlp = Otlp::builder(&format!("http://{address}"))
        .metrics_interval(Duration::from_millis(2))
        .start()
        .expect("an export");
    // Something to send: the counters of its thread.
    let server = Server::builder().bind("mem://otlp-unreachable");
    let server = server.expect("a free name").build().expect("a server");
    let _server = server.spawn().expect("threads");
    wait_until(|| !told.all().is_empty());
    // Some more fail.
    std::thread::sleep(Duration::from_millis(50));
    let collector = Collector::default();
    for round in 1..=2 {
        let running = collector.serve(address);
        let before = collector.requests();
        wait_until(|| collector.requests() >= before + 3);
        let levels: Vec<_> = told.all().into_iter().map(|it| it.0).collect();
        assert_eq!(levels, [Level::WARN, Level::INFO].repeat(round));
        running.shutdown_timeout(Duration::from_secs(60));
        wait_until(|| told.all().len() > 2 * round);
    }
    let (_, warning) = &told.all()[0];
    for part in [address.to_string().as_str(), "see that it runs", "4317"] {
        assert!(warning.contains(part), "{warning}");
    }
    drop(otlp);
}
