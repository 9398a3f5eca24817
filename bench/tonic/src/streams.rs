//! The suite `streams` over tonic: the server, the settings and the runtimes of the suite `channel`.
//!
//! Items that are at hand come from an iterator, and tonic puts as many into a frame as fit. Items that come
//! one by one are made by a task behind a queue, as its guide has it.

use std::time::{Duration, Instant};

use futures::SinkExt;
use futures::channel::mpsc;
use futures::stream::{self, Stream};
use starling_bench::callers::{self, Callers, EchoStub};
use starling_bench::floor::SMALL_BYTES;
use starling_bench::streams::{
    Arrival, LARGE_ITEM_BYTES, PING_PONG_CALLERS, TURNS, Take, client_stream, figure, in_task,
    large_calls, ping_pong, server_stream, small_calls, take_items,
};
use starling_bench::{BenchError, Benchmark, Context, Sample};
use tokio::runtime::Handle;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::api::bench::echo_client::EchoClient;
use crate::api::bench::{Payload, Wanted};
use crate::channel::{ROLE, measure, usual_runtime};
use crate::{SYSTEM, connect, echo, failed};

pub(crate) fn benchmarks() -> Vec<Benchmark> {
    let from_server = |bytes: usize, arrival: Arrival| {
        let measure = move |context: &Context| from_server(context, bytes, arrival);
        Benchmark::new("grpc", SYSTEM, server_stream(bytes, arrival), measure)
    };
    let to_server = |arrival: Arrival| {
        let measure = move |context: &Context| to_server(context, arrival);
        Benchmark::new("grpc", SYSTEM, client_stream(arrival), measure)
    };
    let mut benchmarks = vec![
        from_server(SMALL_BYTES, Arrival::AtHand),
        from_server(SMALL_BYTES, Arrival::OneByOne),
        to_server(Arrival::AtHand),
        to_server(Arrival::OneByOne),
        from_server(LARGE_ITEM_BYTES, Arrival::AtHand),
        Benchmark::new("grpc", SYSTEM, large_calls(), by_calls),
    ];
    for callers in PING_PONG_CALLERS {
        let streams = move |context: &Context| by_stream(context, callers);
        let calls = move |context: &Context| measure(context, callers);
        benchmarks.extend([
            Benchmark::new("grpc", SYSTEM, ping_pong(callers), streams),
            Benchmark::new("grpc", SYSTEM, small_calls(callers), calls),
        ]);
    }
    benchmarks
}

struct ServerStream {
    items: Streaming<Payload>,
    bytes: usize,
}

impl Take for ServerStream {
    async fn take(&mut self) -> Result<u64, BenchError> {
        let item = self.items.message().await.map_err(failed)?;
        check_length(self.bytes, item.map(|item| item.data.len()))?;
        Ok(1)
    }
}

/// An error if a stream has ended, or an item has another length.
fn check_length(expected: usize, length: Option<usize>) -> Result<(), BenchError> {
    if length == Some(expected) {
        return Ok(());
    }
    Err(BenchError::WrongEcho {
        scheme: "grpc",
        system: SYSTEM,
        what: format!("an item of {length:?} bytes, where {expected} belong"),
    })
}

fn from_server(context: &Context, bytes: usize, arrival: Arrival) -> Result<Sample, BenchError> {
    let server = context.launcher.start(ROLE, &[])?;
    let (address, seconds) = (server.address().to_owned(), context.seconds);
    let rate = in_task(async move {
        let mut client = EchoClient::new(connect(&address).await?);
        let wanted = Wanted {
            items: u64::MAX,
            bytes: bytes as u32,
            one_by_one: arrival == Arrival::OneByOne,
        };
        let items = client.source(wanted).await.map_err(failed)?.into_inner();
        take_items(seconds, bytes, ServerStream { items, bytes }).await
    })?;
    Ok(vec![figure(rate, bytes)])
}

/// Large requests with small answers, one at a time.
struct LargeCalls(EchoClient<Channel>);

impl Take for LargeCalls {
    async fn take(&mut self) -> Result<u64, BenchError> {
        let data = vec![0; LARGE_ITEM_BYTES];
        let answer = self.0.sink(Payload { data }).await.map_err(failed)?;
        check_length(SMALL_BYTES, Some(answer.into_inner().data.len()))?;
        Ok(1)
    }
}

fn by_calls(context: &Context) -> Result<Sample, BenchError> {
    let server = context.launcher.start(ROLE, &[])?;
    let (address, seconds) = (server.address().to_owned(), context.seconds);
    let rate = in_task(async move {
        let calls = LargeCalls(EchoClient::new(connect(&address).await?));
        take_items(seconds, LARGE_ITEM_BYTES, calls).await
    })?;
    Ok(vec![figure(rate, LARGE_ITEM_BYTES)])
}

/// A client's stream, and another one before it as a warm-up.
fn to_server(context: &Context, arrival: Arrival) -> Result<Sample, BenchError> {
    let server = context.launcher.start(ROLE, &[])?;
    let address = server.address().to_owned();
    let periods = [context.seconds / 10.0, context.seconds].map(Duration::from_secs_f64);
    let rate = in_task(async move {
        let mut client = EchoClient::new(connect(&address).await?);
        let mut rate = 0.0;
        for period in periods {
            let begun = Instant::now();
            let items = (0..)
                .take_while(move |count: &u64| {
                    !(*count).is_multiple_of(TURNS) || *count == 0 || begun.elapsed() < period
                })
                .map(|_| echo::request(0));
            let answer = match arrival {
                Arrival::AtHand => client.drain(stream::iter(items)).await,
                Arrival::OneByOne => client.drain(queued(items)).await,
            };
            let count = number_in(&answer.map_err(failed)?.into_inner())?;
            rate = count as f64 / begun.elapsed().as_secs_f64();
        }
        Ok(rate)
    })?;
    Ok(vec![figure(rate, SMALL_BYTES)])
}

/// Items that a task of their own makes one at a time, behind a queue.
fn queued(items: impl Iterator<Item = Payload> + Send + 'static) -> impl Stream<Item = Payload> {
    let (mut there, queue) = mpsc::channel(echo::QUEUED);
    tokio::spawn(async move {
        for item in items {
            if there.send(item).await.is_err() {
                return;
            }
        }
    });
    queue
}

/// How many items the server has counted.
fn number_in(answer: &Payload) -> Result<u64, BenchError> {
    check_length(SMALL_BYTES, Some(answer.data.len()))?;
    let number = answer.data[..8].try_into().expect("8 bytes");
    Ok(u64::from_le_bytes(number))
}

fn by_stream(context: &Context, callers: Callers) -> Result<Sample, BenchError> {
    let server = context.launcher.start(ROLE, &[])?;
    let runtime = match callers {
        Callers::Threads(_) => usual_runtime()?,
        Callers::Tasks { flavor, .. } => flavor.runtime()?,
    };
    let channel = runtime.block_on(connect(server.address()))?;
    let stub = StreamStub {
        client: EchoClient::new(channel),
        stream: None,
        runtime: runtime.handle().clone(),
    };
    callers::measure(context, &server, |period| match callers {
        Callers::Threads(count) => callers::threads(count, period, &stub),
        Callers::Tasks { count, .. } => callers::tasks(&runtime, count, period, &stub),
    })
}

/// A stream, as if each item were a call. Each clone begins one with its first item.
struct StreamStub {
    client: EchoClient<Channel>,
    stream: Option<(mpsc::UnboundedSender<Payload>, Streaming<Payload>)>,
    /// For plain threads.
    runtime: Handle,
}

impl Clone for StreamStub {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            stream: None,
            runtime: self.runtime.clone(),
        }
    }
}

impl EchoStub for StreamStub {
    fn wait(&mut self, number: u64) -> Result<(), BenchError> {
        let runtime = self.runtime.clone();
        runtime.block_on(self.call(number))
    }

    async fn call(&mut self, number: u64) -> Result<(), BenchError> {
        if self.stream.is_none() {
            let (there, items) = mpsc::unbounded();
            let back = self.client.exchange(items).await.map_err(failed)?;
            self.stream = Some((there, back.into_inner()));
        }
        let (there, back) = self.stream.as_mut().expect("just begun");
        there
            .unbounded_send(echo::request(number))
            .map_err(failed)?;
        let item = back.message().await.map_err(failed)?;
        echo::check(number, &item.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tonic_has_the_benchmarks_of_starling_but_for_idle_streams() {
        let names: Vec<String> = benchmarks().iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), 10);
        assert_eq!(names[0], "tonic/grpc server-stream 32B");
        assert_eq!(names[6], "tonic/grpc ping-pong 32B threads=1");
    }

    #[test]
    fn the_server_counts_in_the_first_bytes() {
        assert_eq!(number_in(&echo::request(7)).unwrap(), 7);
        assert!(number_in(&Payload { data: vec![1] }).is_err());
    }
}
