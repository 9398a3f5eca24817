use std::time::Duration;

use starling_io::{PacketIo, PacketRx, PacketTx};
use starling_netns::inside;

use super::*;
use crate::chunk_accounting::ChunkAccounting;
use crate::testing::device;
use crate::{XdpConfig, XdpIo};

/// Datagrams that begin with a one, and have their length, counted from byte 8 on, in front of it.
const TABLE: MatchTable = MatchTable {
    value: [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    mask: [0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    length_at: 6,
    length_from: 8,
    key_at: 24,
};

/// A datagram with key 0: the bytes that every datagram begins with, and the rest.
const PREAMBLE: [u8; 8] = [1, 0, 0, 0, 0, 0, 20, 0];
const REST: [u8; 20] = [0; 20];

#[test]
fn a_blocked_worker_gets_nothing_more_until_it_completes_something() {
    const DEPTH: u32 = 4;
    let (entry, chunks) = (SteeringEntry::new(), Arc::new(ChunkAccounting::new(0)));
    let exchange = Exchange::new(1, chunks, 3);
    let mut blocked = BlockedCheck::new(3);
    let mut check = || blocked.run(&entry, &exchange.padding, DEPTH);
    let give = |worker: usize| entry.taken[worker].fetch_add(1, Ordering::Relaxed);
    let loads = || [0, 1, 2].map(|worker| entry.load(worker));
    give(0);
    give(1);
    check();
    assert_eq!(loads(), [1, 1, 0], "they may have begun just now");
    exchange.complete(&entry, 1);
    give(1);
    give(2);
    check();
    assert_eq!(loads(), [DEPTH, 1, 1], "1 is at another, 2 had nothing");
    check();
    check();
    assert_eq!(loads(), [DEPTH; 3], "and stays so");
    for worker in 0..3 {
        exchange.complete(&entry, worker);
    }
    assert_eq!(loads(), [0; 3]);
    // One that has its bound, and one with more than its bound.
    (0..DEPTH).for_each(|_| _ = give(0));
    (0..2 * DEPTH).for_each(|_| _ = give(1));
    check();
    check();
    assert_eq!(loads(), [DEPTH, 2 * DEPTH, 0]);
    exchange.complete(&entry, 0);
    exchange.complete(&entry, 1);
    assert_eq!(loads(), [DEPTH - 1, 2 * DEPTH - 1, 0]);
}

#[test]
fn counts_written_by_another_process_only_misplace_datagrams() {
    let name = "counts_written_by_another_process_only_misplace_datagrams";
    let Some((pair, mut server)) = device(name) else {
        return;
    };
    let mut steered = inside(&pair.b, || server.steer(2, 2, &TABLE)).expect("workers");
    steered.steering.add_key(0);
    let port = server.local_socket_address().port();
    let address = format!("xdp://va/10.77.0.2:{port}");
    let mut client =
        inside(&pair.a, || XdpIo::client(&address, XdpConfig::default())).expect("a route");
    let peer = client.open_peer(&address).expect("a route");
    let mut send = || {
        let tx = client.split().1;
        tx.append(peer, &PREAMBLE, &REST, b"", b"").expect("room");
        tx.seal(peer);
        tx.flush().expect("a healthy device");
    };
    // This makes the hardware addresses known.
    send();
    let shared = Arc::clone(server.shared());
    let entry = shared.steering_entry();
    let mut arrived = |steered: &mut starling_io::Steered| {
        for _ in 0..20_000 {
            if server.split().0.rx_burst().expect("healthy") > 0 {
                return 0;
            }
            for (index, worker) in steered.workers.iter_mut().enumerate() {
                if worker.receive() {
                    worker.hand_over();
                    worker.complete();
                    while server.split().0.rx_burst().expect("healthy") == 0 {}
                    return index + 1;
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("a datagram is missing");
    };
    arrived(&mut steered);
    let mut word = 1_u32;
    for round in 0..2000 {
        // Random numbers in all counts (xorshift, Marsaglia 2003).
        let fields = [&entry.held, &entry.depth, &entry.max_frame];
        for field in fields.into_iter().chain(&entry.taken) {
            word ^= word << 13;
            word ^= word >> 17;
            word ^= word << 5;
            field.store(word >> (round % 31), Ordering::Relaxed);
        }
        send();
        arrived(&mut steered);
    }
    entry.held.store(0, Ordering::Relaxed);
    entry.depth.store(2, Ordering::Relaxed);
    entry.max_frame.store(1500, Ordering::Relaxed);
    entry.taken[0].store(7, Ordering::Relaxed);
    entry.completed[0].store(1_000_000, Ordering::Relaxed);
    entry.taken[1].store(u32::MAX, Ordering::Relaxed);
    entry.completed[1].store(5, Ordering::Relaxed);
    send();
    assert_eq!(arrived(&mut steered), 0, "both seem to have far too much");
    for worker in &mut steered.workers {
        let limit = Some(Duration::from_millis(100));
        worker.wait(limit).expect("a healthy device");
    }
    send();
    assert_eq!(arrived(&mut steered), 1);
    // A worker that never sleeps corrects its counts, too.
    entry.taken[0].store(u32::MAX, Ordering::Relaxed);
    let begun = std::time::Instant::now();
    while entry.load(0) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never does");
        let nothing = Some(Duration::ZERO);
        steered.workers[0].wait(nothing).expect("a healthy device");
    }
}
