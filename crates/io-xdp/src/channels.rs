//! How many queues of an interface are on, as `ethtool -l` shows it. Netlink tells how many it
//! could have at most; a veth interface, for example, has one on by default. The kernel refuses a
//! socket on a queue that is off in both directions. On a queue that only receives, it silently
//! sends nothing.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// `ETHTOOL_GCHANNELS` of `linux/ethtool.h`.
const GET_CHANNELS: u32 = 0x3c;

/// The kernel's `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    max_rx: u32,
    max_tx: u32,
    max_other: u32,
    max_combined: u32,
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// Queues of an interface, counted from 0 in either direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queues {
    pub(crate) rx: u32,
    pub(crate) tx: u32,
}

impl Queues {
    /// Queues that are on in both directions: a device can be on these.
    pub(crate) fn usable(self) -> u32 {
        self.rx.min(self.tx)
    }
}

/// Queues that are on, of an interface of this thread's network namespace.
///
/// # Errors
/// If there is no such interface, or its driver does not say.
pub(crate) fn queues(interface: &str) -> io::Result<Queues> {
    // SAFETY: an `ifreq` is bytes, numbers and pointers, all of which may be zero.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = interface.as_bytes();
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    let mut channels = Channels {
        command: GET_CHANNELS,
        ..Channels::default()
    };
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    // Any socket of the namespace will do.
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    let (fd, request) = (socket.as_raw_fd(), &raw mut request);
    // SAFETY: the name ends with a zero, and the kernel writes at most a `struct ethtool_channels`
    // to where `ifru_data` points; both outlive the call.
    let result = unsafe { libc::ioctl(fd, libc::SIOCETHTOOL as _, request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let on = Queues {
        rx: channels.rx.saturating_add(channels.combined),
        tx: channels.tx.saturating_add(channels.combined),
    };
    match on.usable() {
        0 => Err(io::ErrorKind::Unsupported.into()),
        _ => Ok(on),
    }
}
