//! Peers that break the rules. They use the device's socket and memory directly, as the crate
//! documents them. The process has only one test, because it counts the open files.

mod common;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use common::hostile_peer::{
    BULK, BULK_RING, HEAP_BYTES, HostileHeap, HostilePeer, LINE_RING, MORE, VALID, connect,
    heap_seals, hello, memory, page, sealed_memory, send,
};
use common::{Device, PREAMBLE, name, open_files};
use rustix::fs::SealFlags;
use starling_io::{IoEvent, MAX_BURST, PacketIo, PacketRx, PacketTx, PeerGone, PeerId, TxError};
use starling_io_shm::ShmConfig;

/// Checks that the device refuses a hello with this code, or without an answer.
fn check_refused(server: &mut Device, message: &[u8], files: &[BorrowedFd<'_>], code: Option<u32>) {
    let socket = connect(&server.local_address());
    send(&socket, message, files);
    server.wait(None).unwrap();
    let mut hostile = HostilePeer {
        socket: socket.into(),
        memory: File::open("/dev/null").unwrap(),
    };
    assert_eq!(hostile.answer(), code, "{message:?}");
    assert!(hostile.was_cut_off());
}

fn wrong_hellos(server: &mut Device) {
    let right = sealed_memory();
    let file = right.as_fd();
    let hello = hello();
    check_refused(server, b"GET / HTTP/1.1\r\n\r\n", &[], Some(1));
    check_refused(server, &[], &[], Some(1));
    check_refused(server, &hello, &[], Some(1));
    check_refused(server, &hello, &[file, file], Some(1));
    check_refused(server, &hello, &[file; 3], Some(1));
    check_refused(server, &hello, &[file; 200], Some(1));
    check_refused(server, &[7; 100_000], &[file], Some(1));
    check_refused(server, &hello[..23], &[file], Some(1));
    let mut other_version = hello;
    other_version[8] = 9;
    check_refused(server, &other_version, &[file], Some(2));
    let mut too_large = hello;
    too_large[16..].copy_from_slice(&(1u64 << 40).to_le_bytes());
    check_refused(server, &too_large, &[file], Some(3));
    // A size that a careful device does not need, and datagrams that none sends.
    let mut ring_of_16_mib = hello;
    ring_of_16_mib[12..16].copy_from_slice(&(4u32 << 20).to_le_bytes());
    ring_of_16_mib[16..].copy_from_slice(&(16u64 << 20).to_le_bytes());
    check_refused(server, &ring_of_16_mib, &[file], Some(3));
    let mut large_datagrams = hello;
    large_datagrams[12..16].copy_from_slice(&65_560u32.to_le_bytes());
    large_datagrams[16..].copy_from_slice(&(1u64 << 20).to_le_bytes());
    check_refused(server, &large_datagrams, &[file], Some(1));
    let mut other_size = hello;
    other_size[16..].copy_from_slice(&(2 * BULK_RING).to_le_bytes());
    check_refused(server, &other_size, &[file], Some(4));
    let bytes = right.metadata().unwrap().len();
    let unsealed = memory(bytes, SealFlags::empty());
    check_refused(server, &hello, &[unsealed.as_fd()], Some(4));
    let can_shrink = memory(bytes, SealFlags::GROW | SealFlags::SEAL);
    check_refused(server, &hello, &[can_shrink.as_fd()], Some(4));
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let short = memory(bytes - 1, seals);
    check_refused(server, &hello, &[short.as_fd()], Some(4));
    let read_only = memory(bytes, seals | SealFlags::WRITE);
    check_refused(server, &hello, &[read_only.as_fd()], Some(4));
    let no_memory = File::open("/dev/zero").unwrap();
    check_refused(server, &hello, &[no_memory.as_fd()], Some(4));
}

/// Connections that send no hello neither keep others out nor accumulate.
fn silent_connections(server: &mut Device, files_before: usize) {
    let silent: Vec<OwnedFd> = (0..300)
        .map(|_| {
            let socket = connect(&server.local_address());
            server.wait(None).unwrap();
            socket
        })
        .collect();
    server.wait_for_files(files_before + silent.len() + 64);
    // A peer that does send a hello is still accepted. It leaves without a datagram, so without an
    // event.
    drop(HostilePeer::connected(server));
    drop(silent);
    server.wait_for_files(files_before);
    assert_eq!(server.event(), None);
}

/// Invalid headers: the device disconnects the peer, without an event if the peer was never known.
fn broken_headers(server: &mut Device) {
    let bulk_too_long = VALID | BULK | (BULK_RING as u32 / 4 + 1);
    for header in [
        1,
        VALID,
        VALID | 0x1ff_ffff,
        VALID | BULK,
        bulk_too_long,
        u32::MAX,
    ] {
        let mut hostile = HostilePeer::connected(server);
        hostile.write(0, &header.to_ne_bytes());
        assert_eq!(server.poll(), 0);
        assert_eq!(server.event(), None);
        assert!(hostile.was_cut_off(), "{header:#x}");

        let mut hostile = HostilePeer::connected(server);
        hostile.publish(0, b"decent so far");
        let (peer, datagram) = server.receive();
        assert_eq!(datagram, b"decent so far");
        hostile.write(64, &header.to_ne_bytes());
        let gone = IoEvent::PeerGone(peer, PeerGone::Certain);
        assert_eq!(server.wait_for_event(), gone);
        assert!(hostile.was_cut_off(), "{header:#x}");
        let (_, tx) = server.split();
        assert_eq!(tx.append(peer, PREAMBLE, b"", b"", b""), Err(TxError::Gone));
        server.close_peer(peer);
    }
}

/// Invalid heads: the device finds them when it needs room.
fn broken_heads(server: &mut Device) {
    for head in [1u64, 64 << 20, u64::MAX] {
        let mut hostile = HostilePeer::connected(server);
        hostile.publish(0, b"hello");
        let (peer, _) = server.receive();
        let (_, tx) = server.split();
        // The heads of the rings that the accepting side produces into.
        hostile
            .memory
            .write_all_at(&head.to_ne_bytes(), 128)
            .unwrap();
        let error = loop {
            if let Err(error) = tx.append(peer, PREAMBLE, &[1; 500], b"", b"") {
                break error;
            }
        };
        assert_eq!(error, TxError::Gone);
        let gone = IoEvent::PeerGone(peer, PeerGone::Certain);
        assert_eq!(server.wait_for_event(), gone);
        server.close_peer(peer);
        assert!(hostile.was_cut_off());
    }
}

/// Heaps that could fault or lose pages, and records for heaps that never come. The device disconnects
/// the peer.
fn broken_heaps(server: &mut Device) -> u64 {
    let seals = heap_seals();
    let right = memory(HEAP_BYTES, seals);
    let unsealed = memory(HEAP_BYTES, SealFlags::empty());
    let can_shrink = memory(HEAP_BYTES, seals - SealFlags::SHRINK);
    let can_lose_pages = memory(HEAP_BYTES, seals - SealFlags::FUTURE_WRITE);
    let short = memory(HEAP_BYTES - 1, seals);
    let no_memory = File::open("/dev/zero").unwrap();
    let file = right.as_fd();
    let cases: [(u64, &[BorrowedFd<'_>]); 11] = [
        (HEAP_BYTES, &[]),
        (HEAP_BYTES, &[file, file]),
        (HEAP_BYTES, &[unsealed.as_fd()]),
        (HEAP_BYTES, &[can_shrink.as_fd()]),
        (HEAP_BYTES, &[can_lose_pages.as_fd()]),
        (HEAP_BYTES, &[short.as_fd()]),
        (HEAP_BYTES, &[no_memory.as_fd()]),
        (2 * HEAP_BYTES, &[file]),
        (HEAP_BYTES + 4096, &[file]),
        (0, &[file]),
        (1 << 50, &[file]),
    ];
    for (bytes, files) in cases {
        let mut hostile = HostilePeer::connected(server);
        hostile.send_heap(bytes, files);
        server.wait(None).unwrap();
        assert_eq!(server.event(), None);
        assert!(hostile.was_cut_off(), "{bytes} {files:?}");
    }
    // A record with a descriptor, and no heap.
    let mut hostile = HostilePeer::connected(server);
    hostile.publish(0, b"decent so far");
    let (peer, _) = server.receive();
    hostile.publish_lent(1, 0, 100);
    assert_eq!(server.poll(), 0);
    assert_eq!(
        server.wait_for_event(),
        IoEvent::PeerGone(peer, PeerGone::Certain)
    );
    assert!(hostile.was_cut_off());
    server.close_peer(peer);
    cases.len() as u64 + 1
}

/// Descriptors that describe nothing in the heap.
fn broken_descriptors(server: &mut Device) -> u64 {
    let heap = HostileHeap::new();
    heap.write(HEAP_BYTES - 11, b"in the heap");
    let cases = [
        (0, 0),
        (HEAP_BYTES, 1),
        (HEAP_BYTES - 99, 100),
        (u64::MAX, 1),
        (u64::MAX - 50, 100),
        (0, BULK_RING as u32 / 4 - 8 + 1),
        (0, u32::MAX),
    ];
    for (at, bytes) in cases {
        let mut hostile = HostilePeer::connected(server);
        // The heap is behind more messages than the device receives in one poll.
        for _ in 0..100 {
            send(&hostile.socket, &[1], &[]);
        }
        hostile.send_heap(HEAP_BYTES, &[heap.file.as_fd()]);
        hostile.publish_lent(0, HEAP_BYTES - 11, 11);
        let (peer, datagram) = server.receive();
        assert_eq!(datagram, b"in the heap");
        // It has its heap: another one is not opened.
        hostile.send_heap(HEAP_BYTES, &[heap.file.as_fd()]);
        hostile.publish_lent(1, at, bytes);
        assert_eq!(server.poll(), 0);
        let gone = IoEvent::PeerGone(peer, PeerGone::Certain);
        assert_eq!(server.wait_for_event(), gone, "{at} {bytes}");
        assert!(hostile.was_cut_off());
        server.close_peer(peer);
    }
    cases.len() as u64
}

/// The peer changes its heap after the device has read it, and tries to make holes in it.
fn changing_heap(server: &mut Device) {
    let heap = HostileHeap::new();
    let hostile = HostilePeer::connected(server);
    hostile.send_heap(HEAP_BYTES, &[heap.file.as_fd()]);
    heap.write(5000, b"original");
    hostile.publish_lent(0, 5000, 8);
    assert_eq!(server.receive().1, b"original");
    hostile.publish_lent(1, 5000, 8);
    let (rx, _) = server.split();
    assert_eq!(rx.rx_burst().unwrap(), 1);
    heap.write(5000, b"changed!");
    assert_eq!(&rx.datagram(0).bytes[8..], b"original");
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    assert!(rustix::fs::fallocate(&heap.file, flags, 0, HEAP_BYTES).is_err());
    assert!(heap.file.set_len(0).is_err(), "its size is final");
    hostile.publish_lent(2, 5000, 8);
    assert_eq!(server.receive().1, b"changed!");
    leave(server, hostile);
}

/// The peer sends what it has never written: it arrives as zeros, and no page is made, for which the
/// device's process would pay.
fn holes_in_a_heap(server: &mut Device) {
    const TAIL: u32 = BULK_RING as u32 / 4 - 8;
    let heap = HostileHeap::new();
    let hostile = HostilePeer::connected(server);
    hostile.send_heap(HEAP_BYTES, &[heap.file.as_fd()]);
    let mut line = 0;
    let mut receive = |at: u64| {
        hostile.publish_lent(line, at, TAIL);
        line += 1;
        server.receive().1
    };
    let last = HEAP_BYTES - u64::from(TAIL);
    for at in (0..last).step_by(TAIL as usize).chain([last]) {
        assert!(receive(at) == [0; TAIL as usize]);
        assert_eq!(heap.taken(), 0);
    }
    // The same around pages that are there.
    let written = [HEAP_BYTES / 2 - 3, HEAP_BYTES - 1000];
    for at in written {
        heap.write(at, b"written");
    }
    let pages = heap.taken();
    assert!((2 * page()..=3 * page()).contains(&pages));
    for _ in 0..3 {
        let datagram = receive(HEAP_BYTES / 2 - 5000);
        assert_eq!(&datagram[4997..5004], b"written");
        assert!(
            datagram[..4997]
                .iter()
                .chain(&datagram[5004..])
                .all(|byte| *byte == 0)
        );
        assert_eq!(receive(last)[TAIL as usize - 1000..][..7], *b"written");
        assert_eq!(heap.taken(), pages);
    }
    leave(server, hostile);
}

/// The peer changes memory that the device has read. A received datagram does not change.
fn changing_memory(server: &mut Device) {
    let hostile = HostilePeer::connected(server);
    hostile.publish(0, b"original");
    let (rx, _) = server.split();
    assert_eq!(rx.rx_burst().unwrap(), 1);
    hostile.write(0, &[0xff; 64]);
    assert_eq!(&rx.datagram(0).bytes[8..], b"original");
    leave(server, hostile);
}

/// Endless doorbell messages and a sleep word that always changes.
fn noise(server: &mut Device) {
    let hostile = HostilePeer::connected(server);
    hostile.publish(0, b"hello");
    let (peer, _) = server.receive();
    for number in 0..5000u64 {
        send(&hostile.socket, b"bell?", &[]);
        let word = number << 2 | 3;
        hostile
            .memory
            .write_all_at(&word.to_ne_bytes(), 256)
            .unwrap();
        let (_, tx) = server.split();
        // The ring is full at some point, because the peer does not read it.
        let _ = tx.append(peer, PREAMBLE, b"x", b"", b"");
        tx.flush().unwrap();
        if number % 10 == 0 {
            server.wait(None).unwrap();
        }
    }
    leave(server, hostile);
}

/// Files that the device does not expect, before and after the heap.
fn unexpected_files(server: &mut Device) -> u64 {
    let heap = memory(HEAP_BYTES, heap_seals());
    for has_heap in [false, true] {
        let mut hostile = HostilePeer::connected(server);
        if has_heap {
            hostile.send_heap(HEAP_BYTES, &[heap.as_fd()]);
        }
        send(&hostile.socket, b"bell?", &[]);
        send(&hostile.socket, b"bell?", &[heap.as_fd(); 3]);
        server.wait(None).unwrap();
        assert_eq!(server.event(), None);
        assert!(hostile.was_cut_off(), "{has_heap}");
    }
    2
}

/// Peers that leave, and whose rings are full of headers, so that the last datagram which is delivered of
/// each fills a burst.
fn full_rings_of_peers_that_left(server: &mut Device) {
    const HOSTILE: u64 = 4;
    let hostile_peers: Vec<HostilePeer> = (0..HOSTILE)
        .map(|_| HostilePeer::connected(server))
        .collect();
    let lines = LINE_RING / 64;
    assert!(lines.is_multiple_of(MAX_BURST as u64));
    for hostile in hostile_peers {
        for line in 0..lines {
            hostile.publish(line, b"once more");
            let header = VALID | MORE | (PREAMBLE.len() + 9) as u32;
            hostile.write(64 * line, &header.to_ne_bytes());
        }
    }
    for _ in 0..HOSTILE {
        let event = loop {
            server.poll();
            if let Some(event) = server.poll_event() {
                break event;
            }
        };
        let IoEvent::PeerGone(peer, PeerGone::Certain) = event else {
            panic!("another event");
        };
        server.close_peer(peer);
    }
    let mut datagrams = 0;
    while let Some((_, datagram)) = server.take_received() {
        assert_eq!(datagram, b"once more");
        datagrams += 1;
    }
    assert!(datagrams >= HOSTILE * lines, "at least all of each ring");
}

fn leave(server: &mut Device, hostile: HostilePeer) {
    drop(hostile);
    let IoEvent::PeerGone(peer, PeerGone::Certain) = server.wait_for_event() else {
        panic!("another event");
    };
    server.close_peer(peer);
}

#[test]
fn peers_that_break_the_rules_are_disconnected_and_honest_peers_are_not_affected() {
    let address = name("hostile");
    let config = ShmConfig {
        ring_bytes: 64 << 10,
        ..ShmConfig::default()
    };
    let mut server = Device::bind(&address, &config);
    let mut honest = Device::client(&config);
    let to_server = honest.open_peer(&address).unwrap();
    let mut known: Option<PeerId> = None;
    let mut check = |server: &mut Device| {
        honest.send(to_server, b"still fine");
        let (from, datagram) = server.receive();
        assert_eq!(datagram, b"still fine");
        assert_eq!(*known.get_or_insert(from), from);
        server.send(from, b"indeed");
        assert_eq!(honest.receive(), (to_server, b"indeed".to_vec()));
        assert_eq!(server.event(), None);
    };
    check(&mut server);
    let files_before = open_files();
    let mut check = |server: &mut Device| {
        check(server);
        server.wait_for_files(files_before);
    };
    wrong_hellos(&mut server);
    check(&mut server);
    silent_connections(&mut server, files_before);
    check(&mut server);
    broken_headers(&mut server);
    assert_eq!(server.report().count("peers_cut_off"), Some(12));
    check(&mut server);
    broken_heads(&mut server);
    assert_eq!(server.report().count("peers_cut_off"), Some(15));
    check(&mut server);
    let cut_off = 15 + broken_heaps(&mut server);
    assert_eq!(server.report().count("peers_cut_off"), Some(cut_off));
    check(&mut server);
    let cut_off = cut_off + broken_descriptors(&mut server);
    assert_eq!(server.report().count("peers_cut_off"), Some(cut_off));
    check(&mut server);
    changing_heap(&mut server);
    holes_in_a_heap(&mut server);
    changing_memory(&mut server);
    noise(&mut server);
    full_rings_of_peers_that_left(&mut server);
    let cut_off = cut_off + unexpected_files(&mut server);
    assert_eq!(server.report().count("peers_cut_off"), Some(cut_off));
    check(&mut server);
}
