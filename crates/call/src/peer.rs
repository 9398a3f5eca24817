//! Who calls.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use starling_msgbuf::MessageMemory;

/// The caller of a call, as far as its server's device knows it. Cheap to clone.
///
/// Over a network an address is all there is, and it proves nothing: see docs/SECURITY.md. Between
/// processes of one host the kernel says which process it is. There is no authenticated identity yet; it
/// will be one more method here.
#[derive(Clone, PartialEq, Eq)]
pub struct Peer(Arc<Parts>);

#[derive(Clone, PartialEq, Eq)]
struct Parts {
    address: String,
    socket_addr: Option<SocketAddr>,
    process: Option<ProcessCredentials>,
    target: Option<Arc<str>>,
    memory: MessageMemory,
}

/// A process of this host, as the kernel knew it when it connected. It may have ended since, and its id may
/// be that of another process by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessCredentials {
    /// Its id. `None` if this process cannot see it, because it is in another pid namespace.
    pub pid: Option<u32>,
    /// Its effective user. `None` if that user has no id in this user namespace.
    pub uid: Option<u32>,
    /// Its effective group. `None` if that group has no id in this user namespace.
    pub gid: Option<u32>,
}

impl Peer {
    /// A caller at this address.
    pub fn new(
        address: impl Into<String>,
        socket_addr: Option<SocketAddr>,
        process: Option<ProcessCredentials>,
    ) -> Self {
        Self(Arc::new(Parts {
            address: address.into(),
            socket_addr,
            process,
            target: None,
            memory: MessageMemory::default(),
        }))
    }

    /// The same caller, who wants to reach this address through this process.
    pub fn with_target(mut self, target: impl Into<Arc<str>>) -> Self {
        let parts = Arc::make_mut(&mut self.0);
        parts.target = Some(target.into());
        self
    }

    /// The same caller, to whom large parts of messages go out of this memory.
    pub fn with_memory(mut self, memory: MessageMemory) -> Self {
        Arc::make_mut(&mut self.0).memory = memory;
        self
    }

    /// A caller of whom the plane says nothing.
    pub fn unknown() -> &'static Self {
        static UNKNOWN: LazyLock<Peer> = LazyLock::new(|| Peer::new("unknown", None, None));
        &UNKNOWN
    }

    /// Where it is, for people: `udp://10.0.0.7:41234`, `shm://pid:4711`, `mem://name`.
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// Its address in the network, if it came by one.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        self.0.socket_addr
    }

    /// The process that it is, if it is one of this host and came by memory (`shm`, `mem`).
    pub fn process(&self) -> Option<ProcessCredentials> {
        self.0.process
    }

    /// The address that it wants to reach through this process, if this is a service that reaches others. It is
    /// the caller's text.
    pub fn target(&self) -> Option<&str> {
        self.0.target.as_deref()
    }

    /// Memory for large parts of messages to this caller alone: ordinary memory if the plane has no such memory.
    pub fn memory(&self) -> &MessageMemory {
        &self.0.memory
    }

    /// Whether both are one value, and not only equal.
    #[inline]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("address", &self.0.address)
            .field("process", &self.0.process)
            .finish()
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_says_what_its_device_knows() {
        let process = ProcessCredentials {
            pid: Some(7),
            uid: None,
            gid: Some(0),
        };
        let local = Peer::new("shm://pid:7", None, Some(process));
        assert_eq!(
            (local.process(), local.socket_addr()),
            (Some(process), None)
        );
        assert_eq!(local.to_string(), "shm://pid:7");
        assert_eq!(local.target(), None);
        let elsewhere = local.clone().with_target("udp://10.0.0.7:9000");
        assert_eq!(elsewhere.target(), Some("udp://10.0.0.7:9000"));
        assert_eq!((elsewhere.process(), local.target()), (Some(process), None));
        let address = SocketAddr::from(([10, 0, 0, 7], 9000));
        let remote = Peer::new(format!("udp://{address}"), Some(address), None);
        assert_eq!(
            (remote.process(), remote.socket_addr()),
            (None, Some(address))
        );
        assert!(remote.is_same(&remote.clone()) && !remote.is_same(Peer::unknown()));
        assert_eq!(Peer::unknown().process(), None);
        assert!(!remote.memory().is_of_device());
    }
}
