//! The writing end of a ring.

use std::collections::VecDeque;

use starling_io::TxError;

use super::copy::{SMALL_BYTES, copy_head, copy_large, copy_small};
use super::lent::Lent;
use super::{
    BULK, HEADER_BYTES, Heads, LINE, MORE, RingMemory, VALID, bulk_record_bytes, max_datagram_for,
    record_bytes,
};

/// The most bytes of a staged datagram: few enough that the consumer begins soon. A larger frame goes to
/// the bulk ring.
pub(crate) const STAGING_BYTES: usize = 768 - HEADER_BYTES;

/// The value of `staged` when no datagram is open: so long that nothing can be added.
const NONE_OPEN: usize = usize::MAX / 2;

/// The private buffer that gathers a datagram of small frames. It begins with room for the header
/// word, which is always zero.
#[repr(align(64))]
pub(super) struct StagingBuffer(pub(super) [u8; HEADER_BYTES + STAGING_BYTES]);

impl StagingBuffer {
    /// Copies the parts of a frame to `at` and behind it, counted from the header word.
    ///
    /// # Safety
    /// `at` and the lengths of the parts are at most [`STAGING_BYTES`] together.
    #[inline(always)]
    unsafe fn write(&mut self, at: usize, head: &[u8], body: &[u8], tail: &[u8]) {
        debug_assert!(at + head.len() + body.len() + tail.len() <= STAGING_BYTES);
        // SAFETY: all of it is in the buffer, by the caller, and the buffer is this producer's own.
        unsafe {
            let to = self.0.as_mut_ptr().add(HEADER_BYTES + at);
            copy_head(to, head);
            let to = to.add(head.len());
            copy_small(to, body);
            if !tail.is_empty() {
                copy_large(to.add(body.len()), tail);
            }
        }
    }
}

/// The writing end. `T` stands for a message that it has lent.
pub(crate) struct Producer<M, T> {
    pub(super) memory: M,
    /// Where the next record begins.
    pub(super) tail: u64,
    /// The line ring is free up to here: the last known head plus the size of the ring.
    pub(super) limit: u64,
    /// The header words of all lines from `tail` up to this one are zero.
    zeroed: u64,
    /// Bytes of the datagram in the staging buffer; [`NONE_OPEN`] if there is none.
    staged: usize,
    /// The most bytes of a staged datagram of this producer.
    pub(super) max_staged: usize,
    /// Bytes of the line ring that must be free to begin a datagram with a small frame: a whole datagram
    /// and the header word behind it. More than there ever are, if a small frame may be too long.
    small_room: u64,
    /// Where the next large datagram begins.
    bulk_tail: u64,
    /// The bulk ring is free up to here.
    bulk_limit: u64,
    /// The largest datagram.
    max_datagram: usize,
    /// Free bytes that the last refused append needed. If `line` is zero, none was refused.
    wanted: Heads,
    /// The peer has stored invalid heads.
    malformed: bool,
    /// Records with a descriptor that are not consumed, in their order.
    pub(super) lent: VecDeque<Lent<T>>,
    pub(super) staging: StagingBuffer,
}

impl<M: RingMemory, T> Producer<M, T> {
    /// The producer of rings in which both sides begin at `start`, which is zero except in models.
    ///
    /// The header words of `zeroed` lines from there are zero: all but one in new memory.
    pub(crate) fn new(memory: M, max_datagram: usize, start: Heads, zeroed: u64) -> Self {
        let (line_bytes, bulk_bytes) = (memory.line_bytes(), memory.bulk_bytes());
        assert!(max_datagram <= max_datagram_for(bulk_bytes as usize));
        assert!(start.line.is_multiple_of(LINE as u64) && zeroed * (LINE as u64) < line_bytes);
        let max_staged = STAGING_BYTES.min(line_bytes as usize / 4 - HEADER_BYTES);
        let max_staged = max_staged.min(max_datagram);
        let takes_small = size_of::<[u64; 3]>() + SMALL_BYTES <= max_staged;
        Self {
            tail: start.line,
            limit: start.line + line_bytes,
            zeroed: start.line + zeroed * LINE as u64,
            staged: NONE_OPEN,
            max_staged,
            small_room: match takes_small {
                true => (record_bytes(max_staged) + LINE) as u64,
                false => line_bytes + 1,
            },
            bulk_tail: start.bulk,
            bulk_limit: start.bulk + bulk_bytes,
            max_datagram,
            wanted: Heads::default(),
            malformed: false,
            lent: VecDeque::new(),
            staging: StagingBuffer([0; HEADER_BYTES + STAGING_BYTES]),
            memory,
        }
    }

    /// The largest datagram.
    pub(crate) fn max_datagram(&self) -> usize {
        self.max_datagram
    }

    /// Whether a datagram is open, which [`Producer::publish`] would publish.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.staged != NONE_OPEN
    }

    /// Whether the peer has broken the ring, which then accepts nothing more.
    pub(crate) fn is_malformed(&self) -> bool {
        self.malformed
    }

    /// Whether an append was refused for lack of room and there may be room now. True once for each
    /// refusal.
    pub(crate) fn poll_room(&mut self) -> bool {
        let has_room = self.wants_room() && (self.malformed || self.has_room(self.wanted));
        if has_room {
            self.wanted = Heads::default();
        }
        has_room
    }

    /// Whether an append was refused for lack of room and [`Producer::poll_room`] has not returned
    /// true since.
    pub(crate) fn wants_room(&self) -> bool {
        self.wanted.line != 0
    }

    /// Adds a frame to the open datagram, or begins one with `preamble`.
    ///
    /// # Panics
    /// If preamble and frame exceed the largest datagram, which the caller knows.
    pub(crate) fn append(
        &mut self,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), TxError> {
        if self.append_to_open(head, body, tail) {
            return Ok(());
        }
        self.publish(true);
        if preamble.len() + head.len() + body.len() + tail.len() > self.max_staged {
            return self.write_large(preamble, head, body, tail);
        }
        self.reserve(record_bytes(self.max_staged), 0)?;
        self.staging.0[HEADER_BYTES..][..preamble.len()].copy_from_slice(preamble);
        self.staged = preamble.len();
        let fits = self.append_to_open(head, body, tail);
        debug_assert!(fits, "checked above");
        Ok(())
    }

    /// Adds a frame to the open datagram, if one is open and has room for it. This is the path of
    /// nearly all frames.
    #[inline(always)]
    pub(crate) fn append_to_open(&mut self, head: &[u8], body: &[u8], tail: &[u8]) -> bool {
        // No overflow: a slice has at most half of all bytes, and three of them are not in memory.
        let end = self.staged + head.len() + body.len() + tail.len();
        let fits = end <= self.max_staged;
        if fits {
            // SAFETY: it fits the staging buffer, which has `max_staged` bytes behind the header word.
            unsafe { self.staging.write(self.staged, head, body, tail) };
            self.staged = end;
        }
        fits
    }

    /// Begins a datagram with a frame. False, and nothing is done, if a datagram is open, if the frame
    /// is not small, or if the ring has no room as far as is known. No function is called, so none of the
    /// caller's registers have to be saved.
    #[inline(always)]
    pub(crate) fn begin_small(&mut self, preamble: u64, head: [u64; 2], body: &[u8]) -> bool {
        let start = [preamble, head[0], head[1]].map(u64::to_ne_bytes);
        let start = start.as_flattened();
        let has_room = self.tail + self.small_room <= self.limit;
        let fits = body.len() <= SMALL_BYTES && !self.is_open() && has_room;
        if fits {
            // SAFETY: there is no room by this measure if such a frame does not fit the staging buffer.
            unsafe { self.staging.write(0, start, body, &[]) };
            self.staged = start.len() + body.len();
        }
        fits
    }

    /// Publishes the open datagram, if there is one. `more` says that another follows at once.
    #[inline]
    pub(crate) fn publish(&mut self, more: bool) {
        let length = core::mem::replace(&mut self.staged, NONE_OPEN);
        if length == NONE_OPEN {
            return;
        }
        let bytes = record_bytes(length);
        self.write_staged(bytes);
        let more = if more { MORE } else { 0 };
        self.publish_written(bytes, more | length as u32);
    }

    /// Writes a record of the staging buffer into the line ring.
    #[inline(always)]
    pub(super) fn write_staged(&mut self, bytes: usize) {
        if bytes > LINE {
            self.write_further_lines(bytes);
        }
        self.prepare(bytes);
        let first = self.staging.0.first_chunk().expect("the buffer has a line");
        self.memory.write_first_line(self.tail, first);
    }

    /// Writes all lines of a record but the first. The consumer polls the first line, so it is
    /// written last and leaves this core once, not twice.
    #[inline(never)]
    fn write_further_lines(&mut self, bytes: usize) {
        // Stores would wait for their lines one after another; prefetched, the lines arrive together.
        // The line behind the record is among them, because its header word will be zeroed.
        self.memory.prefetch_to_write(self.tail, bytes + LINE);
        let rest = &self.staging.0[LINE..bytes];
        self.memory.write_lines(self.tail + LINE as u64, rest);
    }

    /// Makes sure that the header word behind a record is zero.
    #[inline]
    fn prepare(&mut self, bytes: usize) {
        let end = self.tail + bytes as u64;
        debug_assert!(end + LINE as u64 <= self.limit, "room was reserved");
        if self.zeroed < end {
            self.memory.clear_header(end);
            self.zeroed = end;
        }
    }

    /// Publishes a record whose payload is already written.
    #[inline]
    pub(super) fn publish_written(&mut self, bytes: usize, word: u32) {
        let end = self.tail + bytes as u64;
        debug_assert!(self.zeroed >= end, "it was prepared");
        self.memory.publish_header(self.tail, VALID | word);
        self.tail = end;
        if self.zeroed == end && end + 2 * LINE as u64 <= self.limit {
            self.zeroed += LINE as u64;
            self.memory.clear_header(self.zeroed);
        }
    }

    /// Writes a datagram of one large frame into the bulk ring and publishes it.
    #[inline(never)]
    fn write_large(
        &mut self,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), TxError> {
        let length = preamble.len() + head.len() + body.len() + tail.len();
        self.check_length(length);
        let bytes = bulk_record_bytes(length);
        self.reserve(LINE, bytes)?;
        let mut at = self.bulk_tail;
        for part in [preamble, head, body, tail] {
            self.memory.write_bulk(at, part);
            at += part.len() as u64;
        }
        self.bulk_tail += bytes as u64;
        self.prepare(LINE);
        self.publish_written(LINE, BULK | MORE | length as u32);
        Ok(())
    }

    pub(super) fn check_length(&self, length: usize) {
        assert!(
            length <= self.max_datagram,
            "a frame of {length} bytes exceeds the largest datagram of {}",
            self.max_datagram
        );
    }

    /// Makes sure that there is room for a record with the zeroed header word behind it, and for
    /// `bulk` bytes in the bulk ring.
    #[inline]
    pub(super) fn reserve(&mut self, record: usize, bulk: usize) -> Result<(), TxError> {
        let wanted = Heads {
            line: (record + LINE) as u64,
            bulk: bulk as u64,
        };
        if self.fits(wanted) {
            return Ok(());
        }
        self.reserve_slow(wanted)
    }

    #[inline(never)]
    fn reserve_slow(&mut self, wanted: Heads) -> Result<(), TxError> {
        if self.has_room(wanted) {
            self.wanted = Heads::default();
            return Ok(());
        }
        if self.malformed {
            return Err(TxError::Gone);
        }
        self.wanted = wanted;
        Err(TxError::Full)
    }

    /// Whether so much is free, by the last known heads.
    #[inline]
    fn fits(&self, wanted: Heads) -> bool {
        self.tail + wanted.line <= self.limit && self.bulk_tail + wanted.bulk <= self.bulk_limit
    }

    /// Whether so much is free, by the current heads.
    fn has_room(&mut self, wanted: Heads) -> bool {
        self.refresh() && self.fits(wanted)
    }

    /// Loads the current heads. False if the peer has broken the ring.
    pub(super) fn refresh(&mut self) -> bool {
        let (line_bytes, bulk_bytes) = (self.memory.line_bytes(), self.memory.bulk_bytes());
        let heads = self.memory.load_heads();
        let known = Heads {
            line: self.limit - line_bytes,
            bulk: self.bulk_limit - bulk_bytes,
        };
        let possible = (known.line..=self.tail).contains(&heads.line)
            && (known.bulk..=self.bulk_tail).contains(&heads.bulk)
            && heads.line.is_multiple_of(LINE as u64);
        self.malformed |= !possible;
        if self.malformed {
            return false;
        }
        self.limit = heads.line + line_bytes;
        self.bulk_limit = heads.bulk + bulk_bytes;
        true
    }
}
