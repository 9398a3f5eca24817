//! What waits to be sent to one peer: whole datagrams behind their lengths, the last of which may be open.

use crate::frame::LENGTH_BYTES;

/// The bytes for one peer that the kernel has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    /// So many of them the kernel has.
    taken: usize,
    /// Where the open datagram's length is.
    open: Option<usize>,
}

impl Outgoing {
    /// Bytes that wait.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What waits.
    pub(crate) fn unsent(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Whether the open datagram takes so many more bytes, if it may have `most`.
    pub(crate) fn has_room(&self, more: usize, most: usize) -> bool {
        self.open
            .is_some_and(|open| self.bytes.len() - open - LENGTH_BYTES + more <= most)
    }

    /// Uses this memory, if it has none.
    pub(crate) fn provide(&mut self, memory: impl FnOnce() -> Vec<u8>) {
        if self.bytes.capacity() == 0 {
            self.bytes = memory();
        }
    }

    /// Opens a datagram, of which `length` bytes are to follow. Closes the one before.
    pub(crate) fn begin(&mut self, length: usize) {
        self.open = Some(self.bytes.len());
        self.bytes.extend((length as u32).to_le_bytes());
    }

    /// The open datagram becomes longer by so many bytes, which are to follow.
    pub(crate) fn grow(&mut self, by: usize) {
        let open = self.open.expect("its caller has looked for room");
        let length = self.bytes[open..].first_chunk_mut::<LENGTH_BYTES>();
        let length = length.expect("the length was written when it was opened");
        *length = (u32::from_le_bytes(*length) + by as u32).to_le_bytes();
    }

    /// Appends bytes that [`Outgoing::begin`] or [`Outgoing::grow`] have announced.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Closes the open datagram.
    pub(crate) fn seal(&mut self) {
        self.open = None;
    }

    /// The kernel has taken so many bytes. All that is left is closed datagrams.
    pub(crate) fn take(&mut self, count: usize) {
        self.open = None;
        self.taken += count;
        debug_assert!(self.taken <= self.bytes.len());
        if self.taken > self.bytes.len() / 2 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
    }

    /// The memory, when nothing waits. Keeps none.
    pub(crate) fn release(&mut self) -> Vec<u8> {
        let mut memory = std::mem::take(self).bytes;
        memory.clear();
        memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_wait_behind_their_lengths_until_the_kernel_takes_them() {
        let mut outgoing = Outgoing::default();
        assert!(!outgoing.has_room(1, 100), "none is open");
        outgoing.begin(3);
        outgoing.extend(b"abc");
        assert!(outgoing.has_room(2, 5) && !outgoing.has_room(3, 5));
        outgoing.grow(2);
        outgoing.extend(b"de");
        outgoing.seal();
        assert!(!outgoing.has_room(0, 100));
        outgoing.begin(1);
        outgoing.extend(b"f");
        assert_eq!(outgoing.unsent(), b"\x05\0\0\0abcde\x01\0\0\0f");
        outgoing.take(3);
        assert_eq!(outgoing.unsent(), b"\0abcde\x01\0\0\0f");
        outgoing.take(10);
        assert_eq!(outgoing.unsent(), b"f");
        outgoing.begin(1);
        outgoing.extend(b"g");
        assert_eq!(outgoing.unsent(), b"f\x01\0\0\0g");
        outgoing.take(6);
        assert!(outgoing.is_empty());
        assert!(outgoing.release().capacity() > 0);
        let mut is_asked = false;
        outgoing.provide(|| {
            is_asked = true;
            Vec::with_capacity(8)
        });
        assert!(is_asked);
    }
}
