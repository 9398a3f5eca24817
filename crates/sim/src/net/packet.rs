//! Packets on their way, in a slab; and the memory of datagrams, which is used again and again.

use std::net::SocketAddr;

use starling_io::Ecn;

use super::topology::End;
use crate::fabric::HostId;

/// Buffers kept for later.
const MOST_SPARE: usize = 1 << 16;

/// Who sent a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Host(HostId),
    /// Somebody who is not of the fabric.
    Stranger(SocketAddr),
}

impl Origin {
    pub(crate) fn host(self) -> Option<HostId> {
        match self {
            Self::Host(host) => Some(host),
            Self::Stranger(_) => None,
        }
    }

    pub(crate) fn address(self) -> SocketAddr {
        match self {
            Self::Host(host) => host.address(),
            Self::Stranger(address) => address,
        }
    }
}

/// A datagram on its way.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) origin: Origin,
    pub(crate) to: HostId,
    pub(crate) ecn: Ecn,
    /// The checksum that it left with, if anything has touched it since.
    pub(crate) checksum: Option<u16>,
    /// Where it arrives next.
    pub(crate) next: End,
    /// When its last bit is there, ns.
    pub(crate) tail_ns: u64,
    pub(crate) bytes: Vec<u8>,
}

/// The number of a packet in its slab.
pub(crate) type PacketId = u32;

/// All packets on their way.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    list: Vec<Option<Packet>>,
    free: Vec<PacketId>,
    /// Memory of datagrams that are over.
    spare: Vec<Vec<u8>>,
}

impl Packets {
    pub(crate) fn put(&mut self, packet: Packet) -> PacketId {
        match self.free.pop() {
            Some(id) => {
                self.list[id as usize] = Some(packet);
                id
            }
            None => {
                self.list.push(Some(packet));
                u32::try_from(self.list.len() - 1).expect("fewer than 2^32 packets at once")
            }
        }
    }

    pub(crate) fn get_mut(&mut self, id: PacketId) -> &mut Packet {
        self.list[id as usize]
            .as_mut()
            .expect("a packet that is on its way")
    }

    pub(crate) fn take(&mut self, id: PacketId) -> Packet {
        self.free.push(id);
        self.list[id as usize]
            .take()
            .expect("a packet that is on its way")
    }

    /// An empty buffer, with memory if there is one to spare.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes the memory of a datagram that is over.
    pub(crate) fn recycle(&mut self, mut bytes: Vec<u8>) {
        if bytes.capacity() > 0 && self.spare.len() < MOST_SPARE {
            bytes.clear();
            self.spare.push(bytes);
        }
    }
}
