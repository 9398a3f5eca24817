//! Opening a socket: its options, its buffers, and how much its receive queue holds.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::config::UdpConfig;
use crate::sys::socket;

/// Bytes of the receive buffer that one small datagram uses: see [`queue_capacity`].
const SMALL_DATAGRAM_COST: usize = 2304;

/// A bound socket with all options set.
pub(crate) fn open_socket(address: SocketAddr, config: &UdpConfig) -> io::Result<Socket> {
    let socket = new_socket(address, config)?;
    socket.bind(&SockAddr::from(address))?;
    Ok(socket)
}

/// A socket for `address` with all options set, not yet bound.
pub(crate) fn new_socket(address: SocketAddr, config: &UdpConfig) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    socket.set_nonblocking(true)?;
    if config.reuse_port {
        socket.set_reuse_port(true)?;
    }
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    let fd = socket.as_fd();
    let set = |level, name, value| socket::set_int(fd, level, name, value);
    // IPv6 sockets need the IPv4 options as well, for peers at ::ffff:a.b.c.d.
    set(
        libc::IPPROTO_IP,
        libc::IP_MTU_DISCOVER,
        libc::IP_PMTUDISC_DO,
    )?;
    set(libc::IPPROTO_IP, libc::IP_RECVERR, 1)?;
    if config.ecn {
        set(libc::IPPROTO_IP, libc::IP_TOS, ECN_CAPABLE)?;
        set(libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
    }
    if address.is_ipv6() {
        let discover = libc::IPV6_MTU_DISCOVER;
        set(libc::IPPROTO_IPV6, discover, libc::IPV6_PMTUDISC_DO)?;
        set(libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?;
        if config.ecn {
            set(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, ECN_CAPABLE)?;
            set(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
        }
    }
    // The forced form needs CAP_NET_ADMIN and has no limit; the plain form caps and never fails.
    let buffer = |force, plain, bytes: usize| {
        // The kernel doubles the value, so half of the range is usable.
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX).min(i32::MAX / 2);
        set(libc::SOL_SOCKET, force, bytes).or_else(|_| set(libc::SOL_SOCKET, plain, bytes))
    };
    buffer(
        libc::SO_RCVBUFFORCE,
        libc::SO_RCVBUF,
        config.rx_buffer_bytes,
    )?;
    buffer(
        libc::SO_SNDBUFFORCE,
        libc::SO_SNDBUF,
        config.tx_buffer_bytes,
    )?;
    Ok(socket)
}

/// ECT(0) in the two low bits of a TOS byte or traffic class (RFC 3168, section 5).
const ECN_CAPABLE: i32 = 0b10;

/// Bytes and datagrams that the socket's receive queue holds, for datagrams of any sizes.
///
/// The kernel charges a datagram's *true size* to the buffer: its `sk_buff` (256 bytes) and all
/// memory around the payload. It doubles `SO_RCVBUF` to make up for that. So:
/// - bytes: half of what was granted. From some 1200 bytes on, payload is at least half of the
///   true size: 1472 bytes in a 2 KiB buffer, 9000 bytes in three pages, 64 KiB in seventeen.
/// - datagrams: a small one costs 768 bytes if the driver copies it, as loopback does, and
///   256 + 2048 if it stays in the buffer that the card wrote. The larger figure counts.
pub(crate) fn queue_capacity(socket: &Socket) -> io::Result<(usize, usize)> {
    let granted = socket.recv_buffer_size()?;
    Ok((granted / 2, granted / SMALL_DATAGRAM_COST))
}
