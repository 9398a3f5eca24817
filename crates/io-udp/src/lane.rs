//! A second socket on the same port, connected to the one peer that does most of the talking.
//!
//! Each datagram that leaves a socket without a destination of its own makes the kernel check the
//! address and look up the route: 0.43 us of the 4.6 us that a round trip over loopback takes, on
//! either side. A connected socket remembers both. But it hears one peer only, and each socket more
//! is a system call more for a loop that polls; so there is one *lane* at most, for the peer that
//! has sent a long run of datagrams with none from anybody else in between. That is what a client
//! of one server sees, and a server with one busy client, whatever the number of sessions.
//!
//! ```text
//!             a run of datagrams from one peer           others are heard, or the peer is closed
//!   no lane ───────────────────────────────────▶ lane ──────────────────────────────────────────▶ no lane
//!                                                                             (the next run has to be longer)
//! ```
//!
//! The kernel gives a datagram to the connected socket if its source and destination fit, and to
//! the device's own socket otherwise. The latter is still asked, only less often. Datagrams may
//! change places where a lane begins or ends, as they may on a network.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use socket2::{SockAddr, Socket};
use starling_io::PeerId;

use crate::sys::addr::RawAddr;
use crate::sys::socket;

/// The first lane opens after so many datagrams in a row from one peer.
pub(crate) const FIRST_RUN: u64 = 256;

/// Each lane that was closed because others were heard makes the next run this much longer.
pub(crate) const RUN_GROWTH: u64 = 4;

/// With a lane, the device's own socket is asked once in so many bursts, while nothing is there.
pub(crate) const OTHERS_EVERY: u32 = 32;

/// So many datagrams from others close the lane, if they come within [`OTHERS_WINDOW`].
pub(crate) const OTHERS_LIMIT: u32 = 64;

/// Bursts from the lane after which the others are counted anew.
pub(crate) const OTHERS_WINDOW: u32 = 1024;

/// Bursts that are taken from a lane that is being closed, at most: what was in it already.
pub(crate) const LAST_BURSTS: u32 = 16;

/// A socket connected to one peer.
pub(crate) struct Lane {
    socket: Socket,
    pub(crate) peer: PeerId,
}

impl Lane {
    /// Makes a lane of `socket`, which is new, has the options of `own`, and no address yet.
    ///
    /// # Errors
    /// If the kernel does not let two sockets share the port, or the thread is in another network
    /// namespace than the one that `own` was made in.
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
        // Both have to agree to share the port, only while one is bound: afterwards the port is
        // in use again for everybody else.
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
