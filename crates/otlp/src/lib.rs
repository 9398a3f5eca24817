//! Starling's traces and metrics to an OpenTelemetry collector, by OTLP over gRPC.
//!
//! ```no_run
//! use tracing_subscriber::layer::SubscriberExt;
//! use tracing_subscriber::util::SubscriberInitExt;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // First: servers and channels that are made from now on are observed.
//! let otlp = starling_otlp::Otlp::builder("http://127.0.0.1:4317").service_name("kv").start()?;
//! tracing_subscriber::registry().with(otlp.layer()).init();
//! // ... serve and call ...
//! // Sends what is left.
//! otlp.shut_down();
//! # Ok(())
//! # }
//! ```
//!
//! It is a crate of its own because it needs tonic and OpenTelemetry's SDK, which take longer to build than
//! Starling. It has a thread of a runtime of its own, and does nothing in Starling's threads but make spans.
//!
//! | what | how |
//! |---|---|
//! | spans of calls, and of the program | `tracing` spans, by the layer of `tracing-opentelemetry`; [`OtelTracer`] ties calls to them, so that ids and sampling are OpenTelemetry's |
//! | metrics of calls | [`starling::metrics::snapshot`], every ten seconds unless set, as cumulative sums and histograms under the names of OpenTelemetry's semantic conventions |
//! | counters of threads | [`starling::metrics::threads`], as `starling.endpoint.*`, `starling.protocol.*`, `starling.device.*` |
//!
//! Metrics go in requests of at most 64 series, fewer if their names are long, which stay below the 4 MiB that a
//! collector takes. A process has at most 4,096 series: [`starling::metrics`] says what happens beyond them.
//!
//! A program that has a pipeline of its own for spans takes [`OtelTracer`] alone.

#![forbid(unsafe_code)]

mod metrics;
mod push;
mod tracer;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tonic::transport::Endpoint;
use tracing::Subscriber;
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::registry::LookupSpan;

use push::EXPORT_TIMEOUT;

pub use tracer::OtelTracer;

/// How often metrics are sent, unless set.
const INTERVAL: Duration = Duration::from_secs(10);
/// Why nothing can be exported.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// The collector's address is malformed. The program is at fault.
    #[error("{address:?} is no address of a collector: {problem}; write http://HOST:4317")]
    Address {
        /// The text.
        address: String,
        /// What is wrong with it.
        problem: String,
    },
    /// There can be no exporter of spans.
    #[error("set up the export of spans: {0}")]
    Spans(String),
    /// There can be no thread for the export.
    #[error("start a runtime for the export: {0}")]
    Runtime(#[source] std::io::Error),
    /// The process ties calls to another tracing system already. The program is at fault.
    #[error(
        "starling::trace has a tracer already, and a process has one: start one Otlp, or use the other tracer"
    )]
    TracerIsSet,
}

/// The settings of an [`Otlp`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `start`"]
pub struct OtlpBuilder {
    address: String,
    service_name: String,
    interval: Duration,
    share_of_roots: f64,
}

impl OtlpBuilder {
    /// The name under which the collector has this program. The default is that of its file.
    pub fn service_name(mut self, name: impl Into<String>) -> Self {
        self.service_name = name.into();
        self
    }

    /// How often metrics are sent. The default is ten seconds.
    pub fn metrics_interval(mut self, interval: Duration) -> Self {
        self.interval = interval.max(Duration::from_millis(1));
        self
    }

    /// The share (0 to 1) of calls in no trace that begin one. The default is 0.001.
    pub fn share_of_roots(mut self, share: f64) -> Self {
        self.share_of_roots = share;
        self
    }

    /// Enables metrics and traces, and begins to export them. A collector that cannot be reached loses the spans that
    /// are sent meanwhile, and nothing else: a warning says so once, and a message when it takes metrics again.
    ///
    /// # Errors
    /// If the address is malformed, if there can be no thread, or if the process has another tracer.
    pub fn start(self) -> Result<Otlp, OtlpError> {
        let endpoint = self.endpoint()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("starling-otlp")
            .enable_all()
            .build()
            .map_err(OtlpError::Runtime)?;
        match self.start_in(&runtime, endpoint) {
            Ok(mut exports) => {
                exports.runtime = Some(runtime);
                Ok(exports)
            }
            Err(error) => {
                // The caller may be in a runtime, which must not wait for another one.
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    fn endpoint(&self) -> Result<Endpoint, OtlpError> {
        let malformed = |problem: String| OtlpError::Address {
            address: self.address.clone(),
            problem,
        };
        let endpoint = Endpoint::from_shared(self.address.clone());
        let endpoint = endpoint.map_err(|error| malformed(error.to_string()))?;
        let uri = endpoint.uri();
        let host = match (uri.scheme_str(), uri.authority()) {
            (Some("http"), Some(host)) => host,
            (Some("https"), _) => return Err(malformed("TLS is missing".into())),
            _ => return Err(malformed("it does not begin with http://".into())),
        };
        // A URI may have any number there.
        let port = host.as_str().rsplit_once(host.host());
        let port = port.and_then(|(_, rest)| rest.strip_prefix(':'));
        match port.filter(|port| port.parse::<u16>().is_err()) {
            Some(port) => Err(malformed(format!("{port:?} is no port"))),
            None => Ok(endpoint),
        }
    }

    fn start_in(self, runtime: &Runtime, endpoint: Endpoint) -> Result<Otlp, OtlpError> {
        // The channel is used in this runtime.
        let entered = runtime.enter();
        let channel = push::connect(endpoint);
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_channel(channel.clone())
            .with_timeout(EXPORT_TIMEOUT)
            .build()
            .map_err(|error| OtlpError::Spans(error.to_string()))?;
        let resource = Resource::builder().with_service_name(self.service_name.clone());
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .build();
        let end = Arc::new(Notify::new());
        drop(entered);
        starling::trace::set_tracer(OtelTracer::new()).map_err(|_| OtlpError::TracerIsSet)?;
        starling::trace::enable(self.share_of_roots);
        starling::metrics::enable();
        let (name, end_of_pushes) = (self.service_name, Arc::clone(&end));
        let pushes = push::push(channel, self.address, name, self.interval, end_of_pushes);
        let metrics = runtime.spawn(pushes);
        Ok(Otlp {
            provider,
            metrics: Some(metrics),
            end,
            runtime: None,
        })
    }
}

/// Exports this process's traces and metrics until it is shut down or dropped.
pub struct Otlp {
    provider: SdkTracerProvider,
    metrics: Option<JoinHandle<()>>,
    /// The metrics are to be sent a last time.
    end: Arc<Notify>,
    runtime: Option<Runtime>,
}

impl Otlp {
    /// An export to the collector at this address: `http://HOST:4317`.
    pub fn builder(address: &str) -> OtlpBuilder {
        let program = std::env::args().next().unwrap_or_default();
        let name = program.rsplit('/').next().unwrap_or_default();
        OtlpBuilder {
            address: address.to_owned(),
            service_name: name.to_owned(),
            interval: INTERVAL,
            share_of_roots: 0.001,
        }
    }

    /// What a subscriber of `tracing` needs to have spans exported: those of calls and the program's own.
    pub fn layer<S>(&self) -> OpenTelemetryLayer<S, SdkTracer>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        tracing_opentelemetry::layer().with_tracer(self.provider.tracer("starling"))
    }

    /// Sends what is left, and ends. Takes some seconds if the collector cannot be reached.
    pub fn shut_down(mut self) {
        self.end_exports();
    }

    fn end_exports(&mut self) {
        let (Some(metrics), Some(runtime)) = (self.metrics.take(), self.runtime.take()) else {
            return;
        };
        self.end.notify_one();
        // In a thread of its own: the caller may be in a runtime, which a wait would block.
        let provider = self.provider.clone();
        let ending = std::thread::spawn(move || {
            // What the collector does not take is lost, whoever hears of it.
            let _ = runtime.block_on(async { tokio::time::timeout(EXPORT_TIMEOUT, metrics).await });
            let _ = provider.shutdown();
            runtime.shutdown_timeout(EXPORT_TIMEOUT);
        });
        let _ = ending.join();
    }
}

impl Drop for Otlp {
    fn drop(&mut self) {
        self.end_exports();
    }
}

impl fmt::Debug for Otlp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Otlp(..)")
    }
}
