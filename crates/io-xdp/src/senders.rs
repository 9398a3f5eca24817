//! Who sends: from addresses to peers, with what was looked up lately kept.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use starling_io::{PeerId, Source};
use starling_io_udp::Directory;

/// Entries of the cache of look-ups.
const CACHED: usize = 256;

/// The directory as one thread sees it.
pub(crate) struct Senders {
    directory: Directory,
    /// Senders looked up lately, by a hash of their address.
    cache: Box<[Cell<LookUp>]>,
}

/// What `address` was when the directory had `version`.
#[derive(Clone, Copy)]
struct LookUp {
    address: SocketAddr,
    version: u32,
    peer: Option<PeerId>,
}

/// An address that no datagram comes from.
pub(crate) const NOBODY: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

impl Senders {
    pub(crate) fn new(directory: Directory) -> Self {
        // These entries are never hit.
        let nobody = LookUp {
            address: NOBODY,
            version: 0,
            peer: None,
        };
        Self {
            directory,
            cache: (0..CACHED).map(|_| Cell::new(nobody)).collect(),
        }
    }

    #[inline]
    pub(crate) fn source(&self, address: SocketAddr) -> Source {
        let version = self.directory.version();
        let place = &self.cache[hash(&address)];
        let mut known = place.get();
        if known.address != address || known.version != version {
            known = LookUp {
                address,
                version,
                peer: self.directory.find(address),
            };
            place.set(known);
        }
        known.peer.map_or(Source::Stranger(address), Source::Peer)
    }
}

/// A place in the cache: who can choose addresses gains no more than misses.
#[inline]
fn hash(address: &SocketAddr) -> usize {
    let low = match address {
        SocketAddr::V4(v4) => v4.ip().to_bits(),
        SocketAddr::V6(v6) => v6.ip().to_bits() as u32,
    };
    let mixed = (low ^ u32::from(address.port()) << 16).wrapping_mul(0x9e37_79b9);
    (mixed >> 24) as usize % CACHED
}
