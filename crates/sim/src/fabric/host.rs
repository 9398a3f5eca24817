//! What the fabric keeps of one host: its receive queue, its peer table, its clock and whether it
//! runs. What runs on it is not the fabric's business.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use starling_io::{Ecn, IoEvent, PeerGone, PeerId};

/// The port of every host's only socket.
const PORT: u16 = 4000;

/// A host of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub u32);

impl HostId {
    /// The host's socket: 10.x.y.z with the number in x, y, z.
    pub(crate) fn address(self) -> SocketAddr {
        let [top, a, b, c] = self.0.to_be_bytes();
        assert_eq!(top, 0, "a fabric has room for 2^24 hosts");
        SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, a, b, c)), PORT)
    }

    /// Whose socket this is, if it is one of this form.
    pub(crate) fn of_address(address: SocketAddr) -> Option<Self> {
        match address.ip() {
            IpAddr::V4(ip) if address.port() == PORT && ip.octets()[0] == 10 => {
                let [_, a, b, c] = ip.octets();
                Some(Self(u32::from_be_bytes([0, a, b, c])))
            }
            _ => None,
        }
    }
}

/// How much a receive queue holds before the host drops datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveLimits {
    /// Datagrams.
    pub datagrams: usize,
    /// Bytes of payload.
    pub bytes: usize,
}

impl Default for ReceiveLimits {
    fn default() -> Self {
        Self {
            datagrams: 4096,
            bytes: 4 << 20,
        }
    }
}

/// A datagram in a receive queue.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) source: SocketAddr,
    pub(crate) ecn: Ecn,
    pub(crate) bytes: Vec<u8>,
}

/// The addresses that a host's device has numbers for.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    numbers: BTreeMap<SocketAddr, PeerId>,
    addresses: Vec<Option<SocketAddr>>,
}

impl Peers {
    /// The number of `address`, a new one if it has none.
    pub(crate) fn open(&mut self, address: SocketAddr) -> PeerId {
        if let Some(&peer) = self.numbers.get(&address) {
            return peer;
        }
        let free = self.addresses.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.addresses.push(None);
            self.addresses.len() - 1
        });
        self.addresses[index] = Some(address);
        let peer = PeerId(index as u32);
        self.numbers.insert(address, peer);
        peer
    }

    /// Frees the number; returns the address it had.
    pub(crate) fn close(&mut self, peer: PeerId) -> Option<SocketAddr> {
        let address = self.addresses.get_mut(peer.0 as usize)?.take()?;
        self.numbers.remove(&address);
        Some(address)
    }

    pub(crate) fn address(&self, peer: PeerId) -> Option<SocketAddr> {
        *self.addresses.get(peer.0 as usize)?
    }

    pub(crate) fn number(&self, address: SocketAddr) -> Option<PeerId> {
        self.numbers.get(&address).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }
}

/// The fabric's state of one host.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) running: bool,
    pub(crate) paused_until_ns: u64,
    pub(crate) turn_at_ns: Option<u64>,
    pub(crate) clock_ahead_ns: u64,
    pub(crate) queue: VecDeque<Received>,
    pub(crate) queue_bytes: usize,
    pub(crate) peers: Peers,
    pub(crate) events: VecDeque<IoEvent>,
}

impl Host {
    pub(crate) fn new() -> Self {
        Self {
            running: true,
            paused_until_ns: 0,
            turn_at_ns: None,
            clock_ahead_ns: 0,
            queue: VecDeque::new(),
            queue_bytes: 0,
            peers: Peers::default(),
            events: VecDeque::new(),
        }
    }

    pub(crate) fn enqueue(&mut self, datagram: Received) {
        self.queue_bytes += datagram.bytes.len();
        self.queue.push_back(datagram);
    }

    pub(crate) fn dequeue(&mut self) -> Option<Received> {
        let datagram = self.queue.pop_front()?;
        self.queue_bytes -= datagram.bytes.len();
        Some(datagram)
    }

    /// The network said that nobody listens at `address`.
    pub(crate) fn unreachable(&mut self, address: SocketAddr) {
        if let Some(peer) = self.peers.number(address) {
            let event = IoEvent::PeerGone(peer, PeerGone::Suspected);
            if !self.events.contains(&event) {
                self.events.push_back(event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_hosts_are_two_names_of_one_thing() {
        for number in [0, 1, 255, 256, 70_000, (1 << 24) - 1] {
            let host = HostId(number);
            assert_eq!(HostId::of_address(host.address()), Some(host));
        }
        let other_port = "10.0.0.1:4001".parse().unwrap();
        assert_eq!(HostId::of_address(other_port), None);
        assert_eq!(HostId::of_address("192.0.2.1:4000".parse().unwrap()), None);
    }

    #[test]
    fn peer_numbers_are_dense_and_reused_only_after_close() {
        let mut peers = Peers::default();
        let (a, b) = (HostId(1).address(), HostId(2).address());
        assert_eq!(peers.open(a), PeerId(0));
        assert_eq!(peers.open(b), PeerId(1));
        assert_eq!(peers.open(a), PeerId(0));
        assert_eq!(peers.close(PeerId(0)), Some(a));
        assert_eq!(peers.close(PeerId(0)), None);
        assert_eq!(peers.number(a), None);
        assert_eq!(peers.address(PeerId(0)), None);
        assert_eq!(peers.address(PeerId(9)), None);
        assert_eq!(peers.open(a), PeerId(0));
        assert_eq!(peers.len(), 2);
    }
}
