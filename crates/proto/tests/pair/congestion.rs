//! Marks and delays throttle a session, but never stop it.

use starling_proto::{Config, Congestion, SessionId};

use crate::net::{Net, Seen};

/// A pair with an open session. Its network marks all datagrams to `marked`.
fn marking(marked: usize) -> (Net, SessionId) {
    let config = Config {
        congestion: Congestion::Dctcp,
        ..Config::default()
    };
    let mut net = Net::new([config, Config::default()]);
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.hosts[0].seen.clear();
    net.hosts[marked].marked = true;
    (net, session)
}

fn marks(net: &Net) -> u64 {
    net.hosts[0].protocol.stats().marks
}

pub(crate) fn answers(net: &Net) -> usize {
    let seen = net.hosts[0].seen.iter();
    seen.filter(|seen| matches!(seen, Seen::Answer(..))).count()
}

#[test]
fn a_marked_request_is_answered_with_an_echo() {
    let (mut net, session) = marking(1);
    net.request(0, session, 1, b"small");
    net.run_ms(1);
    assert_eq!((answers(&net), marks(&net)), (1, 1));
    net.hosts[1].marked = false;
    net.request(0, session, 2, b"small");
    net.run_ms(1);
    assert_eq!((answers(&net), marks(&net)), (2, 1));
}

#[test]
fn marked_fragments_are_echoed_by_credit_returns_and_slow_the_rest_down() {
    let (mut net, session) = marking(1);
    let body = vec![7; 2000 * 1400];
    let begun = net.now;
    net.request(0, session, 1, &body);
    while answers(&net) == 0 {
        net.run_until(net.now + 10_000);
    }
    let marked_ns = net.now - begun;
    assert!(marks(&net) > 20, "{}", marks(&net));
    net.hosts[1].marked = false;
    // Without marks the session gets up to speed again.
    for tag in 2..4 {
        net.request(0, session, tag, &body);
        net.run_ms(50);
    }
    let begun = net.now;
    net.request(0, session, 4, &body);
    while answers(&net) < 4 {
        net.run_until(net.now + 10_000);
    }
    let free_ns = net.now - begun;
    assert!(marked_ns > 10 * free_ns, "{marked_ns} and {free_ns} ns");
    assert_eq!(net.hosts[0].protocol.stats().retransmissions, 0);
}

#[test]
fn marked_responses_slow_down_requests_for_response() {
    let (mut net, session) = marking(0);
    net.hosts[1].echo = false;
    net.request(0, session, 1, b"much, please");
    net.run_ms(1);
    let (id, _) = net.hosts[1].ran[0];
    let (now, body) = (net.now, vec![9; 2000 * 1400]);
    assert!(net.hosts[1].respond(now, id, &body));
    while answers(&net) == 0 {
        net.run_until(net.now + 10_000);
    }
    // Unmarked it takes some sixty round trips of 10 us.
    assert!(net.now - now > 10_000_000, "{} ns", net.now - now);
    assert!(marks(&net) > 100, "{}", marks(&net));
    assert_eq!(net.hosts[0].protocol.stats().retransmissions, 0);
}

/// Several requests and responses of all sizes share a throttled session.
#[test]
fn each_request_of_a_throttled_session_is_answered() {
    let (mut net, session) = marking(0);
    net.hosts[1].marked = true;
    for tag in 0..24u128 {
        let len = [10, 5_000, 60_000][tag as usize % 3];
        net.request(0, session, tag, &vec![1; len]);
    }
    net.run_ms(2_000);
    assert_eq!(answers(&net), 24);
    assert_eq!(net.hosts[0].protocol.accounting(session), Some((0, 32, 0)));
}

#[test]
fn without_congestion_control_marks_change_nothing() {
    let config = Config {
        congestion: Congestion::Off,
        ..Config::default()
    };
    let mut net = Net::new([config, Config::default()]);
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.hosts[0].seen.clear();
    net.hosts[1].marked = true;
    net.request(0, session, 1, &vec![7; 200 * 1400]);
    net.run_until(net.now + 200_000);
    assert_eq!(answers(&net), 1);
}

/// The time that a response of `len` bytes takes. Its datagrams are marked for `mark_ns` from its
/// start.
fn download(net: &mut Net, session: SessionId, len: usize, mark_ns: u64) -> u64 {
    let (had, ran) = (answers(net), net.hosts[1].ran.len());
    net.request(0, session, had as u128, b"much");
    while net.hosts[1].ran.len() == ran {
        net.run_until(net.now + 1_000);
    }
    let (id, _) = net.hosts[1].ran[ran];
    let begun = net.now;
    assert!(net.hosts[1].respond(begun, id, &vec![9; len]));
    net.hosts[0].marked = mark_ns > 0;
    while answers(net) == had {
        net.run_until(net.now + 10_000);
        if net.now >= begun + mark_ns {
            net.hosts[0].marked = false;
        }
    }
    net.now - begun
}

/// The link is faster than the configuration says.
#[test]
fn packets_of_an_unpaced_session_are_no_debt_once_it_is_paced() {
    let after = |before: usize| {
        let client = Config {
            congestion: Congestion::Dctcp,
            link_rate_bps: 1_000_000_000,
            ..Config::default()
        };
        let mut net = Net::new([client, Config::default()]);
        let session = net.connect(0, 1);
        net.run_ms(1);
        net.hosts[1].echo = false;
        if before > 0 {
            download(&mut net, session, before, 0);
        }
        download(&mut net, session, 1_400_000, 30_000)
    };
    let (alone, later) = (after(0), after(28_000_000));
    assert!(later < 4 * alone, "{later} ns, {alone} ns alone");
}

/// Round trips take 600 us. Once, three fragments overtake another one: the client sends it again, and
/// its first copy arrives a moment later.
#[test]
fn the_answer_to_a_repeated_fragment_is_no_rtt_sample() {
    let upload = |late_ns: u64| {
        let client = Config {
            congestion: Congestion::Dctcp,
            link_rate_bps: 25_000_000_000,
            ..Config::default()
        };
        let mut net = Net::new([client, Config::default()]);
        net.delay = Box::new(move |from, datagram| {
            const FRAGMENT_OF_A_REQUEST: u8 = 3;
            let mut delay = 295_000;
            if from == 0 && datagram[8] & 0x1f == FRAGMENT_OF_A_REQUEST {
                let index = u32::from_le_bytes(datagram[28..32].try_into().unwrap());
                if index < 32 {
                    delay += u64::from(index) * 1000;
                }
                if index == 34 {
                    delay += late_ns;
                }
            }
            delay
        });
        let session = net.connect(0, 1);
        net.run_ms(100);
        let fragment = net.hosts[0].protocol.single_packet_bytes(session);
        net.request(0, session, 1, &vec![1; 44 * fragment]);
        net.run_ms(20);
        assert_eq!(answers(&net), 1);
        net.delay = Box::new(|_, _| 295_000);
        let begun = net.now;
        net.request(0, session, 2, &vec![1; 1430 * fragment]);
        while answers(&net) < 2 {
            net.run_until(net.now + 100_000);
        }
        net.now - begun
    };
    let (clean, late) = (upload(0), upload(4_500));
    assert!(late < 2 * clean, "{late} ns, {clean} ns without a late one");
}
