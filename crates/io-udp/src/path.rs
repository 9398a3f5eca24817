//! How large a datagram may be on the path to a peer.

use std::io;
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use starling_io::{Fault, IoError};

use crate::shared::Shared;
use crate::sys::addr::{Family, RawAddr};
use crate::sys::socket;

/// Bytes of UDP header.
const UDP_HEADER: usize = 8;
/// Bytes of IPv4 header without options.
const IPV4_HEADER: usize = 20;
/// Bytes of IPv6 header without extensions.
const IPV6_HEADER: usize = 40;
/// The largest payload length that the header of either IP version can tell.
const MAX_IP_PACKET: usize = 65_535;

/// The largest UDP payload that a socket of `family` can send to anyone: for IPv4, the length
/// field of IP counts the IP header, too.
pub(crate) fn largest_payload(family: Family) -> usize {
    match family {
        Family::V4 => MAX_IP_PACKET - IPV4_HEADER - UDP_HEADER,
        Family::V6 => MAX_IP_PACKET - UDP_HEADER,
    }
}

/// The largest UDP payload that the kernel now believes the path to `peer` takes in one packet.
///
/// The kernel tells it only for connected sockets, so one is made for the question; it sends
/// nothing.
///
/// # Errors
/// If there is no route to the peer, or no file descriptor left.
pub(crate) fn measure(shared: &Shared, peer: RawAddr) -> Result<usize, IoError> {
    let address = peer.to_std();
    let family = Family::of(&address);
    let mtu = path_mtu(shared, peer, family).map_err(|error| {
        let remedy = "check the address, and the routes of this host";
        IoError::from_os(
            Fault::Host,
            format!("find the path to udp://{address}"),
            error,
            remedy,
        )
    })?;
    let header = match family {
        Family::V4 => IPV4_HEADER,
        Family::V6 => IPV6_HEADER,
    };
    let payload = mtu.saturating_sub(header + UDP_HEADER);
    Ok(payload.min(largest_payload(family)))
}

fn path_mtu(shared: &Shared, peer: RawAddr, family: Family) -> io::Result<usize> {
    let (domain, level, name) = match family {
        Family::V4 => (Domain::IPV4, libc::IPPROTO_IP, libc::IP_MTU),
        Family::V6 => (Domain::IPV6, libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let probe = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    // The route may depend on the address that datagrams come from.
    if let Some(mut local) = shared.socket.local_addr()?.as_socket() {
        local.set_port(0);
        if !local.ip().is_unspecified() && Family::of(&local) == family {
            probe.bind(&SockAddr::from(local))?;
        }
    }
    probe.connect(&SockAddr::from(peer.to_std()))?;
    let mtu = socket::int(probe.as_fd(), level, name)?;
    Ok(usize::try_from(mtu).unwrap_or(0))
}
