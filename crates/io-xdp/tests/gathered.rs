//! Messages in packet memory, sent from where they lie.

mod common;

use bytes::Bytes;
use common::{Net, PREAMBLE, check_no_drops, meet, receive, receive_some};
use starling_io::{MessageMemory, PacketIo, PacketTx, PeerId};
use starling_io_xdp::{XdpConfig, XdpIo};
use starling_netns::{IPV4, Shape, inside};

/// Memory for messages of all devices here, in bytes.
const MEMORY: usize = 1 << 20;

/// What is gathered however small it is, as far as a test can tell.
const GATHER_FROM: usize = 64;

/// A small generator (Marsaglia's xorshift).
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
        ..XdpConfig::default()
    }
}

/// A device in `a` that gathers, and one in `b` that it has met.
fn devices(net: &Net, ip: [&str; 2], options: &str) -> (XdpIo, XdpIo, PeerId) {
    let mut b = net.at_b(&format!("xdp://vb/{}:0{options}", ip[1]));
    let port = b.local_socket_address().port();
    let own = format!("xdp://va/{}:0{options}", ip[0]);
    let mut a = inside(&net.a, || XdpIo::bind(&own, gathering())).expect("a device");
    assert!(a.memory().is_of_device());
    let to_b = format!("xdp://va/{}:{port}", ip[1]);
    let (to_b, _) = meet(&mut a, &mut b, &to_b);
    // The way to a peer that was opened is known when its address is.
    while gathered(&a) == 0 {
        let tail = a.memory().copy(&[1; GATHER_FROM]);
        let tx = a.split().1;
        tx.append(to_b, PREAMBLE, b"", b"", &tail).expect("room");
        tx.flush().expect("a healthy device");
        let datagram = receive(&mut b, 1).remove(0);
        assert_eq!(datagram.bytes[8..], [1; GATHER_FROM]);
    }
    (a, b, to_b)
}

fn gathered(device: &XdpIo) -> u64 {
    device.report().count("tx_gathered").expect("it is counted")
}

/// Sends `tail` alone; whether it was gathered. What arrives is as it should be.
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

/// Whether all of the memory is to be had, as seen by a message that is sent from it.
fn is_all_free(a: &mut XdpIo, b: &mut XdpIo, to: PeerId) -> bool {
    let all = a.memory().make(MEMORY, |room| room.fill(9));
    send(a, b, to, &all[..GATHER_FROM])
}

/// Frames of all kinds, several in a datagram: what arrives is what was appended, in order.
#[test]
fn what_is_gathered_arrives_as_what_is_copied_does() {
    for mtu in [1500, 9000, 57_000] {
        let Some(net) = net("what_is_gathered_arrives_as_what_is_copied_does", mtu) else {
            return;
        };
        for (ip, options) in [
            (IPV4, ""),
            (["[fd77::1]", "[fd77::2]"], ""),
            (IPV4, "?mode=generic"),
        ] {
            let (mut a, mut b, to_b) = devices(&net, ip, options);
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
                    let len = [0, dice.below(room), room][dice.below(3)];
                    let from = dice.below(message.len() - len);
                    let tail = match dice.below(4) {
                        // A copy is copied.
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
                while arrived.len() < expected.len() {
                    for datagram in receive_some(&mut b) {
                        assert!(datagram.bytes.len() <= largest);
                        arrived.extend_from_slice(&datagram.bytes[PREAMBLE.len()..]);
                    }
                }
                assert!(arrived == expected, "mtu {mtu}, {ip:?}{options}, {round}");
            }
            assert!(gathered(&a) > before + 30, "{}", gathered(&a) - before);
            check_no_drops(&a);
            check_no_drops(&b);
            drop(message);
            assert!(is_all_free(&mut a, &mut b, to_b));
            let report = a.report();
            assert_eq!(report.count("tx_invalid_descs"), Some(0), "{report:?}");
        }
    }
}

/// As bundling wants: a small frame behind a large one leaves with it.
#[test]
fn frames_around_what_is_gathered_leave_in_the_same_datagram() {
    let test = "frames_around_what_is_gathered_leave_in_the_same_datagram";
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
    // One part of a datagram is gathered, and another copied rather than left behind.
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

/// Nobody may forget a message too early: the network still needs it.
#[test]
fn a_message_that_was_forgotten_leaves_as_it_was() {
    let test = "a_message_that_was_forgotten_leaves_as_it_was";
    let Some(net) = net(test, 1500) else {
        return;
    };
    let (mut a, mut b, to_b) = devices(&net, IPV4, "");
    let memory = a.memory();
    let message = memory.make(1000, |room| room.fill(1));
    let tx = a.split().1;
    tx.append(to_b, PREAMBLE, b"", b"", &message).expect("room");
    drop(message);
    // Whoever wants memory now gets other memory, device's or not.
    let others = fill(&memory);
    a.split().1.flush().expect("a healthy device");
    let datagram = receive(&mut b, 1).remove(0);
    assert_eq!(datagram.bytes[8..], [1; 1000]);
    drop(others);
    assert!(is_all_free(&mut a, &mut b, to_b));
}

/// So much that there is no more, filled with twos.
fn fill(memory: &MessageMemory) -> Vec<Bytes> {
    let make = |_| memory.make(2048, |room| room.fill(2));
    (0..MEMORY / 2048 + 1).map(make).collect()
}

#[test]
fn messages_to_a_peer_that_is_closed_are_given_back() {
    let test = "messages_to_a_peer_that_is_closed_are_given_back";
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

/// While the way is unknown, messages go by the kernel's socket, which copies them.
#[test]
fn a_message_for_who_is_not_found_yet_is_copied() {
    let test = "a_message_for_who_is_not_found_yet_is_copied";
    let Some(net) = net(test, 1500) else {
        return;
    };
    let mut b = net.at_b("xdp://vb/10.77.0.2:0");
    let to_b = format!("xdp://va/10.77.0.2:{}", b.local_socket_address().port());
    let own = "xdp://va/10.77.0.1:0";
    let mut a = inside(&net.a, || XdpIo::bind(own, gathering())).expect("a device");
    let to_b = a.open_peer(&to_b).expect("a route");
    let message = a.memory().make(1000, |room| room.fill(3));
    // Whatever way the first takes.
    send(&mut a, &mut b, to_b, &message);
    let foreign = Bytes::from(vec![4; 1000]);
    while !send(&mut a, &mut b, to_b, &message) {}
    assert!(!send(&mut a, &mut b, to_b, &foreign), "it lies elsewhere");
    assert!(
        !send(&mut a, &mut b, to_b, &message[..GATHER_FROM - 1]),
        "small"
    );
}

/// Where no frame is as large as what is worth it, there is no memory for nothing.
#[test]
fn a_device_has_memory_for_messages_where_they_are_gathered() {
    let test = "a_device_has_memory_for_messages_where_they_are_gathered";
    for (mtu, expected) in [(1500, false), (9000, false), (57_000, true)] {
        let Some(net) = net(test, mtu) else {
            return;
        };
        let device = net.at_a("xdp://va/10.77.0.1:0");
        assert_eq!(device.memory().is_of_device(), expected, "mtu {mtu}");
        let without = XdpConfig {
            message_memory: 0,
            ..XdpConfig::default()
        };
        let more =
            XdpConfig::default().locked_memory(mtu as usize) > without.locked_memory(mtu as usize);
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
