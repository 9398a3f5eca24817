//! A server with steered workers, and clients of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use starling_endpoint::{
    CallError, CallOptions, ContinuationId, Endpoint, EndpointConfig, Handler, Idle, MethodId,
    Secrets, SessionId, Stats, Status, WorkerConfig, WorkerReply, WorkerRequest,
};
use starling_io::{MonotonicClock, PacketIo, Wake};
use starling_io_udp::{UdpConfig, UdpIo};
use starling_io_xdp::{XdpConfig, XdpIo};
use starling_netns::{Pair, inside};

/// The method whose handler runs in workers: it echoes, counts, and takes the action of the request's
/// first byte.
pub(crate) const WORK: MethodId = MethodId(0x1001);
/// The method whose handler runs inline and echoes.
pub(crate) const INLINE: MethodId = MethodId(0x2002);

/// The actions that a request can have its handler do.
pub(crate) const ECHO: u8 = 0;
pub(crate) const PANIC: u8 = 1;
pub(crate) const FAIL: u8 = 2;
pub(crate) const SLEEP: u8 = 3;
pub(crate) const BLOCK: u8 = 4;
pub(crate) const LARGE: u8 = 5;
pub(crate) const UNTIL_CANCELLED: u8 = 6;

/// Only a failing test waits this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The state that handlers and tests share.
pub(crate) struct Shared {
    /// The number of times that each request ran, by its number.
    pub(crate) runs: Vec<AtomicU32>,
    /// Lets blocked handlers go on.
    pub(crate) gate: AtomicBool,
    /// Handlers that have blocked.
    pub(crate) blocked: AtomicU64,
    /// Handlers whose calls were cancelled.
    pub(crate) cancelled: AtomicU64,
}

impl Shared {
    pub(crate) fn new(requests: usize) -> Arc<Self> {
        Arc::new(Self {
            runs: (0..requests).map(|_| AtomicU32::new(0)).collect(),
            gate: AtomicBool::new(false),
            blocked: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
        })
    }

    pub(crate) fn assert_each_ran_once(&self) {
        for (number, runs) in self.runs.iter().enumerate() {
            assert_eq!(runs.load(Ordering::SeqCst), 1, "request {number}");
        }
    }

    fn run(&self, request: &mut WorkerRequest, reply: &mut WorkerReply) {
        let body = request.body();
        let number = u32::from_le_bytes(body[1..5].try_into().expect("a number"));
        self.runs[number as usize].fetch_add(1, Ordering::SeqCst);
        match body[0] {
            PANIC => std::panic::resume_unwind(Box::new("as requested")),
            FAIL => return reply.set_status(Status::not_found("as requested")),
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
        assert!(request.body().is_empty(), "the handler has taken it");
    }
}

pub(crate) fn secrets(key: u32) -> Secrets {
    Secrets {
        token_key: [key as u8; 16],
        cookie_key: [key as u8; 16],
    }
}

/// Takes no peer for dead on a busy host.
pub(crate) fn patient() -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.protocol.peer_timeout_ns = PATIENCE.as_nanos() as u64;
    config.protocol.connect_timeout_ns = PATIENCE.as_nanos() as u64;
    config.protocol.response_retention_ns = 2 * PATIENCE.as_nanos() as u64;
    config
}

pub(crate) fn echo_inline<I: PacketIo>(endpoint: &mut Endpoint<I, MonotonicClock>) {
    let echo = Handler::inline(|_, request, mut reply| {
        reply.buffer().extend_from_slice(request.body());
        reply.ok();
    });
    endpoint.register(INLINE, echo);
}

/// A server in its own thread, in namespace `b`.
pub(crate) struct Server {
    pub(crate) port: u16,
    waker: Arc<dyn Wake>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<(Stats, bool)>>,
}

impl Server {
    pub(crate) fn start(pair: &Pair, shared: &Arc<Shared>, config: WorkerConfig) -> Self {
        Self::start_with(pair, shared, config, PATIENCE)
    }

    /// A server that lets outstanding calls run for `drain_timeout` when it ends.
    pub(crate) fn start_with(
        pair: &Pair,
        shared: &Arc<Shared>,
        config: WorkerConfig,
        drain_timeout: Duration,
    ) -> Self {
        let namespace = pair.b.try_clone().expect("a file");
        let shared = Arc::clone(shared);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (started, start) = mpsc::channel();
        let serve = move || {
            let io = XdpIo::bind("xdp://vb/10.77.0.2:0", XdpConfig::default()).expect("a device");
            let port = io.local_socket_address().port();
            let clock = MonotonicClock::new();
            let mut endpoint = Endpoint::new(io, clock, patient(), secrets(2)).expect("sound");
            let run = move |request: &mut WorkerRequest, reply: &mut WorkerReply| {
                shared.run(request, reply);
            };
            endpoint.register_worker(WORK, Arc::new(run));
            echo_inline(&mut endpoint);
            endpoint.start_workers(&config).expect("workers");
            let ready = (port, endpoint.waker());
            started.send(ready).expect("the test waits");
            let ended = |_: &mut Endpoint<_, _>| stopped.load(Ordering::SeqCst);
            endpoint.run_until(ended).expect("a healthy device");
            let drained = endpoint.drain(drain_timeout).expect("a healthy device");
            (*endpoint.stats(), drained)
        };
        let thread = std::thread::spawn(move || inside(&namespace, serve));
        let (port, waker) = start.recv().expect("the server starts");
        Self {
            port,
            waker,
            stop,
            thread: Some(thread),
        }
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    /// Ends the server. All of its calls have ended.
    pub(crate) fn end(self) -> Stats {
        let (stats, drained) = self.join();
        assert!(drained, "{stats:?}");
        stats
    }

    /// Ends the server. Returns whether all of its calls had ended, too.
    pub(crate) fn join(mut self) -> (Stats, bool) {
        self.stop();
        let thread = self.thread.take().expect("the server runs");
        thread.join().expect("no panic")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The results of calls, by their numbers.
pub(crate) type Ends = Arc<Mutex<BTreeMap<u64, Result<Vec<u8>, Status>>>>;

/// A client in namespace `a`.
pub(crate) struct Client<I: PacketIo> {
    pub(crate) endpoint: Endpoint<I, MonotonicClock>,
    pub(crate) session: SessionId,
    pub(crate) ends: Ends,
    pub(crate) collect: ContinuationId,
}

impl Client<XdpIo> {
    /// A client over AF_XDP, in its thread's namespace.
    pub(crate) fn xdp(port: u16, config: EndpointConfig) -> Self {
        let address = format!("xdp://va/10.77.0.2:{port}");
        let io = XdpIo::client(&address, XdpConfig::default()).expect("a route");
        Self::new(io, &address, config)
    }
}

impl Client<UdpIo> {
    /// A client over UDP, in its thread's namespace.
    pub(crate) fn udp(port: u16) -> Self {
        let io = UdpIo::bind("udp://10.77.0.1:0", UdpConfig::default()).expect("a socket");
        Self::new(io, &format!("udp://10.77.0.2:{port}"), patient())
    }
}

impl<I: PacketIo> Client<I> {
    fn new(io: I, address: &str, config: EndpointConfig) -> Self {
        let config = EndpointConfig {
            idle: Idle::Block,
            ..config
        };
        let mut endpoint =
            Endpoint::new(io, MonotonicClock::new(), config, secrets(1)).expect("sound");
        let ends = Ends::default();
        let into = Arc::clone(&ends);
        let collect = endpoint.register_continuation(move |_, completion| {
            let result = completion.result.map(|response| response.body().to_vec());
            let before = into.lock().insert(completion.tag, result);
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

    pub(crate) fn call(&mut self, method: MethodId, options: &CallOptions, number: u32, task: u8) {
        self.try_call(method, options, number, task).expect("room");
    }

    fn try_call(
        &mut self,
        method: MethodId,
        options: &CallOptions,
        number: u32,
        task: u8,
    ) -> Result<(), CallError> {
        let body = body(number, task);
        let (collect, tag) = (self.collect, u64::from(number));
        let build = |out: &mut Vec<u8>| out.extend(&body);
        let call = (self.endpoint).call(self.session, method, options, build, collect, tag);
        call.map(|_| ())
    }

    /// As [`Self::work`]. False: the server has said that it shuts down, so the call is not made.
    pub(crate) fn work_unless_draining(&mut self, number: u32, task: u8) -> bool {
        match self.try_call(WORK, &CallOptions::default(), number, task) {
            Ok(()) => true,
            Err(CallError::Draining) => false,
            Err(error) => panic!("call {number}: {error}"),
        }
    }

    pub(crate) fn work(&mut self, number: u32, task: u8) {
        self.call(WORK, &CallOptions::default(), number, task);
    }

    /// Makes an echo call for each number, with up to `outstanding` at a time. Each has a slot at once
    /// and a datagram of its own: a client that sends several requests at a time bundles them, and
    /// bundles go to the dispatcher.
    pub(crate) fn echo(&mut self, numbers: std::ops::Range<u32>, outstanding: usize) {
        let before = self.ends.lock().len();
        for (made, number) in (1..).zip(numbers.clone()) {
            self.work(number, ECHO);
            self.run_until(before + (made + 1_usize).saturating_sub(outstanding));
        }
        self.run_until(before + numbers.len());
        self.check_echoes(numbers);
    }

    /// Runs until handlers have counted up to `wanted`.
    pub(crate) fn wait_for(&mut self, count: &AtomicU64, wanted: u64) {
        let begun = Instant::now();
        while count.load(Ordering::SeqCst) < wanted {
            assert!(begun.elapsed() < PATIENCE, "the handlers do not run");
            self.endpoint.poll().expect("a healthy device");
        }
    }

    /// Runs for at least one turn, until `count` calls have ended.
    pub(crate) fn run_until(&mut self, count: usize) {
        let begun = Instant::now();
        let ends = Arc::clone(&self.ends);
        let done = |_: &mut Endpoint<_, _>| {
            assert!(begun.elapsed() < PATIENCE, "{} ended", ends.lock().len());
            ends.lock().len() >= count
        };
        self.endpoint.run_until(done).expect("a healthy device");
    }

    /// Makes one call that is answered, and then one whose handler blocks.
    pub(crate) fn echo_and_block(&mut self, shared: &Shared) {
        self.work(0, ECHO);
        self.run_until(1);
        self.work(1, BLOCK);
        self.wait_for(&shared.blocked, 1);
    }

    pub(crate) fn check_echoes(&self, numbers: impl Iterator<Item = u32>) {
        for number in numbers {
            let end = self.ends.lock().remove(&number.into());
            let answer = end.expect("the call ended").expect("an answer");
            assert_eq!(answer[1..], body(number, ECHO)[1..]);
        }
    }
}

pub(crate) fn body(number: u32, task: u8) -> Vec<u8> {
    [&[task][..], &number.to_le_bytes(), b"and so on"].concat()
}

pub(crate) fn steered(threads: usize) -> WorkerConfig {
    WorkerConfig {
        steered: true,
        ..WorkerConfig::new(threads, 1000)
    }
}
