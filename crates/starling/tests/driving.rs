//! Callers that share the right to drive the endpoint behind their channel: each call ends once,
//! whoever drives, sleeps, leaves or breaks.

mod common;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use common::{any_addresses, client, impatient, payload, serve, wait_until};
use starling::{Channel, Code, block_on};
use starling_test_protos::test::TestClient;

const THREADS: u64 = 16;
const CALLS: u64 = 200;

#[test]
fn threads_that_share_a_channel_get_their_own_answers() {
    for address in any_addresses() {
        let (server, gate) = serve(&address);
        let client = client(server.address());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let client = client.clone();
                scope.spawn(move || {
                    for call in 0..CALLS {
                        let bytes = (thread * CALLS + call).to_le_bytes();
                        let response = client.echo(&payload(&bytes)).wait().expect("an echo");
                        assert_eq!(response.message().bytes(), bytes);
                    }
                });
            }
        });
        assert_eq!(gate.runs.load(Ordering::SeqCst), THREADS * CALLS);
    }
}

#[test]
fn a_thousand_threads_share_a_channel() {
    let (server, _) = serve("udp://127.0.0.1:0");
    let client = client(server.address());
    std::thread::scope(|scope| {
        for thread in 0..1000_u32 {
            let client = client.clone();
            scope.spawn(move || {
                let bytes = thread.to_le_bytes();
                let response = client.echo(&payload(&bytes)).wait().expect("an echo");
                assert_eq!(response.message().bytes(), bytes);
            });
        }
    });
}

#[test]
fn a_call_that_is_never_polled_runs() {
    for address in any_addresses() {
        let (server, gate) = serve(&address);
        let client = client(server.address());
        let call = client.echo(&payload(b"unpolled"));
        wait_until(|| gate.runs.load(Ordering::SeqCst) == 1);
        let response = call.wait().expect("an echo");
        assert_eq!(response.message().bytes(), b"unpolled");
    }
}

/// Waits for a call, or for a number of wakes from elsewhere.
async fn call_or_wakes<F: Future + Unpin>(mut call: F, wakes: &WakeCount, many: usize) -> bool {
    std::future::poll_fn(|cx| {
        if Pin::new(&mut call).poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        *wakes.waker.lock().expect("no panic") = Some(cx.waker().clone());
        match wakes.count.load(Ordering::SeqCst) >= many {
            true => Poll::Ready(false),
            false => Poll::Pending,
        }
    })
    .await
}

#[derive(Default)]
struct WakeCount {
    count: AtomicUsize,
    waker: std::sync::Mutex<Option<Waker>>,
}

#[test]
fn a_driver_that_sleeps_in_the_device_hears_of_other_wakes() {
    for address in any_addresses() {
        let (server, gate) = serve(&address);
        let client = client(server.address());
        let wakes = Arc::new(WakeCount::default());
        let (its_wakes, its_gate) = (Arc::clone(&wakes), Arc::clone(&gate));
        let waker = std::thread::spawn(move || {
            // The caller sleeps in the device by now, or is about to.
            wait_until(|| its_gate.waiting.load(Ordering::SeqCst) == 1);
            its_wakes.count.store(1, Ordering::SeqCst);
            wait_until(|| its_wakes.waker.lock().expect("no panic").is_some());
            let waker = its_wakes.waker.lock().expect("no panic").take();
            waker.expect("it was there").wake();
        });
        let answered = block_on(call_or_wakes(client.wait(&payload(b"")), &wakes, 1));
        assert!(!answered, "the gate is closed");
        waker.join().expect("no panic");
        gate.open.store(true, Ordering::SeqCst);
    }
}

/// A caller's waker that panics.
struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        panic!("a caller's waker panics, as this test wants it to");
    }
}

/// The thread that drives waits for something else by then.
#[test]
fn the_last_channel_can_be_dropped_while_a_thread_drives() {
    for address in any_addresses() {
        let (server, _) = serve(&address);
        let channel = Channel::builder(server.address()).own_endpoint();
        let client = TestClient::new(channel.lazy().expect("a channel"));
        let its_client = client.clone();
        let (called, has_called) = std::sync::mpsc::channel();
        let (dropped, is_dropped) = tokio::sync::oneshot::channel();
        let waiting = std::thread::spawn(move || {
            starling::block_on(async move {
                its_client.echo(&payload(b"x")).await.expect("an echo");
                drop(its_client);
                called.send(()).expect("the test waits");
                is_dropped.await
            })
        });
        has_called.recv().expect("an echo");
        drop(client);
        dropped.send(()).expect("it waits");
        let ended = waiting.join().expect("no panic");
        ended.expect("it was told");
    }
}

#[test]
fn a_waker_that_panics_harms_no_other_call() {
    for address in any_addresses() {
        let (server, gate) = serve(&address);
        let client = client(server.address());
        client.echo(&payload(b"connect")).wait().expect("an echo");
        let mut broken = pin!(client.wait(&payload(b"broken")));
        let bomb = Waker::from(Arc::new(Bomb));
        let poll = broken.as_mut().poll(&mut Context::from_waker(&bomb));
        assert!(poll.is_pending(), "the gate is closed");
        wait_until(|| gate.waiting.load(Ordering::SeqCst) == 1);
        gate.open.store(true, Ordering::SeqCst);
        for _ in 0..10 {
            client.echo(&payload(b"after")).wait().expect("an echo");
        }
        block_on(broken).expect("it was answered");
    }
}

#[test]
fn calls_dropped_midway_leave_nothing_behind() {
    for address in any_addresses() {
        let (server, gate) = serve(&address);
        let channel = Channel::lazy(server.address()).expect("a channel");
        let client = TestClient::new(channel.clone());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let client = client.clone();
                scope.spawn(move || {
                    for call in 0..100_u32 {
                        let mut waiting = pin!(client.wait(&payload(b"")));
                        if call % 2 == 0 {
                            let mut cx = Context::from_waker(Waker::noop());
                            assert!(waiting.as_mut().poll(&mut cx).is_pending());
                        }
                    }
                });
            }
        });
        wait_until(|| channel.calls_outstanding() == 0);
        gate.open.store(true, Ordering::SeqCst);
        client.echo(&payload(b"after")).wait().expect("an echo");
    }
}

#[test]
fn a_server_that_goes_ends_the_calls_of_all_threads() {
    for address in any_addresses() {
        let (server, gate) = serve(&address);
        let builder = Channel::builder(server.address()).endpoint_config(impatient());
        let client = TestClient::new(builder.lazy().expect("a channel"));
        let ended = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                let (client, ended) = (client.clone(), &ended);
                scope.spawn(move || {
                    let status = client.wait(&payload(b"")).wait().expect_err("no answer");
                    assert!(
                        matches!(status.code(), Code::Unavailable | Code::Cancelled),
                        "{status}"
                    );
                    ended.fetch_add(1, Ordering::SeqCst);
                });
            }
            wait_until(|| gate.waiting.load(Ordering::SeqCst) > 0);
            let shutdown = server.shutdown(std::time::Duration::ZERO);
            assert!(
                !shutdown.expect("no device fails"),
                "calls were outstanding"
            );
            gate.open.store(true, Ordering::SeqCst);
        });
        assert_eq!(ended.load(Ordering::SeqCst) as u64, THREADS);
    }
}
