//! Streams whose requests come late beside the time after which a server gives up a stream whose client it does not
//! hear of: the network is slow, or they wait for a slot.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use starling::{CallOptions, Channel, Code, ServerHandle};
use starling_endpoint::EndpointConfig;
use starling_test_protos::streams::{StreamsClient, StreamsServer};
use starling_test_protos::test::TestClient;

use super::service::{Counts, Service, builder, end, number, range};
use crate::common::{self, payload, wait_until};

/// How long a peer may be silent. Two and a half times that is how often a server looks for forgotten streams.
const PEER_TIMEOUT: Duration = Duration::from_millis(400);
const LOOK: Duration = Duration::from_millis(1000);

/// Hands datagrams on between one client and a server, until it is dropped.
struct Relay {
    address: String,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    /// One that hands on a datagram after the other, each of which takes `each` and `by_byte` for each of its bytes.
    fn to(server: &str, each: Duration, by_byte: Duration) -> Self {
        let [front, back] = [(); 2].map(|()| Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap()));
        back.connect(server.trim_start_matches("udp://")).unwrap();
        let address = format!("udp://{}", front.local_addr().unwrap());
        let is_over = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for (from, to, is_upward) in [(&front, &back, true), (&back, &front, false)] {
            let (from, to) = (Arc::clone(from), Arc::clone(to));
            let (sender, datagrams) = mpsc::channel::<Vec<u8>>();
            from.set_read_timeout(Some(Duration::from_millis(20)))
                .unwrap();
            let stops = Arc::clone(&is_over);
            threads.push(thread::spawn(move || {
                let mut buffer = vec![0; 1 << 16];
                while !stops.load(Ordering::Relaxed) {
                    match from.recv_from(&mut buffer) {
                        Ok((len, client)) => {
                            if is_upward {
                                from.connect(client).unwrap();
                            }
                            sender.send(buffer[..len].to_vec()).unwrap();
                        }
                        // The client may be gone.
                        Err(error) => assert!(matches!(
                            error.kind(),
                            ErrorKind::WouldBlock | ErrorKind::ConnectionRefused
                        )),
                    }
                }
            }));
            threads.push(thread::spawn(move || {
                for datagram in datagrams {
                    thread::sleep(each + by_byte * datagram.len() as u32);
                    // The other end may be gone.
                    let _ = to.send(&datagram);
                }
            }));
        }
        Self {
            address,
            is_over,
            threads,
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking());
        }
    }
}

/// The settings of a server that soon gives up.
fn impatient() -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.protocol.peer_timeout_ns = PEER_TIMEOUT.as_nanos() as u64;
    config.protocol.keepalive_ns = config.protocol.peer_timeout_ns / 4;
    config
}

fn serve_through(
    each: Duration,
    by_byte: Duration,
) -> (ServerHandle, Relay, StreamsClient<Channel>) {
    let mut config = impatient();
    // Or so much is on its way that it is taken for lost, and sent again.
    config.protocol.credits = 4;
    let (builder, _) = builder("udp://127.0.0.1:0");
    let server = builder.config(config).build().expect("a server");
    let server = server.spawn().expect("threads");
    let relay = Relay::to(server.address(), each, by_byte);
    let client = StreamsClient::new(Channel::lazy(&relay.address).expect("a channel"));
    (server, relay, client)
}

#[test]
fn a_stream_whose_requests_are_answered_as_they_come_goes_on() {
    let (server, _relay, client) = serve_through(Duration::from_millis(2), Duration::ZERO);
    let begun = Instant::now();
    let mut numbers = client.count(&range(0, u64::MAX, 100));
    let mut next = 0;
    while begun.elapsed() < 4 * LOOK {
        let number = numbers.wait().expect("it goes on").expect("more");
        assert_eq!(number.message().value(), next);
        next += 1;
    }
    drop(numbers);
    end(server);
}

#[test]
fn a_stream_whose_messages_take_long_goes_on() {
    const BYTES: u32 = 32_000_000;
    let by_byte = Duration::from_nanos(100);
    let (server, _relay, client) = serve_through(Duration::ZERO, by_byte);
    let takes = by_byte * BYTES;
    assert!(takes >= 3 * LOOK, "it is looked for in between");
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut add = client.add();
            for bytes in [1, BYTES as usize] {
                let sent = add.send_wait(&number(7, bytes));
                sent.expect("the server has time");
            }
            let sum = add.finish_wait().expect("the server has time");
            assert_eq!(sum.message().sum(), 14);
        });
        scope.spawn(|| {
            let mut numbers = client.count(&range(7, 9, BYTES));
            for value in 7..9 {
                let number = numbers.wait().expect("the server has time");
                assert_eq!(number.expect("more").message().value(), value);
            }
            assert!(numbers.wait().expect("a good end").is_none());
        });
    });
    end(server);
}

#[test]
fn a_stream_whose_next_request_waits_for_a_slot_goes_on() {
    const SLOTS: u16 = 4;
    let mut config = impatient();
    config.protocol.slots = SLOTS;
    config.protocol.max_sessions_per_client = 1;
    let (builder, gate) = common::server(&["udp://127.0.0.1:0"]);
    let counts = Arc::new(Counts::default());
    let builder = builder.add_service(StreamsServer::new(Service(Arc::clone(&counts))));
    let server = builder.config(config).build().expect("a server");
    let server = server.spawn().expect("threads");
    let channel = Channel::lazy(server.address()).expect("a channel");
    let calls = TestClient::new(channel.clone());
    counts.is_late.store(true, Ordering::SeqCst);
    // Its first request is answered; its second one is held.
    let (mut there, mut back) = StreamsClient::new(channel).wait();
    there.send_wait(&number(1, 0)).expect("room");
    wait_until(|| counts.running.load(Ordering::SeqCst) == 1);
    // These take the other slots, and the last ones the next that is free.
    let waiting: Vec<_> = (0..2 * SLOTS)
        .map(|_| calls.wait(&payload(b"long")))
        .collect();
    let others = usize::from(SLOTS) - 1;
    wait_until(|| gate.waiting.load(Ordering::SeqCst) >= others);
    counts.is_late.store(false, Ordering::SeqCst);
    let headers = back.initial_metadata_wait().expect("it goes on");
    assert_eq!(headers.value("waits"), Some(&b"here"[..]));
    wait_until(|| gate.waiting.load(Ordering::SeqCst) > others);
    thread::sleep(4 * LOOK);
    gate.open.store(true, Ordering::SeqCst);
    for call in waiting {
        call.wait().expect("an answer");
    }
    // Nor does the server forget it from now on.
    thread::sleep(2 * LOOK);
    assert_eq!(counts.running.load(Ordering::SeqCst), 1);
    let mut next = std::pin::pin!(back.message());
    let cx = &mut std::task::Context::from_waker(std::task::Waker::noop());
    assert!(next.as_mut().poll(cx).is_pending(), "it has not ended");
    drop((there, back));
    end(server);
}

#[test]
fn a_stream_behind_many_short_calls_goes_on() {
    const MOST: usize = 1 << 17;
    let mut config = impatient();
    config.protocol.slots = 4;
    config.protocol.max_sessions_per_client = 1;
    let (builder, _gate) = common::server(&["udp://127.0.0.1:0"]);
    let counts = Arc::new(Counts::default());
    let builder = builder.add_service(StreamsServer::new(Service(Arc::clone(&counts))));
    let server = builder.config(config).build().expect("a server");
    let server = server.spawn().expect("threads");
    let relay = Relay::to(server.address(), Duration::from_millis(1), Duration::ZERO);
    let channel = Channel::builder(&relay.address).capacity(2 * MOST);
    let channel = channel.lazy().expect("a channel");
    let calls = TestClient::new(channel.clone());
    let mut numbers = StreamsClient::new(channel).count(&range(0, u64::MAX, 60_000));
    let (mut count, mut value) = (1_000, 0);
    loop {
        // The next requests of the stream wait for all of these: more and more, until that takes long.
        let outstanding: Vec<_> = (0..count).map(|_| calls.echo(&payload(b"short"))).collect();
        let begun = Instant::now();
        for _ in 0..8 {
            let number = numbers.wait().expect("it goes on").expect("more");
            assert_eq!(number.message().value(), value);
            value += 1;
        }
        if begun.elapsed() > 4 * LOOK {
            break;
        }
        count *= 2;
        assert!(count <= MOST, "the calls are too quick to show it");
        drop(outstanding);
    }
    assert_eq!(counts.running.load(Ordering::SeqCst), 1);
    drop(numbers);
    end(server);
}

#[test]
fn the_handler_of_a_busy_stream_ends_with_its_deadline() {
    let mut config = EndpointConfig::default();
    // No look at forgotten streams comes in time.
    config.protocol.peer_timeout_ns = Duration::from_secs(3600).as_nanos() as u64;
    config.protocol.response_retention_ns = 2 * config.protocol.peer_timeout_ns;
    let (builder, counts) = builder("udp://127.0.0.1:0");
    let server = builder.config(config).build().expect("a server");
    let server = server.spawn().expect("threads");
    let relay = Relay::to(server.address(), Duration::from_millis(10), Duration::ZERO);
    let client = StreamsClient::new(Channel::lazy(&relay.address).expect("a channel"));
    for _ in 0..5 {
        let options = CallOptions::with_timeout(Duration::from_millis(300));
        let mut numbers = client.count_with(&range(0, u64::MAX, 100), &options);
        let ended = loop {
            match numbers.wait() {
                Ok(number) => assert!(number.is_some(), "it has no end"),
                Err(ended) => break ended,
            }
        };
        assert_eq!(ended.code(), Code::DeadlineExceeded, "{ended}");
        wait_until(|| counts.running.load(Ordering::SeqCst) == 0);
    }
    end(server);
}
