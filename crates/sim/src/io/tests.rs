use super::*;
use crate::fabric::{Fabric, FabricConfig, LinkConfig, Step};

const PREAMBLE: [u8; 8] = *b"preamble";

fn pair(config: FabricConfig) -> (SharedFabric, SimIo, SimIo) {
    let fabric = Fabric::shared(config);
    let hosts: Vec<HostId> = (0..2).map(|_| fabric.lock().add_host()).collect();
    let left = SimIo::new(&fabric, hosts[0]);
    let right = SimIo::new(&fabric, hosts[1]);
    (fabric, left, right)
}

/// The payloads that `io` receives until the fabric is quiet.
fn drain(fabric: &SharedFabric, io: &mut SimIo) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    loop {
        let step = fabric.lock().step();
        let Some(step) = step else {
            return payloads;
        };
        assert!(matches!(step, Step::Turn(_)));
        let (rx, _) = io.split();
        while let count @ 1.. = rx.rx_burst().unwrap() {
            payloads.extend((0..count).map(|index| rx.datagram(index).bytes.to_vec()));
        }
    }
}

#[test]
fn frames_of_one_turn_share_a_datagram_and_answers_find_their_way() {
    let (fabric, mut left, mut right) = pair(FabricConfig::default());
    let peer = left.open_peer(&right.local_address()).unwrap();
    let (_, tx) = left.split();
    tx.append(peer, &PREAMBLE, b"a", b"b", b"c").unwrap();
    tx.append(peer, &PREAMBLE, b"d", b"", b"").unwrap();
    tx.seal(peer);
    tx.append(peer, &PREAMBLE, b"", b"e", b"").unwrap();
    tx.flush().unwrap();

    assert_eq!(fabric.lock().step(), Some(Step::Turn(right.host())));
    let (rx, tx) = right.split();
    assert_eq!(rx.rx_burst().unwrap(), 2);
    assert_eq!(rx.datagram(0).bytes, b"preambleabcd");
    assert_eq!(rx.datagram(0).ecn, Ecn::Capable);
    assert_eq!(rx.datagram(1).bytes, b"preamblee");
    let Source::Unknown(address) = rx.datagram(0).source else {
        panic!("the sender was not accepted yet");
    };
    let back = tx.accept_peer(address).unwrap();
    tx.append(back, &PREAMBLE, b"answer", b"", b"").unwrap();
    tx.flush().unwrap();
    assert_eq!(drain(&fabric, &mut left), [b"preambleanswer".to_vec()]);
    assert_eq!(rx.rx_burst().unwrap(), 0);
    assert_eq!(right.peer_count(), 1);
}

#[test]
fn datagrams_never_exceed_the_path_and_a_closed_peer_takes_none() {
    let (fabric, mut left, mut right) = pair(FabricConfig {
        max_datagram: 100,
        ..FabricConfig::default()
    });
    let peer = left.open_peer(&right.local_address()).unwrap();
    let (_, tx) = left.split();
    for _ in 0..5 {
        tx.append(peer, &PREAMBLE, &[1; 40], b"", b"").unwrap();
    }
    tx.flush().unwrap();
    let lengths: Vec<usize> = drain(&fabric, &mut right).iter().map(Vec::len).collect();
    assert_eq!(lengths, [88, 88, 48]);

    tx.append(peer, &PREAMBLE, b"lost", b"", b"").unwrap();
    left.close_peer(peer);
    let (_, tx) = left.split();
    let refused = tx.append(peer, &PREAMBLE, b"x", b"", b"");
    assert_eq!(refused, Err(TxError::Gone));
    tx.flush().unwrap();
    assert!(drain(&fabric, &mut right).is_empty());
}

#[test]
fn a_slow_link_fills_the_send_queue_and_loses_nothing() {
    let (fabric, mut left, mut right) = pair(FabricConfig {
        link: LinkConfig {
            rate_bps: 1_000_000_000,
            queue_bytes: 5_000,
            ..LinkConfig::default()
        },
        ..FabricConfig::default()
    });
    let peer = left.open_peer(&right.local_address()).unwrap();
    let (_, tx) = left.split();
    let mut taken = 0usize;
    while tx.append(peer, &PREAMBLE, &[7; 1000], b"", b"").is_ok() {
        taken += 1;
        assert!(taken < 1000, "the send queue has no end");
    }
    tx.flush().unwrap();
    let mut received = 0;
    loop {
        let step = fabric.lock().step();
        match step {
            Some(Step::Turn(host)) if host == left.host() => left.split().1.flush().unwrap(),
            Some(_) => {
                let (rx, _) = right.split();
                while let count @ 1.. = rx.rx_burst().unwrap() {
                    received += count;
                }
            }
            None => break,
        }
    }
    assert_eq!(received, taken);
}

#[test]
fn a_wait_schedules_a_turn_and_the_waker_an_immediate_one() {
    let (fabric, mut left, _right) = pair(FabricConfig::default());
    left.wait(Some(Duration::from_micros(5))).unwrap();
    assert_eq!(fabric.lock().step(), Some(Step::Turn(left.host())));
    assert_eq!(fabric.lock().now_ns(), 5_000);
    left.waker().wake();
    left.wait(None).unwrap();
    assert_eq!(fabric.lock().step(), Some(Step::Turn(left.host())));
    assert_eq!(fabric.lock().now_ns(), 5_300);
    left.wait(None).unwrap();
    assert_eq!(fabric.lock().step(), None);
}

#[test]
fn the_error_of_a_wrong_address_names_the_right_form() {
    let (_fabric, mut left, _right) = pair(FabricConfig::default());
    let error = left.open_peer("udp://10.0.0.1:4000").unwrap_err();
    assert_eq!(error.fault, Fault::Caller);
    assert!(error.to_string().contains("sim://"), "{error}");
}

#[test]
fn clocks_jump_on_one_host_only() {
    let (fabric, left, right) = pair(FabricConfig::default());
    let clocks = [left.host(), right.host()].map(|host| SimClock::new(&fabric, host));
    fabric.lock().jump_clock(left.host(), 1_000);
    assert_eq!(clocks[0].now_ns(), 1_000);
    assert_eq!(clocks[1].now_ns(), 0);
}
