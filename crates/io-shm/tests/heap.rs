//! Messages in a device's own memory, which its peers copy from where they were made.

mod common;

use bytes::Bytes;
use common::{Device, PREAMBLE, name};
use starling_io::{
    IoEvent, MessageMemory, PacketIo, PacketRx, PacketTx, PeerGone, PeerId, TxError,
};
use starling_io_shm::ShmConfig;

const KIB: usize = 1 << 10;

fn small_heap() -> ShmConfig {
    ShmConfig {
        heap_bytes: 256 * KIB,
        ..ShmConfig::default()
    }
}

/// A client that knows that its server takes heaps. `from` is its number at the server.
struct Pair {
    server: Device,
    client: Device,
    peer: PeerId,
    from: PeerId,
}

fn pair(test: &str, config: &ShmConfig) -> Pair {
    let name = name(test);
    let mut server = Device::bind(&name, config);
    let mut client = Device::client(config);
    let (peer, from) = greet(&mut client, &mut server);
    Pair {
        server,
        client,
        peer,
        from,
    }
}

fn greet(client: &mut Device, server: &mut Device) -> (PeerId, PeerId) {
    let peer = client.open_peer(&server.local_address()).unwrap();
    client.send(peer, b"hello");
    let (from, _) = server.receive();
    server.send(from, b"hello");
    assert_eq!(client.receive().0, peer);
    // The welcome is in the socket.
    assert_eq!(client.event(), None);
    client.wait(Some(std::time::Duration::ZERO)).unwrap();
    (peer, from)
}

/// Bytes that follow from their seed and their place.
fn pattern(seed: u8, len: usize) -> Vec<u8> {
    let byte = |at: usize| (at as u8 ^ (at >> 8) as u8).wrapping_add(seed);
    (0..len).map(byte).collect()
}

fn make(memory: &MessageMemory, seed: u8, len: usize) -> Bytes {
    memory.copy(&pattern(seed, len))
}

#[test]
fn parts_of_a_message_arrive_out_of_the_heap() {
    let mut pair = pair("parts", &ShmConfig::default());
    let memory = pair.client.memory();
    assert!(memory.is_of_device());
    let message = make(&memory, 1, 300_000);
    let parts = [
        0..60_000,
        60_000..120_001,
        120_001..123_000,
        299_999..300_000,
    ];
    for part in parts.clone() {
        pair.client.send_tail(pair.peer, &message[part.clone()]);
        let (from, datagram) = pair.server.receive();
        assert_eq!(from, pair.from);
        assert!(datagram == message[part]);
    }
    // The last one is too short to be worth it.
    assert_eq!(pair.client.gathered(), parts.len() as u64 - 1);
    // Again, as a retransmission is, and with the message dropped before the server reads.
    pair.client.send_tail(pair.peer, &message[..60_000]);
    drop(message);
    assert!(pair.server.receive().1 == pattern(1, 300_000)[..60_000]);
    // A datagram of frames, the last of which is in the heap.
    let message = make(&memory, 2, 5000);
    let (_, tx) = pair.client.split();
    tx.append(pair.peer, PREAMBLE, b"small", b"", b"").unwrap();
    tx.append(pair.peer, PREAMBLE, b"head", b"body", &message)
        .unwrap();
    tx.append(pair.peer, PREAMBLE, b"small", b"", b"").unwrap();
    tx.flush().unwrap();
    assert_eq!(pair.server.receive().1, b"small");
    assert!(pair.server.receive().1 == [b"headbody", &message[..]].concat());
    assert_eq!(pair.server.receive().1, b"small");
}

/// Has the server leave tails in the heap after an empty head. It has the heap already.
fn leave_tails(pair: &mut Pair) {
    let message = make(&pair.client.memory(), 9, 5000);
    pair.client.send_tail(pair.peer, &message);
    assert!(pair.server.receive().1 == message);
    pair.server.split().0.leave_tails(|head| head == PREAMBLE);
}

#[test]
fn a_tail_stays_in_the_heap_until_the_burst_is_over() {
    let mut pair = pair("left", &small_heap());
    leave_tails(&mut pair);
    let memory = pair.client.memory();
    let message = make(&memory, 1, 192 * KIB);
    pair.client.send(pair.peer, b"small");
    pair.client.send_tail(pair.peer, &message[..60_000]);
    pair.client.send(pair.peer, b"small");
    drop(message);
    let rx = pair.server.split().0;
    let mut seen = 0;
    let mut tails = 0;
    while seen < 3 {
        let count = rx.rx_burst().unwrap();
        assert_ne!(count, 0, "all were sent");
        for index in 0..count {
            let (bytes, tail) = (rx.datagram(index).bytes, rx.tail_bytes(index));
            if tail == 0 {
                assert_eq!(bytes, [PREAMBLE, &b"small"[..]].concat());
                continue;
            }
            assert_eq!((bytes, tail), (&PREAMBLE[..], 60_000));
            let mut copied = vec![0; tail];
            assert!(rx.copy_tail(index, &mut copied));
            assert!(copied == pattern(1, 60_000));
            // What was consumed would be found now. The heap has no room for a second message.
            pair.client.wait(Some(std::time::Duration::ZERO)).unwrap();
            let second = make(&memory, 2, 192 * KIB);
            let mut appended = b"first".to_vec();
            assert!(rx.append_tail(index, &mut appended));
            assert!(appended == [b"first", &pattern(1, 60_000)[..]].concat());
            drop(second);
            tails += 1;
        }
        seen += count;
    }
    assert_eq!(tails, 1);
    let gathered = pair.client.gathered();
    assert_eq!(rx.rx_burst().unwrap(), 0);
    pair.client.wait(Some(std::time::Duration::ZERO)).unwrap();
    let message = make(&memory, 3, 192 * KIB);
    pair.client.send_tail(pair.peer, &message[..60_000]);
    assert_eq!(pair.client.gathered(), gathered + 1, "the heap has room");
}

#[test]
fn a_tail_that_its_sender_has_taken_back_is_lost() {
    let mut pair = pair("taken-back", &small_heap());
    leave_tails(&mut pair);
    let message = make(&pair.client.memory(), 1, 100_000);
    pair.client.send_tail(pair.peer, &message[..60_000]);
    let rx = pair.server.split().0;
    assert_eq!(rx.rx_burst().unwrap(), 1);
    pair.client.close_peer(pair.peer);
    let mut copied = vec![0; 60_000];
    assert!(!rx.copy_tail(0, &mut copied));
    assert!(!rx.append_tail(0, &mut Vec::new()));
}

#[test]
fn a_long_head_is_copied_with_its_tail() {
    let mut pair = pair("long-head", &ShmConfig::default());
    let message = make(&pair.client.memory(), 1, 5000);
    let body = pattern(9, 4000);
    let before = pair.client.gathered();
    let (_, tx) = pair.client.split();
    tx.append(pair.peer, PREAMBLE, b"head", &body, &message)
        .unwrap();
    tx.flush().unwrap();
    assert!(pair.server.receive().1 == [b"head", &body[..], &message[..]].concat());
    assert_eq!(pair.client.gathered(), before);
}

#[test]
fn a_message_goes_to_several_peers_and_their_memory_comes_back() {
    let config = small_heap();
    let mut client = Device::client(&config);
    let mut servers = ["several-1", "several-2", "several-3"].map(|test| {
        let mut server = Device::bind(&name(test), &config);
        let (peer, _) = greet(&mut client, &mut server);
        (server, peer)
    });
    let memory = client.memory();
    for round in 0..20 {
        // Three quarters of the heap: there is no room for two.
        let message = make(&memory, round, 192 * KIB);
        for (_, peer) in &servers {
            client.send_tail(*peer, &message[1000..50_000]);
        }
        drop(message);
        assert_eq!(client.gathered(), 3 * (u64::from(round) + 1));
        for (server, _) in &mut servers {
            assert!(server.receive().1 == pattern(round, 192 * KIB)[1000..50_000]);
        }
        // The next wait finds what was consumed.
        client.wait(Some(std::time::Duration::ZERO)).unwrap();
    }
}

#[test]
fn a_full_heap_falls_back_to_ordinary_memory() {
    let mut pair = pair("full-heap", &small_heap());
    let memory = pair.client.memory();
    let first = make(&memory, 1, 200 * KIB);
    let second = make(&memory, 2, 200 * KIB);
    let too_large = make(&memory, 3, 300 * KIB);
    for (seed, message, gathered) in [(1, &first, 1), (2, &second, 1), (3, &too_large, 1)] {
        pair.client.send_tail(pair.peer, &message[..60_000]);
        assert!(pair.server.receive().1 == pattern(seed, 60_000));
        assert_eq!(pair.client.gathered(), gathered);
    }
}

/// The server does not read: all that was sent to it stays as it was, however little room is left.
#[test]
fn memory_is_not_used_again_before_the_peer_has_consumed_it() {
    let mut pair = pair("not-again", &small_heap());
    let memory = pair.client.memory();
    let mut sent = Vec::new();
    for seed in 0..30 {
        let message = make(&memory, seed, 30_000);
        pair.client.send_tail(pair.peer, &message);
        sent.push(seed);
        if seed == 20 {
            for seed in sent.drain(..10) {
                assert!(pair.server.receive().1 == pattern(seed, 30_000));
            }
            pair.client.wait(Some(std::time::Duration::ZERO)).unwrap();
        }
    }
    let gathered = pair.client.gathered();
    assert!((10..30).contains(&gathered), "{gathered}");
    for seed in sent {
        assert!(pair.server.receive().1 == pattern(seed, 30_000));
    }
}

/// What a sender puts into the heap unasked is for one peer, and nobody else gets the heap.
#[test]
fn memory_for_one_peer_is_shared_with_nobody_else() {
    let config = small_heap();
    let mut client = Device::client(&config);
    let mut servers = ["exclusive-1", "exclusive-2"].map(|test| {
        let mut server = Device::bind(&name(test), &config);
        let (peer, _) = greet(&mut client, &mut server);
        (server, peer)
    });
    let memory = client.memory();
    let of = |server: &Device| memory.of_peer(&server.local_address());
    let bytes = pattern(1, 60_000);
    assert!(
        of(&servers[0].0).copy(&bytes[..1000]).is_none(),
        "it is small"
    );
    let message = of(&servers[0].0).copy(&bytes).expect("room");
    assert!(
        of(&servers[1].0).copy(&bytes).is_none(),
        "the heap is the other's"
    );
    let by_hand = make(&memory, 2, 60_000);
    for (sent, gathered) in [(&message, 1), (&by_hand, 2)] {
        for (server, peer) in &mut servers {
            client.send_tail(*peer, sent);
            assert!(server.receive().1 == *sent);
        }
        // Out of the heap by one, through the ring by the other.
        assert_eq!(client.gathered(), gathered);
    }
}

#[test]
fn memory_of_another_device_is_copied() {
    let mut pair = pair("foreign", &ShmConfig::default());
    let other = Device::client(&ShmConfig::default());
    let message = make(&other.memory(), 1, 60_000);
    pair.client.send_tail(pair.peer, &message);
    assert!(pair.server.receive().1 == message);
    assert_eq!(pair.client.gathered(), 0);
}

/// The memory of a server for one of its clients.
fn memory_for(server: &mut Device, client: PeerId) -> MessageMemory {
    server.split().1.peer_info(client).memory
}

#[test]
fn each_client_of_a_server_has_a_heap_that_no_other_reads() {
    let mut pair = pair("of-clients", &ShmConfig::default());
    let mut other = Device::client(&ShmConfig::default());
    let (_, other_from) = greet(&mut other, &mut pair.server);
    assert!(!pair.server.memory().is_of_device(), "it is for nobody");
    let memory = memory_for(&mut pair.server, pair.from);
    assert!(memory.is_of_device());
    let message = make(&memory, 1, 100_000);
    for round in 1..4 {
        pair.server.send_tail(pair.from, &message[..60_000]);
        assert!(pair.client.receive().1 == message[..60_000]);
        assert_eq!(pair.server.gathered(), round);
    }
    pair.server.send_tail(other_from, &message[..60_000]);
    assert!(other.receive().1 == message[..60_000]);
    assert_eq!(pair.server.gathered(), 3, "the other one gets a copy");
}

#[test]
fn a_client_that_takes_no_such_heap_has_ordinary_memory_at_its_server() {
    for max_accepted_heap_bytes in [0, 8 << 20] {
        let config = ShmConfig {
            max_accepted_heap_bytes,
            ..ShmConfig::default()
        };
        let test = format!("client-takes-{max_accepted_heap_bytes}");
        let mut server = Device::bind(&name(&test), &ShmConfig::default());
        let mut client = Device::client(&config);
        let (_, from) = greet(&mut client, &mut server);
        let memory = memory_for(&mut server, from);
        assert!(!memory.is_of_device());
        let message = make(&memory, 1, 60_000);
        server.send_tail(from, &message);
        assert!(client.receive().1 == message);
        assert_eq!(server.gathered(), 0);
    }
}

/// Each has a quarter of the bytes, and those of one process have half together. A client that goes leaves its part.
#[test]
fn the_heaps_of_clients_have_one_budget() {
    let config = ShmConfig {
        heap_bytes: 512 * KIB,
        ..ShmConfig::default()
    };
    let mut server = Device::bind(&name("one-budget"), &config);
    let mut clients: Vec<_> = (0..3)
        .map(|_| {
            let mut client = Device::client(&config);
            let (_, from) = greet(&mut client, &mut server);
            (client, from)
        })
        .collect();
    let sizes = [128 * KIB, 124 * KIB, 4 * KIB];
    let mut most = Vec::new();
    for round in 0..2 {
        let mut kept = Vec::new();
        most.clear();
        for (client, from) in &mut clients {
            let memory = memory_for(&mut server, *from);
            assert!(memory.is_of_device());
            // The first one that lies in the heap.
            let gathered = server.gathered();
            let found = sizes.iter().find(|size| {
                let message = make(&memory, round, **size);
                server.send_tail(*from, &message[..4 * KIB]);
                assert!(client.receive().1 == message[..4 * KIB]);
                kept.push(message);
                server.gathered() > gathered
            });
            most.push(found.copied());
        }
        if round == 0 {
            // A message so large begins in the middle of a page, so none is as large as the heap.
            assert_eq!(most, [Some(124 * KIB), Some(124 * KIB), None]);
            // Its pages stay, also if no message is in them, until it is gone.
            kept.clear();
            let (client, from) = clients.remove(0);
            drop(client);
            let gone = IoEvent::PeerGone(from, PeerGone::Certain);
            assert_eq!(server.wait_for_event(), gone);
            server.close_peer(from);
        }
    }
    assert_eq!(most, [Some(124 * KIB), Some(124 * KIB)]);
}

#[test]
fn a_peer_that_takes_no_such_heap_gets_copies() {
    for max_accepted_heap_bytes in [0, 128 * KIB] {
        let address = name(&format!("takes-{max_accepted_heap_bytes}"));
        let config = ShmConfig {
            max_accepted_heap_bytes,
            ..ShmConfig::default()
        };
        let mut server = Device::bind(&address, &config);
        let mut client = Device::client(&small_heap());
        let (peer, _) = greet(&mut client, &mut server);
        let message = make(&client.memory(), 1, 60_000);
        client.send_tail(peer, &message);
        assert!(server.receive().1 == message);
        assert_eq!(client.gathered(), 0);
        // What nobody has asked for is not put there.
        assert!(client.memory().of_peer(&address).copy(&message).is_none());
    }
    let none = ShmConfig {
        heap_bytes: 0,
        ..ShmConfig::default()
    };
    assert!(!Device::client(&none).memory().is_of_device());
}

/// The peer is gone, or the connection closed, with records that nobody has consumed.
#[test]
fn a_connection_that_ends_gives_its_messages_back() {
    let address = name("gives-back");
    let mut client = Device::client(&small_heap());
    let memory = client.memory();
    for round in 0..6 {
        let mut server = Device::bind(&address, &ShmConfig::default());
        let (peer, from) = greet(&mut client, &mut server);
        let message = make(&memory, round, 200 * KIB);
        client.send_tail(peer, &message[..60_000]);
        client.send_tail(peer, &message[60_000..120_000]);
        drop(message);
        assert_eq!(client.gathered(), 2 * (u64::from(round) + 1));
        if round % 2 == 0 {
            drop(server);
            let gone = IoEvent::PeerGone(peer, PeerGone::Certain);
            assert_eq!(client.wait_for_event(), gone);
            client.close_peer(peer);
        } else {
            client.close_peer(peer);
            // The server may still read the ring. It gets nothing of what uses the memory next.
            let _other = make(&memory, 99, 200 * KIB);
            let gone = IoEvent::PeerGone(from, PeerGone::Certain);
            assert_eq!(server.wait_for_event(), gone);
            assert_eq!(server.take_received(), None);
        }
        let (_, tx) = client.split();
        assert_eq!(tx.append(peer, PREAMBLE, b"", b"", b""), Err(TxError::Gone));
    }
}

/// What a device that is dropped has lent stays as it is, also if messages are made after it.
#[test]
fn datagrams_of_a_dropped_device_are_delivered() {
    let mut pair = pair("dropped", &small_heap());
    let memory = pair.client.memory();
    let message = make(&memory, 1, 200 * KIB);
    pair.client.send_tail(pair.peer, &message[..60_000]);
    drop(message);
    drop(pair.client);
    let later = make(&memory, 2, 200 * KIB);
    assert!(pair.server.receive().1 == pattern(1, 200 * KIB)[..60_000]);
    assert!(later == pattern(2, 200 * KIB));
    assert_eq!(
        pair.server.wait_for_event(),
        IoEvent::PeerGone(pair.from, PeerGone::Certain)
    );
}
