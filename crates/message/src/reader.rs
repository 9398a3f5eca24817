//! Reads a message in place, at any alignment.

use bytes::Bytes;

use crate::layout::TAIL_OFFSET;
use crate::scalar::Scalar;

/// A position in a message, which all views are made of.
///
/// Make it only for bytes that were validated, as a whole or as far as they are read
/// ([`FieldChecks`](crate::FieldChecks)), or that this process built. Even so, no read goes out of bounds: a value that
/// does not lie within the bytes reads as zero or empty.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    head: &'a [u8],
    tail: Option<&'a Bytes>,
    at: u32,
}

impl<'a> Reader<'a> {
    /// At the root of a contiguous message.
    #[inline]
    pub fn root(message: &'a [u8]) -> Self {
        Reader {
            head: message,
            tail: None,
            at: 0,
        }
    }

    /// At the root of a message whose last bytes are stored separately, or all of them.
    #[inline]
    pub fn in_parts(head: &'a [u8], tail: Option<&'a Bytes>) -> Self {
        match tail {
            Some(whole) if head.is_empty() => Self::root(whole),
            tail => Reader { head, tail, at: 0 },
        }
    }

    /// At an empty message: an absent sub-message reads as one.
    #[inline]
    pub fn empty() -> Self {
        Reader {
            head: &[],
            tail: None,
            at: 0,
        }
    }

    /// The same message, at another position.
    #[inline]
    pub(crate) fn moved_to(self, at: u32) -> Self {
        Reader { at, ..self }
    }

    /// The position, as an offset from the message's start.
    pub(crate) fn position(self) -> u32 {
        self.at
    }

    /// The scalar `offset` bytes into the fixed part.
    #[inline]
    pub fn scalar<T: Scalar>(self, offset: u32) -> T {
        let at = self.at as usize + offset as usize;
        match self.head.get(at..at + T::WIDTH) {
            Some(bytes) => T::from_le(bytes),
            None => T::default(),
        }
    }

    /// Whether a presence bit is 1.
    #[inline]
    pub fn bit(self, byte: u32, mask: u8) -> bool {
        self.scalar::<u8>(byte) & mask != 0
    }

    /// A reference: offset, and length or count.
    #[inline]
    pub fn reference(self, offset: u32) -> (u32, u32) {
        let both = self.scalar::<u64>(offset);
        (both as u32, (both >> 32) as u32)
    }

    /// The bytes behind a reference.
    #[inline]
    pub fn bytes(self, offset: u32) -> &'a [u8] {
        let (start, length) = self.reference(offset);
        match self
            .head
            .get(start as usize..start as usize + length as usize)
        {
            Some(bytes) => bytes,
            None => self.tail_bytes(start, length),
        }
    }

    #[cold]
    fn tail_bytes(self, start: u32, length: u32) -> &'a [u8] {
        if start != TAIL_OFFSET {
            return &[];
        }
        let last = self.tail.map_or(self.head, |tail| tail);
        match last.len().checked_sub(length as usize) {
            Some(from) => &last[from..],
            None => &[],
        }
    }

    /// The text behind a reference. Validation has checked that it is UTF-8.
    #[inline]
    pub fn text(self, offset: u32) -> &'a str {
        str::from_utf8(self.bytes(offset)).unwrap_or_default()
    }

    /// The sub-message behind a reference, if it is present.
    #[inline]
    pub fn child(self, offset: u32) -> Option<Reader<'a>> {
        match self.scalar::<u32>(offset) {
            0 => None,
            at => Some(self.moved_to(at)),
        }
    }

    /// The array behind a reference: its start, and how many elements it has.
    #[inline]
    pub(crate) fn array(self, offset: u32) -> (Reader<'a>, u32) {
        let (start, count) = self.reference(offset);
        (self.moved_to(start), count)
    }

    /// Element `index` of the array that starts here.
    #[inline]
    pub(crate) fn element(self, index: u32, stride: u32) -> Reader<'a> {
        self.moved_to(self.at.saturating_add(index.saturating_mul(stride)))
    }
}
