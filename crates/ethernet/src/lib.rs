//! Ethernet frames with one UDP datagram: reading them and making them.
//!
//! Pure: bytes in, bytes or a reason out. It needs no device, kernel or clock. So the code of an
//! AF_XDP device runs in tests without root, and in a simulated network.
//!
//! ```text
//!        0          14                34        42
//!  IPv4  │ Ethernet │ IP, no options  │ UDP     │ payload
//!        0          14                54        62
//!  IPv6  │ Ethernet │ IP, no extension│ UDP     │ payload
//! ```
//!
//! A device's XDP program leaves everything else to the kernel: other protocols, options,
//! fragments, VLAN tags. If such a frame reaches a device after all, the device drops it and counts
//! the reason, a [`Drop`].
//!
//! A UDP checksum may be *partial*: a sender on the same host, behind a veth pair, leaves it to a
//! network card, but there is none on the path. Then the field holds the folded sum of the pseudo
//! header alone. Such a datagram never was on a wire, and is accepted, as the kernel does. From a
//! wire, one damaged datagram in 65536 could pass as partial: as many as pass any checksum.

mod checksum;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use starling_io::Ecn;

use checksum::{fold, sum, sum_behind, word};

/// A hardware (MAC) address.
pub type Mac = [u8; 6];

/// Bytes of Ethernet header.
const ETHERNET: usize = 14;
/// Bytes of IPv4 header without options.
const IPV4: usize = 20;
/// Bytes of IPv6 header without extensions.
const IPV6: usize = 40;
/// Bytes of UDP header.
const UDP: usize = 8;

/// The longest headers of an Ethernet frame, in bytes.
pub const MAX_HEADERS: usize = ETHERNET + IPV6 + UDP;

/// The Ethernet type of IPv4.
pub const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
/// The Ethernet type of IPv6.
pub const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const PROTOCOL_UDP: u8 = 17;
/// Version 4, five words.
const IPV4_FIRST_BYTE: u8 = 0x45;
const DO_NOT_FRAGMENT: [u8; 2] = [0x40, 0x00];
/// How many routers a packet may cross. Linux sends the same.
const HOPS: u8 = 64;
/// The two low bits of the TOS byte or traffic class (RFC 3168, section 5).
const ECN_MASK: u8 = 0b11;
const ECN_CAPABLE: u8 = 0b10;
const ECN_CONGESTION: u8 = 0b11;

/// Why an Ethernet frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drop {
    /// It ends within its headers, or before its IP packet does.
    Truncated,
    /// It is neither IPv4 nor IPv6, or its IP version contradicts its Ethernet type.
    NotIp,
    /// Its IP header has options.
    Options,
    /// It is a fragment of a packet.
    Fragment,
    /// It is not UDP, or has extension headers of IPv6.
    NotUdp,
    /// The length in a UDP or IP header is impossible.
    Length,
    /// The checksum of its IPv4 header is wrong.
    HeaderChecksum,
    /// Its UDP checksum is wrong, or missing where one is required.
    UdpChecksum,
    /// It is for another address or port.
    NotOurs,
    /// No answer can go to its sender: port 0, a multicast or unspecified address.
    Source,
}

impl Drop {
    /// Number of reasons.
    pub const COUNT: usize = Self::Source as usize + 1;
}

/// A datagram within an Ethernet frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The sender.
    pub source: SocketAddr,
    /// What queues on the path have marked.
    pub ecn: Ecn,
    /// Where in the frame the payload begins.
    pub start: usize,
    /// Bytes of payload.
    pub len: usize,
}

/// Finds the datagram for `local` in an Ethernet frame. `interface` is the number of the interface
/// by which it came: the scope of link-local senders, whatever address they send to.
///
/// # Errors
/// The reason why there is none.
#[inline]
pub fn parse(frame: &[u8], local: &SocketAddr, interface: u32) -> Result<Received, Drop> {
    let (ethernet, packet) = frame
        .split_first_chunk::<ETHERNET>()
        .ok_or(Drop::Truncated)?;
    match (&ethernet[12..], local) {
        (kind, SocketAddr::V4(local)) if kind == ETHERTYPE_IPV4 => parse_ipv4(packet, local),
        (kind, SocketAddr::V6(local)) if kind == ETHERTYPE_IPV6 => {
            parse_ipv6(packet, local, interface)
        }
        (kind, _) if kind == ETHERTYPE_IPV4 || kind == ETHERTYPE_IPV6 => Err(Drop::NotOurs),
        _ => Err(Drop::NotIp),
    }
}

#[inline]
fn parse_ipv4(packet: &[u8], local: &SocketAddrV4) -> Result<Received, Drop> {
    let header = packet.first_chunk::<IPV4>().ok_or(Drop::Truncated)?;
    if header[0] != IPV4_FIRST_BYTE {
        let is_longer = header[0] > IPV4_FIRST_BYTE && header[0] >> 4 == 4;
        return Err(if is_longer {
            Drop::Options
        } else {
            Drop::NotIp
        });
    }
    if fold(sum(header)) != 0xffff {
        return Err(Drop::HeaderChecksum);
    }
    // All but the reserved bit and "do not fragment".
    if header[6] & 0x3f != 0 || header[7] != 0 {
        return Err(Drop::Fragment);
    }
    if header[9] != PROTOCOL_UDP {
        return Err(Drop::NotUdp);
    }
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let body = packet.get(..total).ok_or(Drop::Truncated)?;
    let body = body.get(IPV4..).ok_or(Drop::Length)?;
    let address =
        |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
    let (source, destination) = (address(12), address(16));
    if destination != *local.ip() {
        return Err(Drop::NotOurs);
    }
    // As the kernel does: 0/8 and 127/8 are this host, 240/4 is reserved.
    let is_nobody = matches!(source.octets()[0], 0 | 127 | 240..);
    if is_nobody || source.is_multicast() || source == *local.ip() {
        return Err(Drop::Source);
    }
    let addresses = sum(&header[12..20]);
    let (port, len) = parse_udp(body, addresses, local.port(), true)?;
    Ok(Received {
        source: SocketAddrV4::new(source, port).into(),
        ecn: ecn_of(header[1]),
        start: ETHERNET + IPV4 + UDP,
        len,
    })
}

#[inline]
fn parse_ipv6(packet: &[u8], local: &SocketAddrV6, interface: u32) -> Result<Received, Drop> {
    let header = packet.first_chunk::<IPV6>().ok_or(Drop::Truncated)?;
    if header[0] >> 4 != 6 {
        return Err(Drop::NotIp);
    }
    if header[6] != PROTOCOL_UDP {
        return Err(Drop::NotUdp);
    }
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let body = packet[IPV6..].get(..length).ok_or(Drop::Truncated)?;
    let address = |at: usize| {
        let octets: [u8; 16] = header[at..at + 16].try_into().expect("16 bytes");
        Ipv6Addr::from(octets)
    };
    let (source, destination) = (address(8), address(24));
    if destination != *local.ip() {
        return Err(Drop::NotOurs);
    }
    let is_this_host = source.is_unspecified() || source.is_loopback() || source == *local.ip();
    if is_this_host || source.is_multicast() || source.to_ipv4_mapped().is_some() {
        return Err(Drop::Source);
    }
    let (port, len) = parse_udp(body, sum(&header[8..40]), local.port(), false)?;
    let scope = if source.is_unicast_link_local() {
        interface
    } else {
        0
    };
    Ok(Received {
        source: SocketAddrV6::new(source, port, 0, scope).into(),
        ecn: ecn_of(header[0] << 4 | header[1] >> 4),
        start: ETHERNET + IPV6 + UDP,
        len,
    })
}

/// Sender's port and bytes of payload of a UDP datagram. `addresses` is the sum of the addresses in
/// the IP header.
#[inline]
fn parse_udp(body: &[u8], addresses: u64, port: u16, may_lack: bool) -> Result<(u16, usize), Drop> {
    let header = body.first_chunk::<UDP>().ok_or(Drop::Length)?;
    let field = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    if field(2) != port {
        return Err(Drop::NotOurs);
    }
    let length = usize::from(field(4));
    if length < UDP || length > body.len() {
        return Err(Drop::Length);
    }
    if field(0) == 0 {
        return Err(Drop::Source);
    }
    let checksum = u16::from_ne_bytes([header[6], header[7]]);
    let pseudo = addresses + word(u16::from(PROTOCOL_UDP)) + word(field(4));
    let good = if checksum == 0 {
        may_lack
    } else {
        checksum == fold(pseudo) || fold(pseudo + sum(&body[..length])) == 0xffff
    };
    if !good {
        return Err(Drop::UdpChecksum);
    }
    Ok((field(0), length - UDP))
}

#[inline]
fn ecn_of(traffic_class: u8) -> Ecn {
    match traffic_class & ECN_MASK {
        0 => Ecn::NotCapable,
        ECN_CONGESTION => Ecn::CongestionExperienced,
        _ => Ecn::Capable,
    }
}

/// Turns an Ethernet frame back to its sender: the Ethernet addresses, IP addresses and ports
/// change places. A frame that is too short for that stays as it is.
#[inline]
pub fn swap_ends(frame: &mut [u8]) {
    let Some((ethernet, packet)) = frame.split_first_chunk_mut::<ETHERNET>() else {
        return;
    };
    let (to, rest) = ethernet.split_at_mut(6);
    to.swap_with_slice(&mut rest[..6]);
    let (source, destination, udp) = match rest[6..] == ETHERTYPE_IPV6 {
        true => (8, 24, IPV6),
        false => (12, 16, IPV4),
    };
    if packet.len() < udp + UDP {
        return;
    }
    let (head, tail) = packet.split_at_mut(destination);
    let address = destination - source;
    head[source..].swap_with_slice(&mut tail[..address]);
    packet[udp..udp + 4].rotate_left(2);
}

/// The headers of all Ethernet frames from one address to another, without the fields that differ from
/// frame to frame: the next hop, lengths and checksums.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    bytes: [u8; MAX_HEADERS],
    len: u8,
    /// Sum of the IPv4 header with zeros as length and checksum.
    ip_sum: u64,
    /// Sum of addresses, protocol and ports.
    udp_sum: u64,
}

impl Template {
    /// Headers of Ethernet frames that an interface with the hardware address `mac` sends.
    ///
    /// # Panics
    /// If the addresses are of different families.
    pub fn new(mac: Mac, local: &SocketAddr, remote: &SocketAddr, ecn: bool) -> Self {
        let mut bytes = [0; MAX_HEADERS];
        bytes[6..12].copy_from_slice(&mac);
        let traffic_class = if ecn { ECN_CAPABLE } else { 0 };
        let ip = ETHERNET;
        let udp = match (local.ip(), remote.ip()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                bytes[12..14].copy_from_slice(&ETHERTYPE_IPV4);
                bytes[ip] = IPV4_FIRST_BYTE;
                bytes[ip + 1] = traffic_class;
                // The identification stays zero: no router may fragment it (RFC 6864, section 4.1).
                bytes[ip + 6..ip + 8].copy_from_slice(&DO_NOT_FRAGMENT);
                bytes[ip + 8] = HOPS;
                bytes[ip + 9] = PROTOCOL_UDP;
                bytes[ip + 12..ip + 16].copy_from_slice(&local.octets());
                bytes[ip + 16..ip + 20].copy_from_slice(&remote.octets());
                ip + IPV4
            }
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                bytes[12..14].copy_from_slice(&ETHERTYPE_IPV6);
                bytes[ip] = 6 << 4;
                bytes[ip + 1] = traffic_class << 4;
                bytes[ip + 6] = PROTOCOL_UDP;
                bytes[ip + 7] = HOPS;
                bytes[ip + 8..ip + 24].copy_from_slice(&local.octets());
                bytes[ip + 24..ip + 40].copy_from_slice(&remote.octets());
                ip + IPV6
            }
            _ => panic!("{local} and {remote} are of different families"),
        };
        bytes[udp..udp + 2].copy_from_slice(&local.port().to_be_bytes());
        bytes[udp + 2..udp + 4].copy_from_slice(&remote.port().to_be_bytes());
        let addresses = match local {
            SocketAddr::V4(_) => ip + 12..ip + 20,
            SocketAddr::V6(_) => ip + 8..ip + 40,
        };
        Self {
            ip_sum: sum(&bytes[ip..ip + IPV4]),
            udp_sum: sum(&bytes[addresses])
                + word(u16::from(PROTOCOL_UDP))
                + sum(&bytes[udp..udp + 4]),
            bytes,
            len: (udp + UDP) as u8,
        }
    }

    /// Bytes of the headers.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "there are always headers")]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Writes the headers at the start of `frame`. The payload follows them already.
    ///
    /// # Panics
    /// If the frame is shorter than its headers, or larger than an IP packet can be.
    #[inline]
    pub fn write(&self, next_hop: Mac, frame: &mut [u8]) {
        let (headers, payload) = frame.split_at_mut(self.len());
        self.write_headers(next_hop, headers, payload.len(), sum(payload));
    }

    /// The same for an Ethernet frame with a part of its payload elsewhere: `gathered` belongs
    /// before the last `behind` bytes of `frame`.
    ///
    /// # Panics
    /// If the frame is shorter than its headers and `behind`, or larger than an IP packet can be.
    pub fn write_around(&self, next_hop: Mac, frame: &mut [u8], gathered: &[u8], behind: usize) {
        let (headers, payload) = frame.split_at_mut(self.len());
        let (front, back) = payload.split_at(payload.len() - behind);
        let to_back = front.len() + gathered.len();
        let total = sum(front) + sum_behind(front.len(), gathered) + sum_behind(to_back, back);
        self.write_headers(next_hop, headers, to_back + back.len(), total);
    }

    #[inline]
    fn write_headers(&self, next_hop: Mac, headers: &mut [u8], payload: usize, payload_sum: u64) {
        headers.copy_from_slice(&self.bytes[..self.len()]);
        headers[..6].copy_from_slice(&next_hop);
        let udp_len = u16::try_from(UDP + payload).expect("fits an IP packet");
        let udp = self.len() - UDP;
        if udp == ETHERNET + IPV4 {
            let total = u16::try_from(IPV4 + UDP + payload).expect("fits an IP packet");
            headers[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&total.to_be_bytes());
            let checksum = !fold(self.ip_sum + word(total));
            headers[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&checksum.to_ne_bytes());
        } else {
            headers[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&udp_len.to_be_bytes());
        }
        headers[udp + 4..udp + 6].copy_from_slice(&udp_len.to_be_bytes());
        // The length counts twice: in the pseudo header and in the UDP header.
        let checksum = match !fold(self.udp_sum + 2 * word(udp_len) + payload_sum) {
            // Zero would mean that there is none (RFC 768).
            0 => 0xffff,
            checksum => checksum,
        };
        headers[udp + 6..udp + 8].copy_from_slice(&checksum.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests;
