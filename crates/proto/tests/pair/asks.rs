//! How a client asks for requests that their server executes for long.

use crate::net::{Net, Seen};

/// A client with requests in all slots of a session, which the server has executed for a while.
fn held(count: u128) -> Net {
    let mut net = Net::pair();
    net.hosts[1].echo = false;
    let session = net.connect(0, 1);
    net.run_ms(1);
    for tag in 0..count {
        net.request(0, session, tag, b"held");
    }
    net.run_ms(10_000);
    assert_eq!(net.hosts[1].ran.len() as u128, count);
    net
}

fn duplicates(net: &Net) -> u64 {
    net.hosts[1].protocol.stats().duplicates
}

/// The server answers the request with this index.
fn answer(net: &mut Net, index: usize) {
    let (id, _) = net.hosts[1].ran[index];
    let now = net.now;
    assert!(net.hosts[1].respond(now, id, b"done"));
}

#[test]
fn a_client_asks_for_one_of_all_requests_that_a_session_has_held() {
    let mut net = held(8);
    let before = duplicates(&net);
    net.run_ms(10_000);
    let asked = duplicates(&net) - before;
    assert!((19..=22).contains(&asked), "{asked} times in 10 s");
    for index in 0..8 {
        answer(&mut net, index);
    }
    net.run_ms(1);
    assert_eq!(net.hosts[0].seen.len(), 9);
}

#[test]
fn a_lost_response_is_missed_when_the_client_asks_for_another_request() {
    let mut net = held(8);
    let asked = duplicates(&net);
    for lost in [5, 0, 7] {
        net.fate = Box::new(|_, from, _| usize::from(from == 0));
        answer(&mut net, lost);
        net.run_ms(1);
        net.fate = Box::new(|_, _, _| 1);
    }
    assert_eq!(net.hosts[0].seen.len(), 1);
    net.run_ms(520);
    for tag in [5, 0, 7] {
        let done = Seen::Answer(tag, b"done".to_vec());
        assert!(net.hosts[0].seen.contains(&done), "{tag}");
    }
    // One ask that brings the answer or says who lacks one, and one for each of these.
    assert!(
        duplicates(&net) - asked <= 6,
        "{}",
        duplicates(&net) - asked
    );
}

#[test]
fn an_ask_without_an_answer_is_repeated_soon() {
    let mut net = held(2);
    let before = net.hosts[0].protocol.stats().retransmissions;
    net.fate = Box::new(|_, from, _| usize::from(from == 0));
    net.run_ms(1_000);
    let asks = net.hosts[0].protocol.stats().retransmissions - before;
    assert!(asks >= 10, "{asks} in 1 s");
    net.fate = Box::new(|_, _, _| 1);
    answer(&mut net, 1);
    net.run_ms(60);
    assert_eq!(net.hosts[0].seen[1], Seen::Answer(1, b"done".to_vec()));
}
