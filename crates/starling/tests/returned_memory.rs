//! What a burst made a process take goes back to the system. One test, for its process's memory is measured.

mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use common::{Gate, LONG, payload, server};
use starling::testing::TestClock;
use starling::{Bytes, Channel};
use starling_test_protos::test::{Payload, TestClient};

const MIB: usize = 1 << 20;
const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// glibc keeps the end of each thread's heap up to twice the largest block freed: of sixteen heaps, 16 MiB.
const LARGE: usize = 512 << 10;
/// What may be left of a burst, with what a process has of its own.
const LEFT: usize = 40 * MIB;

/// The memory that this process has of the system.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("this process's own");
    let pages = text
        .split_whitespace()
        .nth(1)
        .and_then(|it| it.parse::<usize>().ok());
    pages.expect("the second number") * rustix::param::page_size()
}

/// Begins a call, and leaves it to the background.
fn begin<F: Future>(call: &mut Pin<Box<F>>) {
    let mut cx = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut cx).is_pending());
}

/// Large requests at once, with responses as large, and many requests that wait. Returns the most memory that the
/// process had.
fn burst(address: &str, clock: &TestClock, gate: &Arc<Gate>) -> usize {
    let channel = Channel::builder(address).clock(clock).own_endpoint().lazy();
    let client = TestClient::new(channel.expect("a channel"));
    let mut large = Payload::new();
    large.set_bytes_bytes(Bytes::from(vec![7; LARGE]));
    let mut echoes: Vec<_> = (0..400).map(|_| Box::pin(client.echo(&large))).collect();
    echoes.iter_mut().for_each(begin);
    let mut answers = Vec::new();
    let mut cx = Context::from_waker(Waker::noop());
    // A device without room is asked again by the clock.
    clock.advance_until(MILLISECOND, LONG, || {
        echoes.retain_mut(|call| match call.as_mut().poll(&mut cx) {
            Poll::Ready(answer) => {
                answers.push(answer.expect("an echo"));
                false
            }
            Poll::Pending => true,
        });
        echoes.is_empty()
    });
    let mut lengths = answers.iter().map(|it| it.message().bytes().len());
    assert!(lengths.all(|it| it == LARGE));
    let most = resident();
    drop(answers);
    let small = payload(&[7; 60 << 10]);
    let mut waiting: Vec<_> = (0..3000).map(|_| Box::pin(client.wait(&small))).collect();
    waiting.iter_mut().for_each(begin);
    clock.advance_until(MILLISECOND, LONG, || {
        gate.waiting.load(Ordering::SeqCst) == 3000
    });
    most.max(resident())
}

#[test]
fn what_a_burst_took_goes_back_to_the_system() {
    let clock = TestClock::new();
    let (builder, gate) = server(&["mem://returned-memory"]);
    let server = builder.clock(&clock).build().expect("a server");
    let server = server.spawn().expect("threads");
    let before = resident();
    let most = burst(server.address(), &clock, &gate);
    assert!(most > before + 300 * MIB, "{most} bytes");
    let begun = Instant::now();
    while resident() > before + LEFT {
        assert!(
            begun.elapsed() < LONG,
            "{} bytes are left",
            resident() - before
        );
        clock.advance(SECOND);
        // The memory thread goes by no clock.
        std::thread::sleep(10 * MILLISECOND);
    }
}
