//! What a device knows of the other end.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::MessageMemory;

/// The answer of [`PacketTx::peer_info`](crate::PacketTx::peer_info).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerInfo {
    /// Where it is, for people: `udp://10.0.0.7:41234`, `shm://pid:4711`.
    pub address: String,
    /// Its address in the network, if it has one.
    pub socket_addr: Option<SocketAddr>,
    /// The process that it is, if the kernel says.
    pub process: Option<PeerProcess>,
    /// The address that it wants to reach through this process, if it has said one. It is the peer's text.
    pub target: Option<Arc<str>>,
    /// Memory for messages to this peer alone; ordinary memory if the device has none.
    pub memory: MessageMemory,
}

impl PeerInfo {
    /// A peer in a network, for a device whose addresses begin so: `udp://`.
    pub fn of_address(prefix: &str, address: SocketAddr) -> Self {
        Self {
            address: format!("{prefix}{address}"),
            socket_addr: Some(address),
            process: None,
            target: None,
            memory: MessageMemory::default(),
        }
    }
}

/// A process as the kernel shows it to this one. An id that this process's namespaces have none for is
/// `None`: two such are not the same, though the kernel shows one number for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProcess {
    /// Its id, as of when it connected.
    pub pid: Option<u32>,
    /// Its effective user.
    pub uid: Option<u32>,
    /// Its effective group.
    pub gid: Option<u32>,
}

impl PeerProcess {
    /// This process.
    pub fn own() -> Self {
        Self {
            pid: Some(std::process::id()),
            uid: Some(rustix::process::geteuid().as_raw()),
            gid: Some(rustix::process::getegid().as_raw()),
        }
    }
}
