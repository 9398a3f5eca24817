//! Payloads of the frames that the protocol itself reads.

use super::{Header, Kind, Token};

/// Declares a fixed-size payload: fields in order, little-endian, no padding.
macro_rules! body {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name { $($(#[$field_doc])* pub(crate) $field: $kind),* }

        impl $name {
            pub(crate) const BYTES: usize = 0 $(+ size_of::<$kind>())*;

            #[inline]
            pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
                let mut bytes = [0; Self::BYTES];
                let mut at = 0;
                $(
                    let field = self.$field.to_le_bytes();
                    bytes[at..at + field.len()].copy_from_slice(&field);
                    at += field.len();
                )*
                debug_assert_eq!(at, Self::BYTES);
                bytes
            }

            /// Reads the payload; bytes beyond it are left for later versions.
            #[inline]
            pub(crate) fn parse(payload: &[u8]) -> Option<(Self, &[u8])> {
                let (bytes, rest) = payload.split_first_chunk::<{ Self::BYTES }>()?;
                let mut at = 0;
                $(
                    let mut field = [0; size_of::<$kind>()];
                    field.copy_from_slice(&bytes[at..at + size_of::<$kind>()]);
                    at += size_of::<$kind>();
                    let $field = <$kind>::from_le_bytes(field);
                )*
                debug_assert_eq!(at, Self::BYTES);
                Some((Self { $($field),* }, rest))
            }
        }
    };
}

body! {
    /// Precedes the data of a fragment.
    Fragment {
        /// Bytes of the whole message.
        total: u32,
        /// Which fragment, from 0. All but the last are as long as the session's fragment size.
        index: u32,
    }
}

body! {
    /// The fragments of a request that arrived.
    CreditReturn {
        /// All fragments below this one arrived.
        next: u32,
        /// 1 if the request is complete and its handler has not answered yet.
        executing: u32,
        /// Bit `i`: fragment `next + i` arrived.
        sack: u64,
    }
}

body! {
    /// Which fragments of a response the client wants now.
    RequestForResponse {
        /// All fragments below this one arrived.
        base: u32,
        /// Zero.
        reserved: u32,
        /// Bit `i`: send fragment `base + i`.
        want: u64,
    }
}

body! {
    /// The request will have no response.
    Reject {
        /// See [`crate::Rejection`].
        code: u32,
    }
}

body! {
    /// Open a session.
    Connect {
        /// Of the client's endpoint for this server.
        token: u64,
        /// The client's number of the session.
        session: u32,
        /// Largest datagram that the client takes on this path.
        max_datagram: u32,
        /// Largest message that the client takes, bytes.
        max_message: u32,
        /// Requests that the client wants to have outstanding.
        slots: u16,
        /// Credits that the client can use.
        credits: u16,
        /// From the challenge, or zero.
        cookie_time: u64,
        /// From the challenge, or zero.
        cookie_mac: u64,
    }
}

body! {
    /// Prove that the address is yours: repeat the connect with these.
    Challenge {
        cookie_time: u64,
        cookie_mac: u64,
    }
}

body! {
    /// The session is open.
    Accept {
        /// Of the server's endpoint for this client.
        token: u64,
        /// The server's number of the session.
        session: u32,
        /// Largest datagram both ends take.
        max_datagram: u32,
        /// Largest message that the server takes, bytes.
        max_message: u32,
        /// Slots granted.
        slots: u16,
        /// Credits granted for now.
        credits: u16,
        /// Fragments of large requests that may be outstanding on the session.
        window: u32,
    }
}

body! {
    /// The session is not opened.
    Refuse {
        /// See [`crate::Refusal`].
        code: u32,
        /// The limit that was met, or the version that is spoken.
        detail: u32,
    }
}

/// Why a reset was sent: what the sender does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResetReason {
    /// The session that the header names.
    UnknownSession,
    /// The incarnation that the token names: the endpoint was restarted.
    Restarted,
    /// Any state of the peer.
    UnknownPeer,
    /// Anything, from now on: the endpoint was shut down for good.
    ShutDown,
}

impl ResetReason {
    /// Whether the incarnation that the token names has ended, with all its sessions.
    pub(crate) fn ends_incarnation(self) -> bool {
        matches!(self, Self::Restarted | Self::ShutDown)
    }
}

/// The sender does not have a session, an incarnation or a peer. All of this is in the header, so the frame is
/// no larger than the smallest frame that it can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reset {
    /// The token that the offending datagram carried: proof of having seen it.
    pub(crate) token: Token,
    pub(crate) reason: ResetReason,
}

impl Reset {
    /// The header of the frame, about a session or none (0).
    pub(crate) fn to_header(self, session: u32) -> Header {
        Header {
            slot: self.reason as u8,
            number: self.token.to_wire(),
            ..Header::control(Kind::Reset, session)
        }
    }

    pub(crate) fn from_header(header: &Header) -> Option<Self> {
        let reason = match header.slot {
            0 => ResetReason::UnknownSession,
            1 => ResetReason::Restarted,
            2 => ResetReason::UnknownPeer,
            3 => ResetReason::ShutDown,
            _ => return None,
        };
        let token = Token::from_wire(header.number)?;
        Some(Self { token, reason })
    }
}

body! {
    /// Credits of a session.
    Limit {
        credits: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_survive_the_wire_and_may_grow_in_later_versions() {
        let body = Connect {
            token: 1,
            session: 2,
            max_datagram: 3,
            max_message: 4,
            slots: 5,
            credits: 6,
            cookie_time: 7,
            cookie_mac: u64::MAX,
        };
        let mut bytes = body.to_bytes().to_vec();
        bytes.push(9);
        assert_eq!(Connect::parse(&bytes), Some((body, &[9][..])));
        assert_eq!(Connect::parse(&bytes[..Connect::BYTES - 1]), None);
    }

    #[test]
    fn a_challenge_is_smaller_than_what_asks_for_it() {
        // Otherwise a spoofed connect would make the server an amplifier.
        const { assert!(Challenge::BYTES <= Connect::BYTES) };
    }

    #[test]
    fn a_reset_fits_its_header() {
        for reason in [
            ResetReason::UnknownSession,
            ResetReason::Restarted,
            ResetReason::UnknownPeer,
            ResetReason::ShutDown,
        ] {
            let reset = Reset {
                token: Token::MAX,
                reason,
            };
            let header = reset.to_header(7);
            assert_eq!((header.kind, header.session), (Kind::Reset, 7));
            assert_eq!(Reset::from_header(&header), Some(reset));
            let unknown = Header { slot: 4, ..header };
            assert_eq!(Reset::from_header(&unknown), None);
            let nobodys = Header {
                number: Token::NONE.to_wire(),
                ..header
            };
            assert_eq!(Reset::from_header(&nobodys), None);
        }
    }
}
