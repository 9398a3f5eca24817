//! As many calls run at once as a channel's capacity says, and slow ones hold up no others.

mod common;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};

use common::{any_addresses, client, payload, serve, server, wait_until};
use starling::{Channel, Code, Endpoint, EndpointConfig, Status};
use starling_test_protos::test::TestClient;

const CALLS: usize = 1000;

/// Slots of a session.
fn slots() -> usize {
    EndpointConfig::default().protocol.slots.into()
}

/// Begins a call, and leaves it to the background.
fn begin<F: Future>(call: &mut std::pin::Pin<Box<F>>) {
    let mut cx = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut cx).is_pending());
}

#[test]
fn a_thousand_slow_calls_run_at_once_and_a_quick_one_passes_them() {
    for address in any_addresses() {
        let (server, gate) = serve(&address);
        // Its statistics are of its own calls.
        let channel = Channel::builder(server.address()).own_endpoint().lazy();
        let channel = channel.expect("a channel");
        let client = TestClient::new(channel.clone());
        client.echo(&payload(b"")).wait().expect("an echo");
        let mut open: Vec<_> = (0..CALLS as u32)
            .map(|call| Box::pin(client.wait(&payload(&call.to_le_bytes()))))
            .collect();
        open.iter_mut().for_each(begin);
        wait_until(|| gate.waiting.load(Ordering::SeqCst) == CALLS);
        assert_eq!(channel.calls_outstanding(), CALLS);
        let quick = client.echo(&payload(b"quick")).wait().expect("an echo");
        assert_eq!(quick.message().bytes(), b"quick");
        gate.open.store(true, Ordering::SeqCst);
        for (call, ended) in open.into_iter().enumerate() {
            let response = starling::block_on(ended).expect("the gate is open");
            assert_eq!(response.message().bytes(), (call as u32).to_le_bytes());
        }
        let stats = channel.stats().expect("it works");
        assert_eq!(stats.endpoint.completions, stats.endpoint.calls);
        assert!(stats.protocol.sessions_added as usize >= CALLS / slots() - 1);
    }
}

#[test]
fn an_endpoints_channel_has_the_same_capacity() {
    for address in any_addresses() {
        let (server, gate) = serve(&address);
        let mut endpoint = Endpoint::client(server.address()).expect("an endpoint");
        let client = TestClient::new(endpoint.channel(server.address()).expect("a channel"));
        let ended = endpoint.block_on(async {
            let bytes = payload(b"slow");
            let calls: Vec<_> = (0..100).map(|_| client.wait(&bytes)).collect();
            let mut calls: Vec<_> = calls.into_iter().map(Box::pin).collect();
            std::future::poll_fn(|cx| {
                calls.retain_mut(|call| match call.as_mut().poll(cx) {
                    Poll::Pending => true,
                    Poll::Ready(result) => {
                        result.expect("the gate is open");
                        false
                    }
                });
                if gate.waiting.load(Ordering::SeqCst) == 100 {
                    gate.open.store(true, Ordering::SeqCst);
                } else {
                    cx.waker().wake_by_ref();
                }
                match calls.is_empty() {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            })
            .await;
        });
        ended.expect("no device fails");
    }
}

#[test]
fn a_server_limits_what_one_client_has_and_the_client_hears_it() {
    for address in any_addresses() {
        let (builder, gate) = server(&[&address]);
        let mut config = EndpointConfig::default();
        config.protocol.max_sessions_per_client = 2;
        let server = builder.config(config).build().expect("a server");
        let server = server.spawn().expect("threads");
        let first = client(server.address());
        let slow = payload(b"slow");
        let calls = 0..5 * slots();
        let mut open: Vec<_> = calls.map(|_| Box::pin(first.wait(&slow))).collect();
        open.iter_mut().for_each(begin);
        wait_until(|| gate.waiting.load(Ordering::SeqCst) == 2 * slots());
        // The process's channels share an endpoint, which the server takes for one client.
        let status: Status = client(server.address())
            .echo(&slow)
            .wait()
            .expect_err("full");
        assert_eq!(status.code(), Code::Unavailable);
        assert!(
            status.message().contains("max_sessions_per_client"),
            "{status}"
        );
        assert!(!status.may_have_run());
        // What waits runs when slots are free.
        gate.open.store(true, Ordering::SeqCst);
        for ended in open {
            starling::block_on(ended).expect("the gate is open");
        }
    }
}

#[test]
fn nested_requests_beyond_a_clients_share_are_refused_before_their_handlers_begin() {
    for address in any_addresses() {
        let (builder, gate) = server(&[&address]);
        let config = EndpointConfig {
            max_waiting: 8,
            ..EndpointConfig::default()
        };
        let server = builder.config(config).build().expect("a server");
        let server = server.spawn().expect("threads");
        let client = client(server.address());
        let slow = payload(b"slow");
        let mut open: Vec<_> = (0..10).map(|_| Box::pin(client.wait(&slow))).collect();
        let mut cx = Context::from_waker(Waker::noop());
        wait_until(|| {
            open.retain_mut(|call| match call.as_mut().poll(&mut cx) {
                Poll::Pending => true,
                Poll::Ready(result) => {
                    let status = result.expect_err("the gate is shut");
                    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                    assert!(!status.may_have_run(), "{status}");
                    false
                }
            });
            open.len() == 4
        });
        wait_until(|| gate.waiting.load(Ordering::SeqCst) == 4);
        client.echo(&slow).wait().expect("others are served");
        gate.open.store(true, Ordering::SeqCst);
        for ended in open {
            starling::block_on(ended).expect("the gate is open");
        }
        client.wait(&slow).wait().expect("there is room again");
    }
}

/// A caller's waker that panics.
struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        std::panic::resume_unwind(Box::new(
            "a caller's waker panics, as this test wants it to",
        ));
    }
}

#[test]
fn a_waker_that_panics_while_its_call_waits_for_room_harms_no_other_call() {
    for address in any_addresses() {
        let (server, gate) = serve(&address);
        // Of its own: another test counts the calls of the endpoint that channels share.
        let builder = Channel::builder(server.address()).own_endpoint();
        let builder = builder.capacity(1);
        let client = TestClient::new(builder.lazy().expect("a channel"));
        let mut first = Box::pin(client.wait(&payload(b"first")));
        begin(&mut first);
        let mut broken = Box::pin(client.echo(&payload(b"broken")));
        let bomb = Waker::from(Arc::new(Bomb));
        let poll = broken.as_mut().poll(&mut Context::from_waker(&bomb));
        assert!(poll.is_pending(), "the channel is full");
        let mut behind: Vec<_> = (0..10)
            .map(|_| Box::pin(client.echo(&payload(b""))))
            .collect();
        behind.iter_mut().for_each(begin);
        gate.open.store(true, Ordering::SeqCst);
        starling::block_on(first).expect("the gate is open");
        starling::block_on(broken).expect("an echo");
        for call in behind {
            starling::block_on(call).expect("an echo");
        }
    }
}
