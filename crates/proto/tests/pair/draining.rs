//! A server that shuts down tells its clients, refuses what was on its way, and leaves when all have gone.

use starling_proto::{
    Config, Msgbuf, NotMadeReason, PeerId, Prefix, Protocol, Rejection, RequestError, SessionId,
    Source, Upcoming,
};

use crate::net::{Host, Net, Seen};

const CONTINUES: Prefix = Prefix {
    continues: true,
    ..Prefix::NONE
};

fn request(net: &mut Net, session: SessionId, prefix: Prefix) -> Result<u64, NotMadeReason> {
    let now = net.now;
    let Host { protocol, wire, .. } = &mut net.hosts[0];
    let message = Msgbuf::from_vec(b"new".to_vec());
    protocol
        .request(now, session, message, prefix, 77, wire)
        .map_err(|not_made| not_made.reason)
}

/// Has the server begin to shut down. It refuses what arrives from now on, unless it continues something: that
/// is what the second requests of these tests do.
fn drain(net: &mut Net) {
    net.hosts[1].protocol.drain();
}

/// Refuses all requests that the server has taken since the test began, but `kept` of them.
fn refuse(net: &mut Net, kept: usize) {
    let Host {
        protocol,
        wire,
        ran,
        ..
    } = &mut net.hosts[1];
    for (id, _) in ran.drain(kept..) {
        assert!(protocol.refuse(id, wire));
        assert!(!protocol.refuse(id, wire), "it is over");
    }
}

fn is_left(net: &Net) -> bool {
    net.hosts[1].protocol.is_left()
}

#[test]
fn no_request_takes_the_fast_path_of_a_server_that_shuts_down() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.log.clear();
    net.request(0, session, 1, b"small");
    net.run_ms(1);
    let (from, datagram) = net.log.first().cloned().expect("the request");
    assert_eq!(from, 0);
    let now = net.now;
    let Host { protocol, wire, .. } = &mut net.hosts[1];
    let mut upcoming = |protocol: &mut Protocol| {
        let source = Source::Peer(PeerId(0));
        let frames = protocol.handle_datagram(now, source, false, &datagram, wire);
        protocol.upcoming(&frames.expect("a datagram of the peer"))
    };
    assert_eq!(upcoming(protocol), Some(Upcoming::Requests(PeerId(0))));
    protocol.set_fast_path(false);
    assert_eq!(upcoming(protocol), Some(Upcoming::Other));
    protocol.set_fast_path(true);
    assert_eq!(upcoming(protocol), Some(Upcoming::Requests(PeerId(0))));
    protocol.drain();
    assert_eq!(upcoming(protocol), Some(Upcoming::Other));
    protocol.set_fast_path(true);
    assert_eq!(upcoming(protocol), Some(Upcoming::Other));
}

#[test]
fn clients_are_told_at_once_and_make_no_new_requests() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.request(0, session, 1, b"before");
    net.run_ms(1);
    assert!(!is_left(&net));
    drain(&mut net);
    net.run_ms(1);
    assert!(net.hosts[0].seen.contains(&Seen::Draining(session)));
    assert!(is_left(&net), "nothing is outstanding");
    assert_eq!(
        request(&mut net, session, Prefix::NONE),
        Err(NotMadeReason::Draining)
    );
    // What continues something goes on.
    let continued = request(&mut net, session, CONTINUES);
    assert!(continued.is_ok());
    net.run_ms(1);
    assert!(
        net.hosts[0]
            .seen
            .contains(&Seen::Answer(77, b"wen".to_vec()))
    );
    assert_eq!(
        request(&mut net, session, Prefix::NONE),
        Err(NotMadeReason::Draining)
    );
    let told = net.hosts[0].seen.iter();
    assert_eq!(
        told.filter(|seen| **seen == Seen::Draining(session))
            .count(),
        1
    );
}

/// The session's ACCEPT is lost, its server shuts down and is started again, and the next incarnation accepts the
/// same session. The word of the former one comes then.
#[test]
fn a_late_word_of_a_former_incarnation_is_not_the_present_ones() {
    let mut net = Net::pair();
    let mut answers = 0;
    net.fate = Box::new(move |_, from, _| {
        answers += usize::from(from == 1);
        usize::from(from == 0 || answers == 1)
    });
    let session = net.connect(0, 1);
    net.run_ms(1);
    assert_eq!(net.hosts[1].protocol.session_counts(), (0, 1));
    drain(&mut net);
    net.run_ms(1);
    const DRAIN: u8 = 20;
    let is_drain = |(from, datagram): &&(usize, Vec<u8>)| *from == 1 && datagram[8] == DRAIN;
    let late = net
        .log
        .iter()
        .rfind(is_drain)
        .expect("it is sent")
        .1
        .clone();

    net.restart(1, Config::default());
    net.fate = Box::new(|_, _, _| 1);
    net.run_ms(200);
    assert_eq!(net.hosts[0].seen, [Seen::Connected(session)]);
    net.inject(1, 0, late);
    net.run_ms(1);
    assert!(request(&mut net, session, Prefix::NONE).is_ok());
    net.run_ms(1);
    let answer = Seen::Answer(77, b"wen".to_vec());
    assert_eq!(net.hosts[0].seen, [Seen::Connected(session), answer]);
}

#[test]
fn the_fast_path_makes_no_new_requests_either() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    drain(&mut net);
    net.run_ms(1);
    for prefix in [Prefix::NONE, CONTINUES] {
        let now = net.now;
        let Host { protocol, wire, .. } = &mut net.hosts[0];
        let made = protocol.request_with(now, session, 1, wire, |out| {
            out.push(1);
            prefix
        });
        let expected = (!prefix.continues).then_some(NotMadeReason::Draining);
        assert_eq!(made.err(), expected);
        net.run_ms(1);
    }
}

#[test]
fn a_request_on_its_way_did_not_run_and_comes_back() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.hosts[1].echo = false;
    net.request(0, session, 1, b"small");
    net.request(0, session, 2, &[9; 5000]);
    // Both have arrived before the client hears of the shutdown, and the server has not looked at them yet.
    drain(&mut net);
    net.run_until(net.now + 20_000);
    refuse(&mut net, 0);
    net.run_ms(1);
    net.run_ms(1);
    refuse(&mut net, 0);
    net.run_ms(2);
    let draining = RequestError::Rejected(Rejection::Draining);
    for tag in [1, 2] {
        assert!(
            net.hosts[0].seen.contains(&Seen::Failed(tag, draining)),
            "{tag}"
        );
    }
    let mut not_run = net.hosts[0].not_run.clone();
    not_run.sort_unstable();
    assert_eq!(not_run, [1, 2]);
    // The client had something outstanding when it was told first, so it is asked again.
    net.run_ms(60);
    assert!(is_left(&net));
}

#[test]
fn a_client_that_missed_a_refusal_asks_again_and_is_refused_again() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.hosts[1].echo = false;
    net.request(0, session, 1, b"small");
    net.run_until(net.now + 20_000);
    drain(&mut net);
    // The refusal is lost, and all else that the server says for a while.
    let first = net.datagrams();
    net.fate = Box::new(move |n, from, _| usize::from(from != 1 || n > first + 3));
    refuse(&mut net, 0);
    net.run_ms(200);
    let draining = RequestError::Rejected(Rejection::Draining);
    assert!(net.hosts[0].seen.contains(&Seen::Failed(1, draining)));
    assert!(net.hosts[1].ran.is_empty(), "it came again and did not run");
    assert!(is_left(&net));
}

#[test]
fn a_request_that_runs_is_waited_for() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.hosts[1].echo = false;
    net.request(0, session, 1, b"slow");
    net.run_ms(1);
    drain(&mut net);
    net.run_ms(200);
    assert!(!is_left(&net), "its client waits for the answer");
    let (now, id) = (net.now, net.hosts[1].ran[0].0);
    assert!(net.hosts[1].respond(now, id, b"done"));
    net.run_ms(60);
    assert!(
        net.hosts[0]
            .seen
            .contains(&Seen::Answer(1, b"done".to_vec()))
    );
    assert!(is_left(&net));
}

#[test]
fn words_that_are_lost_are_said_again() {
    // Of the announcement and the answer, each is lost some times.
    for lost in [1, 2, 3, 5] {
        let mut net = Net::pair();
        let session = net.connect(0, 1);
        net.run_ms(1);
        drain(&mut net);
        let first = net.datagrams();
        net.fate = Box::new(move |n, _, _| usize::from(n > first + lost));
        net.run_ms(400);
        assert!(net.hosts[0].seen.contains(&Seen::Draining(session)));
        assert!(is_left(&net), "{lost} lost");
    }
}

#[test]
fn a_full_device_is_tried_again() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.hosts[1].wire.room = 0;
    drain(&mut net);
    net.run_ms(60);
    assert!(!net.hosts[0].seen.contains(&Seen::Draining(session)));
    net.hosts[1].wire.room = usize::MAX;
    net.run_ms(60);
    assert!(net.hosts[0].seen.contains(&Seen::Draining(session)));
    assert!(is_left(&net));
}

#[test]
fn every_session_with_the_server_hears_of_it() {
    let mut net = Net::new([Config::default(), Config::default(), Config::default()]);
    let sessions = [net.connect(0, 1), net.connect(0, 1)];
    let elsewhere = net.connect(0, 2);
    net.run_ms(1);
    drain(&mut net);
    net.run_ms(1);
    for session in sessions {
        assert!(net.hosts[0].seen.contains(&Seen::Draining(session)));
    }
    assert!(is_left(&net));
    assert!(request(&mut net, elsewhere, Prefix::NONE).is_ok());
}

#[test]
fn the_next_incarnation_takes_requests() {
    let mut net = Net::pair();
    net.connect(0, 1);
    net.run_ms(1);
    drain(&mut net);
    net.run_ms(1);
    let Host { protocol, wire, .. } = &mut net.hosts[1];
    assert!(protocol.announce_shutdown(wire));
    net.run_ms(1);
    net.restart(1, Config::default());
    let session = net.connect(0, 1);
    net.run_ms(30);
    assert!(request(&mut net, session, Prefix::NONE).is_ok());
    net.run_ms(1);
    assert!(
        net.hosts[0]
            .seen
            .contains(&Seen::Answer(77, b"wen".to_vec()))
    );
    // It was killed before it could leave: the next one is another one, too.
    drain(&mut net);
    net.run_ms(1);
    assert_eq!(
        request(&mut net, session, Prefix::NONE),
        Err(NotMadeReason::Draining)
    );
    net.restart(1, Config::default());
    net.run_ms(700);
    let session = net.connect(0, 1);
    net.run_ms(30);
    assert!(request(&mut net, session, Prefix::NONE).is_ok());
}

#[test]
fn a_server_without_clients_is_left() {
    let mut net = Net::pair();
    drain(&mut net);
    assert!(is_left(&net));
    let session = net.connect(0, 1);
    net.run_ms(10);
    assert!(is_left(&net), "new sessions are refused");
    let refused = |seen: &Seen| matches!(seen, Seen::Ended(ended, _) if *ended == session);
    assert!(net.hosts[0].seen.iter().any(refused));
}

#[test]
fn words_about_nothing_change_nothing() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    // To the client, in the name of its server, about a session that it does not have; to a server that does
    // not shut down, in the name of its client.
    let frame = |net: &Net, (from, to), kind: u8, session: u32| {
        let mut datagram = net.preamble(from, to);
        datagram.extend([kind, 0, 0, 0]);
        datagram.extend(session.to_le_bytes());
        datagram.extend([0; 8]);
        datagram
    };
    let client = net.hosts[1].protocol.incarnation(PeerId(0));
    for (from, to, kind, named) in [
        (1, 0, 20, 0x0100_0007),
        (0, 1, 21, 0),
        (0, 1, 21, 0x0100_0007),
    ] {
        let datagram = frame(&net, (from, to), kind, named);
        net.inject(from, to, datagram);
    }
    net.run_ms(1);
    assert!(!net.hosts[0].seen.contains(&Seen::Draining(session)));
    assert!(request(&mut net, session, Prefix::NONE).is_ok());
    for host in &net.hosts {
        assert!(host.protocol.stats().frames_stale >= 1);
    }
    assert!(!is_left(&net));
    assert_eq!(net.hosts[1].protocol.incarnation(PeerId(0)), client);
}
