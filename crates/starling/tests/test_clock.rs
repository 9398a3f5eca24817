//! Time that a test moves by hand: for deadlines, sleeps, pauses between attempts to connect and silent
//! peers, in plain threads, tasks of tokio and endpoints.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::{Gate, LONG, payload, server, wait_until};
use starling::testing::TestClock;
use starling::{
    CallOptions, Channel, Code, Endpoint, Error, InterceptedCall, InterceptedResponse, Interceptor,
    MethodConfig, Next, RetryPolicy, ServerHandle, ServiceConfig, Status,
};
use starling_test_protos::test::{Failure, TestClient, TestServer};

const HOUR: Duration = Duration::from_secs(3600);
const SECOND: Duration = Duration::from_secs(1);

/// A server and a channel with one clock.
fn pair(address: &str, clock: &TestClock) -> (ServerHandle, Arc<Gate>, TestClient<Channel>) {
    let (builder, gate) = server(&[address]);
    let server = builder.clock(clock).build().expect("a server");
    let server = server.spawn().expect("threads");
    let channel = Channel::builder(server.address()).clock(clock).lazy();
    (server, gate, TestClient::new(channel.expect("a channel")))
}

fn an_hour() -> CallOptions {
    CallOptions::with_timeout(HOUR)
}

#[test]
fn a_deadline_comes_when_time_is_moved_in_a_plain_thread() {
    for address in ["mem://clock-deadline", "udp://127.0.0.1:0"] {
        let clock = TestClock::new();
        let (server, gate, client) = pair(address, &clock);
        let (waits, its_gate) = (client.clone(), Arc::clone(&gate));
        let waiting =
            std::thread::spawn(move || waits.wait_with(&payload(b"x"), &an_hour()).wait());
        wait_until(|| its_gate.waiting.load(Ordering::SeqCst) == 1);
        // Other calls go on meanwhile, without any move.
        for _ in 0..10 {
            client.echo(&payload(b"y")).wait().expect("an echo");
        }
        clock.advance(HOUR - SECOND);
        client.echo(&payload(b"y")).wait().expect("an echo");
        assert!(!waiting.is_finished(), "a second is left");
        clock.advance(SECOND);
        let status = waiting.join().expect("no panic").expect_err("it is over");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        // The handler hears of it.
        wait_until(|| gate.dropped.load(Ordering::SeqCst) == 1);
        drop(server);
    }
}

#[test]
fn a_deadline_comes_in_a_task_of_tokio() {
    for threads in [1, 2] {
        let mut builder = match threads {
            1 => tokio::runtime::Builder::new_current_thread(),
            _ => tokio::runtime::Builder::new_multi_thread(),
        };
        let runtime = builder.worker_threads(threads).build().expect("a runtime");
        let clock = TestClock::new();
        let (_server, gate, client) = pair(&format!("mem://clock-tokio-{threads}"), &clock);
        let status = runtime.block_on(async {
            let waiting = tokio::spawn({
                let client = client.clone();
                async move { client.wait_with(&payload(b"x"), &an_hour()).await }
            });
            while gate.waiting.load(Ordering::SeqCst) == 0 {
                client.echo(&payload(b"y")).await.expect("an echo");
            }
            clock.advance_in_task(HOUR).await;
            waiting.await.expect("no panic").expect_err("it is over")
        });
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    }
}

#[test]
fn handlers_see_the_clocks_deadlines_and_sleep_by_it() {
    let clock = TestClock::new();
    let (_server, gate, client) = pair("mem://clock-handlers", &clock);
    clock.advance(HOUR);
    let report = client.inspect_with(&payload(b""), &an_hour()).wait();
    let (remaining_us, _) = common::report_of(&report.expect("a report"));
    assert_eq!(remaining_us, HOUR.as_micros() as u64);

    // The handler looks every millisecond whether it may end.
    let waits = client.clone();
    let waiting = std::thread::spawn(move || waits.wait(&payload(b"x")).wait());
    wait_until(|| gate.waiting.load(Ordering::SeqCst) == 1);
    gate.open.store(true, Ordering::SeqCst);
    client.echo(&payload(b"y")).wait().expect("an echo");
    assert!(!waiting.is_finished(), "time stands still");
    clock.advance_until(Duration::from_millis(1), HOUR, || waiting.is_finished());
    waiting.join().expect("no panic").expect("it may end");
}

#[test]
fn attempts_to_connect_pause_by_the_clock() {
    let clock = TestClock::new();
    let address = "mem://clock-backoff";
    let channel = Channel::builder(address).clock(&clock).lazy();
    let client = TestClient::new(channel.expect("a channel"));
    let status = client
        .echo(&payload(b"x"))
        .wait()
        .expect_err("nobody is there");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let (builder, _gate) = server(&[address]);
    let server = builder.clock(&clock).build().expect("a server");
    let _server = server.spawn().expect("threads");
    // It is in its pause for good, and remembers why.
    let again = client.echo(&payload(b"x")).wait().expect_err("a pause");
    assert_eq!(again.code(), Code::Unavailable, "{again}");
    let (waits, options) = (client.clone(), CallOptions::waiting());
    let waiting = std::thread::spawn(move || waits.echo_with(&payload(b"x"), &options).wait());
    clock.advance_until(Duration::from_millis(10), HOUR, || waiting.is_finished());
    waiting.join().expect("no panic").expect("an echo");
}

#[test]
fn a_silent_server_is_noticed_by_the_clock() {
    let clock = TestClock::new();
    let service = TestServer::new(common::Service(Arc::default()));
    let mut silent = Endpoint::builder()
        .bind("mem://clock-silent")
        .clock(&clock)
        .add_service(service)
        .build()
        .expect("an endpoint");
    let channel = Channel::builder("mem://clock-silent").clock(&clock).lazy();
    let channel = channel.expect("a channel");
    let client = TestClient::new(channel.clone());
    let calls = client.clone();
    let first = std::thread::spawn(move || calls.echo(&payload(b"x")).wait());
    silent.run_until(|| first.is_finished()).expect("a device");
    first.join().expect("no panic").expect("an echo");
    // From here on it takes no turn any more.
    let second = std::thread::spawn(move || client.echo(&payload(b"x")).wait());
    wait_until(|| channel.calls_outstanding() == 1);
    clock.advance_until(Duration::from_millis(100), HOUR, || second.is_finished());
    let status = second
        .join()
        .expect("no panic")
        .expect_err("nobody answers");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains("stopped answering"), "{status}");
}

#[test]
fn futures_of_an_endpoint_live_by_the_clock() {
    let clock = TestClock::new();
    let (_server, gate, _client) = pair("mem://clock-local", &clock);
    let endpoint = Endpoint::builder().reach("mem://any").clock(&clock);
    let mut endpoint = endpoint.build().expect("an endpoint");
    let client = TestClient::new(endpoint.channel("mem://clock-local").expect("a channel"));
    let mover = std::thread::spawn({
        let clock = clock.clone();
        move || {
            wait_until(|| gate.waiting.load(Ordering::SeqCst) == 1);
            clock.advance(HOUR);
        }
    });
    let status = endpoint
        .block_on(client.wait_with(&payload(b"x"), &an_hour()))
        .expect("a device")
        .expect_err("it is over");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    mover.join().expect("no panic");
}

/// Holds each call for an hour.
struct Holds;

impl Interceptor for Holds {
    async fn intercept(
        &self,
        call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        call.sleep(HOUR).await;
        next.run(call).await
    }
}

#[test]
fn interceptors_sleep_by_the_clock_at_both_ends() {
    let clock = TestClock::new();
    let (builder, gate) = server(&["mem://clock-interceptors"]);
    let server = builder.interceptor(Holds).clock(&clock).build();
    let server = server.expect("a server").spawn().expect("threads");
    let channel = Channel::builder(server.address()).clock(&clock).lazy();
    let client = TestClient::new(channel.expect("a channel").intercept(Holds));
    let begun = clock.now();
    // In the dispatch thread, and in a worker.
    for (number, is_echo) in [(1, true), (2, false)] {
        let client = client.clone();
        let call = std::thread::spawn(move || match is_echo {
            true => client.echo(&payload(b"x")).wait(),
            false => client.work(&payload(b"x")).wait(),
        });
        clock.advance_until(HOUR / 60, 10 * HOUR, || call.is_finished());
        call.join().expect("no panic").expect("an echo");
        assert!(clock.now() - begun >= 2 * number * HOUR);
    }
    assert_eq!(gate.runs.load(Ordering::SeqCst), 1, "of echo");
}

#[test]
fn nobody_spins_while_time_stands_still() {
    const TURNS: u64 = 2_000;
    let clock = TestClock::new();
    let (server, gate, client) = pair("mem://clock-idle", &clock);
    let channel = Channel::builder(server.address()).clock(&clock).lazy();
    let channel = channel.expect("a channel");
    let waits = TestClient::new(channel.clone());
    let waiting = std::thread::spawn(move || waits.wait_with(&payload(b"x"), &an_hour()).wait());
    wait_until(|| gate.waiting.load(Ordering::SeqCst) == 1);
    let turns = || {
        let own = channel.stats().expect("an endpoint").endpoint.turns;
        own + server.stats()[0].endpoint.turns
    };
    let before = turns();
    // A loop that spins takes a million turns in this time, and one on a busy machine takes fewer.
    std::thread::sleep(Duration::from_millis(50));
    let taken = turns() - before;
    assert!(taken < TURNS, "{taken} turns in 50 ms");
    clock.advance(HOUR);
    waiting.join().expect("no panic").expect_err("it is over");
    drop(client);
}

#[test]
fn a_server_shuts_down_although_time_stands_still() {
    let clock = TestClock::new();
    let (server, gate, client) = pair("mem://clock-shutdown", &clock);
    client.echo(&payload(b"x")).wait().expect("an echo");
    assert!(server.shutdown(LONG).expect("a device"), "nothing is left");

    let (server, gate_2, client_2) = pair("mem://clock-shutdown-2", &clock);
    let waiting = std::thread::spawn(move || client_2.wait(&payload(b"x")).wait());
    wait_until(|| gate_2.waiting.load(Ordering::SeqCst) == 1);
    let begun = Instant::now();
    let finished = server
        .shutdown(Duration::from_millis(50))
        .expect("a device");
    assert!(!finished && begun.elapsed() >= Duration::from_millis(50));
    waiting.join().expect("no panic").expect_err("it has ended");
    drop((client, gate));
}

#[test]
fn retries_pause_by_the_clock_and_several_servers_have_none() {
    let clock = TestClock::new();
    let (server, _) = server(&["mem://clock-retries"]);
    let server = server.clock(&clock).build().expect("a server");
    let server = server.spawn().expect("threads");
    let policy = RetryPolicy::default().backoff(HOUR, HOUR, 1.0);
    let config = ServiceConfig::new().method("", MethodConfig::new().retry(policy));
    let channel = Channel::builder(server.address()).service_config(config);
    let client = TestClient::new(channel.clock(&clock).lazy().expect("a channel"));
    let waiting = std::thread::spawn(move || {
        let failure = Failure::new().with_code(Code::Unavailable as u32);
        client.fail(&failure).wait().map(drop)
    });
    std::thread::sleep(Duration::from_millis(20));
    assert!(!waiting.is_finished(), "it pauses");
    wait_until(|| {
        clock.advance(HOUR);
        waiting.is_finished()
    });
    let status = waiting.join().expect("no panic").expect_err("each time");
    assert_eq!(status.code(), Code::Unavailable, "{status}");

    let several = Channel::balanced([server.address()]).clock(&clock).lazy();
    assert!(matches!(several, Err(Error::ClockOfSeveral)));
}
