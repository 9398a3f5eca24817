//! What goes over the wire in place of a message: compressed bodies, and bounds on the sizes of messages.
//!
//! ```text
//!  client: seal ─▶ fit ─────▶ network ─────▶ server: open ─▶ handler
//!          check,  as the server                     check,     │
//!          pack    takes it                          unpack     ▼
//!  client: open ◀──────────── network ◀───── server: seal ◀─ response
//! ```
//!
//! A caller's thread packs its requests and unpacks its responses, so that the event loop behind channels does
//! neither for it; a server does both where the handler runs: in a worker, in the user's executor, or else in the
//! dispatch thread. Bounds are on messages as their users have them, and are checked before memory is taken for a
//! message that comes.

mod client;
mod fit;
mod server;
mod stream;

use std::borrow::Cow;

use starling_compress::{Algorithm, DecompressError};
use starling_endpoint::CompressedBody;

use crate::compression::Compression;

pub(crate) use client::{CallCoding, open_response};
pub(crate) use fit::{Fitted, fit, packed_by};
pub(crate) use server::MethodCoding;
pub(crate) use stream::{coded_at_client, coded_at_server, plain_len, unpacked_more};

/// The most bytes of a message that was compressed, unless its receiver has another bound: of a server, which is
/// not asked first, as of gRPC; and of a client, which says that it takes compressed responses.
const MAX_UNPACKED_AT_SERVER: usize = 4 << 20;
const MAX_UNPACKED_AT_CLIENT: usize = 64 << 20;

/// A bound on the bytes of messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// If somebody has set one.
    most: usize,
    /// Of those that were compressed.
    when_unpacked: usize,
    /// A channel's service config has set it, so a higher one of the caller does not count. For error texts.
    is_of_config: bool,
}

impl Bound {
    pub(crate) fn at_client(bytes: Option<usize>) -> Self {
        Self::or(bytes, MAX_UNPACKED_AT_CLIENT)
    }

    pub(crate) fn at_server(bytes: Option<usize>) -> Self {
        Self::or(bytes, MAX_UNPACKED_AT_SERVER)
    }

    fn or(bytes: Option<usize>, when_unpacked: usize) -> Self {
        Self {
            most: bytes.unwrap_or(usize::MAX),
            when_unpacked: bytes.unwrap_or(when_unpacked),
            is_of_config: false,
        }
    }

    #[inline]
    fn allows(self, len: usize) -> bool {
        len <= self.most
    }

    fn is_set(self) -> bool {
        self.most != usize::MAX
    }
}

/// Why a body that came is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// It is longer than the receiver takes.
    TooLong { len: usize, most: usize },
    /// This end does not have the algorithm with this number.
    Unknown { number: u8 },
    /// It ends within what stands in front of it.
    CutShort,
    /// It is not what it is said to be.
    Malformed(DecompressError),
}

/// Compresses a message, behind `room` bytes. None if it is to go as it is.
fn pack(
    compression: &Compression,
    head: &[u8],
    tail: &[u8],
    room: usize,
) -> Option<(Vec<u8>, CompressedBody)> {
    let len = head.len() + tail.len();
    let algorithm = compression.for_len(len)?;
    let input = match tail {
        [] => Cow::Borrowed(head),
        tail => Cow::Owned([head, tail].concat()),
    };
    let mut out = Vec::with_capacity(room + len / 2);
    out.resize(room, 0);
    let level = compression.own_level();
    starling_compress::compress(algorithm, level, &input, &mut out).then(|| {
        let body = CompressedBody {
            algorithm: algorithm.number(),
            len: len as u32,
        };
        (out, body)
    })
}

/// Whether a body may be decompressed by what its header says; its algorithm.
fn is_unpackable(body: CompressedBody, bound: Bound) -> Result<Algorithm, Refused> {
    let CompressedBody { algorithm, len } = body;
    let (number, len, most) = (algorithm, len as usize, bound.when_unpacked);
    let algorithm = Algorithm::from_number(number).filter(|it| it.is_available());
    let algorithm = algorithm.ok_or(Refused::Unknown { number })?;
    match len <= most {
        true => Ok(algorithm),
        false => Err(Refused::TooLong { len, most }),
    }
}

/// Decompresses a body and appends it to `out`. No memory is taken for one that is too long.
fn unpack(
    packed: &[u8],
    body: CompressedBody,
    bound: Bound,
    out: &mut Vec<u8>,
) -> Result<(), Refused> {
    let algorithm = is_unpackable(body, bound)?;
    starling_compress::decompress(algorithm, packed, body.len as usize, out)
        .map_err(Refused::Malformed)
}

/// Unpacks what this process has packed itself.
fn unpack_own(packed: &[u8], body: CompressedBody, out: &mut Vec<u8>) {
    let unpacked = unpack(packed, body, Bound::at_client(Some(u32::MAX as usize)), out);
    unpacked.expect("this process has packed it");
}

/// An algorithm, for error texts.
fn name_of(number: u8) -> String {
    match Algorithm::from_number(number) {
        Some(algorithm) => algorithm.name().to_owned(),
        None => format!("algorithm {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_two_parts_comes_back_as_one_and_too_long_ones_are_refused() {
        for algorithm in Algorithm::ALL.into_iter().filter(|it| it.is_available()) {
            let compression = Compression::again(algorithm);
            let (head, tail) = (vec![1; 300], vec![2; 5_000]);
            let (packed, body) = pack(&compression, &head, &tail, 7).expect("it gets shorter");
            assert_eq!((packed[..7].to_vec(), body.len), (vec![0; 7], 5_300));
            let packed = &packed[7..];
            let mut out = Vec::new();
            for bound in [Bound::at_server(None), Bound::at_client(Some(5_300))] {
                out.clear();
                assert_eq!(unpack(packed, body, bound, &mut out), Ok(()));
                assert_eq!(out, [head.as_slice(), &tail].concat());
            }
            let mut out = Vec::new();
            let (len, most) = (5_300, 5_299);
            let refused = unpack(packed, body, Bound::at_server(Some(most)), &mut out);
            assert_eq!(refused, Err(Refused::TooLong { len, most }));
            let bomb = CompressedBody {
                len: u32::MAX,
                ..body
            };
            let len = u32::MAX as usize;
            let bounds = [
                (Bound::at_server(None), MAX_UNPACKED_AT_SERVER),
                (Bound::at_client(None), MAX_UNPACKED_AT_CLIENT),
            ];
            for (bound, most) in bounds {
                let refused = unpack(packed, bomb, bound, &mut out);
                assert_eq!(refused, Err(Refused::TooLong { len, most }));
            }
            let unknown = CompressedBody {
                algorithm: 7,
                ..body
            };
            let refused = unpack(packed, unknown, Bound::at_server(None), &mut out);
            assert_eq!(refused, Err(Refused::Unknown { number: 7 }));
            assert_eq!(out.capacity(), 0, "memory was taken");
        }
    }
}
