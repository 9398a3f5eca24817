//! Workers that claim requests beside the dispatcher: the first to claim a request runs it, and no
//! other thread does, even if frames are repeated, requests cancelled or reports late.

use std::sync::Arc;

use starling_proto::{Claim, Claims, Config, Msgbuf, PeerId, SessionId};

use crate::net::{FLIGHT_NS, Net, Seen};

/// A client with a session, and a server with workers. From now on the network loses all datagrams of
/// the client; a test takes them from the log.
fn pair() -> (Net, SessionId, Arc<Claims>) {
    pair_with(Config::default())
}

/// The same, with a configuration of the server.
fn pair_with(server: Config) -> (Net, SessionId, Arc<Claims>) {
    let mut net = Net::new([Config::default(), server]);
    let claims = net.hosts[1].protocol.share_claims(4);
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.hosts[1].echo = false;
    net.fate = Box::new(|_, from, _| from);
    (net, session, claims)
}

/// The last datagram of the client.
fn last_of_client(net: &Net) -> Vec<u8> {
    let sent = net.log.iter().rfind(|(from, _)| *from == 0);
    sent.expect("it sent something").1.clone()
}

/// Makes a request, which a worker claims.
fn claimed(net: &mut Net, session: SessionId, claims: &Claims, tag: u128) -> (Claim, Vec<u8>) {
    net.request(0, session, tag, b"question");
    net.run_until(net.now + 1);
    let datagram = last_of_client(net);
    let candidate = claims.parse(PeerId(0), &datagram).expect("a plain request");
    assert_eq!(candidate.payload(), b"question");
    let claim = claims.claim(&candidate, false).expect("the first claim");
    assert!(claims.claim(&candidate, false).is_none(), "once");
    (claim, datagram)
}

/// The worker sends an answer and reports it.
fn answer(net: &mut Net, claim: &Claim) -> bool {
    let mut message = Msgbuf::from_vec(b"answer".to_vec());
    let (preamble, head) = claim.response_head(&message).expect("it is small");
    net.inject(1, 0, [&preamble[..], &head, b"answer"].concat());
    let now = net.now;
    net.hosts[1]
        .protocol
        .handle_claimed_response(now, claim, &mut message)
        .is_ok()
}

fn answers(net: &Net, tag: u128) -> usize {
    let is_it =
        |seen: &&Seen| matches!(seen, Seen::Answer(of, bytes) if *of == tag && bytes == b"answer");
    net.hosts[0].seen.iter().filter(is_it).count()
}

#[test]
fn a_request_that_a_worker_answered_is_answered_again_and_never_run_again() {
    let (mut net, session, claims) = pair();
    let (claim, datagram) = claimed(&mut net, session, &claims, 1);
    assert!(answer(&mut net, &claim));
    net.run_ms(1);
    assert_eq!(answers(&net, 1), 1);
    let before = net.datagrams();
    for _ in 0..3 {
        net.inject(0, 1, datagram.clone());
        net.run_ms(1);
    }
    assert_eq!(net.datagrams(), before + 3, "each is answered");
    assert!(net.hosts[1].ran.is_empty());
    assert_eq!(net.hosts[1].protocol.stats().duplicates, 3);
    assert_eq!(net.hosts[1].protocol.stats().requests_received, 1);
}

#[test]
fn a_client_learns_that_a_worker_runs_its_request() {
    let (mut net, session, claims) = pair();
    let (claim, _) = claimed(&mut net, session, &claims, 1);
    // All its repeats reach the dispatcher, for longer than it would wait without an answer.
    net.fate = Box::new(|_, _, _| 1);
    net.run_ms(6_000);
    assert!(net.hosts[1].ran.is_empty());
    assert!(net.hosts[1].protocol.stats().duplicates > 5);
    let now = net.now;
    assert!(
        net.hosts[1].protocol.handle_claimed_request(now, &claim),
        "the client waits"
    );
    assert!(net.hosts[1].respond(now, claim.id(), b"answer"));
    net.run_ms(1);
    assert_eq!(answers(&net, 1), 1);
}

#[test]
fn the_dispatcher_s_claim_keeps_workers_away() {
    let (mut net, session, claims) = pair();
    net.fate = Box::new(|_, _, _| 1);
    net.request(0, session, 1, b"question");
    net.run_until(net.now + 1);
    let datagram = last_of_client(&net);
    net.run_ms(1);
    assert_eq!(net.hosts[1].ran.len(), 1);
    let candidate = claims.parse(PeerId(0), &datagram).expect("well-formed");
    assert!(claims.claim(&candidate, false).is_none());
    let (now, id) = (net.now, net.hosts[1].ran[0].0);
    assert!(net.hosts[1].respond(now, id, b"answer"));
    net.run_ms(1);
    assert_eq!(answers(&net, 1), 1);
    assert!(claims.claim(&candidate, false).is_none());
}

#[test]
fn a_cancelled_request_ends_in_the_dispatcher_and_in_a_worker() {
    let (mut net, session, claims) = pair();
    // A request whose cancellation arrives first never runs.
    let number = net.request(0, session, 1, b"question");
    net.run_until(net.now + 1);
    let datagram = last_of_client(&net);
    net.fate = Box::new(|_, _, _| 1);
    let now = net.now;
    let host = &mut net.hosts[0];
    assert!(
        host.protocol
            .cancel(now, session, number, &mut host.wire)
            .is_some()
    );
    net.run_ms(1);
    let candidate = claims.parse(PeerId(0), &datagram).expect("well-formed");
    assert!(claims.claim(&candidate, false).is_none());
    // A cancellation while a worker runs the request makes the response stale.
    net.fate = Box::new(|_, from, _| from);
    let (claim, _) = claimed(&mut net, session, &claims, 2);
    net.fate = Box::new(|_, _, _| 1);
    let now = net.now;
    let host = &mut net.hosts[0];
    let number = claim.id().number();
    assert!(
        host.protocol
            .cancel(now, session, number, &mut host.wire)
            .is_some()
    );
    net.run_ms(1);
    assert!(!answer(&mut net, &claim));
    net.run_ms(1);
    assert_eq!(answers(&net, 2), 0);
    assert!(net.hosts[1].ran.is_empty());
}

#[test]
fn reports_may_come_late_and_in_any_order() {
    let (mut net, session, claims) = pair();
    let (first, _) = claimed(&mut net, session, &claims, 1);
    // Its response arrives, so the client uses the slot again before the report is handled.
    let message = Msgbuf::from_vec(b"answer".to_vec());
    let (preamble, head) = first.response_head(&message).expect("it is small");
    net.inject(1, 0, [&preamble[..], &head, b"answer"].concat());
    net.run_ms(1);
    let (second, _) = claimed(&mut net, session, &claims, 2);
    assert!(answer(&mut net, &second));
    assert!(!answer(&mut net, &first), "the slot has a later one");
    net.run_ms(1);
    assert_eq!((answers(&net, 1), answers(&net, 2)), (1, 1));
    // The session is over when a report comes.
    let (third, _) = claimed(&mut net, session, &claims, 3);
    net.fate = Box::new(|_, _, _| 1);
    let now = net.now;
    let host = &mut net.hosts[0];
    host.protocol.close(now, session, &mut host.wire);
    net.run_ms(1);
    let told = Seen::Abandoned(third.id());
    assert!(net.hosts[1].seen.contains(&told), "for who runs it");
    assert!(!answer(&mut net, &third));
    assert_eq!(net.hosts[1].protocol.session_counts().1, 0);
}

/// The client does not wait for the first request any more, and the CANCEL was lost.
#[test]
fn a_later_request_abandons_one_that_a_worker_runs() {
    for reported in [false, true] {
        let (mut net, session, claims) = pair();
        let (claim, datagram) = claimed(&mut net, session, &claims, 1);
        if reported {
            let now = net.now;
            let server = &mut net.hosts[1].protocol;
            assert!(server.handle_claimed_request(now, &claim), "it is wanted");
        }
        let mut later = datagram;
        later[16..24].copy_from_slice(&(claim.id().number() + 1).to_le_bytes());
        let candidate = claims.parse(PeerId(0), &later).expect("well-formed");
        if reported {
            // Another worker gets it.
            let claim = claims.claim(&candidate, false).expect("the first claim");
            let now = net.now;
            let server = &mut net.hosts[1].protocol;
            assert!(server.handle_claimed_request(now, &claim), "it is wanted");
        } else {
            net.inject(0, 1, later);
        }
        net.run_ms(1);
        let told = |seen: &&Seen| matches!(seen, Seen::Abandoned(_));
        let told: Vec<_> = net.hosts[1].seen.iter().filter(told).collect();
        assert_eq!(told, [&Seen::Abandoned(claim.id())], "{reported}");
    }
}

#[test]
fn a_large_request_does_not_take_the_slot_of_a_later_one() {
    let (mut net, session, claims) = pair();
    net.fate = Box::new(|_, _, _| 1);
    net.hosts[1].echo = true;
    let body: Vec<u8> = (0..20_000_u32).map(|n| n as u8).collect();
    net.request(0, session, 1, &body);
    net.run_ms(2);
    assert_eq!(net.hosts[1].ran.len(), 1);
    let first = net
        .log
        .iter()
        .find(|(from, bytes)| *from == 0 && bytes.len() > 1000);
    let first = first.expect("fragments").1.clone();
    net.hosts[1].echo = false;
    net.fate = Box::new(|_, from, _| from);
    let (claim, _) = claimed(&mut net, session, &claims, 2);
    // Fragments of the request before, and one with the number of the claimed request.
    net.inject(0, 1, first.clone());
    let mut other = first;
    other[16..24].copy_from_slice(&claim.id().number().to_le_bytes());
    net.inject(0, 1, other);
    net.run_ms(1);
    assert_eq!(
        net.hosts[1].protocol.reassembling(),
        0,
        "nothing is promised"
    );
    assert!(answer(&mut net, &claim));
    net.run_ms(1);
    assert_eq!(answers(&net, 2), 1);
    assert_eq!(net.hosts[1].ran.len(), 1);
}

/// The endpoint may have read the clock again between the report and its answer, or not.
#[test]
fn a_response_with_an_older_time_than_the_report_is_stored() {
    const LIMIT: usize = 1 << 20;
    let (mut net, session, claims) = pair_with(Config {
        max_message: LIMIT as u32 / 2,
        retained_bytes: LIMIT,
        ..Config::default()
    });
    let answer = vec![7; 300_000];
    for tag in 0..4 {
        let (claim, _) = claimed(&mut net, session, &claims, tag);
        let now = net.now;
        let server = &mut net.hosts[1];
        assert!(
            server.protocol.handle_claimed_request(now + 1000, &claim),
            "it is wanted"
        );
        let is_kept = server.respond(now, claim.id(), &answer);
        assert_eq!(is_kept, tag < 3, "there is room for three");
        assert_eq!(
            server.protocol.retained(),
            300_000 * 3.min(tag as usize + 1)
        );
    }
}

#[test]
fn with_few_sessions_at_a_time_workers_claim_those_of_the_last_one_too() {
    let mut net = Net::new([
        Config::default(),
        Config {
            max_sessions: 4,
            ..Config::default()
        },
    ]);
    let claims = net.hosts[1].protocol.share_claims(1 << 16);
    for _ in 0..300 {
        let session = net.connect(0, 1);
        net.run_ms(1);
        let now = net.now;
        let client = &mut net.hosts[0];
        client.protocol.close(now, session, &mut client.wire);
        net.run_ms(1);
    }
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.fate = Box::new(|_, from, _| from);
    let (claim, _) = claimed(&mut net, session, &claims, 1);
    assert!(answer(&mut net, &claim));
}

/// The kind and flags of the frame that the server sent last.
fn last_of_server(net: &mut Net) -> u8 {
    net.run_until(net.now + 1);
    let sent = net.log.iter().rfind(|(from, _)| *from == 1);
    sent.expect("it sent something").1[8]
}

/// A response of the dispatcher for a worker is marked late, so it is no RTT sample, and it echoes
/// the congestion mark that the worker saw.
#[test]
fn an_answer_by_the_dispatcher_is_late_and_keeps_the_mark() {
    const RESPONSE: u8 = 2;
    const ECHO: u8 = 1 << 6;
    const LATE: u8 = 1 << 7;
    for copy_first in [false, true] {
        let (mut net, session, claims) = pair();
        net.request(0, session, 1, b"question");
        net.run_until(net.now + 1);
        let datagram = last_of_client(&net);
        let candidate = claims.parse(PeerId(0), &datagram).expect("a plain request");
        let claim = claims.claim(&candidate, true).expect("the first claim");
        if copy_first {
            net.inject(0, 1, datagram);
            net.run_until(net.now + FLIGHT_NS);
        }
        let now = net.now;
        assert!(
            net.hosts[1].protocol.handle_claimed_request(now, &claim),
            "it is wanted"
        );
        assert!(net.hosts[1].respond(now, claim.id(), b"answer"));
        assert_eq!(last_of_server(&mut net), RESPONSE | ECHO | LATE);
    }
}

/// A dispatcher that drops a request because its slot was taken in the same turn must not have claimed it:
/// nobody would run it, and its client would hear that it is executed.
#[test]
fn a_request_that_is_dropped_for_its_slot_runs_when_it_is_repeated() {
    for bytes in [8, 20_000] {
        let (mut net, session, _claims) = pair();
        net.fate = Box::new(|_, _, _| 1);
        net.hosts[1].echo = true;
        net.log.clear();
        net.request(0, session, 1, &vec![1; bytes]);
        net.run_ms(5);
        let first = net.hosts[1].ran[0].0.number();
        // Its fragments once more with the next two numbers, all in one turn.
        let sent: Vec<_> = net
            .log
            .iter()
            .filter(|(from, _)| *from == 0)
            .cloned()
            .collect();
        let mut later = Vec::new();
        for number in [first + 1, first + 2] {
            for (_, datagram) in sent
                .iter()
                .filter(|(_, it)| it.len() > 8 && matches!(it[8] & 31, 1 | 3))
            {
                let mut datagram = datagram.clone();
                datagram[16..24].copy_from_slice(&number.to_le_bytes());
                later.push(datagram);
            }
        }
        for _ in 0..2 {
            for datagram in &later {
                net.inject(0, 1, datagram.clone());
            }
            net.run_ms(1);
        }
        let ran: Vec<_> = net.hosts[1].ran.iter().map(|(id, _)| id.number()).collect();
        assert_eq!(ran, [first, first + 1, first + 2], "{bytes}");
    }
}
