//! Calls that wait for a time, a permit or a connection: each wait ends in time, and none spins.

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use common::{payload, server, shm_address};
use starling::{CallOptions, Channel, Endpoint};
use starling_test_protos::test::TestClient;

#[test]
fn a_sleep_in_block_on_lasts_its_duration() {
    let mut endpoint = Endpoint::client(&shm_address()).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    let sleep = endpoint.local().sleep(Duration::from_millis(300));
    endpoint.block_on(sleep).unwrap();
    assert!(
        begun.elapsed() >= Duration::from_millis(295),
        "{:?}",
        begun.elapsed()
    );
}

/// A waker whose references are counted.
struct Counted;
impl Wake for Counted {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_call_that_is_dropped_while_it_waits_for_a_permit_leaves_no_waker() {
    let (builder, gate) = server(&[&shm_address()]);
    let server = builder.build().unwrap().spawn().unwrap();
    let channel = Channel::builder(server.address())
        .own_endpoint()
        .capacity(1)
        .lazy()
        .unwrap();
    let client = TestClient::new(channel.clone());
    client.echo(&payload(b"")).wait().unwrap();
    let hour = CallOptions::with_timeout(Duration::from_secs(3600));
    let counted = Arc::new(Counted);
    for _ in 0..100 {
        gate.open.store(false, SeqCst);
        let first = client.wait(&payload(b"1"));
        let waker = Waker::from(Arc::clone(&counted));
        let mut cx = Context::from_waker(&waker);
        // Waits for a permit, and is dropped.
        let mut second = Box::pin(client.echo_with(&payload(b"2"), &hour));
        assert!(second.as_mut().poll(&mut cx).is_pending());
        drop(second);
        drop(waker);
        gate.open.store(true, SeqCst);
        first.wait().unwrap();
    }
    client.echo(&payload(b"")).wait().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(
        Arc::strong_count(&counted),
        1,
        "wakers are kept for an hour"
    );
}

#[test]
fn a_wait_ends_at_once_if_a_connection_has_to_open() {
    let (builder, _gate) = server(&[&shm_address()]);
    let server = builder.build().unwrap().spawn().unwrap();
    let mut endpoint = Endpoint::client(server.address()).unwrap();
    let client = TestClient::new(endpoint.channel(server.address()).unwrap());
    while !endpoint.poll().unwrap().is_idle() {}
    std::thread::sleep(Duration::from_millis(20));
    while !endpoint.poll().unwrap().is_idle() {}
    let request = payload(b"1");
    let mut call = pin!(client.echo(&request));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut cx).is_pending());
    let begun = Instant::now();
    endpoint.wait(Some(Duration::from_secs(3))).unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn a_timeout_of_a_call_that_connects_counts_from_the_call() {
    let (builder, _gate) = server(&[&shm_address()]);
    let server = builder.build().unwrap().spawn().unwrap();
    let mut endpoint = Endpoint::client(server.address()).unwrap();
    let client = TestClient::new(endpoint.channel(server.address()).unwrap());
    std::thread::sleep(Duration::from_millis(1500));
    let second = CallOptions::with_timeout(Duration::from_secs(1));
    let request = payload(b"1");
    let begun = Instant::now();
    let end = endpoint
        .block_on(client.echo_with(&request, &second))
        .unwrap();
    assert!(end.is_ok(), "after {:?}: {:?}", begun.elapsed(), end.err());
}

#[test]
fn waiting_for_a_server_does_not_spin() {
    let address = shm_address();
    let mut endpoint = Endpoint::client(&address).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let client = TestClient::new(endpoint.channel(&address).unwrap());
    let waiting = CallOptions::waiting();
    let request = payload(b"1");
    let mut call = pin!(client.echo_with(&request, &waiting));
    let begun = Instant::now();
    let mut polls = 0u64;
    let mut is_armed = false;
    endpoint
        .block_on(std::future::poll_fn(|cx| {
            polls += 1;
            if !is_armed {
                is_armed = true;
                let waker = cx.waker().clone();
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_secs(1));
                    waker.wake();
                });
            }
            let _ = call.as_mut().poll(cx);
            if begun.elapsed() >= Duration::from_secs(1) {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        }))
        .unwrap();
    assert!(polls < 500, "{polls} polls in a second");
}

struct Flag(std::sync::atomic::AtomicBool);
impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn a_deadline_wakes_a_call_that_waits_for_a_permit() {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    let (builder, gate) = server(&[&shm_address()]);
    let server = builder.build().unwrap().spawn().unwrap();
    let full = Channel::builder(server.address())
        .capacity(1)
        .lazy()
        .unwrap();
    let other = TestClient::new(Channel::lazy(server.address()).unwrap());
    let client = TestClient::new(full);
    let blocks = client.wait(&payload(b""));
    let stop = Arc::new(AtomicBool::new(false));
    let its_stop = stop.clone();
    let hammer = std::thread::spawn(move || {
        while !its_stop.load(SeqCst) {
            other.echo(&payload(b"")).wait().unwrap();
        }
    });
    let mut early = 0;
    for round in 0..400u64 {
        let options = CallOptions::with_timeout(Duration::from_micros(1500 + round * 3));
        let request = payload(b"2");
        let mut call = pin!(client.echo_with(&request, &options));
        let flag = Arc::new(Flag(AtomicBool::new(false)));
        let waker = Waker::from(flag.clone());
        let mut cx = Context::from_waker(&waker);
        assert!(call.as_mut().poll(&mut cx).is_pending());
        common::wait_until(|| flag.0.load(SeqCst));
        if call.as_mut().poll(&mut cx).is_pending() {
            early += 1;
        }
    }
    stop.store(true, SeqCst);
    hammer.join().unwrap();
    gate.open.store(true, SeqCst);
    drop(blocks);
    assert_eq!(early, 0, "woken before the deadline, and never again");
}

#[test]
fn a_future_that_is_polled_often_leaves_one_waker() {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = format!("udp://{}", silent.local_addr().unwrap());
    let mut endpoint = Endpoint::client(&address).unwrap();
    let client = TestClient::new(endpoint.channel(&address).unwrap());
    let request = payload(b"1");
    let mut call = pin!(client.echo(&request));
    let counted = Arc::new(Counted);
    let waker = Waker::from(counted.clone());
    let mut cx = Context::from_waker(&waker);
    for _ in 0..1000 {
        assert!(call.as_mut().poll(&mut cx).is_pending());
        endpoint.poll().unwrap();
    }
    assert!(
        Arc::strong_count(&counted) < 10,
        "{} wakers",
        Arc::strong_count(&counted)
    );
}

#[test]
fn sequential_calls_never_find_the_channel_full() {
    let (builder, _gate) = server(&[&shm_address()]);
    let server = builder.build().unwrap().spawn().unwrap();
    let channel = Channel::builder(server.address())
        .capacity(1)
        .fail_when_full()
        .lazy()
        .unwrap();
    let client = TestClient::new(channel);
    let mut refused = Vec::new();
    let begun = Instant::now();
    let mut calls = 0;
    while begun.elapsed() < Duration::from_millis(700) {
        calls += 1;
        let mut call = pin!(client.echo(&payload(b"1")));
        let mut cx = Context::from_waker(Waker::noop());
        let end = loop {
            match call.as_mut().poll(&mut cx) {
                std::task::Poll::Ready(end) => break end,
                std::task::Poll::Pending => std::hint::spin_loop(),
            }
        };
        if let Err(status) = end {
            refused.push(status);
        }
    }
    assert!(
        refused.is_empty(),
        "{} of {calls}: {:?}",
        refused.len(),
        refused[0]
    );
}

#[test]
fn a_shutdown_without_a_limit_ends_with_the_last_call() {
    for address in common::far_addresses() {
        let (builder, gate) = server(&[&address]);
        let server = builder.build().unwrap().spawn().unwrap();
        let client = TestClient::new(Channel::lazy(server.address()).unwrap());
        let request = payload(b"1");
        let call = client.wait(&request);
        common::wait_until(|| gate.waiting.load(std::sync::atomic::Ordering::SeqCst) == 1);
        let ends = std::thread::spawn(move || server.shutdown(Duration::MAX));
        std::thread::sleep(Duration::from_millis(100));
        gate.open.store(true, std::sync::atomic::Ordering::SeqCst);
        call.wait().unwrap();
        common::wait_until(|| ends.is_finished());
        assert!(ends.join().unwrap().unwrap());
    }
}
