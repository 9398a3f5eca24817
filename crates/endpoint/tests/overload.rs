//! Requests that have waited in a server's queues: the server runs or refuses each, to the microsecond.

mod common;

use std::sync::{Arc, mpsc};
use std::time::Duration;

use common::{Pair, code, endpoint_with, ms, requests_of_turn, settle};
use parking_lot::Mutex;
use starling_endpoint::{
    CallOptions, Code, Endpoint, EndpointConfig, Handler, Idle, MethodId, Secrets, WorkerConfig,
};
use starling_io::Clock;
use starling_sim::stepped::{SteppedClock, SteppedNetwork};

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn within(timeout: Duration) -> CallOptions {
    CallOptions::with_timeout(timeout)
}

/// The time that was left to each request that ran.
type Left = Arc<Mutex<Vec<Option<Duration>>>>;

/// A pair whose server has handled a call that did not wait, and has been idle since.
fn pair() -> (Pair, Left) {
    let mut pair = Pair::new();
    let left = Left::default();
    let into = left.clone();
    pair.server.register(
        MethodId(1),
        Handler::inline(move |_, request, reply| {
            into.lock().push(request.remaining());
            reply.ok();
        }),
    );
    pair.call_with(1, b"", 0, &within(ms(50)));
    assert!(pair.one_end().is_ok());
    left.lock().clear();
    (pair, left)
}

#[test]
fn a_request_that_expired_in_the_receive_queue_is_not_run_and_one_with_time_left_is() {
    let (mut pair, left) = pair();
    pair.call_with(1, b"", 2, &within(ms(2)));
    pair.call_with(1, b"", 10, &within(ms(10)));
    pair.call(1, b"", 99);
    pair.client.poll().unwrap();
    // The server is busy.
    pair.network.clock().advance(ms(3));
    assert_eq!(requests_of_turn(&mut pair.server), 3);
    assert_eq!(*left.lock(), [Some(ms(7)), None]);
    assert_eq!(pair.server.stats().expired, 1);
    pair.settle();
    let mut ends = pair.take_ends();
    ends.sort_by_key(|(tag, _)| *tag);
    let codes: Vec<_> = ends.iter().map(|(tag, end)| (*tag, code(end))).collect();
    let expected = [(2, Code::DeadlineExceeded), (10, Code::Ok), (99, Code::Ok)];
    assert_eq!(codes, expected);
}

#[test]
fn a_request_that_would_be_answered_too_late_is_refused_at_once() {
    let (mut pair, left) = pair();
    pair.call_with(1, b"", 0, &within(ms(4)));
    pair.client.poll().unwrap();
    pair.network.clock().advance(us(3_001));
    let status = pair.one_end().unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(!status.may_have_run());
    assert!(status.message().ends_with("the call did not run"));
    assert!(left.lock().is_empty());
    assert_eq!(pair.server.stats().overloaded, 1);
}

#[test]
fn a_request_that_waited_with_its_caller_is_run_by_an_idle_server() {
    let (mut pair, left) = pair();
    pair.call_with(1, b"", 0, &within(ms(4)));
    pair.network.clock().advance(us(3_900));
    pair.server.poll().unwrap();
    assert!(pair.one_end().is_ok());
    assert_eq!(*left.lock(), [Some(us(100))]);
}

#[test]
fn a_request_that_ends_a_servers_sleep_has_not_waited_there() {
    let (mut pair, left) = pair();
    // Its first request was lost.
    pair.network.lose_all(true);
    pair.call_with(1, b"", 0, &within(ms(42)));
    pair.client.poll().unwrap();
    pair.network.lose_all(false);
    pair.server.wait(Some(ms(40))).unwrap();
    pair.client.poll().unwrap();
    assert_eq!(requests_of_turn(&mut pair.server), 1);
    let left = left.lock()[0].unwrap();
    // The clocks may have drifted meanwhile.
    assert!((ms(2)..=us(2_010)).contains(&left), "{left:?}");
}

#[test]
fn a_futures_call_begins_when_it_is_issued() {
    let (mut pair, left) = pair();
    let local = pair.client.local();
    let call = local.call(pair.session, MethodId(1), &within(ms(4)), |_| {});
    pair.network.clock().advance(us(3_900));
    pair.settle();
    assert_eq!(*left.lock(), [Some(ms(4))]);
    drop(call);
}

#[test]
fn a_worker_sees_the_time_that_is_left() {
    let (mut pair, _) = pair();
    let (told, tells) = mpsc::channel();
    pair.server.start_workers(&WorkerConfig::new(1, 4)).unwrap();
    pair.server.register_worker(
        MethodId(2),
        Arc::new(move |request, _| told.send(request.remaining()).unwrap()),
    );
    pair.call_with(2, b"", 0, &within(ms(10)));
    pair.client.poll().unwrap();
    pair.network.clock().advance(ms(3));
    pair.server.poll().unwrap();
    let left = tells.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(left, Some(ms(7)));
}

/// A clock with its own origin.
#[derive(Clone)]
struct Elsewhere(SteppedClock, u64);

impl Clock for Elsewhere {
    fn now_ns(&self) -> u64 {
        self.0.now_ns() + self.1
    }
}

/// 64 calls with a deadline of 2 ms arrive at once, and each takes 100 us. Returns how many were
/// answered, refused, and begun.
fn burst(server_ahead_ns: u64) -> (usize, usize, u64) {
    let network = SteppedNetwork::default();
    let protocol = starling_proto::Config {
        slots: 64,
        credits: 64,
        ..starling_proto::Config::default()
    };
    let config = EndpointConfig {
        protocol,
        idle: Idle::Block,
        ..EndpointConfig::default()
    };
    let mut client = endpoint_with(&network, 1, config.clone());
    let secrets = Secrets {
        token_key: [2; 16],
        cookie_key: [2; 16],
    };
    let clock = Elsewhere(network.clock(), server_ahead_ns);
    let mut server = Endpoint::new(network.device(), clock, config, secrets).unwrap();
    let work = network.clock();
    let echo = Handler::inline(move |_, _, reply| {
        work.advance(us(100));
        reply.ok();
    });
    server.register(MethodId(1), echo);
    let session = client.connect(&server.local_address()).unwrap();
    let ends: Arc<Mutex<(usize, usize)>> = Arc::default();
    let into = ends.clone();
    let count = client.register_continuation(move |_, completion| match completion.result {
        Ok(_) => into.lock().0 += 1,
        Err(status) => {
            assert_eq!(status.code(), Code::ResourceExhausted);
            assert!(!status.may_have_run());
            into.lock().1 += 1;
        }
    });
    let mut before = 0;
    // A first call alone: the server learns the difference of the clocks.
    for calls in [1, 64] {
        *ends.lock() = (0, 0);
        before = server.stats().requests - server.stats().overloaded;
        for tag in 0..calls {
            let options = within(ms(2));
            client
                .call(session, MethodId(1), &options, |_| {}, count, tag)
                .unwrap();
        }
        while client.calls_outstanding() > 0 {
            settle(&mut [&mut client]);
            server.poll().unwrap();
        }
    }
    let begun = server.stats().requests - server.stats().overloaded - before;
    assert_eq!(client.calls_outstanding(), 0);
    assert_eq!(client.stats().deadline_exceeded, 0);
    let ends = *ends.lock();
    (ends.0, ends.1, begun)
}

#[test]
fn of_a_burst_beyond_capacity_the_requests_run_that_are_answered_in_time() {
    // The 17th would begin after 1.6 ms, when less than a quarter of its time is left.
    let expected = (16, 48, 16);
    assert_eq!(burst(0), expected);
    assert_eq!(burst(987_654_321_987), expected);
}

/// A handler holds the server's thread up for longer than a client may be silent. Meanwhile the client could
/// send what it liked: nobody read it.
#[test]
fn a_large_request_does_not_give_way_because_the_server_itself_was_away() {
    assert_eq!(send_a_large_request_to_a_busy_server(1, ms(300)), 2);
}

/// Each turn takes but a moment, and there always is more to read.
#[test]
fn a_large_request_does_not_give_way_because_the_server_was_busy_with_others() {
    // The other client's second one waits behind its small ones, and comes when there is memory again.
    assert_eq!(send_a_large_request_to_a_busy_server(8, ms(40)), 1);
}

/// While another client's handlers take their time, and it asks for the memory of large requests. Returns how many of
/// these are refused.
fn send_a_large_request_to_a_busy_server(handlers: usize, time: Duration) -> usize {
    const BYTES: usize = 600 << 10;
    let mut config = EndpointConfig {
        idle: Idle::Block,
        ..EndpointConfig::default()
    };
    config.protocol.max_message = 800 << 10;
    config.protocol.reassembly_bytes = 1 << 20;
    let mut pair = Pair::with(config);
    let clock = pair.network.clock();
    pair.server.register(
        MethodId(1),
        Handler::inline(move |_, _, reply| {
            clock.advance(time);
            reply.ok();
        }),
    );
    (pair.server).register(MethodId(2), Handler::inline(|_, _, reply| reply.ok()));
    let mut other = common::endpoint(&pair.network, 3);
    let session = other.connect(&pair.server.local_address()).unwrap();
    let refused = Arc::new(Mutex::new(Vec::new()));
    let into = refused.clone();
    let collect = other.register_continuation(move |_, completion| {
        into.lock().push(completion.result.map(drop));
    });
    settle(&mut [&mut pair.client, &mut pair.server, &mut other]);

    // Two absences while the request is on its way.
    pair.call(2, &vec![7; BYTES], 2);
    for _ in 0..2 {
        pair.client.poll().unwrap();
        pair.server.poll().unwrap();
        let mut call = |method, bytes| {
            let options = CallOptions::default();
            let body = vec![7; bytes];
            let method = MethodId(method);
            other
                .call(
                    session,
                    method,
                    &options,
                    |buffer| buffer.extend_from_slice(&body),
                    collect,
                    0,
                )
                .unwrap();
            other.poll().unwrap();
            pair.server.poll().unwrap();
        };
        for _ in 0..handlers {
            call(1, 1);
        }
        // There is no memory for both.
        call(2, BYTES);
    }
    settle(&mut [&mut pair.client, &mut pair.server, &mut other]);
    let ends = pair.take_ends();
    assert!(matches!(&ends[..], [(2, Ok(_))]), "{ends:?}");
    let refused = refused.lock();
    refused.iter().filter(|end| end.is_err()).count()
}
