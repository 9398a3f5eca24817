//! A second socket on the same port, connected to the busiest peer.
//!
//! For each datagram that leaves an unconnected socket, the kernel checks the address and looks up
//! the route. That takes 0.43 us of the 4.6 us of a round trip over loopback, on either side. A
//! connected socket caches both. But it receives from one peer only, and each further socket costs
//! a polling loop one more system call. So a device has at most one *connected socket*, for a peer
//! that has sent a long run of datagrams with none from other peers in between. A client of one
//! server has such a peer, and so has a server with one busy client, however many their sessions.
//!
//! ```text
//!               a run of datagrams                 datagrams from others,
//!               from one peer                      or the peer is closed
//!   main socket ─────────────────▶ main socket and ─────────────────────▶ main socket only
//!   only                           connected socket                       (the next run must be longer)
//! ```
//!
//! The kernel gives a datagram to the connected socket if source and destination match, and to the
//! device's *main socket* otherwise. The device still polls the main socket, but less often.
//! Datagrams may be reordered where a connected socket opens or closes, as they may on a network.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use socket2::{SockAddr, Socket};
use starling_io::PeerId;

use crate::sys::addr::RawAddr;
use crate::sys::socket;

/// Datagrams in a row from one peer that open the first connected socket.
pub(crate) const INITIAL_RUN: u64 = 256;

/// Each connected socket that closed because of other peers makes the next run this much longer.
pub(crate) const RUN_GROWTH: u64 = 4;

/// Beside a connected socket, the main socket is polled once in so many bursts while it is idle.
pub(crate) const MAIN_SOCKET_INTERVAL: u32 = 32;

/// So many datagrams from others within [`OTHERS_WINDOW`] close the connected socket.
pub(crate) const OTHERS_LIMIT: u32 = 64;

/// Bursts from the connected socket after which the count of others starts again at zero.
pub(crate) const OTHERS_WINDOW: u32 = 1024;

/// The most bursts received from a connected socket that is closing, of datagrams that were queued
/// there already.
pub(crate) const DRAIN_BURSTS: u32 = 16;

/// A socket connected to one peer.
pub(crate) struct ConnectedSocket {
    socket: Socket,
    pub(crate) peer: PeerId,
}

impl ConnectedSocket {
    /// Connects `socket` to `address`. It is new, unbound, and has the options of `own`.
    ///
    /// # Errors
    /// If the kernel refuses to share the port between two sockets, or the calling thread is in
    /// another network namespace than the one that `own` was made in.
    pub(crate) fn new(
        socket: Socket,
        own: &Socket,
        local: SocketAddr,
        peer: PeerId,
        address: &RawAddr,
    ) -> io::Result<Self> {
        if socket::namespace(socket.as_fd())? != socket::namespace(own.as_fd())? {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        // Both sockets must allow sharing the port, but only during the bind. Afterwards the port
        // is in use again for everybody else.
        own.set_reuse_port(true)?;
        let bound = socket
            .set_reuse_port(true)
            .and_then(|()| socket.bind(&SockAddr::from(local)));
        own.set_reuse_port(false)?;
        bound?;
        socket.set_reuse_port(false)?;
        socket::connect(socket.as_fd(), address)?;
        Ok(Self { socket, peer })
    }

    #[inline]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
