//! A client that asks for the same again and again, with few bytes for many.

use starling_proto::Config;

use crate::net::{Net, Seen};

/// The kinds that clients ask with.
const REQUEST: u8 = 1;
const RFR: u8 = 6;

/// Frames of a kind in slot 0 of the server's first session, so many of them in one datagram.
fn frames(kind: u8, number: u64, payload: &[u8], count: usize) -> Vec<u8> {
    let mut frame = vec![kind, 0];
    frame.extend((payload.len() as u16).to_le_bytes());
    frame.extend(0u32.to_le_bytes());
    frame.extend(number.to_le_bytes());
    frame.extend(payload);
    frame.repeat(count)
}

/// That the client wants `count` fragments from `base` on.
fn wants(base: u32, count: u32) -> Vec<u8> {
    let want = u64::MAX >> (64 - count);
    [&base.to_le_bytes()[..], &[0; 4], &want.to_le_bytes()[..]].concat()
}

/// A server that has answered a request of so many bytes with as many, to a client that hears nothing more.
/// Returns the number of the request.
fn answered(net: &mut Net, bytes: usize) -> u64 {
    let session = net.connect(0, 1);
    net.run_ms(1);
    let number = net.request(0, session, 1, &vec![7; bytes]);
    net.run_ms(20);
    assert!(matches!(net.hosts[0].seen.last(), Some(Seen::Answer(1, _))));
    number
}

/// A datagram of the client's.
fn from_client(net: &Net, frames: &[u8]) -> Vec<u8> {
    [&net.preamble(0, 1)[..], frames].concat()
}

/// Bytes that the server sends in the turn in which these frames arrive, and the next one.
fn answer_to(net: &mut Net, frames: &[u8]) -> usize {
    net.log.clear();
    net.inject(0, 1, from_client(net, frames));
    net.run_until(net.now + 100_000);
    let answers = net.log.iter().filter(|(from, _)| *from == 1);
    answers.map(|(_, datagram)| datagram.len()).sum()
}

#[test]
fn a_request_that_is_repeated_often_in_a_turn_is_answered_once() {
    let mut net = Net::pair();
    let number = answered(&mut net, 1000);
    net.fate = Box::new(|_, from, _| usize::from(from == 0));
    let once = answer_to(&mut net, &frames(REQUEST, number, b"again", 1));
    assert!((1000..1100).contains(&once), "{once}");
    let often = answer_to(&mut net, &frames(REQUEST, number, b"again", 60));
    assert_eq!(often, once);
}

/// The response waits for its acknowledgement, which never comes.
fn unacknowledged(net: &mut Net, bytes: usize) -> u64 {
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.hosts[1].echo = false;
    let number = net.request(0, session, 1, b"much");
    net.run_ms(1);
    net.fate = Box::new(|_, from, _| usize::from(from == 0));
    let (now, id) = (net.now, net.hosts[1].ran[0].0);
    assert!(net.hosts[1].respond(now, id, &vec![7; bytes]));
    net.run_until(net.now + 100_000);
    number
}

#[test]
fn fragments_that_are_asked_for_often_in_a_turn_are_sent_once() {
    let mut net = Net::pair();
    let number = unacknowledged(&mut net, 50_000);
    let once = answer_to(&mut net, &frames(RFR, number, &wants(0, 20), 1));
    assert!((25_000..32_000).contains(&once), "{once}");
    let often = answer_to(&mut net, &frames(RFR, number, &wants(0, 20), 50));
    assert_eq!(often, once);
    // Two wishes, as those of two turns of the client.
    let both = [
        frames(RFR, number, &wants(0, 10), 1),
        frames(RFR, number, &wants(5, 15), 1),
    ];
    assert_eq!(answer_to(&mut net, &both.concat()), once);
}

#[test]
fn what_clients_ask_for_again_is_sent_in_slices_and_by_turns() {
    const BYTES: usize = 60_000;
    let mut net = Net::new([(); 3].map(|()| Config::default()));
    for host in &mut net.hosts {
        host.wire.mtu = 64 << 10;
    }
    net.hosts[1].echo = false;
    // The first client has sixteen responses, the second one has one.
    let mut asked = Vec::new();
    for (client, count) in [(0, 8), (0, 8), (2, 1)] {
        let session = net.connect(client, 1);
        net.run_ms(1);
        net.log.clear();
        for tag in 0..count {
            net.request(client, session, tag, b"much");
        }
        net.run_until(net.now + 100_000);
        let mut datagrams = net.log.drain(..).filter(|(from, _)| *from == client);
        asked.push((client, datagrams.next().expect("the requests").1));
    }
    net.fate = Box::new(|_, from, _| usize::from(from != 1));
    let ran: Vec<_> = net.hosts[1].ran.iter().map(|ran| ran.0).collect();
    assert_eq!(ran.len(), 17);
    let now = net.now;
    for id in &ran {
        assert!(net.hosts[1].respond(now, *id, &[7; BYTES]));
    }
    net.run_until(now + 100_000);
    let (now, server) = (net.now, &mut net.hosts[1]);
    server.wire.room = 1_000;
    for (client, datagram) in &asked {
        (0..3).for_each(|_| server.take(now, *client, false, datagram));
    }
    assert_eq!(server.wire.room, 1_000, "nothing is sent at once");
    let mut flush = || {
        let before = server.wire.room;
        server.protocol.flush(now, &mut server.wire);
        (before - server.wire.room, server.protocol.has_rest())
    };
    // 512 KiB are nine of them. The second client's comes next, before the rest of the first one's.
    assert_eq!(flush(), (9, true));
    assert_eq!(flush(), (8, false));
    assert_eq!(flush(), (0, false));
}

#[test]
fn fragments_that_are_too_many_for_a_flush_leave_with_the_next_ones() {
    let mut net = Net::pair();
    for host in &mut net.hosts {
        host.wire.mtu = 64 << 10;
    }
    let number = unacknowledged(&mut net, 2 << 20);
    let asked = from_client(&net, &frames(RFR, number, &wants(1, 20), 1));
    let (now, server) = (net.now, &mut net.hosts[1]);
    server.wire.room = 1_000;
    server.take(now, 0, false, &asked);
    let mut flush = || {
        let before = server.wire.room;
        server.protocol.flush(now, &mut server.wire);
        (before - server.wire.room, server.protocol.has_rest())
    };
    // 512 KiB are nine fragments.
    assert_eq!([flush(), flush()], [(9, true), (9, true)]);
    assert_eq!([flush(), flush()], [(2, false), (0, false)]);
}

#[test]
fn what_a_full_device_has_no_room_for_is_no_rest() {
    let mut net = Net::pair();
    let number = unacknowledged(&mut net, 50_000);
    let asked = from_client(&net, &frames(RFR, number, &wants(1, 20), 1));
    let (now, server) = (net.now, &mut net.hosts[1]);
    server.wire.room = 5;
    server.take(now, 0, false, &asked);
    server.protocol.flush(now, &mut server.wire);
    assert!(server.protocol.has_unsent() && !server.protocol.has_rest());
}
