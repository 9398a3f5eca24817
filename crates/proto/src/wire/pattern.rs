//! The byte pattern of a datagram with one plain request, for devices that choose datagrams by
//! their bytes.

use super::{HEADER_BYTES, Kind, PREAMBLE_BYTES, flags};

/// Where to look in a datagram, and what must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The first bytes of the datagram. Bits outside of `mask` are zero.
    pub value: [u8; 16],
    /// The bits of them that count.
    pub mask: [u8; 16],
    /// Offset of a little-endian 16-bit number: the bytes of the datagram from `payload_at` on.
    pub length_at: u8,
    /// Offset of the request's payload.
    pub payload_at: u8,
}

/// A datagram that is one whole request of one packet, without an extension and without a wish for
/// more credits. Other datagrams need the thread that has the endpoint.
pub const PLAIN_REQUEST: Pattern = {
    const KIND_AT: usize = PREAMBLE_BYTES;
    let (mut value, mut mask) = ([0; 16], [0; 16]);
    (value[KIND_AT], mask[KIND_AT]) = (Kind::Request as u8, flags::KIND | flags::EXT | flags::WANT);
    Pattern {
        value,
        mask,
        length_at: KIND_AT as u8 + 2,
        payload_at: (PREAMBLE_BYTES + HEADER_BYTES) as u8,
    }
};

#[cfg(test)]
mod tests {
    use starling_io::MatchTable;

    use super::*;
    use crate::wire::{Header, Token};

    /// The table of a device that finds a key at the start of each payload.
    const TABLE: MatchTable = MatchTable {
        value: PLAIN_REQUEST.value,
        mask: PLAIN_REQUEST.mask,
        length_at: PLAIN_REQUEST.length_at,
        length_from: PLAIN_REQUEST.payload_at,
        key_at: PLAIN_REQUEST.payload_at,
    };

    const PAYLOAD: &[u8] = b"key and body";
    const KEY: u32 = u32::from_le_bytes(*b"key ");

    /// A frame of any kind and flags with [`PAYLOAD`].
    fn frame(kind: Kind, flags: u8, slot: u8, session: u32, number: u64) -> Vec<u8> {
        let header = Header {
            kind,
            flags,
            slot,
            session,
            number,
        };
        [&header.to_bytes(PAYLOAD.len())[..], PAYLOAD].concat()
    }

    fn datagram(token: u64, frames: &[&[u8]]) -> Vec<u8> {
        let token = Token::from_wire(token).expect("a token");
        [&token.preamble()[..], &frames.concat()].concat()
    }

    fn key_of(datagram: &[u8]) -> Option<u32> {
        TABLE.key_of(datagram)
    }

    #[test]
    fn plain_requests_match_and_no_other_kinds_and_flags_do() {
        let kinds = (0..=u8::MAX >> 3).filter_map(Kind::from_wire);
        for kind in kinds {
            for flags in (0..8).map(|bits| bits << 5) {
                let datagram = datagram(7 << 16, &[&frame(kind, flags, 3, 4, 5)]);
                let is_plain = kind == Kind::Request && flags & (flags::EXT | flags::WANT) == 0;
                let expected = is_plain.then_some(KEY);
                assert_eq!(key_of(&datagram), expected, "{kind:?}, {flags:#04x}");
            }
        }
    }

    #[test]
    fn token_slot_session_and_number_do_not_matter() {
        for word in [0, 1, u32::MAX] {
            let number = u64::from(word) << 32 | u64::from(word);
            let frame = frame(Kind::Request, 0, word as u8, word, number);
            assert_eq!(key_of(&datagram(number.max(1 << 16), &[&frame])), Some(KEY));
        }
    }

    #[test]
    fn a_datagram_that_is_not_one_whole_frame_does_not_match() {
        let frame = frame(Kind::Request, 0, 0, 1, 1);
        assert_eq!(
            key_of(&datagram(1 << 16, &[&frame, &frame])),
            None,
            "a bundle"
        );
        let whole = datagram(1 << 16, &[&frame]);
        assert_eq!(key_of(&[&whole[..], b"!"].concat()), None);
        for len in 0..whole.len() {
            assert_eq!(key_of(&whole[..len]), None, "{len} bytes of it");
        }
    }
}
