//! One ring: how datagrams of one producer cross to one consumer in memory that both can write.
//!
//! # Layout
//!
//! The ring is an array of 64-byte lines. A *record* is a datagram with a header word of four
//! bytes before it; it begins on a line and takes as many as it needs. The ring is mapped twice,
//! back to back, so a record that runs over the end is contiguous all the same.
//!
//! ```text
//!  line   k          k+1                    k+2                       k+3
//!        ┌──────────┬──────────────────────┬─────────────────────────┬──────────┬──
//!        │hdr│ 20 B │hdr│ 60 B ............│ ..... 50 B       (pad)  │ 0 │      │
//!        └──────────┴──────────────────────┴─────────────────────────┴──────────┴──
//!         one line    a record of two lines, 110 B                     not published
//! ```
//!
//! The header word is all that the consumer polls; there is no shared tail index. So a small
//! datagram crosses as one cache line, in one transfer.
//!
//! # Protocol
//!
//! *Publishing.* A header word of zero means "nothing here yet". The producer keeps, always:
//! **the header word where the next record will begin is zero before the header of the record in
//! front of it is published.** Then the consumer, which looks at a line only after it took the
//! record that ends there, can never mistake bytes of an earlier lap for a header, whatever
//! lengths the records have had. The zeroing is done ahead, right after the previous record was
//! published, when nobody waits for it.
//!
//! *Assembling.* Small frames are gathered in a private buffer (the stage), for two reasons: the
//! consumer polls the very line that the record will begin in, so a store into it before
//! everything is ready makes the line cross twice; and a frame costs little when it is copied to
//! memory in the first-level cache. Large frames are written into the ring directly. A staged
//! record that has grown past [`PUBLISH_BYTES`] is published at once, to let the consumer's core
//! work while ours goes on.
//!
//! *Returning space.* The consumer stores how far it has read in `head`, once for each quarter of
//! the ring; the producer reads it when its last known value leaves no room. A record takes at most
//! a quarter, so a consumer that has read everything always leaves room for one more.
//!
//! | word | written by | read by | order |
//! |---|---|---|---|
//! | header | producer | consumer | release / acquire: the payload is there when the header is |
//! | payload | producer, before its header | consumer, after it | by the header |
//! | `head` | consumer, after its copies | producer, before it overwrites | release / acquire |
//!
//! # Safety: what a hostile peer can do
//!
//! The peer can write every byte of the shared memory at any time. Nothing of what is read there
//! is believed:
//! - *A header* is loaded once. Its length is checked against the largest datagram agreed on
//!   before it is used; the copy stays inside the double mapping, whose size was fixed and sealed
//!   before it was mapped. What fits no valid header is [`Malformed`], and the peer is cut off.
//! - *A payload* is copied to private memory once and never looked at again in the ring. If the
//!   peer changes it meanwhile, it has sent different bytes, which it may do anyhow.
//! - *`head`* must not pass what was produced nor go back, else [`Malformed`]. A peer that returns
//!   space which it has not read loses its own datagrams.
//! - *Our own private state* (positions, stage, lengths) is not in shared memory at all.
//! - *Endless input*: a burst is bounded in datagrams and bytes, and peers take turns.
//!
//! Memory that another process writes concurrently is outside of Rust's memory model. What touches
//! it is confined to [`map`](crate::map): atomics for the words above and raw copies for payload,
//! never a reference. Bytes torn by a misbehaving peer are only ever bytes.

use starling_io::TxError;

/// Bytes of a cache line, and what a record's length is rounded up to.
pub(crate) const LINE: usize = 64;

/// Bytes of the header word in front of a datagram.
pub(crate) const HEADER_BYTES: usize = 4;

/// A staged record of at least so many bytes is published without waiting for the flush.
pub(crate) const PUBLISH_BYTES: usize = 256;

/// The most bytes of a staged datagram. A frame that does not fit goes to the ring directly.
pub(crate) const STAGE_BYTES: usize = 768 - HEADER_BYTES;

/// Lines behind the published ones whose header words are zeroed ahead of need.
const ZEROED_AHEAD: u64 = 1;

/// Bits of the header word that hold the length.
const LENGTH_MASK: u32 = (1 << 25) - 1;
/// The producer is about to publish another record.
const MORE: u32 = 1 << 30;
/// Set in every header, so that none is zero.
const VALID: u32 = 1 << 31;

/// The shared memory of one ring, seen from one side. Positions count bytes since the beginning
/// and never wrap (2^64 bytes are decades at full speed); an implementation reduces them to the
/// ring's size. Behind a trait so that loom checks the very code that runs.
pub(crate) trait RingMemory {
    /// Size of the ring, a power of two.
    fn ring_bytes(&self) -> u64;
    /// Loads the header word at a line, with acquire ordering.
    fn load_header(&self, at: u64) -> u32;
    /// Stores a header word, with release ordering.
    fn publish_header(&self, at: u64, word: u32);
    /// Zeroes the header word of a line that is not published.
    fn clear_header(&self, at: u64);
    /// Copies whole lines into the ring; the header word among them is zero.
    fn write_lines(&self, at: u64, lines: &[u8]);
    /// Copies bytes into the ring.
    fn write(&self, at: u64, bytes: &[u8]);
    /// Copies one line out of the ring.
    fn read_line(&self, at: u64, into: &mut [u8; LINE]);
    /// Copies bytes out of the ring.
    fn read(&self, at: u64, into: &mut [u8]);
    /// Asks for a line that will be polled soon.
    fn prefetch(&self, at: u64);
    /// Loads how far the consumer has read, with acquire ordering.
    fn load_head(&self) -> u64;
    /// Stores it, with release ordering.
    fn store_head(&self, head: u64);
}

/// The shared memory holds what no working peer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The largest datagram that a ring takes: its record is a quarter of it.
pub(crate) const fn max_datagram_for(ring_bytes: usize) -> usize {
    ring_bytes / 4 - HEADER_BYTES
}

/// The bytes of the record of a datagram, in whole lines.
#[inline]
pub(crate) const fn record_bytes(datagram: usize) -> usize {
    (HEADER_BYTES + datagram + LINE - 1) & !(LINE - 1)
}

/// The private buffer that a datagram of small frames is gathered in. It begins with room for the
/// header word, always zero.
#[repr(align(64))]
struct Stage([u8; HEADER_BYTES + STAGE_BYTES]);

/// The writing end of a ring.
pub(crate) struct Producer<M> {
    memory: M,
    /// Where the next record begins.
    tail: u64,
    /// The ring is free up to here: the last known `head` and the size of the ring.
    limit: u64,
    /// The header words of all lines from `tail` to this one are zero.
    zeroed: u64,
    /// Bytes of the datagram in the stage; 0: none is open.
    staged: usize,
    /// The most bytes of a staged datagram here.
    max_staged: usize,
    /// The largest datagram.
    max_datagram: usize,
    /// Free bytes that the last refused append wanted; 0: none was refused.
    wanted: u64,
    /// The peer has stored nonsense in `head`.
    malformed: bool,
    stage: Stage,
}

impl<M: RingMemory> Producer<M> {
    /// The producer of a ring that both sides are at `start` of (0 but in models).
    ///
    /// `zeroed` lines from there hold zeros: all but one in new memory.
    pub(crate) fn new(memory: M, max_datagram: usize, start: u64, zeroed: u64) -> Self {
        let ring_bytes = memory.ring_bytes();
        assert!(max_datagram <= max_datagram_for(ring_bytes as usize));
        assert!(start.is_multiple_of(LINE as u64) && zeroed * (LINE as u64) < ring_bytes);
        Self {
            tail: start,
            limit: start + ring_bytes,
            zeroed: start + zeroed * LINE as u64,
            staged: 0,
            max_staged: max_datagram.min(STAGE_BYTES),
            max_datagram,
            wanted: 0,
            malformed: false,
            stage: Stage([0; HEADER_BYTES + STAGE_BYTES]),
            memory,
        }
    }

    /// The largest datagram.
    pub(crate) fn max_datagram(&self) -> usize {
        self.max_datagram
    }

    /// Whether a datagram is open that [`Producer::publish`] would publish.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.staged != 0
    }

    /// Whether the peer has broken the ring. It takes nothing any more.
    pub(crate) fn is_malformed(&self) -> bool {
        self.malformed
    }

    /// Whether an append was refused for lack of room and there may be room now. Answers yes once
    /// for each refusal.
    pub(crate) fn take_room_news(&mut self) -> bool {
        let news = self.wanted != 0 && (self.malformed || self.has_room(self.wanted));
        if news {
            self.wanted = 0;
        }
        news
    }

    /// Whether the last append was refused for lack of room.
    pub(crate) fn wants_room(&self) -> bool {
        self.wanted != 0
    }

    /// Adds a frame to the open datagram, or begins one with `preamble`.
    ///
    /// # Panics
    /// If preamble and frame exceed the largest datagram: the caller knows it.
    #[inline]
    pub(crate) fn append(
        &mut self,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), TxError> {
        let frame = head.len() + body.len() + tail.len();
        let mut at = self.staged;
        if at == 0 || at + frame > self.max_staged {
            if at != 0 {
                self.publish(true);
            }
            if preamble.len() + frame > self.max_staged {
                return self.write_large(preamble, head, body, tail);
            }
            self.reserve(record_bytes(self.max_staged))?;
            at = preamble.len();
            self.stage.0[HEADER_BYTES..HEADER_BYTES + at].copy_from_slice(preamble);
        }
        let room = &mut self.stage.0[HEADER_BYTES + at..HEADER_BYTES + at + frame];
        let (to, room) = room.split_at_mut(head.len());
        copy_small(to, head);
        let (to, room) = room.split_at_mut(body.len());
        copy_small(to, body);
        copy_small(room, tail);
        self.staged = at + frame;
        if self.staged >= PUBLISH_BYTES {
            self.publish(true);
        }
        Ok(())
    }

    /// Publishes the open datagram, if any. `more` says that another one follows at once.
    #[inline]
    pub(crate) fn publish(&mut self, more: bool) {
        let length = core::mem::take(&mut self.staged);
        if length == 0 {
            return;
        }
        let bytes = record_bytes(length);
        if bytes == LINE {
            // One line, the common case: a copy of constant size.
            let line: &[u8; LINE] = self.stage.0.first_chunk().expect("a stage has a line");
            self.memory.write_lines(self.tail, line);
        } else {
            self.memory.write_lines(self.tail, &self.stage.0[..bytes]);
        }
        self.publish_written(length, bytes, more);
    }

    /// Publishes a record whose payload is in the ring.
    #[inline]
    fn publish_written(&mut self, length: usize, bytes: usize, more: bool) {
        let end = self.tail + bytes as u64;
        debug_assert!(end + LINE as u64 <= self.limit, "room was reserved");
        if self.zeroed < end {
            self.memory.clear_header(end);
            self.zeroed = end;
        }
        let more = if more { MORE } else { 0 };
        self.memory
            .publish_header(self.tail, VALID | more | length as u32);
        self.tail = end;
        while self.zeroed < end + ZEROED_AHEAD * LINE as u64
            && self.zeroed + 2 * LINE as u64 <= self.limit
        {
            self.zeroed += LINE as u64;
            self.memory.clear_header(self.zeroed);
        }
    }

    /// Writes a datagram of one large frame into the ring and publishes it.
    #[inline(never)]
    fn write_large(
        &mut self,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), TxError> {
        let length = preamble.len() + head.len() + body.len() + tail.len();
        assert!(
            length <= self.max_datagram,
            "a frame of {length} bytes for datagrams of {}",
            self.max_datagram
        );
        let bytes = record_bytes(length);
        self.reserve(bytes)?;
        let mut at = self.tail + HEADER_BYTES as u64;
        for part in [preamble, head, body, tail] {
            self.memory.write(at, part);
            at += part.len() as u64;
        }
        self.publish_written(length, bytes, true);
        Ok(())
    }

    /// Makes sure that a record of so many bytes fits, and the zeroed header word behind it.
    #[inline]
    fn reserve(&mut self, record: usize) -> Result<(), TxError> {
        let wanted = (record + LINE) as u64;
        if self.tail + wanted > self.limit && !self.has_room(wanted) {
            if self.malformed {
                return Err(TxError::Gone);
            }
            self.wanted = wanted;
            return Err(TxError::Full);
        }
        self.wanted = 0;
        Ok(())
    }

    /// Whether so many bytes are free, after a look at what the consumer has returned.
    #[inline(never)]
    fn has_room(&mut self, wanted: u64) -> bool {
        let ring_bytes = self.memory.ring_bytes();
        let head = self.memory.load_head();
        let known = self.limit - ring_bytes;
        if head < known || head > self.tail || !head.is_multiple_of(LINE as u64) {
            self.malformed = true;
        }
        if self.malformed {
            return false;
        }
        self.limit = head + ring_bytes;
        self.tail + wanted <= self.limit
    }
}

/// A datagram that was copied out of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Its bytes begin behind a header word that was copied with it.
    pub(crate) length: usize,
    /// The producer said that it would publish another one at once.
    pub(crate) more: bool,
    /// Space was returned: the producer may wait for it.
    pub(crate) returned_space: bool,
}

/// The reading end of a ring.
pub(crate) struct Consumer<M> {
    memory: M,
    /// Where the next record begins.
    head: u64,
    /// What the producer knows of it.
    returned: u64,
    max_datagram: usize,
}

impl<M: RingMemory> Consumer<M> {
    /// The consumer of a ring that both sides are at `start` of (0 but in models).
    pub(crate) fn new(memory: M, max_datagram: usize, start: u64) -> Self {
        assert!(max_datagram <= max_datagram_for(memory.ring_bytes() as usize));
        Self {
            memory,
            head: start,
            returned: start,
            max_datagram,
        }
    }

    /// Bytes that [`Consumer::take`] may need.
    pub(crate) fn take_bytes(&self) -> usize {
        record_bytes(self.max_datagram)
    }

    /// How far this end has read.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Whether something is published, be it a datagram or nonsense.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.memory.load_header(self.head) != 0
    }

    /// Asks for the line that is polled next.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.memory.prefetch(self.head);
    }

    /// Copies the next datagram, with its header word in front, to the beginning of `into`, which
    /// has room for [`Consumer::take_bytes`].
    #[inline]
    pub(crate) fn take(&mut self, into: &mut [u8]) -> Result<Option<Taken>, Malformed> {
        let word = self.memory.load_header(self.head);
        if word == 0 {
            return Ok(None);
        }
        let length = (word & LENGTH_MASK) as usize;
        let known_bits = word & !(LENGTH_MASK | MORE) == VALID;
        if !known_bits || length == 0 || length > self.max_datagram {
            return Err(Malformed);
        }
        let bytes = record_bytes(length);
        if bytes == LINE {
            let line = into.first_chunk_mut().expect("room for a record");
            self.memory.read_line(self.head, line);
        } else {
            self.memory
                .read(self.head, &mut into[..HEADER_BYTES + length]);
        }
        self.head += bytes as u64;
        let returned_space = self.head - self.returned >= self.memory.ring_bytes() / 4;
        if returned_space {
            self.returned = self.head;
            self.memory.store_head(self.head);
        }
        Ok(Some(Taken {
            length,
            more: word & MORE != 0,
            returned_space,
        }))
    }
}

/// Copies a short slice without a call; both have the same length.
#[inline]
fn copy_small(to: &mut [u8], from: &[u8]) {
    let length = from.len();
    assert_eq!(to.len(), length);
    /// Copies 17 to 32, 9 to 16, ... bytes as two chunks that may overlap.
    macro_rules! two_chunks {
        ($size:literal) => {
            if let (Some(first), Some(last)) =
                (from.first_chunk::<$size>(), from.last_chunk::<$size>())
            {
                to[..$size].copy_from_slice(first);
                to[length - $size..].copy_from_slice(last);
                return;
            }
        };
    }
    if length > 64 {
        to.copy_from_slice(from);
        return;
    }
    if length > 32 {
        two_chunks!(32);
    }
    two_chunks!(16);
    two_chunks!(8);
    two_chunks!(4);
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
