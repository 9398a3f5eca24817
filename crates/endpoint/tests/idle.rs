//! The sleep of an endpoint, and the events that end or prevent it.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Pair, endpoint, endpoint_with, ms, settle};
use starling_endpoint::{
    CallOptions, EndpointConfig, Handler, Idle, MethodId, SessionError, SessionState,
};
use starling_io::{Clock, PacketIo};
use starling_sim::stepped::SteppedNetwork;

fn alone(network: &SteppedNetwork, idle: Idle) -> common::TestEndpoint {
    let config = EndpointConfig {
        idle,
        ..EndpointConfig::default()
    };
    let mut alone = endpoint_with(network, 1, config);
    settle(&mut [&mut alone]);
    alone
}

#[test]
fn idle_spin_never_sleeps_and_idle_block_sleeps_at_once() {
    let network = SteppedNetwork::default();
    alone(&network, Idle::Spin).wait(Some(ms(5))).unwrap();
    assert_eq!(network.clock().now_ns(), 0);
    alone(&network, Idle::Block).wait(Some(ms(5))).unwrap();
    assert_eq!(network.clock().now_ns(), 5_000_000);
}

#[test]
fn the_default_spins_only_shortly_after_work() {
    let network = SteppedNetwork::default();
    let mut alone = alone(&network, Idle::default());
    alone.local().spawn(async {});
    assert!(!alone.poll().unwrap().is_idle());
    for _ in 0..200 {
        network.clock().advance(Duration::from_micros(1));
        assert!(alone.poll().unwrap().is_idle());
        let before = network.clock().now_ns();
        alone.wait(Some(ms(5))).unwrap();
        assert_eq!(network.clock().now_ns(), before, "spins");
    }
    network.clock().advance(Duration::from_micros(1));
    assert!(alone.poll().unwrap().is_idle());
    alone.wait(Some(ms(5))).unwrap();
    assert_eq!(network.clock().now_ns(), 5_201_000, "sleeps");
}

#[test]
fn keepalives_begin_no_spin() {
    let network = SteppedNetwork::default();
    let mut client = endpoint(&network, 1);
    let mut server = endpoint_with(&network, 2, EndpointConfig::default());
    server.register(MethodId(1), Handler::inline(|_, _, reply| reply.ok()));
    let session = client.connect(&server.local_address()).unwrap();
    settle(&mut [&mut client, &mut server]);
    let clock = network.clock();
    // Whether it spins, after the first turn without work.
    let spins = |server: &mut common::TestEndpoint| {
        clock.advance(Duration::from_micros(1));
        while !server.poll().unwrap().is_idle() {}
        server.spins()
    };
    let keepalives = |server: &common::TestEndpoint| server.protocol().stats().keepalives;
    assert!(spins(&mut server), "the session was opened");
    clock.advance(ms(1));
    assert!(!spins(&mut server), "for long enough");
    while keepalives(&server) == 0 {
        clock.advance(ms(50));
        client.poll().unwrap();
        server.poll().unwrap();
    }
    assert!(!spins(&mut server), "a ping came");
    let end = client.register_continuation(|_, _| {});
    let plain = CallOptions::default();
    client
        .call(session, MethodId(1), &plain, |_| {}, end, 0)
        .unwrap();
    client.poll().unwrap();
    server.poll().unwrap();
    assert!(spins(&mut server), "a request came");
}

#[test]
fn a_call_between_two_turns_is_sent_before_a_sleep() {
    let mut pair = Pair::new();
    pair.settle();
    pair.call(1, b"", 0);
    let before = pair.network.clock().now_ns();
    pair.client.wait(None).unwrap();
    assert_eq!(pair.network.clock().now_ns(), before);
}

#[test]
fn run_until_ends_when_its_condition_is_true() {
    let network = SteppedNetwork::default();
    let mut alone = endpoint(&network, 1);
    alone.register(MethodId(1), Handler::inline(|_, _, reply| reply.ok()));
    let session = alone.connect(&alone.local_address()).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let set = done.clone();
    let end = alone.register_continuation(move |_, _| set.store(true, Ordering::Relaxed));
    let mut called = false;
    alone
        .run_until(|alone| {
            if !called {
                called = true;
                let plain = CallOptions::default();
                alone
                    .call(session, MethodId(1), &plain, |_| {}, end, 0)
                    .unwrap();
            }
            done.load(Ordering::Relaxed)
        })
        .unwrap();
    assert!(network.clock().now_ns() < 1_000_000, "it never slept");
    assert!(!alone.run_once().unwrap().is_idle() || alone.calls_outstanding() == 0);
}

#[test]
fn a_peer_without_sessions_is_closed_on_the_device() {
    let mut pair = Pair::new();
    pair.settle();
    assert_eq!(pair.client.io().open_peers(), 1);
    assert_eq!(pair.server.io().open_peers(), 1);
    pair.client.close(pair.session);
    pair.settle();
    assert_eq!(pair.client.io().open_peers(), 0);
    assert_eq!(pair.server.io().open_peers(), 0);
    assert!(pair.client.io().capabilities().reliable);
}

#[test]
fn a_connect_that_fails_leaves_no_peer_on_the_device() {
    let network = SteppedNetwork::default();
    let mut config = EndpointConfig::default();
    config.protocol.max_sessions = 1;
    let mut client = endpoint_with(&network, 1, config);
    let first = client.connect("sim://10.0.0.1:4000").unwrap();
    let error = client.connect("sim://10.0.0.2:4000").unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("connect sim://10.0.0.2:4000: ")
    );
    assert_eq!(client.io().open_peers(), 1);
    // The peer of an open session stays.
    client.connect("sim://10.0.0.1:4000").unwrap_err();
    assert_eq!(client.io().open_peers(), 1);
    assert!(client.session_state(first).is_some());
}

#[test]
fn an_endpoint_does_not_sleep_after_a_flush_that_ends_a_session() {
    let network = SteppedNetwork::default();
    let config = EndpointConfig {
        idle: Idle::Block,
        ..EndpointConfig::default()
    };
    let limit_ns = 2 * config.protocol.connect_timeout_ns;
    let mut client = endpoint_with(&network, 1, config);
    let session = client.connect("sim://10.0.0.2:4000").unwrap();
    let hour = Duration::from_secs(3600);
    while matches!(
        client.session_state(session),
        Some(SessionState::Connecting)
    ) {
        if client.poll().unwrap().is_idle() {
            client.wait(Some(hour)).unwrap();
        }
    }
    let state = client.session_state(session);
    let timeout = SessionError::ConnectTimeout;
    assert_eq!(state, Some(SessionState::Ended(timeout)));
    assert!(network.clock().now_ns() < limit_ns, "it slept");
}

#[test]
fn a_full_device_is_polled_now_and_then_and_does_not_keep_a_core_busy() {
    let mut pair = Pair::new();
    pair.server
        .register(MethodId(1), Handler::inline(|_, _, reply| reply.ok()));
    pair.settle();
    pair.network.set_full(true);
    pair.call(1, b"", 7);
    let from_ns = pair.network.clock().now_ns();
    let mut spins = 0;
    while pair.network.clock().now_ns() < from_ns + 5_000_000 {
        pair.client.poll().unwrap();
        let before_ns = pair.network.clock().now_ns();
        pair.client.wait(None).unwrap();
        if pair.network.clock().now_ns() == before_ns {
            spins += 1;
            pair.network.clock().advance(Duration::from_micros(1));
        }
    }
    // It does not spin after work, and polls for room for 100 us.
    assert!((99..=101).contains(&spins), "{spins} turns without a sleep");
    pair.network.set_full(false);
    pair.client.wait(Some(ms(1))).unwrap();
    let slept_ns = pair.network.clock().now_ns() - from_ns - 5_000_000;
    assert!(slept_ns <= 100_000, "it slept for {slept_ns} ns");
    pair.settle();
    let ends = pair.take_ends();
    assert!(matches!(&ends[..], [(7, Ok(_))]), "{ends:?}");
}
