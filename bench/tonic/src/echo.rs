//! The echo service over tonic: its server, and the measurements of latency and rate.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::stream::{self, Stream};
use starling_bench::floor::SMALL_BYTES;
use starling_bench::latency::Latencies;
use starling_bench::{BenchError, Context, Metric, Sample};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status, Streaming};

use crate::api::bench::echo_client::EchoClient;
use crate::api::bench::echo_server::{Echo, EchoServer};
use crate::api::bench::{Payload, Wanted};
use crate::{SYSTEM, connect, failed, runtime, serve_on_loopback_in};

/// Role of the server.
pub(crate) const ROLE: &str = "tonic-echo";

/// Calls in flight in the measurement of the rate. With this number tonic reaches its highest rate on
/// two cores.
const IN_FLIGHT: usize = 128;

/// Items in a queue.
pub(crate) const QUEUED: usize = 128;

struct Service;

/// A stream of responses.
type Items = Pin<Box<dyn Stream<Item = Result<Payload, Status>> + Send>>;

#[tonic::async_trait]
impl Echo for Service {
    async fn call(&self, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    async fn sink(&self, _: Request<Payload>) -> Result<Response<Payload>, Status> {
        let data = vec![0; SMALL_BYTES];
        Ok(Response::new(Payload { data }))
    }

    type SourceStream = Items;

    async fn source(&self, request: Request<Wanted>) -> Result<Response<Items>, Status> {
        let wanted = request.into_inner();
        let data = vec![0; wanted.bytes as usize];
        let items = (0..wanted.items).map(move |_| Payload { data: data.clone() });
        Ok(Response::new(match wanted.one_by_one {
            false => Box::pin(stream::iter(items.map(Ok))),
            true => queued(items),
        }))
    }

    async fn drain(
        &self,
        request: Request<Streaming<Payload>>,
    ) -> Result<Response<Payload>, Status> {
        let mut items = request.into_inner();
        let mut count: u64 = 0;
        while items.message().await?.is_some() {
            count += 1;
        }
        let mut data = vec![0; SMALL_BYTES];
        data[..8].copy_from_slice(&count.to_le_bytes());
        Ok(Response::new(Payload { data }))
    }

    type ExchangeStream = Streaming<Payload>;

    async fn exchange(
        &self,
        request: Request<Streaming<Payload>>,
    ) -> Result<Response<Streaming<Payload>>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}

/// Items that a task of their own makes one at a time, behind a queue of the usual length: tonic's guide has
/// handlers do so whose items are not at hand.
fn queued(items: impl Iterator<Item = Payload> + Send + 'static) -> Items {
    let (there, mut queue) = mpsc::channel(QUEUED);
    tokio::spawn(async move {
        for item in items {
            if there.send(Ok(item)).await.is_err() {
                return;
            }
        }
    });
    Box::pin(stream::poll_fn(move |cx| queue.poll_recv(cx)))
}

pub(crate) fn serve() -> Result<(), BenchError> {
    serve_in(&runtime()?)
}

/// Serves in a runtime.
pub(crate) fn serve_in(runtime: &Runtime) -> Result<(), BenchError> {
    serve_on_loopback_in(runtime, |incoming| {
        Server::builder()
            .add_service(EchoServer::new(Service).max_decoding_message_size(usize::MAX))
            .serve_with_incoming(incoming)
    })
}

/// Makes one call with `number` in its request, and fails unless the response has the same number.
pub(crate) async fn call(client: &mut EchoClient<Channel>, number: u64) -> Result<(), BenchError> {
    let answer = client.call(request(number)).await.map_err(failed)?;
    check(number, &answer.into_inner())
}

/// A small message that begins with a number.
pub(crate) fn request(number: u64) -> Payload {
    let mut data = vec![0; SMALL_BYTES];
    data[..8].copy_from_slice(&number.to_le_bytes());
    Payload { data }
}

/// An error if an answer does not begin with this number.
pub(crate) fn check(number: u64, answer: &Payload) -> Result<(), BenchError> {
    if answer.data.len() != SMALL_BYTES || answer.data[..8] != number.to_le_bytes() {
        return Err(BenchError::WrongEcho {
            scheme: "grpc",
            system: SYSTEM,
            what: format!("call {number} was answered with {:?}", answer.data),
        });
    }
    Ok(())
}

fn warm_up(context: &Context) -> Duration {
    Duration::from_secs_f64(context.seconds / 10.0)
}

fn measured(context: &Context) -> Duration {
    Duration::from_secs_f64(context.seconds)
}

/// Measures latencies, with one call at a time.
pub(crate) fn latencies(context: &Context) -> Result<Sample, BenchError> {
    let server = context.launcher.start(ROLE, &[])?;
    runtime()?.block_on(async {
        let mut client = EchoClient::new(connect(server.address()).await?);
        let begin = Instant::now();
        while begin.elapsed() < warm_up(context) {
            call(&mut client, 0).await?;
        }
        let mut latencies = Latencies::new();
        let begin = Instant::now();
        let mut last = begin;
        while last - begin < measured(context) {
            call(&mut client, latencies.count()).await?;
            let now = Instant::now();
            latencies.record((now - last).as_nanos() as u64);
            last = now;
        }
        Ok(latencies.sample())
    })
}

/// Measures the rate, with [`IN_FLIGHT`] calls in flight.
pub(crate) fn rate(context: &Context) -> Result<Sample, BenchError> {
    let server = context.launcher.start(ROLE, &[])?;
    runtime()?.block_on(async {
        let client = EchoClient::new(connect(server.address()).await?);
        calls_per_second(&client, warm_up(context)).await?;
        let rate = calls_per_second(&client, measured(context)).await?;
        Ok(vec![(Metric::Rate, rate)])
    })
}

async fn calls_per_second(
    client: &EchoClient<Channel>,
    period: Duration,
) -> Result<f64, BenchError> {
    let begin = Instant::now();
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..IN_FLIGHT {
        let mut client = client.clone();
        let next = Arc::clone(&next);
        tasks.spawn(async move {
            while begin.elapsed() < period {
                let number = next.fetch_add(1, Ordering::Relaxed);
                call(&mut client, number).await?;
            }
            Ok::<(), BenchError>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(failed)??;
    }
    let calls = next.load(Ordering::Relaxed);
    Ok(calls as f64 / begin.elapsed().as_secs_f64())
}
