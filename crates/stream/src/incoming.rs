//! The receiving half of one end: messages in order, and what the reader has taken of them.

use bytes::Bytes;

use crate::item::Items;
use crate::number::Number;
use crate::queue::Queue;
use crate::{ACKNOWLEDGE_AFTER, BUNDLE_BYTES, MAX_AHEAD, MESSAGE_BYTES, Violation};

/// A message that the reader has not taken, or whose predecessors are missing.
#[derive(Debug)]
struct Message {
    number: Number,
    body: Body,
}

impl Message {
    fn number(&self) -> u64 {
        self.number.get()
    }

    /// What it takes of the window.
    fn cost(&self) -> usize {
        match &self.body {
            Body::Here(body) => cost_of(body),
            Body::Dropped { cost } => *cost,
        }
    }
}

/// Of a message.
#[derive(Debug)]
enum Body {
    Here(Bytes),
    /// Nobody reads it.
    Dropped {
        /// As [`Message::cost`].
        cost: usize,
    },
}

impl Body {
    fn drop_bytes(&mut self) {
        if let Self::Here(body) = self {
            let cost = cost_of(body);
            *self = Self::Dropped { cost };
        }
    }
}

// Thousands of streams are at rest, and each has room for a message.
const _: () = assert!(size_of::<Option<Message>>() == 40);

#[derive(Debug)]
pub(crate) struct Incoming {
    /// All messages before this one have arrived.
    pub(crate) next: u64,
    /// By their numbers: messages with items that are there for the reader, then those whose predecessors are
    /// missing.
    messages: Queue<Message>,
    /// What `messages` take of the window.
    unread_bytes: usize,
    /// Bytes of messages that were taken and that the other end does not know of.
    unreported_bytes: usize,
    pub(crate) window: u32,
    /// The other end waits until its messages are taken: it may count more for them than they have here.
    pub(crate) is_awaited: bool,
    /// How many windows, and as many bundles, may be unread before the other end breaks the stream.
    pub(crate) tolerance: u8,
    /// Messages that have arrived, with all before them, since the other end was told how far that is.
    unacknowledged: u8,
    /// The last message.
    end: Option<Number>,
    /// Nobody reads: items are dropped as they come.
    discards: bool,
}

impl Incoming {
    pub(crate) fn new(window: u32) -> Self {
        Self {
            next: 0,
            messages: Queue::default(),
            unread_bytes: 0,
            unreported_bytes: 0,
            window,
            is_awaited: false,
            tolerance: 2,
            unacknowledged: 0,
            end: None,
            discards: false,
        }
    }

    /// Takes in a message. Returns whether the reader can go on.
    pub(crate) fn handle(
        &mut self,
        number: u64,
        body: Bytes,
        is_end: bool,
    ) -> Result<bool, Violation> {
        let expected = self.next;
        let known = number < expected || self.early().any(|early| early.number() == number);
        if known || number - expected > MAX_AHEAD {
            return Err(Violation::Number { number, expected });
        }
        if !body.is_empty() && self.is_beyond_window() {
            return Err(Violation::Window {
                unread: self.unread_bytes,
                window: self.window,
            });
        }
        let end = self.end.map(Number::get);
        let after_end = end.is_some_and(|end| number > end && !body.is_empty());
        if after_end || (is_end && end.is_some()) {
            return Err(Violation::Position);
        }
        if is_end {
            self.end = Some(Number::new(number));
        }
        let mut message = Message {
            number: Number::new(number),
            body: Body::Here(body),
        };
        self.unread_bytes += message.cost();
        if self.discards {
            message.body.drop_bytes();
        }
        if number != expected {
            let behind = self.early().take_while(|it| it.number() > number).count();
            let at = self.messages.len() - behind;
            self.messages.insert(at, message);
            return Ok(false);
        }
        let at = self.messages.len() - self.early().count();
        self.append(at, message);
        self.append_early();
        let arrived = u8::try_from(self.next - expected).unwrap_or(u8::MAX);
        self.unacknowledged = self.unacknowledged.saturating_add(arrived);
        Ok(self.is_readable() || self.is_complete())
    }

    /// Whether more is unread than the other end may send.
    fn is_beyond_window(&self) -> bool {
        // A message may have come late that the sender counts as taken already: twice the window and two messages
        // cover that. A sender that counts another encoding's bytes needs more.
        let bound = self.tolerance as usize * (self.window as usize + BUNDLE_BYTES);
        if self.unread_bytes <= bound {
            return false;
        }
        // There is always room for one message of any size, and it may overtake smaller ones.
        let largest = self.messages.iter().map(Message::cost).max();
        self.unread_bytes - largest.unwrap_or(0) > bound
    }

    /// Whether a message of a higher number has come.
    pub(crate) fn has_later(&self, number: u64) -> bool {
        self.early().any(|early| early.number() > number)
    }

    /// Messages whose predecessors are missing, the last one first.
    fn early(&self) -> impl Iterator<Item = &Message> {
        let next = self.next;
        let messages = self.messages.iter().rev();
        messages.take_while(move |message| message.number() >= next)
    }

    /// Takes in the next message, in front of those that are early.
    fn append(&mut self, at: usize, message: Message) {
        self.next = message.number() + 1;
        if self.discards {
            self.count_taken(message.cost());
        } else if message.cost() > 0 {
            self.messages.insert(at, message);
        }
    }

    /// Takes in the early messages whose predecessors are here.
    fn append_early(&mut self) {
        let mut at = self.messages.len() - self.early().count();
        while self
            .messages
            .get(at)
            .is_some_and(|it| it.number() == self.next)
            && let Some(message) = self.messages.remove(at)
        {
            let before = self.messages.len();
            self.append(at, message);
            at += self.messages.len() - before;
        }
    }

    /// The reader has taken a message.
    fn count_taken(&mut self, cost: usize) {
        self.unread_bytes -= cost;
        self.unreported_bytes += cost;
    }

    /// Whether the reader has not taken all that is there for it.
    pub(crate) fn is_readable(&self) -> bool {
        let first = self.messages.front();
        first.is_some_and(|first| first.number() < self.next)
    }

    /// The items of the next message.
    pub(crate) fn take(&mut self) -> Option<Items> {
        if !self.is_readable() {
            return None;
        }
        let message = self.messages.pop_front()?;
        self.count_taken(message.cost());
        match message.body {
            Body::Here(body) => Some(Items::new(body)),
            Body::Dropped { .. } => Some(Items::default()),
        }
    }

    /// The reader has taken so many messages.
    pub(crate) fn taken(&self) -> u64 {
        let first = self.messages.front();
        first.map_or(self.next, |first| first.number().min(self.next))
    }

    /// The reader has taken so much that the other end should know.
    pub(crate) fn should_report(&self) -> bool {
        let is_much = self.unreported_bytes >= self.window as usize / 2;
        let is_all = self.is_awaited && self.unread_bytes == 0;
        (is_much || is_all) && self.unreported_bytes > 0
    }

    /// So many messages have arrived that the other end should know.
    pub(crate) fn should_acknowledge(&self) -> bool {
        self.unacknowledged > ACKNOWLEDGE_AFTER
    }

    /// The other end is being told what was taken, and what has arrived.
    pub(crate) fn reported(&mut self) {
        self.unreported_bytes = 0;
        self.unacknowledged = 0;
    }

    /// Whether the reader keeps up.
    pub(crate) fn keeps_up(&self) -> bool {
        self.unread_bytes < (self.window as usize / 2).max(1)
    }

    /// Whether the last message has arrived, and all before it.
    pub(crate) fn is_complete(&self) -> bool {
        self.end.is_some_and(|end| self.next > end.get())
    }

    /// Whether the reader has taken everything.
    pub(crate) fn is_over(&self) -> bool {
        self.is_complete() && !self.is_readable()
    }

    /// Nobody reads any more. Early messages count until their predecessors are here, without their bodies.
    pub(crate) fn discard(&mut self) {
        self.discards = true;
        while self.take().is_some() {}
        for early in self.messages.iter_mut() {
            early.body.drop_bytes();
        }
    }

    /// Whether the window has room for all of a message's items, beside those that were not taken.
    #[inline]
    pub(crate) fn is_within_window(&self, body: &Bytes) -> bool {
        self.unread_bytes + cost_of(body) <= self.window as usize
    }

    /// Bytes of messages that the reader has not taken.
    pub(crate) fn unread_bytes(&self) -> usize {
        self.unread_bytes
    }
}

fn cost_of(body: &Bytes) -> usize {
    match body.len() {
        0 => 0,
        len => len + MESSAGE_BYTES,
    }
}
