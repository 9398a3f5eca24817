//! The reading end of a ring.

use super::{
    BULK, HEADER_BYTES, HEAP, Heads, HeapRange, LENGTH_MASK, LINE, MORE, Malformed, RingMemory,
    VALID, bulk_record_bytes, max_datagram_for, record_bytes,
};

/// A record that was copied out of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedRecord {
    /// Where the datagram begins in the buffer.
    pub(crate) at: usize,
    /// Bytes of the datagram. Zero: the producer has revoked the record, and there is no datagram.
    pub(crate) length: usize,
    /// The producer said that another record follows at once.
    pub(crate) more: bool,
    /// Space was returned; the producer may be waiting for it.
    pub(crate) returned_space: bool,
}

/// The reading end.
pub(crate) struct Consumer<M> {
    pub(super) memory: M,
    /// Where the next record and the next large datagram begin.
    pub(super) heads: Heads,
    /// When one of the heads gets here, both are stored for the producer.
    pub(super) return_at: Heads,
    pub(super) max_datagram: usize,
    /// The largest datagram in the line ring.
    pub(super) max_inline: usize,
    /// The next record has a tail in the producer's message heap, which is not here.
    pub(super) needs_heap: bool,
    /// Datagrams with such a head leave their tail in the producer's message heap.
    pub(super) leaves_tail: fn(&[u8]) -> bool,
    /// The tail that the last record has left there.
    pub(super) left_tail: Option<HeapRange>,
    /// A tail is left there that may not have been copied yet: no space is returned.
    pub(super) holds_tail: bool,
}

impl<M: RingMemory> Consumer<M> {
    /// The consumer of rings in which both sides begin at `start`, which is zero except in models.
    pub(crate) fn new(memory: M, max_datagram: usize, start: Heads) -> Self {
        assert!(max_datagram <= max_datagram_for(memory.bulk_bytes() as usize));
        let max_inline = memory.line_bytes() as usize / 4 - HEADER_BYTES;
        Self {
            heads: start,
            return_at: Self::next_return(&memory, start),
            max_datagram,
            max_inline: max_inline.min(max_datagram),
            needs_heap: false,
            leaves_tail: |_| false,
            left_tail: None,
            holds_tail: false,
            memory,
        }
    }

    /// Space is returned in quarters of a ring.
    fn next_return(memory: &M, heads: Heads) -> Heads {
        Heads {
            line: heads.line + memory.line_bytes() / 4,
            bulk: heads.bulk + memory.bulk_bytes() / 4,
        }
    }

    /// Bytes of buffer that [`Consumer::receive`] needs.
    pub(crate) fn buffer_bytes(&self) -> usize {
        // A datagram with a tail in the heap may begin in any place of the first line.
        record_bytes(self.max_datagram) + LINE
    }

    /// What the rings can hold of datagrams from here on. Returns how far this end reads at most if
    /// the producer publishes nothing more.
    pub(crate) fn end_of_published(&self) -> Heads {
        Heads {
            line: self.heads.line + self.memory.line_bytes(),
            bulk: self.heads.bulk + self.memory.bulk_bytes(),
        }
    }

    /// Whether this end has read more than [`Consumer::end_of_published`] said, or all of the line
    /// ring. Records without bytes in the bulk ring may follow the last one with some.
    #[inline]
    pub(crate) fn is_past(&self, end: Heads) -> bool {
        self.heads.line >= end.line || self.heads.bulk > end.bulk
    }

    /// Whether something is published, valid or not.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.memory.load_header(self.heads.line) != 0
    }

    /// Prefetches the line that is polled next.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.memory.prefetch(self.heads.line);
    }

    /// Copies the next datagram to `into`, which has at least [`Consumer::buffer_bytes`]. `None` if
    /// nothing is published, or if [`Consumer::needs_heap`].
    #[inline]
    pub(crate) fn receive(&mut self, into: &mut [u8]) -> Result<Option<ReceivedRecord>, Malformed> {
        let word = self.memory.load_header(self.heads.line);
        if word == 0 {
            return Ok(None);
        }
        let mut length = (word & LENGTH_MASK) as usize;
        let mut at = HEADER_BYTES;
        // The common case first: one line, copied with a constant size.
        if (word & !MORE).wrapping_sub(VALID | 1) < (LINE - HEADER_BYTES) as u32 {
            let line = into.first_chunk_mut().expect("room for a record");
            self.memory.read_line(self.heads.line, line);
            self.heads.line += LINE as u64;
        } else {
            match self.receive_longer(word, into)? {
                Some(place) => (at, length) = place,
                None => return Ok(None),
            }
        }
        let returned_space = self.return_space();
        Ok(Some(ReceivedRecord {
            at,
            length,
            more: word & MORE != 0,
            returned_space,
        }))
    }

    /// Stores how far this end has read, if that is due. Returns whether it did.
    #[inline]
    pub(super) fn return_space(&mut self) -> bool {
        let is_due =
            self.heads.line >= self.return_at.line || self.heads.bulk >= self.return_at.bulk;
        if is_due && !self.holds_tail {
            self.memory.store_heads(self.heads);
            self.return_at = Self::next_return(&self.memory, self.heads);
            return true;
        }
        false
    }

    /// Copies a datagram of several lines, or one from the bulk ring or the heap. Returns where it
    /// begins, and its length.
    #[inline(never)]
    fn receive_longer(
        &mut self,
        word: u32,
        into: &mut [u8],
    ) -> Result<Option<(usize, usize)>, Malformed> {
        let length = (word & LENGTH_MASK) as usize;
        let kind = word & !(LENGTH_MASK | MORE);
        if kind == VALID && (1..=self.max_inline).contains(&length) {
            let into = &mut into[..HEADER_BYTES + length];
            self.memory.read_lines(self.heads.line, into);
            self.heads.line += record_bytes(length) as u64;
        } else if kind == VALID | BULK && (1..=self.max_datagram).contains(&length) {
            let into = &mut into[HEADER_BYTES..][..length];
            self.memory.read_bulk(self.heads.bulk, into);
            self.heads.line += LINE as u64;
            self.heads.bulk += bulk_record_bytes(length) as u64;
        } else if kind == VALID | HEAP {
            return self.receive_lent(length, into);
        } else {
            return Err(Malformed);
        }
        Ok(Some((HEADER_BYTES, length)))
    }
}
