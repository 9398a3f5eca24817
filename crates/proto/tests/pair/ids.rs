//! Endpoints use ids of sessions again, but not their own tokens.

use starling_proto::Config;

use crate::net::{Net, Seen};

/// A server uses the id of a session again while a packet of that session is on its way.
#[test]
fn a_request_of_a_session_of_long_ago_is_not_run_in_another() {
    let server = Config {
        max_sessions: 1,
        ..Config::default()
    };
    let mut net = Net::new([Config::default(), server]);
    let open = |net: &mut Net| {
        let session = net.connect(0, 1);
        net.run_until(net.now + 100_000);
        assert!(net.hosts[0].seen.contains(&Seen::Connected(session)));
        session
    };
    let close = |net: &mut Net, session| {
        let now = net.now;
        let host = &mut net.hosts[0];
        host.protocol.close(now, session, &mut host.wire);
        net.run_until(net.now + 100_000);
        net.hosts[0].seen.clear();
    };
    let session = open(&mut net);
    net.request(0, session, 1, b"old");
    net.run_until(net.now + 1);
    let (_, late) = net
        .log
        .iter()
        .rfind(|(from, _)| *from == 0)
        .unwrap()
        .clone();
    net.run_until(net.now + 100_000);
    assert_eq!(net.hosts[1].ran.len(), 1);
    close(&mut net, session);
    let start = net.now;
    for _ in 0..255 {
        let session = open(&mut net);
        close(&mut net, session);
    }
    let session = open(&mut net);
    let took = (net.now - start) / 1_000_000;
    net.inject(0, 1, late);
    net.run_until(net.now + 100_000);
    let ran = net.hosts[1].ran.len();
    net.request(0, session, 2, b"new");
    net.run_ms(10);
    assert!(
        ran == 1
            && net.hosts[0]
                .seen
                .contains(&Seen::Answer(2, b"wen".to_vec())),
        "after {took} ms: ran {ran}, {:?}",
        net.hosts[0].seen
    );
}

/// A client uses its id of a session again while the server still has the former session.
#[test]
fn a_session_does_not_inherit_state_of_a_former_session() {
    let client = Config {
        max_sessions: 1,
        ..Config::default()
    };
    let mut net = Net::new([client, Config::default()]);
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.request(0, session, 1, b"old");
    net.run_ms(1);
    // The network is down until the client stops repeating the close of the session.
    net.fate = Box::new(|_, _, _| 0);
    let now = net.now;
    let host = &mut net.hosts[0];
    host.protocol.close(now, session, &mut host.wire);
    net.run_ms(2_100);
    net.fate = Box::new(|_, _, _| 1);
    for _ in 0..255 {
        let now = net.now;
        let host = &mut net.hosts[0];
        let other = host.connect(now, 1);
        host.protocol.close(now, other, &mut host.wire);
    }
    net.run_until(net.now + 100_000);
    net.hosts[0].seen.clear();
    let again = net.connect(0, 1);
    assert_ne!(again, session, "255 other sessions came in between");
    net.run_ms(1);
    net.request(0, again, 2, b"new");
    net.run_ms(100);
    let answered = Seen::Answer(2, b"wen".to_vec());
    assert!(
        net.hosts[0].seen.contains(&answered),
        "{:?}",
        net.hosts[0].seen
    );
}

/// A server is restarted while its ACCEPT is on its way. When it arrives, the client has a session
/// with the new incarnation.
#[test]
fn an_accept_of_a_former_incarnation_ends_no_session_with_the_present_one() {
    let mut net = Net::pair();
    let first = net.connect(0, 1);
    // Connect, challenge, connect; the accept is late.
    net.fate = Box::new(|sent, _, _| usize::from(sent < 4));
    net.run_until(net.now + 30_000);
    let (from, late) = net.log[3].clone();
    assert_eq!((from, net.log.len()), (1, 4));
    net.restart(1, Config::default());
    net.fate = Box::new(|_, _, _| 1);
    let second = net.connect(0, 1);
    net.run_until(net.now + 100_000);
    assert!(net.hosts[0].seen.contains(&Seen::Connected(second)));
    assert!(!net.hosts[0].seen.contains(&Seen::Connected(first)));
    net.hosts[1].echo = false;
    net.request(0, second, 1, b"slow");
    net.run_until(net.now + 100_000);
    net.inject(1, 0, late);
    net.run_ms(1);
    let (now, id) = (net.now, net.hosts[1].ran[0].0);
    net.hosts[1].respond(now, id, b"done");
    net.run_ms(100);
    let seen = &net.hosts[0].seen;
    assert!(
        seen.contains(&Seen::Answer(1, b"done".to_vec())),
        "{seen:?}"
    );
    assert!(seen.contains(&Seen::Connected(first)), "{seen:?}");
}

/// A server is restarted without its client's knowledge: a new session with it ends the old ones.
#[test]
fn a_client_takes_an_accept_of_a_new_incarnation_once_it_knows_that_the_former_one_has_ended() {
    let mut net = Net::pair();
    let former = net.connect(0, 1);
    net.run_ms(1);
    net.restart(1, Config::default());
    let session = net.connect(0, 1);
    net.run_ms(50);
    let seen = &net.hosts[0].seen;
    assert!(seen.contains(&Seen::Connected(session)), "{seen:?}");
    let ended = |seen: &Seen| matches!(seen, Seen::Ended(id, _) if *id == former);
    assert!(seen.iter().any(ended), "{seen:?}");
    net.request(0, session, 1, b"new");
    net.run_ms(1);
    let seen = &net.hosts[0].seen;
    assert!(seen.contains(&Seen::Answer(1, b"wen".to_vec())), "{seen:?}");
}
