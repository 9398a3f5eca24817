//! Session groups: slow requests do not hold up others.

use starling_proto::{Config, Refusal, SessionError, SessionId, SlotRoom};

use crate::net::{Net, Seen};

const MS: u64 = 1_000_000;
/// The type of a CONNECT.
const CONNECT: u8 = 9;

/// A server whose requests are answered when the test says so.
fn slow_server(server: Config) -> (Net, SessionId) {
    let client = Config {
        slots: 8,
        ..Config::default()
    };
    let mut net = Net::new([client, server]);
    net.hosts[1].echo = false;
    let session = net.connect(0, 1);
    net.run_ms(1);
    (net, session)
}

fn answer_all(net: &mut Net) {
    let now = net.now;
    for (id, body) in std::mem::take(&mut net.hosts[1].ran) {
        if net.hosts[1].protocol.is_wanted(id) {
            assert!(net.hosts[1].respond(now, id, &body));
        }
    }
}

fn answers(net: &Net) -> usize {
    let seen = net.hosts[0].seen.iter();
    seen.filter(|seen| matches!(seen, Seen::Answer(..))).count()
}

fn group_of(net: &Net, session: SessionId) -> usize {
    net.hosts[0].protocol.group(session).count()
}

#[test]
fn slow_requests_run_all_at_once_and_the_group_shrinks_again() {
    let (mut net, session) = slow_server(Config::default());
    for tag in 0..1000 {
        net.request(0, session, tag, b"slow");
    }
    net.run_ms(30);
    assert_eq!(net.hosts[1].ran.len(), 1000);
    net.run_ms(70);
    // One more than they fill: others are not to wait for it.
    assert_eq!(group_of(&net, session), 126);
    assert_eq!(net.hosts[1].protocol.session_counts(), (0, 126));
    let mut numbers: Vec<_> = net.hosts[1].ran.iter().map(|(id, _)| id.number()).collect();
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq(1..=1000), "each number once");
    answer_all(&mut net);
    net.run_ms(1);
    assert_eq!(answers(&net), 1000);
    let answered_on: Vec<_> = net.hosts[0].answered_on.iter().collect();
    assert_eq!(answered_on, [&session], "the caller knows no other");
    // Members without requests are closed, and nobody hears of it.
    net.run_ms(3000);
    assert_eq!(group_of(&net, session), 1);
    assert_eq!(net.hosts[0].protocol.session_counts(), (1, 0));
    assert_eq!(net.hosts[1].protocol.session_counts(), (0, 1));
    assert_eq!(net.hosts[0].seen.len(), 1 + 1000);
}

/// Handlers take 4 ms each, and so many requests are made that there are always 100. Returns how many run at once.
fn run_at_once(net: &mut Net, session: SessionId) -> usize {
    const TAKES_NS: u64 = 4 * MS;
    let mut running: Vec<(u64, starling_proto::RequestId)> = Vec::new();
    let (mut made, mut most) = (0, 0);
    for round in 0..4000 {
        // One at a time at first: the timeout learns how long a handler takes.
        let wanted = if round < 2000 { 1 } else { 100 };
        while made - answers(net) < wanted {
            net.request(0, session, made as u128, b"slow");
            made += 1;
        }
        net.run_until(net.now + MS / 10);
        let (now, server) = (net.now, &mut net.hosts[1]);
        running.extend(server.ran.drain(..).map(|(id, _)| (now, id)));
        let done = running.extract_if(.., |(began, _)| now - *began >= TAKES_NS);
        for (_, id) in done.collect::<Vec<_>>() {
            assert!(server.respond(now, id, b"answer"));
        }
        most = most.max(running.len());
    }
    most
}

#[test]
fn requests_that_all_take_equally_long_run_all_at_once() {
    let (mut net, session) = slow_server(Config::default());
    assert_eq!(run_at_once(&mut net, session), 100);
    // Repeats are few: one of a session, once, while others wait.
    let repeats = net.hosts[0].protocol.stats().retransmissions;
    assert!(repeats < 100, "{repeats}");
}

#[test]
fn requests_that_come_one_by_one_and_stay_wait_for_few_handshakes() {
    let (mut net, session) = slow_server(Config::default());
    let mut stalls = 0;
    for tag in 0..2000 {
        net.request(0, session, tag, b"stays");
        net.run_until(net.now + MS / 10);
        stalls += usize::from(net.hosts[1].ran.len() <= tag as usize);
        while net.hosts[1].ran.len() <= tag as usize {
            net.run_until(net.now + MS / 10);
        }
    }
    // There are 250 sessions.
    assert!(stalls <= 40, "{stalls}");
}

#[test]
fn a_quick_request_waits_for_no_slow_one() {
    let (mut net, session) = slow_server(Config::default());
    for tag in 0..60 {
        net.request(0, session, tag, b"slow");
    }
    net.run_ms(20);
    net.hosts[1].echo = true;
    let begun = net.now;
    for tag in 100..120 {
        net.request(0, session, tag, b"quick");
        net.run_ms(2);
        assert_eq!(answers(&net), tag as usize - 99);
    }
    assert_eq!(net.now - begun, 40 * MS);
}

#[test]
fn requests_that_end_quickly_need_no_further_sessions() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    for tag in 0..4000 {
        net.request(0, session, tag, b"quick");
    }
    net.run_ms(50);
    assert_eq!(answers(&net), 4000);
    assert_eq!(net.hosts[0].protocol.stats().sessions_added, 0);
}

#[test]
fn requests_that_wait_for_the_servers_thread_need_no_further_sessions() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    for tag in 0..100 {
        net.request(0, session, tag, b"waits");
    }
    // Nothing of it is read meanwhile.
    net.delay = Box::new(|from, _| if from == 0 { 40 * MS } else { 0 });
    net.run_ms(300);
    net.delay = Box::new(|_, _| 0);
    net.run_ms(1000);
    assert_eq!(answers(&net), 100);
    assert_eq!(net.hosts[0].protocol.stats().sessions_added, 0);
}

#[test]
fn a_group_stays_within_its_own_limit_and_its_servers() {
    let eight = Config {
        slots: 8,
        ..Config::default()
    };
    let small = Config {
        group_sessions: 3,
        ..eight.clone()
    };
    let strict = Config {
        max_sessions_per_client: 3,
        ..Config::default()
    };
    for [client, server] in [[small, Config::default()], [eight, strict]] {
        let mut net = Net::new([client, server]);
        net.hosts[1].echo = false;
        let session = net.connect(0, 1);
        net.run_ms(1);
        for tag in 0..100 {
            net.request(0, session, tag, b"slow");
        }
        net.run_ms(100);
        assert_eq!(net.hosts[1].protocol.session_counts(), (0, 3));
        assert_eq!(net.hosts[1].ran.len(), 24);
        assert_eq!(group_of(&net, session), 3);
        // The others run as slots become free.
        for _ in 0..5 {
            answer_all(&mut net);
            net.run_ms(1);
        }
        assert_eq!(answers(&net), 100);
    }
}

#[test]
fn a_group_has_a_free_slot_for_whoever_has_to_go_on() {
    let (mut net, session) = slow_server(Config::default());
    for tag in 0..8 {
        net.request(0, session, tag, b"held");
    }
    net.run_ms(100);
    assert_eq!(group_of(&net, session), 2);
    // It stays, while few slots are free without it.
    net.run_ms(5000);
    assert_eq!(group_of(&net, session), 2);
    assert_eq!(net.hosts[0].protocol.stats().sessions_added, 1);
    net.request(0, session, 9, b"another");
    net.run_ms(1);
    assert_eq!(net.hosts[1].ran.len(), 9);
    answer_all(&mut net);
    net.run_ms(5000);
    assert_eq!(group_of(&net, session), 1);
}

#[test]
fn a_client_hears_of_its_servers_limit() {
    let strict = Config {
        max_sessions_per_client: 1,
        ..Config::default()
    };
    let mut net = Net::new([Config::default(), strict]);
    let first = net.connect(0, 1);
    net.run_ms(10);
    let second = net.connect(0, 1);
    net.run_ms(10);
    let refused = SessionError::Refused(Refusal::ClientLimit { limit: 1 });
    let seen = &net.hosts[0].seen;
    assert_eq!(
        *seen,
        [Seen::Connected(first), Seen::Ended(second, refused)]
    );
    assert!(refused.to_string().contains("max_sessions_per_client"));
    net.request(0, first, 1, b"x");
    net.run_ms(10);
    assert_eq!(answers(&net), 1);
}

#[test]
fn requests_are_cancelled_wherever_they_are() {
    let (mut net, session) = slow_server(Config::default());
    let numbers: Vec<_> = (0..40)
        .map(|tag| net.request(0, session, tag, b"slow"))
        .collect();
    net.run_ms(20);
    assert_eq!(net.hosts[1].ran.len(), 40);
    let now = net.now;
    let client = &mut net.hosts[0];
    for (tag, number) in numbers.into_iter().enumerate() {
        let cancelled = client
            .protocol
            .cancel(now, session, number, &mut client.wire);
        assert_eq!(cancelled.map(|it| it.tag), Some(tag as u128));
    }
    assert_eq!(client.protocol.outstanding(), 0);
    net.run_ms(1);
    let server = &net.hosts[1];
    let wanted = |(id, _): &&(_, _)| server.protocol.is_wanted(*id);
    assert_eq!(server.ran.iter().filter(wanted).count(), 0);
}

#[test]
fn a_session_that_ends_takes_its_members_with_it() {
    for close in [true, false] {
        let (mut net, session) = slow_server(Config::default());
        for tag in 0..40 {
            net.request(0, session, tag, b"slow");
        }
        net.run_ms(20);
        assert_eq!(group_of(&net, session), 6);
        if close {
            let now = net.now;
            let client = &mut net.hosts[0];
            client.protocol.close(now, session, &mut client.wire);
        } else {
            net.hosts[1].alive = false;
        }
        net.run_ms(10_000);
        assert_eq!(net.hosts[0].protocol.session_counts(), (0, 0));
        let seen = &net.hosts[0].seen;
        let failed = seen.iter().filter(|it| matches!(it, Seen::Failed(..)));
        assert_eq!(failed.count(), 40);
        // One end, after the last failure.
        let ends: Vec<_> = (0..seen.len())
            .filter(|at| matches!(seen[*at], Seen::Ended(..)))
            .collect();
        assert_eq!(ends, [1 + 40]);
        if close {
            assert_eq!(net.hosts[1].protocol.session_counts(), (0, 0));
        }
    }
}

#[test]
fn a_restarted_server_gets_no_member_of_a_former_session() {
    let (mut net, session) = slow_server(Config::default());
    for tag in 0..40 {
        net.request(0, session, tag, b"slow");
    }
    net.run_ms(3);
    net.restart(1, Config::default());
    net.run_ms(10_000);
    let seen = &net.hosts[0].seen;
    let ended = seen.iter().filter(|it| matches!(it, Seen::Ended(..)));
    assert_eq!(ended.count(), 1);
    assert_eq!(net.hosts[0].protocol.outstanding(), 0);
    assert_eq!(net.hosts[0].protocol.session_counts(), (0, 0));
    assert_eq!(net.hosts[1].ran.len(), 0, "nothing runs at the new server");
}

fn reserve(net: &mut Net, session: SessionId, slots: usize) -> SlotRoom {
    let (now, client) = (net.now, &mut net.hosts[0]);
    (client.protocol).reserve_slots(now, session, slots, &mut client.wire)
}

fn slots_of(net: &Net, session: SessionId) -> usize {
    net.hosts[0].protocol.group_slots(session)
}

#[test]
fn slots_are_reserved_until_the_server_gives_no_more() {
    let (mut net, session) = slow_server(Config {
        max_sessions_per_client: 3,
        ..Config::default()
    });
    assert_eq!(reserve(&mut net, session, 8), SlotRoom::Enough);
    assert_eq!(reserve(&mut net, session, 20), SlotRoom::Growing);
    assert_eq!(reserve(&mut net, session, 20), SlotRoom::Growing);
    net.run_ms(1);
    assert_eq!(reserve(&mut net, session, 20), SlotRoom::Enough);
    assert_eq!(slots_of(&net, session), 24);
    assert_eq!(reserve(&mut net, session, 25), SlotRoom::Growing);
    net.run_ms(10);
    assert_eq!(reserve(&mut net, session, 25), SlotRoom::None);
    assert_eq!(reserve(&mut net, session, 24), SlotRoom::Enough);
    // Others may have left meanwhile.
    net.run_ms(1000);
    assert_eq!(reserve(&mut net, session, 25), SlotRoom::Growing);
    net.run_ms(10);
    assert_eq!(reserve(&mut net, session, 25), SlotRoom::None);
}

#[test]
fn slots_whose_sessions_had_no_answer_are_reserved_again() {
    let (mut net, session) = slow_server(Config::default());
    // As long as any test: they are lost.
    let is_connect = |datagram: &[u8]| datagram[8] & 0x1f == CONNECT;
    net.delay = Box::new(move |_, datagram| if is_connect(datagram) { 1 << 50 } else { 0 });
    assert_eq!(reserve(&mut net, session, 20), SlotRoom::Growing);
    for _ in 0..40 {
        net.run_ms(100);
        assert_eq!(reserve(&mut net, session, 20), SlotRoom::Growing);
    }
    assert_eq!((slots_of(&net, session), group_of(&net, session)), (8, 3));
    net.delay = Box::new(|_, _| 0);
    for _ in 0..40 {
        net.run_ms(100);
        assert_ne!(reserve(&mut net, session, 20), SlotRoom::None);
    }
    assert_eq!(reserve(&mut net, session, 20), SlotRoom::Enough);
}

#[test]
fn a_server_that_shuts_down_and_a_session_that_has_ended_have_no_slots_to_reserve() {
    let (mut net, session) = slow_server(Config::default());
    net.request(0, session, 1, b"held");
    net.run_ms(10);
    net.hosts[1].protocol.drain();
    let server = &mut net.hosts[1];
    server.protocol.announce_drain(&mut server.wire);
    net.run_ms(10);
    assert_eq!(reserve(&mut net, session, 20), SlotRoom::None);
    assert_eq!(reserve(&mut net, session, 8), SlotRoom::Enough);
    let (now, client) = (net.now, &mut net.hosts[0]);
    client.protocol.close(now, session, &mut client.wire);
    net.run_ms(10);
    assert_eq!(reserve(&mut net, session, 8), SlotRoom::None);
    assert_eq!(slots_of(&net, session), 0);
}
