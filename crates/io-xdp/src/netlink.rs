//! The kernel's tables of interfaces, addresses, routes and neighbours, read over netlink
//! (rtnetlink(7)). Written by hand: five kinds of request take less code than a crate for all of
//! them.
//!
//! All input is read with bounds. Entries that make no sense are left out.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto,
    socket_with,
};
use starling_ethernet::Mac;

use crate::channels::Queues;

/// Bytes of a message's header: length, kind, flags, sequence number, port.
const HEADER: usize = 16;
/// Netlink aligns messages and attributes to this many bytes.
const ALIGN: usize = 4;
/// Room for one read: the most that the kernel fills for a dump.
const READ_BYTES: usize = 32 << 10;
/// The most reads for one answer.
const MAX_READS: usize = 1 << 12;
/// How often to ask for a list that changes while the kernel sends it.
const MAX_LISTS: usize = 8;

/// The attribute of a link that describes its XDP program, and the attributes nested in it.
const IFLA_XDP: u16 = 43;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;
/// In `IFLA_LINKINFO`: the kind of the interface.
const IFLA_INFO_KIND: u16 = 1;
/// A value of `IFLA_XDP_ATTACHED`: the program runs on `sk_buff`s, in generic mode.
const XDP_ATTACHED_SKB: u8 = 2;

/// In `ndm_flags`: the kernel checks whether the neighbour is still there.
const NTF_USE: u8 = 1;

/// States in which a neighbour's hardware address can be used (`NUD_*`, linux/neighbour.h):
/// reachable, stale, delay, probe, noarp, permanent.
const USABLE: u16 = 0x02 | NUD_STALE | 0x08 | 0x10 | 0x40 | 0x80;
const NUD_STALE: u16 = 0x04;

/// Generic netlink (linux/genetlink.h): bytes of its header, and the controller that knows all
/// families.
const GENERIC_HEADER: usize = 4;
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// Its family `netdev` (linux/netdev.h).
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;

/// A message, without its header.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) kind: u16,
    pub(crate) body: Vec<u8>,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) is_up: bool,
    /// It has hardware addresses of six bytes and is no loopback.
    pub(crate) is_ethernet: bool,
    pub(crate) mac: Mac,
    pub(crate) mtu: usize,
    /// The most queues that it could have.
    pub(crate) queues: Queues,
    /// The number of its XDP program.
    pub(crate) program: Option<u32>,
    /// That program runs in generic mode.
    pub(crate) is_generic: bool,
    /// The interface below, if this one is a VLAN.
    pub(crate) vlan_of: Option<u32>,
}

/// How packets to an address leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// The interface's number.
    pub(crate) interface: u32,
    /// The router. None if the destination is on the link itself.
    pub(crate) gateway: Option<IpAddr>,
    /// The address that the kernel would send from.
    pub(crate) source: Option<IpAddr>,
    /// Packets leave this host for a single destination: no local, multicast or forbidden address.
    pub(crate) is_unicast: bool,
}

/// The kernel's entry of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub(crate) interface: u32,
    pub(crate) address: IpAddr,
    /// None: unknown, or not usable any more.
    pub(crate) mac: Option<Mac>,
    /// The kernel has had no confirmation of it for a while.
    pub(crate) is_stale: bool,
}

/// A netlink socket.
pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// A socket in the network namespace of this thread. It receives the events of `groups`
    /// (`RTMGRP_*`).
    pub(crate) fn new(groups: u32) -> io::Result<Self> {
        // NETLINK_ROUTE is number zero.
        Self::of_protocol(None, groups)
    }

    /// A socket for generic netlink (`NETLINK_GENERIC`).
    pub(crate) fn generic() -> io::Result<Self> {
        Self::of_protocol(Some(netlink::GENERIC), 0)
    }

    fn of_protocol(protocol: Option<Protocol>, groups: u32) -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self {
            socket,
            sequence: 0,
            buffer: vec![0; READ_BYTES],
        })
    }

    /// The descriptor to poll for events.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The events that have arrived, without waiting.
    ///
    /// # Errors
    /// `ENOBUFS`: some were lost. Older events, which the kernel delivers after that, are left out:
    /// a caller that now reads the tables has newer state, and must not go back.
    pub(crate) fn events(&mut self) -> io::Result<Vec<Message>> {
        let mut events = Ok(Vec::new());
        for _ in 0..MAX_READS {
            match recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((len, _)) => each_message(&self.buffer[..len], |header, body| {
                    let kind = header.kind;
                    if let Ok(events) = &mut events {
                        let body = body.to_vec();
                        events.push(Message { kind, body });
                    }
                }),
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => events = Err(error.into()),
            }
        }
        events
    }

    /// Asks, and waits for the kernel's answer, which is there at once. Asks again for a list that
    /// changed while the kernel sent it.
    fn ask(&mut self, kind: u16, flags: i32, body: &[u8]) -> io::Result<Vec<Message>> {
        let mut result = self.ask_once(kind, flags, body);
        for _ in 1..MAX_LISTS {
            match &result {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    result = self.ask_once(kind, flags, body);
                }
                _ => break,
            }
        }
        result
    }

    fn ask_once(&mut self, kind: u16, flags: i32, body: &[u8]) -> io::Result<Vec<Message>> {
        self.sequence = self.sequence.wrapping_add(1);
        let flags = (flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        let message = message(kind, flags, self.sequence, body);
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.socket, &message, SendFlags::empty(), &kernel)?;
        let mut answer = Answer::to(self.sequence);
        for _ in 0..MAX_READS {
            let len = match recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((len, _)) => len,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            answer.take(&self.buffer[..len]);
            if let Some(end) = answer.end {
                return end.map(|()| answer.messages);
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// The interface of this name.
    pub(crate) fn link(&mut self, name: &str) -> io::Result<Link> {
        let mut body = vec![0; 16];
        let mut text = name.as_bytes().to_vec();
        text.push(0);
        push_attribute(&mut body, libc::IFLA_IFNAME, &text);
        let answers = self.ask(libc::RTM_GETLINK, 0, &body)?;
        let link = answers.iter().find_map(|answer| parse_link(&answer.body));
        link.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
    }

    /// The interface of this number.
    pub(crate) fn link_of(&mut self, index: u32) -> io::Result<Link> {
        let mut body = vec![0; 16];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        let answers = self.ask(libc::RTM_GETLINK, 0, &body)?;
        let link = answers.iter().find_map(|answer| parse_link(&answer.body));
        link.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// All interfaces, with their names.
    pub(crate) fn links(&mut self) -> io::Result<Vec<(String, Link)>> {
        let answers = self.ask(libc::RTM_GETLINK, libc::NLM_F_DUMP, &[0; 16])?;
        let links = answers.iter().filter_map(|answer| {
            let name = attributes(answer.body.get(16..)?)
                .find(|(kind, _)| *kind == libc::IFLA_IFNAME)?
                .1;
            let name = name.split(|byte| *byte == 0).next()?;
            let name = String::from_utf8_lossy(name).into_owned();
            Some((name, parse_link(&answer.body)?))
        });
        Ok(links.collect())
    }

    /// The number of a family of generic netlink.
    pub(crate) fn family(&mut self, name: &str) -> io::Result<u16> {
        let mut body = vec![CTRL_CMD_GETFAMILY, 1, 0, 0];
        let mut text = name.as_bytes().to_vec();
        text.push(0);
        push_attribute(&mut body, CTRL_ATTR_FAMILY_NAME, &text);
        let answers = self.ask(GENL_ID_CTRL, 0, &body)?;
        let id = generic_attribute(&answers, CTRL_ATTR_FAMILY_ID);
        let id = id.and_then(|value| value.first_chunk());
        let id = id.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        Ok(u16::from_ne_bytes(*id))
    }

    /// The XDP features of an interface's driver (`enum netdev_xdp_act`), from the family `netdev`.
    pub(crate) fn xdp_features(&mut self, family: u16, interface: u32) -> io::Result<Option<u64>> {
        let answers = self.ask_device(family, interface)?;
        let bits = generic_attribute(&answers, NETDEV_A_DEV_XDP_FEATURES);
        Ok(bits.and_then(|value| Some(u64::from_ne_bytes(*value.first_chunk()?))))
    }

    fn ask_device(&mut self, family: u16, interface: u32) -> io::Result<Vec<Message>> {
        let mut body = vec![NETDEV_CMD_DEV_GET, 1, 0, 0];
        push_attribute(&mut body, NETDEV_A_DEV_IFINDEX, &interface.to_ne_bytes());
        self.ask(family, 0, &body)
    }

    /// The most descriptors that an interface's driver takes for a frame in zero-copy mode, from
    /// the family `netdev` (Linux 6.6).
    pub(crate) fn zero_copy_parts(
        &mut self,
        family: u16,
        interface: u32,
    ) -> io::Result<Option<u32>> {
        let answers = self.ask_device(family, interface)?;
        let parts = generic_attribute(&answers, NETDEV_A_DEV_XDP_ZC_MAX_SEGS);
        Ok(parts.and_then(|value| Some(u32::from_ne_bytes(*value.first_chunk()?))))
    }

    /// The addresses of an interface that other hosts can reach, with the widest scope first.
    pub(crate) fn addresses(&mut self, interface: u32) -> io::Result<Vec<IpAddr>> {
        let answers = self.ask(libc::RTM_GETADDR, libc::NLM_F_DUMP, &[0; 8])?;
        let mut found: Vec<(u8, IpAddr)> = answers
            .iter()
            .filter_map(|answer| parse_address(&answer.body, interface))
            .collect();
        // A stable sort: the first of a scope stays the first.
        found.sort_by_key(|(scope, _)| *scope);
        Ok(found.into_iter().map(|(_, address)| address).collect())
    }

    /// How a packet from `source` to `destination` leaves. A link-local destination is in a network
    /// of every interface: then the route is that of `interface`.
    pub(crate) fn route(
        &mut self,
        destination: IpAddr,
        source: Option<IpAddr>,
        interface: u32,
    ) -> io::Result<Route> {
        let mut body = vec![0; 12];
        body[0] = family(destination);
        let bytes = octets(destination);
        body[1] = (bytes.len() * 8) as u8;
        push_attribute(&mut body, libc::RTA_DST, &bytes);
        if let Some(source) = source {
            let bytes = octets(source);
            body[2] = (bytes.len() * 8) as u8;
            push_attribute(&mut body, libc::RTA_SRC, &bytes);
        }
        if matches!(destination, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            push_attribute(&mut body, libc::RTA_OIF, &interface.to_ne_bytes());
        }
        let answers = self.ask(libc::RTM_GETROUTE, 0, &body)?;
        let route = answers.iter().find_map(|answer| parse_route(&answer.body));
        route.ok_or_else(|| io::Error::from_raw_os_error(libc::ENETUNREACH))
    }

    /// The kernel's entry of a neighbour, if there is one.
    pub(crate) fn neighbour(&mut self, interface: u32, address: IpAddr) -> Option<Neighbour> {
        let body = neighbour_body(interface, address, 0);
        let answers = self.ask(libc::RTM_GETNEIGH, 0, &body).ok()?;
        answers.iter().find_map(parse_neighbour)
    }

    /// Makes the kernel check whether a neighbour is still there.
    pub(crate) fn probe(&mut self, interface: u32, address: IpAddr) -> io::Result<()> {
        let body = neighbour_body(interface, address, NTF_USE);
        let flags = libc::NLM_F_CREATE;
        self.ask(libc::RTM_NEWNEIGH, flags, &body).map(drop)
    }
}

fn neighbour_body(interface: u32, address: IpAddr, flags: u8) -> Vec<u8> {
    let mut body = vec![0; 12];
    body[0] = family(address);
    body[4..8].copy_from_slice(&interface.to_ne_bytes());
    body[10] = flags;
    push_attribute(&mut body, libc::NDA_DST, &octets(address));
    body
}

fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn push_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend_from_slice(&((ALIGN + value.len()) as u16).to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(ALIGN), 0);
}

/// A message: a header, then `body`.
fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&flags.to_ne_bytes());
    message.extend_from_slice(&sequence.to_ne_bytes());
    message.extend_from_slice(&0_u32.to_ne_bytes());
    message.extend_from_slice(body);
    message
}

/// The part of the kernel's answer that has arrived.
struct Answer {
    sequence: u32,
    messages: Vec<Message>,
    /// The list has changed meanwhile: some of it may be missing.
    is_interrupted: bool,
    end: Option<io::Result<()>>,
}

impl Answer {
    /// The answer to the request of this number.
    fn to(sequence: u32) -> Self {
        Self {
            sequence,
            messages: Vec::new(),
            is_interrupted: false,
            end: None,
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        each_message(bytes, |header, body| {
            if header.sequence != self.sequence {
                return;
            }
            self.is_interrupted |= i32::from(header.flags) & libc::NLM_F_DUMP_INTR != 0;
            let kind = header.kind;
            match i32::from(kind) {
                // The end of a list also has an error number.
                libc::NLMSG_ERROR | libc::NLMSG_DONE => {
                    let errno = body.first_chunk().map_or(0, |b| i32::from_ne_bytes(*b));
                    self.end = Some(match errno {
                        ..0 => Err(io::Error::from_raw_os_error(errno.saturating_neg())),
                        _ if self.is_interrupted => Err(io::ErrorKind::Interrupted.into()),
                        _ => Ok(()),
                    });
                }
                _ => self.messages.push(Message {
                    kind,
                    body: body.to_vec(),
                }),
            }
        });
    }
}

/// The fields of a message's header that matter.
#[derive(Clone, Copy)]
struct Header {
    kind: u16,
    flags: u16,
    sequence: u32,
}

/// Calls `visit` with header and body of each message.
fn each_message(mut bytes: &[u8], mut visit: impl FnMut(Header, &[u8])) {
    while let Some(header) = bytes.first_chunk::<HEADER>() {
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let length = word(0) as usize;
        let Some(body) = bytes.get(HEADER..length) else {
            return;
        };
        let header = Header {
            kind: half(4),
            flags: half(6),
            sequence: word(8),
        };
        visit(header, body);
        bytes = bytes.get(length.next_multiple_of(ALIGN)..).unwrap_or(&[]);
    }
}

/// An attribute of the first answer of a family of generic netlink.
fn generic_attribute(answers: &[Message], wanted: u16) -> Option<&[u8]> {
    let attributes = attributes(answers.first()?.body.get(GENERIC_HEADER..)?);
    let mut values = attributes.filter_map(|(kind, value)| (kind == wanted).then_some(value));
    values.next()
}

/// Kind and value of each attribute.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.first_chunk::<ALIGN>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        // The two high bits are flags.
        let kind = u16::from_ne_bytes([header[2], header[3]]) & 0x3fff;
        let value = bytes.get(ALIGN..length)?;
        bytes = bytes.get(length.next_multiple_of(ALIGN)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

fn number(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

fn address(value: &[u8]) -> Option<IpAddr> {
    let v4 = || {
        <[u8; 4]>::try_from(value)
            .ok()
            .map(|b| Ipv4Addr::from(b).into())
    };
    let v6 = || {
        <[u8; 16]>::try_from(value)
            .ok()
            .map(|b| Ipv6Addr::from(b).into())
    };
    v4().or_else(v6)
}

/// An interface in `RTM_NEWLINK` and `RTM_DELLINK`.
pub(crate) fn parse_link(body: &[u8]) -> Option<Link> {
    let (header, rest) = body.split_first_chunk::<16>()?;
    let flags = number(&header[8..])? as i32;
    let hardware = u16::from_ne_bytes([header[2], header[3]]);
    let mut link = Link {
        index: number(&header[4..])?,
        is_up: flags & libc::IFF_UP != 0,
        is_ethernet: hardware == libc::ARPHRD_ETHER && flags & libc::IFF_LOOPBACK == 0,
        mac: Mac::default(),
        mtu: 0,
        queues: Queues { rx: 1, tx: 1 },
        program: None,
        is_generic: false,
        vlan_of: None,
    };
    let (mut lower, mut is_vlan) = (None, false);
    for (kind, value) in attributes(rest) {
        match kind {
            libc::IFLA_ADDRESS => link.mac = value.try_into().unwrap_or_default(),
            libc::IFLA_MTU => link.mtu = number(value)? as usize,
            libc::IFLA_NUM_RX_QUEUES => link.queues.rx = number(value)?,
            libc::IFLA_NUM_TX_QUEUES => link.queues.tx = number(value)?,
            libc::IFLA_LINK => lower = number(value),
            libc::IFLA_LINKINFO => {
                let mut kinds = attributes(value).filter(|(kind, _)| *kind == IFLA_INFO_KIND);
                is_vlan = kinds.any(|(_, name)| name.strip_suffix(&[0]) == Some(b"vlan"));
            }
            IFLA_XDP => {
                for (kind, value) in attributes(value) {
                    match kind {
                        IFLA_XDP_PROG_ID => link.program = number(value).filter(|id| *id != 0),
                        IFLA_XDP_ATTACHED => {
                            link.is_generic = value.first() == Some(&XDP_ATTACHED_SKB);
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    link.vlan_of = lower.filter(|_| is_vlan);
    Some(link)
}

/// Scope and value of an address of `interface`.
fn parse_address(body: &[u8], interface: u32) -> Option<(u8, IpAddr)> {
    let (header, rest) = body.split_first_chunk::<8>()?;
    if number(&header[4..])? != interface {
        return None;
    }
    let find = |wanted| attributes(rest).find(|(kind, _)| *kind == wanted);
    // On a point-to-point link, IFA_ADDRESS is the address of the other end.
    let (_, value) = find(libc::IFA_LOCAL).or_else(|| find(libc::IFA_ADDRESS))?;
    Some((header[3], address(value)?))
}

fn parse_route(body: &[u8]) -> Option<Route> {
    let (header, rest) = body.split_first_chunk::<12>()?;
    let mut route = Route {
        interface: 0,
        gateway: None,
        source: None,
        is_unicast: header[7] == libc::RTN_UNICAST,
    };
    for (kind, value) in attributes(rest) {
        match kind {
            libc::RTA_OIF => route.interface = number(value)?,
            libc::RTA_GATEWAY => route.gateway = Some(address(value)?),
            // The family of the address, then the address: an IPv4 route through an IPv6 router.
            libc::RTA_VIA => route.gateway = Some(address(value.get(2..)?)?),
            libc::RTA_PREFSRC => route.source = Some(address(value)?),
            _ => {}
        }
    }
    Some(route)
}

/// A neighbour in `RTM_NEWNEIGH` and `RTM_DELNEIGH`.
pub(crate) fn parse_neighbour(message: &Message) -> Option<Neighbour> {
    let (header, rest) = message.body.split_first_chunk::<12>()?;
    let find = |wanted| attributes(rest).find(|(kind, _)| *kind == wanted);
    let state = u16::from_ne_bytes([header[8], header[9]]);
    let usable = message.kind == libc::RTM_NEWNEIGH && state & USABLE != 0;
    let mac = find(libc::NDA_LLADDR).and_then(|(_, value)| value.try_into().ok());
    Some(Neighbour {
        interface: number(&header[4..])?,
        address: address(find(libc::NDA_DST)?.1)?,
        mac: mac.filter(|_| usable),
        is_stale: state & NUD_STALE != 0,
    })
}

#[cfg(test)]
mod tests;
