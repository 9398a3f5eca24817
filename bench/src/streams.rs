//! What streams of items take through a channel: default settings on both sides, a generated client, and
//! the server of the suite `channel`. tonic's are beside them, in `bench/tonic`.
//!
//! | case | is |
//! |---|---|
//! | `server-stream 32B` | the server has all items at hand, and one task reads them where they lie |
//! | `server-stream one-by-one 32B` | the server sends one item at a time, and the task takes one at a time |
//! | `server-stream 64KiB` | the same of large ones, which are all at hand |
//! | `large/64KiB` | calls with as much, of the suite `large`, to compare with |
//! | `client-stream 32B`, `client-stream one-by-one 32B` | one task sends items, and the server says how many it has read |
//! | `ping-pong` | one item each way at a time, on one stream |
//! | `unary` | the same in calls, one at a time, to compare with |
//! | `unary nested` | the same, and the server's handler is a future, as that of a stream is |
//! | `idle-streams` | the memory of streams that are open at rest: the module `idle` |
//!
//! A row of items per second counts those that the reader has taken and whose length was right.

mod idle;
mod ping_pong;

use std::future::Future;
use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use bytes::Bytes;
use starling::{Channel, StreamReceiver};
use starling_io_shm::ShmIo;
use starling_io_udp::UdpIo;
use starling_sample_services::api::bench::{
    EchoClient, NestedEchoClient, Payload, PayloadMut, Wanted,
};

use crate::benchmark::{Benchmark, Context};
use crate::callers::{Callers, Flavor};
use crate::channel::{self, CHANNEL, server};
use crate::device::{Device, failed};
use crate::endpoint;
use crate::error::BenchError;
use crate::floor::{Period, SMALL_BYTES};
use crate::metric::{Metric, Sample};
use crate::process::{RoleProcess, begin_client};

/// Bytes of a large item.
pub const LARGE_ITEM_BYTES: usize = 64 << 10;

/// Items between two readings of the clock, for small ones.
pub const TURNS: u64 = 64;

/// The system of the calls that large items are compared with.
const LARGE: &str = "large";

/// How the items of a stream come, and how they are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// All of them are at hand.
    AtHand,
    /// One at a time.
    OneByOne,
}

impl Arrival {
    fn prefix(self) -> &'static str {
        match self {
            Self::AtHand => "",
            Self::OneByOne => "one-by-one ",
        }
    }
}

/// Who exchanges single items: as for single calls, a plain thread and a task.
pub const PING_PONG_CALLERS: [Callers; 2] = [
    Callers::Threads(1),
    Callers::Tasks {
        flavor: Flavor::CurrentThread,
        count: 1,
    },
];

/// The case of a server's stream of items of so many bytes.
pub fn server_stream(bytes: usize, arrival: Arrival) -> String {
    format!("server-stream {}{}", arrival.prefix(), item_size(bytes))
}

/// The case of a client's stream of small items.
pub fn client_stream(arrival: Arrival) -> String {
    format!(
        "client-stream {}{}",
        arrival.prefix(),
        item_size(SMALL_BYTES)
    )
}

/// The case of large calls, one at a time.
pub fn large_calls() -> String {
    format!("unary {}", item_size(LARGE_ITEM_BYTES))
}

/// The case of one item each way at a time.
pub fn ping_pong(callers: Callers) -> String {
    format!("ping-pong {} {}", item_size(SMALL_BYTES), callers.case())
}

/// The case of one small call at a time.
pub fn small_calls(callers: Callers) -> String {
    format!("unary {} {}", item_size(SMALL_BYTES), callers.case())
}

/// The case of one small call at a time whose handler is a future.
fn nested_calls(callers: Callers) -> String {
    format!("unary nested {} {}", item_size(SMALL_BYTES), callers.case())
}

fn item_size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes}B"),
        _ => crate::suite::size_case(bytes),
    }
}

/// The figure of a stream that carried so many items of `bytes` bytes per second: bytes per second for
/// large ones, which are compared with large calls.
pub fn figure(items_per_second: f64, bytes: usize) -> (Metric, f64) {
    match bytes {
        SMALL_BYTES => (Metric::Rate, items_per_second),
        _ => (Metric::Throughput, items_per_second * bytes as f64),
    }
}

/// Starling's benchmarks of the suite.
pub(crate) fn benchmarks() -> Vec<Benchmark> {
    let mut benchmarks = on::<UdpIo>();
    benchmarks.extend(on::<ShmIo>());
    benchmarks
}

/// Runs the process of a role that this module has. `None`: the role is not one of them.
pub(crate) fn serve(role: &str, arguments: &[String]) -> Option<Result<(), BenchError>> {
    match role {
        idle::ROLE => Some(begin_client(role, arguments).and_then(|rest| idle::serve(&rest))),
        _ => None,
    }
}

fn on<I: Device>() -> Vec<Benchmark> {
    let from_server = |bytes: usize, arrival: Arrival| {
        let case = server_stream(bytes, arrival);
        Benchmark::new(I::SCHEME, CHANNEL, case, move |context| {
            from_server(context, I::SCHEME, bytes, arrival)
        })
    };
    let to_server = |arrival: Arrival| {
        Benchmark::new(I::SCHEME, CHANNEL, client_stream(arrival), move |context| {
            to_server(context, I::SCHEME, arrival)
        })
    };
    let mut benchmarks = vec![
        from_server(SMALL_BYTES, Arrival::AtHand),
        from_server(SMALL_BYTES, Arrival::OneByOne),
        to_server(Arrival::AtHand),
        to_server(Arrival::OneByOne),
        from_server(LARGE_ITEM_BYTES, Arrival::AtHand),
        Benchmark::new(I::SCHEME, CHANNEL, large_calls(), |context| {
            by_calls(context, I::SCHEME)
        }),
    ];
    benchmarks.extend(endpoint::large::<I>(LARGE, LARGE_ITEM_BYTES));
    for callers in PING_PONG_CALLERS {
        let streams = move |context: &Context| ping_pong::measure(context, I::SCHEME, callers);
        let calls = move |context: &Context| {
            channel::through_channel(context, I::SCHEME, callers, EchoClient::new)
        };
        let nested = move |context: &Context| {
            channel::through_channel(context, I::SCHEME, callers, NestedEchoClient::new)
        };
        benchmarks.extend([
            Benchmark::new(I::SCHEME, CHANNEL, ping_pong(callers), streams),
            Benchmark::new(I::SCHEME, CHANNEL, small_calls(callers), calls),
            Benchmark::new(I::SCHEME, CHANNEL, nested_calls(callers), nested),
        ]);
    }
    benchmarks.extend(idle::benchmarks(I::SCHEME));
    benchmarks
}

fn start(
    context: &Context,
    scheme: &'static str,
) -> Result<(RoleProcess, EchoClient<Channel>), BenchError> {
    let server = context.launcher.start(server::ROLE, &[scheme])?;
    let channel = Channel::lazy(server.address()).map_err(failed)?;
    Ok((server, EchoClient::new(channel)))
}

/// Runs a task of tokio to its end, in a runtime of one thread.
pub fn in_task<T: Send + 'static>(
    task: impl Future<Output = Result<T, BenchError>> + Send + 'static,
) -> Result<T, BenchError> {
    let runtime = Flavor::CurrentThread.runtime()?;
    let joined = runtime.block_on(async { tokio::spawn(task).await });
    // No task is aborted, so one that has no result panicked.
    joined.unwrap_or_else(|error| resume_unwind(error.into_panic()))
}

/// What a task takes again and again.
pub trait Take: Send {
    /// Takes the next one, or several that are here. Returns how many.
    fn take(&mut self) -> impl Future<Output = Result<u64, BenchError>> + Send;
}

/// Takes items for a warm-up of a tenth of the measuring time, then for the measuring time, and returns
/// how many per second it took in the latter.
pub async fn take_items(
    seconds: f64,
    bytes: usize,
    mut items: impl Take,
) -> Result<f64, BenchError> {
    let turns = if bytes == SMALL_BYTES { TURNS } else { 1 };
    let mut rate = 0.0;
    for seconds in [seconds / 10.0, seconds] {
        let period = Period::seconds(seconds);
        let mut count = 0;
        // Even the shortest period has a result.
        while count == 0 || !period.is_over() {
            let until = count + turns;
            while count < until {
                count += items.take().await?;
            }
        }
        rate = period.rate_of(count);
    }
    Ok(rate)
}

struct ServerStream {
    items: StreamReceiver<Payload>,
    bytes: usize,
    arrival: Arrival,
    scheme: &'static str,
}

impl Take for ServerStream {
    async fn take(&mut self) -> Result<u64, BenchError> {
        match self.arrival {
            Arrival::OneByOne => {
                let item = self.items.message().await.map_err(failed)?;
                let length = item.map(|item| item.message().data().len());
                check_length(self.scheme, self.bytes, length)?;
                Ok(1)
            }
            Arrival::AtHand => {
                let bundle = self.items.bundle().await.map_err(failed)?;
                let Some(bundle) = bundle else {
                    check_length(self.scheme, self.bytes, None)?;
                    return Ok(0);
                };
                let mut count = 0;
                for item in &bundle {
                    check_length(self.scheme, self.bytes, Some(item.data().len()))?;
                    count += 1;
                }
                Ok(count)
            }
        }
    }
}

fn from_server(
    context: &Context,
    scheme: &'static str,
    bytes: usize,
    arrival: Arrival,
) -> Result<Sample, BenchError> {
    let (_server, client) = start(context, scheme)?;
    let seconds = context.seconds;
    let rate = in_task(async move {
        let wanted = Wanted::new()
            .with_items(u64::MAX)
            .with_bytes(bytes as u32)
            .with_one_by_one(arrival == Arrival::OneByOne);
        let items = ServerStream {
            items: client.source(&wanted),
            bytes,
            arrival,
            scheme,
        };
        take_items(seconds, bytes, items).await
    })?;
    Ok(vec![figure(rate, bytes)])
}

/// An error if a stream has ended, or an item has another length.
#[inline]
fn check_length(
    scheme: &'static str,
    expected: usize,
    length: Option<usize>,
) -> Result<(), BenchError> {
    if length == Some(expected) {
        return Ok(());
    }
    Err(BenchError::WrongEcho {
        scheme,
        system: CHANNEL,
        what: format!("an item of {length:?} bytes, where {expected} belong"),
    })
}

/// Large requests with small answers, one at a time.
struct LargeCalls {
    client: EchoClient<Channel>,
    data: Bytes,
    scheme: &'static str,
}

impl Take for LargeCalls {
    async fn take(&mut self) -> Result<u64, BenchError> {
        let request = Payload::new().with_data_bytes(self.data.clone());
        let answer = self.client.sink(&request).await.map_err(failed)?;
        let length = answer.message().data().len();
        check_length(self.scheme, SMALL_BYTES, Some(length))?;
        Ok(1)
    }
}

fn by_calls(context: &Context, scheme: &'static str) -> Result<Sample, BenchError> {
    let (_server, client) = start(context, scheme)?;
    let calls = LargeCalls {
        client,
        data: Bytes::from(vec![0; LARGE_ITEM_BYTES]),
        scheme,
    };
    let rate = in_task(take_items(context.seconds, LARGE_ITEM_BYTES, calls))?;
    Ok(vec![figure(rate, LARGE_ITEM_BYTES)])
}

/// A client's stream, and another one before it as a warm-up. The time ends with the answer, so it
/// includes all items that the server has counted.
fn to_server(
    context: &Context,
    scheme: &'static str,
    arrival: Arrival,
) -> Result<Sample, BenchError> {
    let (_server, client) = start(context, scheme)?;
    let periods = [context.seconds / 10.0, context.seconds].map(Duration::from_secs_f64);
    let rate = in_task(async move {
        let mut rate = 0.0;
        for period in periods {
            let begun = Instant::now();
            let (sent, answer) = send_items(&client, begun, period, arrival).await?;
            channel::check(CHANNEL, scheme, sent, &answer)?;
            rate = sent as f64 / begun.elapsed().as_secs_f64();
        }
        Ok(rate)
    })?;
    Ok(vec![figure(rate, SMALL_BYTES)])
}

/// How many items were sent, and the server's answer.
async fn send_items(
    client: &EchoClient<Channel>,
    begun: Instant,
    period: Duration,
    arrival: Arrival,
) -> Result<(u64, Vec<u8>), BenchError> {
    let mut drain = client.drain();
    let mut sent = 0;
    let goes_on = |sent: u64| !sent.is_multiple_of(TURNS) || sent == 0 || begun.elapsed() < period;
    match arrival {
        Arrival::AtHand => {
            let items = (0..).take_while(|number| goes_on(*number));
            let build = |number: u64, mut item: PayloadMut<'_>| {
                item.set_data(&[0; SMALL_BYTES]);
                sent = number + 1;
            };
            drain.send_each(items, build).await.map_err(failed)?;
        }
        Arrival::OneByOne => {
            while goes_on(sent) {
                let item = Payload::new().with_data(&[0; SMALL_BYTES]);
                drain.send(&item).await.map_err(failed)?;
                sent += 1;
            }
        }
    }
    let answer = drain.finish().await.map_err(failed)?;
    Ok((sent, answer.message().data().to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scheme_has_streams_and_calls_to_compare_them_with() {
        let names: Vec<String> = benchmarks().iter().map(ToString::to_string).collect();
        assert_eq!(
            names[..15],
            [
                "channel/udp server-stream 32B",
                "channel/udp server-stream one-by-one 32B",
                "channel/udp client-stream 32B",
                "channel/udp client-stream one-by-one 32B",
                "channel/udp server-stream 64KiB",
                "channel/udp unary 64KiB",
                "large/udp 64KiB",
                "channel/udp ping-pong 32B threads=1",
                "channel/udp unary 32B threads=1",
                "channel/udp unary nested 32B threads=1",
                "channel/udp ping-pong 32B current-thread tasks=1",
                "channel/udp unary 32B current-thread tasks=1",
                "channel/udp unary nested 32B current-thread tasks=1",
                "channel/udp idle-streams=10000 client",
                "channel/udp idle-streams=10000 server",
            ]
        );
        assert_eq!(names[15], "channel/shm server-stream 32B");
        assert!(names.contains(&"large/shm 64KiB copied".to_owned()));
    }

    #[test]
    fn an_item_of_another_length_is_an_error() {
        assert!(check_length("udp", 32, Some(32)).is_ok());
        for wrong in [None, Some(0), Some(33)] {
            let error = check_length("udp", 32, wrong).unwrap_err();
            assert!(error.to_string().contains("where 32 belong"), "{error}");
        }
    }

    #[test]
    fn small_items_are_counted_and_large_ones_by_their_bytes() {
        assert_eq!(figure(5.0, SMALL_BYTES), (Metric::Rate, 5.0));
        assert_eq!(figure(2.0, 1024), (Metric::Throughput, 2048.0));
    }

    #[test]
    fn an_unknown_role_is_left_to_other_modules() {
        assert!(serve("somebody-else", &[]).is_none());
    }
}
