//! Frames that come late, or that a faulty peer makes: they are about something that is over, or impossible.

use starling_proto::{Config, PeerId};

use crate::net::{Net, Seen};

const KIND_AT: usize = 8;
const PAYLOAD_AT: usize = 24;
const REQUEST_FOR_RESPONSE: u8 = 6;
const CONNECT: u8 = 9;
const ACCEPT: u8 = 11;

fn kind(datagram: &[u8]) -> u8 {
    datagram[KIND_AT] & 0x1f
}

/// The last datagram from `from` that begins with a frame of that kind.
fn last(net: &Net, from: usize, wanted: u8) -> Vec<u8> {
    let mut sent = net.log.iter().rev();
    let found = sent.find(|(sender, bytes)| *sender == from && kind(bytes) == wanted);
    found.expect("such a datagram was sent").1.clone()
}

/// Both connects have good cookies and arrive in one burst, so the device has no peer for either. The one of
/// the former incarnation comes last.
#[test]
fn a_late_connect_of_a_former_incarnation_ends_nothing() {
    let mut net = Net::pair();
    // Connect, challenge, connect with the cookie: of each incarnation the last is late.
    net.fate = Box::new(|number, _, _| usize::from(number != 3 && number != 6));
    net.connect(0, 1);
    net.run_ms(1);
    let former = last(&net, 0, CONNECT);
    net.restart(0, Config::default());
    let session = net.connect(0, 1);
    net.run_ms(1);
    let present = last(&net, 0, CONNECT);
    assert_ne!(
        former[PAYLOAD_AT..][..6],
        present[PAYLOAD_AT..][..6],
        "tokens"
    );
    net.inject(0, 1, present.clone());
    net.inject(0, 1, former);
    net.run_ms(1);
    assert_eq!(net.hosts[0].seen, [Seen::Connected(session)]);
    let known = net.hosts[1].protocol.incarnation(PeerId(0));
    assert_eq!(known.to_le_bytes()[..6], present[PAYLOAD_AT..][..6]);
    assert_eq!(net.hosts[1].protocol.session_counts(), (0, 1));
}

#[test]
fn an_accept_with_impossible_limits_opens_nothing() {
    // Offset in the payload, and what stands there: another datagram size than the path takes, too small ones, more
    // slots and credits than were asked for, none, no window.
    let changes: [(usize, &[u8]); 9] = [
        (12, &u32::MAX.to_le_bytes()),
        (12, &511_u32.to_le_bytes()),
        (16, &511_u32.to_le_bytes()),
        (20, &9_u16.to_le_bytes()),
        (20, &0_u16.to_le_bytes()),
        (22, &33_u16.to_le_bytes()),
        (22, &0_u16.to_le_bytes()),
        (24, &0_u32.to_le_bytes()),
        (0, &[0; 8]),
    ];
    let asks = Config {
        slots: 8,
        credits: 32,
        ..Config::default()
    };
    for (at, bytes) in changes {
        let mut net = Net::new([asks.clone(), Config::default()]);
        net.fate = Box::new(|number, _, _| usize::from(number != 4));
        let session = net.connect(0, 1);
        net.run_ms(1);
        let mut accept = last(&net, 1, ACCEPT);
        accept[PAYLOAD_AT + at..][..bytes.len()].copy_from_slice(bytes);
        net.inject(1, 0, accept);
        net.run_ms(1);
        assert_eq!(net.hosts[0].seen, [], "{bytes:?} at {at}");
        assert_eq!(net.hosts[0].protocol.stats().frames_malformed, 1);
        // The true one is believed.
        net.run_ms(30);
        assert_eq!(net.hosts[0].seen, [Seen::Connected(session)]);
    }
}

#[test]
fn a_fragment_of_a_request_beyond_the_largest_gets_no_memory() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    let largest = Config::default().max_message + (16 << 10);
    for (total, promised) in [(largest + 1, 0), (largest, largest as usize)] {
        let mut datagram = net.preamble(0, 1);
        let data = [7; 1000];
        // REQUEST FRAGMENT 0 of the first session in slot 0, with request number 1.
        datagram.extend([3, 0]);
        datagram.extend((8 + data.len() as u16).to_le_bytes());
        datagram.extend([0; 4]);
        datagram.extend(1_u64.to_le_bytes());
        datagram.extend(total.to_le_bytes());
        datagram.extend([0; 4]);
        datagram.extend(data);
        net.inject(0, 1, datagram);
        net.run_ms(1);
        assert_eq!(net.hosts[1].protocol.reassembling(), promised, "{total}");
    }
    assert_eq!(net.hosts[0].seen, [Seen::Connected(session)]);
}

/// The client has all of a response and says so. What it says arrives once more, when its slot has the next one.
#[test]
fn a_late_acknowledgement_drops_no_later_response() {
    let one_slot = Config {
        slots: 1,
        ..Config::default()
    };
    let mut net = Net::new([one_slot, Config::default()]);
    let session = net.connect(0, 1);
    let request: Vec<u8> = (0..20_000).map(|at| (at / 100) as u8).collect();
    let answer: Vec<u8> = request.iter().rev().copied().collect();
    net.request(0, session, 1, &request);
    net.run_ms(5);
    let acknowledgement = last(&net, 0, REQUEST_FOR_RESPONSE);
    assert_eq!(
        acknowledgement[PAYLOAD_AT + 8..][..8],
        [0; 8],
        "it wants nothing more"
    );
    // The server has answered, and the client has nothing of that yet.
    net.request(0, session, 2, &request);
    net.fate = Box::new(|_, from, _| usize::from(from == 0));
    net.run_ms(2);
    assert_eq!(net.hosts[1].ran.len(), 2);
    net.inject(0, 1, acknowledgement);
    net.run_ms(1);
    net.fate = Box::new(|_, _, _| 1);
    net.run_ms(100);
    assert_eq!(net.hosts[0].seen.last(), Some(&Seen::Answer(2, answer)));
}

/// A client fetches a response for longer than the server keeps one that nobody fetches.
#[test]
fn a_response_that_is_being_fetched_is_kept() {
    let narrow = Config {
        // Four fragments at a time.
        rx_queue_bytes: 12_000,
        ..Config::default()
    };
    let server = Config {
        response_retention_ns: 2_100_000_000,
        ..Config::default()
    };
    let mut net = Net::new([narrow, server]);
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.hosts[1].echo = false;
    net.request(0, session, 1, b"all of it");
    net.run_ms(1);
    let answer: Vec<u8> = (0..60_000).map(|at| (at / 100) as u8).collect();
    // The path becomes slow: each answer of the server takes 400 ms.
    net.delay = Box::new(|from, _| u64::from(from == 1) * 400_000_000);
    let (id, _) = net.hosts[1].ran[0];
    let now = net.now;
    assert!(net.hosts[1].respond(now, id, &answer));
    net.run_ms(2_500);
    assert_eq!(
        net.hosts[0].seen,
        [Seen::Connected(session)],
        "it takes longer"
    );
    net.run_ms(20_000);
    assert_eq!(net.hosts[0].seen.last(), Some(&Seen::Answer(1, answer)));
}
