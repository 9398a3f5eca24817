//! Many small calls in flight, on any number of sessions.
//!
//! Requests are issued in batches: when the last response of a batch arrives, the next batch takes
//! its position (eRPC, section 6.2). Requests go to the sessions in rotation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use starling_endpoint::{CallOptions, Context as Calls, ContinuationId, SessionId};

use super::caller::{Caller, small, start_server};
use super::server::ECHO;
use super::settings::Settings;
use crate::benchmark::Context;
use crate::device::{Device, failed};
use crate::error::BenchError;
use crate::floor::{BusyWait, IN_FLIGHT, Period};
use crate::metric::{Metric, Sample};

/// Turns of the event loop between two readings of the clock.
const TURNS: usize = 64;

/// The parameters of a load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Sessions, all with the same server.
    pub(super) sessions: usize,
    /// Requests of a batch. The batches in flight have at most [`IN_FLIGHT`] requests together: 55
    /// in batches of 11.
    pub(super) batch: u64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            sessions: 1,
            batch: 1,
        }
    }
}

/// Connects once to `address` for each of `count` sessions and makes one call on each.
pub(super) fn open<I: Device>(
    caller: &mut Caller<I>,
    address: &str,
    count: usize,
) -> Result<Vec<SessionId>, BenchError> {
    // Counts these calls only: a load may be running.
    let answered = Arc::new(AtomicU64::new(0));
    let (failure, counter) = (caller.failure.clone(), Arc::clone(&answered));
    let opened = caller.endpoint.register_continuation(move |_, done| {
        failure.check(I::SCHEME, &done, &small(done.tag));
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let mut sessions = Vec::with_capacity(count);
    while answered.load(Ordering::Relaxed) < count as u64 {
        while sessions.len() < count
            && (sessions.len() as u64) < answered.load(Ordering::Relaxed) + IN_FLIGHT
        {
            let session = caller.connect(address)?;
            let number = sessions.len() as u64;
            let build = |buffer: &mut Vec<u8>| buffer.extend_from_slice(&small(number));
            let options = CallOptions::default();
            caller
                .endpoint
                .call(session, ECHO, &options, build, opened, number)
                .map_err(failed)?;
            sessions.push(session);
        }
        caller.poll()?;
        caller.failure.take()?;
    }
    Ok(sessions)
}

/// Batches in flight, at most. A call's tag is a unique number, times this, plus the position of
/// its batch.
const POSITIONS: u64 = 64;

const _: () = assert!(IN_FLIGHT <= POSITIONS);

/// Issues the requests.
struct Issuer {
    sessions: Vec<SessionId>,
    /// The session of the next call.
    next: usize,
    number: u64,
    /// For each batch in flight, the responses that are still missing.
    missing: Vec<u64>,
    batch: u64,
    options: CallOptions,
    continuation: Option<ContinuationId>,
}

impl Issuer {
    fn new(sessions: Vec<SessionId>, batch: u64) -> Self {
        Self {
            sessions,
            next: 0,
            number: 0,
            missing: vec![0; (IN_FLIGHT / batch) as usize],
            batch,
            options: CallOptions::default(),
            continuation: None,
        }
    }

    /// The session of the next call.
    #[inline]
    fn session(&mut self) -> SessionId {
        let session = self.sessions[self.next];
        self.next += 1;
        if self.next == self.sessions.len() {
            self.next = 0;
        }
        session
    }

    /// Issues a batch at the position of one that has ended.
    #[inline]
    fn issue<I: Device>(
        &mut self,
        calls: &mut Calls<'_, I>,
        position: usize,
    ) -> Result<(), BenchError> {
        let continuation = self.continuation.expect("it is registered by now");
        self.missing[position] = self.batch;
        for _ in 0..self.batch {
            let session = self.session();
            self.number += 1;
            let tag = self.number * POSITIONS + position as u64;
            let build = |buffer: &mut Vec<u8>| buffer.extend_from_slice(&small(tag));
            calls
                .call(session, ECHO, &self.options, build, continuation, tag)
                .map_err(failed)?;
        }
        Ok(())
    }

    /// Counts a response; true if it was the last of its batch.
    #[inline]
    fn handle_response(&mut self, position: usize) -> bool {
        self.missing[position] -= 1;
        self.missing[position] == 0
    }
}

/// Starts [`IN_FLIGHT`] calls; from then on the endpoint's turns keep that many in flight. A batch
/// with a call that fails is the last one at its position.
pub(super) fn start<I: Device>(
    caller: &mut Caller<I>,
    sessions: Vec<SessionId>,
    batch: u64,
) -> Result<(), BenchError> {
    // The continuation takes the issuer with the first response, and needs no lock from then on.
    let handed_over = Arc::new(Mutex::new(None::<Issuer>));
    let (failure, from) = (caller.failure.clone(), Arc::clone(&handed_over));
    let mut issuer = None;
    let continuation = caller.endpoint.register_continuation(move |calls, done| {
        let position = (done.tag % POSITIONS) as usize;
        let issuer =
            issuer.get_or_insert_with(|| from.lock().take().expect("handed over before any turn"));
        if failure.check(I::SCHEME, &done, &small(done.tag))
            && issuer.handle_response(position)
            && let Err(error) = issuer.issue(calls, position)
        {
            failure.record(error);
        }
    });
    let mut issuer = Issuer::new(sessions, batch);
    issuer.continuation = Some(continuation);
    let calls = &mut caller.endpoint.context();
    let issued = (0..issuer.missing.len()).try_for_each(|position| issuer.issue(calls, position));
    *handed_over.lock() = Some(issuer);
    issued
}

/// Rate of small calls.
pub(super) fn rate<I: Device>(
    context: &Context,
    settings: &Settings,
    shape: Shape,
) -> Result<Sample, BenchError> {
    let server = start_server::<I>(context, *settings)?;
    let mut caller = Caller::<I>::new(
        *settings,
        BusyWait::on(context.cores),
        context.network.client(),
    )?;
    let sessions = open(&mut caller, server.address(), shape.sessions)?;
    start(&mut caller, sessions, shape.batch)?;
    run(&mut caller, Period::warm_up(context))?;
    let rate = run(&mut caller, Period::measured(context))?;
    Ok(vec![(Metric::Rate, rate)])
}

/// Runs a load for some time; returns its rate.
pub(super) fn run<I: Device>(caller: &mut Caller<I>, period: Period) -> Result<f64, BenchError> {
    let begin = caller.completions();
    // Even the shortest period has a result.
    while !period.is_over() || caller.completions() == begin {
        for _ in 0..TURNS {
            caller.poll()?;
        }
        caller.failure.take()?;
    }
    Ok(period.rate_of(caller.completions() - begin))
}

#[cfg(test)]
mod tests {
    use starling_io_udp::UdpIo;

    use super::*;
    use crate::device::endpoint;
    use crate::endpoint::server::register;

    /// Runs a load until `calls` have ended.
    fn run_for(calls: u64, sessions: usize, batch: u64) -> (Caller<UdpIo>, u64) {
        let settings = Settings::one_session();
        let (ready, address) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let server = std::thread::spawn(move || {
            let mut server =
                endpoint::<UdpIo>(UdpIo::server("127.0.0.1"), settings.config()).unwrap();
            register(&mut server);
            ready.send(server.local_address()).unwrap();
            while stopped.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
                server.poll().unwrap();
                std::thread::yield_now();
            }
            server.stats().requests
        });
        let address = address.recv().unwrap();
        let mut caller =
            Caller::new(settings, BusyWait::from_name("yield").unwrap(), "127.0.0.1").unwrap();
        let sessions = open(&mut caller, &address, sessions).unwrap();
        start(&mut caller, sessions, batch).unwrap();
        while caller.completions() < calls {
            caller.poll().unwrap();
            caller.failure.take().unwrap();
        }
        drop(stop);
        (caller, server.join().unwrap())
    }

    #[test]
    fn requests_go_to_all_sessions_and_the_limit_in_flight_holds() {
        let (caller, requests) = run_for(500, 100, 1);
        assert_eq!(caller.endpoint.calls_outstanding() as u64, IN_FLIGHT);
        assert!(requests >= 500);
    }

    #[test]
    fn a_batch_is_issued_as_a_whole() {
        let (caller, _) = run_for(200, 1, 11);
        let stats = caller.endpoint.stats();
        assert_eq!((stats.calls - 1) % 11, 0, "one call opened the session");
        assert!(stats.calls - 1 - 55 <= stats.completions);
        assert!(caller.endpoint.calls_outstanding() <= 55);
    }

    #[test]
    fn a_batch_ends_with_its_last_response() {
        let mut issuer = Issuer::new(vec![], 3);
        assert_eq!(issuer.missing.len(), 20);
        issuer.missing[1] = 3;
        assert_eq!(
            [1, 1, 1].map(|position| issuer.handle_response(position)),
            [false, false, true]
        );
    }
}
