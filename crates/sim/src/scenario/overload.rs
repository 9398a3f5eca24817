//! A server is asked for more than it can do, for as long as it takes to see what comes of it.
//!
//! One server with handlers of 10 us on the CX4 cluster, 40 clients that call at random times
//! (Poisson) whatever became of their earlier calls, each call with a deadline of 2 ms. The whole
//! event loop that ships runs on both sides, for deadlines are its business: what has expired is
//! not begun. Goodput is what was answered in time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use hdrhistogram::Histogram;
use starling_endpoint::{
    CallOptions, ContinuationId, Endpoint, EndpointConfig, Handler, Idle, MethodId, Secrets,
    SessionId,
};
use starling_proto::Congestion;

use super::incast::{cx4, node_config};
use super::watch::times;
use super::{Bench, Curve, MS, Plot, US};
use crate::cpu::Work;
use crate::fabric::{Fabric, HostId, SharedFabric, Step};
use crate::io::{SimClock, SimIo};
use crate::rng::Rng;

pub(super) const NAME: &str = "overload";

const CLIENTS: u32 = 40;
const HANDLER_NS: u64 = 10 * US;
const DEADLINE: Duration = Duration::from_millis(2);
const ECHO: MethodId = MethodId(1);
const BYTES: usize = 32;

/// What is offered, in parts of what the handlers alone would allow.
const CASES: [(f64, &str); 6] = [
    (0.5, "0.5x"),
    (0.8, "0.8x"),
    (1.0, "1x"),
    (1.5, "1.5x"),
    (2.0, "2x"),
    (4.0, "4x"),
];

const WARM_UP_NS: u64 = 20 * MS;
const MEASURED_NS: u64 = 200 * MS;

type Host = Endpoint<SimIo, SimClock>;

/// How calls ended in the time that is measured.
struct Ends {
    from_ns: u64,
    in_time: u64,
    late: u64,
    latency_ns: Histogram<u64>,
}

/// One run.
struct World {
    fabric: SharedFabric,
    server: Host,
    clients: Vec<(Host, SessionId, ContinuationId)>,
    rng: Rng,
    /// Handlers run so far.
    ran: Rc<Cell<u64>>,
    ends: Rc<RefCell<Ends>>,
    mean_gap_ns: f64,
}

fn start(fabric: &SharedFabric, id: HostId, rng: &mut Rng) -> Host {
    let config = EndpointConfig {
        idle: Idle::Block,
        protocol: node_config(Congestion::Timely),
        ..EndpointConfig::default()
    };
    let mut cookie_key = [0; 16];
    cookie_key[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
    let secrets = Secrets {
        token: rng.next_u64() as u32,
        cookie_key,
    };
    let (io, clock) = (SimIo::new(fabric, id), SimClock::new(fabric, id));
    Endpoint::new(io, clock, config, secrets).expect("a sound configuration")
}

impl World {
    fn new(seed: u64, clients: u32, offered: f64, from_ns: u64) -> Self {
        let fabric = Rc::new(RefCell::new(Fabric::new(cx4(seed, clients + 1))));
        let mut rng = Rng::new(seed ^ 0x6f76_6572_6c6f_6164);
        let id = fabric.borrow_mut().add_host();
        let mut server = start(&fabric, id, &mut rng);
        let ran = Rc::new(Cell::new(0));
        let (count, spender) = (ran.clone(), fabric.clone());
        server.register(
            ECHO,
            Handler::inline(move |_, request, mut reply| {
                count.set(count.get() + 1);
                spender.borrow_mut().spend(id, HANDLER_NS);
                reply.buffer().extend_from_slice(request.body());
                reply.ok();
            }),
        );
        let ends = Rc::new(RefCell::new(Ends {
            from_ns,
            in_time: 0,
            late: 0,
            latency_ns: times(),
        }));
        let address = server.local_address();
        let clients = (0..clients).map(|_| {
            let id = fabric.borrow_mut().add_host();
            let mut client = start(&fabric, id, &mut rng);
            let (ends, fabric) = (ends.clone(), fabric.clone());
            let continuation = client.register_continuation(move |_, completion| {
                let (now_ns, issued_ns) = (fabric.borrow().now_ns(), completion.tag);
                let mut ends = ends.borrow_mut();
                if issued_ns < ends.from_ns {
                    return;
                }
                match completion.result {
                    Ok(_) => {
                        ends.in_time += 1;
                        ends.latency_ns.saturating_record(now_ns - issued_ns);
                    }
                    Err(_) => ends.late += 1,
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
            rng,
            ran,
            ends,
            mean_gap_ns,
        }
    }

    /// Until the next call of one client: exponential, as of a Poisson process.
    fn gap_ns(&mut self) -> u64 {
        // 53 bits, never zero: the logarithm is finite.
        let uniform = ((self.rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        (-uniform.ln() * self.mean_gap_ns) as u64
    }

    fn run(&mut self, until_ns: u64) {
        for client in 0..self.clients.len() as u64 {
            let first_ns = MS + self.gap_ns();
            self.fabric.borrow_mut().alarm(first_ns, client);
            let id = HostId(client as u32 + 1);
            self.fabric.borrow_mut().wake_at(id, 0);
        }
        let end = self.clients.len() as u64;
        self.fabric.borrow_mut().alarm(until_ns, end);
        loop {
            let step = self.fabric.borrow_mut().step();
            match step.expect("the end is an alarm") {
                Step::Turn(host) => self.turn(host),
                Step::Alarm(word) if word == end => return,
                Step::Alarm(client) => self.call(client),
            }
        }
    }

    fn turn(&mut self, id: HostId) {
        let ran = self.ran.get();
        let host = match id.0.checked_sub(1) {
            None => &mut self.server,
            Some(client) => &mut self.clients[client as usize].0,
        };
        let turn = host.poll().expect("the device has no errors");
        let ran = self.ran.get() - ran;
        let work = Work {
            rx_frames: turn.requests + turn.responses,
            handlers: ran + turn.completions,
            ..Work::default()
        };
        let free_ns = self.fabric.borrow_mut().end_turn(id, work);
        if turn.is_idle() {
            host.wait(None).expect("the device has no errors");
        } else {
            self.fabric.borrow_mut().wake_at(id, free_ns);
        }
    }

    fn call(&mut self, index: u64) {
        let now_ns = self.fabric.borrow().now_ns();
        let next_ns = now_ns + self.gap_ns();
        self.fabric.borrow_mut().alarm(next_ns, index);
        let (client, session, continuation) = &mut self.clients[index as usize];
        let options = CallOptions::with_timeout(DEADLINE);
        let build = |buffer: &mut Vec<u8>| buffer.resize(BYTES, 0);
        let called = client.call(*session, ECHO, &options, build, *continuation, now_ns);
        if called.is_err() {
            // The queue behind the session's slots is full: as good as late.
            let mut ends = self.ends.borrow_mut();
            ends.late += u64::from(now_ns >= ends.from_ns);
        }
        self.fabric
            .borrow_mut()
            .wake_at(HostId(index as u32 + 1), now_ns);
    }
}

pub(super) fn run(bench: &mut Bench<'_>) {
    let clients = bench.options.nodes.map_or(CLIENTS, |nodes| nodes - 1);
    let (warm_up_ns, measured_ns) = if bench.options.quick {
        (5 * MS, 10 * MS)
    } else {
        (WARM_UP_NS, MEASURED_NS)
    };
    let mut best = 0.0f64;
    let mut points = Vec::new();
    for (index, (offered, case)) in CASES.into_iter().enumerate() {
        bench.progress(index, CASES.len(), case);
        let mut world = World::new(bench.options.seed, clients, offered, warm_up_ns);
        world.run(warm_up_ns + measured_ns);
        let ends = world.ends.borrow();
        let per_second = |count: u64| count as f64 / measured_ns as f64 * 1e6;
        let goodput = per_second(ends.in_time);
        best = best.max(goodput);
        points.push((offered, goodput));
        bench.row(case, "goodput", "k/s", goodput, None);
        bench.row(
            case,
            "share of the best so far",
            "%",
            100.0 * goodput / best,
            None,
        );
        bench.row(case, "not in time", "k/s", per_second(ends.late), None);
        let us = |quantile: f64| ends.latency_ns.value_at_quantile(quantile) as f64 / 1e3;
        bench.row(case, "latency p50", "us", us(0.5), None);
        bench.row(case, "latency p99", "us", us(0.99), None);
        let stats = world.server.stats();
        bench.row(case, "expired, not run", "", stats.expired as f64, None);
        bench.account(&world.fabric.borrow());
    }
    bench.findings.plots.push(Plot {
        title: "Goodput of a server under overload".into(),
        x: "offered, in parts of its capacity",
        y: "answered in time, k/s",
        log: (false, false),
        curves: vec![Curve {
            name: "Starling".into(),
            points,
        }],
    });
}
