//! The reading end of a ring.

use super::{
    BULK, HEADER_BYTES, HEAP, Heads, HeapRange, LENGTH_MASK, LINE, MORE, RingMemory, VALID,
    bulk_record_bytes, max_datagram_for, record_bytes,
};

/// The header of a record that is published, valid or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Published(u32);

impl Published {
    /// The length of the datagram, if all of the record is one line.
    #[inline]
    pub(crate) fn line_length(self) -> Option<usize> {
        let is_one_line = (self.0 & !MORE).wrapping_sub(VALID | 1) < (LINE - HEADER_BYTES) as u32;
        is_one_line.then_some((self.0 & LENGTH_MASK) as usize)
    }

    /// The producer said that another record follows at once.
    #[inline]
    pub(crate) fn has_more(self) -> bool {
        self.0 & MORE != 0
    }
}

/// A record that was copied out of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedRecord {
    /// Where the datagram begins in the buffer.
    pub(crate) at: usize,
    /// Bytes of the datagram. Zero: the producer has revoked the record, or the kernel cannot read its
    /// heap, and there is no datagram.
    pub(crate) length: usize,
    /// The tail of the datagram that is left in the producer's message heap. It stays as it is until
    /// [`Consumer::return_tails`].
    pub(crate) left_tail: Option<HeapRange>,
}

/// Why a record was not received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveError {
    /// No working peer writes such a record.
    Malformed,
    /// The record has a tail in the producer's message heap, which is not here yet.
    NeedsHeap,
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

    /// Where in the line ring the next record begins. Each record moves it.
    pub(crate) fn position(&self) -> u64 {
        self.heads.line
    }

    /// The next record, if it is published.
    #[inline]
    pub(crate) fn poll(&self) -> Option<Published> {
        let word = self.memory.load_header(self.heads.line);
        (word != 0).then_some(Published(word))
    }

    /// Prefetches the line that is polled next.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.memory.prefetch(self.heads.line);
    }

    /// Copies the next record, which is one line, to `into`: the datagram begins behind
    /// [`HEADER_BYTES`]. Returns whether space is to be returned.
    #[inline]
    pub(crate) fn receive_line(&mut self, into: &mut [u8; LINE]) -> bool {
        self.memory.read_line(self.heads.line, into);
        self.heads.line += LINE as u64;
        self.heads.line >= self.return_at.line
    }

    /// Copies the next record to `into`, which has at least [`Consumer::buffer_bytes`]. Space may have
    /// to be returned afterwards.
    #[inline(never)]
    pub(crate) fn receive(
        &mut self,
        header: Published,
        into: &mut [u8],
    ) -> Result<ReceivedRecord, ReceiveError> {
        let word = header.0;
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
            return Err(ReceiveError::Malformed);
        }
        Ok(ReceivedRecord {
            at: HEADER_BYTES,
            length,
            left_tail: None,
        })
    }

    /// Stores how far this end has read, if that is due. Returns whether it did: the producer may wait
    /// for the space.
    #[inline(never)]
    pub(crate) fn return_space(&mut self) -> bool {
        let is_due =
            self.heads.line >= self.return_at.line || self.heads.bulk >= self.return_at.bulk;
        if is_due && !self.holds_tail {
            self.memory.store_heads(self.heads);
            self.return_at = Self::next_return(&self.memory, self.heads);
            return true;
        }
        false
    }
}

#[cfg(test)]
impl<M: RingMemory> Consumer<M> {
    /// Copies the next record, if one is published, as a device does. Returns also whether space was
    /// returned.
    pub(super) fn receive_next(
        &mut self,
        into: &mut [u8],
    ) -> Result<Option<(ReceivedRecord, bool)>, ReceiveError> {
        let Some(header) = self.poll() else {
            return Ok(None);
        };
        let Some(length) = header.line_length() else {
            let record = self.receive(header, into)?;
            return Ok(Some((record, self.return_space())));
        };
        let line = into.first_chunk_mut().expect("room for a record");
        let returned = self.receive_line(line) && self.return_space();
        let record = ReceivedRecord {
            at: HEADER_BYTES,
            length,
            left_tail: None,
        };
        Ok(Some((record, returned)))
    }
}
