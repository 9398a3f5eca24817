//! The device between two network namespaces joined by a veth pair with an MTU of 1500: what
//! loopback has not, which is small paths, segmentation, and a network that is slower than we are.
//!
//! The namespaces have no names. They live as long as the files here that refer to them, and the
//! veth pair lives as long as they do: whatever becomes of a test, nothing is left behind.

#![allow(unsafe_code)]

mod common;

use std::fs::{self, File};
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::thread;
use std::time::Duration;

use common::{PREAMBLE, bind_with, receive, receive_payloads};
use starling_io::{Ecn, PacketIo, PacketTx, TxError};
use starling_io_udp::{UdpConfig, UdpIo};

/// Payload of a full datagram on a path of 1500 bytes, IPv4.
const FULL: usize = 1472;

/// Hardware address of `vb`.
const MAC_B: &str = "02:00:00:00:00:02";

/// Two namespaces: `a` has the interface `va` with 10.77.0.1 and fd77::1, `b` has `vb` with .2.
struct Net {
    a: File,
    b: File,
}

impl Net {
    /// `None`, having said so, where it cannot be made.
    fn new(test: &str) -> Option<Self> {
        let made = Self::try_new();
        if let Err(problem) = &made {
            println!("skipped: {test} needs root, and `ip` and `tc` of iproute2 ({problem})");
        }
        made.ok()
    }

    fn try_new() -> Result<Self, String> {
        let net = Self {
            a: new_namespace()?,
            b: new_namespace()?,
        };
        let here = std::process::id();
        let to_b = format!("/proc/{here}/fd/{}", net.b.as_raw_fd());
        run(&net.a, "tc -Version")?;
        let pair = format!("ip link add va type veth peer name vb address {MAC_B}");
        run(&net.a, &pair)?;
        run(&net.a, &format!("ip link set vb netns {to_b}"))?;
        for (namespace, name, host) in [(&net.a, "va", 1), (&net.b, "vb", 2)] {
            run(
                namespace,
                &format!("ip address add 10.77.0.{host}/24 dev {name}"),
            )?;
            run(
                namespace,
                &format!("ip address add fd77::{host}/64 dev {name} nodad"),
            )?;
            run(namespace, &format!("ip link set {name} up"))?;
        }
        net.await_carrier()?;
        Ok(net)
    }

    /// Waits until a datagram gets through and is answered: for a while after they are up,
    /// interfaces drop what they are given without a word.
    fn await_carrier(&self) -> Result<(), String> {
        let [a, b] = [(&self.a, "10.77.0.1:0"), (&self.b, "10.77.0.2:0")]
            .map(|(namespace, address)| inside(namespace, || UdpSocket::bind(address)));
        let (a, b) = (a.expect("its address"), b.expect("its address"));
        for socket in [&a, &b] {
            let patience = Some(Duration::from_millis(20));
            socket.set_read_timeout(patience).expect("not zero");
        }
        let cross = |from: &UdpSocket, to: &UdpSocket| {
            let address = to.local_addr().expect("bound");
            from.send_to(b"x", address).is_ok() && to.recv(&mut [0]).is_ok()
        };
        let crossed = (0..500).any(|_| cross(&a, &b) && cross(&b, &a));
        crossed
            .then_some(())
            .ok_or_else(|| "the link stays dead".to_owned())
    }

    /// Devices in `a` and `b`, at the addresses of the IP version.
    fn devices(&self, v6: bool, config: &UdpConfig) -> (UdpIo, UdpIo) {
        let hosts = match v6 {
            false => ["10.77.0.1", "10.77.0.2"],
            true => ["[fd77::1]", "[fd77::2]"],
        };
        let [a, b] = [(&self.a, hosts[0]), (&self.b, hosts[1])]
            .map(|(namespace, host)| inside(namespace, || bind_with(host, config.clone())));
        (a, b)
    }

    /// Packets that `a` has given to the wire.
    fn packets_sent(&self) -> u64 {
        inside(&self.a, || {
            let table = fs::read_to_string("/proc/thread-self/net/dev").expect("procfs");
            let row = table.lines().find(|line| line.contains("va:")).expect("va");
            let field = row.split_whitespace().nth(10).expect("packets sent");
            field.parse().expect("a number")
        })
    }
}

fn new_namespace() -> Result<File, String> {
    let make = || {
        // SAFETY: no memory is involved; the thread ends right after.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
            return Err(std::io::Error::last_os_error().to_string());
        }
        File::open("/proc/thread-self/ns/net").map_err(|error| error.to_string())
    };
    thread::scope(|scope| scope.spawn(make).join().expect("no panic"))
}

/// Runs `action` in a thread that lives in `namespace`. Sockets made there belong there for good.
fn inside<T: Send>(namespace: &File, action: impl FnOnce() -> T + Send) -> T {
    let enter = || {
        // SAFETY: no memory is involved; only this short-lived thread moves.
        let result = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        action()
    };
    thread::scope(|scope| scope.spawn(enter).join().expect("no panic"))
}

/// Runs a command in `namespace`.
fn run(namespace: &File, line: &str) -> Result<(), String> {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words);
    let output = inside(namespace, || command.output());
    let output = output.map_err(|error| format!("{line}: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "{line}: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    Ok(())
}

/// Sends 300 numbered datagrams, full ones with a short one after every seventh, and checks that
/// they arrive as they were sent. Returns how many packets it took.
fn transfer(net: &Net, v6: bool, sender: &UdpConfig, receiver: &UdpConfig) -> u64 {
    let (mut a, _) = net.devices(v6, sender);
    let (_, mut b) = net.devices(v6, receiver);
    transfer_between(net, &mut a, &mut b)
}

/// The same, between devices that are there.
fn transfer_between(net: &Net, a: &mut UdpIo, b: &mut UdpIo) -> u64 {
    let v6 = a.local_socket_address().is_ipv6();
    let to_b = a.open_peer(&b.local_address()).expect("a route");
    let to_a = b.open_peer(&a.local_address()).expect("a route");
    let full = if v6 { FULL - 20 } else { FULL };
    assert_eq!(a.max_datagram(to_b), full);
    assert_eq!(b.max_datagram(to_a), full);
    let frame = |number: u32| {
        let len = if number % 8 == 7 { 100 } else { full - 8 };
        let mut frame = vec![number as u8; len];
        frame[..4].copy_from_slice(&number.to_be_bytes());
        frame
    };
    let before = net.packets_sent();
    for turn in 0..10 {
        let tx = a.split().1;
        for number in turn * 30..turn * 30 + 30 {
            tx.append(to_b, PREAMBLE, &frame(number), b"", b"")
                .expect("room");
            tx.seal(to_b);
        }
        tx.flush().expect("flush");
    }
    for (number, datagram) in receive(b, 300).iter().enumerate() {
        assert!(
            datagram.bytes[8..] == frame(number as u32),
            "datagram {number}"
        );
        assert_eq!(datagram.ecn, Ecn::Capable);
    }
    net.packets_sent() - before
}

#[test]
fn full_datagrams_share_the_way_through_the_kernel() {
    let Some(net) = Net::new("full_datagrams_share_the_way_through_the_kernel") else {
        return;
    };
    let on = UdpConfig::default();
    let no_gso = UdpConfig {
        gso: false,
        ..UdpConfig::default()
    };
    let no_gro = UdpConfig {
        gro: false,
        ..UdpConfig::default()
    };
    for v6 in [false, true] {
        // Runs of eight: 300 datagrams are some 40 packets, and a few of neighbour discovery.
        let packets = transfer(&net, v6, &on, &on);
        assert!(packets < 80, "{packets} packets with GSO");
        let packets = transfer(&net, v6, &on, &no_gro);
        assert!(
            packets < 80,
            "{packets} packets with GSO, taken apart by the receiver"
        );
        let packets = transfer(&net, v6, &no_gso, &on);
        assert!(packets >= 300, "{packets} packets without GSO");
    }
}

/// Has the kernel leave out the checksums of what the device sends, or not. Without them it
/// refuses to segment.
fn omit_checksums(device: &UdpIo, omit: bool) {
    let value = i32::from(omit);
    // SAFETY: the pointer is good for the length beside it.
    let result = unsafe {
        libc::setsockopt(
            device.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NO_CHECK,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn where_the_kernel_refuses_segmentation_nothing_is_lost_and_it_is_not_tried_again() {
    let test = "where_the_kernel_refuses_segmentation_nothing_is_lost_and_it_is_not_tried_again";
    let Some(net) = Net::new(test) else {
        return;
    };
    let (mut a, mut b) = net.devices(false, &UdpConfig::default());
    omit_checksums(&a, true);
    let packets = transfer_between(&net, &mut a, &mut b);
    assert!(packets >= 300, "{packets} packets where GSO is refused");
    omit_checksums(&a, false);
    let packets = transfer_between(&net, &mut a, &mut b);
    assert!(packets >= 300, "{packets} packets after it was");
}

#[test]
fn a_path_that_shrinks_is_noticed() {
    let Some(net) = Net::new("a_path_that_shrinks_is_noticed") else {
        return;
    };
    for (v6, gso) in [(false, true), (false, false), (true, true)] {
        run(&net.a, "ip link set va mtu 1500").expect("back to normal");
        let config = UdpConfig {
            gso,
            ..UdpConfig::default()
        };
        let (mut a, mut b) = net.devices(v6, &config);
        let to_b = a.open_peer(&b.local_address()).expect("a route");
        let full = a.max_datagram(to_b);
        run(&net.a, "ip link set va mtu 1400").expect("a smaller path");
        let tx = a.split().1;
        for _ in 0..10 {
            tx.append(to_b, PREAMBLE, &vec![1; full - 8], b"", b"")
                .expect("room");
        }
        tx.append(to_b, PREAMBLE, b"small", b"", b"").expect("room");
        tx.flush().expect("flush");
        // The ten are lost, the small one is not, and the next will fit.
        assert_eq!(receive_payloads(&mut b, 1)[0], b"preamblesmall");
        assert_eq!(a.max_datagram(to_b), full - 100);
        assert_eq!(a.poll_event(), None, "its own errors are no events");
        let tx = a.split().1;
        tx.append(to_b, PREAMBLE, &vec![2; full - 108], b"", b"")
            .expect("room");
        tx.flush().expect("flush");
        assert_eq!(receive_payloads(&mut b, 1)[0].len(), full - 100);
    }
}

#[test]
fn what_the_kernel_has_no_room_for_is_kept_and_bounded() {
    let Some(net) = Net::new("what_the_kernel_has_no_room_for_is_kept_and_bounded") else {
        return;
    };
    // Datagrams to a neighbour whose hardware address is unknown wait in the kernel, charged to
    // the socket, until it is known. It is asked for a hundred times before they are given up.
    run(&net.b, "ip link set vb arp off").expect("a deaf neighbour");
    run(&net.a, "ip neigh flush dev va").expect("forgotten");
    inside(&net.a, || {
        let patience = "/proc/sys/net/ipv4/neigh/va/mcast_solicit";
        fs::write(patience, "100").expect("a patient kernel");
    });
    let config = UdpConfig {
        tx_buffer_bytes: 64 << 10,
        gso: false,
        ..UdpConfig::default()
    };
    let (mut a, mut b) = net.devices(false, &config);
    let to_b = a.open_peer(&b.local_address()).expect("a route");
    let tx = a.split().1;
    let mut accepted = 0_u32;
    let refused = loop {
        let mut frame = [0; FULL - 8];
        frame[..4].copy_from_slice(&accepted.to_be_bytes());
        match tx.append(to_b, PREAMBLE, &frame, b"", b"") {
            Ok(()) => accepted += 1,
            Err(refused) => break refused,
        }
        assert!(accepted < 1000, "no bound");
        tx.flush().expect("flush");
    };
    assert_eq!(refused, TxError::Full);

    let known = format!("ip neigh replace 10.77.0.2 lladdr {MAC_B} dev va");
    run(&net.a, &known).expect("a neighbour made known");
    a.wait(None).expect("ended by room to send");
    let mut received = Vec::new();
    while received.len() < accepted as usize {
        a.split().1.flush().expect("flush");
        received.extend(common::receive_some(&mut b));
    }
    for (number, datagram) in received.iter().enumerate() {
        assert_eq!(datagram.bytes[8..12], (number as u32).to_be_bytes());
    }
    assert_eq!(received.len(), accepted as usize);
}
