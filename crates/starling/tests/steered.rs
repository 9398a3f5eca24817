//! Workers that a device hands requests to by itself, between two namespaces joined by veth.

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use aya::maps::{Array, Map, MapData, loaded_maps};
use starling_endpoint::{
    CallOptions, Code, ContinuationId, Endpoint, EndpointConfig, Handler, Idle, MethodId, Secrets,
    SessionId, Stats, Status, WorkerConfig, WorkerReply, WorkerRequest,
};
use starling_io::{Fault, MonotonicClock, PacketIo, Wake};
use starling_io_udp::{UdpConfig, UdpIo};
use starling_io_xdp::{XdpConfig, XdpIo};
use starling_netns::{Pair, Shape, inside};

/// Run in workers: echoes, counts, and does what the first byte says.
const WORK: MethodId = MethodId(0x1001);
/// Runs inline.
const INLINE: MethodId = MethodId(0x2002);

/// What a request can ask for.
const ECHO: u8 = 0;
const PANIC: u8 = 1;
const FAIL: u8 = 2;
const SLEEP: u8 = 3;
const BLOCK: u8 = 4;
const LARGE: u8 = 5;
const UNTIL_CANCELLED: u8 = 6;

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What handlers and tests share.
struct Shared {
    /// How often each request ran, by its number.
    runs: Vec<AtomicU32>,
    gate: AtomicBool,
    blocked: AtomicU64,
    /// Handlers that heard that nobody waits.
    cancelled: AtomicU64,
}

impl Shared {
    fn new(requests: usize) -> Arc<Self> {
        Arc::new(Self {
            runs: (0..requests).map(|_| AtomicU32::new(0)).collect(),
            gate: AtomicBool::new(false),
            blocked: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
        })
    }

    fn run(&self, request: &mut WorkerRequest, reply: &mut WorkerReply) {
        let body = request.body();
        let number = u32::from_le_bytes(body[1..5].try_into().expect("a number"));
        self.runs[number as usize].fetch_add(1, Ordering::SeqCst);
        let asks = body[0];
        match asks {
            PANIC => std::panic::resume_unwind(Box::new("as asked")),
            FAIL => return reply.set_status(Status::not_found("as asked")),
            SLEEP => std::thread::sleep(Duration::from_millis(120)),
            BLOCK => {
                self.blocked.fetch_add(1, Ordering::SeqCst);
                while !self.gate.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            UNTIL_CANCELLED => {
                self.blocked.fetch_add(1, Ordering::SeqCst);
                while !request.is_cancelled() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                self.cancelled.fetch_add(1, Ordering::SeqCst);
            }
            LARGE => return reply.buffer().resize(100_000, 7),
            _ => {}
        }
        reply.buffer().extend_from_slice(request.body());
        let taken = request.take();
        assert_eq!(taken.body(), reply.buffer());
        assert!(request.body().is_empty(), "it was taken");
    }
}

fn secrets(token: u32) -> Secrets {
    Secrets {
        token,
        cookie_key: [token as u8; 16],
    }
}

/// A server in its own thread, in namespace `b`.
struct Server {
    port: u16,
    waker: Arc<dyn Wake>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<(Stats, bool)>>,
}

impl Server {
    fn start(pair: &Pair, shared: &Arc<Shared>, config: WorkerConfig) -> Self {
        Self::start_with(pair, shared, config, PATIENCE)
    }

    /// One that gives what still runs so much time when it ends.
    fn start_with(
        pair: &Pair,
        shared: &Arc<Shared>,
        config: WorkerConfig,
        patience: Duration,
    ) -> Self {
        let namespace = pair.b.try_clone().expect("a file");
        let shared = Arc::clone(shared);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (tell, told) = mpsc::channel();
        let serve = move || {
            let io = XdpIo::bind("xdp://vb/10.77.0.2:0", XdpConfig::default()).expect("a device");
            let port = io.local_socket_address().port();
            let clock = MonotonicClock::new();
            let mut endpoint =
                Endpoint::new(io, clock, EndpointConfig::default(), secrets(2)).expect("sound");
            let run = move |request: &mut WorkerRequest, reply: &mut WorkerReply| {
                shared.run(request, reply);
            };
            endpoint.register_worker(WORK, Arc::new(run));
            let inline = Handler::inline(|_, request, mut reply| {
                reply.buffer().extend_from_slice(request.body());
                reply.ok();
            });
            endpoint.register(INLINE, inline);
            endpoint.start_workers(&config).expect("workers");
            tell.send((port, endpoint.waker())).expect("the test waits");
            let ended = |_: &mut Endpoint<_, _>| stopped.load(Ordering::SeqCst);
            endpoint.run_until(ended).expect("a healthy device");
            let drained = endpoint.drain(patience).expect("a healthy device");
            (*endpoint.stats(), drained)
        };
        let thread = std::thread::spawn(move || inside(&namespace, serve));
        let (port, waker) = told.recv().expect("it starts");
        Self {
            port,
            waker,
            stop,
            thread: Some(thread),
        }
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    /// Ends it, all of its calls being over.
    fn end(self) -> Stats {
        let (stats, drained) = self.join();
        assert!(drained, "{stats:?}");
        stats
    }

    /// Ends it, and says whether all calls were over.
    fn join(mut self) -> (Stats, bool) {
        self.stop();
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("no panic")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

type Ends = Rc<RefCell<BTreeMap<u64, Result<Vec<u8>, Status>>>>;

/// A client in namespace `a`.
struct Client<I: PacketIo> {
    endpoint: Endpoint<I, MonotonicClock>,
    session: SessionId,
    ends: Ends,
    collect: ContinuationId,
}

impl<I: PacketIo> Client<I> {
    fn new(io: I, address: &str) -> Self {
        let config = EndpointConfig {
            idle: Idle::Block,
            ..EndpointConfig::default()
        };
        let mut endpoint =
            Endpoint::new(io, MonotonicClock::new(), config, secrets(1)).expect("sound");
        let ends = Ends::default();
        let into = Rc::clone(&ends);
        let collect = endpoint.register_continuation(move |_, completion| {
            let result = completion.result.map(|response| response.body().to_vec());
            let before = into.borrow_mut().insert(completion.tag, result);
            assert!(before.is_none(), "a call ends once");
        });
        let session = endpoint.connect(address).expect("a route");
        Self {
            endpoint,
            session,
            ends,
            collect,
        }
    }

    fn call(&mut self, method: MethodId, options: &CallOptions, number: u32, asks: u8) {
        let body = body(number, asks);
        let (collect, tag) = (self.collect, u64::from(number));
        self.endpoint
            .call(
                self.session,
                method,
                options,
                |out| out.extend(&body),
                collect,
                tag,
            )
            .expect("room");
    }

    fn work(&mut self, number: u32, asks: u8) {
        self.call(WORK, &CallOptions::default(), number, asks);
    }

    /// Turns until a count of the handlers is so high.
    fn wait_for(&mut self, count: &AtomicU64, wanted: u64) {
        let begun = Instant::now();
        while count.load(Ordering::SeqCst) < wanted {
            assert!(begun.elapsed() < PATIENCE, "it happens");
            self.endpoint.poll().expect("a healthy device");
        }
    }

    /// Until so many calls have ended.
    fn run_until(&mut self, count: usize) {
        let begun = Instant::now();
        let ends = Rc::clone(&self.ends);
        let done = |_: &mut Endpoint<_, _>| {
            assert!(begun.elapsed() < PATIENCE, "{} ended", ends.borrow().len());
            ends.borrow().len() >= count
        };
        self.endpoint.run_until(done).expect("a healthy device");
    }

    /// One call is answered, and the next one is with a handler that blocks.
    fn echo_and_block(&mut self, shared: &Shared) {
        self.work(0, ECHO);
        self.run_until(1);
        self.work(1, BLOCK);
        self.wait_for(&shared.blocked, 1);
    }

    fn check_echoes(&self, numbers: impl Iterator<Item = u32>) {
        for number in numbers {
            let end = self.ends.borrow_mut().remove(&number.into());
            let answer = end.expect("it ended").expect("an answer");
            assert_eq!(answer[1..], body(number, ECHO)[1..]);
        }
    }
}

fn body(number: u32, asks: u8) -> Vec<u8> {
    [&[asks][..], &number.to_le_bytes(), b"and so on"].concat()
}

fn steered(threads: usize) -> WorkerConfig {
    WorkerConfig {
        steered: true,
        ..WorkerConfig::new(threads, 1000)
    }
}

/// Two namespaces, having said so where there is no such device.
fn pair(test: &str) -> Option<Pair> {
    common::xdp::pair(test, Shape::default())
}

/// A client over AF_XDP, in its thread's namespace.
fn client(port: u16) -> Client<XdpIo> {
    let address = format!("xdp://va/10.77.0.2:{port}");
    let io = XdpIo::client(&address, XdpConfig::default()).expect("a route");
    Client::new(io, &address)
}

/// `count` calls, a few at a time: each has a slot at once, and a datagram of its own.
fn many(client: &mut Client<impl PacketIo>, count: u32) {
    for number in 0..count {
        client.work(number, ECHO);
        client.run_until((number as usize + 1).saturating_sub(6));
    }
    client.run_until(count as usize);
    client.check_echoes(0..count);
}

#[test]
fn many_calls_each_run_once_over_both_kinds_of_clients() {
    let Some(pair) = pair("many_calls_each_run_once_over_both_kinds_of_clients") else {
        return;
    };
    const CALLS: u32 = 5000;
    for xdp in [true, false] {
        let shared = Shared::new(CALLS as usize);
        let server = Server::start(&pair, &shared, steered(3));
        let port = server.port;
        inside(&pair.a, || {
            if xdp {
                many(&mut client(port), CALLS);
            } else {
                let io = UdpIo::bind("udp://10.77.0.1:0", UdpConfig::default()).expect("a socket");
                many(
                    &mut Client::new(io, &format!("udp://10.77.0.2:{port}")),
                    CALLS,
                );
            }
        });
        assert!(
            shared
                .runs
                .iter()
                .all(|runs| runs.load(Ordering::SeqCst) == 1)
        );
        let stats = server.end();
        assert_eq!(stats.requests, u64::from(CALLS));
        assert!(stats.claimed > u64::from(CALLS) / 10, "{stats:?}");
    }
}

#[test]
fn a_stalled_worker_holds_up_no_more_than_its_bound() {
    let Some(pair) = pair("a_stalled_worker_holds_up_no_more_than_its_bound") else {
        return;
    };
    let shared = Shared::new(601);
    let server = Server::start(&pair, &shared, steered(2));
    let port = server.port;
    let stuck = inside(&pair.a, || {
        let mut client = client(port);
        client.work(0, ECHO);
        client.run_until(1);
        client.check_echoes(0..1);
        client.work(1, BLOCK);
        client.wait_for(&shared.blocked, 1);
        let mut stuck = 0;
        for number in 2..601 {
            client.work(number, ECHO);
            // The other worker answers, or it is behind the blocked one.
            let wanted = number as usize - 1 - stuck;
            let patience = Instant::now();
            let ends = Rc::clone(&client.ends);
            let ended = |_: &mut Endpoint<_, _>| {
                ends.borrow().len() >= wanted || patience.elapsed() > Duration::from_secs(1)
            };
            // Asked now and then, also if nothing arrives.
            while !ended(&mut client.endpoint) {
                client.endpoint.poll().expect("a healthy device");
                let limit = Some(Duration::from_millis(1));
                client.endpoint.wait(limit).expect("a healthy device");
            }
            stuck = number as usize - 1 - client.ends.borrow().len();
            assert!(stuck <= 1, "it has two at most");
        }
        shared.gate.store(true, Ordering::SeqCst);
        client.run_until(600);
        client.check_echoes(1..601);
        stuck
    });
    assert!(stuck <= 1);
    assert!(
        shared
            .runs
            .iter()
            .all(|runs| runs.load(Ordering::SeqCst) == 1)
    );
    let stats = server.end();
    assert!(stats.claimed > 300, "{stats:?}");
}

/// What comes when all workers are blocked is behind one of them, and so are its first repeats. The
/// client hears of it all the same, before it takes the session for broken.
#[test]
fn a_call_that_no_worker_gets_to_for_seconds_ends_when_one_does() {
    let name = "a_call_that_no_worker_gets_to_for_seconds_ends_when_one_does";
    let Some(pair) = pair(name) else {
        return;
    };
    const WORKERS: u32 = 8;
    let shared = Shared::new(WORKERS as usize + 1);
    let config = WorkerConfig {
        depth: 8,
        ..steered(WORKERS as usize)
    };
    let server = Server::start(&pair, &shared, config);
    let port = server.port;
    inside(&pair.a, || {
        let io = UdpIo::bind("udp://10.77.0.1:0", UdpConfig::default()).expect("a socket");
        let mut blocking = Client::new(io, &format!("udp://10.77.0.2:{port}"));
        // The dispatcher gives these out, one to each.
        let timed = CallOptions::with_timeout(PATIENCE);
        for number in 0..WORKERS {
            blocking.call(WORK, &timed, number, BLOCK);
            blocking.wait_for(&shared.blocked, u64::from(number) + 1);
        }
        // One with nothing else to say: a bundle would be the dispatcher's.
        let mut client = client(port);
        client.work(WORKERS, ECHO);
        // Longer than a client waits for a word of its request.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) {
            blocking.endpoint.poll().expect("a healthy device");
            client.endpoint.poll().expect("a healthy device");
            let limit = Some(Duration::from_millis(1));
            client.endpoint.wait(limit).expect("a healthy device");
        }
        assert!(client.ends.borrow().is_empty(), "{:?}", client.ends);
        shared.gate.store(true, Ordering::SeqCst);
        client.run_until(1);
        client.check_echoes(WORKERS..WORKERS + 1);
        blocking.run_until(WORKERS as usize);
        blocking.check_echoes(0..WORKERS);
    });
    for runs in &shared.runs {
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }
    server.end();
}

#[test]
fn whatever_a_handler_does_its_call_ends_as_it_should() {
    let Some(pair) = pair("whatever_a_handler_does_its_call_ends_as_it_should") else {
        return;
    };
    let shared = Shared::new(100);
    let server = Server::start(&pair, &shared, steered(2));
    let port = server.port;
    inside(&pair.a, || {
        let mut client = client(port);
        // Longer than retransmission timeouts: the client asks again meanwhile.
        for (number, asks) in (0..40).zip([ECHO, PANIC, FAIL, SLEEP, LARGE].into_iter().cycle()) {
            client.work(number, asks);
            if number < 20 {
                // In a datagram of its own, for a worker.
                client.run_until(number as usize + 1);
            }
        }
        client.call(INLINE, &CallOptions::default(), 40, ECHO);
        let timed = CallOptions::with_timeout(PATIENCE);
        client.call(WORK, &timed, 41, ECHO);
        client.run_until(42);
        for number in 0..40 {
            let end = client
                .ends
                .borrow_mut()
                .remove(&u64::from(number))
                .expect("it ended");
            match number % 5 {
                1 => assert_eq!(end.expect_err("it panicked").code(), Code::Internal),
                2 => {
                    let status = end.expect_err("it failed");
                    assert_eq!(
                        (status.code(), status.message()),
                        (Code::NotFound, "as asked")
                    );
                }
                4 => assert_eq!(end.expect("an answer"), vec![7; 100_000]),
                _ => assert_eq!(end.expect("an answer")[1..], body(number, ECHO)[1..]),
            }
        }
        client.check_echoes(40..42);
        assert!(client.endpoint.protocol().stats().retransmissions > 0);
    });
    for runs in &shared.runs[..40] {
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }
    let stats = server.end();
    assert_eq!((stats.panics, stats.requests), (8, 42));
    assert!(
        stats.claimed >= 19,
        "all but the first wait for nothing: {stats:?}"
    );
}

#[test]
fn who_shuts_down_finishes_what_workers_claimed() {
    let Some(pair) = pair("who_shuts_down_finishes_what_workers_claimed") else {
        return;
    };
    let shared = Shared::new(10);
    let server = Server::start(&pair, &shared, steered(2));
    let port = server.port;
    inside(&pair.a, || {
        let mut client = client(port);
        client.echo_and_block(&shared);
        server.stop();
        // The next one comes to a server that drains, sooner or later.
        let mut number = 2;
        let refused = loop {
            client.work(number, ECHO);
            client.run_until(number as usize);
            let end = client
                .ends
                .borrow_mut()
                .insert(number.into(), Ok(Vec::new()));
            if let Some(Err(status)) = end {
                break status;
            }
            number += 1;
            assert!(number < 10, "it drains");
            std::thread::sleep(Duration::from_millis(100));
        };
        assert_eq!(refused.code(), Code::Unavailable);
        shared.gate.store(true, Ordering::SeqCst);
        client.run_until(number as usize + 1);
        client.check_echoes(1..2);
    });
    server.end();
}

#[test]
fn a_server_that_ends_while_a_handler_blocks_gives_its_port_back() {
    let Some(pair) = pair("a_server_that_ends_while_a_handler_blocks_gives_its_port_back") else {
        return;
    };
    let shared = Shared::new(2);
    let server = Server::start_with(&pair, &shared, steered(2), Duration::ZERO);
    let port = server.port;
    inside(&pair.a, || {
        let mut client = client(port);
        client.echo_and_block(&shared);
    });
    let (stats, drained) = server.join();
    assert!(!drained, "{stats:?}");
    // The queue is not free, but whoever has the port is heard.
    let address = format!("udp://10.77.0.2:{port}");
    let bind = || UdpIo::bind(&address, UdpConfig::default()).expect("the port is free");
    let io = inside(&pair.b, bind);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let next = scope.spawn(|| {
            let config = EndpointConfig::default();
            let mut endpoint =
                Endpoint::new(io, MonotonicClock::new(), config, secrets(3)).expect("sound");
            let echo = Handler::inline(|_, request, mut reply| {
                reply.buffer().extend_from_slice(request.body());
                reply.ok();
            });
            endpoint.register(INLINE, echo);
            let begun = Instant::now();
            while !over.load(Ordering::SeqCst) && begun.elapsed() < PATIENCE {
                endpoint.poll().expect("a healthy device");
                std::thread::yield_now();
            }
        });
        inside(&pair.a, || {
            let mut client = client(port);
            client.call(INLINE, &CallOptions::default(), 0, ECHO);
            client.run_until(1);
            client.check_echoes(0..1);
        });
        over.store(true, Ordering::SeqCst);
        next.join().expect("no panic");
    });
    assert!(!shared.gate.swap(true, Ordering::SeqCst));
}

#[test]
fn a_handler_hears_that_nobody_waits() {
    let Some(pair) = pair("a_handler_hears_that_nobody_waits") else {
        return;
    };
    let shared = Shared::new(10);
    let server = Server::start(&pair, &shared, steered(2));
    let port = server.port;
    inside(&pair.a, || {
        let mut client = client(port);
        client.work(0, ECHO);
        client.run_until(1);
        // The call is cancelled, then the session of another one is closed.
        let options = CallOptions::default();
        let body = body(1, UNTIL_CANCELLED);
        let build = |out: &mut Vec<u8>| out.extend(&body);
        let (session, collect) = (client.session, client.collect);
        let call = (client.endpoint).call(session, WORK, &options, build, collect, 1);
        client.wait_for(&shared.blocked, 1);
        assert!(client.endpoint.cancel(call.expect("room")));
        client.wait_for(&shared.cancelled, 1);
        client.work(2, UNTIL_CANCELLED);
        client.wait_for(&shared.blocked, 2);
        client.endpoint.close(session);
        client.wait_for(&shared.cancelled, 2);
    });
    let stats = server.end();
    assert!(stats.claimed >= 2, "{stats:?}");
}

/// The program's map of a device with so many workers on queue 0.
fn map_with(workers: u32) -> Array<MapData, [u8; 1040]> {
    let maps = loaded_maps().filter_map(|info| {
        let info = info.ok()?;
        let data = (info.name() == b"steering").then(|| MapData::from_id(info.id()).ok())??;
        let array = Array::<_, [u8; 1040]>::try_from(Map::Array(data)).ok()?;
        let value = array.get(&0, 0).ok()?;
        (value[..4] == workers.to_le_bytes()).then_some(array)
    });
    maps.last().expect("the device's")
}

#[test]
fn whatever_counts_say_each_call_runs_once_and_is_answered() {
    let Some(pair) = pair("whatever_counts_say_each_call_runs_once_and_is_answered") else {
        return;
    };
    // A number of workers that no other test has.
    const WORKERS: u32 = 5;
    const CALLS: u32 = 5000;
    let shared = Shared::new(CALLS as usize);
    let server = Server::start(&pair, &shared, steered(WORKERS as usize));
    let port = server.port;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let spoofer = scope.spawn(|| {
            let mut map = map_with(WORKERS);
            let mut word = 1_u64;
            while !over.load(Ordering::SeqCst) {
                let mut value = [0; 1040];
                // Workers, and what they are; everything else is whatever comes (xorshift,
                // Marsaglia 2003), now and then with counts that look good.
                value[..4].copy_from_slice(&WORKERS.to_le_bytes());
                for bytes in value[4..].chunks_exact_mut(4) {
                    word ^= word << 13;
                    word ^= word >> 7;
                    word ^= word << 17;
                    bytes.copy_from_slice(&(word as u32 >> (word >> 60)).to_le_bytes());
                }
                if word & 3 == 0 {
                    value[12..16].fill(0);
                    value[16..528].fill(0xff);
                    value[528..].fill(word as u8);
                }
                map.set(0, value, 0).expect("a map");
                std::thread::sleep(Duration::from_micros(200));
            }
            // Left as it is but for what nobody else mends.
            let mut value = map.get(&0, 0).expect("a map");
            value[4..16].copy_from_slice(&[2, 0, 0, 0, 0xdc, 5, 0, 0, 0, 0, 0, 0]);
            map.set(0, value, 0).expect("a map");
        });
        inside(&pair.a, || {
            let mut client = client(port);
            many(&mut client, CALLS);
        });
        over.store(true, Ordering::SeqCst);
        spoofer.join().expect("no panic");
    });
    assert!(
        shared
            .runs
            .iter()
            .all(|runs| runs.load(Ordering::SeqCst) == 1)
    );
    let stats = server.end();
    assert_eq!(stats.requests, u64::from(CALLS));
    assert!(stats.claimed > 0, "{stats:?}");
}

#[test]
fn an_interface_that_is_removed_ends_its_workers() {
    let Some(pair) = pair("an_interface_that_is_removed_ends_its_workers") else {
        return;
    };
    for idle in [Idle::Block, Idle::Spin] {
        let (tell, told) = mpsc::channel();
        let handler: Arc<()> = Arc::default();
        let held = Arc::downgrade(&handler);
        let namespace = pair.b.try_clone().expect("a file");
        let serve = move || {
            let io = XdpIo::bind("xdp://vb/10.77.0.2:0", XdpConfig::default()).expect("a device");
            let config = EndpointConfig::default();
            let mut endpoint =
                Endpoint::new(io, MonotonicClock::new(), config, secrets(2)).expect("sound");
            endpoint.register_worker(
                WORK,
                Arc::new(move |_, _| {
                    let _ = &handler;
                }),
            );
            let config = WorkerConfig { idle, ..steered(3) };
            endpoint.start_workers(&config).expect("workers");
            tell.send(()).expect("the test waits");
            endpoint.run_until(|_| false).expect_err("it is gone")
        };
        let thread = std::thread::spawn(move || inside(&namespace, serve));
        told.recv().expect("it starts");
        starling_netns::run(&pair.b, "ip link del vb").expect("it is there");
        let error = thread.join().expect("no panic");
        assert_eq!(error.fault, Fault::Host);
        assert!(held.upgrade().is_none(), "threads are left");
        pair.join(starling_netns::Shape::default())
            .expect("there is none");
    }
}

#[test]
fn other_devices_say_that_they_cannot() {
    let io = UdpIo::bind("udp://127.0.0.1:0", UdpConfig::default()).expect("a socket");
    let config = EndpointConfig::default();
    let mut endpoint = Endpoint::new(io, MonotonicClock::new(), config, secrets(2)).expect("sound");
    let error = endpoint
        .start_workers(&steered(2))
        .expect_err("no such device");
    assert_eq!(error.fault, Fault::Caller);
    assert!(error.remedy.contains("xdp://"), "{error}");
    let mut parted = steered(2);
    parted.mode = starling_endpoint::jbsq::Mode::Partitioned;
    let error = endpoint.start_workers(&parted).expect_err("no such mode");
    assert_eq!(error.fault, Fault::Caller);
    assert!(error.remedy.contains("SingleQueue"), "{error}");
}
