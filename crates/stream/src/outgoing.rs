//! The sending half of one end: items that wait, and what the other end's reader has not taken.

use std::fmt;

use bytes::Bytes;
use smallvec::SmallVec;
use starling_msgbuf::spare;

use crate::queue::Queue;
use crate::{
    BUNDLE_BYTES, FIRST_WINDOW, MESSAGE_BYTES, MOST_AHEAD, MOST_WAITING, SMALL_TAIL, Violation,
    item,
};

/// The body of a message: items behind room for a call header.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Bundle {
    /// The room, then items.
    pub head: Vec<u8>,
    /// The last part of the last item, if that is held by reference.
    // Boxed because it is rare, and each end of a stream has room for a bundle.
    pub tail: Option<Box<Bytes>>,
    /// Bytes that its items count for beside those that they have: of packed ones, what they are when unpacked.
    pub unpacked: u32,
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tail = self.tail.as_ref().map_or(0, |tail| tail.len());
        write!(f, "Bundle({} + {tail} bytes)", self.head.len())
    }
}

impl Bundle {
    /// Its head and its tail.
    pub fn into_parts(self) -> (Vec<u8>, Option<Bytes>) {
        (self.head, self.tail.map(|tail| *tail))
    }

    /// A bundle with room for a call header and memory for so many bytes of items.
    fn with_capacity(room: usize, bytes: usize) -> Self {
        let mut head = spare::take(room + bytes);
        head.resize(room, 0);
        Self::new(head, None)
    }

    /// A bundle whose items are as they are.
    pub fn new(head: Vec<u8>, tail: Option<Bytes>) -> Self {
        Self {
            head,
            tail: tail.map(Box::new),
            unpacked: 0,
        }
    }

    /// Bytes that its items count for.
    fn len(&self, room: usize) -> usize {
        let tail = self.tail.as_ref().map_or(0, |tail| tail.len());
        self.head.len() - room + tail + self.unpacked as usize
    }

    /// Whether so many more bytes of items may be appended.
    #[inline]
    fn takes(&self, room: usize, bytes: usize) -> bool {
        self.tail.is_none()
            && self.head.len() - room + self.unpacked as usize + bytes <= BUNDLE_BYTES
    }
}

/// A bundle that a stream has lent, for items that are added without it.
#[derive(Debug)]
pub struct LentBundle {
    bundle: Bundle,
    /// Bytes of items that it may still take.
    left: usize,
}

impl LentBundle {
    /// Adds an item, if there is room.
    #[inline]
    pub fn push(&mut self, item: &[u8]) -> bool {
        let len = item::len_of(item, None);
        let fits = len <= self.left;
        if fits {
            self.left -= len;
            item::put(&mut self.bundle.head, item, None);
        }
        fits
    }
}

/// A message with items that was sent, or several.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// Of the last one.
    number: u64,
    bytes: usize,
}

/// Messages that are counted each by itself while the other end's reader has not taken them.
const MOST_APART: usize = 64;

#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Items that wait, in bundles that are full but for the last one.
    waiting: Queue<Bundle>,
    waiting_bytes: usize,
    /// Bytes in front of each bundle.
    room: u32,
    /// The number of the next message.
    pub(crate) next: u64,
    /// Messages with items that the other end's reader has not taken. Often one.
    untaken: SmallVec<[Sent; 1]>,
    untaken_bytes: usize,
    /// The other end's.
    window: u32,
    /// Bytes that may wait, if fewer than the window allows, which is what the other end says.
    most_waiting: u32,
    /// Messages that the other end has not said that it received.
    unacknowledged: u8,
    /// No more items come from the user.
    pub(crate) closed: bool,
}

impl Outgoing {
    pub(crate) fn new(room: usize) -> Self {
        Self {
            waiting: Queue::default(),
            waiting_bytes: 0,
            room: room as u32,
            next: 0,
            untaken: SmallVec::new(),
            untaken_bytes: 0,
            window: FIRST_WINDOW,
            most_waiting: MOST_WAITING as u32,
            unacknowledged: 0,
            closed: false,
        }
    }

    fn room(&self) -> usize {
        self.room as usize
    }

    /// From now on an item may be added only while fewer than so many bytes wait.
    pub(crate) fn keep_fewer_than(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.most_waiting = self.most_waiting.min(bytes);
    }

    /// Whether the user may add an item: the bound on what waits here is one item more.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.waiting_bytes < self.most_bytes()
    }

    fn most_bytes(&self) -> usize {
        let most = (self.window as usize).max(BUNDLE_BYTES);
        most.min(self.most_waiting as usize)
    }

    /// Adds an item. If it is packed, it counts for so many bytes more, which it has when it is unpacked: its
    /// receiver may be one that has it unpacked before it leaves.
    pub(crate) fn push(&mut self, head: &[u8], tail: Option<&Bytes>, unpacked: usize) {
        let len = item::len_of(head, tail) + unpacked;
        let room = self.room();
        let last = (self.waiting.back_mut()).filter(|last| last.takes(room, len));
        let bundle = match last {
            Some(last) => last,
            None => {
                let copied = tail.filter(|tail| tail.len() < SMALL_TAIL);
                self.begin_bundle(item::len_of(head, copied))
            }
        };
        item::put(&mut bundle.head, head, tail);
        bundle.unpacked += unpacked as u32;
        match tail {
            Some(tail) if tail.len() < SMALL_TAIL => bundle.head.extend_from_slice(tail),
            _ => bundle.tail = tail.cloned().map(Box::new),
        }
        self.waiting_bytes += len;
    }

    #[cold]
    fn begin_bundle(&mut self, bytes: usize) -> &mut Bundle {
        // Where bundles fill up, the next one gets all its memory at once.
        let bytes = match self.waiting.is_empty() {
            true => bytes,
            false => bytes.max(BUNDLE_BYTES),
        };
        let bundle = Bundle::with_capacity(self.room(), bytes);
        self.waiting.push_back(bundle);
        self.waiting.back_mut().expect("just added")
    }

    /// Lends the bundle that items are being added to. None: there is none, or it has no room.
    pub(crate) fn lend_bundle(&mut self) -> Option<LentBundle> {
        let room = self.room();
        if !self.has_room() || !self.waiting.back_mut()?.takes(room, 1) {
            return None;
        }
        let bundle = self.waiting.pop_back()?;
        let len = bundle.len(room);
        let left = (BUNDLE_BYTES - len).min(self.most_bytes() - self.waiting_bytes);
        self.waiting_bytes -= len;
        Some(LentBundle { bundle, left })
    }

    /// A bundle that was lent comes back.
    pub(crate) fn take_back(&mut self, lent: LentBundle) {
        self.waiting_bytes += lent.bundle.len(self.room());
        self.waiting.push_back(lent.bundle);
    }

    /// An empty bundle with memory for so many bytes, for items that are written where they lie.
    pub(crate) fn new_bundle(&self, bytes: usize) -> Bundle {
        Bundle::with_capacity(self.room(), bytes.min(BUNDLE_BYTES))
    }

    /// Adds a bundle, perhaps to the items that wait.
    pub(crate) fn push_bundle(&mut self, bundle: Bundle) {
        let room = self.room();
        let len = bundle.len(room);
        if len == 0 {
            return;
        }
        self.waiting_bytes += len;
        match self.waiting.back_mut() {
            Some(last) if last.takes(room, len) => {
                last.head.extend_from_slice(&bundle.head[room..]);
                last.tail = bundle.tail;
                last.unpacked += bundle.unpacked;
            }
            _ => self.waiting.push_back(bundle),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether so many bytes wait that it is worth a message of its own.
    pub(crate) fn is_worth_a_message(&self) -> bool {
        self.waiting.len() > 1 || self.waiting_bytes >= BUNDLE_BYTES / 2
    }

    /// Whether a bundle waits that hardly takes another item.
    #[inline]
    pub(crate) fn has_full_bundle(&self) -> bool {
        self.waiting_bytes >= BUNDLE_BYTES - BUNDLE_BYTES / 8
    }

    /// Whether the other end's window has no room.
    pub(crate) fn is_blocked(&self) -> bool {
        self.untaken_bytes >= self.window as usize
    }

    /// Whether items wait that the other end's window has room for.
    pub(crate) fn may_send(&self) -> bool {
        !self.waiting.is_empty() && !self.is_blocked()
    }

    /// Whether messages are so far ahead of what the other end has received that no more may follow.
    pub(crate) fn is_ahead(&self) -> bool {
        self.unacknowledged > MOST_AHEAD
    }

    /// The other end has received all messages before this one.
    pub(crate) fn handle_received(&mut self, received: u64) -> Result<(), Violation> {
        let ahead = self.next.checked_sub(received).ok_or(Violation::Position)?;
        let ahead = u8::try_from(ahead).unwrap_or(u8::MAX);
        self.unacknowledged = self.unacknowledged.min(ahead);
        Ok(())
    }

    /// The number and the body of the next message, with items if `may_send`. Else it has no memory.
    pub(crate) fn pop(&mut self) -> (u64, Bundle) {
        let number = self.next;
        self.next += 1;
        self.unacknowledged = self.unacknowledged.saturating_add(1);
        if !self.may_send() {
            return (number, Bundle::default());
        }
        let bundle = self.waiting.pop_front().unwrap_or_default();
        let bytes = bundle.len(self.room());
        self.waiting_bytes -= bytes;
        let bytes = bytes + MESSAGE_BYTES;
        self.untaken_bytes += bytes;
        // A window may take any number of small messages. Many of them are taken together: a reader that has taken half
        // of the window says so, which is much more.
        let most_together = self.window as usize / 64;
        let are_many = self.untaken.len() >= MOST_APART;
        match self.untaken.last_mut() {
            Some(last) if are_many && last.bytes + bytes <= most_together => {
                *last = Sent {
                    number,
                    bytes: last.bytes + bytes,
                };
            }
            _ => self.untaken.push(Sent { number, bytes }),
        }
        (number, bundle)
    }

    /// Takes in what the other end's reader has taken, and the window of that end.
    pub(crate) fn handle_taken(&mut self, taken: u64, window: u32) -> Result<(), Violation> {
        if taken > self.next {
            return Err(Violation::Position);
        }
        self.window = window;
        let is_taken = |sent: &Sent| sent.number < taken;
        let count = self.untaken.partition_point(is_taken);
        for sent in self.untaken.drain(..count) {
            self.untaken_bytes -= sent.bytes;
        }
        if self.untaken.len() <= 1 {
            // A stream at rest has no memory here.
            self.untaken.shrink_to_fit();
        }
        Ok(())
    }

    /// Drops the items that wait.
    pub(crate) fn clear(&mut self) {
        self.waiting = Queue::default();
        self.waiting_bytes = 0;
        self.closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_whatever_window_the_other_end_says() {
        let mut outgoing = Outgoing::new(0);
        for (window, most) in [(0, BUNDLE_BYTES), (u32::MAX, MOST_WAITING)] {
            outgoing.handle_taken(0, window).expect("nothing is wrong");
            while outgoing.has_room() {
                outgoing.push(&[0; 1000], None, 0);
            }
            let waits = outgoing.waiting_bytes;
            assert!((most..most + 1004).contains(&waits), "{waits} of {most}");
        }
    }

    #[test]
    fn what_is_known_of_messages_that_nobody_takes_is_bounded_whatever_the_window() {
        const WINDOW: u32 = 16 << 20;
        let mut outgoing = Outgoing::new(0);
        outgoing.handle_taken(0, WINDOW).expect("nothing is wrong");
        for _ in 0..100_000 {
            outgoing.push(&[1], None, 0);
            outgoing.pop();
        }
        assert!(outgoing.untaken.len() < 4 * MOST_APART);
        let half = outgoing.untaken_bytes / 2;
        let taken = outgoing.handle_taken(50_000, WINDOW);
        taken.expect("they were sent");
        let left = outgoing.untaken_bytes;
        assert!(
            (half..=half + WINDOW as usize / 64).contains(&left),
            "{left} of {half}"
        );
        let taken = outgoing.handle_taken(100_000, WINDOW);
        taken.expect("they were sent");
        assert_eq!(outgoing.untaken_bytes, 0);
    }

    #[test]
    fn a_sender_that_keeps_one_item_has_room_when_none_waits() {
        let mut outgoing = Outgoing::new(0);
        outgoing.push(&[], None, 0);
        assert!(outgoing.has_room(), "by default the window decides");
        outgoing.keep_fewer_than(1);
        assert!(!outgoing.has_room());
        outgoing.pop();
        assert!(outgoing.has_room());
        // What the window has no room for stays.
        outgoing.push(&[], None, 0);
        outgoing.handle_taken(0, 0).expect("nothing is wrong");
        outgoing.pop();
        assert!(!outgoing.has_room());
    }
}
