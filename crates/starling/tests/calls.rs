//! Calls and how they end, over udp and shm, from channels and from endpoints.

mod common;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Gate, LONG, any_addresses, payload, report_of, serve, shm_address, wait_until};
use starling::{CallOptions, Caller, Channel, Code, Endpoint, Metadata, ServerHandle, block_on};
use starling_test_protos::test::{Failure, RelayRequest, TestClient};

/// A check that runs over both schemes, with both kinds of callers.
trait Check {
    fn check<C: Caller + 'static>(
        &self,
        client: TestClient<C>,
        server: &ServerHandle,
        gate: &Arc<Gate>,
    ) -> impl Future<Output = ()>;
}

fn everywhere(check: &impl Check) {
    for address in any_addresses() {
        let (server, gate) = serve(&address);
        let channel = Channel::lazy(server.address()).expect("a channel");
        block_on(check.check(TestClient::new(channel), &server, &gate));

        let mut endpoint = Endpoint::client(server.address()).expect("an endpoint");
        let channel = endpoint.channel(server.address()).expect("a channel");
        let client = TestClient::new(channel);
        gate.open.store(false, std::sync::atomic::Ordering::SeqCst);
        endpoint
            .block_on(check.check(client, &server, &gate))
            .expect("no device fails");
    }
}

macro_rules! everywhere {
    ($name:ident, |$client:ident, $server:ident, $gate:ident| $body:expr) => {
        #[test]
        fn $name() {
            struct This;
            impl Check for This {
                async fn check<C: Caller + 'static>(
                    &self,
                    $client: TestClient<C>,
                    $server: &ServerHandle,
                    $gate: &Arc<Gate>,
                ) {
                    $body
                }
            }
            everywhere(&This);
        }
    };
}

everywhere!(
    messages_of_all_sizes_are_echoed,
    |client, _server, _gate| {
        for size in [0, 1, 32, 1000, 2000, 70_000, 1_000_000] {
            let bytes: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            let response = client.echo(&payload(&bytes)).await.expect("an echo");
            assert_eq!(response.message().bytes(), bytes);
            assert_eq!(response.into_message(), payload(&bytes));
        }
    }
);

everywhere!(
    large_fields_are_sent_by_reference,
    |client, _server, _gate| {
        let bytes = starling::Bytes::from(vec![7; 300_000]);
        let mut request = payload(b"");
        request.set_bytes_bytes(bytes.clone());
        for _ in 0..3 {
            let response = client.echo(&request).await.expect("an echo");
            assert_eq!(response.message().bytes(), bytes);
        }
    }
);

everywhere!(
    many_calls_at_once_each_get_their_own_answer,
    |client, _server, _gate| {
        let calls: Vec<_> = (0..500u32)
            .map(|i| client.echo(&payload(&i.to_le_bytes())))
            .collect();
        for (i, call) in (0..500u32).zip(calls) {
            let response = call.await.expect("an echo");
            assert_eq!(response.message().bytes(), i.to_le_bytes());
        }
    }
);

everywhere!(
    a_status_arrives_with_its_message_and_metadata,
    |client, _server, _gate| {
        let mut failure = Failure::new();
        failure.set_code(Code::Aborted as u32);
        failure.set_text("the other one won");
        let status = client.fail(&failure).await.expect_err("as asked");
        assert_eq!(status.code(), Code::Aborted);
        assert_eq!(status.message(), "the other one won");
        let metadata = status.metadata().expect("metadata");
        assert_eq!(metadata.value("detail"), Some(&b"seven"[..]));

        // A failure is one, whatever its code says.
        failure.set_code(Code::Ok as u32);
        let status = client.fail(&failure).await.expect_err("as asked");
        assert_eq!(status.code(), Code::Internal);
        assert!(status.message().contains("the other one won"), "{status}");
        assert!(status.message().contains("the code OK"), "{status}");
        let metadata = status.metadata().expect("metadata");
        assert_eq!(metadata.value("detail"), Some(&b"seven"[..]));
    }
);

everywhere!(
    deadline_and_metadata_reach_the_server,
    |client, _server, _gate| {
        let report = client.inspect(&payload(b"")).await.expect("a report");
        assert_eq!(report_of(&report), (0, String::new()));
        let mut metadata = Metadata::new();
        metadata.insert("who", "me").expect("a valid pair");
        let options = CallOptions {
            timeout: Some(LONG),
            metadata,
            ..CallOptions::default()
        };
        let report = client
            .inspect_with(&payload(b""), &options)
            .await
            .expect("a report");
        let (remaining_us, who) = report_of(&report);
        assert!(remaining_us > 0 && remaining_us <= LONG.as_micros() as u64);
        assert_eq!(who, "me");
    }
);

everywhere!(
    handlers_of_all_kinds_send_metadata_with_their_responses,
    |client, _server, gate| {
        // Values are any bytes.
        let bytes: Vec<u8> = (0..=255).collect();
        let options = CallOptions::default().metadata("trace-bin", &bytes);
        let options = options.expect("a key");
        gate.open.store(true, Ordering::SeqCst);
        let inline = client.inspect_with(&payload(b""), &options).await;
        let inline = inline.expect("a report");
        let worker = client.work_with(&payload(b""), &options).await;
        let worker = worker.expect("an answer");
        let nested = client.wait_with(&payload(b""), &options).await;
        let nested = nested.expect("an answer");
        for metadata in [inline.metadata(), worker.metadata(), nested.metadata()] {
            assert_eq!(metadata.value("trace-bin"), Some(&bytes[..]));
        }
        let none = client.inspect(&payload(b"")).await.expect("a report");
        assert!(none.metadata().is_empty());
    }
);

everywhere!(
    a_timeout_beyond_the_clock_is_no_timeout,
    |client, _server, _gate| {
        // Twice: the first call waits for the connection, the second finds it ready.
        for _ in 0..2 {
            let answer = client
                .echo_with(
                    &payload(b"some day"),
                    &CallOptions::with_timeout(Duration::MAX),
                )
                .await
                .expect("an answer");
            assert_eq!(answer.message().bytes(), b"some day");
        }
    }
);

everywhere!(
    a_client_can_have_options_for_all_of_its_calls,
    |client, _server, _gate| {
        let client = client.with_options(CallOptions::with_timeout(LONG));
        let report = client.inspect(&payload(b"")).await.expect("a report");
        assert!(report_of(&report).0 > 0);
        // A call's own options add to them, and come first.
        let options = CallOptions::default().metadata("who", "ada");
        let report = client.inspect_with(&payload(b""), &options.expect("a key"));
        let (remaining, who) = report_of(&report.await.expect("a report"));
        assert!(remaining > 0 && who == "ada", "{remaining} {who}");
        let options = CallOptions::default().timeout(Duration::MAX);
        let report = client.inspect_with(&payload(b""), &options).await;
        assert_eq!(report_of(&report.expect("a report")).0, 0);
    }
);

everywhere!(a_response_shows_its_message, |client, _server, _gate| {
    let response = client.echo(&payload(b"seen")).await.expect("an echo");
    let shown = format!("{response:?}");
    assert!(
        shown.starts_with("Response { message: Payload { bytes: b\"seen\""),
        "{shown}"
    );
});

everywhere!(a_call_ends_at_its_deadline, |client, _server, _gate| {
    let options = CallOptions::with_timeout(Duration::from_millis(30));
    let status = client
        .wait_with(&payload(b""), &options)
        .await
        .expect_err("nobody answers");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    client
        .echo(&payload(b"next"))
        .await
        .expect("the connection is as before");
});

everywhere!(
    a_panic_in_a_handler_is_internal_and_the_server_goes_on,
    |client, _server, _gate| {
        let status = client.panic(&payload(b"")).await.expect_err("it panics");
        assert_eq!(status.code(), Code::Internal);
        client
            .echo(&payload(b"next"))
            .await
            .expect("the server goes on");
    }
);

everywhere!(
    worker_methods_run_in_worker_threads,
    |client, _server, _gate| {
        let calls: Vec<_> = (0..20u8)
            .map(|i| client.work(&payload(&[i; 100])))
            .collect();
        for (i, call) in (0..20u8).zip(calls) {
            assert_eq!(call.await.expect("an answer").message().bytes(), [i; 100]);
        }
    }
);

everywhere!(
    a_dropped_call_is_cancelled_and_others_go_on,
    |client, _server, gate| {
        use std::sync::atomic::Ordering::SeqCst;
        client.echo(&payload(b"connected")).await.expect("an echo");
        drop(client.wait(&payload(b"dropped at once")));
        let kept = client.wait(&payload(b"kept"));
        drop(client.wait(&payload(b"dropped")));
        client.echo(&payload(b"meanwhile")).await.expect("an echo");
        gate.open.store(true, SeqCst);
        let response = kept.await.expect("an answer");
        assert_eq!(response.message().bytes(), b"kept");
    }
);

everywhere!(
    nested_calls_go_to_servers_of_either_scheme,
    |client, server, _gate| {
        let (builder, _) = common::server(&["udp://127.0.0.1:0", &shm_address()]);
        let others = builder.build().expect("a server").spawn().expect("threads");
        assert_eq!(others.addresses().len(), 2);
        for address in others.addresses() {
            let mut request = RelayRequest::new();
            request.set_address(address);
            request.set_bytes(b"passed on");
            for _ in 0..3 {
                let response = client.relay(&request).await.expect("an answer");
                assert_eq!(response.message().bytes(), b"passed on");
            }
        }
        let mut request = RelayRequest::new();
        request.set_address("carrier-pigeon");
        let status = client.relay(&request).await.expect_err("no address");
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(!server.addresses().is_empty());
    }
);

#[test]
fn a_dropped_call_of_a_channel_leaves_nothing_outstanding() {
    let (server, gate) = serve(&shm_address());
    let channel = Channel::lazy(server.address()).expect("a channel");
    let client = TestClient::new(channel.clone());
    let call = client.wait(&payload(b""));
    wait_until(|| gate.waiting.load(std::sync::atomic::Ordering::SeqCst) == 1);
    assert_eq!(channel.calls_outstanding(), 1);
    drop(call);
    wait_until(|| channel.calls_outstanding() == 0);
    gate.open.store(true, std::sync::atomic::Ordering::SeqCst);
}

#[test]
fn a_full_channel_refuses_calls_or_has_them_wait() {
    use std::sync::atomic::Ordering::SeqCst;
    let (server, gate) = serve(&shm_address());
    let builder = Channel::builder(server.address()).capacity(2);

    let refusing = TestClient::new(builder.clone().fail_when_full().lazy().expect("a channel"));
    let kept = [refusing.wait(&payload(b"1")), refusing.wait(&payload(b"2"))];
    let status = refusing.echo(&payload(b"")).wait().expect_err("it is full");
    assert_eq!(status.code(), Code::ResourceExhausted);

    let waiting = TestClient::new(builder.lazy().expect("a channel"));
    let first = [waiting.wait(&payload(b"3")), waiting.wait(&payload(b"4"))];
    let options = CallOptions::with_timeout(Duration::from_millis(20));
    let late = waiting.echo_with(&payload(b""), &options);
    let status = late.wait().expect_err("it stays full");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(status.message().contains("was not made"), "{status}");
    let more: Vec<_> = (0..20u8)
        .map(|i| {
            let client = waiting.clone();
            std::thread::spawn(move || client.echo(&payload(&[i])).wait())
        })
        .collect();
    drop(waiting.echo(&payload(b"gives up waiting")));
    gate.open.store(true, SeqCst);
    for call in kept.into_iter().chain(first) {
        call.wait().expect("an answer");
    }
    for (i, thread) in (0..20u8).zip(more) {
        let response = thread.join().expect("no panic").expect("an echo");
        assert_eq!(response.message().bytes(), [i]);
    }
}

#[test]
fn an_endpoint_serves_in_its_own_endpoint() {
    let gate = Arc::new(Gate::default());
    let address = shm_address();
    let service = starling_test_protos::test::TestServer::new(common::Service(gate));
    let mut endpoint = Endpoint::builder()
        .bind(&address)
        .add_service(service)
        .build()
        .expect("an endpoint");
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (its_done, waker) = (Arc::clone(&done), endpoint.waker());
    let client = std::thread::spawn(move || {
        let client = TestClient::new(Channel::lazy(&address).expect("a channel"));
        let response = client.echo(&payload(b"hi")).wait().expect("an echo");
        assert_eq!(response.message().bytes(), b"hi");
        its_done.store(true, std::sync::atomic::Ordering::SeqCst);
        waker.wake();
    });
    endpoint
        .run_until(|| done.load(std::sync::atomic::Ordering::SeqCst))
        .expect("no device fails");
    client.join().expect("no panic");
    assert_eq!(endpoint.stats().requests, 2, "a bind and an echo");
    assert!(endpoint.shut_down(LONG).expect("no device fails"));
}

#[test]
fn a_dropped_call_ends_its_handler() {
    use std::sync::atomic::Ordering::SeqCst;
    for address in any_addresses() {
        for polls in [false, true] {
            let (server, gate) = serve(&address);
            let channel = Channel::lazy(server.address()).expect("a channel");
            let client = TestClient::new(channel.clone());
            let mut call = Box::pin(client.wait(&payload(b"")));
            wait_until(|| {
                if polls {
                    assert!(block_on(async { futures::poll!(&mut call) }).is_pending());
                }
                gate.waiting.load(SeqCst) == 1
            });
            drop(call);
            wait_until(|| gate.dropped.load(SeqCst) == 1);
            wait_until(|| channel.calls_outstanding() == 0);
        }
    }
}
