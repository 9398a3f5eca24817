//! Shares of the server's time: greedy clients with slow requests beside one that asks for little, in a
//! network whose round trip takes 50 us. Handlers take time of the clock that all share.

mod common;

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use common::{Pair, TestEndpoint, code, endpoint};
use parking_lot::Mutex;
use starling_endpoint::{
    CallId, CallOptions, Code, ContinuationId, EndpointConfig, Handler, MethodId, RequestView,
    ResponseBuilder, SessionId,
};
use starling_io::Clock;
use starling_sim::stepped::{SteppedClock, SteppedNetwork};

/// A method whose handler runs for as many microseconds as the request has bytes.
const RUN: MethodId = MethodId(1);
/// The same in a future that is woken at once before each 10 us of them.
const RUN_IN_PARTS: MethodId = MethodId(2);
const ROUND_TRIP: Duration = us(50);
/// Greedy clients, each a host with several sessions.
const GREEDY: usize = 100;
const SESSIONS: usize = 4;

const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// A future that is woken at once.
async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// What uses the server's time. An honest client goes on meanwhile.
#[derive(Clone)]
struct Processor {
    clock: SteppedClock,
    honest: Arc<Mutex<Client>>,
}

impl Processor {
    fn run(&self, for_us: usize) {
        for _ in 0..for_us {
            self.clock.advance(us(1));
            self.honest.lock().call_now_and_then();
        }
    }
}

fn register(server: &mut TestEndpoint, processor: &Processor) {
    let busy = processor.clone();
    let run = move |request: RequestView<'_>, _: &mut ResponseBuilder<'_>| {
        busy.run(request.body().len());
        Ok(())
    };
    server.register(RUN, Handler::unary(Box::new(run)));
    let busy = processor.clone();
    server.register(
        RUN_IN_PARTS,
        Handler::deferring(move |cx, request, reply| {
            let (peer, parts) = (request.peer(), request.body().len() / 10);
            let (reply, local, busy) = (reply.defer(), cx.local(), busy.clone());
            cx.spawn_for(peer, async move {
                for _ in 0..parts {
                    yield_now().await;
                    busy.run(10);
                }
                local.complete_with(reply, Ok(()));
            });
        }),
    );
}

/// How long the calls took that have ended.
type Ends = Arc<Mutex<Vec<Duration>>>;

struct Client {
    endpoint: TestEndpoint,
    clock: SteppedClock,
    sessions: Vec<SessionId>,
    collect: ContinuationId,
    ends: Ends,
    made: usize,
    /// When the next call is due.
    next_ns: u64,
}

impl Client {
    fn new(network: &SteppedNetwork, key: u32, server: &str, sessions: usize) -> Self {
        let mut endpoint = endpoint(network, key);
        let (ends, clock) = (Ends::default(), network.clock());
        let (into, at) = (Arc::clone(&ends), clock.clone());
        let collect = endpoint.register_continuation(move |_, completion| {
            completion.result.expect("an answer");
            let took_ns = at.now_ns() - completion.tag;
            into.lock().push(Duration::from_nanos(took_ns));
        });
        let sessions = (0..sessions).map(|_| endpoint.connect(server).unwrap());
        Self {
            sessions: sessions.collect(),
            endpoint,
            clock,
            collect,
            ends,
            made: 0,
            next_ns: 0,
        }
    }

    fn outstanding(&self) -> usize {
        self.made - self.ends.lock().len()
    }

    fn call(&mut self, method: MethodId, run_us: usize) {
        let session = self.sessions[self.made % self.sessions.len()];
        let body = vec![0; run_us];
        let append = |out: &mut Vec<u8>| out.extend_from_slice(&body);
        let (options, now_ns) = (CallOptions::default(), self.clock.now_ns());
        self.endpoint
            .call(session, method, &options, append, self.collect, now_ns)
            .unwrap();
        self.made += 1;
    }

    /// Has all slots of all sessions full. Returns whether nothing happened.
    fn call_greedily(&mut self, method: MethodId, run_us: usize) -> bool {
        while self.outstanding() < 8 * self.sessions.len() {
            self.call(method, run_us);
        }
        self.endpoint.poll().unwrap().is_idle()
    }

    /// Makes a call of 2 us every 500 us, which is half of an equal share of the time of a hundred.
    fn call_now_and_then(&mut self) -> bool {
        if self.outstanding() == 0 && self.clock.now_ns() >= self.next_ns {
            self.call(RUN, 2);
            self.next_ns = self.clock.now_ns() + 500_000;
        }
        self.endpoint.poll().unwrap().is_idle()
    }
}

/// How long the calls of an honest client take beside greedy ones.
fn honest_times(method: MethodId, greedy: usize, run_us: usize) -> Vec<Duration> {
    let network = SteppedNetwork::with_round_trip(ROUND_TRIP);
    let mut server = endpoint(&network, 1);
    let address = server.local_address();
    let honest = Arc::new(Mutex::new(Client::new(&network, 2, &address, 1)));
    let clock = network.clock();
    let processor = Processor {
        clock: clock.clone(),
        honest: Arc::clone(&honest),
    };
    register(&mut server, &processor);
    let mut clients: Vec<_> = (0..greedy)
        .map(|index| Client::new(&network, index as u32 + 3, &address, SESSIONS))
        .collect();
    let ends = Arc::clone(&honest.lock().ends);
    while ends.lock().len() < 1_000 {
        let mut idle = server.poll().unwrap().is_idle();
        for client in &mut clients {
            idle &= client.call_greedily(method, run_us);
        }
        if idle && honest.lock().call_now_and_then() {
            clock.advance(us(1));
        }
        assert!(clock.now_ns() < 60_000_000_000, "the honest client starves");
    }
    let ended: usize = clients.iter().map(|client| client.ends.lock().len()).sum();
    assert!(ended >= 10 * greedy, "the greedy ones starve: {ended}");
    // The first ones come while all connect.
    let mut times = ends.lock().split_off(100);
    times.sort();
    times
}

fn p99(times: &[Duration]) -> Duration {
    times[times.len() * 99 / 100]
}

#[test]
fn a_hundred_greedy_clients_leave_an_honest_one_within_three_times_its_p99_alone() {
    let alone = p99(&honest_times(RUN, 0, 0));
    assert!(alone >= ROUND_TRIP, "{alone:?}");
    for (method, run_us) in [(RUN, 10), (RUN, 30), (RUN_IN_PARTS, 50)] {
        let beside = p99(&honest_times(method, GREEDY, run_us));
        let ratio = beside.as_secs_f64() / alone.as_secs_f64();
        println!("{method:?}, {run_us} us each: p99 {beside:?}, {ratio:.2} of {alone:?} alone");
        assert!(
            beside <= 3 * alone,
            "{method:?}, {run_us} us each: {beside:?}, alone {alone:?}"
        );
    }
}

/// A server whose handlers are slow, of 100 us each, and a client that has made eight calls. Two have run: one
/// at once, one in its turn. The others wait.
struct Waiting {
    pair: Pair,
    calls: Vec<CallId>,
    /// Tags of the requests that ran.
    ran: Arc<Mutex<Vec<u8>>>,
}

/// A request whose handler panics.
const PANICS: u8 = 5;

impl Waiting {
    fn with(config: EndpointConfig, options: &CallOptions) -> Self {
        let mut pair = Pair::with(config);
        let (ran, clock) = (Arc::<Mutex<Vec<u8>>>::default(), pair.network.clock());
        let into = Arc::clone(&ran);
        let run = move |request: RequestView<'_>, _: &mut ResponseBuilder<'_>| {
            clock.advance(us(100));
            let tag = request.body()[0];
            into.lock().push(tag);
            assert!(tag != PANICS, "as planned");
            Ok(())
        };
        pair.server.register(RUN, Handler::unary(Box::new(run)));
        // So many that the server knows what they cost.
        for tag in 100..102 {
            pair.call(RUN.0, &[tag], tag.into());
            assert!(pair.one_end().is_ok());
        }
        ran.lock().clear();
        let calls = (0..8).map(|tag| pair.call_with(RUN.0, &[tag], tag.into(), options));
        let calls = calls.collect();
        pair.client.poll().unwrap();
        pair.server.poll().unwrap();
        assert_eq!(*ran.lock(), [0, 1]);
        assert_eq!(pair.server.stats().waited_for_share, 7);
        Self { pair, calls, ran }
    }

    fn new() -> Self {
        Self::with(EndpointConfig::default(), &CallOptions::default())
    }

    /// Lets all calls end. Returns their codes in the order of their tags.
    fn codes(&mut self) -> Vec<Code> {
        self.pair.settle();
        let mut ends = self.pair.take_ends();
        ends.sort_by_key(|(tag, _)| *tag);
        ends.iter().map(|(_, end)| code(end)).collect()
    }
}

#[test]
fn a_request_that_waits_for_its_turn_runs_once_whatever_the_others_do() {
    let mut waiting = Waiting::new();
    let mut codes = [Code::Ok; 8];
    codes[usize::from(PANICS)] = Code::Internal;
    assert_eq!(waiting.codes(), codes);
    assert_eq!(*waiting.ran.lock(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(waiting.pair.server.stats().panics, 1);
}

#[test]
fn a_request_that_is_cancelled_while_it_waits_for_its_turn_does_not_run() {
    let mut waiting = Waiting::new();
    let cancelled = waiting.calls[3];
    assert!(waiting.pair.client.cancel(cancelled));
    waiting.pair.client.poll().unwrap();
    assert_eq!(waiting.codes()[3], Code::Cancelled);
    assert_eq!(*waiting.ran.lock(), [0, 1, 2, 4, 5, 6, 7]);
    assert_eq!(waiting.pair.server.stats().cancelled_in_queue, 1);
}

#[test]
fn a_request_whose_deadline_passes_while_it_waits_for_its_turn_does_not_run() {
    let options = CallOptions::with_timeout(us(350));
    let mut waiting = Waiting::with(EndpointConfig::default(), &options);
    let codes = waiting.codes();
    assert_eq!(codes[..2], [Code::Ok; 2]);
    assert!(codes[4..].iter().all(|code| *code != Code::Ok), "{codes:?}");
    assert!(waiting.ran.lock().len() <= 4);
}

#[test]
fn a_server_that_shuts_down_refuses_what_waits_for_its_turn() {
    let mut waiting = Waiting::new();
    waiting.pair.server.start_drain();
    assert!(!waiting.pair.server.is_drained());
    let codes = waiting.codes();
    assert_eq!(codes[2..], [Code::Unavailable; 6]);
    assert_eq!(*waiting.ran.lock(), [0, 1]);
    assert_eq!(waiting.pair.server.stats().refused_draining, 6);
    assert!(waiting.pair.server.is_drained());
}

#[test]
fn what_waits_for_its_turn_takes_the_room_of_requests_that_wait() {
    let config = EndpointConfig {
        max_waiting: 20,
        ..EndpointConfig::default()
    };
    let mut waiting = Waiting::with(config, &CallOptions::default());
    let more = waiting
        .pair
        .client
        .connect(&waiting.pair.server.local_address());
    waiting.pair.session = more.unwrap();
    for tag in 10..18 {
        waiting.pair.call(RUN.0, &[tag], tag.into());
    }
    let codes = waiting.codes();
    let refused = codes
        .iter()
        .filter(|code| **code == Code::ResourceExhausted);
    let refused = refused.count() as u64;
    assert!(refused > 0 && codes.len() == 16, "{codes:?}");
    assert_eq!(waiting.pair.server.stats().waiting_full, refused);
    assert_eq!(waiting.ran.lock().len() as u64, 16 - refused);
    // All of the room is back.
    for tag in 20..26 {
        waiting.pair.call(RUN.0, &[tag], tag.into());
    }
    assert_eq!(waiting.codes(), [Code::Ok; 6]);
}

#[test]
fn nothing_runs_of_a_client_that_goes_while_it_waits_for_its_turn() {
    let mut waiting = Waiting::new();
    waiting.pair.client.close(waiting.pair.session);
    waiting.pair.client.poll().unwrap();
    waiting.pair.settle();
    assert_eq!(*waiting.ran.lock(), [0, 1]);
    assert_eq!(waiting.pair.server.stats().cancelled_in_queue, 6);
}
