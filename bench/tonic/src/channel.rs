//! The suite `channel` over tonic: as users take it, with `TCP_NODELAY` as the only setting.
//!
//! The server has tokio's usual runtime, which has as many workers as the process may use cores: one.
//! Plain threads share such a runtime, and each waits by its `block_on`. Tasks have the runtimes that
//! Starling's callers have.

use starling_bench::callers::{self, Callers, EchoStub};
use starling_bench::process::RoleProcess;
use starling_bench::{BenchError, Benchmark, Context, Sample};
use tokio::runtime::{Builder, Handle, Runtime};
use tonic::transport::Channel;

use crate::api::bench::echo_client::EchoClient;
use crate::{SYSTEM, connect, echo};

/// Role of the server.
pub(crate) const ROLE: &str = "tonic-echo-usual";

pub(crate) fn benchmarks() -> Vec<Benchmark> {
    let of_callers = |callers: Callers| {
        Benchmark::new("grpc", SYSTEM, callers.case(), move |context| {
            measure(context, callers)
        })
    };
    Callers::ALL.map(of_callers).into()
}

/// The server.
pub(crate) fn serve() -> Result<(), BenchError> {
    echo::serve_in(&usual_runtime()?)
}

/// What `#[tokio::main]` makes.
pub(crate) fn usual_runtime() -> Result<Runtime, BenchError> {
    Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(BenchError::io("starting a tokio runtime"))
}

pub(crate) fn measure(context: &Context, callers: Callers) -> Result<Sample, BenchError> {
    let server = context.launcher.start(ROLE, &[])?;
    measure_at(context, &[&server], server.address(), callers, Stub::new)
}

/// Calls the server at an address. The processor time of these processes is counted, too.
pub(crate) fn measure_at<S: EchoStub>(
    context: &Context,
    processes: &[&RoleProcess],
    address: &str,
    callers: Callers,
    stub: impl FnOnce(Channel, &Handle) -> S,
) -> Result<Sample, BenchError> {
    let runtime = match callers {
        Callers::Threads(_) => usual_runtime()?,
        Callers::Tasks { flavor, .. } => flavor.runtime()?,
    };
    let channel = runtime.block_on(connect(address))?;
    let stub = stub(channel, runtime.handle());
    callers::measure_with(context, processes, |period| match callers {
        Callers::Threads(count) => callers::threads(count, period, &stub),
        Callers::Tasks { count, .. } => callers::tasks(&runtime, count, period, &stub),
    })
}

#[derive(Clone)]
pub(crate) struct Stub {
    client: EchoClient<Channel>,
    /// For plain threads.
    runtime: Handle,
}

impl Stub {
    pub(crate) fn new(channel: Channel, runtime: &Handle) -> Self {
        Self {
            client: EchoClient::new(channel),
            runtime: runtime.clone(),
        }
    }
}

impl EchoStub for Stub {
    fn wait(&mut self, number: u64) -> Result<(), BenchError> {
        let Self { client, runtime } = self;
        runtime.block_on(echo::call(client, number))
    }

    async fn call(&mut self, number: u64) -> Result<(), BenchError> {
        echo::call(&mut self.client, number).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tonic_has_a_benchmark_of_all_callers() {
        let names: Vec<String> = benchmarks().iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), Callers::ALL.len());
        assert_eq!(names[0], "tonic/grpc threads=1");
        assert_eq!(names[10], "tonic/grpc multi-thread tasks=128");
    }
}
