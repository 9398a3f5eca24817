//! Datagrams as Ethernet frames: senders and receivers have the packet code of an AF_XDP device
//! ([`starling_ethernet`]), switches set marks, and cables damage.
//!
//! ```text
//!  wrap ─▶ frame ─▶ damage (cable) ─▶ mark (switch) ─▶ read ─▶ datagram, or a reason to drop it
//! ```
//!
//! Damage and marks do not use the code under test. A link takes as long as for a datagram without
//! a frame, so a run with frames has the same times.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use starling_ethernet::{Drop, Mac, Received, Template, parse};
use starling_io::Ecn;

use super::payload::Payload;
use crate::faults::checksum;
use crate::rng::Rng;

/// Bytes of Ethernet header, and of the addresses in it.
const ETHERNET: usize = 14;
const ETHERNET_ADDRESSES: usize = 12;
/// Bytes of UDP header.
const UDP: usize = 8;

/// The index of the interface by which a host receives: the scope of link-local senders.
const INTERFACE: u32 = 3;

/// How many of the damaged frames are cut off, in a million. The others have a flipped bit.
const CUT_PPM: u32 = 200_000;

/// The Ethernet frames that carry the datagrams of a fabric. Its hosts have IPv4 addresses in any
/// case; in IPv6 these are the last 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// IPv4.
    Ipv4,
    /// IPv6, with addresses that are known everywhere.
    Ipv6,
    /// IPv6, with addresses of one link.
    LinkLocal,
}

impl Framing {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ipv4, Self::Ipv6, Self::LinkLocal];

    /// The prefix of host addresses.
    fn prefix(self) -> u128 {
        match self {
            Self::Ipv4 => 0,
            Self::Ipv6 => 0xfd00 << 112,
            Self::LinkLocal => 0xfe80 << 112,
        }
    }

    fn on_the_wire(self, address: SocketAddr) -> SocketAddr {
        let (Self::Ipv6 | Self::LinkLocal, IpAddr::V4(ip)) = (self, address.ip()) else {
            return address;
        };
        let ip = Ipv6Addr::from(self.prefix() | u128::from(u32::from(ip)));
        SocketAddrV6::new(ip, address.port(), 0, self.scope()).into()
    }

    /// The reverse of it. An address of another form stays as it is.
    fn off_the_wire(self, address: SocketAddr) -> SocketAddr {
        let SocketAddr::V6(wire) = address else {
            return address;
        };
        let low = Ipv4Addr::from(wire.ip().to_bits() as u32);
        let fabric = SocketAddr::new(low.into(), wire.port());
        if self.on_the_wire(fabric) == address {
            fabric
        } else {
            address
        }
    }

    fn scope(self) -> u32 {
        match self {
            Self::Ipv4 | Self::Ipv6 => 0,
            Self::LinkLocal => INTERFACE,
        }
    }

    /// Where UDP's header begins.
    fn udp(self) -> usize {
        match self {
            Self::Ipv4 => ETHERNET + 20,
            Self::Ipv6 | Self::LinkLocal => ETHERNET + 40,
        }
    }

    /// Bytes of the headers.
    pub(crate) fn headers(self) -> usize {
        self.udp() + UDP
    }

    /// Makes a frame of a datagram.
    pub(crate) fn wrap(self, from: SocketAddr, to: SocketAddr, ecn: Ecn, bytes: &mut Vec<u8>) {
        let (len, headers) = (bytes.len(), self.headers());
        bytes.resize(headers + len, 0);
        bytes.copy_within(..len, headers);
        self.write(from, to, ecn, bytes);
    }

    /// Writes all headers of a frame.
    pub(crate) fn write(self, from: SocketAddr, to: SocketAddr, ecn: Ecn, frame: &mut [u8]) {
        let (local, remote) = (self.on_the_wire(from), self.on_the_wire(to));
        let template = Template::new(mac(from), &local, &remote, ecn != Ecn::NotCapable);
        template.write(mac(to), frame);
        if ecn == Ecn::CongestionExperienced {
            self.mark(frame);
        }
    }

    /// Parses a frame as the host at `local` does.
    pub(crate) fn read(self, frame: &[u8], local: SocketAddr) -> Result<Received, Drop> {
        let received = parse(frame, &self.on_the_wire(local), INTERFACE)?;
        Ok(Received {
            source: self.off_the_wire(received.source),
            ..received
        })
    }

    /// Marks a frame "congestion experienced". A wrong checksum stays as wrong as it is.
    pub(crate) fn mark(self, frame: &mut [u8]) {
        let ip = frame.get_mut(ETHERNET..).unwrap_or_default();
        match self {
            Self::Ipv4 => {
                let Some(header) = ip.first_chunk_mut::<20>() else {
                    return;
                };
                let before = [header[0], header[1]];
                header[1] |= 0b11;
                // RFC 1624, equation 3: the new field replaces the old one.
                let [old, older] = [[header[10], header[11]], before].map(|word| word.map(|b| !b));
                let words = [old, older, [header[0], header[1]]].concat();
                header[10..12].copy_from_slice(&checksum(&words).to_be_bytes());
            }
            // Half of the traffic class, and no checksum.
            Self::Ipv6 | Self::LinkLocal => {
                if let Some(byte) = ip.get_mut(1) {
                    *byte |= 0b11 << 4;
                }
            }
        }
    }

    /// Cuts off a frame, or flips a bit of it that its receiver has to notice.
    pub(crate) fn damage(self, rng: &mut Rng, frame: &mut Payload) {
        if rng.chance(CUT_PPM) {
            let len = rng.below(frame.len() as u64);
            frame.truncate(len as usize);
            return;
        }
        let (first, count) = (ETHERNET_ADDRESSES * 8, frame.len() * 8);
        loop {
            let bit = rng.range(first as u64, count as u64 - 1) as usize;
            let (byte, mask) = (bit / 8, 1 << (bit % 8));
            frame[byte] ^= mask;
            if self.is_noticed(frame, byte, frame[byte] & mask != 0) {
                return;
            }
            frame[byte] ^= mask;
        }
    }

    /// Whether a receiver must drop a frame because of a flipped bit in this byte.
    fn is_noticed(self, frame: &[u8], byte: usize, is_set: bool) -> bool {
        let (ip, udp) = (byte.checked_sub(ETHERNET), byte.checked_sub(self.udp()));
        match (self, ip, udp) {
            // The receiver's port.
            (.., Some(2 | 3)) => true,
            // A length beyond the packet's. A shorter length removes more than one bit from the
            // sum.
            (.., Some(4 | 5)) => is_set,
            (.., Some(_)) => self.has_checksum(frame),
            // The type, and the fields that the IP header's own checksum covers.
            (_, None, _) | (Self::Ipv4, Some(_), _) => true,
            // Version, traffic class and flow, and hops: nothing covers those.
            (_, Some(0..4 | 7), _) => false,
            (_, Some(8..24), _) => self.has_checksum(frame),
            // Length, protocol, receiver.
            _ => true,
        }
    }

    /// Whether the UDP checksum proves anything: it is present, and is not a partial one, which one
    /// frame in 65536 has by chance.
    fn has_checksum(self, frame: &[u8]) -> bool {
        let (addresses, udp) = match self {
            Self::Ipv4 => (ETHERNET + 12, self.udp()),
            Self::Ipv6 | Self::LinkLocal => (ETHERNET + 8, self.udp()),
        };
        let length = [frame[udp + 4], frame[udp + 5]];
        let pseudo = [&frame[addresses..udp], &[0, 17], &length].concat();
        let sent = u16::from_be_bytes([frame[udp + 6], frame[udp + 7]]);
        // IPv6 requires a checksum.
        let is_there = sent != 0 || self != Self::Ipv4;
        is_there && sent != !checksum(&pseudo)
    }
}

/// The MAC address that belongs to a socket address.
fn mac(address: SocketAddr) -> Mac {
    let [a, b, c, d] = match address.ip() {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => (ip.to_bits() as u32).to_be_bytes(),
    };
    // Locally administered.
    [2, 0, a, b, c, d]
}

#[cfg(test)]
mod tests;
