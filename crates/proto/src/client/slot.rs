//! A slot of a client session: one request, from its place to its response.

use crate::congestion::Ack;
use crate::msgbuf::Msgbuf;
use crate::shared::Shared;
use crate::small::Small;
use crate::transfer::{ResponseWindow, SendWindow};
use crate::wire::flags;
use crate::{RequestNumber, Tag};

/// Where a slot's request is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No request.
    Idle,
    /// A request of one packet, pending or outstanding.
    Single,
    /// A request of several packets, on its way or waiting for its response.
    Sending,
    /// The first packet of a response of several arrived.
    Receiving,
}

/// State that only messages of several packets need.
#[derive(Debug)]
pub(crate) enum Large {
    Send {
        window: SendWindow,
        /// A fragment being timed, and when it left.
        timed: Option<(u32, u64)>,
    },
    Receive(ResponseWindow),
}

/// What a slot has once a request was not small, or was sent again.
#[derive(Debug, Default)]
pub(crate) struct More(Option<Box<Rare>>);

#[derive(Debug, Default)]
struct Rare {
    large: Option<Box<Large>>,
    /// The request, if it is not a small one. Else a buffer for such a one.
    message: Msgbuf,
    vouched_at: u64,
}

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Slot {
    pub(crate) tag: Tag,
    pub(crate) number: RequestNumber,
    /// When something of this request was last sent, or last made progress.
    pub(crate) active_at: u64,
    pub(crate) more: More,
    /// Credits that this slot holds.
    pub(crate) credits: u16,
    pub(crate) phase: Phase,
    pub(crate) ext: bool,
    pub(crate) retries: u8,
    /// A request for response is due at the next flush.
    pub(crate) asking: bool,
    small: Small,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            tag: 0,
            number: 0,
            active_at: 0,
            more: More::default(),
            credits: 0,
            phase: Phase::Idle,
            ext: false,
            retries: 0,
            asking: false,
            small: Small::default(),
        }
    }
}

impl Slot {
    /// Keeps a request that was built in `buffer`, and leaves a buffer there.
    #[inline]
    pub(crate) fn keep(&mut self, buffer: &mut Msgbuf) {
        if !self.small.keep(buffer.head()) {
            self.keep_buffer(buffer);
        }
    }

    /// Keeps a request together with its buffer, in exchange for one that nobody needs.
    #[inline(never)]
    pub(crate) fn keep_buffer(&mut self, message: &mut Msgbuf) {
        self.small.clear();
        let rare = self.more.0.get_or_insert_default();
        std::mem::swap(&mut rare.message, message);
    }

    /// The request, as two parts.
    pub(crate) fn message(&self) -> (&[u8], &[u8]) {
        match (self.small.get(), &self.more.0) {
            (Some(small), _) => (small, &[]),
            (None, Some(rare)) => (rare.message.head(), rare.message.tail()),
            (None, None) => (&[], &[]),
        }
    }

    /// A range of the request, as two parts.
    pub(crate) fn message_range(&self, from: usize, to: usize) -> (&[u8], &[u8]) {
        match (self.small.get(), &self.more.0) {
            (Some(small), _) => (&small[from..to], &[]),
            (None, Some(rare)) => rare.message.range(from, to),
            (None, None) => (&[], &[]),
        }
    }

    /// Length of the request in bytes.
    pub(crate) fn message_len(&self) -> usize {
        let (head, tail) = self.message();
        head.len() + tail.len()
    }

    /// Takes the request out, to give it back to who made it.
    pub(crate) fn take_message(&mut self) -> Msgbuf {
        let message = match (self.small.get(), &mut self.more.0) {
            (Some(small), _) => Msgbuf::from_vec(small.to_vec()),
            (None, Some(rare)) => std::mem::take(&mut rare.message),
            (None, None) => Msgbuf::new(),
        };
        self.small.clear();
        message
    }

    /// Whether the request holds more than a slot keeps for its next one. One of a single packet
    /// that is small holds nothing, and that is known without a look at what is kept apart.
    #[inline]
    pub(crate) fn is_bulky(&self) -> bool {
        if self.phase == Phase::Single && self.small.get().is_some() {
            return false;
        }
        let rare = self.more.0.as_deref();
        rare.is_some_and(|rare| rare.large.is_some() || rare.message.is_bulky())
    }

    /// What the answer to the request, with these flags, says about the network. The request was
    /// not sent again.
    pub(crate) fn ack_of_answer(&mut self, now: u64, answer: u8) -> Ack {
        let rtt_ns = match self.more.large_mut() {
            // It answers the last fragments, and they are not what `active_at` is about.
            Some(Large::Send { timed, .. }) => timed.take().map(|(_, sent_at)| now - sent_at),
            _ => Some(now - self.active_at),
        };
        Ack {
            now,
            // An answer from a later turn of the server says how long the handler took.
            rtt_ns: rtt_ns.filter(|_| answer & flags::LATE == 0),
            packets: self.credits.into(),
            marked: answer & flags::ECHO != 0,
            lost: false,
        }
    }

    /// Gives back what a request held.
    pub(crate) fn forget(&mut self, shared: &mut Shared) {
        self.small.clear();
        let Some(rare) = &mut self.more.0 else {
            return;
        };
        shared.pool.give(std::mem::take(&mut rare.message));
        if let Some(Large::Receive(window)) = rare.large.take().map(|large| *large) {
            shared.unreserve(window.arrived.total());
            shared.pool.give(window.arrived.into_buffer());
        }
    }
}

impl More {
    /// State of a message of several packets, if there is one.
    pub(crate) fn large(&self) -> Option<&Large> {
        self.0.as_deref()?.large.as_deref()
    }

    /// As [`More::large`].
    pub(crate) fn large_mut(&mut self) -> Option<&mut Large> {
        self.0.as_deref_mut()?.large.as_deref_mut()
    }

    /// Replaces the state of a message of several packets; returns what it was.
    pub(crate) fn set_large(&mut self, large: Option<Large>) -> Option<Large> {
        if large.is_none() && self.0.is_none() {
            return None;
        }
        let rare = self.0.get_or_insert_default();
        std::mem::replace(&mut rare.large, large.map(Box::new)).map(|large| *large)
    }

    /// Since the first retry: when the server last said that it has the request, or it was sent.
    pub(crate) fn vouched_at(&self) -> u64 {
        self.0.as_deref().map_or(0, |rare| rare.vouched_at)
    }

    /// The server has the request, or it is sent again for the first time.
    pub(crate) fn vouch(&mut self, at: u64) {
        self.0.get_or_insert_default().vouched_at = at;
    }
}
