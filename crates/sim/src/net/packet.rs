//! Packets on their way, in a slab; and the memory of datagrams, which is used again and again.

use std::net::SocketAddr;

use starling_io::Ecn;
use starling_prefetch::prefetch;

use super::ethernet::Framing;
use super::payload::Payload;
use super::topology::End;
use crate::host_id::HostId;

/// Buffers kept for later.
const MAX_SPARE: usize = 1 << 16;

/// The sender of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Host(HostId),
    /// A sender outside the fabric, by its number in [`Packets`].
    Unknown(u32),
}

impl Origin {
    pub(crate) fn host(self) -> Option<HostId> {
        match self {
            Self::Host(host) => Some(host),
            Self::Unknown(_) => None,
        }
    }
}

/// A datagram from the moment that it is posted until it is read. It stays in its place meanwhile;
/// the queues hold its number.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) origin: Origin,
    /// The host that has the destination address, or `NO_HOST`.
    pub(crate) to: HostId,
    pub(crate) ecn: Ecn,
    /// The checksum that it left with, if it was damaged since.
    pub(crate) checksum: Option<u16>,
    /// Where it arrives next.
    pub(crate) next: End,
    /// When its last bit is there, ns.
    pub(crate) tail_ns: u64,
    /// Bytes of the datagram, without any frame.
    pub(crate) len: u32,
    /// The kind of Ethernet frame that `bytes` are, if they are one.
    pub(crate) framing: Option<Framing>,
    pub(crate) bytes: Payload,
}

impl Packet {
    /// Marks it "congestion experienced".
    pub(crate) fn mark(&mut self) {
        self.ecn = Ecn::CongestionExperienced;
        if let Some(framing) = self.framing {
            framing.mark(&mut self.bytes);
        }
    }

    /// Rewrites the headers of its frame, for a fault that misroutes it or changes it past all
    /// checksums.
    pub(crate) fn seal(&mut self, from: HostId) {
        if let Some(framing) = self.framing {
            framing.write(from.address(), self.to.address(), self.ecn, &mut self.bytes);
        }
    }

    /// The datagram, or the rest of it if faults cut it off.
    pub(crate) fn datagram(&self) -> &[u8] {
        let headers = self.framing.map_or(0, Framing::headers);
        self.bytes.get(headers..).unwrap_or_default()
    }
}

const _: () = assert!(size_of::<Option<Packet>>() <= 192);

/// The number of a packet in its slab.
pub(crate) type PacketId = u32;

/// All packets on their way.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    list: Vec<Option<Packet>>,
    free: Vec<PacketId>,
    /// Memory of datagrams that were read or dropped.
    spare: Vec<Vec<u8>>,
    unknown: Vec<SocketAddr>,
}

impl Packets {
    /// Allocates the memory of `count` packets, and buffers of `bytes` for them.
    pub(crate) fn reserve(&mut self, count: usize, bytes: usize) {
        self.list.reserve(count);
        self.free.reserve(count);
        let buffers = (0..count).map(|_| Vec::with_capacity(bytes));
        self.spare.extend(buffers);
    }

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

    /// Prefetches a packet that will be needed soon.
    #[inline]
    pub(crate) fn prefetch(&self, id: PacketId) {
        if let Some(place) = self.list.get(id as usize) {
            prefetch(place);
        }
    }

    /// Adds a sender outside the fabric.
    pub(crate) fn add_unknown(&mut self, address: SocketAddr) -> Origin {
        self.unknown.push(address);
        Origin::Unknown(self.unknown.len() as u32 - 1)
    }

    /// The address that a datagram comes from.
    pub(crate) fn address(&self, origin: Origin) -> SocketAddr {
        match origin {
            Origin::Host(host) => host.address(),
            Origin::Unknown(number) => self.unknown[number as usize],
        }
    }

    pub(crate) fn get(&self, id: PacketId) -> &Packet {
        self.list[id as usize]
            .as_ref()
            .expect("a packet that is on its way")
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

    /// Takes the memory of a datagram that was read or dropped.
    pub(crate) fn recycle(&mut self, mut bytes: Vec<u8>) {
        if bytes.capacity() > 0 && self.spare.len() < MAX_SPARE {
            bytes.clear();
            self.spare.push(bytes);
        }
    }
}
