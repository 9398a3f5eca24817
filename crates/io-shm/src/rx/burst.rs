//! The datagrams of one burst, in private memory that records are copied to.

use std::slice;

use starling_io::{Datagram, Ecn, MAX_BURST, PeerId, Source};

use crate::ring::{HEADER_BYTES, HeapRange, LINE, ReceivedRecord};

/// A burst ends at so many bytes. The endpoint reads them soon after, from the cache.
const BURST_BYTES: usize = 64 << 10;

/// A tail that was left in its sender's heap.
pub(super) struct LeftTail {
    /// The datagram of the burst.
    pub(super) index: usize,
    pub(super) peer: u32,
    pub(super) range: HeapRange,
}

#[derive(Clone, Copy, Default)]
struct Entry {
    peer: u32,
    /// Its offset in the memory.
    at: u32,
    length: u32,
}

/// A cache line of private memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

pub(super) struct Burst {
    entries: [Entry; MAX_BURST],
    count: usize,
    /// Lines of the memory that the burst has used.
    used: usize,
    /// The burst is full when it has so many datagrams.
    most: usize,
    memory: Vec<Line>,
    /// The largest record of any peer so far, in lines.
    largest_record: usize,
    /// Tails of the burst that were left where they are, in the order of their datagrams.
    pub(super) left_tails: Vec<LeftTail>,
    /// Bytes of them.
    left_bytes: usize,
    /// Datagrams of all bursts that have ended.
    received: u64,
}

impl Burst {
    pub(super) fn new() -> Self {
        Self {
            entries: [Entry::default(); MAX_BURST],
            count: 0,
            used: 0,
            most: MAX_BURST,
            memory: Vec::new(),
            largest_record: 0,
            left_tails: Vec::new(),
            left_bytes: 0,
            received: 0,
        }
    }

    /// Grows the memory so that a burst that is not full has room for one more record of so many bytes.
    pub(super) fn make_room_for(&mut self, record: usize) {
        let record = record.div_ceil(LINE);
        if record > self.largest_record {
            self.largest_record = record;
            // The records of a burst take at most its bytes and a line each, but for the last one.
            let lines = BURST_BYTES / LINE + MAX_BURST + record;
            self.memory.resize(lines, Line([0; LINE]));
        }
    }

    /// Begins the next burst. The tails of the last one were taken out before.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.count = 0;
        self.most = MAX_BURST;
        self.used = 0;
    }

    /// A tail of the burst that is to be returned, as all of them are then.
    pub(super) fn pop_left_tail(&mut self) -> Option<LeftTail> {
        self.left_bytes = 0;
        self.left_tails.pop()
    }

    /// A peer is removed: nobody asks for its tails.
    pub(super) fn forget_tails_of(&mut self, peer: u32) {
        self.left_tails.retain(|left| left.peer != peer);
        let bytes = self.left_tails.iter().map(|left| left.range.bytes as usize);
        self.left_bytes = bytes.sum();
    }

    /// The tail of a datagram that was left.
    pub(super) fn left_tail(&self, index: usize) -> Option<&LeftTail> {
        self.left_tails.iter().find(|left| left.index == index)
    }

    /// No more is added to the burst. Returns how many datagrams it has.
    #[inline]
    pub(super) fn end(&mut self) -> usize {
        self.received += self.count as u64;
        self.count
    }

    /// Datagrams of all bursts that have ended.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Whether the burst takes no further record.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.count >= self.most
    }

    /// Adds a datagram whose record is one line, which the caller copies to where this returns. The burst
    /// is not full.
    #[inline]
    pub(super) fn push_line(&mut self, peer: u32, length: usize) -> &mut [u8; LINE] {
        let (index, used) = (self.count, self.used);
        let line = &mut self.memory[used].0;
        self.entries[index] = Entry {
            peer,
            at: (used * LINE + HEADER_BYTES) as u32,
            length: length as u32,
        };
        self.count = index + 1;
        self.used = used + 1;
        line
    }

    /// The memory for the next record.
    pub(super) fn room(&mut self) -> &mut [u8] {
        let room = &mut self.memory[self.used..];
        // SAFETY: a `Line` is an array of bytes and nothing else.
        unsafe { slice::from_raw_parts_mut(room.as_mut_ptr().cast(), size_of_val(room)) }
    }

    /// Adds the datagram of a record that was copied to [`Burst::room`]. The burst is not full.
    pub(super) fn push(&mut self, peer: u32, record: &ReceivedRecord) {
        let index = self.count;
        self.entries[index] = Entry {
            peer,
            at: (self.used * LINE + record.at) as u32,
            length: record.length as u32,
        };
        self.count += 1;
        self.used += (record.at + record.length).div_ceil(LINE);
        if let Some(range) = record.left_tail {
            self.left_bytes += range.bytes as usize;
            self.left_tails.push(LeftTail { index, peer, range });
        }
        if self.used * LINE + self.left_bytes >= BURST_BYTES {
            self.most = self.count;
        }
    }

    /// Datagram `index` of the burst.
    #[inline]
    pub(super) fn datagram(&self, index: usize) -> Datagram<'_> {
        debug_assert!(index < self.count);
        let entry = self.entries[index];
        let begin = entry.at as usize;
        Datagram {
            source: Source::Peer(PeerId(entry.peer)),
            ecn: Ecn::NotCapable,
            bytes: &self.bytes()[begin..begin + entry.length as usize],
        }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        // SAFETY: as in `room`.
        unsafe { slice::from_raw_parts(self.memory.as_ptr().cast(), size_of_val(&self.memory[..])) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_of_a_removed_peer_do_not_fill_later_bursts() {
        let mut burst = Burst::new();
        burst.make_room_for(4 * LINE);
        let record = ReceivedRecord {
            at: HEADER_BYTES,
            length: 2 * LINE,
            left_tail: None,
        };
        let left_tail = Some(HeapRange {
            at: 0,
            bytes: BURST_BYTES as u32,
        });
        burst.push(
            7,
            &ReceivedRecord {
                left_tail,
                ..record
            },
        );
        assert!(burst.is_full());
        burst.forget_tails_of(7);
        burst.clear();
        burst.push(8, &record);
        assert!(!burst.is_full());
    }
}
