//! How large a datagram may be on the path to a peer.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use starling_io::{Fault, IoError};

use crate::sys::addr::{Family, RawAddr};
use crate::sys::socket;

/// Bytes of UDP header.
const UDP_HEADER: usize = 8;
/// Bytes of IPv4 header without options.
const IPV4_HEADER: usize = 20;
/// Bytes of IPv6 header without extensions.
const IPV6_HEADER: usize = 40;
/// The largest length that an IP header of either version can express.
const MAX_IP_PACKET: usize = 65_535;

/// The largest UDP payload that a socket of `family` can send to anyone. The length field of IPv4
/// counts the IP header as well.
pub(crate) fn largest_payload(family: Family) -> usize {
    match family {
        Family::V4 => MAX_IP_PACKET - IPV4_HEADER - UDP_HEADER,
        Family::V6 => MAX_IP_PACKET - UDP_HEADER,
    }
}

/// Asks the kernel for path MTUs.
///
/// The kernel reports the path MTU of connected sockets only, so this keeps one for the purpose.
/// It is made together with the device's main socket: both must be in the same network namespace,
/// whichever thread asks later. It sends nothing and holds no port between questions.
pub(crate) struct Probe {
    socket: Socket,
}

impl Probe {
    /// A probe for paths from `local`, an address of this host or a wildcard.
    pub(crate) fn new(mut local: SocketAddr) -> io::Result<Self> {
        let domain = Domain::for_address(local);
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        if local.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        // The route may depend on the address that datagrams come from.
        if !local.ip().is_unspecified() {
            local.set_port(0);
            socket.bind(&SockAddr::from(local))?;
        }
        Ok(Self { socket })
    }

    /// The largest UDP payload that the path to `peer` takes in one packet, as the kernel
    /// currently knows it.
    ///
    /// # Errors
    /// If there is no route to the peer.
    pub(crate) fn largest_payload(&self, peer: RawAddr) -> Result<usize, IoError> {
        let address = peer.to_std();
        let family = Family::of(&address);
        let mtu = self.mtu(&peer, family).map_err(|error| {
            let attempt = format!("find the path to udp://{address}");
            let remedy = "check the address, and the routes of this host";
            IoError::from_os(Fault::Host, attempt, error, remedy)
        })?;
        let header = match family {
            Family::V4 => IPV4_HEADER,
            Family::V6 => IPV6_HEADER,
        };
        let payload = mtu.saturating_sub(header + UDP_HEADER);
        Ok(payload.min(largest_payload(family)))
    }

    fn mtu(&self, peer: &RawAddr, family: Family) -> io::Result<usize> {
        let fd = self.socket.as_fd();
        socket::connect(fd, peer)?;
        let mtu = match family {
            Family::V4 => socket::int(fd, libc::IPPROTO_IP, libc::IP_MTU),
            Family::V6 => socket::int(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU),
        };
        // Without this, the source address of this path would also be used for the next one.
        rustix::net::connect_unspec(fd)?;
        Ok(usize::try_from(mtu?).unwrap_or(0))
    }
}
