//! The sending half of one end: items that wait, and what the other end's reader has not taken.

use std::collections::VecDeque;
use std::fmt;

use bytes::Bytes;

use crate::{BUNDLE_BYTES, FIRST_WINDOW, MESSAGE_BYTES, SMALL_TAIL, Violation, item};

/// The body of a message: items behind room for a call header.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Bundle {
    /// The room, then items.
    pub head: Vec<u8>,
    /// The last part of the last item, if that is held by reference.
    pub tail: Option<Bytes>,
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tail = self.tail.as_ref().map_or(0, Bytes::len);
        write!(f, "Bundle({} + {tail} bytes)", self.head.len())
    }
}

impl Bundle {
    fn len(&self, room: usize) -> usize {
        self.head.len() - room + self.tail.as_ref().map_or(0, Bytes::len)
    }
}

/// A message with items that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    number: u64,
    bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Items that wait, in bundles that are full but for the last one.
    waiting: VecDeque<Bundle>,
    waiting_bytes: usize,
    /// Bytes in front of each bundle.
    room: usize,
    /// The number of the next message.
    pub(crate) next: u64,
    /// Messages with items that the other end's reader has not taken.
    untaken: VecDeque<Sent>,
    untaken_bytes: usize,
    /// The other end's.
    window: u32,
    /// Bytes that may wait, if fewer than the window allows.
    pub(crate) most_waiting: usize,
    /// No more items come from the user.
    pub(crate) closed: bool,
}

impl Outgoing {
    pub(crate) fn new(room: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            room,
            next: 0,
            untaken: VecDeque::new(),
            untaken_bytes: 0,
            window: FIRST_WINDOW,
            most_waiting: usize::MAX,
            closed: false,
        }
    }

    /// Whether the user may add an item: the bound on what waits here is one item more.
    pub(crate) fn has_room(&self) -> bool {
        let most = (self.window as usize).max(BUNDLE_BYTES);
        self.waiting_bytes < most.min(self.most_waiting)
    }

    /// Adds an item.
    pub(crate) fn push(&mut self, head: &[u8], tail: Option<&Bytes>) {
        let len = item::len_of(head, tail);
        let room = self.room;
        let last = self
            .waiting
            .back_mut()
            .filter(|last| last.tail.is_none() && last.len(room) + len <= BUNDLE_BYTES);
        let bundle = match last {
            Some(last) => last,
            None => {
                let mut bytes = Vec::with_capacity(room + len);
                bytes.resize(room, 0);
                self.waiting.push_back(Bundle {
                    head: bytes,
                    tail: None,
                });
                self.waiting.back_mut().expect("just added")
            }
        };
        item::put(&mut bundle.head, head, tail);
        match tail {
            Some(tail) if tail.len() < SMALL_TAIL => bundle.head.extend_from_slice(tail),
            _ => bundle.tail = tail.cloned(),
        }
        self.waiting_bytes += len;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether a bundle waits that will not grow any more.
    pub(crate) fn has_full_bundle(&self) -> bool {
        self.waiting.len() > 1 || self.waiting_bytes >= BUNDLE_BYTES / 2
    }

    /// Whether items wait that the other end's window has room for.
    pub(crate) fn may_send(&self) -> bool {
        !self.waiting.is_empty() && self.untaken_bytes < self.window as usize
    }

    /// The number and the body of the next message, with items if `may_send`.
    pub(crate) fn pop(&mut self) -> (u64, Bundle) {
        let number = self.next;
        self.next += 1;
        if !self.may_send() {
            let head = vec![0; self.room];
            return (number, Bundle { head, tail: None });
        }
        let bundle = self.waiting.pop_front().unwrap_or_default();
        let bytes = bundle.len(self.room);
        self.waiting_bytes -= bytes;
        if self.waiting.is_empty() {
            // A stream at rest has no memory here.
            self.waiting = VecDeque::new();
        }
        let bytes = bytes + MESSAGE_BYTES;
        self.untaken.push_back(Sent { number, bytes });
        self.untaken_bytes += bytes;
        (number, bundle)
    }

    /// Takes in what the other end's reader has taken, and the window of that end.
    pub(crate) fn handle_taken(&mut self, taken: u64, window: u32) -> Result<(), Violation> {
        if taken > self.next {
            return Err(Violation::Position);
        }
        self.window = window;
        while self.untaken.front().is_some_and(|sent| sent.number < taken) {
            let sent = self.untaken.pop_front().expect("there is one");
            self.untaken_bytes -= sent.bytes;
        }
        if self.untaken.is_empty() {
            // A stream at rest has no memory here.
            self.untaken = VecDeque::new();
        }
        Ok(())
    }

    /// Drops the items that wait.
    pub(crate) fn clear(&mut self) {
        self.waiting = VecDeque::new();
        self.waiting_bytes = 0;
        self.closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_that_keeps_one_item_has_room_when_none_waits() {
        let mut outgoing = Outgoing::new(0);
        outgoing.push(&[], None);
        assert!(outgoing.has_room(), "by default the window decides");
        outgoing.most_waiting = 1;
        assert!(!outgoing.has_room());
        outgoing.pop();
        assert!(outgoing.has_room());
        // What the window has no room for stays.
        outgoing.push(&[], None);
        outgoing.handle_taken(0, 0).expect("nothing is wrong");
        outgoing.pop();
        assert!(!outgoing.has_room());
    }
}
