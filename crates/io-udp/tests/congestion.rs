//! Congestion marks on a path reach the client's congestion control, whether requests or responses
//! were marked. The client slows down while they last, and no longer.
//!
//! Everything runs in one thread, and each reading of the clock advances time. So durations count
//! clock readings, not seconds of a machine that has other work too.

mod common;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::marker::{Marker, Place};
use common::net::Net;
use starling_endpoint::{
    CallOptions, ContinuationId, Endpoint, EndpointConfig, Handler, Idle, MethodId, Secrets,
    SessionId,
};
use starling_io::{Clock, PacketIo};
use starling_io_udp::{UdpConfig, UdpIo};
use starling_proto::Congestion;

/// Rounds of calls until the rate has settled under marks.
const SETTLING_ROUNDS: usize = 20;

const ECHO: MethodId = MethodId(1);
const BODY: [u8; 32] = [7; 32];
/// Calls in flight, calls in a round, and a limit of turns far above what a round takes.
const IN_FLIGHT: u64 = 8;
const CALLS: u64 = 2_000;
const MAX_TURNS: u64 = 20_000_000;
/// Time between two readings of the clock.
const STEP_NS: u64 = 50;

#[derive(Clone, Default)]
struct SteppingClock(Rc<Cell<u64>>);

impl Clock for SteppingClock {
    fn now_ns(&self) -> u64 {
        self.0.set(self.0.get() + STEP_NS);
        self.0.get()
    }
}

type Host = Endpoint<UdpIo, SteppingClock>;

struct Pair {
    client: Host,
    server: Host,
    clock: SteppingClock,
    session: SessionId,
    continuation: ContinuationId,
    answered: Arc<AtomicU64>,
}

impl Pair {
    fn new(net: &Net, v6: bool) -> Self {
        let clock = SteppingClock::default();
        let (a, b) = net.devices(v6, &UdpConfig::default());
        let address = b.local_address();
        let host = |io, key| {
            let mut config = EndpointConfig {
                idle: Idle::Spin,
                ..EndpointConfig::default()
            };
            config.protocol.congestion = Congestion::Dctcp;
            let secrets = Secrets {
                token_key: [key as u8; 16],
                cookie_key: [1; 16],
            };
            Host::new(io, clock.clone(), config, secrets).expect("a sound configuration")
        };
        let (mut client, mut server) = (host(a, 1), host(b, 2));
        let echo = Handler::inline(|_, request, mut reply| {
            reply.buffer().extend_from_slice(request.body());
            reply.ok();
        });
        server.register(ECHO, echo);
        let session = client.connect(&address).expect("a route");
        let answered = Arc::new(AtomicU64::new(0));
        let count = answered.clone();
        let continuation = client.register_continuation(move |_, completion| {
            assert_eq!(completion.result.expect("an answer").body(), BODY);
            count.fetch_add(1, Ordering::Relaxed);
        });
        Self {
            client,
            server,
            clock,
            session,
            continuation,
            answered,
        }
    }

    /// Makes [`CALLS`] calls; returns how long they took, ns.
    fn run_round(&mut self) -> u64 {
        let (begin_ns, first) = (self.clock.0.get(), self.answered.load(Ordering::Relaxed));
        let mut made = 0;
        for _ in 0..MAX_TURNS {
            let answered = self.answered.load(Ordering::Relaxed) - first;
            if answered == CALLS {
                return self.clock.0.get() - begin_ns;
            }
            while made < CALLS.min(answered + IN_FLIGHT) {
                let options = CallOptions::default();
                let build = |buffer: &mut Vec<u8>| buffer.extend_from_slice(&BODY);
                let (session, continuation) = (self.session, self.continuation);
                let made_one = self
                    .client
                    .call(session, ECHO, &options, build, continuation, 0);
                made_one.expect("a slot is free");
                made += 1;
            }
            self.client.poll().expect("a healthy device");
            self.server.poll().expect("a healthy device");
        }
        panic!(
            "{} of {CALLS} calls answered",
            self.answered.load(Ordering::Relaxed) - first
        );
    }

    /// Responses that reported a mark to the client.
    fn marks(&self) -> u64 {
        self.client.protocol().stats().marks
    }
}

#[test]
fn a_session_slows_down_while_its_path_marks_and_no_longer() {
    let test = "a_session_slows_down_while_its_path_marks_and_no_longer";
    let Some(net) = Net::new(test) else { return };
    // On requests, which the server reports, and on responses, which the client sees itself.
    for (namespace, interface) in [(&net.a, "va"), (&net.b, "vb")] {
        let Some(mut marker) = Marker::new(test, namespace, interface, Place::Leaving) else {
            return;
        };
        for v6 in [false, true] {
            let mut pair = Pair::new(&net, v6);
            marker.mark_one_in(0);
            pair.run_round();
            let free_ns = pair.run_round();
            assert_eq!(pair.marks(), 0);

            marker.mark_one_in(1);
            // Each round trip lowers the rate a little more.
            for _ in 0..SETTLING_ROUNDS {
                pair.run_round();
            }
            let marked_ns = pair.run_round();
            let case = format!("{interface}, v6 {v6}: {free_ns} ns free, {marked_ns} ns marked");
            assert!(marker.marked() > 0 && pair.marks() > 0, "{case}");
            assert!(marked_ns > 4 * free_ns, "{case}");

            marker.mark_one_in(0);
            pair.run_round();
            let marks = pair.marks();
            let again_ns = pair.run_round();
            assert_eq!(pair.marks(), marks, "{case}");
            assert!(again_ns < marked_ns / 2, "{case}, {again_ns} ns afterwards");
        }
    }
}
