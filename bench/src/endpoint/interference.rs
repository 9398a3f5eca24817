//! Whether a few long requests delay many short ones (eRPC, NSDI'19, section 7.2: gets with 1% of
//! scans, which run in workers).
//!
//! ```text
//!  core 0, one thread                                   core 1
//!  arrivals ─▶ client ══ device ══▶ server's endpoint ── long ones ─▶ worker
//!     ▲                                │ short ones: inline             │
//!     └─ latency of the short ones ◀───┘                                │
//!                                client ◀── server's endpoint ◀─────────┘
//! ```
//!
//! The experiment wants three cores and has two: client and dispatch thread are one thread, which
//! polls both endpoints by turns, and the worker has the other core. Requests arrive at random
//! (Poisson) at a fixed rate and are sent whether or not others were answered. A latency begins
//! when its request was due. The short requests are the same in all cases.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use starling_endpoint::{
    CallOptions, ContinuationId, Handler, Idle, MethodId, SessionId, ThreadPool, WorkerConfig,
    WorkerReply, WorkerRequest,
};
use starling_io::MonotonicClock;
use starling_sim::queueing::{Arrival, Service, arrivals};

use super::caller::{Caller, small};
use super::server::{self, ECHO};
use super::settings::Settings;
use crate::benchmark::{Benchmark, Context};
use crate::device::{Device, Raw, SYSTEM, endpoint, failed};
use crate::error::BenchError;
use crate::floor::BusyWait;
use crate::latency::Latencies;
use crate::metric::Sample;
use crate::pin::pin_thread;

/// A request whose handler takes [`LONG`].
const LONG_ECHO: MethodId = MethodId(3);

/// Processor time of a long request.
const LONG: Duration = Duration::from_micros(50);

/// One of this many requests is long.
const ONE_IN: u64 = 100;

/// How long a wakeful worker stays awake.
const WAKEFUL: Duration = Duration::from_millis(2);

/// Unanswered requests, at most. Requests beyond are sent later; their latencies count from when
/// they were due.
const MAX_OUTSTANDING: u64 = 512;

/// The thread that handles the long requests, if there are any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Long {
    /// They are not sent.
    Absent,
    /// A worker runs them, with the default idle policy: it sleeps soon after the last one.
    InWorker,
    /// A worker runs them that stays awake for longer than the usual gap between two of them.
    InWakefulWorker,
    /// The dispatch thread runs them, and delays all others: the case that workers prevent.
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

/// All cases over a device, at `rate` requests a second.
pub(super) fn benchmarks<I: Device>(rate: f64) -> Vec<Benchmark> {
    let case = |long: Long| {
        let mut repetition = 0;
        Benchmark::new(I::SCHEME, SYSTEM, long.name(), move |context| {
            repetition += 1;
            measure::<I>(context, long, rate, repetition)
        })
    };
    Long::ALL.map(case).into()
}

/// Keeps the processor busy for [`LONG`].
fn run_long(clock: &quanta::Clock) {
    let begin = clock.raw();
    while clock.delta_as_nanos(begin, clock.raw()) < LONG.as_nanos() as u64 {
        std::hint::spin_loop();
    }
}

/// A server's endpoint, to be polled by the calling thread, with the handlers of a case.
fn start_server<I: Device>(
    context: &Context,
    settings: Settings,
    long: Long,
) -> Result<Raw<I>, BenchError> {
    let device = I::server(context.network.server()).map_err(failed)?;
    let waker = device.waker();
    let mut server = endpoint(Ok(device), settings.config())?;
    server::register(&mut server);
    let clock = quanta::Clock::new();
    if long == Long::Inline {
        let handler = Handler::inline(move |_, request, mut reply| {
            run_long(&clock);
            reply.buffer().extend_from_slice(request.body());
            reply.ok();
        });
        server.register(LONG_ECHO, handler);
        return Ok(server);
    }
    let handler = move |request: &mut WorkerRequest, reply: &mut WorkerReply| {
        run_long(&clock);
        reply.buffer().extend_from_slice(request.body());
    };
    server.register_worker(LONG_ECHO, Arc::new(handler));
    // A thread starts on the core of the thread that starts it.
    pin_thread(context.cores.server)?;
    let mut workers = WorkerConfig::new(1, 1024);
    if long == Long::InWakefulWorker {
        workers.idle = Idle::Adaptive { spin: WAKEFUL };
    }
    let pool = ThreadPool::new(&workers, &MonotonicClock::new(), &waker).map_err(failed);
    pin_thread(context.cores.client)?;
    server.set_dispatch(Box::new(pool?));
    Ok(server)
}

/// The records of the client's continuation.
struct Answers {
    clock: quanta::Clock,
    /// The clock's counter at the beginning of the run.
    begin: AtomicU64,
    answered: AtomicU64,
    latencies: Mutex<Latencies>,
}

impl Answers {
    fn now_ns(&self) -> u64 {
        self.clock
            .delta_as_nanos(self.begin.load(Ordering::Relaxed), self.clock.raw())
    }

    fn record(&self, tag: u64) {
        let answered = self.answered.load(Ordering::Relaxed);
        self.answered.store(answered + 1, Ordering::Relaxed);
        if tag & COUNTS != 0 {
            let latency_ns = self.now_ns() - (tag >> FLAG_BITS);
            self.latencies.lock().record(latency_ns);
        }
    }
}

/// Client and server, which one thread polls by turns.
struct Run<I: Device> {
    caller: Caller<I>,
    server: Raw<I>,
    session: SessionId,
    continuation: ContinuationId,
    answers: Arc<Answers>,
    sent: u64,
}

impl<I: Device> Run<I> {
    fn new(context: &Context, long: Long) -> Result<Self, BenchError> {
        let settings = Settings::one_session();
        let server = start_server(context, settings, long)?;
        let wait = BusyWait::on(context.cores);
        let mut caller = Caller::<I>::new(settings, wait, context.network.client())?;
        let session = caller.connect(&server.local_address())?;
        let clock = quanta::Clock::new();
        let answers = Arc::new(Answers {
            begin: AtomicU64::new(clock.raw()),
            clock,
            answered: AtomicU64::new(0),
            latencies: Mutex::new(Latencies::new()),
        });
        let (failure, shared) = (caller.failure.clone(), Arc::clone(&answers));
        let continuation = caller.endpoint.register_continuation(move |_, done| {
            failure.check(I::SCHEME, &done, &small(done.tag));
            shared.record(done.tag);
        });
        Ok(Self {
            caller,
            server,
            session,
            continuation,
            answers,
            sent: 0,
        })
    }

    fn send(&mut self, method: MethodId, tag: u64) -> Result<(), BenchError> {
        let build = |buffer: &mut Vec<u8>| buffer.extend_from_slice(&small(tag));
        let options = CallOptions::default();
        let endpoint = &mut self.caller.endpoint;
        let call = endpoint.call(
            self.session,
            method,
            &options,
            build,
            self.continuation,
            tag,
        );
        self.sent += 1;
        call.map(drop).map_err(failed)
    }

    fn poll(&mut self) -> Result<(), BenchError> {
        self.caller.poll()?;
        self.server.poll().map_err(failed)?;
        self.caller.failure.take()
    }

    fn outstanding(&self) -> u64 {
        self.sent - self.answers.answered.load(Ordering::Relaxed)
    }

    /// Opens the session with a first call. The run begins when its answer is there.
    fn open(&mut self) -> Result<(), BenchError> {
        self.send(ECHO, 0)?;
        while self.outstanding() > 0 {
            let now = self.answers.clock.raw();
            self.answers.begin.store(now, Ordering::Relaxed);
            self.poll()?;
        }
        Ok(())
    }
}

/// The latencies of the short requests of one run.
fn measure<I: Device>(
    context: &Context,
    long: Long,
    rate: f64,
    seed: u64,
) -> Result<Sample, BenchError> {
    // A real-time process that never sleeps loses its core to the kernel for 50 ms of each second,
    // so this one sleeps for half of the time.
    std::thread::sleep(Duration::from_secs_f64(context.seconds));
    let mut run = Run::<I>::new(context, long)?;
    run.open()?;
    let count = ((rate * context.seconds) as u64).max(10);
    // Caches are cold at first.
    let skipped = count / 10;
    let mut requests = arrivals(Service::Fixed, 1e9 / rate, 1, 1.0, seed)
        .take(count as usize)
        .zip(1..)
        .peekable();
    while requests.peek().is_some() || run.outstanding() > 0 {
        let now_ns = run.answers.now_ns();
        let is_due = |(arrival, _): &(Arrival, u64)| arrival.at_ns <= now_ns;
        while run.outstanding() < MAX_OUTSTANDING
            && let Some((arrival, number)) = requests.next_if(is_due)
        {
            let is_long = arrival.flow.is_multiple_of(ONE_IN);
            if is_long && long == Long::Absent {
                continue;
            }
            let counts = u64::from(!is_long && number > skipped) * COUNTS;
            let method = if is_long { LONG_ECHO } else { ECHO };
            run.send(method, arrival.at_ns << FLAG_BITS | counts)?;
        }
        run.poll()?;
    }
    Ok(run.answers.latencies.lock().sample())
}

/// A tag is the time at which its request was due, in ns, above these bits.
const FLAG_BITS: u32 = 1;

/// Set in a tag: the request's latency counts.
const COUNTS: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_request_takes_its_time() {
        let clock = quanta::Clock::new();
        let begin = std::time::Instant::now();
        run_long(&clock);
        assert!(begin.elapsed() >= LONG.mul_f64(0.99));
    }

    #[test]
    fn the_case_without_long_requests_comes_first() {
        let cases: Vec<_> = benchmarks::<starling_io_shm::ShmIo>(1.0)
            .into_iter()
            .map(|benchmark| benchmark.to_string())
            .collect();
        assert_eq!(cases[0], "starling/shm short only");
        assert_eq!(cases[1], "starling/shm 1% in a worker");
    }
}
