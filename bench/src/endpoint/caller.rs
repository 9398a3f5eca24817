//! A client's endpoint, and one call at a time.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use starling_endpoint::{CallOptions, Completion, ContinuationId, Msgbuf, SessionId};
use starling_io::MessageMemory;

use super::server::{self, ECHO, SINK};
use super::settings::Settings;
use crate::benchmark::Context;
use crate::device::{Device, Raw, SYSTEM, endpoint, failed};
use crate::error::BenchError;
use crate::floor::{BusyWait, Period, SMALL_BYTES};
use crate::latency::LatencyTimer;
use crate::metric::{Metric, Sample};
use crate::process::RoleProcess;

/// Starts a server for clients with the same settings.
pub(super) fn start_server<I: Device>(
    context: &Context,
    settings: Settings,
) -> Result<RoleProcess, BenchError> {
    let wait = BusyWait::on(context.cores).name();
    let host = context.network.server();
    let arguments = [I::SCHEME, wait, &settings.to_argument(), host];
    context.launcher.start(server::ROLE, &arguments)
}

/// A small request or its response: a number, then zeros.
pub(super) fn small(number: u64) -> [u8; SMALL_BYTES] {
    let mut message = [0; SMALL_BYTES];
    message[..8].copy_from_slice(&number.to_le_bytes());
    message
}

/// Every byte of a large request.
const FILLING: u8 = 7;

/// The first error of any call, set by continuations.
#[derive(Clone, Default)]
pub(crate) struct Failure(Arc<Mutex<Option<BenchError>>>);

impl Failure {
    /// Compares an answer with the expected one; false if it differs or is a status.
    #[inline]
    pub(super) fn check(
        &self,
        scheme: &'static str,
        done: &Completion<'_>,
        expected: &[u8],
    ) -> bool {
        let is_right = matches!(&done.result, Ok(response) if response.body() == expected);
        if !is_right {
            self.record_answer(scheme, done);
        }
        is_right
    }

    #[cold]
    pub(crate) fn record_answer(&self, scheme: &'static str, done: &Completion<'_>) {
        let error = match &done.result {
            Err(status) => failed(status),
            Ok(response) => BenchError::WrongEcho {
                scheme,
                system: SYSTEM,
                what: format!("call {} was answered with {:?}", done.tag, response.body()),
            },
        };
        self.record(error);
    }

    /// Keeps an error, if it is the first.
    #[cold]
    pub(super) fn record(&self, error: BenchError) {
        self.0.lock().get_or_insert(error);
    }

    /// The error, if there was one.
    pub(crate) fn take(&self) -> Result<(), BenchError> {
        self.0.lock().take().map_or(Ok(()), Err)
    }
}

/// A client's endpoint, and how it waits.
pub(super) struct Caller<I: Device> {
    pub(super) endpoint: Raw<I>,
    pub(super) failure: Failure,
    wait: BusyWait,
}

impl<I: Device> Caller<I> {
    pub(super) fn new(settings: Settings, wait: BusyWait, host: &str) -> Result<Self, BenchError> {
        Ok(Self {
            endpoint: endpoint(I::client(host), settings.config())?,
            failure: Failure::default(),
            wait,
        })
    }

    pub(super) fn connect(&mut self, address: &str) -> Result<SessionId, BenchError> {
        let address = I::address_from_client(address);
        self.endpoint.connect(&address).map_err(failed)
    }

    /// Calls that have ended.
    #[inline]
    pub(super) fn completions(&self) -> u64 {
        self.endpoint.stats().completions
    }

    /// One turn of the endpoint's event loop.
    #[inline]
    pub(super) fn poll(&mut self) -> Result<(), BenchError> {
        self.endpoint.poll().map_err(failed)?;
        self.wait.pause();
        Ok(())
    }
}

/// A client with one call at a time, on one session.
struct Sequential<I: Device> {
    caller: Caller<I>,
    session: SessionId,
    echoed: ContinuationId,
    sunk: ContinuationId,
    options: CallOptions,
    number: u64,
}

impl<I: Device> Sequential<I> {
    fn connect(
        address: &str,
        settings: Settings,
        wait: BusyWait,
        host: &str,
    ) -> Result<Self, BenchError> {
        let mut caller = Caller::<I>::new(settings, wait, host)?;
        let failure = caller.failure.clone();
        let echoed = caller.endpoint.register_continuation(move |_, done| {
            failure.check(I::SCHEME, &done, &small(done.tag));
        });
        let failure = caller.failure.clone();
        let sunk = caller.endpoint.register_continuation(move |_, done| {
            let expected = server::receipt(done.tag as usize, FILLING, FILLING);
            failure.check(I::SCHEME, &done, &expected);
        });
        Ok(Self {
            session: caller.connect(address)?,
            caller,
            echoed,
            sunk,
            options: CallOptions::default(),
            number: 0,
        })
    }

    /// A small call.
    #[inline]
    fn echo(&mut self) -> Result<(), BenchError> {
        self.number += 1;
        let request = small(self.number);
        let build = |buffer: &mut Vec<u8>| buffer.extend_from_slice(&request);
        let endpoint = &mut self.caller.endpoint;
        endpoint
            .call(
                self.session,
                ECHO,
                &self.options,
                build,
                self.echoed,
                self.number,
            )
            .map_err(failed)?;
        self.finish()
    }

    /// A large call. The request is sent without a copy.
    fn sink(&mut self, request: &Bytes) -> Result<(), BenchError> {
        let header = vec![0; self.options.header_len()];
        let message = Msgbuf::from_parts(header, Some(request.clone()));
        let tag = request.len() as u64;
        let endpoint = &mut self.caller.endpoint;
        endpoint
            .call_message(self.session, SINK, &self.options, message, self.sunk, tag)
            .map_err(failed)?;
        self.finish()
    }

    /// Polls until the call has ended.
    #[inline]
    fn finish(&mut self) -> Result<(), BenchError> {
        let before = self.caller.completions();
        while self.caller.completions() == before {
            self.caller.poll()?;
        }
        Ok(())
    }
}

/// Latencies of one small call at a time.
pub(super) fn latencies<I: Device>(context: &Context) -> Result<Sample, BenchError> {
    let settings = Settings::default();
    let server = start_server::<I>(context, settings)?;
    let mut client = Sequential::<I>::connect(
        server.address(),
        settings,
        BusyWait::on(context.cores),
        context.network.client(),
    )?;
    let warm_up = Period::warm_up(context);
    while !warm_up.is_over() {
        client.echo()?;
    }
    let mut timer = LatencyTimer::new();
    let period = Period::measured(context);
    timer.start();
    loop {
        client.echo()?;
        if timer.record() {
            client.caller.failure.take()?;
            if period.is_over() {
                return Ok(timer.into_latencies().sample());
            }
        }
    }
}

/// The memory that a large request is made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// What the endpoint recommends.
    Device,
    /// Ordinary memory, from which the device has to copy.
    Ordinary,
}

impl Source {
    /// The end of the case's name.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Device => "",
            Self::Ordinary => " copied",
        }
    }
}

/// Throughput of requests of `size` bytes, one at a time.
pub(super) fn throughput<I: Device>(
    context: &Context,
    size: usize,
    source: Source,
) -> Result<Sample, BenchError> {
    let settings = Settings::default();
    let server = start_server::<I>(context, settings)?;
    let mut client = Sequential::<I>::connect(
        server.address(),
        settings,
        BusyWait::on(context.cores),
        context.network.client(),
    )?;
    let memory = match source {
        Source::Device => client.caller.endpoint.memory(),
        Source::Ordinary => MessageMemory::default(),
    };
    let request = memory.make(size, |room| room.fill(FILLING));
    let mut run = |period: Period| {
        let mut count = 0;
        // Even the shortest period has a result.
        while !period.is_over() || count == 0 {
            client.sink(&request)?;
            client.caller.failure.take()?;
            count += 1;
        }
        Ok::<_, BenchError>(period.rate_of(count * size as u64))
    };
    run(Period::warm_up(context))?;
    Ok(vec![(Metric::Throughput, run(Period::measured(context))?)])
}

#[cfg(test)]
mod tests {
    use starling_endpoint::{Handler, Status};
    use starling_io_udp::UdpIo;

    use super::*;

    /// Runs a client in this thread with a server in another, which answers `calls` requests.
    fn with_server(
        calls: u64,
        register: fn(&mut Raw<UdpIo>),
        client: impl FnOnce(&mut Sequential<UdpIo>),
    ) {
        let settings = Settings::default();
        let wait = BusyWait::from_name("yield").unwrap();
        let (ready, address) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut server =
                    endpoint::<UdpIo>(UdpIo::server("127.0.0.1"), settings.config()).unwrap();
                register(&mut server);
                ready.send(server.local_address()).unwrap();
                server
                    .run_until(|server| server.stats().responses == calls)
                    .unwrap();
            });
            let address = address.recv().unwrap();
            client(&mut Sequential::connect(&address, settings, wait, "127.0.0.1").unwrap());
        });
    }

    #[test]
    fn calls_of_both_sizes_are_answered() {
        with_server(13, server::register, |client| {
            for _ in 0..10 {
                client.echo().unwrap();
            }
            let request = Bytes::from(vec![FILLING; 300_000]);
            for _ in 0..3 {
                client.sink(&request).unwrap();
            }
            client.caller.failure.take().unwrap();
            assert_eq!(client.caller.completions(), 13);
        });
    }

    #[test]
    fn a_wrong_answer_is_an_error() {
        let wrong = |server: &mut Raw<UdpIo>| {
            let handler = Handler::inline(|_, _, mut reply| {
                reply.buffer().extend_from_slice(&small(0));
                reply.ok();
            });
            server.register(ECHO, handler);
        };
        with_server(1, wrong, |client| {
            client.echo().unwrap();
            let error = client.caller.failure.take().unwrap_err();
            assert!(error.to_string().contains("call 1 was answered"), "{error}");
        });
    }

    #[test]
    fn a_status_is_an_error() {
        let refuses = |server: &mut Raw<UdpIo>| {
            let handler = Handler::inline(|_, _, reply| {
                reply.status(Status::unavailable("not today"));
            });
            server.register(ECHO, handler);
        };
        with_server(1, refuses, |client| {
            client.echo().unwrap();
            let error = client.caller.failure.take().unwrap_err();
            assert!(error.to_string().contains("not today"), "{error}");
            client.caller.failure.take().unwrap();
        });
    }
}
