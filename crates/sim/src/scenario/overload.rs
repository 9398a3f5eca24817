//! A server gets more calls than it can handle, for seconds.
//!
//! One server on the CX4 cluster has 40 clients. They call at random times (Poisson), independent
//! of their earlier calls, and each call has a deadline of 2 ms. The handlers' own time allows
//! 100,000 calls a second, inline in the server's thread or in four workers. Both sides run the
//! whole event loop that ships, because it implements deadlines. The clients' clocks are
//! independent of the server's: they begin anywhere and run up to 100 ppm fast or slow.
//!
//! Goodput counts answers in time. A handler is wasted work if its caller had given up before it
//! began, or if its answer came too late.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use starling_endpoint::{
    CallOptions, ContinuationId, Endpoint, EndpointConfig, Handler, Idle, MethodId, Secrets,
    SessionId, WorkerReply, WorkerRequest,
};
use starling_proto::Congestion;

use super::capture::times;
use super::incast::{cx4, node_config};
use super::{Bench, Curve, MS, Plot, US};
use crate::cpu::Work;
use crate::fabric::{Fabric, HostId, SharedFabric, Step};
use crate::io::{SimClock, SimIo};
use crate::rng::Rng;
use crate::workers::Workers;

pub(super) const NAME: &str = "overload";

const CLIENTS: u32 = 40;
/// Handler time over the number of threads that run handlers.
const HANDLER_NS: u64 = 10 * US;
const WORKERS: u64 = 4;
/// Requests that may wait for a worker: longer than any call waits.
const WORKER_QUEUE: usize = 1024;
const DEADLINE: Duration = Duration::from_millis(2);
const ECHO: MethodId = MethodId(1);
const BYTES: usize = 32;
/// Clocks run fast or slow by up to so much, in billionths.
const DRIFT_PPB: u64 = 100_000;
/// Clocks begin in the first hour.
const ORIGIN_NS: u64 = 3_600_000 * MS;

/// The offered load, as a multiple of the load that the handlers' time allows.
const OFFERED: [(f64, [&str; 2]); 5] = [
    (0.8, ["inline 0.8x", "workers 0.8x"]),
    (1.0, ["inline 1x", "workers 1x"]),
    (1.5, ["inline 1.5x", "workers 1.5x"]),
    (2.0, ["inline 2x", "workers 2x"]),
    (3.0, ["inline 3x", "workers 3x"]),
];

const WARM_UP_NS: u64 = 20 * MS;
const MEASURED_NS: u64 = 2_000 * MS;
/// Time from the last call until every call is over.
const COOL_DOWN_NS: u64 = 10 * MS;

type Host = Endpoint<SimIo, SimClock>;

/// The outcomes of the calls made in the measured time.
pub(super) struct Ends {
    from_ns: u64,
    /// Handlers begun.
    begun: u64,
    /// Handlers begun after the caller had given up.
    begun_expired: u64,
    in_time: u64,
    refused: u64,
    gave_up: u64,
    latency_ns: Histogram<u64>,
}

impl Ends {
    /// The handler of a call of `issued_ns` begins.
    pub(super) fn begin(&mut self, now_ns: u64, issued_ns: u64) {
        if issued_ns >= self.from_ns {
            self.begun += 1;
            let waited_ns = u128::from(now_ns - issued_ns);
            self.begun_expired += u64::from(waited_ns >= DEADLINE.as_nanos());
        }
    }
}

type SharedEnds = Arc<Mutex<Ends>>;

/// When the call was made, by the fabric's clock: the first bytes of its request.
fn issued_ns(body: &[u8]) -> u64 {
    let bytes = body.first_chunk().expect("a request of this scenario");
    u64::from_le_bytes(*bytes)
}

/// One run.
struct Simulation {
    fabric: SharedFabric,
    server: Host,
    clients: Vec<(Host, SessionId, ContinuationId)>,
    workers: Option<Workers>,
    rng: Rng,
    /// Handlers run in the server's thread so far.
    ran: Arc<AtomicU64>,
    ends: SharedEnds,
    mean_gap_ns: f64,
}

fn start(fabric: &SharedFabric, id: HostId, rng: &mut Rng) -> Host {
    let config = EndpointConfig {
        idle: Idle::Block,
        protocol: node_config(Congestion::Dctcp),
        returns_memory: false,
        ..EndpointConfig::default()
    };
    let secrets = Secrets {
        cookie_key: rng.next_key(),
        token_key: rng.next_key(),
    };
    let (io, clock) = (SimIo::new(fabric, id), SimClock::new(fabric, id));
    Endpoint::new(io, clock, config, secrets).expect("a sound configuration")
}

/// A server with its inline handler, or with workers.
fn start_server(
    fabric: &SharedFabric,
    id: HostId,
    rng: &mut Rng,
    in_workers: bool,
    ends: &SharedEnds,
    ran: &Arc<AtomicU64>,
) -> (Host, Option<Workers>) {
    let mut server = start(fabric, id, rng);
    if in_workers {
        let workers = workers_of(fabric, id, &mut server, ends);
        return (server, Some(workers));
    }
    let (ends, ran, fabric) = (ends.clone(), ran.clone(), fabric.clone());
    server.register(
        ECHO,
        Handler::inline(move |_, request, mut reply| {
            let now_ns = fabric.lock().host_now_ns(id);
            ends.lock().begin(now_ns, issued_ns(request.body()));
            ran.fetch_add(1, Ordering::Relaxed);
            fabric.lock().spend(id, HANDLER_NS);
            reply.buffer().extend_from_slice(request.body());
            reply.ok();
        }),
    );
    (server, None)
}

/// Workers that echo.
fn workers_of(fabric: &SharedFabric, id: HostId, server: &mut Host, ends: &SharedEnds) -> Workers {
    // The time of issue of the call whose handler ran last, plus one; zero: already counted.
    let ran = Arc::new(AtomicU64::new(0));
    let (handler_ran, ends) = (Arc::clone(&ran), ends.clone());
    let handler = move |request: &mut WorkerRequest, reply: &mut WorkerReply| {
        handler_ran.store(issued_ns(request.body()) + 1, Ordering::Relaxed);
        reply.buffer().extend_from_slice(request.body());
    };
    server.register_worker(ECHO, Arc::new(handler));
    let takes_ns = Box::new(move |clock_ns| {
        let issued_ns = ran.swap(0, Ordering::Relaxed).checked_sub(1)?;
        ends.lock().begin(clock_ns, issued_ns);
        Some(WORKERS * HANDLER_NS)
    });
    let workers = Workers::new(fabric, id, WORKERS as usize, WORKER_QUEUE, takes_ns);
    server.set_dispatch(Box::new(workers.clone()));
    workers
}

impl Simulation {
    fn new(seed: u64, clients: u32, offered: f64, in_workers: bool, from_ns: u64) -> Self {
        let fabric = Fabric::shared(cx4(seed, clients + 1));
        let mut rng = Rng::new(seed ^ 0x6f76_6572_6c6f_6164);
        let ends = Arc::new(Mutex::new(Ends {
            from_ns,
            begun: 0,
            begun_expired: 0,
            in_time: 0,
            refused: 0,
            gave_up: 0,
            latency_ns: times(),
        }));
        let ran = Arc::default();
        let id = fabric.lock().add_host();
        let (server, workers) = start_server(&fabric, id, &mut rng, in_workers, &ends, &ran);
        let address = server.local_address();
        let clients = (0..clients).map(|_| {
            let id = fabric.lock().add_host();
            let origin_ns = rng.next_u64() % ORIGIN_NS;
            let drift_ppb = (rng.next_u64() % (2 * DRIFT_PPB)) as i32 - DRIFT_PPB as i32;
            fabric.lock().jump_clock(id, origin_ns);
            fabric.lock().drift_clock(id, drift_ppb);
            let mut client = start(&fabric, id, &mut rng);
            let (ends, fabric) = (ends.clone(), fabric.clone());
            let continuation = client.register_continuation(move |_, completion| {
                let (now_ns, issued_ns) = (fabric.lock().now_ns(), completion.tag);
                let mut ends = ends.lock();
                if issued_ns < ends.from_ns {
                    return;
                }
                match completion.result {
                    Ok(_) => {
                        ends.in_time += 1;
                        ends.latency_ns.saturating_record(now_ns - issued_ns);
                    }
                    Err(status) if status.may_have_run() => ends.gave_up += 1,
                    Err(_) => ends.refused += 1,
                }
            });
            let session = client.connect(&address).expect("a fabric's address");
            (client, session, continuation)
        });
        let clients: Vec<_> = clients.collect();
        let mean_gap_ns = HANDLER_NS as f64 * clients.len() as f64 / offered;
        Self {
            fabric,
            server,
            clients,
            workers,
            rng,
            ran,
            ends,
            mean_gap_ns,
        }
    }

    /// Time until the next call of one client: exponential, as in a Poisson process.
    fn gap_ns(&mut self) -> u64 {
        // 53 bits, never zero: the logarithm is finite.
        let uniform = ((self.rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        (-uniform.ln() * self.mean_gap_ns) as u64
    }

    /// Makes calls until `until_ns`.
    fn run(&mut self, until_ns: u64) {
        let clients = self.clients.len() as u64;
        for client in 0..clients {
            let first_ns = MS + self.gap_ns();
            self.fabric.lock().set_timer(first_ns, client);
            let id = HostId(client as u32 + 1);
            self.fabric.lock().wake_at(id, 0);
        }
        let end = clients + WORKERS;
        self.fabric.lock().set_timer(until_ns + COOL_DOWN_NS, end);
        loop {
            let step = self.fabric.lock().step();
            match step.expect("the end is a timer") {
                Step::Turn(host) => self.turn(host),
                Step::Timer(word) if word == end => return,
                Step::Timer(word) if word >= clients => {
                    let workers = self.workers.as_ref().expect("only workers set this timer");
                    workers.finish((word - clients) as usize);
                    self.await_workers();
                }
                Step::Timer(client) => self.call(client, until_ns),
            }
        }
    }

    fn turn(&mut self, id: HostId) {
        let ran = self.ran.load(Ordering::Relaxed);
        let host = match id.0.checked_sub(1) {
            None => &mut self.server,
            Some(client) => &mut self.clients[client as usize].0,
        };
        let before = *host.stats();
        let turn = host.poll().expect("the device has no errors");
        let after = host.stats();
        let ran = self.ran.load(Ordering::Relaxed) - ran;
        let work = Work {
            rx_frames: after.requests - before.requests + after.responses - before.responses,
            handlers: ran + after.completions - before.completions,
            ..Work::default()
        };
        let free_ns = self.fabric.lock().end_turn(id, work);
        if turn.is_idle() {
            host.wait(None).expect("the device has no errors");
        } else {
            self.fabric.lock().wake_at(id, free_ns);
        }
        self.await_workers();
    }

    /// Sets the timers of workers that began something; their words come after the clients'.
    fn await_workers(&mut self) {
        let begun = self.workers.as_ref().map(Workers::take_begun);
        for (worker, done_ns) in begun.unwrap_or_default() {
            let word = self.clients.len() as u64 + worker as u64;
            self.fabric.lock().set_timer(done_ns, word);
        }
    }

    fn call(&mut self, index: u64, until_ns: u64) {
        let now_ns = self.fabric.lock().now_ns();
        let next_ns = now_ns + self.gap_ns();
        if next_ns < until_ns {
            self.fabric.lock().set_timer(next_ns, index);
        }
        let (client, session, continuation) = &mut self.clients[index as usize];
        let options = CallOptions::with_timeout(DEADLINE);
        let build = |buffer: &mut Vec<u8>| {
            let start = buffer.len();
            buffer.extend_from_slice(&now_ns.to_le_bytes());
            buffer.resize(start + BYTES, 0);
        };
        let called = client.call(*session, ECHO, &options, build, *continuation, now_ns);
        if called.is_err() {
            // The queue behind the session's slots is full.
            let mut ends = self.ends.lock();
            ends.refused += u64::from(now_ns >= ends.from_ns);
        }
        self.fabric.lock().wake_at(HostId(index as u32 + 1), now_ns);
    }
}

pub(super) fn run(bench: &mut Bench<'_>) {
    let clients = bench.options.nodes.map_or(CLIENTS, |nodes| nodes - 1);
    let (warm_up_ns, measured_ns) = if bench.options.quick {
        (5 * MS, 50 * MS)
    } else {
        (WARM_UP_NS, MEASURED_NS)
    };
    let until_ns = warm_up_ns + measured_ns;
    let total = 2 * OFFERED.len();
    let mut curves = Vec::new();
    for (mode, name) in ["inline", "workers"].into_iter().enumerate() {
        let mut points = Vec::new();
        for (offered, cases) in OFFERED {
            let case = cases[mode];
            bench.progress(mode * OFFERED.len() + points.len(), total, case);
            let seed = bench.options.seed;
            let mut world = Simulation::new(seed, clients, offered, mode == 1, warm_up_ns);
            world.run(until_ns);
            let ends = world.ends.lock();
            let per_second = |count: u64| count as f64 / measured_ns as f64 * 1e6;
            let goodput = per_second(ends.in_time);
            points.push((offered, goodput));
            bench.row(case, "goodput", "k/s", goodput, None);
            bench.row(case, "refused", "k/s", per_second(ends.refused), None);
            bench.row(case, "gave up", "k/s", per_second(ends.gave_up), None);
            let us = |quantile: f64| ends.latency_ns.value_at_quantile(quantile) as f64 / 1e3;
            bench.row(case, "latency p50", "us", us(0.5), None);
            bench.row(case, "latency p99", "us", us(0.99), None);
            let expired = ends.begun_expired as f64;
            bench.row(case, "begun when expired", "", expired, None);
            let in_vain = ends.begun - ends.in_time;
            bench.row(case, "run, not in time", "", in_vain as f64, None);
            bench.account(&world.fabric.lock());
        }
        let peak = points.iter().map(|(_, goodput)| *goodput);
        let peak = peak.fold(0.0, f64::max);
        for ((_, goodput), (_, cases)) in points.iter().zip(OFFERED) {
            let share = 100.0 * goodput / peak;
            bench.row(cases[mode], "share of the peak", "%", share, None);
        }
        curves.push(Curve {
            name: name.into(),
            points,
        });
    }
    bench.findings.plots.push(Plot {
        title: "Goodput of a server under overload".into(),
        x: "offered, in parts of its capacity",
        y: "answered in time, k/s",
        log: (false, false),
        curves,
    });
}
