//! Memory for messages of several packets, and room for their packets.

use starling_proto::{Config, Congestion, Prefix, Rejection, RequestError, SessionId};

use crate::net::{Host, Net, Seen};

const MS: u64 = 1_000_000;

/// Host 1 has memory for one message of 20,000 bytes at a time.
fn poor() -> Net {
    let poor = Config {
        reassembly_bytes: 20_000 + usize::from(Prefix::MAX),
        max_message: 20_000,
        ..Config::default()
    };
    Net::new([Config::default(), poor])
}

/// The network loses all datagrams of a large request but one, and the cancellation of that request.
fn abandon_upload(net: &mut Net, session: SessionId) {
    let first = net.datagrams();
    net.fate = Box::new(move |n, from, _| usize::from(from == 1 || n == first + 1));
    let number = net.request(0, session, 1, &[1; 20_000]);
    net.run_until(net.now + 50_000);
    let now = net.now;
    let Host { protocol, wire, .. } = &mut net.hosts[0];
    assert!(protocol.cancel(now, session, number, wire).is_some());
    net.run_until(net.now + 50_000);
    net.fate = Box::new(|_, _, _| 1);
    assert_eq!(net.hosts[1].protocol.reassembling(), 20_000);
}

/// An abandoned request holds the memory that this endpoint's own calls need.
#[test]
fn memory_of_an_abandoned_request_serves_responses_too() {
    let mut net = poor();
    let session = net.connect(0, 1);
    let back = net.connect(1, 0);
    net.run_ms(1);
    abandon_upload(&mut net, session);
    net.run_ms(5_000);
    net.hosts[0].echo = false;
    net.request(1, back, 2, b"give me much");
    net.run_ms(1);
    let (now, id) = (net.now, net.hosts[0].ran[0].0);
    assert!(net.hosts[0].respond(now, id, &[5; 20_000]));
    net.run_ms(100);
    let answered = Seen::Answer(2, vec![5; 20_000]);
    assert!(net.hosts[1].seen.contains(&answered), "no memory");
}

/// The former request of the same slot holds the memory, although no client waits for it.
#[test]
fn a_request_gets_the_memory_of_the_request_that_it_replaces() {
    let mut net = poor();
    let session = net.connect(0, 1);
    net.run_ms(1);
    abandon_upload(&mut net, session);
    net.request(0, session, 2, &[2; 20_000]);
    net.run_ms(100);
    let answered = Seen::Answer(2, vec![2; 20_000]);
    assert!(
        net.hosts[0].seen.contains(&answered),
        "{:?}",
        net.hosts[0].seen
    );
}

/// A large request that waits for room behind responses does not count as unanswered.
#[test]
fn a_request_that_waits_for_room_does_not_end_its_session() {
    let quick = Config {
        peer_timeout_ns: 3 * MS,
        keepalive_ns: MS,
        rto_min_ns: MS,
        rto_max_ns: MS,
        congestion: Congestion::Off,
        ..Config::default()
    };
    // A window of eleven fragments.
    let server = Config {
        rx_queue_bytes: 11 * 2 * 1500,
        ..quick.clone()
    };
    let mut net = Net::new([quick, server]);
    net.hosts[1].echo = false;
    let session = net.connect(0, 1);
    net.run_ms(1);
    for tag in 0..2 {
        net.request(0, session, tag, b"give me much");
    }
    net.run_until(net.now + 20_000);
    let now = net.now;
    let ids: Vec<_> = net.hosts[1].ran.iter().map(|(id, _)| *id).collect();
    let body = vec![7; 60_000_000];
    for id in ids {
        assert!(net.hosts[1].respond(now, id, &body));
    }
    // Frames arrive one by one, as on a real link, so that some are always on their way.
    let step = |net: &mut Net| {
        net.hosts[1].wire.room = 3;
        net.run_until(net.now + 1_000);
    };
    for _ in 0..100 {
        step(&mut net);
    }
    let step = |net: &mut Net| {
        net.hosts[1].wire.room = 4;
        net.run_until(net.now + 1_000);
    };
    for _ in 0..100 {
        step(&mut net);
    }
    net.request(0, session, 9, &vec![3; 40_000]);
    for _ in 0..60_000 {
        step(&mut net);
    }
    let ended = |seen: &&Seen| matches!(seen, Seen::Ended(..));
    assert!(net.hosts[0].seen.iter().find(ended).is_none());
}

/// By then its client may have the REJECT, which promises that it did not run.
#[test]
fn a_request_rejected_for_lack_of_memory_is_not_run_later() {
    let mut net = poor();
    let session = net.connect(0, 1);
    net.run_ms(1);
    // The first request lacks a packet, and the server's reject of the second is lost.
    let first = net.datagrams();
    net.fate = Box::new(move |n, from, _| usize::from(from == 0 && n != first + 1));
    let [large, second] = [vec![1; 20_000], vec![2; 20_000]];
    net.request(0, session, 1, &large);
    net.request(0, session, 2, &second);
    net.run_ms(1);
    assert!(net.hosts[1].ran.is_empty());
    net.fate = Box::new(|_, _, _| 1);
    net.run_ms(100);
    assert!(net.hosts[0].seen.contains(&Seen::Answer(1, large)));
    let no_memory = RequestError::Rejected(Rejection::NoMemory);
    assert!(net.hosts[0].seen.contains(&Seen::Failed(2, no_memory)));
    assert_eq!(net.hosts[1].ran.len(), 1);
    assert_eq!(net.hosts[1].protocol.reassembling(), 0);
    // The slot takes further requests.
    net.request(0, session, 3, &second);
    net.run_ms(1);
    assert!(net.hosts[0].seen.contains(&Seen::Answer(3, second)));
}
