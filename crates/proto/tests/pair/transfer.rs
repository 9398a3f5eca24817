//! Messages of all sizes, and the packets that they cost.

use starling_proto::{Config, Factors, Msgbuf, NotMadeReason, Prefix, RequestError};

use crate::net::{Host, Net, Seen};

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 255) as u8).collect()
}

fn reversed(body: &[u8]) -> Vec<u8> {
    body.iter().rev().copied().collect()
}

#[test]
fn a_small_rpc_costs_one_packet_each_way() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    let before = net.datagrams();
    for tag in 0..100 {
        net.request(0, session, tag, &tag.to_le_bytes());
        net.run_until(net.now + 100_000);
    }
    assert_eq!(net.datagrams() - before, 200);
}

#[test]
fn frames_queued_for_a_peer_leave_in_one_datagram() {
    let mut net = Net::pair();
    let sessions: Vec<_> = (0..4).map(|_| net.connect(0, 1)).collect();
    net.run_ms(1);
    let before = net.datagrams();
    for (tag, session) in sessions.iter().enumerate() {
        for _ in 0..8 {
            net.request(0, *session, tag as u128, &[1; 20]);
        }
    }
    net.run_until(net.now + 100_000);
    assert_eq!(net.datagrams() - before, 2);
    assert_eq!(net.hosts[0].seen.len(), 4 + 32);
}

/// The length of a frame's payload has 16 bits, and shared memory may carry more.
#[test]
fn messages_arrive_whole_where_datagrams_are_larger_than_a_frame() {
    let mut net = Net::pair();
    for host in &mut net.hosts {
        host.wire.mtu = 1 << 20;
    }
    let session = net.connect(0, 1);
    net.run_ms(1);
    // About as many bytes as a full fragment has, a whole frame, and 2^16; several fragments.
    let lengths = (65_520..=65_540).chain([131_072, 300_000]);
    for (tag, length) in lengths.enumerate() {
        net.hosts[0].seen.clear();
        let body = pattern(length);
        net.request(0, session, tag as u128, &body);
        net.run_ms(20);
        let answer = Seen::Answer(tag as u128, reversed(&body));
        assert!(net.hosts[0].seen == [answer], "{length} bytes");
    }
}

#[test]
fn pacing_does_not_spread_packets_within_a_tick() {
    let paced = |link_rate_bps| {
        let config = Config {
            link_rate_bps,
            factors: Factors {
                pacing_bypass: false,
                ..Factors::default()
            },
            ..Config::default()
        };
        let mut net = Net::new([config, Config::default()]);
        let session = net.connect(0, 1);
        net.run_ms(1);
        let before = net.datagrams();
        for tag in 0..8 {
            net.request(0, session, tag, &[1; 84]);
        }
        net.run_ms(10);
        assert_eq!(net.hosts[0].seen.len(), 1 + 8);
        net.datagrams() - before
    };
    // Packets of 100 bytes: at 100 Gb/s one takes 8 ns, at 100 Mb/s 8 us.
    assert_eq!(paced(100_000_000_000), 2);
    assert_eq!(paced(100_000_000), 16);
}

#[test]
fn messages_of_any_size_arrive_whole_both_ways() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    let fragment = net.hosts[0].protocol.single_packet_bytes(session);
    assert_eq!(fragment, 1500 - 8 - 16 - 8);
    let sizes = [
        0,
        1,
        fragment - 1,
        fragment,
        fragment + 1,
        2 * fragment,
        63 * fragment + 1,
        64 * fragment,
        65 * fragment,
        1 << 20,
    ];
    for (tag, size) in sizes.into_iter().enumerate() {
        let body = pattern(size);
        net.request(0, session, tag as u128, &body);
        net.run_ms(100);
        let last = net.hosts[0].seen.pop().unwrap();
        assert_eq!(last, Seen::Answer(tag as u128, reversed(&body)), "{size}");
        assert_eq!(net.hosts[0].protocol.accounting(session), Some((0, 32, 0)));
        assert_eq!(net.hosts[0].protocol.reassembling(), 0);
        assert_eq!(net.hosts[1].protocol.reassembling(), 0);
    }
    assert_eq!(net.hosts[0].protocol.stats().retransmissions, 0);
    assert_eq!(net.hosts[1].protocol.stats().duplicates, 0);
}

#[test]
fn acknowledgements_are_cumulative() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    let fragment = net.hosts[0].protocol.single_packet_bytes(session);
    let before = net.datagrams();
    net.request(0, session, 0, &pattern(256 * fragment));
    net.run_ms(10);
    let Seen::Answer(0, _) = net.hosts[0].seen.pop().unwrap() else {
        panic!("no answer")
    };
    // 256 packets each way in windows of 32: eight acknowledgements and eight requests for more
    // in each direction, not 256.
    let extra = net.datagrams() - before - 2 * 256;
    assert!(extra <= 24, "{extra} datagrams carry no data");
}

#[test]
fn a_sink_without_room_delays_but_loses_nothing() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    for host in &mut net.hosts {
        host.wire.room = 0;
    }
    let large = pattern(100_000);
    net.request(0, session, 1, b"small");
    net.request(0, session, 2, &large);
    for _ in 0..3_000 {
        for host in &mut net.hosts {
            host.wire.room = 1;
        }
        net.run_until(net.now + 10_000);
    }
    assert!(
        net.hosts[0]
            .seen
            .contains(&Seen::Answer(1, b"llams".to_vec()))
    );
    assert!(
        net.hosts[0]
            .seen
            .contains(&Seen::Answer(2, reversed(&large)))
    );
    assert!(net.hosts[0].protocol.stats().sink_full > 10);
    assert!(net.hosts[1].protocol.stats().sink_full > 10);
}

#[test]
fn more_requests_than_slots_queue_up_to_the_bound() {
    let config = Config {
        slots: 8,
        max_queued: 10,
        group_sessions: 1,
        ..Config::default()
    };
    let mut net = Net::new([config, Config::default()]);
    net.hosts[1].echo = false;
    let session = net.connect(0, 1);
    net.run_ms(1);
    for tag in 0..18 {
        net.request(0, session, tag, b"x");
    }
    let now = net.now;
    let Host { protocol, wire, .. } = &mut net.hosts[0];
    let message = Msgbuf::from_vec(vec![1; 3]);
    let not_made = protocol
        .request(now, session, message.clone(), Prefix::NONE, 99, wire)
        .unwrap_err();
    assert_eq!(not_made.reason, NotMadeReason::QueueFull);
    assert_eq!(not_made.message, message);
    net.run_ms(5);
    assert_eq!(net.hosts[1].ran.len(), 8);
    // The server answers all requests, out of order, and the queue advances.
    net.hosts[1].echo = true;
    let now = net.now;
    let waiting: Vec<_> = net.hosts[1].ran.iter().rev().cloned().collect();
    for (id, body) in waiting {
        assert!(net.hosts[1].respond(now, id, &body));
    }
    net.run_ms(5);
    assert_eq!(net.hosts[0].seen.len(), 1 + 18);
    assert_eq!(net.hosts[0].protocol.outstanding(), 0);
}

#[test]
fn messages_beyond_the_limits_are_refused_with_the_limit() {
    let tight = Config {
        max_message: 10_000,
        ..Config::default()
    };
    let mut net = Net::new([Config::default(), tight]);
    let session = net.connect(0, 1);
    net.request(0, session, 1, &pattern(10_001));
    net.run_ms(1);
    assert!(
        net.hosts[0]
            .seen
            .contains(&Seen::Failed(1, starling_proto::Rejection::TooLarge.into()))
    );
    let now = net.now;
    let Host { protocol, wire, .. } = &mut net.hosts[0];
    let not_made = protocol
        .request(
            now,
            session,
            Msgbuf::from_vec(pattern(10_001)),
            Prefix::NONE,
            2,
            wire,
        )
        .unwrap_err();
    assert_eq!(
        not_made.reason,
        NotMadeReason::TooLarge {
            len: 10_001,
            max: 10_000
        }
    );
    // The limit is for the body: the prefix does not count.
    net.hosts[1].echo = false;
    let one = Prefix {
        ext: true,
        len: 1,
        ..Prefix::NONE
    };
    for (prefix, taken) in [(one, true), (Prefix::NONE, false)] {
        let now = net.now;
        let Host { protocol, wire, .. } = &mut net.hosts[0];
        let message = Msgbuf::from_vec(pattern(10_001));
        let result = protocol.request(now, session, message, prefix, 3, wire);
        assert_eq!(result.is_ok(), taken);
    }
    net.run_ms(1);
    assert_eq!(net.hosts[1].ran.len(), 1);
    // A server without memory rejects the request; it was not run.
    let poor = Config {
        reassembly_bytes: 10_000 + usize::from(Prefix::MAX),
        max_message: 10_000,
        ..Config::default()
    };
    let mut net = Net::new([Config::default(), poor]);
    let session = net.connect(0, 1);
    net.hosts[1].echo = false;
    net.run_ms(1);
    // The first one stays incomplete for a while.
    let first = net.datagrams();
    net.fate = Box::new(move |n, _, _| usize::from(n != first + 1));
    for tag in [1, 2] {
        let now = net.now;
        let Host { protocol, wire, .. } = &mut net.hosts[0];
        let prefix = Prefix {
            len: Prefix::MAX,
            ..Prefix::NONE
        };
        let message = Msgbuf::from_vec(pattern(20_000));
        protocol
            .request(now, session, message, prefix, tag, wire)
            .unwrap();
    }
    net.run_ms(100);
    let no_memory = RequestError::Rejected(starling_proto::Rejection::NoMemory);
    assert!(net.hosts[0].seen.contains(&Seen::Failed(2, no_memory)));
    assert_eq!(net.hosts[1].ran.len(), 1);
    assert_eq!(net.hosts[1].protocol.reassembling(), 0);
}

#[test]
fn delivered_responses_are_known() {
    const QUIET_NS: u64 = 100_000_000;
    for reliable in [false, true] {
        let config = Config {
            reliable,
            ..Config::default()
        };
        let mut net = Net::new([Config::default(), config]);
        let session = net.connect(0, 1);
        net.run_ms(1);
        let undelivered = |net: &Net| net.hosts[1].protocol.has_undelivered(QUIET_NS);
        assert!(!undelivered(&net));
        // The client acknowledges a large response when all of it arrived.
        net.request(0, session, 1, &pattern(1_000_000));
        let mut fetching = 0;
        while net.hosts[0].seen.len() == 1 {
            net.run_until(net.now + 1_000);
            fetching += usize::from(undelivered(&net));
        }
        assert!(fetching > 0, "it takes more than a response fragment");
        net.run_until(net.now + 100_000);
        assert!(!undelivered(&net), "it acknowledged the response");
        // It does not acknowledge a small response: if that was lost, it would repeat the request.
        net.request(0, session, 2, b"small");
        net.run_ms(1);
        assert_eq!(net.hosts[0].seen.len(), 3);
        assert_eq!(undelivered(&net), !reliable);
        net.run_ms(200);
        assert!(!undelivered(&net));
    }
}
