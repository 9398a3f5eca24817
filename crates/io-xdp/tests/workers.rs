//! Workers with sockets of their own, which the program gives datagrams that match.

mod common;

use std::time::{Duration, Instant};

use common::{Net, TABLE, receive};
use starling_io::{Fault, PacketIo, PacketTx, PeerId, Source, Steered, WorkerIo};
use starling_io_xdp::{Drops, XdpConfig, XdpIo};
use starling_netns::inside;

/// A key of workers, and one that has the same low bits.
const KEY: u32 = 0x1234_5678;
const ITS_TWIN: u32 = KEY ^ 0x8000_0000;

const PREAMBLE: [u8; 8] = [7, 6, 5, 4, 9, 9, 9, 9];

/// A frame with a key that matches; its number is 8 bytes from byte 8 on.
fn request(key: u32, number: u64, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![1, 0];
    frame.extend((4 + body.len() as u16).to_le_bytes());
    frame.extend(77_u32.to_le_bytes());
    frame.extend(number.to_le_bytes());
    frame.extend(key.to_le_bytes());
    frame.extend(body);
    frame
}

fn number_of(datagram: &[u8]) -> u64 {
    u64::from_le_bytes(datagram[16..24].try_into().expect("8 bytes"))
}

/// A server with workers, and a client that knows its next hop.
struct Set {
    server: XdpIo,
    steered: Steered,
    client: XdpIo,
    to_server: PeerId,
}

impl Set {
    fn new(net: &Net, workers: usize, depth: u8, config: XdpConfig) -> Self {
        let bind = || XdpIo::bind("xdp://vb/10.77.0.2:0", config);
        let mut server = inside(&net.b, bind).expect("a device");
        let mut steered = inside(&net.b, || server.steer(workers, depth, &TABLE)).expect("workers");
        steered.steering.add_key(KEY);
        let port = server.local_socket_address().port();
        let address = format!("xdp://va/10.77.0.2:{port}");
        let mut client =
            inside(&net.a, || XdpIo::client(&address, XdpConfig::default())).expect("a route");
        let to_server = client.open_peer(&address).expect("a route");
        let mut set = Self {
            server,
            steered,
            client,
            to_server,
        };
        // The first arrives by the kernel, at the dispatcher, which accepts the client as a peer.
        set.send(&[b"hello"]);
        let hello = receive(&mut set.server, 1).remove(0);
        let Source::Unknown(client) = hello.source else {
            panic!("{hello:?}");
        };
        set.server.split().1.accept_peer(client).expect("room");
        set
    }

    /// Sends a datagram of these frames.
    fn send(&mut self, frames: &[&[u8]]) {
        let (_, tx) = self.client.split();
        for frame in frames {
            tx.append(self.to_server, &PREAMBLE, frame, b"", b"")
                .expect("room");
        }
        tx.seal(self.to_server);
        tx.flush().expect("a healthy device");
    }

    /// The next datagram of a worker.
    fn next_of(&mut self, worker: usize) -> u64 {
        let worker = &mut *self.steered.workers[worker];
        wait_for(worker);
        let datagram = worker.datagram();
        assert!(matches!(datagram.source, Source::Peer(_)));
        number_of(datagram.bytes)
    }
}

fn wait_for(worker: &mut dyn WorkerIo) {
    let begun = Instant::now();
    while !worker.receive() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is missing");
        let limit = Some(Duration::from_millis(100));
        worker.wait(limit).expect("a healthy device");
    }
}

#[test]
fn a_datagram_goes_to_the_worker_with_the_fewest_up_to_its_bound() {
    let Some(net) = Net::new("a_datagram_goes_to_the_worker_with_the_fewest_up_to_its_bound")
    else {
        return;
    };
    let mut set = Set::new(&net, 2, 2, XdpConfig::default());
    // Worker 0 takes nothing. Worker 1 answers all that it has before the client sends more.
    for round in 0..200 {
        for number in 3 * round..3 * round + 3 {
            set.send(&[&request(KEY, number, b"body")]);
        }
        let of_1 = match round {
            // Each has one when the third comes, which the first gets then.
            0 => vec![1],
            _ => vec![3 * round, 3 * round + 1],
        };
        for number in of_1 {
            assert_eq!(set.next_of(1), number);
            let worker = &mut set.steered.workers[1];
            assert!(worker.answer([&PREAMBLE, b"answer ", &number.to_le_bytes()]));
            worker.complete();
            let answer = receive(&mut set.client, 1).remove(0);
            assert_eq!(answer.source, Source::Peer(set.to_server));
            assert_eq!(answer.bytes[8..15], *b"answer ");
            assert_eq!(answer.bytes[15..], number.to_le_bytes());
        }
        if round > 0 {
            let overflow = receive(&mut set.server, 1).remove(0);
            assert_eq!(number_of(&overflow.bytes), 3 * round + 2);
        }
    }
    for number in [0, 2] {
        assert_eq!(set.next_of(0), number);
        set.steered.workers[0].hand_over();
        let handed_over = receive(&mut set.server, 1).remove(0);
        assert_eq!(number_of(&handed_over.bytes), number);
    }
    assert!(!set.steered.workers[0].receive(), "it had its bound");
    assert_eq!(set.server.drops(), Drops::default());
}

#[test]
fn a_datagram_handed_over_precedes_later_ones() {
    let Some(net) = Net::new("a_datagram_handed_over_precedes_later_ones") else {
        return;
    };
    let mut set = Set::new(&net, 1, 1, XdpConfig::default());
    set.send(&[&request(KEY, 1, b"body")]);
    assert_eq!(set.next_of(0), 1);
    // The worker has its bound.
    set.send(&[&request(KEY, 2, b"body")]);
    set.server.wait(None).expect("a healthy device");
    set.steered.workers[0].hand_over();
    let both = receive(&mut set.server, 2);
    let numbers = both.iter().map(|datagram| number_of(&datagram.bytes));
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn only_datagrams_that_match_with_a_known_key_are_for_workers() {
    let Some(net) = Net::new("only_datagrams_that_match_with_a_known_key_are_for_workers") else {
        return;
    };
    let mut set = Set::new(&net, 1, 2, XdpConfig::default());
    let good = request(KEY, 1, b"body");
    let other = request(KEY + 1, 2, b"body");
    let with = |flag: u8| {
        let mut frame = good.clone();
        frame[0] |= flag;
        frame
    };
    let [one_bit, another, a_third] = [with(0x20), with(0x80), with(0x02)];
    let cut = good[..good.len() - 1].to_vec();
    let padded = [&good[..], b"!"].concat();
    let alone: [&[u8]; 7] = [&other, &one_bit, &another, &a_third, &cut, &padded, b"x"];
    for frame in alone {
        set.send(&[frame]);
        let datagram = receive(&mut set.server, 1).remove(0);
        assert_eq!(datagram.bytes[8..], *frame);
    }
    // Two frames with the worker's key, but in one datagram.
    set.send(&[&good, &good]);
    assert_eq!(receive(&mut set.server, 1)[0].bytes.len(), 8 + 2 * 24);
    // No datagram overtakes those that the dispatcher holds.
    set.steered.steering.set_held(1);
    set.send(&[&good]);
    assert_eq!(receive(&mut set.server, 1).len(), 1);
    set.steered.steering.set_held(0);
    // A key with the same low bits, and a bit that is not compared, change nothing.
    for frame in [&good, &request(ITS_TWIN, 1, b"body"), &with(0x40)] {
        set.send(&[frame]);
        assert_eq!(set.next_of(0), 1);
        let worker = &mut set.steered.workers[0];
        worker.hand_over();
        worker.complete();
        assert_eq!(receive(&mut set.server, 1).len(), 1);
    }
    // The dispatcher assigns requests up to the rest of the bound.
    assert_eq!(set.steered.steering.reserve(), Some(0));
    assert_eq!(set.steered.steering.reserve(), Some(0));
    assert_eq!(set.steered.steering.reserve(), None);
    set.send(&[&good]);
    assert_eq!(receive(&mut set.server, 1).len(), 1, "the overflow");
    set.steered.workers[0].complete();
    set.send(&[&good]);
    assert_eq!(set.next_of(0), 1);
    set.steered.workers[0].hand_over();
    assert_eq!(receive(&mut set.server, 1).len(), 1);
    // Without workers it is a device like any other.
    set.steered.steering.stop();
    set.steered.workers[0].complete();
    set.send(&[&good]);
    assert_eq!(receive(&mut set.server, 1).len(), 1);
}

#[test]
fn chunks_come_back_from_answers_and_hand_overs() {
    let Some(net) = Net::new("chunks_come_back_from_answers_and_hand_overs") else {
        return;
    };
    let config = XdpConfig {
        rx_frames: 64,
        ..XdpConfig::default()
    };
    let mut set = Set::new(&net, 3, 1, config);
    let body = [7; 1000];
    for number in 0..1000 {
        set.send(&[&request(KEY, number, &body)]);
        assert_eq!(set.next_of(0), number);
        let worker = &mut set.steered.workers[0];
        if number % 3 == 0 {
            worker.hand_over();
            worker.complete();
            let datagram = receive(&mut set.server, 1).remove(0);
            assert_eq!(datagram.bytes[28..], body);
        } else {
            assert!(!worker.answer([&PREAMBLE, &body, &body]), "too large");
            assert!(worker.answer([&PREAMBLE, &body, b""]));
            worker.complete();
            assert_eq!(receive(&mut set.client, 1)[0].bytes[8..], body);
            // A turn of the device gives the chunk of the answer back to the kernel.
            set.server.split().1.flush().expect("a healthy device");
            let burst = starling_io::PacketRx::rx_burst(set.server.split().0);
            assert_eq!(burst.expect("a healthy device"), 0);
        }
    }
    assert_eq!(set.server.drops(), Drops::default());
    // Workers may outlive the device.
    drop(set.server);
    assert!(!set.steered.workers[0].receive());
}

/// When the workers end, they have all of the device's 64 chunks but that of the first datagram.
#[test]
fn datagrams_of_ended_workers_go_to_the_device() {
    let Some(net) = Net::new("datagrams_of_ended_workers_go_to_the_device") else {
        return;
    };
    let config = XdpConfig {
        rx_frames: 64,
        ..XdpConfig::default()
    };
    let mut set = Set::new(&net, 8, 8, config);
    for number in 0..63 {
        set.send(&[&request(KEY, number, b"body")]);
    }
    for worker in &mut set.steered.workers {
        wait_for(&mut **worker);
    }
    set.steered.steering.stop();
    set.steered.workers.clear();
    let mut numbers: Vec<u64> = receive(&mut set.server, 63)
        .iter()
        .map(|datagram| number_of(&datagram.bytes))
        .collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..63));
    set.send(&[&request(KEY, 63, b"body")]);
    assert_eq!(number_of(&receive(&mut set.server, 1)[0].bytes), 63);
}

/// Frames without a chunk, at any socket of the queue.
#[test]
fn a_frame_without_a_chunk_is_counted_once() {
    let Some(net) = Net::new("a_frame_without_a_chunk_is_counted_once") else {
        return;
    };
    let config = XdpConfig {
        rx_frames: 64,
        ..XdpConfig::default()
    };
    let mut set = Set::new(&net, 8, 8, config);
    for number in 0..100 {
        set.send(&[&request(KEY, number, b"body")]);
    }
    let lost = |set: &Set| {
        let drops = set.server.drops();
        assert_eq!(drops.kernel, 0, "{drops:?}");
        drops.ring_full
    };
    let begun = Instant::now();
    // One chunk may still hold the first datagram of all.
    while lost(&set) < 36 {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "some are missing"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    set.steered.steering.stop();
    set.steered.workers.clear();
    let lost_before = lost(&set);
    let received = receive(&mut set.server, 100 - lost_before as usize);
    assert!((63..=64).contains(&received.len()));
    assert_eq!(lost(&set), lost_before);
}

#[test]
fn impossible_numbers_of_workers_are_refused() {
    let Some(net) = Net::new("impossible_numbers_of_workers_are_refused") else {
        return;
    };
    let mut device = net.at_b("xdp://vb/10.77.0.2:0");
    for (workers, depth) in [(0, 2), (64, 2), (1, 0), (1, 9)] {
        let error = device
            .steer(workers, depth, &TABLE)
            .err()
            .expect("out of range");
        assert_eq!(error.fault, Fault::Caller);
    }
    let steered = inside(&net.b, || device.steer(63, 8, &TABLE)).expect("as many as can be");
    assert_eq!(steered.workers.len(), 63);
    assert!(device.steer(1, 1, &TABLE).is_err(), "once");
    // The queue is free when all of its sockets are closed.
    drop((steered, device));
    net.at_b("xdp://vb/10.77.0.2:0");
}
