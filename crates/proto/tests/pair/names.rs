//! Names of sessions, which are used again.

use starling_proto::Config;

use crate::net::{Net, Seen};

/// The name of a session comes round while a packet is on its way.
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

/// A client's name for a session comes round while the server still has the one before.
#[test]
fn a_session_does_not_begin_with_what_is_left_of_another() {
    let client = Config {
        max_sessions: 1,
        ..Config::default()
    };
    let mut net = Net::new([client, Config::default()]);
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.request(0, session, 1, b"old");
    net.run_ms(1);
    // The network is away until the client gives up telling that it has closed the session.
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
    assert_ne!(again, session, "255 others had names in between");
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
