//! Messages in packet memory, which the device sends without a copy.

mod common;

use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{Net, PREAMBLE, check_no_drops, meet, receive, receive_burst};
use starling_io::{MessageMemory, PacketIo, PacketRx, PacketTx, PeerId};
use starling_io_xdp::{XdpConfig, XdpIo};
use starling_netns::{IPV4, Shape, inside};

/// Memory for messages of all devices here, in bytes.
const MEMORY: usize = 1 << 20;

/// The size at which a device of these tests begins to gather parts. Real settings are larger.
const GATHER_FROM: usize = 64;

/// A small random generator (Marsaglia's xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}

fn net(test: &str, mtu: u32) -> Option<Net> {
    let shape = Shape {
        mtu,
        ..Shape::default()
    };
    Net::with_shape(test, shape)
}

fn gathering() -> XdpConfig {
    XdpConfig {
        message_memory: MEMORY,
        gather_from: Some(GATHER_FROM),
        runs_by_socket: Some(false),
        ..XdpConfig::default()
    }
}

/// A device in `a` that gathers, and one in `b` that it has met.
fn devices(net: &Net, ip: [&str; 2], options: &str) -> (XdpIo, XdpIo, PeerId) {
    devices_with(net, gathering(), ip, options)
}

fn devices_with(
    net: &Net,
    config: XdpConfig,
    ip: [&str; 2],
    options: &str,
) -> (XdpIo, XdpIo, PeerId) {
    let mut b = net.at_b(&format!("xdp://vb/{}:0{options}", ip[1]));
    let port = b.local_socket_address().port();
    let own = format!("xdp://va/{}:0{options}", ip[0]);
    let mut a = inside(&net.a, || XdpIo::bind(&own, config)).expect("a device");
    assert!(a.memory().is_of_device());
    let to_b = format!("xdp://va/{}:{port}", ip[1]);
    let (to_b, _) = meet(&mut a, &mut b, &to_b);
    // The next hop of an opened peer is known at once.
    for _ in 0..5_000 {
        if gathered(&a) > 0 {
            break;
        }
        let tail = a.memory().copy(&[1; GATHER_FROM]);
        let tx = a.split().1;
        tx.append(to_b, PREAMBLE, b"", b"", &tail).expect("room");
        tx.flush().expect("a healthy device");
        let datagram = receive(&mut b, 1).remove(0);
        assert_eq!(datagram.bytes[8..], [1; GATHER_FROM]);
    }
    assert!(gathered(&a) > 0, "the next hop stays unknown");
    (a, b, to_b)
}

fn gathered(device: &XdpIo) -> u64 {
    device.report().count("tx_gathered").expect("it is counted")
}

/// Sends `tail` alone, checks that it arrives, and returns whether it was gathered.
fn send(a: &mut XdpIo, b: &mut XdpIo, to: PeerId, tail: &[u8]) -> bool {
    let before = gathered(a);
    let tx = a.split().1;
    tx.append(to, PREAMBLE, b"head", b"", tail).expect("room");
    tx.seal(to);
    tx.flush().expect("a healthy device");
    let datagram = receive(b, 1).remove(0);
    assert!(datagram.bytes == [&PREAMBLE[..], b"head", tail].concat());
    gathered(a) > before
}

/// Whether all of the memory is free: a message of that size is gathered.
fn is_all_free(a: &mut XdpIo, b: &mut XdpIo, to: PeerId) -> bool {
    let all = a.memory().make(MEMORY, |room| room.fill(9));
    send(a, b, to, &all[..GATHER_FROM])
}

/// Whether `datagrams` hold the bytes of `expected`: each a part of them, in the order in which they
/// arrived or in another.
fn are_parts_of(mut datagrams: Vec<Vec<u8>>, mut expected: &[u8], in_order: bool) -> bool {
    while let Some(next) = match in_order {
        true => (!datagrams.is_empty()).then_some(0),
        // Of those that begin alike, the longest: the others are left for what is equal to them.
        false => (0..datagrams.len())
            .filter(|&at| expected.starts_with(&datagrams[at]))
            .max_by_key(|&at| datagrams[at].len()),
    } {
        match expected.strip_prefix(&datagrams.remove(next)[..]) {
            Some(rest) => expected = rest,
            None => return false,
        }
    }
    datagrams.is_empty() && expected.is_empty()
}

/// Frames of all kinds, several in a datagram, arrive as they were appended.
#[test]
fn gathered_parts_arrive_as_copied_ones_do() {
    for mtu in [1500, 9000, 57_000] {
        let Some(net) = net("gathered_parts_arrive_as_copied_ones_do", mtu) else {
            return;
        };
        for (ip, options, runs_by_socket) in [
            (IPV4, "", false),
            (["[fd77::1]", "[fd77::2]"], "", false),
            (IPV4, "?mode=generic", false),
            (IPV4, "", true),
            // In generic mode, runs that the kernel has not segmented arrive by the other end's socket,
            // later.
            (["[fd77::1]", "[fd77::2]"], "", true),
        ] {
            let config = XdpConfig {
                runs_by_socket: Some(runs_by_socket),
                ..gathering()
            };
            let (mut a, mut b, to_b) = devices_with(&net, config, ip, options);
            // In generic mode, datagrams pass a queue of the core that sends them, and a thread that
            // changes cores overtakes its own.
            let in_order = !options.contains("generic");
            let by_socket = |device: &XdpIo| device.report().count("tx_socket");
            let socket_before = by_socket(&a);
            let largest = a.max_datagram(to_b);
            let mut dice = Dice(u64::from(mtu) + 1);
            let content = dice.bytes(MEMORY / 2);
            let message = a.memory().copy(&content);
            let before = gathered(&a);
            for round in 0..60 {
                let mut expected = Vec::new();
                for _ in 0..=dice.below(6) {
                    let len = dice.below(40);
                    let head = dice.bytes(len);
                    let len = [0, dice.below(100), dice.below(largest / 2)][dice.below(3)];
                    let body = dice.bytes(len);
                    let room = largest - PREAMBLE.len() - head.len() - body.len();
                    let len = [0, dice.below(room), room, room][dice.below(4)];
                    let from = dice.below(message.len() - len);
                    let tail = match dice.below(4) {
                        // The device copies a message that is in other memory.
                        0 => Bytes::copy_from_slice(&content[from..from + len]),
                        _ => message.slice(from..from + len),
                    };
                    let tx = a.split().1;
                    tx.append(to_b, PREAMBLE, &head, &body, &tail)
                        .expect("room");
                    for part in [&head, &body, &content[from..from + len]] {
                        expected.extend_from_slice(part);
                    }
                }
                a.split().1.flush().expect("a healthy device");
                let mut arrived = Vec::new();
                while arrived.iter().map(Vec::len).sum::<usize>() < expected.len() {
                    for datagram in receive_burst(&mut b) {
                        assert!(datagram.bytes.len() <= largest);
                        arrived.push(datagram.bytes[PREAMBLE.len()..].to_vec());
                    }
                }
                let sizes: Vec<_> = arrived.iter().map(Vec::len).collect();
                assert!(
                    are_parts_of(arrived, &expected, in_order),
                    "mtu {mtu}, {ip:?}{options}, {round}: {sizes:?} of {}",
                    expected.len()
                );
            }
            match runs_by_socket {
                false => assert!(gathered(&a) > before + 30, "{}", gathered(&a) - before),
                true => assert!(by_socket(&a) > socket_before.map(|count| count + 10)),
            }
            check_no_drops(&a);
            check_no_drops(&b);
            drop(message);
            assert!(is_all_free(&mut a, &mut b, to_b));
            let report = a.report();
            assert_eq!(report.count("tx_invalid_descs"), Some(0), "{report:?}");
        }
    }
}

/// Bundling depends on this: a small frame after a large one leaves in the same datagram.
#[test]
fn frames_around_a_gathered_part_leave_in_the_same_datagram() {
    let test = "frames_around_a_gathered_part_leave_in_the_same_datagram";
    let Some(net) = net(test, 9000) else {
        return;
    };
    let (mut a, mut b, to_b) = devices(&net, IPV4, "");
    let message = a.memory().make(6000, |room| room.fill(1));
    let tx = a.split().1;
    tx.append(to_b, PREAMBLE, b"in front", b"", b"")
        .expect("room");
    tx.append(to_b, PREAMBLE, b"head", b"body", &message)
        .expect("room");
    tx.append(to_b, PREAMBLE, b"behind", b"", b"")
        .expect("room");
    // One part of a datagram is gathered. Another is copied rather than left for the next datagram.
    tx.append(to_b, PREAMBLE, b"", b"", &message[..500])
        .expect("room");
    tx.append(to_b, PREAMBLE, b"", b"", &message[..3000])
        .expect("room");
    tx.flush().expect("a healthy device");
    let [first, second] = receive(&mut b, 2).try_into().expect("two");
    let expected = [
        &b"preamblein frontheadbody"[..],
        &message,
        b"behind",
        &message[..500],
    ];
    assert!(first.bytes == expected.concat());
    assert!(second.bytes == [PREAMBLE, &message[..3000]].concat());
}

/// The device keeps a message that its owner has dropped while the network needs it.
#[test]
fn a_message_dropped_early_leaves_unchanged() {
    let test = "a_message_dropped_early_leaves_unchanged";
    let Some(net) = net(test, 1500) else {
        return;
    };
    let (mut a, mut b, to_b) = devices(&net, IPV4, "");
    let memory = a.memory();
    let message = memory.make(1000, |room| room.fill(1));
    let tx = a.split().1;
    tx.append(to_b, PREAMBLE, b"", b"", &message).expect("room");
    drop(message);
    // A new message gets other memory, of the device or not.
    let others = fill(&memory);
    a.split().1.flush().expect("a healthy device");
    let datagram = receive(&mut b, 1).remove(0);
    assert_eq!(datagram.bytes[8..], [1; 1000]);
    drop(others);
    assert!(is_all_free(&mut a, &mut b, to_b));
}

/// Messages of twos that take all of the memory.
fn fill(memory: &MessageMemory) -> Vec<Bytes> {
    let make = |_| memory.make(2048, |room| room.fill(2));
    (0..MEMORY / 2048 + 1).map(make).collect()
}

#[test]
fn messages_to_a_closed_peer_are_given_back() {
    let test = "messages_to_a_closed_peer_are_given_back";
    let Some(net) = net(test, 9000) else {
        return;
    };
    let (mut a, mut b, to_b) = devices(&net, IPV4, "");
    let other = format!("xdp://va/10.77.0.2:{}", b.local_socket_address().port());
    let message = a.memory().make(MEMORY, |room| room.fill(1));
    let tx = a.split().1;
    for at in 0..20 {
        let tail = &message[at * 5000..at * 5000 + 5000];
        tx.append(to_b, PREAMBLE, b"", b"", tail).expect("room");
    }
    a.close_peer(to_b);
    drop(message);
    let to_b = a.open_peer(&other).expect("a route");
    assert!(is_all_free(&mut a, &mut b, to_b));
}

/// The ring has room for fewer frames of so many parts than there are slots. The next flush sends the
/// frames that wait, or the device gives their memory back at its end, which debug builds assert.
#[test]
fn a_frame_without_room_in_the_ring_waits() {
    let Some(net) = net("a_frame_without_room_in_the_ring_waits", 9000) else {
        return;
    };
    let few = XdpConfig {
        tx_frames: 64,
        ..gathering()
    };
    let (mut a, mut b, to_b) = devices_with(&net, few, IPV4, "");
    let message = a.memory().make(MEMORY / 2, |room| room.fill(1));
    let tx = a.split().1;
    let frames = 60;
    for at in 0..frames {
        // From the middle of a chunk over two others into a fourth, and a frame after it.
        let tail = &message[at * 4096 + 4000..][..8300];
        tx.seal(to_b);
        tx.append(to_b, PREAMBLE, b"", b"", tail).expect("room");
        tx.append(to_b, PREAMBLE, b"", b"behind", b"")
            .expect("room");
    }
    tx.flush().expect("a healthy device");
    let mut arrived = receive_burst(&mut b);
    while arrived.len() < frames {
        a.split().1.flush().expect("a healthy device");
        arrived.extend(receive_burst(&mut b));
    }
    let expected = [&PREAMBLE[..], &[1; 8300], b"behind"].concat();
    assert!(arrived.iter().all(|datagram| datagram.bytes == expected));
    let tx = a.split().1;
    tx.append(to_b, PREAMBLE, b"", b"", &message[..5000])
        .expect("room");
    drop(a);
    assert!(message.iter().all(|byte| *byte == 1), "it is still there");
}

/// After the removal of an interface, the device does not send the frames that wait, and gives their
/// memory back only once.
#[test]
fn runs_on_a_removed_interface_end_in_an_error() {
    let test = "runs_on_a_removed_interface_end_in_an_error";
    let Some(net) = net(test, 1500) else {
        return;
    };
    let config = XdpConfig {
        runs_by_socket: Some(true),
        ..gathering()
    };
    let (mut a, _b, to_b) = devices_with(&net, config, IPV4, "");
    let message = a.memory().make(100_000, |room| room.fill(1));
    starling_netns::run(&net.a, "ip link del va").expect("root");
    for round in 0..100 {
        let tx = a.split().1;
        for at in 0..8 {
            let tail = &message[round * 100 + at * 1400..round * 100 + at * 1400 + 1400];
            // One that is no part of a run, then some that are.
            let head = if at == 0 { &b"head"[..] } else { b"" };
            let _ = tx.append(to_b, PREAMBLE, head, b"", tail);
        }
        let _ = tx.flush();
    }
    let begun = Instant::now();
    while a.split().0.rx_burst().is_ok() {
        let elapsed = begun.elapsed();
        assert!(elapsed < Duration::from_secs(60), "the interface is gone");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// While the next hop is unknown, messages leave by the kernel's socket, which copies them.
#[test]
fn a_message_to_an_unresolved_peer_is_copied() {
    let test = "a_message_to_an_unresolved_peer_is_copied";
    let Some(net) = net(test, 1500) else {
        return;
    };
    let mut b = net.at_b("xdp://vb/10.77.0.2:0");
    let to_b = format!("xdp://va/10.77.0.2:{}", b.local_socket_address().port());
    let own = "xdp://va/10.77.0.1:0";
    let mut a = inside(&net.a, || XdpIo::bind(own, gathering())).expect("a device");
    let to_b = a.open_peer(&to_b).expect("a route");
    let message = a.memory().make(1000, |room| room.fill(3));
    let nobody = a.open_peer("xdp://va/10.77.0.9:9000").expect("a route");
    let tx = a.split().1;
    for _ in 0..3 {
        tx.append(nobody, PREAMBLE, b"", b"", &message)
            .expect("room");
        tx.flush().expect("a healthy device");
    }
    assert_eq!(gathered(&a), 0);
    assert_eq!(a.report().count("tx_socket"), Some(3));
    let foreign = Bytes::from(vec![4; 1000]);
    let is_found = (0..5_000).any(|_| send(&mut a, &mut b, to_b, &message));
    assert!(is_found, "the next hop stays unknown");
    assert!(
        !send(&mut a, &mut b, to_b, &foreign),
        "it is in other memory"
    );
    assert!(
        !send(&mut a, &mut b, to_b, &message[..GATHER_FROM - 1]),
        "small"
    );
}

/// An interface whose frames are too small for gathering gets no memory for messages.
#[test]
fn a_device_has_memory_for_messages_if_it_gathers() {
    let test = "a_device_has_memory_for_messages_if_it_gathers";
    // By default nothing is gathered where the kernel copies.
    for (mtu, gather_from, expected) in [
        (1500, None, false),
        (57_000, None, false),
        (1500, Some(2000), false),
        (1500, Some(1000), true),
        (9000, Some(2000), true),
    ] {
        let Some(net) = net(test, mtu) else {
            return;
        };
        let config = XdpConfig {
            gather_from,
            ..XdpConfig::default()
        };
        let bind = || XdpIo::bind("xdp://va/10.77.0.1:0", config.clone());
        let device = inside(&net.a, bind).expect("a device");
        assert_eq!(device.memory().is_of_device(), expected, "mtu {mtu}");
        let without = XdpConfig {
            message_memory: 0,
            ..config.clone()
        };
        let mtu = mtu as usize;
        let more = config.locked_memory(mtu) > without.locked_memory(mtu);
        assert_eq!(more, expected, "mtu {mtu}");
    }
    let Some(net) = net(test, 1500) else {
        return;
    };
    let too_much = XdpConfig {
        message_memory: (1 << 30) + 1,
        ..gathering()
    };
    let refused = inside(&net.a, || XdpIo::bind("xdp://va/10.77.0.1:0", too_much));
    let error = refused.expect_err("addresses have 32 bits").to_string();
    assert!(error.contains("1 GiB"), "{error}");
}
