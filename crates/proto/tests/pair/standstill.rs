//! Requests of streams hold all slots of a group, which gets no more: some streams end, and the others go on.

use std::collections::VecDeque;

use starling_proto::{Config, Msgbuf, Prefix, RequestError, SessionId, StreamPart, Tag};

use crate::net::{Host, Net, Seen};

const CONNECT: u8 = 9;

/// What a request's body begins with.
const OF_STREAM: u8 = b's';
const OF_CALL: u8 = b'c';
const GIVES_UP: u8 = b'g';

fn part_of(request: &[u8]) -> Option<StreamPart> {
    match request[0] {
        OF_STREAM => Some(StreamPart::GoesOn),
        GIVES_UP => Some(StreamPart::GivenUp),
        _ => None,
    }
}

fn request(net: &mut Net, session: SessionId, tag: Tag, kind: u8, continues: bool) -> u64 {
    let prefix = Prefix {
        ext: true,
        continues,
        ..Prefix::NONE
    };
    let (now, message) = (net.now, Msgbuf::from_vec(vec![kind; 20]));
    let Host { protocol, wire, .. } = &mut net.hosts[0];
    let made = protocol.request(now, session, message, prefix, tag, wire);
    made.expect("there is room in the queue")
}

/// A group of two sessions with eight slots each, which gets no more. Requests `0..16` hold them.
fn full(kind: impl Fn(Tag) -> u8) -> (Net, SessionId) {
    full_of(kind, 2)
}

fn full_of(kind: impl Fn(Tag) -> u8, max_sessions_per_client: usize) -> (Net, SessionId) {
    let client = Config {
        slots: 8,
        ..Config::default()
    };
    let server = Config {
        max_sessions_per_client,
        ..Config::default()
    };
    let mut net = Net::new([client, server]);
    net.hosts[1].echo = false;
    let session = net.connect(0, 1);
    net.run_ms(1);
    for tag in 0..16 {
        request(&mut net, session, tag, kind(tag), false);
    }
    net.run_ms(100);
    assert_eq!(net.hosts[1].ran.len(), 16);
    net.hosts[0].seen.clear();
    (net, session)
}

fn standstills(net: &Net) -> usize {
    let seen = net.hosts[0].seen.iter();
    seen.filter(|it| matches!(it, Seen::Standstill(_))).count()
}

/// Waits until the group has stood still for long, and ends some streams. Returns the requests that have failed.
fn end_streams(net: &mut Net, session: SessionId) -> Vec<Tag> {
    for _ in 0..30 {
        net.run_ms(100);
        if standstills(net) > 0 {
            break;
        }
    }
    assert_eq!(net.hosts[0].seen, [Seen::Standstill(session)]);
    net.hosts[0].seen.clear();
    let now = net.now;
    let Host { protocol, wire, .. } = &mut net.hosts[0];
    protocol.end_streams(now, session, part_of, wire);
    net.run_ms(1);
    let seen = std::mem::take(&mut net.hosts[0].seen);
    let failed = seen.into_iter().map(|it| match it {
        Seen::Failed(tag, RequestError::NoSlot) => tag,
        other => panic!("{other:?}"),
    });
    failed.collect()
}

#[test]
fn streams_that_have_not_begun_end_first_and_the_youngest_last() {
    let (mut net, session) = full(|_| OF_STREAM);
    for tag in 100..103 {
        request(&mut net, session, tag, OF_STREAM, true);
    }
    request(&mut net, session, 200, OF_CALL, false);
    for tag in 300..303 {
        request(&mut net, session, tag, OF_STREAM, false);
    }
    assert_eq!(end_streams(&mut net, session), [300, 301, 302, 102]);
    // Those that waited had no slots, so it was of no use: twice as many, and some that hold slots.
    assert_eq!(net.hosts[0].not_run, [300, 301, 302, 102]);
    assert_eq!(end_streams(&mut net, session), [101, 100, 15, 14]);
    assert_eq!(net.hosts[0].not_run.len(), 6, "the others may have run");
    // The server has stopped what held a slot, and runs the call.
    let ran = &net.hosts[1].ran;
    assert_eq!(ran.last().map(|it| it.1[0]), Some(OF_CALL));
    assert!(!net.hosts[1].protocol.is_wanted(ran[15].0));
    // Nothing waits any more.
    net.run_ms(5000);
    assert_eq!(net.hosts[0].seen, []);
}

/// Has others come meanwhile. Returns how many of the first requests have ended after so long.
fn end_beside(net: &mut Net, session: SessionId, mut others: impl FnMut(&mut Net, u64)) -> usize {
    let mut ended = 0;
    for at in 0..40 {
        others(net, at);
        net.run_ms(100);
        let seen = std::mem::take(&mut net.hosts[0].seen);
        ended += (seen.iter())
            .filter(|seen| matches!(seen, Seen::Failed(tag, RequestError::NoSlot) if *tag < 1000))
            .count();
        if seen.contains(&Seen::Standstill(session)) {
            let now = net.now;
            let Host { protocol, wire, .. } = &mut net.hosts[0];
            protocol.end_streams(now, session, part_of, wire);
        }
    }
    ended
}

#[test]
fn streams_that_begin_in_vain_end_no_others_later() {
    let (mut net, session) = full(|_| OF_STREAM);
    for tag in 300..304 {
        request(&mut net, session, tag, OF_STREAM, false);
        assert_eq!(end_streams(&mut net, session), [tag]);
    }
    request(&mut net, session, 100, OF_STREAM, true);
    assert_eq!(end_streams(&mut net, session), [100]);
}

#[test]
fn streams_that_begin_all_the_time_hide_no_standstill() {
    let (mut net, session) = full(|_| OF_STREAM);
    request(&mut net, session, 100, OF_CALL, false);
    let ended = end_beside(&mut net, session, |net, at| {
        request(net, session, 1000 + Tag::from(at), OF_STREAM, false);
    });
    assert!(ended >= 1, "{ended}");
    let ran = net.hosts[1].ran.iter();
    assert_eq!(ran.filter(|it| it.1[0] == OF_CALL).count(), 1);
}

#[test]
fn calls_that_are_given_up_hide_no_standstill() {
    let (mut net, session) = full(|_| OF_STREAM);
    let mut waiting = VecDeque::new();
    let ended = end_beside(&mut net, session, |net, at| {
        let number = request(net, session, 1000 + Tag::from(at), OF_CALL, false);
        waiting.push_back(number);
        if waiting.len() > 5 {
            let (now, number) = (net.now, waiting.pop_front().expect("just seen"));
            let Host { protocol, wire, .. } = &mut net.hosts[0];
            let _ = protocol.cancel(now, session, number, wire);
        }
    });
    assert!(ended >= 1, "{ended}");
}

#[test]
fn a_stream_that_is_given_up_has_no_other_end() {
    let (mut net, session) = full(|_| OF_STREAM);
    request(&mut net, session, 100, GIVES_UP, true);
    for _ in 0..3 {
        assert_eq!(end_streams(&mut net, session), []);
    }
}

#[test]
fn streams_whose_responses_arrive_do_not_end() {
    let (mut net, session) = full(|_| OF_STREAM);
    net.run_ms(3000);
    request(&mut net, session, 100, OF_CALL, false);
    net.delay = Box::new(|from, datagram| match from == 1 && datagram.len() > 1000 {
        true => 20_000_000,
        false => 0,
    });
    let response = vec![7; 4 << 20];
    for held in 0..16 {
        let (now, id) = (net.now, net.hosts[1].ran[held].0);
        assert!(net.hosts[1].respond(now, id, &response));
    }
    net.run_ms(20_000);
    assert_eq!(standstills(&net), 0);
    let answers = |seen: &&Seen| matches!(seen, Seen::Answer(..));
    assert_eq!(net.hosts[0].seen.iter().filter(answers).count(), 16);
}

#[test]
fn a_server_that_stands_still_itself_ends_no_streams() {
    let client = Config {
        slots: 8,
        group_sessions: 2,
        ..Config::default()
    };
    let mut net = Net::new([client, Config::default()]);
    net.hosts[1].echo = false;
    let session = net.connect(0, 1);
    for tag in 0..16 {
        request(&mut net, session, tag, OF_STREAM, false);
    }
    net.run_ms(3000);
    request(&mut net, session, 100, OF_STREAM, true);
    // Its thread is away.
    net.delay = Box::new(|_, _| 1_500_000_000);
    net.run_ms(1450);
    assert_eq!(standstills(&net), 0);
}

#[test]
fn no_stream_ends_while_a_call_holds_a_slot() {
    let (mut net, session) = full(|tag| if tag == 7 { OF_CALL } else { OF_STREAM });
    request(&mut net, session, 100, OF_STREAM, true);
    for _ in 0..3 {
        assert_eq!(end_streams(&mut net, session), []);
    }
    let (now, id) = (net.now, net.hosts[1].ran[7].0);
    assert!(net.hosts[1].respond(now, id, b"answer"));
    net.run_ms(1);
    assert_eq!(net.hosts[1].ran.len(), 17);
}

#[test]
fn a_queue_that_moves_does_not_stand_still() {
    let (mut net, session) = full(|_| OF_STREAM);
    for tag in 100..110 {
        request(&mut net, session, tag, OF_STREAM, true);
    }
    for held in 0..9 {
        net.run_ms(800);
        let (now, id) = (net.now, net.hosts[1].ran[held].0);
        assert!(net.hosts[1].respond(now, id, b"answer"));
    }
    assert_eq!(standstills(&net), 0);
    assert_eq!(end_streams_after_answers(&mut net, session), [109]);
}

fn end_streams_after_answers(net: &mut Net, session: SessionId) -> Vec<Tag> {
    net.run_ms(1);
    net.hosts[0].seen.clear();
    end_streams(net, session)
}

#[test]
fn a_group_that_may_still_grow_does_not_stand_still() {
    let (mut net, session) = full_of(|_| OF_STREAM, 100);
    // As many as there are slots now.
    for tag in 16..24 {
        request(&mut net, session, tag, OF_STREAM, false);
    }
    let is_connect = |datagram: &[u8]| datagram[8] & 0x1f == CONNECT;
    net.delay = Box::new(move |_, datagram| if is_connect(datagram) { 1 << 50 } else { 0 });
    net.run_ms(100);
    for tag in 100..110 {
        request(&mut net, session, tag, OF_STREAM, true);
    }
    net.run_ms(10_000);
    assert_eq!(standstills(&net), 0, "connects get no answer");
    net.delay = Box::new(|_, _| 0);
    net.run_ms(5000);
    assert_eq!((standstills(&net), net.hosts[1].ran.len()), (0, 34));
}

#[test]
fn a_server_that_is_gone_is_no_standstill() {
    let (mut net, session) = full(|_| OF_STREAM);
    request(&mut net, session, 100, OF_STREAM, true);
    net.hosts[1].alive = false;
    net.run_ms(10_000);
    assert_eq!(standstills(&net), 0);
    let failed = |seen: &&Seen| matches!(seen, Seen::Failed(_, RequestError::Session(_)));
    assert_eq!(net.hosts[0].seen.iter().filter(failed).count(), 17);
}

#[test]
fn streams_of_a_session_that_has_no_others_end_too() {
    let client = Config {
        slots: 8,
        group_sessions: 1,
        ..Config::default()
    };
    let mut net = Net::new([client, Config::default()]);
    net.hosts[1].echo = false;
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.hosts[0].seen.clear();
    for tag in 0..9 {
        request(&mut net, session, tag, OF_STREAM, tag == 8);
    }
    assert_eq!(end_streams(&mut net, session), [8]);
}
