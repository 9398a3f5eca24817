//! What a person sees of sessions.

use starling_proto::{Config, PeerId};

use crate::net::Net;

#[test]
fn reports_agree_with_what_is_outstanding() {
    let config = Config {
        slots: 8,
        ..Config::default()
    };
    let mut net = Net::new([config.clone(), config]);
    net.hosts[1].echo = false;
    let session = net.connect(0, 1);
    let before = net.hosts[0].protocol.client_sessions(0, 10);
    assert_eq!(
        (before.sessions[0].state, before.sessions[0].slots),
        ("connecting", 0)
    );
    net.run_ms(1);
    for tag in 0..12 {
        net.request(0, session, tag, b"slow");
    }
    let (client, server) = (&net.hosts[0].protocol, &net.hosts[1].protocol);
    let page = client.client_sessions(0, 10);
    assert_eq!((page.sessions.len(), page.next), (1, None));
    let report = &page.sessions[0];
    assert_eq!(
        (report.id, report.peer, report.state),
        (session, PeerId(1), "open")
    );
    assert_eq!((report.slots, report.busy_slots, report.queued), (8, 8, 4));
    assert_eq!(
        client.accounting(session).map(|it| it.0),
        Some(report.credits_in_use)
    );
    assert_eq!(
        (report.window, report.rate_bps),
        (None, None),
        "nothing is congested"
    );
    assert_eq!(
        server.server_sessions(net.now, 0, 10).sessions[0].executing,
        0
    );
    net.run_ms(1);
    let page = net.hosts[1].protocol.server_sessions(net.now, 0, 10);
    let report = &page.sessions[0];
    assert_eq!(
        (report.executing, report.receiving, report.slots),
        (8, 0, 8)
    );
    assert!(
        report.credits > 0 && report.idle_ns <= 1_000_000,
        "{report:?}"
    );
    assert!(
        net.hosts[0].protocol.client_sessions(0, 10).sessions[0].rtt_ns == 0,
        "no answer yet"
    );
}

#[test]
fn pages_have_each_session_once() {
    let mut net = Net::new([Config::default(), Config::default()]);
    let sessions: Vec<_> = (0..25).map(|_| net.connect(0, 1)).collect();
    net.run_ms(5);
    let (mut seen, mut from) = (Vec::new(), 0);
    loop {
        let page = net.hosts[0].protocol.client_sessions(from, 10);
        assert!(page.sessions.len() <= 10);
        seen.extend(page.sessions.iter().map(|report| report.id));
        match page.next {
            Some(next) => from = next,
            None => break,
        }
    }
    assert_eq!(seen, sessions);
    let server = net.hosts[1].protocol.server_sessions(net.now, 20, 10);
    assert_eq!((server.sessions.len(), server.next), (5, None));
    assert_eq!(
        net.hosts[1]
            .protocol
            .server_sessions(net.now, usize::MAX, 10)
            .next,
        None
    );
}
