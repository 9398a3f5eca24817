//! A slot of a server session: the last request's number and its response.

use crate::RequestNumber;
use crate::msgbuf::Msgbuf;
use crate::shared::Shared;
use crate::small::Small;
use crate::transfer::ReceiveWindow;
use crate::wire::flags;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No request yet.
    Idle,
    /// Some fragments of the request arrived.
    Receiving,
    /// The handler has it.
    Executing,
    /// Answered; the response is kept for a client that missed it.
    Done,
    /// Answered or cancelled, and nothing is kept.
    Over,
    /// Some fragments arrived, but there was no memory for it, or others needed it while no more
    /// came. It was not run, and is not.
    GivenUp,
}

/// State that only messages of several packets need.
#[derive(Debug)]
pub(crate) enum Large {
    Receive(ReceiveWindow),
    /// Fragments of the response that the client asked for and the sink had no room for.
    Owed {
        base: u32,
        want: u64,
    },
}

/// What a slot has once a message was not small.
#[derive(Debug, Default)]
pub(crate) struct More(Option<Box<Rare>>);

#[derive(Debug, Default)]
struct Rare {
    large: Option<Box<Large>>,
    /// The response, if it is not a small one. Else a buffer for such a one.
    response: Msgbuf,
}

/// The fields before `small` are what a request reads; of the line that is `small` it only writes.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Slot {
    pub(crate) number: RequestNumber,
    /// When the request was complete; while it is not, when its last new fragment arrived.
    pub(crate) arrived_at: u64,
    pub(crate) more: More,
    /// Fragments that the request had; zero for one of a single packet.
    pub(crate) fragments: u32,
    pub(crate) phase: Phase,
    /// Those of the response. With [`flags::LATE`] it comes from a later turn than the request:
    /// its RTT is not the network's. Before there is one, [`flags::ECHO`] if a mark is to be
    /// echoed, and [`flags::LATE`] if a worker claimed the request.
    pub(crate) flags: u8,
    /// A credit return is due at the next flush.
    pub(crate) acking: bool,
    /// Is in the list of responses that are kept for a limited time.
    pub(crate) listed: bool,
    small: Small,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            number: 0,
            arrived_at: 0,
            more: More::default(),
            fragments: 0,
            phase: Phase::Idle,
            flags: 0,
            acking: false,
            listed: false,
            small: Small::default(),
        }
    }
}

impl Slot {
    /// The slot is used again, which says that its last response arrived. Gives back what the
    /// last request held, but for memory that the next one is likely to need.
    #[inline]
    pub(crate) fn recycle(&mut self, shared: &mut Shared) {
        if let Some(rare) = &self.more.0
            && (rare.large.is_some() || rare.response.is_bulky())
        {
            self.forget(shared);
        }
    }

    /// Gives back all that the last request held.
    pub(crate) fn forget(&mut self, shared: &mut Shared) {
        self.small.clear();
        let Some(rare) = &mut self.more.0 else {
            return;
        };
        let response = std::mem::take(&mut rare.response);
        if response.is_bulky() {
            shared.retained -= response.len();
        }
        shared.pool.give(response);
        if let Some(Large::Receive(window)) = rare.large.take().map(|large| *large) {
            shared.unreserve(window.total());
            shared.pool.give(window.into_buffer());
        }
    }

    /// The flags of the answer to the present request.
    #[inline]
    pub(crate) fn flags_of_answer(&self, now: u64, ext: bool) -> u8 {
        let ext = if ext { flags::EXT } else { 0 };
        let late = if now != self.arrived_at {
            flags::LATE
        } else {
            0
        };
        self.flags & (flags::ECHO | flags::LATE) | ext | late
    }

    /// Keeps a response that is contiguous, and leaves an empty buffer.
    #[inline]
    pub(crate) fn keep(&mut self, response: &mut Msgbuf) {
        debug_assert!(response.tail().is_empty());
        if self.small.keep(response.head()) {
            response.head_mut().clear();
        } else {
            self.keep_buffer(response);
        }
    }

    /// Keeps a response together with its buffer, in exchange for an empty one.
    #[inline(never)]
    pub(crate) fn keep_buffer(&mut self, response: &mut Msgbuf) {
        self.small.clear();
        let rare = self.more.0.get_or_insert_default();
        std::mem::swap(&mut rare.response, response);
        response.clear();
    }

    /// The response, as two parts.
    pub(crate) fn response(&self) -> (&[u8], &[u8]) {
        match (self.small.get(), &self.more.0) {
            (Some(small), _) => (small, &[]),
            (None, Some(rare)) => (rare.response.head(), rare.response.tail()),
            (None, None) => (&[], &[]),
        }
    }

    /// A range of the response, as two parts.
    pub(crate) fn response_range(&self, from: usize, to: usize) -> (&[u8], &[u8]) {
        match (self.small.get(), &self.more.0) {
            (Some(small), _) => (&small[from..to], &[]),
            (None, Some(rare)) => rare.response.range(from, to),
            (None, None) => (&[], &[]),
        }
    }

    /// Length of the response in bytes.
    pub(crate) fn response_len(&self) -> usize {
        let (head, tail) = self.response();
        head.len() + tail.len()
    }

    /// Whether the response is kept for a limited time only.
    pub(crate) fn is_bulky(&self) -> bool {
        let rare = self.more.0.as_deref();
        self.small.get().is_none() && rare.is_some_and(|rare| rare.response.is_bulky())
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
}
