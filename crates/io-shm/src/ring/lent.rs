//! Records whose tail the consumer copies out of the producer's message heap.
//!
//! ```text
//!  line ring        │hdr│ preamble, head, body │ descriptor: offset (8), bytes (4) │ (pad) │
//!                                                  │
//!  message heap     ───────────────────────────────┴─▶ │ tail ............ │ ───
//! ```
//!
//! The header's length counts what is in the line ring. The consumer copies that, checks its copy of
//! the descriptor, and copies the tail to where the descriptor was. Or it *leaves* the tail, for whoever
//! handles the datagram to copy it to its final place.
//!
//! The producer keeps the tail as it is until the consumer has stored a `head` behind the record. The
//! consumer stores it right after each such record, or, if it has left a tail, when the burst is over.
//!
//! If a connection ends before that, the producer *revokes* what it lent: it stores a word, then uses the
//! memory for something else. The consumer loads the word after its copy. If the word is set, the copy may
//! be of something else, so the record and its datagram are lost (the order is that of a sequence lock).
//! What a killed process lent stays as it is, because nobody writes to it any more.
//!
//! A hostile producer can change the tail while it is copied, as it can with a ring. A hostile consumer
//! can return a record early, and then reads something else.

use starling_io::TxError;

use crate::map::{ForeignHeap, Ring};

use super::consumer::{Consumer, ReceiveError, ReceivedRecord};
use super::producer::Producer;
use super::{HEADER_BYTES, HEAP, LINE, MORE, RingMemory, record_bytes};

/// Bytes of a descriptor.
pub(crate) const DESCRIPTOR_BYTES: usize = 12;

/// A part of a message heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeapRange {
    pub(crate) at: u64,
    pub(crate) bytes: u32,
}

impl HeapRange {
    pub(super) fn encode(self) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[..8].copy_from_slice(&self.at.to_le_bytes());
        bytes[8..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; DESCRIPTOR_BYTES]) -> Self {
        let (at, bytes) = bytes.split_at(8);
        Self {
            at: u64::from_le_bytes(at.try_into().expect("eight bytes")),
            bytes: u32::from_le_bytes(bytes.try_into().expect("four bytes")),
        }
    }

    /// Whether the range has bytes and all are in a heap of this size.
    pub(super) fn is_in(self, heap_bytes: u64) -> bool {
        let end = self.at.checked_add(self.bytes.into());
        self.bytes != 0 && end.is_some_and(|end| end <= heap_bytes)
    }
}

/// A record with a descriptor that the consumer has not consumed, as far as the producer knows.
pub(super) struct Lent<T> {
    /// The line where the record ends.
    end: u64,
    /// The message that the descriptor describes a part of.
    message: T,
}

impl<M: RingMemory, T> Producer<M, T> {
    /// Whether a frame fits a record with a descriptor, if its head and body have so many bytes.
    pub(crate) fn can_lend(&self, head_and_body: usize) -> bool {
        8 + head_and_body + DESCRIPTOR_BYTES <= self.max_staged
    }

    /// Publishes a datagram of one frame whose tail is in the message heap. `message` is kept until
    /// the consumer has copied the tail.
    ///
    /// # Panics
    /// If the datagram exceeds the largest one, or [`Producer::can_lend`] was false.
    pub(crate) fn append_lent(
        &mut self,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: HeapRange,
        message: T,
    ) -> Result<(), TxError> {
        self.publish(true);
        let inline = preamble.len() + head.len() + body.len();
        let length = inline + tail.bytes as usize;
        self.check_length(length);
        let bytes = record_bytes(inline + DESCRIPTOR_BYTES);
        self.reserve(bytes, 0)?;
        let mut at = HEADER_BYTES;
        for part in [preamble, head, body, &tail.encode()] {
            self.staging.0[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.write_staged(bytes);
        self.publish_written(bytes, HEAP | MORE | (inline + DESCRIPTOR_BYTES) as u32);
        let end = self.tail;
        self.lent.push_back(Lent { end, message });
        Ok(())
    }

    /// How many records are lent, as far as this end knows: at most one for each line of the ring.
    pub(crate) fn lent(&self) -> usize {
        self.lent.len()
    }

    /// Gives back the messages of records that the consumer has consumed.
    pub(crate) fn poll_returned(&mut self, mut give_back: impl FnMut(T)) {
        if self.lent.is_empty() || !self.refresh() {
            return;
        }
        let head = self.limit - self.memory.line_bytes();
        while let Some(lent) = self.lent.pop_front_if(|lent| lent.end <= head) {
            give_back(lent.message);
        }
    }

    /// The connection ends: gives back the messages of all records. The consumer loses those that it
    /// has not copied by now.
    pub(crate) fn revoke(&mut self, mut give_back: impl FnMut(T)) {
        self.poll_returned(&mut give_back);
        if !self.lent.is_empty() {
            self.memory.revoke();
            self.lent.drain(..).for_each(|lent| give_back(lent.message));
        }
    }
}

impl<M: RingMemory> Consumer<M> {
    /// Copies a datagram with a tail in the producer's heap. Its length is zero if the producer has
    /// revoked it, or the kernel cannot read it.
    ///
    /// The tail begins on a line of `into`: both copies of it are faster then.
    pub(super) fn receive_lent(
        &mut self,
        length: usize,
        into: &mut [u8],
    ) -> Result<ReceivedRecord, ReceiveError> {
        let Some(heap_bytes) = self.memory.heap_bytes() else {
            self.needs_heap = true;
            return Err(ReceiveError::NeedsHeap);
        };
        if !(DESCRIPTOR_BYTES + 1..=self.max_inline).contains(&length) {
            return Err(ReceiveError::Malformed);
        }
        let inline = length - DESCRIPTOR_BYTES;
        let shift = (HEADER_BYTES + inline).wrapping_neg() % LINE;
        let into = &mut into[shift..];
        self.memory
            .read_lines(self.heads.line, &mut into[..HEADER_BYTES + length]);
        let descriptor = &into[HEADER_BYTES + inline..];
        // From the copy: the producer cannot change it any more.
        let range = HeapRange::decode(descriptor.first_chunk().expect("it was just copied"));
        let total = inline as u64 + u64::from(range.bytes);
        if total > self.max_datagram as u64 || !range.is_in(heap_bytes) {
            return Err(ReceiveError::Malformed);
        }
        self.heads.line += record_bytes(length) as u64;
        // The producer gets its memory back as soon as the tail is copied.
        self.return_at.line = self.heads.line;
        let head = &into[HEADER_BYTES..HEADER_BYTES + inline];
        if (self.leaves_tail)(head) {
            self.holds_tail = true;
            return Ok(ReceivedRecord {
                at: shift + HEADER_BYTES,
                length: inline,
                left_tail: Some(range),
            });
        }
        let tail = &mut into[HEADER_BYTES + inline..][..range.bytes as usize];
        let is_whole = self.memory.read_heap(range.at, tail);
        Ok(ReceivedRecord {
            at: shift + HEADER_BYTES,
            length: if is_whole { total as usize } else { 0 },
            left_tail: None,
        })
    }

    /// From now on datagrams with such a head leave their tail in the producer's heap.
    pub(crate) fn leave_tails(&mut self, takes: fn(&[u8]) -> bool) {
        self.leaves_tail = takes;
    }

    /// All tails are copied that were left: space may be returned.
    pub(crate) fn return_tails(&mut self) {
        self.holds_tail = false;
    }

    /// Copies a tail that was left. False if the producer has revoked it.
    pub(crate) fn copy_tail(&self, tail: HeapRange, into: &mut [u8]) -> bool {
        self.memory.read_heap(tail.at, into)
    }

    /// Whether the next record has a tail in the producer's heap, which is not here.
    pub(crate) fn needs_heap(&self) -> bool {
        self.needs_heap
    }
}

impl Consumer<Ring> {
    /// Appends a tail that was left. False if the producer has revoked it.
    pub(crate) fn append_tail(&self, tail: HeapRange, buffer: &mut Vec<u8>) -> bool {
        self.memory
            .append_heap(tail.at, tail.bytes as usize, buffer)
    }

    /// The producer has shared its heap.
    pub(crate) fn set_heap(&mut self, heap: ForeignHeap) {
        self.memory.set_heap(heap);
        self.needs_heap = false;
    }
}

const _: () = assert!(DESCRIPTOR_BYTES + HEADER_BYTES + 8 <= LINE);
