//! The ownership rule of eRPC (NSDI'19, section 4.2.2 and appendix C): when a response is handed to
//! the application, nothing refers to the request any more, even if fragments were sent twice, wait
//! for their pacing time, or found the sink full. Here the caller's memory is shared by reference,
//! and the reference count proves it.

use bytes::Bytes;
use starling_proto::{Config, Congestion, Msgbuf, Prefix};

use crate::net::{Net, Seen};

const FOREVER_NS: u64 = 20_000_000_000;

fn configs(congestion: Congestion) -> [Config; 2] {
    let config = Config {
        congestion,
        // For many retransmissions the answer is already on its way.
        rto_min_ns: 11_000,
        ..Config::default()
    };
    [config.clone(), config]
}

/// Requests of many packets meet losses, duplicates, marks, and a sink that is often full.
#[test]
fn no_reference_to_a_request_is_left_when_its_response_arrives() {
    for congestion in [Congestion::Off, Congestion::Timely, Congestion::Dctcp] {
        let mut net = Net::new(configs(congestion));
        let session = net.connect(0, 1);
        net.run_ms(1);
        net.hosts[0].marked = true;
        net.hosts[1].marked = true;
        net.fate = Box::new(|n, _, _| match n * 2_654_435_761 % 16 {
            0..=2 => 0,
            3 | 4 => 2,
            _ => 1,
        });
        for (tag, len) in [60_000, 5_000, 1, 300_000, 1_500].into_iter().enumerate() {
            let tag = tag as u128;
            let memory = Bytes::from(vec![tag as u8; len]);
            let message = Msgbuf::from_parts(vec![9; 20], Some(memory.clone()));
            let now = net.now;
            let host = &mut net.hosts[0];
            let wire = &mut host.wire;
            let taken = host
                .protocol
                .request(now, session, message, Prefix::NONE, tag, wire);
            assert!(taken.is_ok());
            let is_answer = |seen: &Seen| matches!(seen, Seen::Answer(of, _) if *of == tag);
            let mut turn = 0;
            while !net.hosts[0].seen.iter().any(is_answer) {
                assert!(net.now < FOREVER_NS, "{congestion:?}: no answer");
                assert!(!memory.is_unique(), "the protocol has it until then");
                turn += 1;
                net.hosts[0].wire.room = turn % 4;
                net.run_until(net.now + 2_000);
            }
            assert!(memory.is_unique(), "{congestion:?}, {len} bytes");
            net.hosts[0].wire.room = usize::MAX;
        }
        assert!(net.hosts[0].protocol.stats().retransmissions > 0);
        assert!(net.hosts[0].protocol.stats().sink_full > 0);
        // Late packets of former requests and timers that are left change nothing.
        net.run_ms(500);
    }
}

/// The protocol returns a cancelled request with its memory, and keeps no reference to it.
#[test]
fn no_reference_to_a_cancelled_request_is_left() {
    let mut net = Net::new(configs(Congestion::Dctcp));
    let session = net.connect(0, 1);
    net.run_ms(1);
    net.hosts[1].echo = false;
    net.fate = Box::new(|n, _, _| usize::from(n % 3 != 0));
    let memory = Bytes::from(vec![7; 200_000]);
    let message = Msgbuf::from_parts(vec![9; 20], Some(memory.clone()));
    let now = net.now;
    let host = &mut net.hosts[0];
    let wire = &mut host.wire;
    let number = host
        .protocol
        .request(now, session, message, Prefix::NONE, 1, wire)
        .expect("taken");
    net.run_until(net.now + 60_000);
    let now = net.now;
    let host = &mut net.hosts[0];
    let cancelled = host
        .protocol
        .cancel(now, session, number, &mut host.wire)
        .expect("it is open");
    assert!(!memory.is_unique(), "the caller has it again");
    drop(cancelled);
    assert!(memory.is_unique());
    net.run_ms(500);
}
