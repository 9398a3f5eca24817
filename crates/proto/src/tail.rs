//! Data of fragments, which may be in two places.

/// The end of a datagram that is not in the receive buffer, but in memory of its sender's. It can only be
/// copied out.
pub trait Tail {
    /// Its length in bytes.
    fn bytes(&self) -> usize;

    /// Appends it. False if the sender has taken its memory back: what was appended is worth nothing.
    fn append_to(&self, buffer: &mut Vec<u8>) -> bool;

    /// Copies it to a slice of its length. False as above.
    fn copy_to(&self, into: &mut [u8]) -> bool;
}

/// The bytes of a message that one fragment has.
#[derive(Clone, Copy)]
pub(crate) struct FragmentData<'a> {
    pub(crate) head: &'a [u8],
    pub(crate) tail: Option<&'a dyn Tail>,
}

impl FragmentData<'_> {
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.tail.map_or(0, |tail| tail.bytes())
    }

    pub(crate) fn append_to(&self, buffer: &mut Vec<u8>) -> bool {
        buffer.extend_from_slice(self.head);
        self.tail.is_none_or(|tail| tail.append_to(buffer))
    }

    pub(crate) fn copy_to(&self, into: &mut [u8]) -> bool {
        let (head, rest) = into.split_at_mut(self.head.len());
        head.copy_from_slice(self.head);
        self.tail.is_none_or(|tail| tail.copy_to(rest))
    }
}

impl<'a> From<&'a [u8]> for FragmentData<'a> {
    fn from(head: &'a [u8]) -> Self {
        Self { head, tail: None }
    }
}
