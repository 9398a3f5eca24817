//! Calls that are made again when they fail (gRPC A6).

use std::sync::atomic::Ordering;
use std::time::Duration;

use starling::{
    CallOptions, Channel, ChannelBuilder, Code, InterceptedCall, InterceptedResponse, Interceptor,
    MethodConfig, Next, RetryPolicy, ServerHandle, ServiceConfig, Status, Throttling,
};
use starling_test_protos::test::{Failure, TestClient};

use crate::common::{LONG, any_addresses, payload, shm_address, wait_until};
use crate::script::{MILLI, Script, code_of, pushback, serve_script, unavailable};
use crate::until_ready;

type Client = TestClient<Channel>;

fn quick() -> RetryPolicy {
    RetryPolicy::default().backoff(MILLI, MILLI, 1.0)
}

fn of_all(method: MethodConfig) -> ServiceConfig {
    ServiceConfig::new().method("", method)
}

/// A server, and a client of a plain channel with this config.
fn start(address: &str, config: ServiceConfig) -> (ServerHandle, Script, Client) {
    let (server, _, script) = serve_script(address);
    let channel = Channel::builder(server.address()).service_config(config);
    let client = TestClient::new(channel.lazy().expect("a channel"));
    (server, script, client)
}

fn attempts_of(script: &Script) -> Vec<Option<String>> {
    let calls = script.take_calls().into_iter();
    calls.map(|call| call.previous_attempts).collect()
}

#[test]
fn a_call_is_made_again_after_the_codes_that_its_method_names() {
    for address in any_addresses() {
        let policy = quick().codes([Code::Unavailable, Code::Aborted]);
        let config = of_all(MethodConfig::new().retry(policy));
        let (_server, script, client) = start(&address, config);
        script.fail_once(unavailable());
        script.fail_once(Status::aborted("lost a race"));
        let large = payload(&vec![7; 100_000]);
        for message in [payload(b"small"), large] {
            let response = client.echo(&message).wait().expect("the third attempt");
            assert_eq!(response.message().bytes(), message.view().bytes());
        }
        let attempts = attempts_of(&script);
        let expected = [None, Some("1"), Some("2"), None];
        assert_eq!(attempts, expected.map(|it| it.map(str::to_owned)));

        script.fail_once(Status::internal("not a code of the list"));
        let status = client.echo(&payload(b"")).wait().expect_err("it fails");
        assert_eq!(status.code(), Code::Internal);
        assert_eq!(attempts_of(&script).len(), 1);
    }
}

#[test]
fn a_call_fails_with_its_last_failure_when_all_attempts_have_failed() {
    let policy = quick().max_attempts(4);
    let config = of_all(MethodConfig::new().retry(policy));
    let (_server, script, client) = start(&shm_address(), config);
    for number in 0..4 {
        script.fail_once(Status::unavailable(format!("failure {number}")));
    }
    let status = client.echo(&payload(b"")).wait().expect_err("it fails");
    assert_eq!(status.message(), "failure 3");
    assert!(status.may_have_run());
    assert_eq!(attempts_of(&script).len(), 4);
}

#[test]
fn only_methods_with_a_policy_are_made_again() {
    let config = ServiceConfig::new()
        .method("test.Test/Work", MethodConfig::new().retry(quick()))
        .method("other.Service", MethodConfig::new().retry(quick()));
    let (_server, script, client) = start(&shm_address(), config);
    script.fail_once(unavailable());
    assert_eq!(
        code_of(client.echo(&payload(b"")).wait()),
        Code::Unavailable
    );
    script.fail_once(unavailable());
    assert_eq!(code_of(client.work(&payload(b"")).wait()), Code::Ok);

    // By the .proto file: `Echo` is idempotent, `Fail` is not.
    let (_server, script, client) = start(
        &shm_address(),
        ServiceConfig::new().retry_idempotent(quick()),
    );
    script.fail_once(unavailable());
    assert_eq!(code_of(client.echo(&payload(b"")).wait()), Code::Ok);
    let mut failure = Failure::new();
    failure.set_code(Code::Unavailable as u32);
    script.take_calls();
    assert_eq!(code_of(client.fail(&failure).wait()), Code::Unavailable);
    assert_eq!(script.take_calls().len(), 1);
}

#[test]
fn a_server_says_when_a_call_is_made_again_and_that_it_is_not() {
    let slow =
        RetryPolicy::default().backoff(Duration::from_secs(3600), Duration::from_secs(3600), 1.0);
    let config = of_all(MethodConfig::new().retry(slow));
    let (_server, script, client) = start(&shm_address(), config);
    script.fail_once(pushback(unavailable(), "20"));
    assert_eq!(code_of(client.echo(&payload(b"")).wait()), Code::Ok);
    let calls = script.take_calls();
    assert!(calls[1].came - calls[0].came >= 20 * MILLI);

    for no in ["-1", "soon", "99999999999999999999"] {
        script.fail_once(pushback(unavailable(), no));
        assert_eq!(
            code_of(client.echo(&payload(b"")).wait()),
            Code::Unavailable
        );
        assert_eq!(script.take_calls().len(), 1, "{no}");
    }
}

#[test]
fn a_channel_on_which_much_fails_makes_no_second_attempts() {
    let config = of_all(MethodConfig::new().retry(quick()));
    let throttling = Throttling::new(4, 1.0).expect("valid");
    let (_server, script, client) = start(&shm_address(), config.throttling(throttling));
    script.fail_always(Some(unavailable()));
    // Of four tokens, each failure takes one. With two left, nothing is made again.
    assert_eq!(
        code_of(client.echo(&payload(b"")).wait()),
        Code::Unavailable
    );
    assert_eq!(script.take_calls().len(), 2);
    assert_eq!(
        code_of(client.echo(&payload(b"")).wait()),
        Code::Unavailable
    );
    assert_eq!(script.take_calls().len(), 1);
    // Each success returns one.
    script.fail_always(None);
    for _ in 0..4 {
        assert_eq!(code_of(client.echo(&payload(b"")).wait()), Code::Ok);
    }
    script.take_calls();
    script.fail_once(unavailable());
    assert_eq!(code_of(client.echo(&payload(b"")).wait()), Code::Ok);
    assert_eq!(script.take_calls().len(), 2);
}

#[test]
fn a_call_whose_deadline_comes_before_its_next_attempt_fails_at_once() {
    let hour = Duration::from_secs(3600);
    let slow = RetryPolicy::default().backoff(hour, hour, 1.0);
    // The method's timeout counts as the caller's does.
    let config = of_all(
        MethodConfig::new()
            .retry(slow)
            .timeout(Duration::from_secs(60)),
    );
    let (_server, script, client) = start(&shm_address(), config);
    script.fail_once(unavailable());
    // Not DEADLINE_EXCEEDED, a minute later.
    assert_eq!(
        code_of(client.echo(&payload(b"")).wait()),
        Code::Unavailable
    );
}

#[test]
fn a_cancelled_call_is_not_made_again() {
    let slow = RetryPolicy::default().backoff(20 * MILLI, 20 * MILLI, 1.0);
    let config = of_all(MethodConfig::new().retry(slow));
    let (_server, script, client) = start(&shm_address(), config);
    script.fail_always(Some(unavailable()));
    let mut call = Box::pin(client.echo(&payload(b"")));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    // Until its first attempt has failed, and it waits for the next one.
    let mut seen = 0;
    wait_until(|| {
        assert!(call.as_mut().poll(&mut cx).is_pending());
        seen += script.take_calls().len();
        seen == 1
    });
    drop(call);
    script.fail_always(None);
    std::thread::sleep(60 * MILLI);
    // One was perhaps on its way.
    assert!(script.take_calls().len() <= 1);
    assert_eq!(code_of(client.echo(&payload(b"")).wait()), Code::Ok);
}

#[test]
fn a_request_for_which_there_is_no_room_is_sent_once() {
    let (server, _, script) = serve_script(&shm_address());
    let config = of_all(MethodConfig::new().retry(quick()));
    let channel = Channel::builder(server.address())
        .service_config(config)
        .retry_buffer(1000, 10_000);
    let client = TestClient::new(channel.lazy().expect("a channel"));
    for (len, attempts) in [(500, 2), (2000, 1)] {
        script.fail_once(unavailable());
        let _ = client.echo(&payload(&vec![1; len])).wait();
        assert_eq!(script.take_calls().len(), attempts, "{len} bytes");
    }
}

#[test]
fn the_next_attempt_goes_to_another_server() {
    let servers = [0, 1].map(|_| serve_script(&shm_address()));
    let config = of_all(MethodConfig::new().retry(quick()));
    let addresses = servers.each_ref().map(|it| it.0.address());
    let channel = Channel::balanced(addresses).service_config(config);
    let channel = channel.lazy().expect("a channel");
    let client = TestClient::new(channel.clone());
    client.echo(&payload(b"")).wait().expect("a server");
    until_ready(&channel, 2);
    let [(_, _, bad), (_, _, good)] = &servers;
    bad.fail_always(Some(unavailable()));
    for _ in 0..50 {
        client.echo(&payload(b"")).wait().expect("the other one");
    }
    assert!(!good.take_calls().is_empty());
}

/// Counts calls.
struct Counts(std::sync::Arc<std::sync::atomic::AtomicUsize>);

impl Interceptor for Counts {
    async fn intercept(
        &self,
        call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        next.run(call).await
    }
}

#[test]
fn an_interceptor_sees_one_call_whatever_its_attempts() {
    let (server, _, script) = serve_script(&shm_address());
    let config = of_all(MethodConfig::new().retry(quick()));
    let channel = Channel::builder(server.address()).service_config(config);
    let count = std::sync::Arc::<std::sync::atomic::AtomicUsize>::default();
    let channel = channel.lazy().expect("a channel");
    let client = TestClient::new(channel.intercept(Counts(count.clone())));
    script.fail_once(unavailable());
    script.fail_once(unavailable());
    assert_eq!(code_of(client.echo(&payload(b"")).wait()), Code::Ok);
    assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), 1);
    assert_eq!(script.take_calls().len(), 3);
}

#[test]
fn tasks_of_a_runtime_retry_without_a_thread_that_waits() {
    let config = of_all(MethodConfig::new().retry(quick()));
    let (_server, script, client) = start(&shm_address(), config);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        for _ in 0..20 {
            script.fail_once(unavailable());
            script.fail_once(unavailable());
            client.echo(&payload(b"")).await.expect("the third attempt");
        }
    });
    assert_eq!(script.take_calls().len(), 60);
}

#[test]
fn a_call_may_have_run_if_its_first_attempt_may_have() {
    let pause = Duration::from_millis(200);
    let policy = RetryPolicy::default().backoff(pause, pause, 1.0);
    let config = of_all(MethodConfig::new().retry(policy.max_attempts(2)));
    let (server, script, client) = start(&shm_address(), config);
    script.fail_once(unavailable());
    let call = std::thread::spawn(move || client.echo(&payload(b"")).wait().map(drop));
    wait_until(|| !script.take_calls().is_empty());
    server.shutdown(LONG).expect("no device fails");
    let status = call.join().expect("no panic").expect_err("no server");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.may_have_run(), "{status}");
    assert!(
        status.message().contains("another attempt may have run"),
        "{status}"
    );
    assert!(
        script.take_calls().is_empty(),
        "the last attempt reached nobody"
    );
}

// ---- the rest of a service config ----

fn by_json(server: &ServerHandle, json: &str) -> Client {
    let config = ServiceConfig::from_json(json).expect("a config");
    let builder: ChannelBuilder = Channel::builder(server.address()).service_config(config);
    TestClient::new(builder.lazy().expect("a channel"))
}

#[test]
fn a_service_config_as_json_sets_timeouts_waiting_and_sizes() {
    let (server, _gate, _script) = serve_script(&shm_address());
    let client = by_json(
        &server,
        r#"{"methodConfig": [
            {"name": [{"service": "test.Test", "method": "Wait"}], "timeout": "0.03s"},
            {"name": [{"service": "test.Test"}],
             "maxRequestMessageBytes": 1000, "maxResponseMessageBytes": 500}]}"#,
    );
    let status = client.wait(&payload(b"")).wait().expect_err("it is closed");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    let long = CallOptions::with_timeout(Duration::from_secs(60));
    let status = client.wait_with(&payload(b""), &long).wait();
    assert_eq!(
        code_of(status),
        Code::DeadlineExceeded,
        "the shorter one counts"
    );

    client
        .echo(&payload(&[1; 300]))
        .wait()
        .expect("short enough");
    let status = client
        .echo(&payload(&[1; 700]))
        .wait()
        .expect_err("too long");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("takes"), "{status}");
    assert!(status.may_have_run());
    let status = client
        .echo(&payload(&[1; 1200]))
        .wait()
        .expect_err("too long");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("sends"), "{status}");
    assert!(!status.may_have_run());

    let address = shm_address();
    let late = std::thread::spawn({
        let address = address.clone();
        move || {
            std::thread::sleep(20 * MILLI);
            serve_script(&address)
        }
    });
    let json = r#"{"methodConfig": [{"name": [{}], "waitForReady": true}]}"#;
    let config = ServiceConfig::from_json(json).expect("a config");
    let channel = Channel::builder(&address).service_config(config).lazy();
    let client = TestClient::new(channel.expect("a channel"));
    client.echo(&payload(b"")).wait().expect("it waits");
    let _server = late.join().expect("no panic");
}

#[test]
fn a_bad_service_config_names_the_field_and_what_is_allowed() {
    for (json, words) in [
        ("{", ["service config", "EOF"]),
        (r#"{"methodConfig": 7}"#, ["methodConfig", "list"]),
        (
            r#"{"methodConfig": [{"name": [{"service": "a"}], "retries": {}}]}"#,
            ["methodConfig[0].retries", "not"],
        ),
        (
            r#"{"methodConfig": [{"name": [{"service": "a"}], "retryPolicy": {"maxAttempts": 1}}]}"#,
            ["methodConfig[0].retryPolicy.maxAttempts", "2"],
        ),
        (
            r#"{"loadBalancingConfig": [{"least_request_experimental": {"choiceCount": "many"}}]}"#,
            ["least_request_experimental.choiceCount", "number"],
        ),
    ] {
        let error = ServiceConfig::from_json(json).expect_err(json).to_string();
        for word in words {
            assert!(error.contains(word), "{json}: {error}");
        }
    }
}

#[test]
fn a_call_for_whose_next_attempt_there_is_no_room_fails_as_it_had_failed() {
    let slow = RetryPolicy::default().backoff(1_000 * MILLI, 1_000 * MILLI, 1.0);
    let (server, gate, script) = serve_script(&shm_address());
    let channel = Channel::builder(server.address())
        .capacity(1)
        .fail_when_full()
        .service_config(of_all(MethodConfig::new().retry(slow)));
    let channel = channel.lazy().expect("a channel");
    let client = TestClient::new(channel.clone());
    script.fail_once(unavailable());
    let request = payload(b"");
    let first = std::thread::scope(|scope| {
        let first = scope.spawn(|| client.echo(&request).wait());
        wait_until(|| !script.take_calls().is_empty() && channel.calls_outstanding() == 0);
        // Takes the only place in the pause.
        let other = client.wait(&request);
        let first = first.join().expect("no panic");
        gate.open.store(true, Ordering::SeqCst);
        other.wait().expect("the gate is open");
        first
    });
    assert_eq!(code_of(first), Code::Unavailable);
}
