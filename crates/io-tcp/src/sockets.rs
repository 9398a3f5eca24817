//! Sockets: how they are made, with the options that all connections have, and how they end.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

/// Connections that wait in the kernel to be accepted, at most; the kernel's own limit may be lower.
const BACKLOG: i32 = 4096;

/// Bytes that the kernel takes for a connection and has not sent yet, at most. More would only wait there, in
/// front of what is more urgent, and make the session protocol believe that the network is slow.
const UNSENT_BYTES: u32 = 256 << 10;

/// What the kernel keeps for a peer when the device ends.
const LAST_BYTES: usize = 1 << 20;

/// The most reads of what nobody wants any more.
const LAST_READS: usize = 16;

/// A socket that accepts connections, and the address that it has.
pub(crate) fn listen(address: SocketAddr, reuse_port: bool) -> io::Result<(OwnedFd, SocketAddr)> {
    let socket = new_socket(address)?;
    // A server that was restarted gets its port although old connections linger in the kernel.
    socket.set_reuse_address(true)?;
    if reuse_port {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    let own = socket.local_addr()?.as_socket();
    Ok((socket.into(), own.expect("an IP socket has an IP address")))
}

/// Begins to connect. The socket becomes writable when that is done, and readable if it failed.
pub(crate) fn connect(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = new_socket(address)?;
    set_options(&socket)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) if !is_to_itself(&socket, address) => Ok(socket.into()),
        Ok(()) | Err(Errno::INPROGRESS) => Err(Errno::CONNREFUSED.into()),
        Err(error) => Err(error.into()),
    }
}

/// Whether the kernel has given a socket the port that it connects to. Where nothing listens at a port of this host,
/// such a socket is connected to itself (RFC 9293, simultaneous open).
fn is_to_itself(socket: &Socket, address: SocketAddr) -> bool {
    let own = socket.local_addr().ok().and_then(|own| own.as_socket());
    own == Some(address)
}

fn new_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    Ok(socket)
}

/// The next connection, and where it comes from.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<(OwnedFd, SocketAddr)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (socket, address) = rustix::net::acceptfrom_with(listener, flags)?;
    let address = address.and_then(|address| SocketAddr::try_from(address).ok());
    // One that has been reset meanwhile has none.
    let address = address.ok_or(Errno::CONNABORTED)?;
    set_options(&SockRef::from(&socket))?;
    Ok((socket, address))
}

fn set_options(socket: &Socket) -> io::Result<()> {
    // A flush is all that there is to send.
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_notsent_lowat(UNSENT_BYTES)
}

/// Sends what the kernel has room for.
pub(crate) fn send(socket: &OwnedFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

/// Whether a connection is over, and all that came was read.
pub(crate) fn is_over(socket: &OwnedFd) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match rustix::net::recv(socket, &mut [0; 1], flags) {
        Ok((_, count)) => count == 0,
        Err(error) => !matches!(error, Errno::AGAIN | Errno::INTR),
    }
}

/// Closes a connection for both ends, also if the child of a fork has the file still.
pub(crate) fn hang_up(socket: &OwnedFd) {
    // It fails if the other end is gone already.
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

/// Has the kernel take more than it would while others wait. For the last that is sent.
pub(crate) fn make_room(socket: &OwnedFd) {
    let socket = SockRef::from(socket);
    // If they fail, it takes less.
    let _ = socket.set_tcp_notsent_lowat(u32::MAX);
    if socket
        .send_buffer_size()
        .is_ok_and(|size| size < LAST_BYTES)
    {
        let _ = socket.set_send_buffer_size(LAST_BYTES);
    }
}

/// Nothing more is sent. What the kernel has still reaches the peer: it would not if something were left unread.
pub(crate) fn end_sending(socket: &OwnedFd, scratch: &mut [u8]) {
    let _ = rustix::net::shutdown(socket, Shutdown::Write);
    for _ in 0..LAST_READS {
        match rustix::net::recv(socket.as_fd(), &mut *scratch, RecvFlags::DONTWAIT) {
            Ok((_, 1..)) => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_connects_to_its_own_port_is_noticed() {
        let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let socket = new_socket(any).expect("a socket");
        socket.bind(&SockAddr::from(any)).expect("a free port");
        let own = socket.local_addr().expect("bound").as_socket();
        let own = own.expect("IPv4");
        let begun = rustix::net::connect(&socket, &own);
        assert!(
            matches!(begun, Ok(()) | Err(Errno::INPROGRESS)),
            "TCP allows it"
        );
        assert!(is_to_itself(&socket, own));
        assert!(!is_to_itself(&socket, any));
    }

    #[test]
    fn a_connection_is_over_when_the_other_end_has_closed_it_and_all_is_read() {
        let any = "127.0.0.1:0".parse().expect("an address");
        let (listener, own) = listen(any, false).expect("a free port");
        let client = connect(own).expect("loopback");
        let (server, _) = loop {
            match accept(&listener) {
                Ok(accepted) => break accepted,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        };
        assert!(!is_over(&client));
        assert_eq!(send(&server, b"x"), Ok(1));
        hang_up(&server);
        let mut read = [0; 2];
        while rustix::net::recv(&client, &mut read, RecvFlags::DONTWAIT).is_err() {
            assert!(!is_over(&client), "one byte is left");
        }
        while !is_over(&client) {
            std::thread::yield_now();
        }
    }
}
