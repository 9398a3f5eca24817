//! Clients that are gone, and what they leave behind.
//!
//! The server holds no request of their streams, which could be cancelled. It waits for the next one, and by its clock
//! for ever.

use std::net::UdpSocket;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use starling::testing::TestClock;
use starling::{CallOptions, Channel, ServerHandle, ThreadStats};
use starling_io::PacketIo;
use starling_io_udp::{UdpConfig, UdpIo};
use starling_message::Message;
use starling_test_protos::streams::StreamsClient;

use crate::common::{LONG, shm_address, wait_until};
use crate::raw::Raw;
use crate::service::{Counts, builder, end, number};

fn serve(address: &str) -> (ServerHandle, Arc<Counts>) {
    let (builder, counts) = builder(address);
    let server = builder.clock(&TestClock::new()).build().expect("a server");
    (server.spawn().expect("threads"), counts)
}

/// Opens a stream whose first message is answered. All of these clients give it the same id.
fn open<I: PacketIo>(raw: &mut Raw<I>) {
    let response = raw.open("/Add", false, |bundle| {
        let number = number(1, 10);
        let bytes = number.parts().0;
        (bundle.head).extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        bundle.head.extend_from_slice(bytes);
    });
    assert_eq!(response.stream_status(), None);
}

#[test]
fn a_client_that_goes_takes_its_streams_along() {
    let (server, counts) = serve(&shm_address());
    // The second one has the first one's number.
    for clients in 1..=2 {
        let mut raw = Raw::new(server.address());
        open(&mut raw);
        assert_eq!(counts.running.load(Ordering::SeqCst), 1);
        drop(raw);
        wait_until(|| counts.running.load(Ordering::SeqCst) == 0);
        assert_eq!(counts.dropped.load(Ordering::SeqCst), clients);
    }
    end(server);
}

#[test]
fn a_client_that_is_restarted_has_no_streams_of_before() {
    let (server, counts) = serve("udp://127.0.0.1:0");
    let mut address = "udp://127.0.0.1:0".to_owned();
    for incarnation in 1..=3 {
        let io = UdpIo::bind(&address, UdpConfig::default()).expect("a free port");
        address = io.local_address();
        let mut raw = Raw::over(io, incarnation, server.address());
        open(&mut raw);
        wait_until(|| counts.running.load(Ordering::SeqCst) == 1);
        assert_eq!(
            counts.dropped.load(Ordering::SeqCst),
            usize::from(incarnation) - 1
        );
        // It is gone without a word.
        drop(raw);
    }
    drop(server);
}

#[test]
fn streams_that_are_given_up_before_their_server_is_there_send_it_nothing() {
    // Nothing is refused there: the client goes on asking.
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let address = format!("udp://{}", silent.local_addr().expect("a bound socket"));
    let client = StreamsClient::new(Channel::lazy(&address).expect("a channel"));
    let options = CallOptions::with_timeout(LONG).wait_for_ready(true);
    let mut cx = Context::from_waker(Waker::noop());
    for value in 0..200 {
        let (mut there, mut back) = client.echo_with(&options);
        there.send_wait(&number(value, 0)).expect("room");
        assert!(pin!(back.message()).poll(&mut cx).is_pending());
    }
    drop(silent);
    let (server, counts) = serve(&address);
    let (mut there, mut back) = client.echo_with(&options);
    there.send_wait(&number(7, 0)).expect("room");
    assert!(back.wait().expect("an echo").is_some());
    there.close();
    assert!(back.wait().expect("a good end").is_none());
    assert_eq!(counts.read.load(Ordering::SeqCst), 1);
    let received = |stats: &ThreadStats| stats.protocol.requests_received;
    let received: u64 = server.stats().iter().map(received).sum();
    // Those of one stream, and of its session.
    assert!(received < 20, "{received}");
    drop((back, client));
    end(server);
}
