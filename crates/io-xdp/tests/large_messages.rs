//! Large messages of endpoints over AF_XDP: sent from packet memory by the ring, or in runs by the
//! kernel's socket.

mod common;

use std::sync::Arc;

use starling_endpoint::{
    CallOptions, Completion, Congestion, Endpoint, EndpointConfig, Handler, MethodId, Msgbuf,
    Secrets, WorkerConfig, WorkerReply, WorkerRequest,
};
use starling_io::{MonotonicClock, PacketIo};
use starling_io_xdp::{XdpConfig, XdpIo};
use starling_netns::{Pair, Shape, inside};

use common::Net;

const INLINE: MethodId = MethodId(1);
const WORK: MethodId = MethodId(2);

/// Bytes of a message: many fragments of any size.
const SIZE: usize = 300_000;

/// Rounds, each a call of each method.
const ROUNDS: usize = 5;

type Raw = Endpoint<XdpIo, MonotonicClock>;

fn endpoint(io: XdpIo, key: u32) -> Raw {
    let secrets = Secrets {
        token_key: [key as u8; 16],
        cookie_key: [key as u8; 16],
    };
    // How many datagrams a turn sends must not depend on round-trip times: those of a busy machine
    // are long, congestion control then sends one at a time, and one is no run.
    let mut config = EndpointConfig::default();
    config.protocol.congestion = Congestion::Off;
    Raw::new(io, MonotonicClock::new(), config, secrets).expect("sound")
}

/// A server that echoes from the device's memory.
fn server(pair: &Pair, config: &XdpConfig, mode: &str) -> Raw {
    let address = format!("xdp://vb/10.77.0.2:0?mode={mode}");
    let bind = || XdpIo::bind(&address, config.clone());
    let mut endpoint = endpoint(inside(&pair.b, bind).expect("a device"), 2);
    let memory = endpoint.memory();
    let inline = Handler::inline(move |_, request, mut reply| {
        reply.set_tail(memory.copy(request.body()));
        reply.ok();
    });
    endpoint.register(INLINE, inline);
    let memory = endpoint.memory();
    let work = move |request: &mut WorkerRequest, reply: &mut WorkerReply| {
        reply.set_tail(memory.copy(request.body()));
    };
    endpoint.register_worker(WORK, Arc::new(work));
    endpoint
        .start_workers(&WorkerConfig::new(1, 64))
        .expect("workers");
    endpoint
}

/// Makes calls with messages in the client's device memory. Returns the counts of both devices:
/// messages gathered by the ring, and datagrams sent by the socket.
fn exchange(pair: &Pair, config: &XdpConfig, mode: &str) -> [(u64, u64); 2] {
    let mut server = server(pair, config, mode);
    let port = server.io().local_socket_address().port();
    let address = format!("xdp://va/10.77.0.2:{port}?mode={mode}");
    let connect = || XdpIo::client(&address, config.clone());
    let mut client = endpoint(inside(&pair.a, connect).expect("a device"), 1);
    let content: Arc<[u8]> = (0..SIZE).map(|at| (at * 31 / 7) as u8).collect();
    let right = Arc::clone(&content);
    let done = client.register_continuation(move |_, done: Completion<'_>| {
        let response = done.result.expect("an echo");
        assert!(*response.body() == *right);
    });
    let session = client.connect(&address).expect("a route");
    for round in 0..ROUNDS {
        for method in [INLINE, WORK] {
            let options = CallOptions::default();
            let tail = client.memory().copy(&content);
            let message = Msgbuf::from_parts(vec![0; options.header_len()], Some(tail));
            let call = client.call_message(session, method, &options, message, done, 0);
            call.expect("room for a call");
        }
        while client.stats().completions < 2 * (round as u64 + 1) {
            for endpoint in [&mut client, &mut server] {
                endpoint.poll().expect("a healthy device");
            }
        }
    }
    [&client, &server].map(|endpoint| {
        let report = endpoint.io().report();
        let count = |name| report.count(name).expect("it is counted");
        assert_eq!(count("tx_invalid_descs"), 0);
        (count("tx_gathered"), count("tx_socket"))
    })
}

#[test]
fn large_messages_go_by_the_ring_or_the_socket_as_configured() {
    let test = "large_messages_go_by_the_ring_or_the_socket_as_configured";
    for mtu in [1500, 9000, 57_000] {
        let shape = Shape {
            mtu,
            ..Shape::default()
        };
        let Some(pair) = Net::with_shape(test, shape) else {
            return;
        };
        // Fewer than there are fragments: some go by the socket before the next hop is known.
        let some = (ROUNDS * SIZE / mtu as usize) as u64;
        let by_ring = XdpConfig {
            gather_from: Some(1000),
            runs_by_socket: Some(false),
            ..XdpConfig::default()
        };
        let all_copied = XdpConfig {
            runs_by_socket: Some(false),
            ..XdpConfig::default()
        };
        for mode in ["driver", "generic"] {
            for (gathered, _) in exchange(&pair, &by_ring, mode) {
                assert!(gathered > some, "{mode} {mtu}: {gathered} gathered");
            }
            for (gathered, by_socket) in exchange(&pair, &XdpConfig::default(), mode) {
                assert_eq!(gathered, 0, "the kernel copies");
                assert!(by_socket > some, "{mode} {mtu}: {by_socket} by the socket");
            }
            for (gathered, by_socket) in exchange(&pair, &all_copied, mode) {
                assert_eq!(gathered, 0);
                assert!(by_socket < some, "{mode} {mtu}: {by_socket} by the socket");
            }
        }
    }
}
