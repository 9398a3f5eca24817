//! The event loop that ships, unchanged, on simulated devices and clocks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use starling_endpoint::{
    CallOptions, Code, Completion, ContinuationId, Endpoint, EndpointConfig, Handler, Idle,
    MethodId, Secrets, SessionId,
};
use starling_sim::rng::Rng;
use starling_sim::{
    Fabric, FabricConfig, Fault, HostId, Rule, SharedFabric, SimClock, SimIo, Step,
};

const MS: u64 = 1_000_000;
const ECHO: MethodId = MethodId(1);
const CALLS: u64 = 120;

type Host = Endpoint<SimIo, SimClock>;
/// The number of times that each tag was seen.
type Counts = Arc<Mutex<BTreeMap<u64, u32>>>;

fn start(fabric: &SharedFabric, host: HostId, key: u32) -> Host {
    let mut config = EndpointConfig {
        returns_memory: false,
        idle: Idle::Block,
        ..EndpointConfig::default()
    };
    config.protocol.max_message = 1 << 20;
    let secrets = Secrets {
        token_key: [key as u8; 16],
        cookie_key: [key as u8; 16],
    };
    let io = SimIo::new(fabric, host);
    Endpoint::new(io, SimClock::new(fabric, host), config, secrets).expect("a sound configuration")
}

/// An echo server that counts the requests it runs, by the tag that they begin with.
fn start_server(fabric: &SharedFabric, host: HostId, key: u32, executed: &Counts) -> Host {
    let mut server = start(fabric, host, key);
    let executed = executed.clone();
    let echo = Handler::inline(move |_, request, mut reply| {
        let tag = u64::from_le_bytes(request.body()[..8].try_into().expect("a tag"));
        *executed.lock().entry(tag).or_default() += 1;
        reply.buffer().extend_from_slice(request.body());
        reply.ok();
    });
    server.register(ECHO, echo);
    server
}

fn body(tag: u64, len: usize) -> Vec<u8> {
    let filler = (0..len).map(|index| (tag as usize * 31 + index) as u8);
    tag.to_le_bytes().into_iter().chain(filler).collect()
}

/// The timers of a run: one for each call, then the server's crash and the end of the run.
const CRASH: u64 = CALLS;
const END: u64 = CALLS + 1;

/// A client and a server on a bad network, and the records of the calls between them.
struct Run {
    fabric: SharedFabric,
    client_id: HostId,
    server_id: HostId,
    client: Host,
    server: Host,
    session: SessionId,
    continuation: ContinuationId,
    lengths: Arc<Vec<usize>>,
    executed: Counts,
    ended: Counts,
    answered: Arc<AtomicUsize>,
    crash: bool,
}

impl Run {
    /// Two endpoints with a session between them. `crash`: the server will crash.
    fn new(seed: u64, rng: &mut Rng, crash: bool) -> Self {
        let fabric = Fabric::shared(FabricConfig {
            seed,
            ..FabricConfig::default()
        });
        let (client_id, server_id) = {
            let mut fabric = fabric.lock();
            let until_ns = 100 * MS;
            let mut add = |fault| fabric.add_rule(Rule::everywhere(0, until_ns, fault));
            let ppm = rng.range(0, 200_000) as u32;
            add(Fault::Loss { ppm });
            let delay_ns = MS;
            add(Fault::Duplicate { ppm, delay_ns });
            add(Fault::Reorder { ppm, delay_ns });
            (fabric.add_host(), fabric.add_host())
        };
        let (executed, ended) = (Counts::default(), Counts::default());
        let mut client = start(&fabric, client_id, 1);
        let server = start_server(&fabric, server_id, 2, &executed);
        let answered = Arc::new(AtomicUsize::new(0));
        let lengths = (0..CALLS).map(|_| rng.log_range(0, 60_000) as usize);
        let lengths: Arc<Vec<usize>> = Arc::new(lengths.collect());
        let continuation = {
            let (ended, answered, lengths) = (ended.clone(), answered.clone(), lengths.clone());
            client.register_continuation(move |_, completion| {
                let tag = completion.tag;
                *ended.lock().entry(tag).or_default() += 1;
                let length = lengths[tag as usize];
                let succeeded = check_completion(completion, length, crash);
                answered.fetch_add(usize::from(succeeded), Ordering::Relaxed);
            })
        };
        let session = client.connect(&server.local_address()).expect("an address");
        Self {
            fabric,
            client_id,
            server_id,
            client,
            server,
            session,
            continuation,
            lengths,
            executed,
            ended,
            answered,
            crash,
        }
    }

    fn set_timer(&self, at_ns: u64, word: u64) {
        self.fabric.lock().set_timer(at_ns, word);
    }

    /// Steps through the run until its end.
    fn step_to_end(mut self) -> Self {
        loop {
            let step = self.fabric.lock().step().expect("the end is a timer");
            match step {
                Step::Turn(host) => self.turn(host),
                Step::Timer(CRASH) => {
                    drop(self.server);
                    self.fabric.lock().crash(self.server_id);
                    self.fabric.lock().restart(self.server_id);
                    self.server = start_server(&self.fabric, self.server_id, 3, &self.executed);
                }
                Step::Timer(END) => return self,
                Step::Timer(tag) => self.call(tag),
            }
        }
    }

    fn turn(&mut self, host: HostId) {
        let endpoint = if host == self.client_id {
            &mut self.client
        } else {
            &mut self.server
        };
        let turn = endpoint.poll().expect("the device has no errors");
        let now_ns = self.fabric.lock().now_ns();
        if turn.is_idle() {
            endpoint.wait(None).expect("the device has no errors");
            // The wait ended at once, so the loop runs again.
            self.fabric.lock().wake_at(host, now_ns + MS);
        } else {
            self.fabric.lock().wake_at(host, now_ns + 500);
        }
    }

    fn call(&mut self, tag: u64) {
        let options = if tag.is_multiple_of(3) {
            CallOptions::with_timeout(Duration::from_millis(5))
        } else {
            CallOptions::default()
        };
        let bytes = body(tag, self.lengths[tag as usize]);
        let build = |buffer: &mut Vec<u8>| buffer.extend_from_slice(&bytes);
        let (session, continuation) = (self.session, self.continuation);
        let called = self
            .client
            .call(session, ECHO, &options, build, continuation, tag);
        if called.is_err() {
            assert!(self.crash, "the session ended without a crash");
            *self.ended.lock().entry(tag).or_default() += 1;
        }
        let now_ns = self.fabric.lock().now_ns();
        self.fabric.lock().wake_at(self.client_id, now_ns);
    }
}

/// Whether a call was answered: its response must be the request, and its error must have a reason.
fn check_completion(completion: Completion<'_>, length: usize, crash: bool) -> bool {
    let tag = completion.tag;
    match completion.result {
        Ok(response) => {
            assert!(response.body() == body(tag, length), "call {tag}");
            true
        }
        Err(status) => {
            let expected = [Code::DeadlineExceeded, Code::Unavailable];
            assert!(expected.contains(&status.code()), "call {tag}: {status:?}");
            let timed = tag.is_multiple_of(3);
            assert!(crash || timed, "call {tag} has no deadline: {status:?}");
            false
        }
    }
}

/// Runs calls through a bad network, and through a crash of the server if `crash`; returns the
/// trace's hash and how many calls were answered.
fn run(seed: u64, crash: bool) -> (u64, usize) {
    let mut rng = Rng::new(seed);
    let run = Run::new(seed, &mut rng, crash);
    for tag in 0..CALLS {
        run.set_timer(rng.range(0, 50 * MS), tag);
    }
    if crash {
        run.set_timer(rng.range(0, 50 * MS), CRASH);
    }
    run.set_timer(10_000 * MS, END);
    let run = run.step_to_end();
    let ended = run.ended.lock();
    assert_eq!(ended.len() as u64, CALLS, "every call ends");
    assert!(ended.values().all(|&times| times == 1), "once");
    let at_most_once = run.executed.lock().values().all(|&times| times == 1);
    assert!(at_most_once, "a request ran twice");
    assert_eq!(run.client.calls_outstanding(), 0);
    assert_eq!(run.server.requests_pending(), 0);
    let hash = run.fabric.lock().trace().hash();
    (hash, run.answered.load(Ordering::Relaxed))
}

#[test]
fn calls_through_a_bad_network_end_once_and_run_at_most_once() {
    for seed in 0..20 {
        let (_, answered) = run(seed, false);
        assert!(answered as u64 >= CALLS * 2 / 3, "seed {seed}: {answered}");
    }
}

#[test]
fn calls_end_when_the_server_is_restarted() {
    for seed in 0..20 {
        run(seed, true);
    }
}

#[test]
fn endpoint_runs_are_deterministic() {
    assert_eq!(run(5, true), run(5, true));
}
