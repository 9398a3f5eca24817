//! What a handler knows of its caller: who it is, and whether it still waits.

#[path = "../common/mod.rs"]
mod common;
mod service;

use std::time::Duration;

use common::process::Process;
use common::{any_addresses, payload, shm_address, wait_until};
use service::{Report, Seen, serve};
use starling::{
    CallOptions, Channel, Code, InterceptedCall, InterceptedResponse, Interceptor, Next,
    ProcessCredentials, Status, block_on,
};
use starling_test_protos::streams::{Number, Range, StreamsClient};
use starling_test_protos::test::TestClient;

const CALL: &str = "STARLING_TEST_WHO_CALLS";

fn this_process() -> ProcessCredentials {
    ProcessCredentials {
        pid: Some(std::process::id()),
        uid: Some(rustix::process::geteuid().as_raw()),
        gid: Some(rustix::process::getegid().as_raw()),
    }
}

/// Checks that all reports are of one caller, which is this process.
fn check(address: &str, reports: &[Report]) {
    let first = &reports[0];
    assert!(
        reports.iter().all(|report| report.peer == first.peer),
        "{reports:?}"
    );
    let peer = &first.peer;
    let (scheme, _) = address.split_once("://").expect("a scheme");
    if matches!(scheme, "udp" | "tcp") {
        let from = peer.socket_addr().expect("an address");
        assert!(from.ip().is_loopback() && from.port() != 0, "{from}");
        assert_eq!(
            (peer.address(), peer.process()),
            (&*format!("{scheme}://{from}"), None)
        );
    } else {
        assert_eq!(
            (peer.socket_addr(), peer.process()),
            (None, Some(this_process()))
        );
    }
}

#[test]
fn every_kind_of_handler_knows_its_caller() {
    for address in any_addresses() {
        let (server, seen) = serve(&address, |builder| builder);
        let channel = Channel::lazy(server.address()).expect("a channel");
        let client = TestClient::new(channel.clone());
        let nothing = payload(b"");
        client.echo(&nothing).wait().expect("inline");
        client.work(&nothing).wait().expect("in a worker");
        client.wait(&nothing).wait().expect("nested");
        let streams = StreamsClient::new(channel);
        let mut numbers = streams.count(&Range::new());
        while numbers.wait().expect("a stream").is_some() {}
        let mut sum = streams.add();
        sum.send_wait(&Number::new()).expect("a stream");
        sum.finish_wait().expect("a sum");
        let reports = seen.take(5);
        let kinds: Vec<_> = reports.iter().map(|report| report.kind).collect();
        assert_eq!(kinds, ["inline", "worker", "nested", "count", "add"]);
        check(&address, &reports);
    }
}

/// Tells the test whom it sees.
struct Guard(Seen);

impl Interceptor for Guard {
    async fn intercept(
        &self,
        call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        let peer = call.peer().ok_or_else(|| Status::internal("nobody"))?;
        self.0.report("interceptor", peer);
        next.run(call).await
    }
}

#[test]
fn so_do_interceptors_and_the_handlers_behind_them() {
    for address in any_addresses() {
        let guard = Guard(Seen::default());
        let told = guard.0.clone();
        let (server, seen) = serve(&address, |builder| builder.interceptor(guard));
        let channel = Channel::lazy(server.address()).expect("a channel");
        let client = TestClient::new(channel.clone());
        client.echo(&payload(b"")).wait().expect("inline");
        client.work(&payload(b"")).wait().expect("in a worker");
        client.wait(&payload(b"")).wait().expect("nested");
        let mut numbers = StreamsClient::new(channel).count(&Range::new());
        while numbers.wait().expect("a stream").is_some() {}
        check(&address, &[told.take(4), seen.take(4)].concat());
    }
}

/// Not a test: [`Process::run`] runs it in a process of its own.
#[test]
fn call_in_this_process() {
    let Some(address) = std::env::var_os(CALL) else {
        return;
    };
    let address = address.to_str().expect("text");
    let client = TestClient::new(Channel::lazy(address).expect("a channel"));
    match client.work(&payload(b"")).wait() {
        Ok(_) => println!("\ncalled"),
        Err(status) => println!("\nfailed {status}"),
    }
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

#[test]
fn over_shm_the_kernel_says_which_process_calls() {
    let (server, seen) = serve(&shm_address(), |builder| builder);
    let mut process = Process::run("call_in_this_process", CALL, server.address());
    process.next("called");
    let peer = seen.take(1).remove(0).peer;
    let expected = ProcessCredentials {
        pid: Some(process.id()),
        ..this_process()
    };
    assert_eq!(peer.process(), Some(expected));
    assert_eq!(peer.address(), format!("shm://pid:{}", process.id()));
}

/// Makes a call with a short deadline. Returns why its handler, or the thread that it has begun, was told
/// that nobody waits.
fn told_at_deadline(
    address: &str,
    call: impl FnOnce(&TestClient<Channel>, &CallOptions) -> Result<(), Status>,
) -> Status {
    let (server, seen) = serve(address, |builder| builder);
    let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
    let options = CallOptions::with_timeout(Duration::from_millis(200));
    // A handler that sees its deadline in time may still have its answer arrive.
    if let Err(ended) = call(&client, &options) {
        assert_eq!(ended.code(), Code::DeadlineExceeded, "{ended}");
    }
    wait_until(|| seen.told().is_some());
    seen.told().expect("just seen")
}

/// Whether a deadline can end a call so: the server notices it, or the client does first, and cancels.
fn is_given_up(told: &Status) -> bool {
    matches!(told.code(), Code::Cancelled | Code::DeadlineExceeded)
}

#[test]
fn a_worker_sees_that_its_callers_deadline_has_passed() {
    for address in any_addresses() {
        let told = told_at_deadline(&address, |client, options| {
            client
                .work_with(&payload(b"until cancelled"), options)
                .wait()
                .map(drop)
        });
        assert!(is_given_up(&told), "{told}");
    }
}

#[test]
fn a_deadline_that_the_handler_notices_first_is_the_deadline_all_the_same() {
    for address in any_addresses() {
        let (server, _seen) = serve(&address, |builder| builder);
        let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
        client.echo(&payload(b"")).wait().expect("an answer");
        let options = CallOptions::with_timeout(Duration::from_millis(4));
        let mut ran = 0;
        // Many, for the client's end mostly notices it first.
        for _ in 0..200 {
            let call = client.work_with(&payload(b"says cancelled"), &options);
            let ended = call.wait().expect_err("no handler answers");
            if ended.may_have_run() {
                ran += 1;
                assert_eq!(ended.code(), Code::DeadlineExceeded, "{ended}");
            }
        }
        // The server refuses others: it knows how long these calls take.
        assert_ne!(ran, 0);
    }
}

#[test]
fn what_came_before_the_deadline_stays_so_however_late_the_caller_looks() {
    for address in any_addresses() {
        let (server, _seen) = serve(&address, |builder| builder);
        let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
        let options = CallOptions::with_timeout(Duration::from_millis(1000));
        let call = client.work_with(&payload(b"cancels at once"), &options);
        std::thread::sleep(Duration::from_millis(1100));
        let ended = call.wait().expect_err("the handler has cancelled it");
        assert_eq!(ended.code(), Code::Cancelled, "{ended}");
    }
}

#[test]
fn a_worker_sees_that_its_caller_has_dropped_the_call() {
    for address in any_addresses() {
        let (server, seen) = serve(&address, |builder| builder);
        let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
        let call = client.work(&payload(b"until cancelled"));
        let waiting = std::thread::spawn({
            let seen = seen.clone();
            move || {
                let mut call = std::pin::pin!(call);
                block_on(std::future::poll_fn(|cx| match seen.running() {
                    0 => {
                        cx.waker().wake_by_ref();
                        call.as_mut().poll(cx).map(drop)
                    }
                    _ => std::task::Poll::Ready(()),
                }));
            }
        });
        waiting.join().expect("no panic");
        wait_until(|| seen.told().is_some());
        assert_eq!(
            seen.told().map(|status| status.code()),
            Some(Code::Cancelled)
        );
    }
}

#[test]
fn a_thread_that_a_nested_handler_has_begun_learns_the_end() {
    for address in any_addresses() {
        let told = told_at_deadline(&address, |client, options| {
            client
                .wait_with(&payload(b"thread"), options)
                .wait()
                .map(drop)
        });
        assert!(is_given_up(&told), "{told}");

        let (server, seen) = serve(&address, |builder| builder);
        let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
        client
            .wait(&payload(b"thread, answered"))
            .wait()
            .expect("an answer");
        wait_until(|| seen.told().is_some());
        assert_eq!(
            seen.told().map(|status| status.code()),
            Some(Code::Cancelled)
        );
    }
}

#[test]
fn a_thread_that_a_streams_handler_has_begun_learns_the_end() {
    for address in any_addresses() {
        let streams = |server: &starling::ServerHandle| {
            StreamsClient::new(Channel::lazy(server.address()).expect("a channel"))
        };
        // The reader is gone.
        let (server, seen) = serve(&address, |builder| builder);
        let (_sender, mut receiver) = streams(&server).wait();
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let waits = std::pin::pin!(receiver.message()).as_mut().poll(&mut cx);
        assert!(waits.is_pending());
        wait_until(|| seen.running() > 0);
        drop(receiver);
        wait_until(|| seen.told().is_some());
        assert_eq!(
            seen.told().map(|status| status.code()),
            Some(Code::Cancelled)
        );

        drop(server);

        // Its deadline passes.
        let (server, seen) = serve(&address, |builder| builder);
        let options = CallOptions::with_timeout(Duration::from_millis(200));
        let (_sender, mut receiver) = streams(&server).wait_with(&options);
        let ended = receiver.wait().expect_err("it is never answered");
        assert_eq!(ended.code(), Code::DeadlineExceeded);
        wait_until(|| seen.told().is_some());
        let told = seen.told().expect("just seen");
        assert!(is_given_up(&told), "{told}");
    }
}

#[test]
fn a_client_that_is_killed_cancels_its_calls() {
    let (server, seen) = serve(&shm_address(), |builder| builder);
    let mut process = Process::run("wait_in_this_process", CALL, server.address());
    process.next("calling");
    wait_until(|| seen.running() > 0);
    drop(process);
    wait_until(|| seen.told().is_some());
    assert_eq!(
        seen.told().map(|status| status.code()),
        Some(Code::Cancelled)
    );
}

/// Not a test: [`Process::run`] runs it in a process of its own.
#[test]
fn wait_in_this_process() {
    let Some(address) = std::env::var_os(CALL) else {
        return;
    };
    let address = address.to_str().expect("text");
    let client = TestClient::new(Channel::lazy(address).expect("a channel"));
    println!("\ncalling");
    let _ = client.work(&payload(b"until cancelled")).wait();
}
