//! Calls of channels none of whose servers can be reached.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Wake, Waker};

use starling::{CallOptions, Channel, ChannelState, Code};
use starling_test_protos::test::TestClient;

use crate::common::{any_addresses, impatient, payload, serve, shm_address, wait_until};
use crate::script::MILLI;
use crate::{end_server, until_ready};

#[test]
fn a_call_fails_with_the_reasons_of_all_servers_or_waits_if_it_is_to() {
    let addresses = [shm_address(), shm_address()];
    let channel = Channel::balanced(&addresses).endpoint_config(impatient());
    let channel = channel.lazy().expect("a channel");
    let client = TestClient::new(channel.clone());
    let status = client.echo(&payload(b"")).wait().expect_err("no server");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(!status.may_have_run());
    for address in &addresses {
        assert!(status.message().contains(address.as_str()), "{status}");
    }
    assert_eq!(channel.state(), ChannelState::TransientFailure);

    let options = CallOptions::waiting().timeout(50 * MILLI);
    let impatient = client.clone().with_options(options);
    let status = impatient.echo(&payload(b"")).wait().expect_err("no server");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert!(!status.may_have_run());

    let waiting = client.clone().with_options(CallOptions::waiting());
    let calls: Vec<_> = (0..10).map(|_| waiting.echo(&payload(b"waits"))).collect();
    assert_eq!(channel.calls_outstanding(), 10);
    let (server, gate) = serve(&addresses[1]);
    for call in calls {
        call.wait().expect("a server");
    }
    assert_eq!(gate.runs.load(Ordering::SeqCst), 10);
    // It lasts until the next call knows, too.
    wait_until(|| client.echo(&payload(b"")).wait().is_ok());
    end_server(server);
}

#[test]
fn ready_is_ready_with_the_first_server_and_fails_without_any() {
    for address in any_addresses() {
        let nobody = shm_address();
        let channel = Channel::balanced([&nobody]).endpoint_config(impatient());
        let channel = channel.lazy().expect("a channel");
        let error = starling::block_on(channel.ready()).expect_err("nobody");
        assert_eq!(error.code(), Code::Unavailable);

        let (server, _gate) = serve(&address);
        let both = Channel::balanced([nobody.as_str(), server.address()]);
        let both = both.endpoint_config(impatient()).connect();
        let channel = starling::block_on(both).expect("one server");
        assert_eq!(channel.state(), ChannelState::Ready);
        let client = TestClient::new(channel.clone());
        for _ in 0..10 {
            client.echo(&payload(b"")).wait().expect("one server");
        }
        until_ready(&channel, 1);
    }
}

#[test]
fn a_channel_takes_no_more_calls_than_its_capacity_and_gives_the_rest_their_turn() {
    let addresses = [shm_address(), shm_address()];
    let channel = Channel::balanced(&addresses).capacity(2);
    let channel = channel.lazy().expect("a channel");
    let client = TestClient::new(channel.clone()).with_options(CallOptions::waiting());
    let calls: Vec<_> = (0..6).map(|_| client.echo(&payload(b""))).collect();
    assert_eq!(channel.calls_outstanding(), 2);
    let servers = addresses.each_ref().map(|address| serve(address));
    for call in calls {
        call.wait().expect("a server");
    }
    assert_eq!(channel.calls_outstanding(), 0);
    drop(servers);
}

#[test]
fn calls_of_a_dropped_channel_end_as_if_it_were_there() {
    let (server, gate) = serve(&shm_address());
    let channel = Channel::balanced([server.address()]).lazy();
    let client = TestClient::new(channel.expect("a channel"));
    let call = client.wait(&payload(b"answer"));
    let echo = client.echo(&payload(b"echo"));
    drop(client);
    wait_until(|| gate.waiting.load(Ordering::SeqCst) == 1);
    gate.open.store(true, Ordering::SeqCst);
    assert_eq!(call.wait().expect("an answer").message().bytes(), b"answer");
    assert_eq!(echo.wait().expect("an echo").message().bytes(), b"echo");
    end_server(server);
}

/// A caller's waker that panics.
struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        std::panic::resume_unwind(Box::new("a caller's waker panics, as this test wants"));
    }
}

#[test]
fn a_waker_that_panics_harms_no_other_call() {
    let address = shm_address();
    let channel = Channel::balanced([&address]).lazy().expect("a channel");
    let client = TestClient::new(channel).with_options(CallOptions::waiting());
    let begin = |call: CallOptions, waker: &Waker| {
        let mut call = Box::pin(client.echo_with(&payload(b""), &call));
        let polled = call.as_mut().poll(&mut Context::from_waker(waker));
        assert!(polled.is_pending(), "there is no server");
        call
    };
    let bomb = Waker::from(Arc::new(Bomb));
    let waiting = CallOptions::waiting;
    let late = begin(waiting().timeout(20 * MILLI), &bomb);
    let broken = begin(waiting(), &bomb);
    let behind: Vec<_> = (0..10).map(|_| begin(waiting(), Waker::noop())).collect();
    // Its deadline passes before the others have a server.
    let status = starling::block_on(late).expect_err("no server");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    let (_server, _gate) = serve(&address);
    for call in behind {
        starling::block_on(call).expect("a server");
    }
    starling::block_on(broken).expect("a server");
    client.echo(&payload(b"")).wait().expect("a server");
}

#[test]
fn tasks_of_a_runtime_call_several_servers() {
    let servers = [
        shm_address(),
        shm_address(),
        shm_address().replace("shm", "mem"),
    ]
    .map(|address| serve(&address));
    let addresses = servers.each_ref().map(|(server, _)| server.address());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let channel = Channel::balanced(addresses).connect().await;
        let client = TestClient::new(channel.expect("servers"));
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move {
                    for _ in 0..20 {
                        client.echo(&payload(b"task")).await.expect("a server");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
    });
    let runs = servers
        .iter()
        .map(|(_, gate)| gate.runs.load(Ordering::SeqCst));
    assert_eq!(runs.sum::<u64>(), 1000);
}

#[test]
fn a_cancelled_call_reaches_no_handler_and_stops_one_that_runs() {
    let (server, gate) = serve(&shm_address());
    let channel = Channel::balanced([server.address()]).lazy();
    let client = TestClient::new(channel.expect("a channel"));
    let call = client.wait(&payload(b"cancelled"));
    let echo = client.echo(&payload(b""));
    echo.wait().expect("an echo");
    wait_until(|| gate.waiting.load(Ordering::SeqCst) == 1);
    drop(call);
    wait_until(|| gate.dropped.load(Ordering::SeqCst) == 1);
    end_server(server);
}
