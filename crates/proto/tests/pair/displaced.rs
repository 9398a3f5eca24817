//! A client uses a slot again while the server runs the last request in it: the CANCEL was lost, or the
//! client is hostile. The layer above learns that nobody waits for that request any more.

use starling_proto::{Config, RequestId, SessionId};

use crate::net::{Net, Seen};

/// Where the number of a datagram's first frame is.
const NUMBER_AT: usize = 16;

/// A client with a session of one slot, and a server whose handlers never answer.
fn pair() -> (Net, SessionId) {
    let client = Config {
        slots: 1,
        ..Config::default()
    };
    let mut net = Net::new([client, Config::default()]);
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.hosts[1].echo = false;
    (net, session)
}

/// The server gets a frame of the client once more, with a number that is `more` above that of `last`.
fn displace(net: &mut Net, frame: &[u8], last: RequestId, more: u64) {
    let mut datagram = frame.to_vec();
    datagram[NUMBER_AT..][..8].copy_from_slice(&(last.number() + more).to_le_bytes());
    net.inject(0, 1, datagram);
    net.run_ms(1);
}

/// The last datagram of the client.
fn last_of_client(net: &Net) -> Vec<u8> {
    let sent = net.log.iter().rfind(|(from, _)| *from == 0);
    sent.expect("it sent something").1.clone()
}

fn abandoned(net: &Net) -> Vec<RequestId> {
    let id = |seen: &Seen| match seen {
        Seen::Abandoned(id) => Some(*id),
        _ => None,
    };
    net.hosts[1].seen.iter().filter_map(id).collect()
}

/// Makes a request that the server runs. Returns it and its datagram.
fn run_one(net: &mut Net, session: SessionId) -> (RequestId, Vec<u8>) {
    net.request(0, session, 1, b"question");
    net.run_until(net.now + 1);
    let datagram = last_of_client(net);
    net.run_until(net.now + 100_000);
    (net.hosts[1].ran.last().expect("it runs").0, datagram)
}

#[test]
fn a_later_request_in_its_slot_abandons_a_request_that_runs() {
    let (mut net, session) = pair();
    let (_, datagram) = run_one(&mut net, session);
    for _ in 0..3 {
        let last = net.hosts[1].ran.last().expect("it runs").0;
        displace(&mut net, &datagram, last, 1);
    }
    let ran: Vec<_> = net.hosts[1].ran.iter().map(|(id, _)| *id).collect();
    assert_eq!(abandoned(&net), ran[..3], "each once, but for the last");
    assert_eq!(net.hosts[1].protocol.stats().requests_displaced, 3);
    let (now, server) = (net.now, &mut net.hosts[1]);
    assert_eq!(server.protocol.executing(), 1);
    assert!(!server.respond(now, ran[0], b"too late"));
    // Nor is one that was answered, or an older one, which displaces nothing.
    assert!(server.respond(now, ran[3], b"answer"));
    displace(&mut net, &datagram, ran[3], 1);
    displace(&mut net, &datagram, ran[3], 0);
    assert_eq!(abandoned(&net), ran[..3]);
}

#[test]
fn a_fragment_of_a_later_request_in_its_slot_abandons_a_request_that_runs() {
    let (mut net, session) = pair();
    let body = vec![7; 20_000];
    net.request(0, session, 0, &body);
    net.run_ms(1);
    let (now, large) = (net.now, net.hosts[1].ran[0].0);
    assert!(net.hosts[1].respond(now, large, b"answer"));
    let is_fragment = |(from, bytes): &&(usize, Vec<u8>)| *from == 0 && bytes.len() > 1000;
    let fragment = net.log.iter().find(is_fragment).expect("one").1.clone();
    net.run_ms(1);
    let (small, _) = run_one(&mut net, session);
    assert_eq!(abandoned(&net), []);
    displace(&mut net, &fragment, small, 1);
    displace(&mut net, &fragment, small, 2);
    assert_eq!(abandoned(&net), [small], "once");
    assert_eq!(net.hosts[1].protocol.executing(), 0);
}

#[test]
fn a_cancel_of_a_later_request_in_its_slot_abandons_a_request_that_runs() {
    let (mut net, session) = pair();
    let (id, _) = run_one(&mut net, session);
    net.fate = Box::new(|_, from, _| from);
    let (now, client) = (net.now, &mut net.hosts[0]);
    (client.protocol)
        .cancel(now, session, id.number(), &mut client.wire)
        .expect("it is not over");
    net.run_until(net.now + 1);
    let cancel = last_of_client(&net);
    net.run_ms(1);
    assert_eq!(abandoned(&net), []);
    displace(&mut net, &cancel, id, 5);
    displace(&mut net, &cancel, id, 6);
    assert_eq!(abandoned(&net), [id], "once");
    assert_eq!(net.hosts[1].protocol.executing(), 0);
    let stats = net.hosts[1].protocol.stats();
    assert_eq!((stats.requests_displaced, stats.cancels_early), (1, 2));
}

/// The client cancels a request. Returns the datagram that says so.
fn cancel(net: &mut Net, session: SessionId, id: RequestId) -> Vec<u8> {
    let (now, client) = (net.now, &mut net.hosts[0]);
    (client.protocol)
        .cancel(now, session, id.number(), &mut client.wire)
        .expect("it is not over");
    net.run_until(net.now + 1);
    let datagram = last_of_client(net);
    net.run_ms(1);
    datagram
}

#[test]
fn a_late_cancel_ends_no_later_request_and_a_late_request_does_not_run() {
    let (mut net, session) = pair();
    let (first, request) = run_one(&mut net, session);
    let late_cancel = cancel(&mut net, session, first);
    let (second, _) = run_one(&mut net, session);
    displace(&mut net, &late_cancel, first, 0);
    assert_eq!(net.hosts[1].protocol.executing(), 1);
    let now = net.now;
    assert!(net.hosts[1].respond(now, second, b"answer"));
    // This cancellation overtakes its request.
    displace(&mut net, &late_cancel, second, 1);
    let ran = net.hosts[1].ran.len();
    displace(&mut net, &request, second, 1);
    assert_eq!(net.hosts[1].ran.len(), ran);
}

#[test]
fn a_cancel_frees_the_response_that_was_kept() {
    let (mut net, session) = pair();
    let (id, _) = run_one(&mut net, session);
    net.fate = Box::new(|_, from, _| 1 - from);
    let now = net.now;
    assert!(net.hosts[1].respond(now, id, &[7; 5000]));
    assert!(net.hosts[1].protocol.retained() >= 5000);
    cancel(&mut net, session, id);
    assert_eq!(net.hosts[1].protocol.retained(), 0);
}
