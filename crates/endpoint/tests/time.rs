//! The number of times that an endpoint reads its clock, and the times from which deadlines count.

mod common;

use std::cell::Cell;
use std::rc::Rc;

use common::{Pair, endpoint, endpoint_with, ms, requests_of_turn, settle};
use starling_endpoint::{
    CallOptions, Endpoint, EndpointConfig, Handler, MethodId, Secrets, SessionState,
};
use starling_io::Clock;
use starling_sim::stepped::SteppedNetwork;

/// Counts its readings.
#[derive(Clone, Default)]
struct CountingClock(Rc<Cell<u64>>);

impl Clock for CountingClock {
    fn now_ns(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get() * 1_000_000
    }
}

/// The number of times that a server reads its clock in a turn with three datagrams of one request
/// each.
fn readings(batched_timestamps: bool) -> u64 {
    let network = SteppedNetwork::default();
    let clock = CountingClock::default();
    let config = EndpointConfig {
        batched_timestamps,
        ..EndpointConfig::default()
    };
    let secrets = Secrets {
        token_key: [9; 16],
        cookie_key: [9; 16],
    };
    let mut server = Endpoint::new(network.device(), clock.clone(), config, secrets).unwrap();
    server.register(MethodId(1), Handler::inline(|_, _, reply| reply.ok()));
    let mut clients = [1, 2, 3].map(|token| endpoint(&network, token));
    let sessions = clients.each_mut().map(|client| {
        let session = client.connect(&server.local_address()).unwrap();
        for _ in 0..4 {
            client.poll().unwrap();
            server.poll().unwrap();
        }
        session
    });
    for (client, session) in clients.iter_mut().zip(sessions) {
        let ignore = client.register_continuation(|_, _| {});
        let options = CallOptions::default();
        client
            .call(session, MethodId(1), &options, |_| {}, ignore, 0)
            .unwrap();
        settle(&mut [client]);
    }
    let before = clock.0.get();
    assert_eq!(requests_of_turn(&mut server), 3);
    clock.0.get() - before
}

#[test]
fn the_clock_is_read_once_a_turn_by_default() {
    let batched = readings(true);
    assert!(batched <= 1, "{batched}");
    assert_eq!(readings(false), batched + 3);
}

/// A clock that advances with each reading.
#[derive(Clone)]
struct SteppingClock(Rc<Cell<u64>>, u64);

impl Clock for SteppingClock {
    fn now_ns(&self) -> u64 {
        self.0.set(self.0.get() + self.1);
        self.0.get()
    }
}

/// The number of datagrams in which a server answers 40 requests of one datagram, in as many turns as it takes.
fn answers(step_ns: u64) -> u64 {
    let network = SteppedNetwork::default();
    let protocol = starling_proto::Config {
        slots: 64,
        credits: 64,
        ..starling_proto::Config::default()
    };
    let config = EndpointConfig {
        protocol,
        ..EndpointConfig::default()
    };
    let mut client = endpoint_with(&network, 1, config.clone());
    let secrets = Secrets {
        token_key: [9; 16],
        cookie_key: [9; 16],
    };
    let clock = SteppingClock(Rc::default(), step_ns);
    let mut server = Endpoint::new(network.device(), clock, config, secrets).unwrap();
    server.register(MethodId(1), Handler::inline(|_, _, reply| reply.ok()));
    let session = client.connect(&server.local_address()).unwrap();
    for _ in 0..4 {
        client.poll().unwrap();
        server.poll().unwrap();
    }
    let ignore = client.register_continuation(|_, end| assert!(end.result.is_ok()));
    let options = CallOptions::default();
    for _ in 0..40 {
        client
            .call(session, MethodId(1), &options, |_| {}, ignore, 0)
            .unwrap();
    }
    settle(&mut [&mut client]);
    let handled = server.stats().requests + 40;
    while server.stats().requests < handled {
        server.poll().unwrap();
    }
    let before = client.stats().datagrams;
    settle(&mut [&mut client]);
    assert_eq!(client.stats().completions, 40);
    client.stats().datagrams - before
}

#[test]
fn answers_leave_a_long_burst_before_its_end() {
    assert_eq!(answers(0), 1, "no time has passed");
    assert_eq!(answers(15_000), 2, "the clock is read after every 16th");
    assert!(
        answers(100_000) >= 5,
        "and more often where frames take long"
    );
}

/// The owner uses the endpoint, takes no turn for a while, and then makes a call. The deadline counts
/// from the call, not from the use before.
#[test]
fn a_deadline_is_counted_from_its_call() {
    let mut pair = Pair::new();
    pair.server
        .register(MethodId(1), Handler::inline(|_, _, reply| reply.ok()));
    pair.settle();
    // Reads the clock, between two turns.
    let _ = pair.client.context();
    pair.network.clock().advance(ms(500));
    pair.call_with(1, b"", 7, &CallOptions::with_timeout(ms(100)));
    for _ in 0..3 {
        pair.client.poll().unwrap();
    }
    assert!(pair.one_end().is_ok());
}

/// The same for the timeout of a connect.
#[test]
fn the_timeout_of_a_connect_counts_from_the_connect() {
    let network = SteppedNetwork::default();
    let mut client = endpoint(&network, 1);
    let mut server = endpoint(&network, 2);
    let _ = client.context();
    network.clock().advance(ms(60_000));
    let session = client.connect(&server.local_address()).unwrap();
    for _ in 0..3 {
        client.poll().unwrap();
    }
    settle(&mut [&mut client, &mut server]);
    assert_eq!(client.session_state(session), Some(SessionState::Connected));
}
