//! Tokens: what a datagram must know to be from the peer that it claims to be from.

use std::hash::Hasher;
use std::net::SocketAddr;

use siphasher::sip::SipHasher24;

use super::PREAMBLE_BYTES;
use super::frame::MAGIC;
use super::{DatagramError, VERSION};
use crate::PeerId;

/// A preamble with any of these bits is a token. One with none of them is magic and version.
const TOKEN_BITS: u64 = !0xffff;

/// Names one incarnation of an endpoint to one peer. No other peer knows it, and each peer knows another one.
/// [`Token::NONE`] is the token of nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Token(u64);

impl Token {
    /// As a number: the preamble of a datagram without a token. It is below all tokens.
    pub(crate) const NONE: Self = Self(u16::from_le_bytes([MAGIC, VERSION]) as u64);
    pub(crate) const MAX: Self = Self(u64::MAX);
    /// The least number of a token.
    const LEAST: u64 = 1 << TOKEN_BITS.trailing_zeros();

    /// The token of that number. `None`: there is no such token.
    pub(crate) fn from_wire(number: u64) -> Option<Self> {
        (number & TOKEN_BITS != 0).then_some(Self(number))
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
        self.0.to_le_bytes()
    }

    /// The token in the first bytes of a datagram.
    pub(crate) fn of_preamble(preamble: [u8; PREAMBLE_BYTES]) -> Result<Self, DatagramError> {
        match (Self::from_wire(u64::from_le_bytes(preamble)), preamble) {
            (Some(token), _) => Ok(token),
            (None, [MAGIC, VERSION, ..]) => Ok(Self::NONE),
            (None, [MAGIC, version, ..]) => Err(DatagramError::Version(version)),
            (None, [other, ..]) => Err(DatagramError::Magic(other)),
        }
    }
}

impl Default for Token {
    fn default() -> Self {
        Self::NONE
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
        Token(hasher.finish().max(Token::LEAST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preamble_is_a_token_or_magic_and_version() {
        let token = Token::from_wire(0x0807_0605_0403_0201).unwrap();
        assert_eq!(token.preamble(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(Token::of_preamble(token.preamble()), Ok(token));
        let none = [MAGIC, VERSION, 0, 0, 0, 0, 0, 0];
        assert_eq!(Token::NONE.preamble(), none);
        assert_eq!(Token::of_preamble(none), Ok(Token::NONE));
        let other = [MAGIC, 9, 0, 0, 0, 0, 0, 0];
        assert_eq!(Token::of_preamble(other), Err(DatagramError::Version(9)));
        assert_eq!(Token::of_preamble([0; 8]), Err(DatagramError::Magic(0)));
    }

    #[test]
    fn no_token_is_the_preamble_of_a_version() {
        for number in [0, Token::NONE.to_wire(), Token::LEAST - 1] {
            assert_eq!(Token::from_wire(number), None);
        }
        for number in [Token::LEAST, u64::MAX] {
            let token = Token::from_wire(number).unwrap();
            assert!(Token::NONE < token && token <= Token::MAX);
            assert_eq!(Token::of_preamble(token.preamble()), Ok(token));
        }
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
