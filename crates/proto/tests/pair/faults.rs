//! Loss, duplication, cancellation: each request is run at most once and always ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use starling_proto::Config;

use crate::net::{Host, Net, Seen};

#[test]
fn a_lost_request_and_a_lost_response_are_repaired_and_run_once() {
    for lost in [1, 2] {
        let mut net = Net::pair();
        let session = net.connect(0, 1);
        net.run_ms(1);
        let first = net.datagrams();
        net.fate = Box::new(move |n, _, _| usize::from(n != first + lost));
        net.request(0, session, 5, b"once");
        net.run_ms(60);
        assert_eq!(net.hosts[0].seen[1], Seen::Answer(5, b"ecno".to_vec()));
        assert_eq!(net.hosts[1].ran.len(), 1);
        assert_eq!(net.hosts[0].protocol.stats().retransmissions, 1);
        assert_eq!(net.hosts[1].protocol.stats().duplicates, lost - 1);
    }
}

#[test]
fn duplicated_datagrams_change_nothing() {
    let mut net = Net::pair();
    net.fate = Box::new(|_, _, _| 2);
    let session = net.connect(0, 1);
    let body = vec![9; 50_000];
    for tag in 0..20 {
        net.request(0, session, tag, if tag % 2 == 0 { &body } else { b"s" });
    }
    net.run_ms(200);
    assert_eq!(net.hosts[1].ran.len(), 20);
    assert_eq!(net.hosts[0].seen.len(), 21);
    assert_eq!(net.hosts[0].protocol.accounting(session), Some((0, 32, 0)));
}

#[test]
fn requests_are_answered_although_a_third_of_all_datagrams_is_lost() {
    let mut net = Net::pair();
    let mut state = 12345u64;
    net.fate = Box::new(move |_, _, _| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        usize::from(state >> 33 & 0xff > 85)
    });
    let session = net.connect(0, 1);
    let body = vec![4; 120_000];
    for tag in 0..40 {
        net.request(0, session, tag, if tag % 4 == 0 { &body } else { b"small" });
    }
    net.run_ms(10_000);
    let answers = net.hosts[0]
        .seen
        .iter()
        .filter(|seen| matches!(seen, Seen::Answer(..)));
    assert_eq!(answers.count(), 40);
    assert_eq!(net.hosts[1].ran.len(), 40);
    assert_eq!(net.hosts[0].protocol.accounting(session).unwrap().0, 0);
}

#[test]
fn a_long_running_request_is_repeated_and_not_run_again() {
    let mut net = Net::pair();
    net.hosts[1].echo = false;
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.request(0, session, 1, b"takes its time");
    net.run_ms(20_000);
    assert_eq!(net.hosts[1].ran.len(), 1);
    // Ever less often, until once a keepalive.
    let asked = net.hosts[1].protocol.stats().duplicates;
    assert!((40..60).contains(&asked), "{asked}");
    let (id, _) = net.hosts[1].ran[0];
    let now = net.now;
    assert!(net.hosts[1].protocol.is_wanted(id));
    assert!(net.hosts[1].respond(now, id, b"done"));
    assert!(!net.hosts[1].respond(now, id, b"done twice"));
    net.run_ms(1);
    assert_eq!(net.hosts[0].seen[1], Seen::Answer(1, b"done".to_vec()));
}

#[test]
fn a_cancelled_request_ends_and_its_slot_is_used_again() {
    let mut net = Net::pair();
    net.hosts[1].echo = false;
    let session = net.connect(0, 1);
    net.run_ms(1);
    let numbers: Vec<u64> = (0..10)
        .map(|tag| net.request(0, session, tag, b"unwanted"))
        .collect();
    net.run_ms(1);
    let now = net.now;
    let Host { protocol, wire, .. } = &mut net.hosts[0];
    for (tag, number) in numbers.iter().enumerate().rev() {
        let cancelled = protocol.cancel(now, session, *number, wire).unwrap();
        assert_eq!(cancelled.tag, tag as u128);
        assert_eq!(cancelled.request.head(), b"unwanted");
        // Those that found no free slot were never sent.
        let slots = usize::from(Config::default().slots);
        assert_eq!(cancelled.may_have_run, tag < slots);
        assert_eq!(protocol.cancel(now, session, *number, wire), None);
    }
    net.run_ms(5);
    let now = net.now;
    let (id, _) = net.hosts[1].ran[0];
    assert!(!net.hosts[1].protocol.is_wanted(id));
    assert!(!net.hosts[1].respond(now, id, b"too late"));
    assert_eq!(net.hosts[1].protocol.executing(), 0);
    net.hosts[1].echo = true;
    for tag in 20..30 {
        net.request(0, session, tag, b"ab");
    }
    net.run_ms(5);
    assert_eq!(net.hosts[0].seen.len(), 11);
    assert!(
        net.hosts[0].seen[1..]
            .iter()
            .all(|seen| { matches!(seen, Seen::Answer(20..30, body) if body == b"ba") })
    );
}

#[test]
fn replayed_and_garbled_datagrams_run_nothing() {
    let mut net = Net::pair();
    let session = net.connect(0, 1);
    net.run_ms(1);
    let now = net.now;
    // The client's datagrams are captured and replayed much later.
    let caught = Arc::new(AtomicU64::new(0));
    let count = caught.clone();
    net.fate = Box::new(move |_, from, _| {
        count.fetch_add(1, Ordering::Relaxed);
        if from == 0 { 3 } else { 1 }
    });
    for tag in 0..50 {
        net.request(0, session, tag, &[tag as u8]);
        net.run_until(net.now + 50_000);
    }
    assert_eq!(net.hosts[1].ran.len(), 50);
    assert!(net.now > now && caught.load(Ordering::Relaxed) > 50);
    let mut state = 99u64;
    for len in 0..600 {
        let datagram: Vec<u8> = (0..len)
            .map(|i| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(i);
                if i < 2 {
                    [0x5a, 3][i as usize]
                } else {
                    (state >> 40) as u8
                }
            })
            .collect();
        net.inject(0, 1, datagram.clone());
        net.inject(1, 0, datagram);
    }
    net.run_ms(5);
    assert_eq!(net.hosts[1].ran.len(), 50);
    net.request(0, session, 77, b"fine");
    net.run_ms(5);
    assert!(
        net.hosts[0]
            .seen
            .contains(&Seen::Answer(77, b"enif".to_vec()))
    );
}

#[test]
fn fuzz_frames_with_a_valid_token() {
    bolero::check!()
        .with_iterations(2_000)
        .for_each(|bytes: &[u8]| {
            let mut net = Net::pair();
            let session = net.connect(0, 1);
            net.hosts[1].echo = false;
            net.request(0, session, 1, b"in the slot");
            net.run_ms(1);
            for (from, to) in [(0, 1), (1, 0)] {
                let mut datagram = net.preamble(from, to);
                datagram.extend_from_slice(bytes);
                net.inject(from, to, datagram);
            }
            net.run_ms(20);
            if let Some((_, credits, _)) = net.hosts[0].protocol.accounting(session) {
                assert!(credits >= 1);
            }
        });
}
