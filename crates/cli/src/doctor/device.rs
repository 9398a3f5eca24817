//! The devices that the doctor checks.

use clap::ValueEnum;

/// A device, by the scheme of its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Device {
    /// Kernel UDP sockets.
    Udp,
    /// TCP connections.
    Tcp,
    /// Shared memory between processes of this host.
    Shm,
    /// AF_XDP sockets: UDP past the kernel's network stack.
    Xdp,
}

impl Device {
    pub(super) const ALL: [Self; 4] = [Self::Udp, Self::Tcp, Self::Shm, Self::Xdp];

    pub(super) fn scheme(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Shm => "shm",
            Self::Xdp => "xdp",
        }
    }
}
