//! Retransmission timeouts follow the round-trip times, and each request has its own.

use starling_proto::{Config, SessionId};

use crate::congestion::answers;
use crate::net::Net;

/// A session that has measured a round trip of the network's usual length.
fn warm() -> (Net, SessionId) {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(5);
    for tag in 0..20 {
        net.request(0, session, tag, b"small");
        net.run_ms(1);
    }
    assert_eq!(answers(&net), 20);
    (net, session)
}

fn retransmissions(net: &Net) -> u64 {
    net.hosts[0].protocol.stats().retransmissions
}

#[test]
fn a_round_trip_above_the_first_timeout_is_learnt() {
    let mut net = Net::pair();
    net.delay = Box::new(|_, _| 10_000_000);
    let session = net.connect(0, 1);
    net.run_ms(300);
    let before = retransmissions(&net);
    for tag in 0..20 {
        net.request(0, session, tag, b"small");
        net.run_ms(100);
    }
    assert_eq!(answers(&net), 20);
    let again = retransmissions(&net) - before;
    assert!(again < 5, "{again} of 20 requests were sent again");
}

/// Otherwise congestion control would get no samples when the queue is longest.
#[test]
fn a_growing_round_trip_is_learnt_and_marks_count_meanwhile() {
    let (mut net, session) = warm();
    net.delay = Box::new(|_, _| 1_500_000);
    net.hosts[1].marked = true;
    let (before, marks) = (retransmissions(&net), net.hosts[0].protocol.stats().marks);
    for tag in 20..70 {
        net.request(0, session, tag, b"small");
        net.run_ms(10);
    }
    let again = retransmissions(&net) - before;
    assert!((1..10).contains(&again), "{again} of 50 were sent again");
    assert_eq!(net.hosts[0].protocol.stats().marks - marks, 50);
}

#[test]
fn a_loss_beside_a_long_request_is_repaired_in_time() {
    let (mut net, session) = warm();
    net.hosts[1].echo = false;
    net.request(0, session, 100, b"long");
    net.run_ms(1_000);
    // The client has just sent the long request again, and will do so again in 50 ms.
    let seen = retransmissions(&net);
    while retransmissions(&net) == seen {
        net.run_until(net.now + 100_000);
    }
    net.run_until(net.now + 100_000);
    let (ran, lost) = (net.hosts[1].ran.len(), net.datagrams() + 1);
    net.fate = Box::new(move |n, _, _| usize::from(n != lost));
    let begun = net.now;
    net.request(0, session, 101, b"lost once");
    while net.hosts[1].ran.len() == ran {
        net.run_until(net.now + 100_000);
    }
    let took = net.now - begun;
    assert!(took < 5_000_000, "{took} ns");
}

/// How often both ends wake up in 10 s.
fn wakes(net: &mut Net) -> usize {
    let (end, mut wakes) = (net.now + 10_000_000_000, 0);
    while net.now < end {
        let timeouts = net.hosts.iter().map(|host| host.protocol.poll_timeout());
        let next = timeouts.min().flatten().expect("there is a session");
        net.run_until(next.max(net.now + 1));
        wakes += 1;
    }
    wakes
}

/// An idle process costs a few wake-ups a second: a ping, a look at its answer, and one at the server.
#[test]
fn an_idle_pair_sleeps_from_ping_to_ping() {
    let (mut net, session) = warm();
    let sent = net.datagrams();
    let wakes = wakes(&mut net);
    assert!(wakes <= 70, "{wakes} wake-ups of both in 10 s");
    let sent = net.datagrams() - sent;
    assert!((36..=42).contains(&sent), "{sent} pings and pongs");
    net.request(0, session, 20, b"small");
    net.run_ms(1);
    assert_eq!(answers(&net), 21);
}

/// Peers that are silent since about the same time are pinged by one wake-up.
#[test]
fn silent_peers_are_pinged_together() {
    const SERVERS: usize = 8;
    let mut net = Net::new((0..=SERVERS).map(|_| Config::default()));
    for server in 1..=SERVERS {
        net.connect(0, server);
        net.run_ms(5);
    }
    net.run_ms(1_000);
    let (sent, end, mut wakes) = (net.datagrams(), net.now + 10_000_000_000, 0);
    while net.now < end {
        let of = |host: usize| net.hosts[host].protocol.poll_timeout();
        let next = (0..=SERVERS)
            .filter_map(of)
            .min()
            .expect("there are sessions");
        wakes += usize::from(of(0) == Some(next));
        net.run_until(next.max(net.now + 1));
    }
    let sent = net.datagrams() - sent;
    let pings = 2 * 20 * SERVERS as u64;
    assert!(
        (pings * 9 / 10..=pings * 11 / 10).contains(&sent),
        "{sent} pings and pongs"
    );
    assert!(wakes <= 50, "{wakes} wake-ups of the client in 10 s");
}

/// What a server had to look at in several steps once is no reason to wake up for later.
#[test]
fn a_server_that_had_many_sessions_sleeps_from_ping_to_ping() {
    let mut net = Net::pair();
    for _ in 0..200 {
        let session = net.connect(0, 1);
        net.run_ms(1);
        let (now, host) = (net.now, &mut net.hosts[0]);
        host.protocol.close(now, session, &mut host.wire);
        net.run_ms(1);
    }
    net.connect(0, 1);
    net.run_ms(600);
    let wakes = wakes(&mut net);
    assert!(wakes <= 90, "{wakes} wake-ups of both in 10 s");
}

/// The same after thousands at once.
#[test]
fn a_server_that_had_thousands_of_sessions_sleeps_from_ping_to_ping() {
    const MANY: usize = 8_000;
    let client = Config {
        credits: 1,
        ..Config::default()
    };
    let server = Config {
        rx_queue_datagrams: 2 * MANY,
        overcommit: 1,
        ..Config::default()
    };
    let mut net = Net::new([client, server]);
    let sessions: Vec<_> = (0..MANY).map(|_| net.connect(0, 1)).collect();
    net.run_ms(900);
    for session in sessions.into_iter().skip(1) {
        let (now, host) = (net.now, &mut net.hosts[0]);
        host.protocol.close(now, session, &mut host.wire);
    }
    net.run_ms(10_000);
    assert_eq!(net.hosts[1].protocol.granted(), 1);
    let wakes = wakes(&mut net);
    assert!(wakes <= 90, "{wakes} wake-ups of both in 10 s");
}

/// Of many idle sessions the server repeats the accepts, and sleeps when it has.
#[test]
fn a_server_with_many_idle_sessions_sleeps_between_its_looks_at_them() {
    let mut net = Net::pair();
    for _ in 0..200 {
        net.connect(0, 1);
    }
    net.run_ms(600);
    let sent = net.datagrams();
    let wakes = wakes(&mut net);
    assert!(wakes <= 130, "{wakes} wake-ups of both in 10 s");
    assert!(net.datagrams() - sent > 40, "accepts come beside pings");
}
