//! The memory of the responses that a server keeps: one budget for all of them, large and small, and who
//! loses which when it is used up.

use starling_proto::{Config, Rejection, RequestError, RequestId, SessionId, Tag};

use crate::net::{Net, Seen};

/// What the server may keep, in bytes.
const BUDGET: usize = 1 << 20;

/// Hosts 0 and 2 are clients of host 1, whose requests the test answers.
fn clients() -> Net {
    let server = Config {
        max_message: BUDGET as u32 / 2,
        retained_bytes: BUDGET,
        ..Config::default()
    };
    let mut net = Net::new([Config::default(), server, Config::default()]);
    net.hosts[1].echo = false;
    net
}

fn open(net: &mut Net, from: usize, count: usize) -> Vec<SessionId> {
    let sessions: Vec<_> = (0..count).map(|_| net.connect(from, 1)).collect();
    net.run_ms(1);
    sessions
}

/// Makes a request, which arrives.
fn ask(net: &mut Net, from: usize, session: SessionId, tag: Tag) -> RequestId {
    net.request(from, session, tag, &tag.to_le_bytes());
    net.run_until(net.now + 50_000);
    let (id, body) = net.hosts[1].ran.last().expect("it arrived");
    assert_eq!(**body, tag.to_le_bytes());
    *id
}

/// Answers a request. Whether the response was kept.
fn answer(net: &mut Net, id: RequestId, bytes: usize) -> bool {
    let now = net.now;
    net.hosts[1].respond(now, id, &vec![7; bytes])
}

/// Makes a request, and answers it.
fn call(net: &mut Net, from: usize, session: SessionId, tag: Tag, bytes: usize) -> bool {
    let id = ask(net, from, session, tag);
    answer(net, id, bytes)
}

/// The calls of a host, by how they ended: answered, and no longer kept.
fn ended(net: &Net, host: usize) -> (Vec<Tag>, Vec<Tag>) {
    let expired = RequestError::Rejected(Rejection::ResponseExpired);
    let (mut answered, mut lost) = (Vec::new(), Vec::new());
    for seen in &net.hosts[host].seen {
        match seen {
            Seen::Answer(tag, _) => answered.push(*tag),
            Seen::Failed(tag, error) if *error == expired => lost.push(*tag),
            Seen::Connected(_) => {}
            other => panic!("{other:?}"),
        }
    }
    answered.sort_unstable();
    lost.sort_unstable();
    (answered, lost)
}

/// A response of one packet is kept until its slot is used again, which may be never.
#[test]
fn small_responses_count_as_large_ones_do() {
    const BYTES: usize = 1000;
    let mut net = clients();
    let sessions = open(&mut net, 0, 250);
    let mut tag = 0;
    for session in &sessions {
        for _ in 0..8 {
            net.request(0, *session, tag, b"a little");
            tag += 1;
        }
    }
    net.run_until(net.now + 50_000);
    let ids: Vec<_> = net.hosts[1].ran.iter().map(|(id, _)| *id).collect();
    // As many at a time as leave at once.
    for turn in ids.chunks(100) {
        for id in turn {
            assert!(answer(&mut net, *id, BYTES));
            assert!(net.hosts[1].protocol.retained() <= BUDGET);
        }
        net.run_until(net.now + 1_000);
    }
    assert!(net.hosts[1].protocol.retained() > BUDGET - BYTES);
    net.run_ms(100);
    let (answered, lost) = ended(&net, 0);
    assert_eq!((answered.len(), lost.len()), (2000, 0));
    net.run_ms(11_000);
    assert_eq!(net.hosts[1].protocol.retained(), 0);
}

/// However lively that client is: its requests and repeats cost it next to nothing.
#[test]
fn the_client_that_holds_the_most_loses_its_oldest_response_first() {
    let mut net = clients();
    let sessions = [open(&mut net, 0, 3), open(&mut net, 2, 2)];
    // No response reaches the greedy client, which asks again and again.
    net.fate = Box::new(|_, from, to| usize::from((from, to) != (1, 0)));
    let [greedy, modest] = sessions;
    assert!(call(&mut net, 2, modest[0], 10, 1000), "the oldest of all");
    for (tag, session) in greedy.iter().enumerate() {
        assert!(call(&mut net, 0, *session, tag as Tag, 300_000));
    }
    net.run_ms(200);
    let own = ask(&mut net, 0, greedy[0], 3);
    let others = [11, 12].map(|tag| ask(&mut net, 2, modest[1], tag));
    assert!(answer(&mut net, others[0], 300_000));
    let rest = BUDGET - net.hosts[1].protocol.retained();
    assert!(answer(&mut net, others[1], rest), "it fits");
    // Its own small one takes the place of the next one.
    assert!(answer(&mut net, own, 1000));
    assert!(net.hosts[1].protocol.retained() <= BUDGET);
    net.fate = Box::new(|_, _, _| 1);
    net.run_ms(200);
    assert_eq!(ended(&net, 2), (vec![10, 11, 12], vec![]));
    assert_eq!(ended(&net, 0), (vec![2, 3], vec![0, 1]));
    // Asked again and again, no request ran twice.
    assert_eq!(net.hosts[1].ran.len(), 7);
}

/// A client whose responses fill the budget, and which fetches them, gets those before more of them.
#[test]
fn a_client_loses_no_response_that_it_fetches_to_another_large_one_of_its_own() {
    let mut net = clients();
    let sessions = open(&mut net, 0, 4);
    net.fate = Box::new(|_, from, to| usize::from((from, to) != (1, 0)));
    for (tag, session) in sessions.iter().enumerate() {
        let is_kept = call(&mut net, 0, *session, tag as Tag, 300_000);
        assert_eq!(is_kept, tag < 3, "there is room for three");
    }
    // The endpoint answers with an error instead, which is small.
    let (id, now) = (net.hosts[1].ran[3].0, net.now);
    assert!(net.hosts[1].respond(now, id, &[7; 600]));
    net.fate = Box::new(|_, _, _| 1);
    net.run_ms(200);
    assert_eq!(ended(&net, 0), (vec![0, 1, 2, 3], vec![]));
}

/// While the server's thread is away, it reads nothing of what a client fetches.
#[test]
fn a_client_does_not_lose_a_response_because_the_server_was_away() {
    let mut net = clients();
    let sessions = open(&mut net, 0, 4);
    net.fate = Box::new(|_, from, to| usize::from((from, to) != (1, 0)));
    for (tag, session) in sessions.iter().take(3).enumerate() {
        assert!(call(&mut net, 0, *session, tag as Tag, 300_000));
    }
    let id = ask(&mut net, 0, sessions[3], 3);
    let ended = net.now + 300_000_000;
    let server = &mut net.hosts[1];
    server.protocol.caught_up(net.now);
    assert!(!server.respond(ended, id, &[7; 300_000]));
    assert!(server.respond(ended, id, &[7; 600]));
}

/// What a response costs does not depend on how many are kept.
#[test]
fn a_response_takes_the_place_of_as_few_as_possible() {
    let mut net = clients();
    let sessions = open(&mut net, 0, 200);
    net.fate = Box::new(|_, from, to| usize::from((from, to) != (1, 0)));
    let evicted = |net: &Net| net.hosts[1].protocol.stats().responses_evicted;
    for (tag, session) in sessions[..104].iter().enumerate() {
        assert!(call(&mut net, 0, *session, tag as Tag, 10_000));
    }
    assert_eq!(evicted(&net), 0);
    for (number, session) in sessions[104..].iter().enumerate() {
        assert!(call(&mut net, 0, *session, 104 + number as Tag, 10_000));
        assert_eq!(evicted(&net), 1 + number as u64, "one for each");
    }
    net.fate = Box::new(|_, _, _| 1);
    net.run_ms(500);
    assert_eq!(ended(&net, 0), ((96..200).collect(), (0..96).collect()));
    assert_eq!(net.hosts[1].ran.len(), 200);
}
