//! What users take: default settings on both sides, and a generated client.
//!
//! | system | is |
//! |---|---|
//! | `channel` | clones of one [`Channel`], in plain threads and in tasks of tokio |
//! | `mutex` | what one would write without channels: a [`LocalChannel`] behind a lock, and threads |
//! | `local` | a [`LocalChannel`] in the thread that has its endpoint |
//! | `endpoint` | the rate of the raw endpoint, which polls without end: that of the suite `rate` |
//! | `tonic` | its channel, with the same callers; in `bench/tonic` |
//!
//! The server is the echo of the sample services with an inline handler, in a process on the server's
//! core. All threads of the client share the client's core: see [`crate::callers`].
//!
//! Further cases of `channel`:
//!
//! | case | module | is |
//! |---|---|---|
//! | `slow=1000` | `slow` | 1,000 calls of 100 ms at once, and small ones behind them |
//! | `idle=100` | `idle` | a process with 100 connected channels that does nothing |
//! | `held=10ms` | `held` | threads whose driver is stopped now and then |

mod held;
mod idle;
pub(crate) mod server;
mod slow;

use std::sync::Arc;

use parking_lot::Mutex;
use starling::{Channel, ChannelCall, Endpoint, LocalChannel};
use starling_io_shm::ShmIo;
use starling_io_udp::UdpIo;
use starling_sample_services::api::bench::{EchoClient, NestedEchoClient, Payload};

use crate::benchmark::{Benchmark, Context};
use crate::callers::{self, Callers, EchoStub, small};
use crate::device::{Device, failed};
use crate::endpoint;
use crate::error::BenchError;
use crate::metric::Sample;
use crate::process::{RoleProcess, begin_client, begin_server};

/// Names of the systems, in rows and errors.
pub(crate) const CHANNEL: &str = "channel";
const LOCAL: &str = "local";
const MUTEX: &str = "mutex";
const ENDPOINT: &str = "endpoint";

/// Threads of the system `mutex`.
const MUTEX_CALLERS: usize = 8;

/// Starling's benchmarks of the suite.
pub(crate) fn benchmarks() -> Vec<Benchmark> {
    let mut benchmarks = on::<UdpIo>();
    benchmarks.extend(on::<ShmIo>());
    benchmarks
}

/// Runs the process of a role that this module has. `None`: the role is not one of them.
pub(crate) fn serve(role: &str, arguments: &[String]) -> Option<Result<(), BenchError>> {
    match role {
        server::ROLE => Some(begin_server(role, arguments).and_then(|rest| server::serve(&rest))),
        idle::ROLE => Some(begin_client(role, arguments).and_then(|rest| idle::serve(&rest))),
        _ => None,
    }
}

fn on<I: Device>() -> Vec<Benchmark> {
    let of_callers = |callers: Callers| {
        Benchmark::new(I::SCHEME, CHANNEL, callers.case(), move |context| {
            through_channel(context, I::SCHEME, callers, EchoClient::new)
        })
    };
    let mut benchmarks = Vec::from(Callers::ALL.map(of_callers));
    let one = Callers::Threads(1).case();
    benchmarks.push(Benchmark::new(I::SCHEME, LOCAL, one, |context| {
        through_local_channel(context, I::SCHEME)
    }));
    let eight = MUTEX_CALLERS;
    benchmarks.push(Benchmark::new(
        I::SCHEME,
        MUTEX,
        Callers::Threads(eight).case(),
        move |context| through_mutex(context, I::SCHEME, eight),
    ));
    benchmarks.push(endpoint::rate_in_flight::<I>(ENDPOINT));
    benchmarks.push(slow::benchmark(I::SCHEME));
    benchmarks.extend(idle::benchmarks(I::SCHEME));
    benchmarks.extend(held::benchmarks(I::SCHEME));
    benchmarks
}

/// Calls by a client that is made for the channel: of a method whose handler is inline, or a future.
pub(crate) fn through_channel<C: EchoMethod>(
    context: &Context,
    scheme: &'static str,
    callers: Callers,
    client: fn(Channel) -> C,
) -> Result<Sample, BenchError> {
    let server = context.launcher.start(server::ROLE, &[scheme])?;
    let channel = Channel::lazy(server.address()).map_err(failed)?;
    let stub = ChannelStub {
        client: client(channel),
        scheme,
    };
    by_callers(context, &[&server], callers, &stub)
}

/// What callers do with clones of a stub. The processor time of these processes is counted, too.
pub(crate) fn by_callers<S: EchoStub>(
    context: &Context,
    processes: &[&RoleProcess],
    callers: Callers,
    stub: &S,
) -> Result<Sample, BenchError> {
    match callers {
        Callers::Threads(count) => callers::measure_with(context, processes, |period| {
            callers::threads(count, period, stub)
        }),
        Callers::Tasks { flavor, count } => {
            let runtime = flavor.runtime()?;
            callers::measure_with(context, processes, |period| {
                callers::tasks(&runtime, count, period, stub)
            })
        }
    }
}

/// Each call is a run of the endpoint, as each call of a [`Channel`] in a plain thread is a wait.
fn through_local_channel(context: &Context, scheme: &'static str) -> Result<Sample, BenchError> {
    let server = context.launcher.start(server::ROLE, &[scheme])?;
    let mut endpoint = Endpoint::client(server.address()).map_err(failed)?;
    let channel = endpoint.channel(server.address()).map_err(failed)?;
    let client: EchoClient<LocalChannel> = EchoClient::new(channel);
    callers::measure(context, &server, |period| {
        callers::this_thread(period, |number| {
            let call = client.call(&request(number));
            let answer = endpoint.block_on(call).map_err(failed)?.map_err(failed)?;
            check(LOCAL, scheme, number, answer.message().data())
        })
    })
}

/// Threads that share an endpoint by a lock: each makes its call while it has the lock.
fn through_mutex(
    context: &Context,
    scheme: &'static str,
    threads: usize,
) -> Result<Sample, BenchError> {
    let server = context.launcher.start(server::ROLE, &[scheme])?;
    let endpoint = Endpoint::client(server.address()).map_err(failed)?;
    let channel = endpoint.channel(server.address()).map_err(failed)?;
    let stub = MutexStub {
        locked: Arc::new(Mutex::new((endpoint, EchoClient::new(channel)))),
        scheme,
    };
    callers::measure(context, &server, |period| {
        callers::threads(threads, period, &stub)
    })
}

#[derive(Clone)]
struct MutexStub {
    locked: Arc<Mutex<(Endpoint, EchoClient<LocalChannel>)>>,
    scheme: &'static str,
}

impl EchoStub for MutexStub {
    fn wait(&mut self, number: u64) -> Result<(), BenchError> {
        let (endpoint, client) = &mut *self.locked.lock();
        let call = client.call(&request(number));
        let answer = endpoint.block_on(call).map_err(failed)?.map_err(failed)?;
        check(MUTEX, self.scheme, number, answer.message().data())
    }

    async fn call(&mut self, number: u64) -> Result<(), BenchError> {
        self.wait(number)
    }
}

/// A client of a method that answers with what it was sent.
pub(crate) trait EchoMethod: Clone + Send + Sync + 'static {
    fn echo(&self, request: &Payload) -> ChannelCall<Payload>;
}

impl EchoMethod for EchoClient<Channel> {
    fn echo(&self, request: &Payload) -> ChannelCall<Payload> {
        self.call(request)
    }
}

impl EchoMethod for NestedEchoClient<Channel> {
    fn echo(&self, request: &Payload) -> ChannelCall<Payload> {
        self.call(request)
    }
}

#[derive(Clone)]
pub(crate) struct ChannelStub<C> {
    pub(crate) client: C,
    pub(crate) scheme: &'static str,
}

impl<C: EchoMethod> EchoStub for ChannelStub<C> {
    fn wait(&mut self, number: u64) -> Result<(), BenchError> {
        let answer = self.client.echo(&request(number)).wait().map_err(failed)?;
        check(CHANNEL, self.scheme, number, answer.message().data())
    }

    async fn call(&mut self, number: u64) -> Result<(), BenchError> {
        let call = self.client.echo(&request(number));
        let answer = call.await.map_err(failed)?;
        check(CHANNEL, self.scheme, number, answer.message().data())
    }
}

pub(crate) fn request(number: u64) -> Payload {
    let mut request = Payload::new();
    request.set_data(&small(number));
    request
}

/// An error if an answer is not its request.
#[inline]
pub(crate) fn check(
    system: &'static str,
    scheme: &'static str,
    number: u64,
    answer: &[u8],
) -> Result<(), BenchError> {
    if answer == small(number) {
        return Ok(());
    }
    Err(BenchError::WrongEcho {
        scheme,
        system,
        what: format!("call {number} was answered with {answer:?}"),
    })
}

#[cfg(test)]
mod tests {
    use starling::Server;
    use starling_sample_services::echo;

    use super::*;

    #[test]
    fn each_scheme_has_a_benchmark_of_all_callers_and_some_to_compare_with() {
        let benchmarks = benchmarks();
        let names: Vec<String> = benchmarks.iter().map(ToString::to_string).collect();
        let of_scheme = Callers::ALL.len() + 8;
        assert_eq!(names.len(), 2 * of_scheme);
        assert_eq!(names[0], "channel/udp threads=1");
        assert_eq!(names[7], "channel/udp current-thread tasks=128");
        assert_eq!(
            names[Callers::ALL.len()..of_scheme],
            [
                "local/udp threads=1",
                "mutex/udp threads=8",
                "endpoint/udp in-flight=60",
                "channel/udp slow=1000",
                "channel/udp idle=100",
                "channel/udp idle=100 own endpoints",
                "channel/udp held=0ms",
                "channel/udp held=10ms",
            ]
        );
        assert_eq!(names[of_scheme], "channel/shm threads=1");
    }

    #[test]
    fn calls_are_answered_in_threads_and_tasks() {
        let builder = Server::builder().bind("udp://127.0.0.1:0").unwrap();
        let server = builder.add_service(echo::server()).build().unwrap();
        let server = server.spawn().unwrap();
        let mut stub = ChannelStub {
            client: EchoClient::new(Channel::lazy(server.address()).unwrap()),
            scheme: "udp",
        };
        stub.wait(7).unwrap();
        starling::block_on(stub.call(8)).unwrap();
    }

    #[test]
    fn a_wrong_answer_is_an_error() {
        assert!(check(CHANNEL, "udp", 1, &small(1)).is_ok());
        for wrong in [&small(2)[..], &small(1)[..31], &[]] {
            let error = check(CHANNEL, "udp", 1, wrong).unwrap_err();
            assert!(error.to_string().contains("call 1 was answered"), "{error}");
        }
    }

    #[test]
    fn an_unknown_role_is_left_to_other_modules() {
        assert!(serve("somebody-else", &[]).is_none());
    }
}
