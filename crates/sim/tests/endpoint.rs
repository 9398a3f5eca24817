//! The event loop that ships, unchanged, on simulated devices and clocks.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use starling_endpoint::{
    CallOptions, Code, Endpoint, EndpointConfig, Handler, Idle, MethodId, Secrets,
};
use starling_sim::rng::Rng;
use starling_sim::{
    Fabric, FabricConfig, Fault, HostId, Rule, SharedFabric, SimClock, SimIo, Step,
};

const MS: u64 = 1_000_000;
const ECHO: MethodId = MethodId(1);
const CALLS: u64 = 120;

type Host = Endpoint<SimIo, SimClock>;
/// How often each tag was seen.
type Counts = Rc<RefCell<BTreeMap<u64, u32>>>;

fn start(fabric: &SharedFabric, host: HostId, token: u32) -> Host {
    let mut config = EndpointConfig {
        idle: Idle::Block,
        ..EndpointConfig::default()
    };
    config.protocol.max_message = 1 << 20;
    let secrets = Secrets {
        token,
        cookie_key: [token as u8; 16],
    };
    let io = SimIo::new(fabric, host);
    Endpoint::new(io, SimClock::new(fabric, host), config, secrets).expect("a sound configuration")
}

/// An echo server that counts the requests it runs, by the tag that they begin with.
fn start_server(fabric: &SharedFabric, host: HostId, token: u32, executed: &Counts) -> Host {
    let mut server = start(fabric, host, token);
    let executed = executed.clone();
    let echo = Handler::inline(move |_, request, mut reply| {
        let tag = u64::from_le_bytes(request.body()[..8].try_into().expect("a tag"));
        *executed.borrow_mut().entry(tag).or_default() += 1;
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

/// Runs calls through a bad network, and through a crash of the server if `crash`; returns the
/// trace's hash and how many calls were answered.
fn run(seed: u64, crash: bool) -> (u64, usize) {
    let mut rng = Rng::new(seed);
    let fabric = Rc::new(RefCell::new(Fabric::new(FabricConfig {
        seed,
        ..FabricConfig::default()
    })));
    let (left, right) = {
        let mut fabric = fabric.borrow_mut();
        let until_ns = 100 * MS;
        let mut add = |fault| fabric.add_rule(Rule::everywhere(0, until_ns, fault));
        let ppm = rng.range(0, 200_000) as u32;
        add(Fault::Loss { ppm });
        let delay_ns = MS;
        add(Fault::Duplicate { ppm, delay_ns });
        add(Fault::Reorder { ppm, delay_ns });
        (fabric.add_host(), fabric.add_host())
    };
    let executed = Counts::default();
    let mut client = start(&fabric, left, 1);
    let mut server = start_server(&fabric, right, 2, &executed);

    let ended = Counts::default();
    let answered = Rc::new(RefCell::new(0));
    let lengths: Rc<Vec<usize>> = Rc::new(
        (0..CALLS)
            .map(|_| rng.log_range(0, 60_000) as usize)
            .collect(),
    );
    let continuation = {
        let (ended, answered, lengths) = (ended.clone(), answered.clone(), lengths.clone());
        client.register_continuation(move |_, completion| {
            let tag = completion.tag;
            *ended.borrow_mut().entry(tag).or_default() += 1;
            match completion.result {
                Ok(response) => {
                    assert!(
                        response.body() == body(tag, lengths[tag as usize]),
                        "call {tag}"
                    );
                    *answered.borrow_mut() += 1;
                }
                Err(status) => {
                    let expected = [Code::DeadlineExceeded, Code::Unavailable];
                    assert!(expected.contains(&status.code()), "call {tag}: {status:?}");
                    assert!(
                        crash || tag % 3 == 0,
                        "call {tag} has no deadline: {status:?}"
                    );
                }
            }
        })
    };
    let session = client.connect(&server.local_address()).expect("an address");

    // One alarm for each call, then those that end the run and the server's first life.
    const CRASH: u64 = CALLS;
    const END: u64 = CALLS + 1;
    for tag in 0..CALLS {
        fabric.borrow_mut().set_timer(rng.range(0, 50 * MS), tag);
    }
    if crash {
        fabric.borrow_mut().set_timer(rng.range(0, 50 * MS), CRASH);
    }
    fabric.borrow_mut().set_timer(10_000 * MS, END);
    loop {
        let step = fabric.borrow_mut().step().expect("the end is an alarm");
        match step {
            Step::Turn(host) => {
                let endpoint = if host == left {
                    &mut client
                } else {
                    &mut server
                };
                let turn = endpoint.poll().expect("the device has no errors");
                let now_ns = fabric.borrow().now_ns();
                if turn.is_idle() {
                    endpoint.wait(None).expect("the device has no errors");
                    // A wait that ends at once: a loop that does nothing else comes round again.
                    fabric.borrow_mut().wake_at(host, now_ns + MS);
                } else {
                    fabric.borrow_mut().wake_at(host, now_ns + 500);
                }
            }
            Step::Timer(CRASH) => {
                drop(server);
                fabric.borrow_mut().crash(right);
                fabric.borrow_mut().restart(right);
                server = start_server(&fabric, right, 3, &executed);
            }
            Step::Timer(END) => break,
            Step::Timer(tag) => {
                let options = if tag % 3 == 0 {
                    CallOptions::with_timeout(Duration::from_millis(5))
                } else {
                    CallOptions::default()
                };
                let bytes = body(tag, lengths[tag as usize]);
                let build = |buffer: &mut Vec<u8>| buffer.extend_from_slice(&bytes);
                let called = client.call(session, ECHO, &options, build, continuation, tag);
                if called.is_err() {
                    assert!(crash, "the session is over though nobody crashed");
                    *ended.borrow_mut().entry(tag).or_default() += 1;
                }
                let now_ns = fabric.borrow().now_ns();
                fabric.borrow_mut().wake_at(left, now_ns);
            }
        }
    }
    assert_eq!(ended.borrow().len() as u64, CALLS, "every call ends");
    assert!(ended.borrow().values().all(|&times| times == 1), "once");
    assert!(
        executed.borrow().values().all(|&times| times == 1),
        "at most once"
    );
    assert_eq!(client.calls_outstanding(), 0);
    assert_eq!(server.requests_pending(), 0);
    let answered = *answered.borrow();
    (fabric.borrow().trace().hash(), answered)
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
