//! Helpers that the tests of the device share.
#![allow(dead_code, unused_imports)] // Each test binary uses some of these.

pub(crate) mod raw;
pub(crate) mod steps;

use std::fs::{self, File};
use std::ops::Deref;
use std::thread;
use std::time::Duration;

use starling_io::{Ecn, IoError, MatchTable, PacketIo, PacketTx, PeerId, Source};
pub(crate) use starling_io_testing::{PREAMBLE, ReceivedDatagram, receive, receive_burst};
use starling_io_xdp::{Drops, XdpConfig, XdpIo};
use starling_netns::{Pair, Shape, inside};
use starling_proto::PLAIN_REQUEST;

/// Datagrams for workers: one plain request of the session protocol, with a key at the start of its
/// payload.
pub(crate) const TABLE: MatchTable = MatchTable {
    value: PLAIN_REQUEST.value,
    mask: PLAIN_REQUEST.mask,
    length_at: PLAIN_REQUEST.length_at,
    length_from: PLAIN_REQUEST.payload_at,
    key_at: PLAIN_REQUEST.payload_at,
};

/// Two namespaces in which devices work: `a` has `va`, `b` has `vb`.
pub(crate) struct Net(Pair);

impl Deref for Net {
    type Target = Pair;

    fn deref(&self) -> &Pair {
        &self.0
    }
}

impl Net {
    /// `None` if the test cannot make it; prints that the test is skipped.
    pub(crate) fn new(test: &str) -> Option<Self> {
        Self::with_shape(test, Shape::default())
    }

    /// The same with other interfaces.
    pub(crate) fn with_shape(test: &str, shape: Shape) -> Option<Self> {
        let made = Pair::with_shape(shape).and_then(|pair| {
            let bind = || XdpIo::bind("xdp://va/0.0.0.0:0", XdpConfig::default());
            match inside(&pair.a, bind) {
                Ok(_) => Ok(Self(pair)),
                Err(error) if is_lacking(&error) => Err(error.to_string()),
                Err(error) => panic!("{error}"),
            }
        });
        if let Err(problem) = &made {
            println!("skipped: {test} needs root, `ip` of iproute2 and AF_XDP ({problem})");
        }
        made.ok()
    }

    /// A device in `a`.
    pub(crate) fn at_a(&self, address: &str) -> XdpIo {
        inside(&self.a, || XdpIo::bind(address, XdpConfig::default())).expect(address)
    }

    /// A device in `b`.
    pub(crate) fn at_b(&self, address: &str) -> XdpIo {
        inside(&self.b, || XdpIo::bind(address, XdpConfig::default())).expect(address)
    }
}

/// Whether an error says that the kernel has no AF_XDP, or does not allow it.
fn is_lacking(error: &IoError) -> bool {
    let lacking = [libc::EPERM, libc::EAFNOSUPPORT, libc::ENOSYS];
    let errno = error.source.as_ref().and_then(std::io::Error::raw_os_error);
    errno.is_some_and(|errno| lacking.contains(&errno))
}

/// Sends a datagram each way, so that both ends know the other's hardware address. Returns the
/// peers that each has made of the other.
pub(crate) fn meet<A: PacketIo, B: PacketIo>(a: &mut A, b: &mut B, to_b: &str) -> (PeerId, PeerId) {
    let at_a = a.open_peer(to_b).expect("a route");
    let tx = a.split().1;
    tx.append(at_a, PREAMBLE, b"hello", b"", b"").expect("room");
    tx.flush().expect("a healthy device");
    let hello = receive(b, 1).remove(0);
    assert_eq!(hello.bytes, b"preamblehello");
    let Source::Unknown(address) = hello.source else {
        panic!("nobody is known yet: {hello:?}");
    };
    let tx = b.split().1;
    let at_b = tx.accept_peer(address).expect("room");
    tx.append(at_b, PREAMBLE, b"welcome", b"", b"")
        .expect("room");
    tx.flush().expect("a healthy device");
    let welcome = receive(a, 1).remove(0);
    assert_eq!(welcome.source, Source::Peer(at_a));
    assert_eq!(welcome.bytes, b"preamblewelcome");
    (at_a, at_b)
}

/// Numbered datagrams of many sizes go from one to the other, and arrive as they were sent.
pub(crate) fn transfer<A: PacketIo, B: PacketIo>(
    a: &mut A,
    b: &mut B,
    to_b: PeerId,
    from_a: PeerId,
) {
    let largest = a.max_datagram(to_b);
    let mut sent = Vec::new();
    for round in 0..50 {
        let mut expected = Vec::new();
        for number in 0..20_usize {
            let len = [0, 1, 2, 31, 500, largest - 8][number % 6];
            let body = vec![(round + number) as u8; len];
            let tx = a.split().1;
            tx.append(to_b, PREAMBLE, b"", &body, b"").expect("room");
            tx.seal(to_b);
            expected.push([&PREAMBLE[..], &body].concat());
        }
        a.split().1.flush().expect("a healthy device");
        for (datagram, expected) in receive(b, 20).into_iter().zip(expected) {
            assert_eq!(datagram.source, Source::Peer(from_a));
            assert_eq!(datagram.ecn, Ecn::Capable);
            assert!(datagram.bytes == expected);
            sent.push(datagram.bytes.len());
        }
    }
    assert_eq!(sent.len(), 1000);
}

pub(crate) fn check_no_drops(device: &XdpIo) {
    assert_eq!(device.drops(), Drops::default());
}

/// The numbers of datagrams that the kernel's own sockets in a namespace have sent and received.
pub(crate) fn by_the_kernel(namespace: &File) -> u64 {
    let (v4, v6) = inside(namespace, || {
        let read = |file| fs::read_to_string(format!("/proc/thread-self/net/{file}"));
        (
            read("snmp").expect("procfs"),
            read("snmp6").unwrap_or_default(),
        )
    });
    let udp = v4
        .lines()
        .filter(|line| line.starts_with("Udp:"))
        .nth(1)
        .expect("a row");
    let field = |at| {
        udp.split_whitespace()
            .nth(at)
            .and_then(|field| field.parse::<u64>().ok())
    };
    let (received, sent) = (field(1).expect("a number"), field(4).expect("a number"));
    let v6 = v6.lines().filter_map(|line| {
        let (name, count) = line.split_once(char::is_whitespace)?;
        let is_it = matches!(name, "Udp6InDatagrams" | "Udp6OutDatagrams");
        is_it.then(|| count.trim().parse::<u64>().ok()).flatten()
    });
    received + sent + v6.sum::<u64>()
}

pub(crate) fn send_one<A: PacketIo, B: PacketIo>(from: &mut A, to: &mut B, peer: PeerId) {
    let tx = from.split().1;
    tx.append(peer, PREAMBLE, b"again", b"", b"").expect("room");
    tx.flush().expect("a healthy device");
    receive(to, 1);
}

/// Sends until the kernel is not needed any more because the next hop is known. Returns the counts
/// of its sockets by then.
pub(crate) fn until_not_needed<const N: usize>(
    namespaces: [&File; N],
    mut send: impl FnMut(),
) -> [u64; N] {
    let mut before = namespaces.map(by_the_kernel);
    for _ in 0..5_000 {
        send();
        let now = namespaces.map(by_the_kernel);
        if std::mem::replace(&mut before, now) == now {
            return now;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("nobody learns the way");
}
