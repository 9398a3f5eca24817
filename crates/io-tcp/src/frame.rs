//! What goes over a connection, in each direction: a hello, then datagrams, each behind its length.
//!
//! ```text
//!  0                 4        5        6                 8
//! ┌─────────────────┬────────┬────────┬─────────────────┬──────────────┬──────────┬──────────────┬──────────┬─
//! │ magic           │version │ code   │ zero            │ length u32   │ datagram │ length u32   │ datagram │ ...
//! └─────────────────┴────────┴────────┴─────────────────┴──────────────┴──────────┴──────────────┴──────────┴─
//! ```
//!
//! PROTOCOL.md, section 2.1, is normative.

use std::ops::Range;

/// The first bytes of a connection, in either direction.
const MAGIC: [u8; 4] = *b"\x5aTCP";
/// The version of what is described here.
const VERSION: u8 = 1;
/// Bytes of a hello.
pub(crate) const HELLO_BYTES: usize = 8;
/// Bytes of a datagram's length.
pub(crate) const LENGTH_BYTES: usize = 4;
/// The shortest datagram: its preamble.
const MIN_DATAGRAM: usize = 8;
/// The longest datagram. No user of a device fills a longer one, and it bounds what a peer can make this process
/// keep of one.
pub(crate) const MAX_DATAGRAM: usize = 65_559;
/// The most bytes of a datagram with its length.
pub(crate) const MAX_FRAME_BYTES: usize = LENGTH_BYTES + MAX_DATAGRAM;

/// What an end says in its hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// It takes part.
    Welcome = 0,
    /// It has no place for another peer, and closes the connection.
    Full = 1,
}

/// The hello of this end.
pub(crate) fn hello(code: Code) -> [u8; HELLO_BYTES] {
    let [a, b, c, d] = MAGIC;
    [a, b, c, d, VERSION, code as u8, 0, 0]
}

/// Why a connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// It does not begin as such a connection does.
    Nonsense,
    /// The peer has another version.
    OtherVersion,
    /// The peer has no place.
    Full,
    /// The peer refuses, for a reason that this version does not know.
    Unacceptable,
    /// A datagram's length is not one that it may have.
    Length,
}

/// Takes the bytes of one connection apart.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    is_greeted: bool,
}

impl Decoder {
    /// Where the next datagram lies in `bytes`, which are those of the connection from `*at` on. Moves `at` behind
    /// it. `None`: there is no whole one; what is left from `at` on belongs in front of what comes next.
    pub(crate) fn next(
        &mut self,
        bytes: &[u8],
        at: &mut usize,
    ) -> Result<Option<Range<usize>>, Defect> {
        if !self.is_greeted {
            let hello = &bytes[*at..];
            check_hello(hello)?;
            if hello.len() < HELLO_BYTES {
                return Ok(None);
            }
            self.is_greeted = true;
            *at += HELLO_BYTES;
        }
        let rest = &bytes[*at..];
        let Some(length) = rest.first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if !(MIN_DATAGRAM..=MAX_DATAGRAM).contains(&length) {
            return Err(Defect::Length);
        }
        if rest.len() < LENGTH_BYTES + length {
            return Ok(None);
        }
        let start = *at + LENGTH_BYTES;
        *at = start + length;
        Ok(Some(start..*at))
    }
}

/// Refuses what no hello begins with, as soon as that shows.
fn check_hello(bytes: &[u8]) -> Result<(), Defect> {
    let known = bytes.len().min(MAGIC.len());
    if bytes[..known] != MAGIC[..known] {
        return Err(Defect::Nonsense);
    }
    match (bytes.get(4), bytes.get(5)) {
        (Some(&version), _) if version != VERSION => Err(Defect::OtherVersion),
        (_, Some(&code)) if code == Code::Full as u8 => Err(Defect::Full),
        (_, Some(&code)) if code != Code::Welcome as u8 => Err(Defect::Unacceptable),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection that carries datagrams of these lengths.
    fn stream(lengths: &[usize]) -> Vec<u8> {
        let mut bytes = hello(Code::Welcome).to_vec();
        for (number, &length) in lengths.iter().enumerate() {
            bytes.extend((length as u32).to_le_bytes());
            bytes.extend(std::iter::repeat_n(number as u8, length));
        }
        bytes
    }

    /// Decodes bytes that come in pieces, as the receiving half does.
    fn decode<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Vec<u8>>, Defect> {
        let (mut decoder, mut kept, mut found) = (Decoder::default(), Vec::new(), Vec::new());
        for piece in pieces {
            let mut bytes = std::mem::take(&mut kept);
            bytes.extend_from_slice(piece);
            let mut at = 0;
            while let Some(range) = decoder.next(&bytes, &mut at)? {
                found.push(bytes[range].to_vec());
            }
            kept = bytes.split_off(at);
            assert!(kept.len() < MAX_FRAME_BYTES, "more is kept than a datagram");
        }
        Ok(found)
    }

    #[test]
    fn datagrams_are_found_however_the_stream_is_cut() {
        let lengths = [8, 100, MAX_DATAGRAM, 9];
        let bytes = stream(&lengths);
        for size in [1, 3, 7, 1000, 65_536, bytes.len()] {
            let found = decode(bytes.chunks(size)).expect("a good stream");
            let found: Vec<_> = found.iter().map(Vec::len).collect();
            assert_eq!(found, lengths, "pieces of {size}");
        }
    }

    #[test]
    fn what_no_working_peer_sends_is_refused_as_soon_as_it_shows() {
        let check = |bytes: &[u8]| decode([bytes].into_iter());
        assert_eq!(check(b"G"), Err(Defect::Nonsense));
        assert_eq!(check(b"\x5aTCQ"), Err(Defect::Nonsense));
        assert_eq!(check(b"\x5aTCP\x02"), Err(Defect::OtherVersion));
        assert_eq!(check(&hello(Code::Full)), Err(Defect::Full));
        assert_eq!(check(b"\x5aTCP\x01\x09"), Err(Defect::Unacceptable));
        assert_eq!(check(b"\x5aTCP\x01\x00"), Ok(vec![]));
        for length in [0, 7, MAX_DATAGRAM as u32 + 1, u32::MAX] {
            let mut bytes = stream(&[20]);
            bytes.extend(length.to_le_bytes());
            assert_eq!(check(&bytes), Err(Defect::Length), "{length}");
        }
        // What a later version says in the last two bytes is ignored.
        assert_eq!(check(b"\x5aTCP\x01\x00\xff\xff"), Ok(vec![]));
    }

    #[test]
    fn any_bytes_in_any_pieces_are_decoded_or_refused_alike() {
        bolero::check!()
            .with_type::<(bool, u8, Vec<u8>)>()
            .with_iterations(2000)
            .for_each(|(is_greeted, size, noise)| {
                let mut bytes = match is_greeted {
                    true => stream(&[usize::from(*size) + 8]),
                    false => Vec::new(),
                };
                bytes.extend(noise);
                let whole = decode([&bytes[..]].into_iter());
                let pieces = decode(bytes.chunks(usize::from(*size) + 1));
                assert_eq!(whole, pieces);
                if let Ok(found) = whole {
                    let lengths = MIN_DATAGRAM..=MAX_DATAGRAM;
                    assert!(found.iter().all(|found| lengths.contains(&found.len())));
                }
            });
    }
}
