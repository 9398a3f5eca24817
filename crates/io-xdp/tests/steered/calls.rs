//! Each call runs once and ends as its handler says, whichever worker gets it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aya::maps::{Array, Map, MapData, loaded_maps};
use starling_endpoint::{CallOptions, Code, EndpointConfig, WorkerConfig};
use starling_io::PacketIo;
use starling_netns::inside;

use crate::common::Net;
use crate::harness::{
    BLOCK, Client, ECHO, FAIL, INLINE, LARGE, PANIC, PATIENCE, SLEEP, Server, Shared, WORK, body,
    patient, steered,
};

const CALLS: u32 = 5000;
/// Calls that are made one at a time. All workers are idle then, so a worker gets each of them.
const ALONE: u32 = CALLS / 5;

fn make_calls(client: &mut Client<impl PacketIo>) {
    client.echo(0..ALONE, 1);
    // Others run meanwhile: a worker gets some of these calls, the dispatcher the others.
    client.echo(ALONE..CALLS, 7);
}

#[test]
fn many_calls_each_run_once_over_both_kinds_of_clients() {
    let Some(pair) = Net::new("many_calls_each_run_once_over_both_kinds_of_clients") else {
        return;
    };
    for xdp in [true, false] {
        let shared = Shared::new(CALLS as usize);
        let server = Server::start(&pair, &shared, steered(3));
        let port = server.port;
        inside(&pair.a, || match xdp {
            true => make_calls(&mut Client::xdp(port, patient())),
            false => make_calls(&mut Client::udp(port)),
        });
        shared.assert_each_ran_once();
        let stats = server.end();
        assert_eq!(stats.requests, u64::from(CALLS));
        assert!(stats.claimed > u64::from(CALLS) / 10, "{stats:?}");
    }
}

#[test]
fn a_stalled_worker_holds_up_no_more_than_its_bound() {
    let Some(pair) = Net::new("a_stalled_worker_holds_up_no_more_than_its_bound") else {
        return;
    };
    let shared = Shared::new(601);
    let server = Server::start(&pair, &shared, steered(2));
    let port = server.port;
    inside(&pair.a, || {
        let mut client = Client::xdp(port, patient());
        client.work(0, ECHO);
        client.run_until(1);
        client.check_echoes(0..1);
        client.work(1, BLOCK);
        client.wait_for(&shared.blocked, 1);
        let mut stuck = 0;
        for number in 2..601 {
            client.work(number, ECHO);
            // The other worker answers this call, or the call is behind the blocked one, which holds two
            // at most. A call without an answer after a second is taken for that one. On a busy host it
            // may only be late: then the next calls are made meanwhile.
            let begun = Instant::now();
            stuck = loop {
                client.endpoint.poll().expect("a healthy device");
                let outstanding = number as usize - 1 - client.ends.lock().len();
                let is_stuck = outstanding == 1 && begun.elapsed() > Duration::from_secs(1);
                if outstanding <= stuck || is_stuck {
                    break outstanding;
                }
                assert!(begun.elapsed() < PATIENCE, "{outstanding} are held up");
                let limit = Some(Duration::from_millis(1));
                client.endpoint.wait(limit).expect("a healthy device");
            };
        }
        assert!(stuck <= 1, "{stuck} are held up");
        shared.gate.store(true, Ordering::SeqCst);
        client.run_until(600);
        client.check_echoes(1..601);
    });
    shared.assert_each_ran_once();
    let stats = server.end();
    assert!(stats.claimed > 300, "{stats:?}");
}

/// A request that arrives when all workers are blocked is behind one of them, and so are its first
/// repeats. The client still hears of it before it takes the session for broken.
#[test]
fn a_call_that_waits_for_seconds_behind_blocked_workers_ends_when_one_is_free() {
    let name = "a_call_that_waits_for_seconds_behind_blocked_workers_ends_when_one_is_free";
    let Some(pair) = Net::new(name) else {
        return;
    };
    const WORKERS: u32 = 8;
    let shared = Shared::new(WORKERS as usize + 1);
    let config = WorkerConfig {
        depth: 8,
        ..steered(WORKERS as usize)
    };
    let server = Server::start(&pair, &shared, config);
    let port = server.port;
    inside(&pair.a, || {
        let mut blocking = Client::udp(port);
        // The dispatcher assigns calls with a deadline, one to each worker.
        let timed = CallOptions::with_timeout(PATIENCE);
        for number in 0..WORKERS {
            blocking.call(WORK, &timed, number, BLOCK);
            blocking.wait_for(&shared.blocked, u64::from(number) + 1);
        }
        // This client sends nothing else, because a bundle would go to the dispatcher.
        let mut client = Client::xdp(port, EndpointConfig::default());
        client.work(WORKERS, ECHO);
        // Longer than the client's peer timeout.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) {
            blocking.endpoint.poll().expect("a healthy device");
            client.endpoint.poll().expect("a healthy device");
            let limit = Some(Duration::from_millis(1));
            client.endpoint.wait(limit).expect("a healthy device");
        }
        assert!(client.ends.lock().is_empty(), "{:?}", client.ends);
        shared.gate.store(true, Ordering::SeqCst);
        client.run_until(1);
        client.check_echoes(WORKERS..WORKERS + 1);
        blocking.run_until(WORKERS as usize);
        blocking.check_echoes(0..WORKERS);
    });
    shared.assert_each_ran_once();
    server.end();
}

#[test]
fn a_call_ends_as_its_handler_does() {
    let Some(pair) = Net::new("a_call_ends_as_its_handler_does") else {
        return;
    };
    let shared = Shared::new(100);
    let server = Server::start(&pair, &shared, steered(2));
    let port = server.port;
    inside(&pair.a, || {
        let mut client = Client::xdp(port, patient());
        // A handler that sleeps does so for longer than retransmission timeouts: the client repeats its
        // request meanwhile.
        for (number, task) in (0..40).zip([ECHO, PANIC, FAIL, SLEEP, LARGE].into_iter().cycle()) {
            client.work(number, task);
            if number < 20 {
                // In a datagram of its own, for a worker.
                client.run_until(number as usize + 1);
            }
        }
        client.call(INLINE, &CallOptions::default(), 40, ECHO);
        let timed = CallOptions::with_timeout(PATIENCE);
        client.call(WORK, &timed, 41, ECHO);
        client.run_until(42);
        for number in 0..40 {
            let end = client.ends.lock().remove(&u64::from(number));
            let end = end.expect("the call ended");
            match number % 5 {
                1 => assert_eq!(end.expect_err("it panicked").code(), Code::Internal),
                2 => {
                    let status = end.expect_err("it failed");
                    assert_eq!(
                        (status.code(), status.message()),
                        (Code::NotFound, "as requested")
                    );
                }
                4 => assert_eq!(end.expect("an answer"), vec![7; 100_000]),
                _ => assert_eq!(end.expect("an answer")[1..], body(number, ECHO)[1..]),
            }
        }
        client.check_echoes(40..42);
        assert!(client.endpoint.protocol().stats().retransmissions > 0);
    });
    for runs in &shared.runs[..40] {
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }
    let stats = server.end();
    assert_eq!((stats.panics, stats.requests), (8, 42));
    assert!(
        stats.claimed >= 19,
        "all but the first are alone: {stats:?}"
    );
}

/// Bytes of an entry of the program's map `steering`.
const ENTRY: usize = 1088;
/// The offsets in an entry of its workers, its settings with the match table, its keys, and its
/// counts.
const WORKERS_AT: std::ops::Range<usize> = 0..4;
const HELD_AT: std::ops::Range<usize> = 12..16;
const SETTINGS_AT: std::ops::Range<usize> = 4..64;
const KEYS_AT: std::ops::Range<usize> = 64..576;
const COUNTS_AT: std::ops::Range<usize> = 576..ENTRY;

/// The map `steering` of the program of a device with `workers` workers on queue 0.
fn map_with(workers: u32) -> Array<MapData, [u8; ENTRY]> {
    let maps = loaded_maps().filter_map(|info| {
        let info = info.ok()?;
        let data = (info.name() == b"steering").then(|| MapData::from_id(info.id()).ok())??;
        let array = Array::<_, [u8; ENTRY]>::try_from(Map::Array(data)).ok()?;
        let entry = array.get(&0, 0).ok()?;
        (entry[WORKERS_AT] == workers.to_le_bytes()).then_some(array)
    });
    maps.last().expect("the device's map")
}

/// Writes entries of random settings, keys and counts into the map until `over`. One in four has the
/// device's own settings, all keys, and equal counts, so that the program steers by it.
fn write_nonsense(workers: u32, over: &AtomicBool) {
    let mut map = map_with(workers);
    let own = map.get(&0, 0).expect("a map");
    let mut word = 1_u64;
    while !over.load(Ordering::SeqCst) {
        let mut entry = [0; ENTRY];
        entry[WORKERS_AT].copy_from_slice(&workers.to_le_bytes());
        for bytes in entry[4..].chunks_exact_mut(4) {
            // xorshift64 (Marsaglia, 2003)
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            bytes.copy_from_slice(&(word as u32 >> (word >> 60)).to_le_bytes());
        }
        if word & 3 == 0 {
            entry[SETTINGS_AT].copy_from_slice(&own[SETTINGS_AT]);
            entry[HELD_AT].fill(0);
            entry[KEYS_AT].fill(0xff);
            entry[COUNTS_AT].fill(word as u8);
        }
        map.set(0, entry, 0).expect("a map");
        std::thread::sleep(Duration::from_micros(200));
    }
    // The device mends counts. It does not mend settings.
    let mut entry = map.get(&0, 0).expect("a map");
    entry[SETTINGS_AT].copy_from_slice(&own[SETTINGS_AT]);
    entry[HELD_AT].fill(0);
    map.set(0, entry, 0).expect("a map");
}

#[test]
fn each_call_runs_once_and_is_answered_whatever_the_steering_map_holds() {
    let test = "each_call_runs_once_and_is_answered_whatever_the_steering_map_holds";
    let Some(pair) = Net::new(test) else {
        return;
    };
    // A number of workers that no other test has.
    const WORKERS: u32 = 5;
    let shared = Shared::new(CALLS as usize);
    let server = Server::start(&pair, &shared, steered(WORKERS as usize));
    let port = server.port;
    let over = Arc::new(AtomicBool::new(false));
    let its_over = Arc::clone(&over);
    let writer = std::thread::spawn(move || write_nonsense(WORKERS, &its_over));
    inside(&pair.a, || {
        Client::xdp(port, patient()).echo(0..CALLS, 7);
    });
    over.store(true, Ordering::SeqCst);
    writer.join().expect("no panic");
    shared.assert_each_ran_once();
    let stats = server.end();
    assert_eq!(stats.requests, u64::from(CALLS));
    assert!(stats.claimed > 0, "{stats:?}");
}
