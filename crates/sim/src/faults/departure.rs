//! A hook on the path of every datagram, for tests that need one exact fault: "lose the third
//! datagram", "delay this fragment", "mark all datagrams to host 1".

use crate::host_id::HostId;

/// A datagram that leaves its sender.
#[derive(Clone, Copy, Debug)]
pub struct Departure<'a> {
    /// How many datagrams have left so far, this one included.
    pub number: u64,
    /// The sending host.
    pub from: HostId,
    /// The host that has the destination address.
    pub to: HostId,
    /// The payload.
    pub bytes: &'a [u8],
}

/// The fate of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Treatment {
    /// How many copies arrive; 0 loses the datagram.
    pub copies: usize,
    /// Time in the network beyond that of the links, ns.
    pub delay_ns: u64,
    /// Whether it is marked "congestion experienced".
    pub marked: bool,
}

impl Treatment {
    /// The datagram arrives once, on time and unmarked.
    pub const DELIVER: Self = Self {
        copies: 1,
        delay_ns: 0,
        marked: false,
    };

    /// The datagram is lost.
    pub const LOSE: Self = Self {
        copies: 0,
        ..Self::DELIVER
    };
}

/// Decides the fate of each datagram that leaves.
pub type DepartureHook = Box<dyn FnMut(Departure<'_>) -> Treatment + Send>;
