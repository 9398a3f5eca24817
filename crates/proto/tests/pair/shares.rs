//! What clients share is shared fairly: the client that holds most gives way to one that holds little.

use starling_proto::{Config, Refusal, SessionError, SessionId};

use crate::net::{Net, Seen};

const MS: u64 = 1_000_000;

/// Host 1 serves; host `n` opens as many sessions as it gets, `wanted` at most, one after the other.
fn open(net: &mut Net, from: usize, wanted: usize) -> Vec<SessionId> {
    let mut opened = Vec::new();
    for _ in 0..wanted {
        let session = net.connect(from, 1);
        net.run_ms(1);
        if !net.hosts[from].seen.contains(&Seen::Connected(session)) {
            break;
        }
        opened.push(session);
    }
    opened
}

fn server_with(max_sessions: usize) -> Config {
    Config {
        max_sessions,
        ..Config::default()
    }
}

fn evicted(net: &Net) -> u64 {
    net.hosts[1].protocol.stats().sessions_evicted
}

/// A client's first session has others joined to it, which would end with it.
#[test]
fn the_session_with_the_fewest_requests_gives_way_and_not_the_first_one() {
    for (of_each, expected) in [
        (vec![2, 2, 2], 2),
        (vec![2, 2, 2, 2], 3),
        (vec![2; 5], 4),
        (vec![2; 9], 8),
        (vec![2; 15], 14),
        (vec![1, 2, 2, 2], 3),
        (vec![0, 2, 2, 2], 3),
        (vec![2, 2, 1, 2], 2),
        (vec![2, 0, 0, 2], 1),
    ] {
        let count = of_each.len();
        let mut net = Net::new([Config::default(), server_with(count), Config::default()]);
        net.hosts[1].echo = false;
        let sessions = open(&mut net, 0, count);
        for (session, requests) in sessions.iter().zip(of_each.clone()) {
            for tag in 0..requests {
                net.request(0, *session, tag, b"stays");
            }
            net.run_ms(1);
        }
        assert_eq!(open(&mut net, 2, 1).len(), 1);
        // A client learns that a session has ended when it uses it.
        for (session, requests) in sessions.iter().zip(of_each.clone()) {
            if requests == 0 {
                net.request(0, *session, 9, b"again");
            }
        }
        net.run_ms(1000);
        let has_ended = |session: &SessionId| {
            let is_it = |seen: &Seen| matches!(seen, Seen::Ended(ended, _) if ended == session);
            net.hosts[0].seen.iter().any(is_it)
        };
        let ended: Vec<bool> = sessions.iter().map(has_ended).collect();
        let which = ended.iter().position(|ended| *ended);
        assert_eq!((which, evicted(&net)), (Some(expected), 1), "{ended:?}");
    }
}

/// A client may have all sessions while nobody else wants one.
#[test]
fn the_client_with_most_sessions_gives_way_to_others() {
    let mut net = Net::new([Config::default(), server_with(16), Config::default()]);
    let greedy = open(&mut net, 0, 16);
    assert_eq!((greedy.len(), evicted(&net)), (16, 0));
    // Others get what leaves the greedy client twice as much.
    let others = open(&mut net, 2, 16);
    assert_eq!((others.len(), evicted(&net)), (5, 5));
    let limit = SessionError::Refused(Refusal::SessionLimit { limit: 16 });
    let refused = |seen: &Seen| matches!(seen, Seen::Ended(_, why) if *why == limit);
    assert!(
        net.hosts[2].seen.iter().any(refused),
        "{:?}",
        net.hosts[2].seen
    );
    // The greedy client learns which of its sessions have ended when it uses them. None of those requests ran.
    for (tag, session) in greedy.iter().enumerate() {
        net.request(0, *session, tag as u128, b"again");
    }
    net.run_ms(100);
    let host = &net.hosts[0];
    let answers = host
        .seen
        .iter()
        .filter(|seen| matches!(seen, Seen::Answer(..)));
    let failures = host
        .seen
        .iter()
        .filter(|seen| matches!(seen, Seen::Failed(..)));
    assert_eq!((answers.count(), failures.count()), (11, 5));
    assert_eq!(net.hosts[1].ran.len(), 11);
}

/// The session that was used least recently goes, and none that a request runs on while others are idle.
#[test]
fn a_busy_session_stays_while_others_are_idle() {
    let mut net = Net::new([Config::default(), server_with(8), Config::default()]);
    net.hosts[1].echo = false;
    let greedy = open(&mut net, 0, 8);
    net.request(0, greedy[0], 1, b"it takes long");
    net.run_ms(1000);
    let first = net.hosts[1].ran[0].0;
    for (tag, session) in (2..).zip(&greedy[1..]) {
        net.request(0, *session, tag, b"it is used later");
        net.run_ms(1);
        let (now, id) = (net.now, net.hosts[1].ran.last().expect("it runs").0);
        assert!(net.hosts[1].respond(now, id, b"at once"));
    }
    assert_eq!(open(&mut net, 2, 2).len(), 2);
    let now = net.now;
    assert!(
        net.hosts[1].respond(now, first, b"at last"),
        "it is still wanted"
    );
    net.run_ms(10);
    assert!(
        net.hosts[0]
            .seen
            .contains(&Seen::Answer(1, b"at last".to_vec()))
    );
}

/// Each socket of a host is a peer. Its share is the host's all the same.
#[test]
fn many_peers_of_one_origin_have_one_share() {
    let clients = || (2..10).map(|_| Config::default());
    let configs = [Config::default(), server_with(8)].into_iter();
    let mut net = Net::new(configs.chain(clients()));
    // Hosts 2 to 9 are one origin; host 0 is another.
    net.hosts[1].wire.origins = vec![0, 1, 7, 7, 7, 7, 7, 7, 7, 7];
    for host in 2..10 {
        assert_eq!(open(&mut net, host, 1).len(), 1);
    }
    assert_eq!(open(&mut net, 0, 2).len(), 2);
    assert_eq!(evicted(&net), 2);
    // One more peer of the origin that has most takes nothing from the others.
    let mut net = Net::new([Config::default(), server_with(1), Config::default()]);
    net.hosts[1].wire.origins = vec![7, 1, 7];
    assert_eq!(open(&mut net, 0, 1).len(), 1);
    assert_eq!(open(&mut net, 2, 1).len(), 0);
}

/// Sessions with one credit each use up the credits before the places for sessions.
#[test]
fn credits_that_one_client_uses_up_with_sessions_come_back() {
    let server = Config {
        rx_queue_datagrams: 16,
        overcommit: 1,
        ..Config::default()
    };
    let narrow = Config {
        credits: 1,
        ..Config::default()
    };
    let mut net = Net::new([narrow, server, Config::default()]);
    assert_eq!(open(&mut net, 0, 20).len(), 16);
    assert_eq!(net.hosts[1].protocol.granted(), 16);
    assert_eq!(open(&mut net, 2, 1).len(), 1);
    assert_eq!(net.hosts[1].protocol.granted(), 16);
}

/// A client whose sessions are all busy keeps no more than twice the credits of one that asks for some.
#[test]
fn a_busy_client_gives_credits_to_a_poorer_one() {
    const REQUESTS: u128 = 4000;
    let client = || Config {
        credits: 8,
        ..Config::default()
    };
    let server = Config {
        rx_queue_datagrams: 32,
        overcommit: 1,
        ..Config::default()
    };
    let mut net = Net::new([client(), server, client()]);
    let rich = open(&mut net, 0, 4);
    let poor = open(&mut net, 2, 1)[0];
    // All sessions have more to send than their credits allow, all the time.
    for tag in 0..REQUESTS {
        for session in &rich {
            net.request(0, *session, tag, b"busy");
        }
        net.request(2, poor, tag, b"busy");
    }
    let credits = |net: &Net| net.hosts[2].protocol.accounting(poor).expect("open").1;
    let before = credits(&net);
    assert!(before <= 2, "{before}");
    net.run_until(net.now + 3 * MS);
    assert!(credits(&net) >= 4, "{}", credits(&net));
    for session in &rich {
        assert!(net.hosts[0].protocol.queued(*session) > 0, "it is busy");
    }
}

/// Two clients send large requests so slowly that each packet only keeps the promise of memory alive.
#[test]
fn a_trickle_of_fragments_gives_way() {
    const LIMIT: usize = 1 << 20;
    let server = Config {
        max_message: LIMIT as u32 / 2 - 16_384,
        reassembly_bytes: LIMIT,
        ..Config::default()
    };
    let slow = || Config {
        credits: 1,
        ..Config::default()
    };
    let mut net = Net::new([slow(), server, Config::default(), slow()]);
    let request = vec![3; LIMIT / 2 - 16_384];
    let sessions: Vec<_> = [0, 3].map(|from| open(&mut net, from, 1)[0]).into();
    net.delay = Box::new(|from, _| if from % 3 == 0 { 20 * MS } else { 0 });
    for (from, session) in [0, 3].into_iter().zip(sessions) {
        net.request(from, session, 1, &request);
    }
    net.run_ms(100);
    assert!(net.hosts[1].protocol.reassembling() >= 2 * request.len());
    let honest = open(&mut net, 2, 1)[0];
    net.run_ms(400);
    net.request(2, honest, 1, &request);
    net.run_ms(20);
    let answer = Seen::Answer(1, request.clone());
    assert!(
        net.hosts[2].seen.contains(&answer),
        "{:?}",
        net.hosts[2].seen.len()
    );
}

/// Clients that promise themselves all memory and send nothing take it from each other, and not from one that is slow
/// for a moment, and has little.
#[test]
fn a_slow_request_gives_way_to_none_of_those_that_hold_more() {
    const LIMIT: usize = 1 << 20;
    let patient = || Config {
        peer_timeout_ns: 9_000 * MS,
        ..Config::default()
    };
    let server = Config {
        max_message: LIMIT as u32 / 4,
        reassembly_bytes: LIMIT,
        ..patient()
    };
    let mut net = Net::new([patient(), server, patient(), patient()]);
    let (small, large) = (vec![3; LIMIT / 16], vec![5; LIMIT / 4]);
    let slow = open(&mut net, 0, 1)[0];
    let greedy = [2, 3].map(|from| open(&mut net, from, 6));
    let only_first = |net: &mut Net| {
        // Of the datagrams only the first one arrives, and none comes back.
        let mut sent = 0;
        net.fate = Box::new(move |_, from, _| {
            sent += usize::from(from != 1);
            usize::from(from != 1 && sent == 1)
        });
    };
    only_first(&mut net);
    net.request(0, slow, 1, &small);
    net.run_until(net.now + 50_000);
    for at in 0..6 {
        for (from, sessions) in [2, 3].into_iter().zip(&greedy) {
            only_first(&mut net);
            net.request(from, sessions[at], at as u128, &large);
            // All that were begun before are silent.
            net.run_ms(300);
        }
    }
    assert!(net.hosts[1].protocol.reassembling() > LIMIT / 2);
    net.fate = Box::new(|_, from, to| usize::from(from + to == 1));
    net.run_ms(1000);
    let answer = Seen::Answer(1, small);
    assert!(
        net.hosts[0].seen.contains(&answer),
        "{:?}",
        net.hosts[0].seen
    );
}
