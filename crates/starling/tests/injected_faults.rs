//! Faults that tests give to calls by an interceptor, at channels and at servers.

mod common;
#[path = "streams/service.rs"]
#[allow(dead_code, reason = "the tests of streams use all of it")]
mod service;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Gate, LONG, any_addresses, payload, server, wait_until};
use service::{Counts, Service, range};
use starling::testing::{Fault, Faults, TestClock};
use starling::{
    CallOptions, Channel, Code, Server, ServerBuilder, ServerHandle, Side, Status, block_on,
};
use starling_test_protos::streams::{StreamsClient, StreamsServer};
use starling_test_protos::test::TestClient;

const HOUR: Duration = Duration::from_secs(3600);

fn spawn(builder: ServerBuilder) -> (ServerHandle, Channel) {
    let server = builder.build().expect("a server").spawn().expect("threads");
    let channel = Channel::lazy(server.address()).expect("a channel");
    (server, channel)
}

/// A server and its client, with faults at one of them.
fn start(
    address: &str,
    faults: &Faults,
    side: Side,
) -> (ServerHandle, Arc<Gate>, TestClient<Channel>) {
    let (builder, gate) = server(&[address]);
    let (server, channel) = match side {
        Side::Server => spawn(builder.interceptor(faults.clone())),
        Side::Client => {
            let (server, channel) = spawn(builder);
            (server, channel.intercept(faults.clone()))
        }
    };
    (server, gate, TestClient::new(channel))
}

#[test]
fn a_call_that_is_aborted_has_not_run_and_one_whose_response_is_lost_has() {
    for side in [Side::Client, Side::Server] {
        for address in any_addresses() {
            let faults = Faults::with_seed(1)
                .add(
                    "test.Test/Echo",
                    Fault::abort(Status::resource_exhausted("no room")).times(2),
                )
                .add("test.Test/Echo", Fault::drop_response().times(1));
            let (_server, gate, client) = start(&address, &faults, side);
            let echo = || client.echo(&payload(b"x")).wait();
            for _ in 0..2 {
                let status = echo().expect_err("a fault");
                assert_eq!(status, Status::resource_exhausted("no room").with_not_run());
            }
            assert_eq!(gate.runs.load(Ordering::SeqCst), 0);
            let status = echo().expect_err("a fault");
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            assert!(status.may_have_run(), "{status}");
            assert_eq!(gate.runs.load(Ordering::SeqCst), 1);
            let response = echo().expect("no fault is left");
            assert_eq!(response.message().bytes(), b"x");
            assert_eq!(faults.happened(), 3);
        }
    }
}

#[test]
fn only_the_methods_that_are_named_meet_faults_and_only_while_they_are_on() {
    let faults = Faults::with_seed(1)
        .add("/test.Test/Work", Fault::abort(Status::aborted("a method")))
        .add("streams.Streams", Fault::abort(Status::aborted("another")))
        .add("test.Tes", Fault::abort(Status::aborted("none")));
    let (_server, _gate, client) = start("mem://faults-named", &faults, Side::Client);
    client.echo(&payload(b"x")).wait().expect("no fault");
    let work = || client.work(&payload(b"x")).wait();
    assert_eq!(work().expect_err("a fault").message(), "a method");
    faults.stop();
    work().expect("they are off");
    assert_eq!(faults.happened(), 1);
    faults.go_on();
    work().expect_err("they are on");
    assert_eq!(faults.happened(), 2);
    let all = Faults::with_seed(1).add("", Fault::abort(Status::aborted("all")));
    let (_server, _gate, client) = start("mem://faults-all", &all, Side::Server);
    client.echo(&payload(b"x")).wait().expect_err("a fault");
    client.work(&payload(b"x")).wait().expect_err("a fault");
}

#[test]
fn a_seed_fails_the_same_calls_in_each_run() {
    let outcomes = |seed, side| -> Vec<bool> {
        let fault = Fault::abort(Status::unavailable("a test")).chance(0.3);
        let faults = Faults::with_seed(seed).add("", fault);
        let (_server, _gate, client) = start("mem://faults-seed", &faults, side);
        (0..200)
            .map(|_| client.echo(&payload(b"x")).wait().is_ok())
            .collect()
    };
    let first = outcomes(7, Side::Client);
    assert!(first.contains(&true) && first.contains(&false));
    assert_eq!(first, outcomes(7, Side::Client));
    assert_ne!(first, outcomes(8, Side::Client));
    assert_eq!(first, outcomes(7, Side::Server), "whichever end it is at");
}

#[test]
fn delays_pass_by_the_clock_and_the_longest_ones_until_the_deadline() {
    for side in [Side::Client, Side::Server] {
        let clock = TestClock::new();
        let faults = Faults::with_seed(1)
            .add("test.Test/Echo", Fault::delay(HOUR))
            .add("test.Test/Work", Fault::delay(Duration::MAX));
        let (mut builder, gate) = server(&["mem://faults-delay"]);
        if side == Side::Server {
            builder = builder.interceptor(faults.clone());
        }
        let server = builder.clock(&clock).build().expect("a server");
        let server = server.spawn().expect("threads");
        let channel = Channel::builder(server.address()).clock(&clock).lazy();
        let mut channel = channel.expect("a channel");
        if side == Side::Client {
            channel = channel.intercept(faults.clone());
        }
        let client = TestClient::new(channel);
        let echo = std::thread::spawn({
            let client = client.clone();
            move || client.echo(&payload(b"x")).wait()
        });
        wait_until(|| faults.happened() == 1);
        clock.advance(HOUR - Duration::from_secs(1));
        assert_eq!(gate.runs.load(Ordering::SeqCst), 0, "a second is left");
        clock.advance_until(Duration::from_secs(1), HOUR, || echo.is_finished());
        echo.join().expect("no panic").expect("an echo");

        let options = CallOptions::with_timeout(HOUR);
        let work = std::thread::spawn(move || client.work_with(&payload(b"x"), &options).wait());
        wait_until(|| faults.happened() == 2);
        clock.advance_until(HOUR / 10, 10 * HOUR, || work.is_finished());
        let status = work.join().expect("no panic").expect_err("it is over");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    }
}

#[test]
fn a_worker_that_waits_in_an_interceptor_is_free_once_nobody_waits_for_the_call() {
    for address in any_addresses() {
        let delay = Fault::delay(Duration::MAX).times(2);
        let faults = Faults::with_seed(1).add("test.Test/Work", delay);
        let (builder, _gate) = server(&[&address]);
        let (_server, channel) = spawn(builder.workers(1).interceptor(faults.clone()));
        let client = TestClient::new(channel);
        let work = |timeout| {
            let options = CallOptions::with_timeout(timeout);
            client.work_with(&payload(b"x"), &options)
        };
        // Its deadline passes.
        let mut timeout = Duration::from_millis(20);
        while faults.happened() == 0 {
            let status = work(timeout).wait().expect_err("it waits");
            assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
            timeout *= 2;
        }
        // It is dropped.
        let mut dropped = Box::pin(work(LONG));
        wait_until(|| {
            block_on(async { assert!(futures::poll!(&mut dropped).is_pending()) });
            faults.happened() == 2
        });
        drop(dropped);
        work(LONG).wait().expect("the worker is free");
    }
}

#[test]
fn streams_are_cut_or_lose_their_end() {
    let abort = Fault::abort(Status::unavailable("not now")).times(1);
    for side in [Side::Client, Side::Server] {
        for address in any_addresses() {
            let faults = Faults::with_seed(1)
                .add("streams.Streams/Count", abort.clone())
                .add("streams.Streams/Count", Fault::cut_stream(3).times(1))
                .add("", Fault::drop_response().skip(1).times(1));
            let counts = Arc::new(Counts::default());
            let service = StreamsServer::new(Service(Arc::clone(&counts)));
            let builder = Server::builder().bind(&address).expect("an address");
            let builder = builder.add_service(service);
            let (_server, channel) = match side {
                Side::Server => spawn(builder.interceptor(faults.clone())),
                Side::Client => {
                    let (server, channel) = spawn(builder);
                    (server, channel.intercept(faults.clone()))
                }
            };
            let client = StreamsClient::new(channel);
            let read = || {
                let mut numbers = client.count(&range(0, 100, 10));
                let mut count = 0;
                loop {
                    match block_on(numbers.message()) {
                        Ok(Some(_)) => count += 1,
                        Ok(None) => return (count, None),
                        Err(status) => return (count, Some(status)),
                    }
                }
            };
            let (count, status) = read();
            assert_eq!(count, 0);
            let aborted = Status::unavailable("not now").with_not_run();
            assert_eq!(status, Some(aborted));
            let (count, status) = read();
            let status = status.expect("it is cut");
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            // At a server, what has not left is lost with the rest.
            let exact = side == Side::Client;
            assert!(count == 3 || count < 3 && !exact, "{count} messages");
            assert!(status.may_have_run() && status.message().contains("cut after 3"));
            let (count, status) = read();
            let status = status.expect("its end is lost");
            assert_eq!((count, status.code()), (100, Code::Unavailable), "{status}");
            assert_eq!(read(), (100, None));
            assert_eq!(faults.happened(), 3);
        }
    }
}
