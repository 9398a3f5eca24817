//! What a message that is decoded from protobuf may take in memory.
//!
//! Small things grow when they are decoded. A sub-message of which nothing is set has two bytes in
//! protobuf and its whole fixed part in memory; a packed number grows from one byte to eight; an array
//! that grows among other parts moves, and leaves up to three times its bytes behind. So a few bytes from
//! a peer could take all the memory that a fixed limit allows.

use super::error::DecodeErrorKind;
use crate::arena::{Arena, MAX_MESSAGE_BYTES};

/// The most that a decoded message may take in memory: `max_bytes`, and no more than `factor` times the
/// bytes that came plus `spare_bytes`.
///
/// A number stands for a limit of so many `max_bytes`, with the default proportion.
///
/// ```
/// use starling_message::protobuf::DecodeLimits;
///
/// let limits = DecodeLimits { factor: 1000, ..DecodeLimits::from(64 << 20) };
/// assert_eq!((limits.max_bytes, limits.spare_bytes), (64 << 20, 64 << 10));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeLimits {
    /// The largest message, in bytes of memory. Never more than a quarter of [`MAX_MESSAGE_BYTES`].
    pub max_bytes: usize,
    /// How many bytes of memory one byte of protobuf may become.
    pub factor: usize,
    /// What a message may take beyond that: a short one may have a large sub-message.
    pub spare_bytes: usize,
}

impl Default for DecodeLimits {
    /// 256 MiB, and for each byte that came 256, plus 64 KiB.
    ///
    /// So an array passes if nothing is set in any of its elements, of two bytes each, as long as they take up
    /// to 512 bytes in memory; and if its elements have 14 bytes each, as long as they take up to 896, even
    /// if the array moves. Only messages of larger types that are almost empty can reach the proportion.
    fn default() -> Self {
        Self {
            max_bytes: 256 << 20,
            factor: 256,
            spare_bytes: 64 << 10,
        }
    }
}

impl From<usize> for DecodeLimits {
    fn from(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            ..Self::default()
        }
    }
}

impl DecodeLimits {
    /// The room for what `encoded` bytes add to a message that takes `present` bytes.
    pub(super) fn room(self, present: usize, encoded: usize) -> Room {
        let max_bytes = self.max_bytes.min(MAX_MESSAGE_BYTES / 4);
        let added = self
            .spare_bytes
            .saturating_add(self.factor.saturating_mul(encoded));
        let allowed = present.saturating_add(added);
        let (limit, excess) = match allowed < max_bytes {
            true => (
                allowed,
                DecodeErrorKind::OutOfProportion { encoded, allowed },
            ),
            false => (max_bytes, DecodeErrorKind::TooLarge),
        };
        Room { limit, excess }
    }
}

/// The room for one message, and what is wrong if it does not fit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    limit: usize,
    excess: DecodeErrorKind,
}

impl Room {
    /// Takes memory for `more` bytes at the end of the message, if it may be so large.
    #[inline]
    pub(super) fn take(self, arena: &mut Arena, more: usize) -> Result<(), DecodeErrorKind> {
        match arena.reserve_within(more, self.limit) {
            true => Ok(()),
            false => Err(self.excess),
        }
    }
}
