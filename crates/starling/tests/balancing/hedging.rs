//! Calls that are made several times at once (gRPC A6).

use std::sync::atomic::Ordering;
use std::time::Duration;

use starling::{CallOptions, Channel, Code, HedgingPolicy, MethodConfig, ServiceConfig, Status};
use starling_test_protos::test::TestClient;

use crate::common::{payload, shm_address, wait_until};
use crate::script::{MILLI, Script, code_of, pushback, serve_script, unavailable};
use crate::{addresses_of, end_server, servers, until_ready};

fn hedged(policy: HedgingPolicy) -> ServiceConfig {
    ServiceConfig::new().method("", MethodConfig::new().hedge(policy))
}

#[test]
fn a_slow_call_is_made_at_another_server_too_and_the_loser_is_cancelled() {
    let servers = servers(&[shm_address(), shm_address()]);
    servers[0].1.open.store(true, Ordering::SeqCst);
    let channel = Channel::balanced(addresses_of(&servers))
        .service_config(hedged(HedgingPolicy::new(2, MILLI)))
        .lazy()
        .expect("a channel");
    let client = TestClient::new(channel.clone());
    client.echo(&payload(b"")).wait().expect("a server");
    until_ready(&channel, 2);
    let slow = &servers[1].1;
    // An attempt that a busy machine begins after it was cancelled does not run there at all.
    wait_until(|| {
        let response = client.wait(&payload(b"quick")).wait().expect("one is open");
        assert_eq!(response.message().bytes(), b"quick");
        slow.waiting.load(Ordering::SeqCst) > 0
    });
    // Those at the slow server did not stay there.
    wait_until(|| slow.waiting.load(Ordering::SeqCst) == slow.dropped.load(Ordering::SeqCst));
    for (server, _) in servers {
        end_server(server);
    }
}

fn start(policy: HedgingPolicy) -> (starling::ServerHandle, Script, TestClient<Channel>) {
    let (server, _, script) = serve_script(&shm_address());
    let channel = Channel::builder(server.address()).service_config(hedged(policy));
    let client = TestClient::new(channel.lazy().expect("a channel"));
    (server, script, client)
}

#[test]
fn attempts_go_on_after_a_failure_that_is_not_fatal_and_end_with_one_that_is() {
    let hour = Duration::from_secs(3600);
    let policy = HedgingPolicy::new(4, hour).non_fatal([Code::Unavailable]);
    let (_server, script, client) = start(policy);
    // The next attempt does not wait for its time.
    script.fail_once(unavailable());
    script.fail_once(unavailable());
    assert_eq!(code_of(client.echo(&payload(b"")).wait()), Code::Ok);
    assert_eq!(script.take_calls().len(), 3);

    script.fail_once(unavailable());
    script.fail_once(Status::internal("fatal"));
    assert_eq!(code_of(client.echo(&payload(b"")).wait()), Code::Internal);
    assert_eq!(script.take_calls().len(), 2);

    for number in 0..4 {
        script.fail_once(Status::unavailable(format!("failure {number}")));
    }
    let status = client.echo(&payload(b"")).wait().expect_err("all fail");
    assert_eq!(status.message(), "failure 3");
    assert_eq!(script.take_calls().len(), 4);

    // The server asks for no more.
    script.fail_once(pushback(unavailable(), "-1"));
    assert_eq!(
        code_of(client.echo(&payload(b"")).wait()),
        Code::Unavailable
    );
    assert_eq!(script.take_calls().len(), 1);
    // The server asks for a pause.
    script.fail_once(pushback(unavailable(), "15"));
    assert_eq!(code_of(client.echo(&payload(b"")).wait()), Code::Ok);
    let calls = script.take_calls();
    assert!(calls[1].came - calls[0].came >= 15 * MILLI);
}

#[test]
fn a_full_channel_makes_no_second_attempts() {
    let (server, gate, script) = serve_script(&shm_address());
    let channel = Channel::builder(server.address())
        .capacity(1)
        .service_config(hedged(HedgingPolicy::new(5, Duration::ZERO)));
    let channel = channel.lazy().expect("a channel");
    let client = TestClient::new(channel.clone());
    let call = client.wait(&payload(b"alone"));
    wait_until(|| gate.waiting.load(Ordering::SeqCst) == 1);
    assert_eq!(channel.calls_outstanding(), 1);
    gate.open.store(true, Ordering::SeqCst);
    call.wait().expect("the gate is open");
    assert_eq!(script.take_calls().len(), 1);
}

#[test]
fn dropping_a_call_cancels_all_its_attempts() {
    let (server, gate, _script) = serve_script(&shm_address());
    let channel = Channel::builder(server.address())
        .service_config(hedged(HedgingPolicy::new(3, Duration::ZERO)));
    let channel = channel.lazy().expect("a channel");
    let client = TestClient::new(channel.clone());
    let mut call = Box::pin(client.wait(&payload(b"dropped")));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    wait_until(|| {
        assert!(call.as_mut().poll(&mut cx).is_pending());
        gate.waiting.load(Ordering::SeqCst) == 3
    });
    drop(call);
    wait_until(|| gate.dropped.load(Ordering::SeqCst) == 3);
    assert_eq!(channel.calls_outstanding(), 0);
    end_server(server);
}

#[test]
fn a_second_attempt_that_finds_no_room_any_more_does_not_end_the_call() {
    let (server, gate, _) = serve_script(&shm_address());
    gate.open.store(true, Ordering::SeqCst);
    let channel = Channel::builder(server.address())
        .capacity(3)
        .fail_when_full()
        .service_config(hedged(HedgingPolicy::new(5, Duration::from_micros(10))));
    let client = TestClient::new(channel.lazy().expect("a channel"));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    // Those that find the channel full were not made.
                    if let Err(status) = client.wait(&payload(b"")).wait() {
                        assert_eq!(status.code(), Code::ResourceExhausted);
                        assert!(!status.may_have_run(), "{status}");
                    }
                }
            });
        }
    });
}

#[test]
fn a_server_that_asks_for_a_pause_beyond_the_deadline_ends_the_call() {
    let hour = Duration::from_secs(3600);
    let policy = HedgingPolicy::new(2, hour).non_fatal([Code::Unavailable]);
    let (_server, script, client) = start(policy);
    script.fail_once(pushback(unavailable(), "3600000"));
    let options = CallOptions::with_timeout(10 * MILLI);
    let ended = client.echo_with(&payload(b""), &options).wait();
    let ended = ended.expect_err("there is no time for another attempt");
    // Perhaps not even for the first one.
    let codes = [Code::Unavailable, Code::DeadlineExceeded];
    assert!(codes.contains(&ended.code()), "{ended}");
}

#[test]
fn the_only_attempt_waits_for_room_in_a_full_channel() {
    let (server, _, script) = serve_script(&shm_address());
    let policy = HedgingPolicy::new(5, Duration::from_secs(3600)).non_fatal([Code::Unavailable]);
    let channel = Channel::builder(server.address()).capacity(1);
    let channel = channel.service_config(hedged(policy)).lazy();
    let client = TestClient::new(channel.expect("a channel"));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (client, script) = (&client, &script);
            scope.spawn(move || {
                for call in 0..100 {
                    // One attempt of the calls that are made now, whosever it is; and the next one works.
                    if thread == 0 && call % 3 == 0 {
                        script.fail_once(unavailable());
                    }
                    assert_eq!(code_of(client.echo(&payload(b"")).wait()), Code::Ok);
                }
            });
        }
    });
}
