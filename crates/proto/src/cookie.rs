//! Cookies: proof that a client receives datagrams at the address that it sends from.
//!
//! The server keeps no state of a connect until the client has echoed a cookie. So a connect from a
//! forged address costs the server one hash, and one datagram no larger than the connect (the idea
//! of TCP's SYN cookies, and of QUIC's address validation, RFC 9000 section 8.1).

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use crate::Source;
use crate::wire::{Token, hash_address};

/// A cookie is valid for this long.
const LIFETIME_NS: u64 = 5_000_000_000;

pub(crate) struct CookieKey {
    key: [u8; 16],
}

impl CookieKey {
    pub(crate) fn new(key: [u8; 16]) -> Self {
        Self { key }
    }

    /// The code for a connect of `session` of the client incarnation `token` at `now`. `present` is
    /// the known incarnation of the peer, if the source is one. It is part of the code because
    /// another peer may have the same number later, and the first must not harm that one.
    pub(crate) fn mac(
        &self,
        now: u64,
        source: Source,
        present: Token,
        token: Token,
        session: u32,
    ) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write_u64(now);
        hasher.write_u64(present.to_wire());
        hasher.write_u64(token.to_wire());
        hasher.write_u32(session);
        match source {
            Source::Peer(peer) => hasher.write_u32(peer.0),
            Source::Unknown(address) => hash_address(&mut hasher, address),
        }
        // Zero means "no cookie" on the wire.
        hasher.finish().max(1)
    }

    pub(crate) fn verify(
        &self,
        now: u64,
        source: Source,
        present: Token,
        token: Token,
        session: u32,
        (time, mac): (u64, u64),
    ) -> bool {
        let fresh = time <= now && now - time <= LIFETIME_NS;
        fresh && mac == self.mac(time, source, present, token, session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PeerId;

    fn token(number: u64) -> Token {
        Token::from_wire(number << 16).expect("a token")
    }

    #[test]
    fn a_cookie_is_bound_to_address_peer_client_session_and_time() {
        let cookie_key = CookieKey::new([3; 16]);
        let a = Source::Unknown("10.0.0.1:5".parse().unwrap());
        let b = Source::Unknown("10.0.0.1:6".parse().unwrap());
        let (present, other) = (token(6), token(5));
        let (client, another) = (token(7), token(9));
        let cookie = (1000, cookie_key.mac(1000, a, present, client, 8));
        assert!(cookie_key.verify(1000, a, present, client, 8, cookie));
        assert!(cookie_key.verify(1000 + LIFETIME_NS, a, present, client, 8, cookie));
        assert!(!cookie_key.verify(1001 + LIFETIME_NS, a, present, client, 8, cookie));
        assert!(!cookie_key.verify(999, a, present, client, 8, cookie));
        assert!(!cookie_key.verify(1000, b, present, client, 8, cookie));
        assert!(!cookie_key.verify(1000, Source::Peer(PeerId(0)), present, client, 8, cookie));
        assert!(!cookie_key.verify(1000, a, other, client, 8, cookie));
        assert!(!cookie_key.verify(1000, a, present, another, 8, cookie));
        assert!(!cookie_key.verify(1000, a, present, client, 9, cookie));
        let (link, other_link) = ("[fe80::1%2]:5", "[fe80::1%3]:5");
        let [link, other_link] = [link, other_link].map(|it| Source::Unknown(it.parse().unwrap()));
        let of_link = (1000, cookie_key.mac(1000, link, present, client, 8));
        assert!(!cookie_key.verify(1000, other_link, present, client, 8, of_link));
        assert!(!CookieKey::new([4; 16]).verify(1000, a, present, client, 8, cookie));
    }
}
