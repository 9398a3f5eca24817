//! From the addresses of senders to peers: a cache in front of the directory.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use starling_io::{PeerId, Source};
use starling_io_udp::Directory;

/// Entries of the cache.
const CACHED: usize = 256;

/// One thread's view of the directory.
pub(crate) struct PeerCache {
    directory: Directory,
    /// Recent lookups, by a hash of the address.
    cache: Box<[Cell<LookUp>]>,
}

/// The directory's answer for a sender when the directory had `version`.
#[derive(Clone, Copy)]
struct LookUp {
    key: Key,
    version: u32,
    peer: Option<PeerId>,
}

/// A socket address as three words, which compare faster than its parts.
type Key = [u64; 3];

/// An address from which no datagram comes.
pub(crate) const NOBODY: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

impl PeerCache {
    pub(crate) fn new(directory: Directory) -> Self {
        // No lookup hits these entries.
        let nobody = LookUp {
            key: key(&NOBODY),
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
        let key = key(&address);
        let place = &self.cache[hash(key)];
        let mut known = place.get();
        if known.key != key || known.version != version {
            known = LookUp {
                key,
                version,
                peer: self.directory.find(address),
            };
            place.set(known);
        }
        known.peer.map_or(Source::Unknown(address), Source::Peer)
    }
}

/// The key of an address. Addresses of senders have no flow label, so no two have the same key.
#[inline]
fn key(address: &SocketAddr) -> Key {
    let port = u64::from(address.port());
    match address {
        SocketAddr::V4(v4) => [u64::from(v4.ip().to_bits()), 0, port],
        SocketAddr::V6(v6) => {
            let bits = v6.ip().to_bits();
            let scope = u64::from(v6.scope_id());
            [
                bits as u64,
                (bits >> 64) as u64,
                1 << 63 | scope << 16 | port,
            ]
        }
    }
}

/// A place in the cache. A sender that chooses addresses to collide causes misses, and nothing
/// else.
#[inline]
fn hash(key: Key) -> usize {
    let mixed = (key[0] as u32 ^ (key[2] as u32) << 16).wrapping_mul(0x9e37_79b9);
    (mixed >> 24) as usize % CACHED
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_senders_have_the_same_key() {
        let senders = [
            "0.0.0.0:0",
            "0.0.0.1:0",
            "0.0.0.0:1",
            "10.0.0.1:9000",
            "10.0.0.1:9001",
            "[::]:0",
            "[::a00:1]:9000",
            "[::ffff:a00:1]:9000",
            "[fd00::1]:9000",
            "[fd00:0:0:1::1]:9000",
            "[fe80::1%1]:9000",
            "[fe80::1%2]:9000",
            "[fe80::1%65536]:9000",
        ];
        let keys: HashSet<Key> = senders
            .iter()
            .map(|sender| key(&sender.parse().expect("an address")))
            .collect();
        assert_eq!(keys.len(), senders.len());
    }
}
