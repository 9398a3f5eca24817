//! No datagram of a hostile peer harms other peers or the endpoint.

use starling_proto::{Config, Rejection, SessionError, SessionId};

use crate::net::{Net, Seen};

/// A session of host `from` with the server, which is host 1.
fn open(net: &mut Net, from: usize) -> SessionId {
    let session = net.connect(from, 1);
    net.run_ms(1);
    assert!(net.hosts[from].seen.contains(&Seen::Connected(session)));
    session
}

/// Closes all sessions of the server.
fn close_all(net: &mut Net, from: usize, sessions: &[SessionId]) {
    let now = net.now;
    let host = &mut net.hosts[from];
    for session in sessions {
        host.protocol.close(now, *session, &mut host.wire);
    }
    net.run_ms(1);
    net.hosts[from].seen.clear();
    assert_eq!(net.hosts[1].protocol.session_counts().1, 0, "closed");
}

/// While a handler works on a request, its client can open and close so many sessions that the server
/// uses the id of the first one again.
#[test]
fn the_answer_to_a_session_of_long_ago_reaches_no_other_session() {
    let server = Config {
        max_sessions: 1,
        ..Config::default()
    };
    let narrow = Config {
        slots: 1,
        ..Config::default()
    };
    let mut net = Net::new([Config::default(), server, narrow]);
    net.hosts[1].echo = false;
    let session = open(&mut net, 0);
    for tag in 0..8 {
        net.request(0, session, tag, b"slow");
    }
    net.run_ms(1);
    close_all(&mut net, 0, &[session]);
    let (first, last) = (net.hosts[1].ran[0].0, net.hosts[1].ran[7].0);
    // There are ids for 65,536 sessions. One is in use.
    for _ in 0..65_535 {
        let session = open(&mut net, 0);
        close_all(&mut net, 0, &[session]);
    }
    let session = open(&mut net, 2);
    net.request(2, session, 9, b"another client's");
    net.run_ms(1);
    let other = net.hosts[1].ran[8].0;
    assert_eq!(first.session(), other.session(), "the name comes round");
    assert_eq!(first.number(), other.number());

    let now = net.now;
    assert!(!net.hosts[1].respond(now, first, b"not for you"));
    // The session that has the id now has fewer slots.
    assert!(!net.hosts[1].respond(now, last, b"not for you"));
    assert!(!net.hosts[1].protocol.is_wanted(last));
    assert!(net.hosts[1].respond(now, other, b"for you"));
    net.run_ms(1);
    assert!(
        net.hosts[2]
            .seen
            .contains(&Seen::Answer(9, b"for you".to_vec()))
    );
}

/// A server makes a cookie for an address. A device gives the number of a former peer to another peer.
/// The former peer's cookie must not admit the new one, whose address the former one could forge.
#[test]
fn a_cookie_of_the_former_peer_with_a_number_does_not_prove_the_next() {
    let mut net = Net::pair();
    let first = open(&mut net, 0);
    // The sender is now a peer, no longer an unknown peer.
    let logged = net.log.len();
    let second = open(&mut net, 0);
    let (_, with_cookie) = net.log[logged + 2].clone();
    close_all(&mut net, 0, &[first, second]);

    net.restart(0, Config::default());
    let session = open(&mut net, 0);
    net.inject(0, 1, with_cookie);
    net.run_ms(1);
    net.request(0, session, 3, b"still there");
    net.run_ms(5);
    let answered = Seen::Answer(3, b"ereht llits".to_vec());
    assert!(net.hosts[0].seen.contains(&answered));
    assert_eq!(net.hosts[1].protocol.session_counts().1, 1);
}

/// A client that never returns credits does not keep others out.
#[test]
fn credits_that_a_client_does_not_return_are_revoked() {
    let server = Config {
        rx_queue_datagrams: 2,
        overcommit: 1,
        ..Config::default()
    };
    let mut net = Net::new([Config::default(), server, Config::default()]);
    open(&mut net, 0);
    assert_eq!(net.hosts[1].protocol.session_counts().1, 1);
    // The server's credit frames never arrive.
    net.fate = Box::new(|_, from, to| usize::from((from, to) != (1, 0)));
    let session = net.connect(2, 1);
    net.run_ms(1500);
    assert_eq!(net.hosts[2].seen, [Seen::Connected(session)]);
}

/// A reset is one small frame, and handling it searches all sessions: a burst of forged resets must
/// not cost more than a few such searches.
#[test]
fn the_cost_of_forged_resets_has_a_bound() {
    const SESSIONS: usize = 2000;
    let mut net = Net::pair();
    let sessions: Vec<_> = (0..SESSIONS).map(|_| net.connect(0, 1)).collect();
    net.run_ms(500);
    net.hosts[0].seen.clear();
    for datagram in 0..1000u64 {
        let mut forged = vec![0x5a, 3, 0, 0, 0, 0, 0, 0];
        for guess in 0..10 {
            forged.extend([15, 0, 0, 0, 0, 0, 0, 0]);
            forged.extend((1 << 32 | (0x7777_0000 + 10 * datagram + guess)).to_le_bytes());
        }
        net.inject(1, 0, forged);
    }
    net.run_ms(1);
    let looks = net.hosts[0].protocol.stats().resets_searched;
    assert!((1..=10).contains(&looks), "{looks}");
    // A true reset has its effect soon after.
    net.restart(1, Config::default());
    net.request(0, sessions[0], 1, b"to another incarnation");
    net.run_ms(100);
    let ended = net.hosts[0].seen.iter();
    let ended = ended.filter(|seen| matches!(seen, Seen::Ended(_, SessionError::PeerRestarted)));
    assert_eq!(ended.count(), SESSIONS);
}

/// Clients request large responses and fetch none: the memory that the server keeps for them has a
/// bound, and clients that do fetch get their responses.
#[test]
fn the_memory_of_responses_that_no_client_fetches_has_a_bound() {
    const LIMIT: usize = 1 << 20;
    let server = Config {
        max_message: LIMIT as u32 / 2,
        retained_bytes: LIMIT,
        ..Config::default()
    };
    let mut net = Net::new([Config::default(), server, Config::default()]);
    net.hosts[1].echo = false;
    let answer = vec![7; 300_000];
    let greedy: Vec<_> = (0..10).map(|_| open(&mut net, 0)).collect();
    // The client receives no part of its responses, so it fetches no more of them.
    net.fate = Box::new(|_, from, to| usize::from((from, to) != (1, 0)));
    for (tag, session) in greedy.iter().enumerate() {
        net.request(0, *session, tag as u128, b"much");
    }
    net.run_until(net.now + 100_000);
    let now = net.now;
    let kept = (0..10)
        .map(|index| net.hosts[1].ran[index].0)
        .collect::<Vec<_>>()
        .into_iter()
        .filter(|id| net.hosts[1].respond(now, *id, &answer));
    assert_eq!(kept.count(), 3, "three times 300 kB are kept, and no more");
    assert!(net.hosts[1].protocol.retained() <= LIMIT);

    // A while later the server counts them as not fetched.
    net.hosts[0].alive = false;
    net.run_ms(300);
    let session = open(&mut net, 2);
    net.request(2, session, 77, b"much, and wanted");
    net.run_ms(1);
    let (id, now) = (net.hosts[1].ran[10].0, net.now);
    assert!(net.hosts[1].respond(now, id, &answer));
    net.run_ms(50);
    let got = Seen::Answer(77, answer);
    assert!(net.hosts[2].seen.contains(&got));
    net.run_ms(11_000);
    assert_eq!(net.hosts[1].protocol.retained(), 0);
}

/// One packet reserves the memory for a large request. A client that reserves all memory, and sends
/// no more, does not keep others from sending their requests.
#[test]
fn memory_that_is_reserved_and_not_used_goes_to_other_requests() {
    const LIMIT: usize = 1 << 20;
    let server = Config {
        max_message: LIMIT as u32 / 4,
        reassembly_bytes: LIMIT,
        ..Config::default()
    };
    let mut net = Net::new([Config::default(), server, Config::default()]);
    let greedy: Vec<_> = (0..4).map(|_| open(&mut net, 0)).collect();
    let request = vec![5; LIMIT / 4];
    for (tag, session) in greedy.iter().enumerate() {
        // Of its datagrams only the first one arrives, and none comes back.
        let mut sent = 0;
        net.fate = Box::new(move |_, from, _| {
            sent += usize::from(from == 0);
            usize::from(from == 0 && sent == 1)
        });
        net.request(0, *session, tag as u128, &request);
        net.run_until(net.now + 50_000);
    }
    net.fate = Box::new(|_, from, to| usize::from(from != 0 && to != 0));
    assert!(net.hosts[1].protocol.reassembling() > LIMIT / 2);

    let session = open(&mut net, 2);
    for tag in 1..=4 {
        net.request(2, session, tag, &request);
    }
    net.run_ms(5);
    // One of the greedy client's gives way at once. For the second, the other client would have more than
    // half of what the greedy one still has.
    let seen = &net.hosts[2].seen;
    assert!(
        seen.contains(&Seen::Answer(1, request.clone())),
        "it is fair"
    );
    assert!(
        seen.contains(&Seen::Failed(2, Rejection::NoMemory.into())),
        "too early"
    );
    net.run_ms(300);
    net.hosts[2].seen.clear();
    for tag in 5..=8u8 {
        net.request(2, session, tag.into(), &request);
    }
    net.run_ms(50);
    for tag in 5..=8u8 {
        let answer = Seen::Answer(u128::from(tag), request.clone());
        assert!(net.hosts[2].seen.contains(&answer), "{tag}");
    }
    // The greedy client gets rejects: its requests were not run.
    net.fate = Box::new(|_, _, _| 1);
    net.run_ms(100);
    let told = Seen::Failed(0, Rejection::NoMemory.into());
    assert!(net.hosts[0].seen.contains(&told));
    assert_eq!(net.hosts[1].protocol.reassembling(), 0);
}

/// The token and the session of a connect are the same in all versions, and they suffice. The client reads the
/// answer, for it is under the client's token.
#[test]
fn a_short_connect_of_another_version_is_refused() {
    let mut net = Net::pair();
    let mut connect = vec![0x5a, 9, 0, 0, 0, 0, 0, 0];
    connect.extend([9, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    connect.extend([1, 2, 3, 4, 5, 6, 7, 8, 7, 8, 9, 10]);
    net.inject(0, 1, connect.clone());
    connect.truncate(32);
    connect[10] = 8;
    net.inject(0, 1, connect.clone());
    net.run_ms(1);
    let mut refuse = vec![1, 2, 3, 4, 5, 6, 7, 8];
    refuse.extend([12, 0, 8, 0, 7, 8, 9, 10, 0, 0, 0, 0, 0, 0, 0, 0]);
    refuse.extend([3, 0, 0, 0, 3, 0, 0, 0]);
    net.log.retain(|(from, _)| *from == 1);
    assert_eq!(net.log, [(1, refuse)], "to the whole one only");
}

/// Most bytes could be a token. A host that another program sends to by mistake is told nothing.
#[test]
fn bytes_of_another_protocol_are_not_answered() {
    let mut net = Net::new([Config::default(), Config::default(), Config::default()]);
    open(&mut net, 0);
    let mut answers_to = |datagram: &[u8]| {
        net.log.clear();
        net.inject(2, 1, datagram.to_vec());
        net.run_until(net.now + 100_000);
        let answers = net.log.iter().filter(|(from, _)| *from == 1);
        answers.map(|(_, bytes)| bytes[8]).collect::<Vec<_>>()
    };
    let http = b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n";
    assert_eq!(answers_to(http), []);
    let ping = [&[1, 2, 3, 4, 5, 6, 7, 8], &control(16, 0, 1, &[])[..]].concat();
    assert_eq!(
        answers_to(&ping),
        [15],
        "it is told that it has to connect again"
    );
    assert_eq!(net.hosts[1].protocol.stats().datagrams_dropped, 2);
}

/// A frame of session management, with the session and the request number in its header.
fn control(kind: u8, session: u32, number: u64, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind, 0];
    frame.extend((payload.len() as u16).to_le_bytes());
    frame.extend(session.to_le_bytes());
    frame.extend(number.to_le_bytes());
    frame.extend(payload);
    frame
}

/// A CONNECT without a cookie.
fn connect(token: u64, session: u32) -> Vec<u8> {
    let mut payload = token.to_le_bytes().to_vec();
    for word in [session, 1400, 1 << 20, 8 | 32 << 16, 0, 0, 0, 0] {
        payload.extend(word.to_le_bytes());
    }
    control(9, 0, 0, &payload)
}

/// An attacker that forges the sender of a datagram does not have a server send more to that address than the
/// attacker sent.
#[test]
fn no_datagram_is_answered_by_more_than_itself() {
    let mut net = Net::new([Config::default(), Config::default(), Config::default()]);
    let session = open(&mut net, 0);
    type Make = fn(u64) -> Vec<u8>;
    let (none, own) = (vec![0x5a, 3, 0, 0, 0, 0, 0, 0], net.preamble(0, 1));
    let bundles: [(&[u8], usize, Make); 7] = [
        // From an unknown peer, and from one that is known.
        (&none, 2, |number| connect(77 << 16, number as u32)),
        (&none, 0, |number| connect(77 << 16, number as u32)),
        // Of as many incarnations as there are frames.
        (&none, 2, |number| connect(number << 16, 1)),
        (&none, 0, |number| connect(number << 16, 1)),
        // PING, CLOSE, and a request in a session that does not exist.
        (&own, 0, |number| control(16, 0, number, &[])),
        (&own, 0, |number| control(13, 77, number, &[])),
        (&own, 0, |number| control(1, 77, number, &[])),
    ];
    for (preamble, from, frame) in bundles {
        let mut datagram = preamble.to_vec();
        for number in (1..).take_while(|number| 8 + *number as usize * frame(1).len() <= 1480) {
            datagram.extend(frame(number));
        }
        net.run_ms(1);
        net.log.clear();
        let bytes = datagram.len();
        net.inject(from, 1, datagram);
        net.run_until(net.now + 100_000);
        let mut answers = net.log.iter().filter(|(from, _)| *from == 1);
        let answer = answers.next().expect("it is answered").1.len();
        assert!(answer >= 40 && answer <= bytes, "{answer} of {bytes}");
        assert_eq!(answers.count(), 0, "more than one answer to {bytes} bytes");
    }
    net.run_ms(10);
    net.request(0, session, 1, b"all is well");
    net.run_ms(10);
    assert!(matches!(net.hosts[0].seen.last(), Some(Seen::Answer(1, _))));
}

/// A peer knows a token of its own only: it can neither send in another client's name nor end another's sessions in
/// the server's.
#[test]
fn a_peer_cannot_send_in_anothers_name() {
    let mut net = Net::new([Config::default(), Config::default(), Config::default()]);
    let honest = open(&mut net, 0);
    let (to_server, to_client) = (net.preamble(0, 1), net.preamble(1, 0));
    net.connect(2, 1);
    net.run_ms(1);
    // The attacker's own: of the server for it, and of itself for the server.
    let (known, own) = (net.preamble(2, 1), net.preamble(1, 2));
    assert_ne!(known, to_server);
    assert_ne!(own, to_client);
    // Requests that would use up the numbers of the honest client's slots, and the end of its session.
    for slot in 0..8 {
        let mut request = control(1, 0, u64::MAX, b"forged");
        request[1] = slot;
        net.inject(0, 1, [&known[..], &request].concat());
    }
    net.inject(0, 1, [&known[..], &control(13, 0, 0, &[])].concat());
    // The server's death, as it would say it: without a token, naming the token that its client uses.
    let token = u64::from_le_bytes(known[..].try_into().expect("8 bytes"));
    for reason in [1, 3] {
        let none = [0x5a, 3, 0, 0, 0, 0, 0, 0];
        let mut reset = control(15, 0, token, &[]);
        reset[1] = reason;
        net.inject(1, 0, [&none[..], &reset].concat());
    }
    net.run_ms(1);
    for tag in 1..=16 {
        net.request(0, honest, tag, b"mine");
    }
    net.run_ms(20);
    for tag in 1..=16 {
        let answer = Seen::Answer(tag, b"enim".to_vec());
        assert!(
            net.hosts[0].seen.contains(&answer),
            "{tag}: {:?}",
            net.hosts[0].seen
        );
    }
}

/// A peer whose last session has ended earlier in the burst is still a peer to the device. No preamble is right for it.
#[test]
fn a_preamble_of_zeros_is_nobodys() {
    let mut net = Net::pair();
    open(&mut net, 0);
    let close = [&net.preamble(0, 1)[..], &control(13, 0, 0, &[])].concat();
    net.inject(0, 1, close);
    net.inject(0, 1, [&[0; 8][..], &control(16, 0, 5, &[])].concat());
    let dropped = net.hosts[1].protocol.stats().datagrams_dropped;
    net.run_until(net.now + 100_000);
    assert_eq!(net.hosts[1].protocol.session_counts(), (0, 0));
    assert_eq!(net.hosts[1].protocol.stats().datagrams_dropped, dropped + 1);
}

/// A flood of datagrams from forged addresses is not passed on.
#[test]
fn answers_to_unknown_peers_have_a_bound() {
    let mut net = Net::new((0..12).map(|_| Config::default()));
    for round in 0..2000 {
        for host in 2..12 {
            let datagram = [&[0x5a, 3, 0, 0, 0, 0, 0, 0], &connect(77 << 16, round)[..]].concat();
            net.inject(host, 1, datagram);
        }
        net.run_until(net.now + 10_000);
    }
    let sent = net.log.iter().filter(|(from, _)| *from == 1).count();
    // 4096 at once, and 50,000 a second.
    assert!((5000..=5200).contains(&sent), "{sent}");
    let stats = net.hosts[1].protocol.stats();
    assert_eq!(stats.answers_suppressed, 20_000 - sent as u64);
    // A client that asks again is answered a little later.
    let session = net.connect(0, 1);
    net.run_ms(200);
    assert!(net.hosts[0].seen.contains(&Seen::Connected(session)));
}

/// A slot is for one outstanding request. A datagram of a thousand requests for it runs one handler, not a
/// thousand in one turn.
#[test]
fn a_slot_takes_one_request_in_a_turn() {
    let mut net = Net::pair();
    let session = open(&mut net, 0);
    net.request(0, session, 1, b"an honest one");
    net.run_until(net.now + 1);
    let honest = net
        .log
        .iter()
        .rfind(|(from, _)| *from == 0)
        .expect("it is sent")
        .1
        .clone();
    net.run_ms(1);
    let mut flood = honest[..8].to_vec();
    for number in 2..1000u64 {
        let mut frame = honest[8..].to_vec();
        frame[8..16].copy_from_slice(&number.to_le_bytes());
        flood.extend(frame);
    }
    net.inject(0, 1, flood);
    net.run_ms(1);
    assert_eq!(net.hosts[1].ran.len(), 2);
    assert_eq!(net.hosts[1].protocol.stats().slots_overrun, 997);
}

/// A client with many sessions that takes nothing off the network: the responses to all of them wait.
#[test]
fn the_sessions_of_a_peer_without_room_are_tried_once_a_turn() {
    let mut net = Net::pair();
    let sessions: Vec<_> = (0..200).map(|_| open(&mut net, 0)).collect();
    net.hosts[0].seen.clear();
    net.hosts[1].wire.room = 0;
    for (tag, session) in sessions.iter().enumerate() {
        net.request(0, *session, tag as u128, b"?");
    }
    net.run_ms(1);
    let host = &mut net.hosts[1];
    assert_eq!(host.ran.len(), 200);
    assert_eq!(host.protocol.queue_lengths().server_blocked, 200);
    let before = host.protocol.stats().sink_full;
    host.protocol.flush(net.now, &mut host.wire);
    assert_eq!(host.protocol.stats().sink_full - before, 1);
    host.wire.room = usize::MAX;
    net.run_ms(1);
    assert_eq!(net.hosts[0].seen.len(), 200, "each has its answer");
    assert_eq!(net.hosts[1].protocol.queue_lengths().server_blocked, 0);
}
