//! The benchmarks' gRPC baseline: the services of the benchmarks over tonic, with the settings that
//! make tonic fastest on one core for each side. The suites `channel` and `streams` have it as users take it.
//!
//! - Each side has a tokio runtime of one thread, pinned to its core. More threads would compete for
//!   that core.
//! - Both ends set `TCP_NODELAY`.
//! - All calls go over one HTTP/2 connection.

mod channel;
mod echo;
mod kv;
mod managed;
mod policies;
mod streams;

use std::error::Error;
use std::future::Future;

use starling_bench::process::{announce, begin_client, begin_server};
use starling_bench::{BenchError, Benchmark, Suite};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint};

pub use kv::{CLIENT_ROLE as KV_CLIENT_ROLE, SERVER_ROLE as KV_SERVER_ROLE};

/// The name of this system in rows and errors.
const SYSTEM: &str = "tonic";

/// tonic's benchmarks of a suite.
pub fn benchmarks(suite: Suite) -> Vec<Benchmark> {
    match suite {
        Suite::Rtt => vec![Benchmark::new("grpc", SYSTEM, "", echo::latencies)],
        Suite::Rate => vec![Benchmark::new("grpc", SYSTEM, "", echo::rate)],
        Suite::Channel => channel::benchmarks(),
        Suite::Streams => streams::benchmarks(),
        Suite::Managed => managed::benchmarks(),
        Suite::Policies => policies::benchmarks(),
        Suite::Large
        | Suite::Sessions
        | Suite::Factors
        | Suite::Breakdown
        | Suite::Dispatch
        | Suite::Slo
        | Suite::Interference
        | Suite::Observe => vec![],
    }
}

/// Runs this process in a role. `None`: this package does not have the role.
pub fn serve(role: &str, arguments: &[String]) -> Option<Result<(), BenchError>> {
    match role {
        echo::ROLE => Some(begin_server(role, arguments).and_then(|_| echo::serve())),
        channel::ROLE => Some(begin_server(role, arguments).and_then(|_| channel::serve())),
        policies::ROLE => Some(begin_server(role, arguments).and_then(|_| policies::serve())),
        managed::ROLE => Some(begin_client(role, arguments).and_then(|rest| managed::serve(&rest))),
        KV_SERVER_ROLE => Some(begin_server(role, arguments).and_then(|rest| kv::serve(&rest))),
        KV_CLIENT_ROLE => Some(begin_client(role, arguments).and_then(|rest| kv::drive(&rest))),
        _ => None,
    }
}

/// The stubs that build.rs makes.
#[allow(missing_docs, unreachable_pub, clippy::all)]
mod api {
    pub mod bench {
        tonic::include_proto!("bench");
    }
    pub mod hotel {
        tonic::include_proto!("hotel");
    }
    pub mod kv {
        tonic::include_proto!("kv");
    }
}

fn runtime() -> Result<Runtime, BenchError> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(BenchError::io("starting a tokio runtime"))
}

/// Binds a listener on the loopback interface, announces its address to the process that started this
/// one, and runs `serve` on it.
fn serve_on_loopback<F>(serve: impl FnOnce(TcpIncoming) -> F) -> Result<(), BenchError>
where
    F: Future<Output = Result<(), tonic::transport::Error>>,
{
    serve_on_loopback_in(&runtime()?, serve)
}

/// The same in another runtime.
fn serve_on_loopback_in<F>(
    runtime: &Runtime,
    serve: impl FnOnce(TcpIncoming) -> F,
) -> Result<(), BenchError>
where
    F: Future<Output = Result<(), tonic::transport::Error>>,
{
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .map_err(BenchError::io("binding a TCP socket"))?;
        let address = listener
            .local_addr()
            .map_err(BenchError::io("asking for the socket's address"))?;
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        announce(&format!("http://{address}"))?;
        serve(incoming).await.map_err(failed)
    })
}

async fn connect(address: &str) -> Result<Channel, BenchError> {
    Endpoint::from_shared(address.to_string())
        .map_err(failed)?
        .tcp_nodelay(true)
        .connect()
        .await
        .map_err(failed)
}

/// Converts an error of tonic. The text has all causes, because tonic's outermost error says little.
fn failed(error: impl Error) -> BenchError {
    let mut what = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        what = format!("{what}: {error}");
        cause = error.source();
    }
    BenchError::Call {
        system: SYSTEM,
        what,
    }
}
