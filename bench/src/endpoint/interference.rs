//! Whether a few long requests make the many short ones late (eRPC, NSDI'19, section 7.2: gets with
//! 1% of scans, which run in workers).
//!
//! ```text
//!  core 0, one thread                                   core 1
//!  arrivals ─▶ client ══ device ══▶ server's endpoint ── long ones ─▶ worker
//!     ▲                                │ short ones: inline             │
//!     └─ latency of the short ones ◀───┘                                │
//!                                client ◀── server's endpoint ◀─────────┘
//! ```
//!
//! Two cores have to stand for three, so client and dispatch thread are one thread, which polls both
//! endpoints by turns, and the worker has the other core. Requests arrive at random (Poisson) at a
//! fixed rate and are sent whether or not others were answered; the latency of one begins when it was
//! due. The short ones are the same in all cases.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use starling_endpoint::{
    CallOptions, Handler, Idle, MethodId, ThreadPool, WorkerConfig, WorkerReply, WorkerRequest,
};
use starling_io::MonotonicClock;
use starling_sim::queueing::{Arrival, Service, arrivals};

use super::caller::{Caller, small};
use super::server::{self, ECHO};
use super::settings::Settings;
use crate::benchmark::{Benchmark, Context};
use crate::device::{Device, endpoint, failed};
use crate::error::BenchError;
use crate::floor::BusyWait;
use crate::latency::Latencies;
use crate::metric::Sample;
use crate::pin::pin_thread;

/// A request that takes [`LONG`].
const LONG_ECHO: MethodId = MethodId(3);

/// How long, of the processor.
const LONG: Duration = Duration::from_micros(50);

/// Of so many requests one is long.
const ONE_IN: u64 = 100;

/// How long a wakeful worker stays awake.
const WAKEFUL: Duration = Duration::from_millis(2);

/// Requests that are sent and not answered, at most; those beyond are sent later, and are late.
const OUTSTANDING: u64 = 512;

/// What becomes of the long requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Long {
    /// They are not sent.
    Absent,
    /// A worker runs them, which sleeps when there are none, as by default.
    InWorker,
    /// A worker that stays awake for longer than there is usually nothing.
    InWakefulWorker,
    /// The dispatch thread does: what workers are there to prevent.
    Inline,
}

impl Long {
    const ALL: [Self; 4] = [
        Self::Absent,
        Self::InWorker,
        Self::InWakefulWorker,
        Self::Inline,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Absent => "short only",
            Self::InWorker => "1% in a worker",
            Self::InWakefulWorker => "1% in a wakeful worker",
            Self::Inline => "1% inline",
        }
    }
}

/// All cases on a device, at so many requests a second.
pub(super) fn benchmarks<I: Device>(rate: f64) -> Vec<Benchmark> {
    let case = |long: Long| {
        let mut round = 0;
        Benchmark::new(I::SCHEME, super::SYSTEM, long.name(), move |context| {
            round += 1;
            measure::<I>(context, long, rate, round)
        })
    };
    Long::ALL.map(case).into()
}

/// Keeps the processor busy.
fn take_long(clock: &quanta::Clock) {
    let begun = clock.raw();
    while clock.delta_as_nanos(begun, clock.raw()) < LONG.as_nanos() as u64 {
        std::hint::spin_loop();
    }
}

/// The latencies of the short requests of one run.
fn measure<I: Device>(
    context: &Context,
    long: Long,
    rate: f64,
    seed: u64,
) -> Result<Sample, BenchError> {
    // The kernel takes each core away from real-time processes for 50 ms of a second in which they
    // use it without end: so they rest for half of the time.
    std::thread::sleep(Duration::from_secs_f64(context.seconds));
    let settings = Settings::one_session();
    let device = I::server(context.network.server()).map_err(failed)?;
    let waker = device.waker();
    let mut server = endpoint(Ok(device), settings.config())?;
    server::register(&mut server);
    let clock = quanta::Clock::new();
    let its_clock = clock.clone();
    if long == Long::Inline {
        let handler = Handler::inline(move |_, request, mut reply| {
            take_long(&its_clock);
            reply.buffer().extend_from_slice(request.body());
            reply.ok();
        });
        server.register(LONG_ECHO, handler);
    } else {
        let handler = move |request: &mut WorkerRequest, reply: &mut WorkerReply| {
            take_long(&its_clock);
            reply.buffer().extend_from_slice(request.body());
        };
        server.register_worker(LONG_ECHO, Arc::new(handler));
        // A thread begins on the core of whoever starts it.
        pin_thread(context.cores.server)?;
        let mut workers = WorkerConfig::new(1, 1024);
        if long == Long::InWakefulWorker {
            workers.idle = Idle::Adaptive { spin: WAKEFUL };
        }
        let pool = ThreadPool::new(&workers, &MonotonicClock::new(), &waker).map_err(failed);
        pin_thread(context.cores.client)?;
        server.set_dispatch(Box::new(pool?));
    }

    let wait = BusyWait::on(context.cores);
    let mut caller = Caller::<I>::new(settings, wait, context.network.client())?;
    let session = caller.connect(&server.local_address())?;
    let latencies = Rc::new(RefCell::new(Latencies::new()));
    let answered = Rc::new(Cell::new(0));
    let begun = Rc::new(Cell::new(clock.raw()));
    let count = ((rate * context.seconds) as u64).max(10);
    // Nothing is warm yet.
    let skipped = count / 10;
    let recorded = {
        let (latencies, begun, clock) = (Rc::clone(&latencies), Rc::clone(&begun), clock.clone());
        move |due_ns: u64| {
            let now_ns = clock.delta_as_nanos(begun.get(), clock.raw());
            latencies.borrow_mut().record(now_ns - due_ns);
        }
    };
    let (failure, its_answered) = (caller.failure.clone(), Rc::clone(&answered));
    let answer = caller.endpoint.register_continuation(move |_, done| {
        failure.check(I::SCHEME, &done, &small(done.tag));
        its_answered.set(its_answered.get() + 1);
        if done.tag & COUNTS != 0 {
            recorded(done.tag >> FLAG_BITS);
        }
    });
    let send = |caller: &mut Caller<I>, method, tag| {
        let build = |buffer: &mut Vec<u8>| buffer.extend_from_slice(&small(tag));
        let options = CallOptions::default();
        let call = caller
            .endpoint
            .call(session, method, &options, build, answer, tag);
        call.map(drop).map_err(failed)
    };
    // Opens the session.
    send(&mut caller, ECHO, 0)?;
    let mut sent = 1;
    let mut requests = arrivals(Service::Fixed, 1e9 / rate, 1, 1.0, seed)
        .take(count as usize)
        .zip(1..)
        .peekable();
    while requests.peek().is_some() || answered.get() < sent {
        if answered.get() == 0 {
            begun.set(clock.raw());
        }
        let now_ns = clock.delta_as_nanos(begun.get(), clock.raw());
        let is_due = |(arrival, _): &(Arrival, u64)| arrival.at_ns <= now_ns;
        while answered.get() > 0
            && sent - answered.get() < OUTSTANDING
            && let Some((arrival, number)) = requests.next_if(is_due)
        {
            let is_long = arrival.flow.is_multiple_of(ONE_IN);
            if is_long && long == Long::Absent {
                continue;
            }
            let counts = u64::from(!is_long && number > skipped) * COUNTS;
            let method = if is_long { LONG_ECHO } else { ECHO };
            send(&mut caller, method, arrival.at_ns << FLAG_BITS | counts)?;
            sent += 1;
        }
        caller.turn()?;
        server.poll().map_err(failed)?;
        caller.failure.take()?;
    }
    let latencies = latencies.borrow();
    Ok(latencies.sample())
}

/// A tag is when its request was due, in ns, above these bits.
const FLAG_BITS: u32 = 1;

/// The request's latency counts.
const COUNTS: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_takes_as_long_as_it_should() {
        let clock = quanta::Clock::new();
        let begun = std::time::Instant::now();
        take_long(&clock);
        assert!(begun.elapsed() >= LONG.mul_f64(0.99));
    }

    #[test]
    fn the_case_without_long_ones_comes_first() {
        let cases: Vec<_> = benchmarks::<starling_io_shm::ShmIo>(1.0)
            .into_iter()
            .map(|benchmark| benchmark.to_string())
            .collect();
        assert_eq!(cases[0], "starling/shm short only");
        assert_eq!(cases[1], "starling/shm 1% in a worker");
    }
}
