//! One direction of a connection: how datagrams of one producer cross to one consumer in memory
//! that both can write.
//!
//! # Layout
//!
//! Two rings work together. The *line ring* is short, an array of 64-byte lines. A *record* in it
//! begins on a line with a header word of four bytes, and takes as many lines as it needs. A small
//! datagram is in its record. A large one is in the *bulk ring*, and its record is one line that
//! says so. Order is that of the line ring.
//!
//! ```text
//!  line ring         k          k+1                    k+2               k+3        k+4
//!                   ┌──────────┬──────────────────────┬─────────────────┬──────────┬──────────┬─
//!                   │hdr│ 20 B │hdr│ 60 B ............│ ... 50 B  (pad) │hdr│      │ 0 │      │
//!                   └──────────┴──────────────────────┴─────────────────┴──────────┴──────────┴─
//!                    one line    a record of two lines, 110 B            large      not published
//!  bulk ring                                                               │
//!    ──┬───────────────────────────────────────────────────────────────┬───┼──
//!      │ 60,000 B                                                 (pad)│◀──┘
//!    ──┴───────────────────────────────────────────────────────────────┴──────
//! ```
//!
//! The line ring is short because small datagrams walk through all of it however few are in
//! flight: if it stays in the first-level caches, a datagram costs the transfer of its line and
//! nothing else. (With rings of half a megabyte for everything, a ping-pong took twice as long.)
//! Both are mapped twice, back to back, so what runs over the end is contiguous all the same.
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
//! memory in the first-level cache. Large frames are written into the bulk ring directly. A staged
//! record that has grown past [`PUBLISH_BYTES`] is published at once, to let the consumer's core
//! work while ours goes on.
//!
//! *Returning space.* The consumer stores how far it has read each ring (`head`) once for each
//! quarter of it; the producer reads that when its last known value leaves no room. A record takes
//! at most a quarter, so a consumer that has read everything always leaves room for one more.
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
pub(crate) const PUBLISH_BYTES: usize = 704;

/// The most bytes of a staged datagram. A frame that does not fit goes to the bulk ring.
pub(crate) const STAGE_BYTES: usize = 768 - HEADER_BYTES;

/// Lines behind the published ones whose header words are zeroed ahead of need.
const ZEROED_AHEAD: u64 = 1;

/// Bits of the header word that hold the length.
const LENGTH_MASK: u32 = (1 << 25) - 1;
/// The datagram is in the bulk ring.
const BULK: u32 = 1 << 29;
/// The producer is about to publish another record.
const MORE: u32 = 1 << 30;
/// Set in every header, so that none is zero.
const VALID: u32 = 1 << 31;

/// The shared memory of one direction, seen from one side. Positions count bytes since the
/// beginning and never wrap (2^64 bytes are decades at full speed); an implementation reduces them
/// to the ring's size. Behind a trait so that loom checks the very code that runs.
pub(crate) trait RingMemory {
    /// Size of the line ring, a power of two.
    fn line_bytes(&self) -> u64;
    /// Size of the bulk ring, a power of two.
    fn bulk_bytes(&self) -> u64;
    /// Loads the header word at a line, with acquire ordering.
    fn load_header(&self, at: u64) -> u32;
    /// Stores a header word, with release ordering.
    fn publish_header(&self, at: u64, word: u32);
    /// Zeroes the header word of a line that is not published.
    fn clear_header(&self, at: u64);
    /// Copies the first line of a record into the line ring; its header word is zero.
    fn write_first_line(&self, at: u64, line: &[u8; LINE]);
    /// Copies the other lines of a record into the line ring.
    fn write_lines(&self, at: u64, lines: &[u8]);
    /// Copies bytes into the bulk ring.
    fn write_bulk(&self, at: u64, bytes: &[u8]);
    /// Copies one line out of the line ring.
    fn read_line(&self, at: u64, into: &mut [u8; LINE]);
    /// Copies bytes out of the line ring.
    fn read_lines(&self, at: u64, into: &mut [u8]);
    /// Copies bytes out of the bulk ring.
    fn read_bulk(&self, at: u64, into: &mut [u8]);
    /// Asks for a line that will be polled soon.
    fn prefetch(&self, at: u64);
    /// Asks for lines that will be written soon.
    fn prefetch_to_write(&self, at: u64, bytes: usize);
    /// Loads how far the consumer has read, with acquire ordering.
    fn load_heads(&self) -> Heads;
    /// Stores it, with release ordering.
    fn store_heads(&self, heads: Heads);
}

/// How far the two rings were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heads {
    pub(crate) line: u64,
    pub(crate) bulk: u64,
}

/// The shared memory holds what no working peer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The largest datagram that a bulk ring takes: a quarter of it.
pub(crate) const fn max_datagram_for(bulk_bytes: usize) -> usize {
    bulk_bytes / 4
}

/// What a large datagram takes of the bulk ring: whole lines.
const fn bulk_record_bytes(datagram: usize) -> usize {
    (datagram + LINE - 1) & !(LINE - 1)
}

/// The bytes of the record of a datagram, in whole lines.
#[inline]
pub(crate) const fn record_bytes(datagram: usize) -> usize {
    (HEADER_BYTES + datagram + LINE - 1) & !(LINE - 1)
}

/// In place of the length of the open datagram: so long that nothing can be added.
const NONE_OPEN: usize = usize::MAX / 2;

/// The private buffer that a datagram of small frames is gathered in. It begins with room for the
/// header word, always zero.
#[repr(align(64))]
struct Stage([u8; HEADER_BYTES + STAGE_BYTES]);

/// The writing end.
pub(crate) struct Producer<M> {
    memory: M,
    /// Where the next record begins.
    tail: u64,
    /// The line ring is free up to here: the last known head and the size of the ring.
    limit: u64,
    /// The header words of all lines from `tail` to this one are zero.
    zeroed: u64,
    /// Bytes of the datagram in the stage; [`NONE_OPEN`] if none is.
    staged: usize,
    /// The most bytes of a staged datagram here.
    max_staged: usize,
    /// Where the next large datagram begins.
    bulk_tail: u64,
    /// The bulk ring is free up to here.
    bulk_limit: u64,
    /// The largest datagram.
    max_datagram: usize,
    /// Free bytes that the last refused append wanted; none was refused if `line` is 0.
    wanted: Heads,
    /// The peer has stored nonsense as its heads.
    malformed: bool,
    stage: Stage,
}

impl<M: RingMemory> Producer<M> {
    /// The producer of rings that both sides are at `start` of (0 but in models).
    ///
    /// `zeroed` lines from there hold zeros: all but one in new memory.
    pub(crate) fn new(memory: M, max_datagram: usize, start: Heads, zeroed: u64) -> Self {
        let (line_bytes, bulk_bytes) = (memory.line_bytes(), memory.bulk_bytes());
        assert!(max_datagram <= max_datagram_for(bulk_bytes as usize));
        assert!(start.line.is_multiple_of(LINE as u64) && zeroed * (LINE as u64) < line_bytes);
        let max_staged = STAGE_BYTES.min(line_bytes as usize / 4 - HEADER_BYTES);
        Self {
            tail: start.line,
            limit: start.line + line_bytes,
            zeroed: start.line + zeroed * LINE as u64,
            staged: NONE_OPEN,
            max_staged: max_staged.min(max_datagram),
            bulk_tail: start.bulk,
            bulk_limit: start.bulk + bulk_bytes,
            max_datagram,
            wanted: Heads::default(),
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
        self.staged != NONE_OPEN
    }

    /// Whether the peer has broken the ring. It takes nothing any more.
    pub(crate) fn is_malformed(&self) -> bool {
        self.malformed
    }

    /// Whether an append was refused for lack of room and there may be room now. Answers yes once
    /// for each refusal.
    pub(crate) fn take_room_news(&mut self) -> bool {
        let news = self.wants_room() && (self.malformed || self.has_room(self.wanted));
        if news {
            self.wanted = Heads::default();
        }
        news
    }

    /// Whether an append was refused for lack of room, and no news of it have been taken since.
    pub(crate) fn wants_room(&self) -> bool {
        self.wanted.line != 0
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
        if self.append_to_open(head, body, tail) {
            return Ok(());
        }
        self.publish(true);
        let at = preamble.len();
        if at + head.len() + body.len() + tail.len() > self.max_staged {
            return self.write_large(preamble, head, body, tail);
        }
        self.reserve(record_bytes(self.max_staged), 0)?;
        self.stage.0[HEADER_BYTES..][..at].copy_from_slice(preamble);
        self.staged = at;
        let fits = self.append_to_open(head, body, tail);
        debug_assert!(fits, "checked above");
        Ok(())
    }

    /// Adds a frame to the open datagram, if one is open that has room for it: what happens to
    /// nearly all frames of a burst.
    #[inline(always)]
    pub(crate) fn append_to_open(&mut self, head: &[u8], body: &[u8], tail: &[u8]) -> bool {
        let frame = head.len() + body.len() + tail.len();
        // In two steps, so that the compiler sees that nothing overflows and all is in bounds.
        let fits = frame <= STAGE_BYTES
            && self.staged <= STAGE_BYTES - frame
            && self.staged + frame <= self.max_staged;
        if fits {
            self.stage_frame(frame, head, body, tail);
        }
        fits
    }

    #[inline(always)]
    fn stage_frame(&mut self, frame: usize, head: &[u8], body: &[u8], tail: &[u8]) {
        let end = self.staged + frame;
        let room = &mut self.stage.0[HEADER_BYTES..][self.staged..end];
        let (to, room) = room.split_at_mut(head.len());
        copy_head(to, head);
        let (to, room) = room.split_at_mut(body.len());
        copy_small(to, body);
        if !tail.is_empty() {
            room.copy_from_slice(tail);
        }
        self.staged = end;
        if end >= PUBLISH_BYTES {
            self.publish_early();
        }
    }

    #[inline(never)]
    fn publish_early(&mut self) {
        self.publish(true);
    }

    /// Publishes the open datagram, if any. `more` says that another one follows at once.
    #[inline]
    pub(crate) fn publish(&mut self, more: bool) {
        let length = core::mem::replace(&mut self.staged, NONE_OPEN);
        if length == NONE_OPEN {
            return;
        }
        let bytes = record_bytes(length);
        if bytes > LINE {
            self.write_further_lines(bytes);
        }
        self.prepare(bytes);
        let first = self.stage.0.first_chunk().expect("a stage has a line");
        self.memory.write_first_line(self.tail, first);
        let more = if more { MORE } else { 0 };
        self.publish_written(bytes, more | length as u32);
    }

    /// Writes all lines of a record but the first. That is the one that the consumer polls: it
    /// comes last, so that it is taken away from this core once and not twice.
    #[inline(never)]
    fn write_further_lines(&mut self, bytes: usize) {
        // Stores wait for their lines one after another; asked for like this, they come together.
        // The line behind the record is one of them: its header word will be zeroed.
        self.memory.prefetch_to_write(self.tail, bytes + LINE);
        let rest = &self.stage.0[LINE..bytes];
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

    /// Publishes a record whose payload is there.
    #[inline]
    fn publish_written(&mut self, bytes: usize, word: u32) {
        let end = self.tail + bytes as u64;
        debug_assert!(self.zeroed >= end, "it was prepared");
        self.memory.publish_header(self.tail, VALID | word);
        self.tail = end;
        while self.zeroed < end + ZEROED_AHEAD * LINE as u64
            && self.zeroed + 2 * LINE as u64 <= self.limit
        {
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
        assert!(
            length <= self.max_datagram,
            "a frame of {length} bytes for datagrams of {}",
            self.max_datagram
        );
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

    /// Makes sure that a record of so many bytes fits and the zeroed header word behind it, and
    /// so much in the bulk ring.
    #[inline]
    fn reserve(&mut self, record: usize, bulk: usize) -> Result<(), TxError> {
        let wanted = Heads {
            line: (record + LINE) as u64,
            bulk: bulk as u64,
        };
        if self.fits(wanted) {
            return Ok(());
        }
        self.reserve_after_look(wanted)
    }

    #[inline(never)]
    fn reserve_after_look(&mut self, wanted: Heads) -> Result<(), TxError> {
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

    /// Whether so much is free, as far as is known.
    #[inline]
    fn fits(&self, wanted: Heads) -> bool {
        self.tail + wanted.line <= self.limit && self.bulk_tail + wanted.bulk <= self.bulk_limit
    }

    /// Whether so much is free, after a look at what the consumer has returned.
    fn has_room(&mut self, wanted: Heads) -> bool {
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
        self.fits(wanted)
    }
}

/// A datagram that was copied out of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Its bytes begin behind room for a header word.
    pub(crate) length: usize,
    /// The producer said that it would publish another one at once.
    pub(crate) more: bool,
    /// Space was returned: the producer may wait for it.
    pub(crate) returned_space: bool,
}

/// The reading end.
pub(crate) struct Consumer<M> {
    memory: M,
    /// Where the next record and the next large datagram begin.
    heads: Heads,
    /// When one of them gets here, the producer is told of both.
    return_at: Heads,
    max_datagram: usize,
    /// The largest datagram in the line ring.
    max_inline: usize,
}

impl<M: RingMemory> Consumer<M> {
    /// The consumer of rings that both sides are at `start` of (0 but in models).
    pub(crate) fn new(memory: M, max_datagram: usize, start: Heads) -> Self {
        assert!(max_datagram <= max_datagram_for(memory.bulk_bytes() as usize));
        let max_inline = memory.line_bytes() as usize / 4 - HEADER_BYTES;
        Self {
            heads: start,
            return_at: Self::next_return(&memory, start),
            max_datagram,
            max_inline: max_inline.min(max_datagram),
            memory,
        }
    }

    /// Space is returned by the quarter of a ring.
    fn next_return(memory: &M, heads: Heads) -> Heads {
        Heads {
            line: heads.line + memory.line_bytes() / 4,
            bulk: heads.bulk + memory.bulk_bytes() / 4,
        }
    }

    /// Bytes that [`Consumer::take`] may need.
    pub(crate) fn take_bytes(&self) -> usize {
        record_bytes(self.max_datagram)
    }

    /// How far this end has read the line ring.
    pub(crate) fn head(&self) -> u64 {
        self.heads.line
    }

    /// Whether something is published, be it a datagram or nonsense.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.memory.load_header(self.heads.line) != 0
    }

    /// Asks for the line that is polled next.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.memory.prefetch(self.heads.line);
    }

    /// Copies the next datagram to `into`, behind room for its header word; `into` has room for
    /// [`Consumer::take_bytes`].
    #[inline]
    pub(crate) fn take(&mut self, into: &mut [u8]) -> Result<Option<Taken>, Malformed> {
        let word = self.memory.load_header(self.heads.line);
        if word == 0 {
            return Ok(None);
        }
        let length = (word & LENGTH_MASK) as usize;
        // The common case first: one line, a copy of constant size.
        if (word & !MORE).wrapping_sub(VALID | 1) < (LINE - HEADER_BYTES) as u32 {
            let line = into.first_chunk_mut().expect("room for a record");
            self.memory.read_line(self.heads.line, line);
            self.heads.line += LINE as u64;
        } else {
            self.take_longer(word, into)?;
        }
        let returned_space =
            self.heads.line >= self.return_at.line || self.heads.bulk >= self.return_at.bulk;
        if returned_space {
            self.memory.store_heads(self.heads);
            self.return_at = Self::next_return(&self.memory, self.heads);
        }
        Ok(Some(Taken {
            length,
            more: word & MORE != 0,
            returned_space,
        }))
    }

    /// Copies a datagram of several lines or from the bulk ring.
    #[inline(never)]
    fn take_longer(&mut self, word: u32, into: &mut [u8]) -> Result<(), Malformed> {
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
        } else {
            return Err(Malformed);
        }
        Ok(())
    }
}

/// Copies the head of a frame. It is two words nearly always, which were put together just before:
/// word by word they are copied from registers, or found in the core's store buffer.
#[inline(always)]
fn copy_head(to: &mut [u8], from: &[u8]) {
    match (to.as_chunks_mut::<8>(), from.as_chunks::<8>()) {
        (([to, to_next], []), ([word, next], [])) => (*to, *to_next) = (*word, *next),
        _ => copy_small(to, from),
    }
}

/// Copies a short slice without a call or a loop: its last bytes, then its first, in two pieces
/// that may overlap. The first ones come last, so that all that they cover is found in one store
/// of the core's store buffer when it is loaded again soon after, and need not wait until it is
/// in the cache.
#[inline(always)]
fn copy_small(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len());
    if from.len() > 64 {
        copy_large(to, from);
    } else if !(copy_ends::<32>(to, from)
        || copy_ends::<16>(to, from)
        || copy_ends::<8>(to, from)
        || copy_ends::<4>(to, from))
    {
        for (to, from) in to.iter_mut().zip(from) {
            *to = *from;
        }
    }
}

/// Apart, or the compiler makes one call of this copy and those of constant size.
#[inline(never)]
fn copy_large(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

/// Copies the last `N` bytes and the first `N`, if there are as many.
#[inline(always)]
fn copy_ends<const N: usize>(to: &mut [u8], from: &[u8]) -> bool {
    let length = from.len();
    if length < N {
        return false;
    }
    if length > N {
        to[length - N..].copy_from_slice(&from[length - N..]);
    }
    to[..N].copy_from_slice(&from[..N]);
    true
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
