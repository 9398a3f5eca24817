//! Opening, refusing, closing and losing sessions; credits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use starling_proto::{Config, PeerId, Refusal, RequestError, SessionError};

use crate::net::{FLIGHT_NS, Host, Net, Seen};

#[test]
fn a_request_made_while_connecting_is_answered() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.request(0, session, 7, b"hello");
    net.run_ms(1);
    assert_eq!(
        net.hosts[0].seen,
        [Seen::Connected(session), Seen::Answer(7, b"olleh".to_vec())]
    );
    assert_eq!(net.hosts[0].protocol.accounting(session), Some((0, 32, 0)));
    // Connect, challenge, connect, accept, request, response.
    assert_eq!(net.datagrams(), 6);
}

/// The network silently loses datagrams that are larger than their receiver accepts.
#[test]
fn no_datagram_is_larger_than_the_peer_accepts() {
    for small in [0, 1] {
        let mut net = Net::pair();
        net.hosts[1 - small].wire.mtu = 9000;
        let session = net.connect(0, 1);
        net.run_ms(1);
        for host in &net.hosts {
            assert_eq!(host.wire.limit, Some(1500));
        }
        for tag in 0..8 {
            net.request(0, session, tag, &[0; 1000]);
        }
        net.run_ms(1);
        assert_eq!(net.hosts[1].ran.len(), 8);
        assert!(net.log.iter().all(|(_, datagram)| datagram.len() <= 1500));
    }
}

#[test]
fn a_spoofed_connect_costs_the_server_nothing() {
    let mut net = Net::pair();
    // A sender with a forged address never sees the challenge.
    let session = net.connect(0, 1);
    net.fate = Box::new(|_, from, _| usize::from(from == 0));
    net.run_ms(100);
    let server = &net.hosts[1].protocol;
    assert!(server.stats().challenges >= 2);
    assert_eq!(server.session_counts(), (0, 0));
    assert_eq!(server.poll_timeout(), None);
    net.run_ms(3000);
    assert_eq!(
        net.hosts[0].seen[0],
        Seen::Ended(session, SessionError::ConnectTimeout)
    );
}

#[test]
fn a_full_server_refuses_with_its_limit() {
    let small = Config {
        max_sessions: 2,
        ..Config::default()
    };
    let mut net = Net::new([Config::default(), small]);
    let sessions: Vec<_> = (0..3).map(|_| net.connect(0, 1)).collect();
    net.run_ms(5);
    let refused = Refusal::SessionLimit { limit: 2 };
    assert!(net.hosts[0].seen.contains(&Seen::Connected(sessions[0])));
    assert!(net.hosts[0].seen.contains(&Seen::Connected(sessions[1])));
    assert!(
        net.hosts[0]
            .seen
            .contains(&Seen::Ended(sessions[2], refused.into()))
    );
    assert_eq!(net.hosts[1].protocol.stats().sessions_refused, 1);
}

#[test]
fn a_connect_without_credits_left_is_refused_with_that_reason() {
    let small = Config {
        rx_queue_datagrams: 3,
        overcommit: 1,
        ..Config::default()
    };
    let mut net = Net::new([Config::default(), small]);
    // The first gets all credits and has to give some back for each that follows.
    let sessions: Vec<_> = (0..4)
        .map(|_| {
            let session = net.connect(0, 1);
            net.run_ms(100);
            session
        })
        .collect();
    let refused = Refusal::CreditLimit { limit: 3 };
    let ended: Vec<_> = net.hosts[0]
        .seen
        .iter()
        .filter(|seen| matches!(seen, Seen::Ended(..)))
        .collect();
    assert_eq!(ended, [&Seen::Ended(sessions[3], refused.into())]);
    for session in &sessions[..3] {
        assert_eq!(net.hosts[0].protocol.accounting(*session).unwrap().1, 1);
    }
}

#[test]
fn credits_move_from_idle_sessions_to_busy_ones() {
    let small = Config {
        rx_queue_datagrams: 40,
        overcommit: 1,
        ..Config::default()
    };
    let mut net = Net::new([Config::default(), small]);
    let first = net.connect(0, 1);
    net.run_ms(5);
    assert_eq!(net.hosts[0].protocol.accounting(first).unwrap().1, 30);
    let second = net.connect(0, 1);
    net.run_ms(5);
    assert_eq!(net.hosts[0].protocol.accounting(second).unwrap().1, 1);
    // The second one has much to send.
    let large = vec![3; 200_000];
    for tag in 0..4 {
        net.request(0, second, tag, &large);
    }
    net.run_ms(50);
    assert_eq!(net.hosts[0].protocol.accounting(first).unwrap().1, 1);
    let (_, credits, _) = net.hosts[0].protocol.accounting(second).unwrap();
    assert!(credits > 30, "{credits}");
    let answers = net.hosts[0]
        .seen
        .iter()
        .filter(|seen| matches!(seen, Seen::Answer(..)));
    assert_eq!(answers.count(), 4);
    assert!(net.hosts[1].protocol.stats().credits_revoked > 0);
}

#[test]
fn a_close_frees_both_ends_even_if_its_first_copies_are_lost() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.hosts[1].echo = false;
    net.request(0, session, 1, b"never answered");
    net.run_ms(1);
    net.fate = Box::new(|_, _, _| 0);
    let now = net.now;
    let Host { protocol, wire, .. } = &mut net.hosts[0];
    protocol.close(now, session, wire);
    net.run_ms(100);
    assert_eq!(net.hosts[1].protocol.session_counts(), (0, 1));
    net.fate = Box::new(|_, _, _| 1);
    net.run_ms(100);
    assert_eq!(net.hosts[0].protocol.session_counts(), (0, 0));
    assert_eq!(net.hosts[1].protocol.session_counts(), (0, 0));
    assert_eq!(
        net.hosts[0].seen[1..],
        [
            Seen::Failed(1, RequestError::Session(SessionError::Closed)),
            Seen::Ended(session, SessionError::Closed),
            Seen::Released(PeerId(1)),
        ]
    );
    let (id, _) = net.hosts[1].ran[0];
    assert_eq!(net.hosts[1].seen[0], Seen::Abandoned(id));
    let now = net.now;
    assert!(!net.hosts[1].respond(now, id, b"too late"));
}

#[test]
fn a_restarted_server_is_told_apart_from_loss() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.restart(1, Config::default());
    net.request(0, session, 9, b"lost in the restart");
    net.run_ms(30);
    let restarted = SessionError::PeerRestarted;
    assert_eq!(
        net.hosts[0].seen[1..],
        [
            Seen::Failed(9, restarted.into()),
            Seen::Ended(session, restarted),
            Seen::Released(PeerId(1)),
        ]
    );
    assert_eq!(net.hosts[0].protocol.stats().sessions_restarted, 1);
    assert!(net.hosts[1].ran.is_empty());
    let session = net.connect(0, 1);
    net.request(0, session, 10, b"again");
    net.run_ms(30);
    assert!(
        net.hosts[0]
            .seen
            .contains(&Seen::Answer(10, b"niaga".to_vec()))
    );
}

#[test]
fn a_restarted_client_does_not_leave_sessions_behind() {
    let mut net = Net::pair();
    for _ in 0..5 {
        net.connect(0, 1);
    }
    net.run_ms(1);
    assert_eq!(net.hosts[1].protocol.session_counts(), (0, 5));
    net.restart(0, Config::default());
    net.connect(0, 1);
    net.run_ms(30);
    assert_eq!(net.hosts[1].protocol.session_counts(), (0, 1));
}

#[test]
fn a_connect_of_a_former_incarnation_does_not_end_the_present_one() {
    let mut net = Net::pair();
    net.connect(0, 1);
    net.run_ms(1);
    let former: Vec<_> = net
        .log
        .iter()
        .filter(|(from, _)| *from == 0)
        .cloned()
        .collect();
    net.restart(0, Config::default());
    let session = net.connect(0, 1);
    net.run_ms(30);
    for (_, datagram) in former {
        net.inject(0, 1, datagram);
    }
    net.run_ms(30);
    assert_eq!(net.hosts[1].protocol.session_counts(), (0, 1));
    net.request(0, session, 1, b"alive");
    net.run_ms(30);
    assert!(
        net.hosts[0]
            .seen
            .contains(&Seen::Answer(1, b"evila".to_vec()))
    );
}

#[test]
fn a_server_refuses_a_client_whose_path_is_too_narrow() {
    let mut net = Net::pair();
    net.hosts[1].wire.mtu = 100;
    let session = net.connect(0, 1);
    net.run_ms(30);
    let refused = Refusal::NarrowPath { bytes: 100 };
    let ended = Seen::Ended(session, refused.into());
    assert!(
        net.hosts[0].seen.contains(&ended),
        "{:?}",
        net.hosts[0].seen
    );
    assert_eq!(net.hosts[1].protocol.session_counts(), (0, 0));
}

/// A switch flips bits in the token of the first accept, past all checksums. The client takes the
/// server for another incarnation, until a reset says that there is none with that token. Then the
/// true accept is believed.
#[test]
fn a_token_that_a_reset_ended_may_connect_again() {
    let mut net = Net::pair();
    // This accept is lost, and one with another token takes its place.
    let renamed = net.connect(0, 1);
    net.fate = Box::new(|count, _, _| usize::from(count != 4));
    net.run_until(net.now + 4 * FLIGHT_NS - 1_000);
    let (from, mut accept) = net.log.last().cloned().expect("an accept");
    assert_eq!((from, accept[8]), (1, 11), "an accept of the server");
    accept[24] ^= 0x40;
    net.inject(1, 0, accept);
    // A session that is not open yet keeps the state of its peer.
    let late = net.connect(0, 1);
    net.request(0, renamed, 1, b"to nobody");
    net.run_ms(30);
    let restarted = SessionError::PeerRestarted;
    assert!(net.hosts[0].seen.contains(&Seen::Ended(renamed, restarted)));
    assert!(net.hosts[0].seen.contains(&Seen::Connected(late)));
    let back = net.connect(1, 0);
    net.run_ms(30);
    assert_eq!(net.hosts[1].seen.last(), Some(&Seen::Connected(back)));
}

#[test]
fn a_dead_server_is_noticed_within_the_peer_timeout() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.hosts[1].alive = false;
    net.request(0, session, 1, b"anyone?");
    net.run_ms(1900);
    assert_eq!(net.hosts[0].seen.len(), 1);
    net.run_ms(400);
    assert_eq!(
        net.hosts[0].seen[1..],
        [
            Seen::Failed(1, SessionError::PeerSilent.into()),
            Seen::Ended(session, SessionError::PeerSilent),
            Seen::Released(PeerId(1)),
        ]
    );
}

#[test]
fn an_idle_session_outlives_silence_and_a_dead_client_is_forgotten() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(60_000);
    assert_eq!(net.hosts[1].protocol.session_counts(), (0, 1));
    net.request(0, session, 1, b"still there");
    net.run_ms(1);
    assert_eq!(net.hosts[0].seen.len(), 2);
    net.hosts[0].alive = false;
    net.run_ms(5_000);
    assert_eq!(net.hosts[1].protocol.session_counts(), (0, 0));
    assert_eq!(net.hosts[1].seen, [Seen::Released(PeerId(0))]);
}

#[test]
fn a_client_that_was_stopped_does_not_count_its_peer_as_silent() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(600);
    // The client's thread is away for ten seconds; meanwhile the server may drop it.
    net.hosts[0].alive = false;
    net.run_ms(3_000);
    net.hosts[0].alive = true;
    net.request(0, session, 1, b"back");
    net.run_ms(50);
    assert!(
        net.hosts[0]
            .seen
            .contains(&Seen::Answer(1, b"kcab".to_vec()))
    );
}

#[test]
fn a_refused_port_ends_a_connect_at_once_and_an_open_session_soon() {
    let mut net = Net::pair();
    let open = net.connect(0, 1);
    net.run_ms(1);
    net.hosts[1].alive = false;
    let opening = net.connect(0, 1);
    net.run_ms(1);
    let now = net.now;
    let Host { protocol, wire, .. } = &mut net.hosts[0];
    protocol.handle_peer_gone(now, PeerId(1), false, wire);
    net.run_ms(1);
    assert!(
        net.hosts[0]
            .seen
            .contains(&Seen::Ended(opening, SessionError::Unreachable))
    );
    net.run_ms(1_200);
    assert!(
        net.hosts[0]
            .seen
            .contains(&Seen::Ended(open, SessionError::PeerSilent))
    );
}

#[test]
fn a_forged_reset_is_ignored() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    let mut forged = vec![0x5a, 3, 0, 0, 0, 0, 0, 0];
    // Of the whole incarnation, with a guessed token.
    forged.extend_from_slice(&[15, 1, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0, 1, 0, 0, 0]);
    net.inject(1, 0, forged);
    net.run_ms(1);
    net.request(0, session, 1, b"unmoved");
    net.run_ms(1);
    assert!(
        net.hosts[0]
            .seen
            .contains(&Seen::Answer(1, b"devomnu".to_vec()))
    );
}

/// A server forgets a client whose last session it closed, and sends a reset when the CLOSE is
/// repeated. If that reset is delayed, it does not concern a session that was opened meanwhile.
#[test]
fn a_reset_older_than_a_session_does_not_end_it() {
    for first_is_over in [false, true] {
        let mut net = Net::pair();
        let first = net.connect(0, 1);
        net.run_ms(1);
        net.fate = Box::new(|_, from, _| usize::from(from == 0));
        let now = net.now;
        let Host { protocol, wire, .. } = &mut net.hosts[0];
        protocol.close(now, first, wire);
        net.run_ms(100);
        let is_reset = |(from, bytes): &&(usize, Vec<u8>)| *from == 1 && bytes[8] == 15;
        let reset = net.log.iter().rfind(is_reset).expect("a reset").1.clone();
        let second = net.connect(0, 1);
        net.fate = Box::new(|_, _, _| 1);
        net.run_ms(if first_is_over { 500 } else { 1 });
        net.inject(1, 0, reset);
        net.run_ms(1);
        net.request(0, second, 1, b"unmoved");
        net.run_ms(1);
        let answer = Seen::Answer(1, b"devomnu".to_vec());
        assert!(net.hosts[0].seen.contains(&answer), "{first_is_over}");
    }
}

/// An endpoint is away a second time before it has handled the pong of the ping after the first
/// absence. The requests that wait for that pong go on.
#[test]
fn a_client_that_was_away_twice_resumes_its_requests() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    let from_server = |(from, _): &&(usize, Vec<u8>)| *from == 1;
    let mut pong = net.log.iter().rfind(from_server).expect("it spoke").1[..8].to_vec();
    let away_ns = 3_000_000_000;
    let now = net.now + away_ns;
    let client = &mut net.hosts[0];
    client.protocol.flush(now, &mut client.wire);
    pong.extend_from_slice(&[17, 0, 0, 0, 0, 0, 0, 0]);
    pong.extend_from_slice(&now.to_le_bytes());
    let now = now + away_ns;
    client.take(now, 1, false, &pong);
    client.protocol.flush(now, &mut client.wire);
    net.now = now;
    net.request(0, session, 1, b"back");
    net.run_ms(100);
    let answer = Seen::Answer(1, b"kcab".to_vec());
    assert!(net.hosts[0].seen.contains(&answer));
}

#[test]
fn another_version_is_refused_with_this_version() {
    let mut net = Net::pair();
    let mut connect = vec![0x5a, 9, 0, 0, 0, 0, 0, 0];
    connect.extend_from_slice(&[9, 0, 36, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    connect.extend_from_slice(&[0, 0, 7, 0]);
    connect.extend_from_slice(&[0; 32]);
    net.inject(0, 1, connect);
    let answers = Arc::new(AtomicUsize::new(0));
    let count = answers.clone();
    net.fate = Box::new(move |_, from, _| {
        count.fetch_add(from, Ordering::Relaxed);
        0
    });
    net.run_ms(1);
    assert_eq!(net.hosts[1].protocol.stats().datagrams_dropped, 1);
    assert_eq!(answers.load(Ordering::Relaxed), 1);
}

/// Requests that end with their session cannot have run if they were never sent whole: those that
/// wait behind the slots, and a large one that was sent in part.
#[test]
fn requests_never_sent_whole_are_reported_as_not_run() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.hosts[1].echo = false;
    for tag in 0..7 {
        net.request(0, session, tag, b"sent");
    }
    // More fragments than may be outstanding.
    net.request(0, session, 7, &vec![1; 1_000_000]);
    net.fate = Box::new(|_, _, _| 0);
    for tag in 8..12 {
        net.request(0, session, tag, b"queued");
    }
    net.run_ms(1);
    let now = net.now;
    let Host { protocol, wire, .. } = &mut net.hosts[0];
    protocol.handle_peer_gone(now, PeerId(1), true, wire);
    net.run_ms(1);
    assert_eq!(net.hosts[0].not_run, [7, 8, 9, 10, 11]);
    assert_eq!(net.hosts[0].protocol.outstanding(), 0);
    // No request can run on a session that never opened.
    let session = net.connect(0, 1);
    net.request(0, session, 12, b"never connected");
    net.run_ms(3_000);
    assert_eq!(net.hosts[0].not_run[5..], [12]);
}

/// A client that was stopped for so long that the server has dropped it pings before it sends.
#[test]
fn a_client_that_was_away_sends_nothing_to_a_server_that_may_have_dropped_it() {
    for stopped_ms in [1_000, 10_000] {
        let mut net = Net::pair();
        let session = net.connect(0, 1);
        net.run_ms(1);
        net.request(0, session, 1, b"before");
        net.run_ms(1);
        net.hosts[0].alive = false;
        net.run_ms(stopped_ms);
        net.hosts[0].alive = true;
        let now = net.now;
        let Host { protocol, wire, .. } = &mut net.hosts[0];
        assert!(protocol.is_overdue(now));
        protocol.handle_overdue(now, wire);
        net.request(0, session, 2, b"after");
        net.run_ms(10);
        let dropped = stopped_ms > 5_000;
        let host = &net.hosts[0];
        assert_eq!(
            host.seen.contains(&Seen::Answer(2, b"retfa".to_vec())),
            !dropped
        );
        let lost = Seen::Ended(session, SessionError::PeerDropped);
        assert_eq!(host.seen.contains(&lost), dropped);
        assert_eq!(host.not_run, if dropped { vec![2] } else { vec![] });
        assert_eq!(net.hosts[1].ran.len(), if dropped { 1 } else { 2 });
        assert!(!net.hosts[0].protocol.is_overdue(net.now));
    }
}

/// A client that was away has not heard of a long request for as long. That says nothing of its server.
#[test]
fn a_long_request_survives_an_absence_of_its_client() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.hosts[1].echo = false;
    net.request(0, session, 1, b"long");
    // It has been sent again often enough for a judgement.
    net.run_ms(1_000);
    net.hosts[0].alive = false;
    net.run_ms(4_000);
    net.hosts[0].alive = true;
    net.run_ms(1_000);
    let (request, now) = (net.hosts[1].ran[0].0, net.now);
    assert!(net.hosts[1].respond(now, request, b"at last"));
    net.run_ms(100);
    let answer = Seen::Answer(1, b"at last".to_vec());
    assert!(
        net.hosts[0].seen.contains(&answer),
        "{:?}",
        net.hosts[0].seen
    );
}

#[test]
fn a_server_that_is_shut_down_tells_its_clients() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.request(0, session, 1, b"before");
    net.run_ms(1);
    net.hosts[0].seen.clear();
    let Host { protocol, wire, .. } = &mut net.hosts[1];
    protocol.drain();
    assert!(protocol.announce_shutdown(wire));
    net.run_ms(1);
    assert_eq!(
        net.hosts[0].seen,
        [
            Seen::Ended(session, SessionError::PeerLeft),
            Seen::Released(PeerId(1)),
        ]
    );
    // The server may come back as another incarnation.
    net.restart(1, Config::default());
    let session = net.connect(0, 1);
    net.request(0, session, 2, b"again");
    net.run_ms(30);
    let answer = Seen::Answer(2, b"niaga".to_vec());
    assert!(net.hosts[0].seen.contains(&answer));
}

/// A large response is kept for ten seconds, and goes with its session: nothing wakes the server
/// for it afterwards.
#[test]
fn responses_kept_for_a_session_do_not_outlive_it() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.request(0, session, 1, &[5; 100_000]);
    net.run_ms(5);
    let is_answer = |seen: &Seen| matches!(seen, Seen::Answer(1, _));
    assert!(net.hosts[0].seen.iter().any(is_answer));
    let now = net.now;
    let Host { protocol, wire, .. } = &mut net.hosts[0];
    protocol.close(now, session, wire);
    net.run_ms(1_000);
    for host in &net.hosts {
        assert_eq!(host.protocol.poll_timeout(), None);
    }
}
