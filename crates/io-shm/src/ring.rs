//! One direction of a connection: how datagrams go from one producer to one consumer in memory that
//! both can write.
//!
//! # Layout
//!
//! Two rings work together. The *line ring* is a short array of 64-byte lines. A *record* in it
//! begins on a line with a header word of four bytes and takes as many lines as it needs. A record
//! holds a small datagram. A large datagram is in the *bulk ring*; its record is one line that says
//! so. The line ring determines the order.
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
//! A large part that is in the producer's message heap stays there: its record has a descriptor in
//! place of it ([`lent`]).
//!
//! The line ring is short because small datagrams pass through all of it, however few are in flight.
//! If it stays in the first-level caches, a datagram costs the transfer of its line and nothing
//! else. (With rings of half a megabyte for everything, a ping-pong took twice as long.) Both rings
//! are mapped twice, back to back, so bytes that run over the end are still contiguous.
//!
//! The consumer polls only the header word; there is no shared tail index. So a small datagram is
//! one cache line, in one transfer.
//!
//! # Protocol
//!
//! *Publishing.* A header word of zero means that nothing is published here. The producer keeps one
//! invariant: **the header word where the next record will begin is zero before the header of the
//! record in front of it is published.** The consumer looks at a line only after it has read the
//! record that ends there. So it never mistakes bytes of an earlier pass for a header, even though
//! the lengths of records differ. The producer zeroes ahead, right after it published the previous
//! record, when nobody waits for it.
//!
//! *Assembling.* The producer gathers small frames in a private staging buffer, for two reasons.
//! The consumer polls the line that the record will begin in, so an early store into it would move
//! the line twice. And a copy into first-level cache is cheap. Large frames go directly into the
//! bulk ring. A staged record that the next frame would make larger than
//! [`STAGING_BYTES`](producer::STAGING_BYTES) is published first, so that the consumer's core can work
//! while ours goes on.
//!
//! *Returning space.* After each quarter of a ring, the consumer stores how far it has read (`head`).
//! The producer loads that when its last known value leaves no room. A record takes at most a
//! quarter, so a consumer that has read everything always leaves room for one more.
//!
//! | word | written by | read by | order |
//! |---|---|---|---|
//! | header | producer | consumer | release / acquire: the payload is there when the header is |
//! | payload | producer, before its header | consumer, after it | by the header |
//! | `head` | consumer, after its copies | producer, before it overwrites | release / acquire |
//!
//! # Safety: what a hostile peer can do
//!
//! The peer can write every byte of the shared memory at any time. This end trusts nothing it reads
//! there:
//! - *A header* is loaded once. Its length is checked against the agreed largest datagram before
//!   use. The copy stays inside the double mapping, whose size was sealed before it was mapped. An
//!   invalid header is [`Malformed`], and the peer is disconnected.
//! - *A payload* is copied to private memory once and never read again in the ring. A peer that
//!   changes it meanwhile has sent different bytes, which it may do anyway.
//! - *A descriptor* is checked in its private copy, against the heap's size and the largest datagram.
//! - *`head`* must neither pass what was produced nor go back, else the ring is [`Malformed`]. A peer
//!   that returns space that it has not read loses its own datagrams.
//! - *Private state* of this end (positions, staging buffer, lengths) is not in shared memory at all.
//! - *Endless input*: a burst is bounded in datagrams and bytes, and peers take turns.
//!
//! Memory that another process writes concurrently is outside Rust's memory model. Only
//! [`map`](crate::map) touches it: atomics for the words above and raw copies for payload, never a
//! reference. Bytes torn by a misbehaving peer are still only bytes.

mod consumer;
mod copy;
mod lent;
#[cfg(all(loom, test))]
mod loom_model;
mod producer;
#[cfg(test)]
mod tests;

pub(crate) use consumer::{Consumer, Published, ReceiveError, ReceivedRecord};
pub(crate) use lent::HeapRange;
pub(crate) use producer::Producer;

/// Bytes of a cache line. Records take whole lines.
pub(crate) const LINE: usize = 64;

/// Bytes of the header word in front of a datagram.
pub(crate) const HEADER_BYTES: usize = 4;

/// Bits of the header word that hold the length.
const LENGTH_MASK: u32 = (1 << 25) - 1;
/// The datagram ends in the producer's message heap.
const HEAP: u32 = 1 << 28;
/// The datagram is in the bulk ring.
const BULK: u32 = 1 << 29;
/// The producer is about to publish another record.
const MORE: u32 = 1 << 30;
/// Set in every header, so that no header is zero.
const VALID: u32 = 1 << 31;

/// The shared memory of one direction, seen from one side. Positions count bytes since the
/// beginning and never wrap: 2^64 bytes are decades at full speed. An implementation reduces them
/// to the ring's size. It is a trait so that loom checks the code that runs in production.
pub(crate) trait RingMemory {
    /// Size of the line ring, a power of two.
    fn line_bytes(&self) -> u64;
    /// Size of the bulk ring, a power of two.
    fn bulk_bytes(&self) -> u64;
    /// Loads the header word at a line, with acquire ordering.
    fn load_header(&self, at: u64) -> u32;
    /// Stores a header word, with release ordering.
    fn publish_header(&self, at: u64, word: u32);
    /// Zeroes the header word of an unpublished line.
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
    /// Size of the producer's message heap, if the consumer has it.
    fn heap_bytes(&self) -> Option<u64>;
    /// Copies bytes out of the producer's message heap. False if the producer may have used their
    /// memory for something else, or the kernel cannot read it.
    fn read_heap(&self, at: u64, into: &mut [u8]) -> bool;
    /// Makes all later [`RingMemory::read_heap`] false. What the caller writes to the heap after
    /// this call is not taken for what was there before.
    fn revoke(&self);
    /// Prefetches a line that will be polled soon.
    fn prefetch(&self, at: u64);
    /// Prefetches lines that will be written soon.
    fn prefetch_to_write(&self, at: u64, bytes: usize);
    /// Loads the consumer's heads, with acquire ordering.
    fn load_heads(&self) -> Heads;
    /// Stores the consumer's heads, with release ordering.
    fn store_heads(&self, heads: Heads);
}

/// How far the consumer has read the two rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heads {
    pub(crate) line: u64,
    pub(crate) bulk: u64,
}

/// The largest datagram that a bulk ring takes: a quarter of it.
pub(crate) const fn max_datagram_for(bulk_bytes: usize) -> usize {
    bulk_bytes / 4
}

/// Bytes of the bulk ring that a large datagram takes: whole lines.
const fn bulk_record_bytes(datagram: usize) -> usize {
    (datagram + LINE - 1) & !(LINE - 1)
}

/// Bytes of the line ring that a datagram's record takes: whole lines.
#[inline]
pub(crate) const fn record_bytes(datagram: usize) -> usize {
    (HEADER_BYTES + datagram + LINE - 1) & !(LINE - 1)
}
