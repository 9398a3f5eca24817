//! Tokens: what a datagram must know to be from the peer that it claims to be from.

use std::hash::Hasher;
use std::net::SocketAddr;

use siphasher::sip::SipHasher24;

use super::PREAMBLE_BYTES;
use super::frame::MAGIC;
use super::{DatagramError, VERSION};
use crate::PeerId;

/// The bits of a token.
const BITS: u32 = 48;

/// Names one incarnation of an endpoint to one peer. No other peer knows it, and each peer knows another one.
/// [`Token::NONE`] is the token of nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Token(u64);

impl Token {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const MAX: Self = Self((1 << BITS) - 1);

    /// The token of that number. `None`: there is no such token.
    pub(crate) fn from_wire(number: u64) -> Option<Self> {
        (number != 0 && number >> BITS == 0).then_some(Self(number))
    }

    /// The token in the low bits of a number, and the bits above.
    pub(crate) fn split_from(number: u64) -> (Self, u64) {
        (Self(number & ((1 << BITS) - 1)), number >> BITS)
    }

    /// A number with the token in its low bits, and `upper` above.
    pub(crate) fn with_upper(self, upper: u64) -> u64 {
        debug_assert!(upper >> (u64::BITS - BITS) == 0);
        self.0 | upper << BITS
    }

    pub(crate) fn to_wire(self) -> u64 {
        self.0
    }

    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// The preamble of the datagrams for the endpoint of this token.
    #[inline]
    pub(crate) fn preamble(self) -> [u8; PREAMBLE_BYTES] {
        self.preamble_of(VERSION)
    }

    /// As [`Self::preamble`], of another version.
    #[inline]
    pub(crate) fn preamble_of(self, version: u8) -> [u8; PREAMBLE_BYTES] {
        (self.0 << 16 | u64::from(version) << 8 | u64::from(MAGIC)).to_le_bytes()
    }

    /// The token in the first bytes of a datagram.
    pub(crate) fn of_preamble(preamble: [u8; PREAMBLE_BYTES]) -> Result<Self, DatagramError> {
        match preamble {
            [MAGIC, VERSION, ..] => Ok(Self(u64::from_le_bytes(preamble) >> 16)),
            [MAGIC, version, ..] => Err(DatagramError::Version(version)),
            [other, ..] => Err(DatagramError::Magic(other)),
        }
    }
}

/// From which an incarnation derives its token for each peer: so it need not remember the tokens of those that
/// it has forgotten, to tell their datagrams from those for another incarnation.
pub(crate) struct TokenKey([u8; 16]);

/// Adds an address to a hash, so that no two addresses are the same bytes.
pub(crate) fn hash_address(hasher: &mut impl Hasher, address: SocketAddr) {
    match address {
        SocketAddr::V4(address) => hasher.write(&address.ip().octets()),
        SocketAddr::V6(address) => {
            hasher.write(&address.ip().octets());
            // The link, of an address that several links may have.
            hasher.write_u32(address.scope_id());
        }
    }
    hasher.write_u16(address.port());
}

impl TokenKey {
    pub(crate) fn new(key: [u8; 16]) -> Self {
        Self(key)
    }

    /// The token for the peer at an address.
    pub(crate) fn for_address(&self, address: SocketAddr) -> Token {
        self.derive(|hasher| hash_address(hasher, address))
    }

    /// The token for a peer without an address, which the kernel identifies.
    pub(crate) fn for_peer(&self, peer: PeerId) -> Token {
        self.derive(|hasher| hasher.write_u32(peer.0))
    }

    /// A token that no peer is told.
    pub(crate) fn for_nobody(&self) -> Token {
        self.derive(|_| {})
    }

    fn derive(&self, write: impl FnOnce(&mut SipHasher24)) -> Token {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        write(&mut hasher);
        Token((hasher.finish() >> (u64::BITS - BITS)).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preamble_has_magic_version_and_the_whole_token() {
        let token = Token::from_wire(0x0605_0403_0201).unwrap();
        assert_eq!(token.preamble(), [MAGIC, VERSION, 1, 2, 3, 4, 5, 6]);
        assert_eq!(Token::of_preamble(token.preamble()), Ok(token));
        let other = token.preamble_of(9);
        assert_eq!(Token::of_preamble(other), Err(DatagramError::Version(9)));
        assert_eq!(Token::of_preamble([0; 8]), Err(DatagramError::Magic(0)));
        assert_eq!(Token::from_wire(0), None);
        assert_eq!(Token::from_wire(1 << 48), None);
    }

    #[test]
    fn each_peer_has_another_token_and_each_incarnation_too() {
        let (first, second) = (TokenKey::new([1; 16]), TokenKey::new([2; 16]));
        let addresses = [
            "10.0.0.1:5",
            "10.0.0.1:6",
            "10.0.0.2:5",
            "[::1]:5",
            "[fe80::1%2]:5",
            "[fe80::1%3]:5",
        ];
        let mut seen = std::collections::BTreeSet::new();
        for address in addresses.map(|address| address.parse().unwrap()) {
            assert!(seen.insert(first.for_address(address)));
            assert!(seen.insert(second.for_address(address)));
            assert_eq!(first.for_address(address), first.for_address(address));
        }
        for peer in [PeerId(0), PeerId(1)] {
            assert!(seen.insert(first.for_peer(peer)));
            assert!(seen.insert(second.for_peer(peer)));
        }
    }
}
