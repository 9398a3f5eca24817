//! A slot of a client session: one request, from its assignment to its response.
use starling_msgbuf::Msgbuf;

use crate::cold_state;
use crate::congestion::Ack;
use crate::inline_message::InlineMessage;
use crate::shared::Shared;
use crate::transfer::{ResponseWindow, SendWindow};
use crate::wire::flags;
use crate::{RequestNumber, Tag};

/// The state of a slot's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No request.
    Idle,
    /// A request of one packet, pending or outstanding.
    Single,
    /// A request of several packets, in transfer or waiting for its response.
    Sending,
    /// The first packet of a response of several packets arrived.
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

/// The request, if it is not a small one, and since the first retry the time of the last
/// confirmation, see [`Slot::confirmed_at`].
type ColdState = cold_state::ColdState<Large, u64>;

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Slot {
    pub(crate) tag: Tag,
    pub(crate) number: RequestNumber,
    /// When a packet of this request was last sent, or the request last made progress.
    pub(crate) active_at: u64,
    pub(crate) cold: ColdState,
    /// Credits that this slot holds.
    pub(crate) credits: u16,
    pub(crate) phase: Phase,
    pub(crate) ext: bool,
    pub(crate) retries: u8,
    /// The server has said that it executes the request.
    pub(crate) executing: bool,
    /// The server has said that it executes a request in this slot: this one, or the one before.
    pub(crate) is_said_busy: bool,
    /// A request for response is due at the next flush.
    pub(crate) rfr_due: bool,
    inline: InlineMessage,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            tag: 0,
            number: 0,
            active_at: 0,
            cold: ColdState::default(),
            credits: 0,
            phase: Phase::Idle,
            ext: false,
            retries: 0,
            rfr_due: false,
            executing: false,
            is_said_busy: false,
            inline: InlineMessage::default(),
        }
    }
}

impl Slot {
    /// Stores a request that was built in `buffer`, and leaves a buffer there.
    #[inline]
    pub(crate) fn store(&mut self, buffer: &mut Msgbuf) {
        if !self.inline.store(buffer.head()) {
            self.store_buffer(buffer);
        }
    }

    /// As [`Slot::store`], of a request that the sink had no room for.
    #[cold]
    pub(crate) fn store_unsent(&mut self, buffer: &mut Msgbuf) {
        self.credits = 0;
        self.store(buffer);
    }

    /// Stores a request together with its buffer, in exchange for a buffer that is free.
    #[inline(never)]
    pub(crate) fn store_buffer(&mut self, message: &mut Msgbuf) {
        self.inline.clear();
        self.cold.swap_message(message);
    }

    /// The request, as two parts.
    pub(crate) fn message(&self) -> (&[u8], &[u8]) {
        self.cold.message(&self.inline)
    }

    /// A range of the request, as two parts.
    pub(crate) fn message_range(&self, from: usize, to: usize) -> (&[u8], &[u8]) {
        self.cold.message_range(&self.inline, from, to)
    }

    /// Length of the request in bytes.
    pub(crate) fn message_len(&self) -> usize {
        self.cold.message_len(&self.inline)
    }

    /// Takes the request out, to give it back to its caller.
    pub(crate) fn take_message(&mut self) -> Msgbuf {
        let message = match self.inline.get() {
            Some(inline) => Msgbuf::from_vec(inline.to_vec()),
            None => self.cold.take_message(),
        };
        self.inline.clear();
        message
    }

    /// Whether the server executes the request, as it seems.
    pub(crate) fn may_execute(&self) -> bool {
        self.executing || self.is_said_busy
    }

    /// Whether all fragments of a request of several packets have arrived.
    pub(crate) fn has_arrived(&self) -> bool {
        matches!(self.cold.large(), Some(Large::Send { window, .. }) if window.is_complete())
    }

    /// Whether the request holds more memory than a slot keeps for its next one. A small request of
    /// one packet holds none; the cold state is not read for it.
    #[inline]
    pub(crate) fn is_bulky(&self) -> bool {
        if self.phase == Phase::Single && self.inline.get().is_some() {
            return false;
        }
        self.cold.is_bulky()
    }

    /// Since the first retry: when the server last said that it has the request, or else when the
    /// request was sent.
    pub(crate) fn confirmed_at(&self) -> u64 {
        self.cold.extra().copied().unwrap_or(0)
    }

    /// Whether the server has said that it executes the request since that was last sent. Then only a lost
    /// response is a reason to ask for it.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.executing && self.confirmed_at() >= self.active_at
    }

    /// The server has the request, or it is sent again for the first time. It may take long, and so many may be
    /// out: a small one has no buffer meanwhile.
    pub(crate) fn confirm(&mut self, at: u64) {
        *self.cold.extra_mut() = at;
        if self.inline.get().is_some() {
            self.cold.drop_spare();
        }
    }

    /// This endpoint was away for so long, and heard of no confirmation meanwhile.
    /// Perhaps of one just now.
    pub(crate) fn discount_absence(&mut self, now: u64, gap_ns: u64) {
        if self.phase != Phase::Idle && self.retries > 0 {
            self.confirm(now.min(self.confirmed_at() + gap_ns));
        }
    }

    /// The facts about the network that an answer with these flags carries. The request was sent
    /// once.
    pub(crate) fn ack_of_answer(&mut self, now: u64, answer: u8) -> Ack {
        let rtt_ns = match self.cold.large_mut() {
            // It answers the last fragments, and `active_at` is about earlier ones.
            Some(Large::Send { timed, .. }) => timed.take().map(|(_, sent_at)| now - sent_at),
            _ => Some(now - self.active_at),
        };
        Ack {
            now,
            // An answer from a later turn of the server includes the time of the handler.
            rtt_ns: rtt_ns.filter(|_| answer & flags::LATE == 0),
            packets: self.credits.into(),
            marked: answer & flags::ECHO != 0,
            lost: false,
        }
    }

    /// Gives back the memory that a request held.
    pub(crate) fn release_memory(&mut self, shared: &mut Shared) {
        self.inline.clear();
        let Some((message, large)) = self.cold.take_all() else {
            return;
        };
        shared.pool.put(message);
        if let Some(Large::Receive(window)) = large {
            shared.reassembling_responses -= window.arrived.total() as usize;
            shared.pool.put(window.arrived.into_buffer());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_whose_request_takes_long_has_a_buffer_only_if_the_request_is_long() {
        let message = |len| Msgbuf::from_vec(vec![7; len]);
        let mut slot = Slot::default();
        slot.store(&mut message(100));
        slot.confirm(100);
        assert_eq!(slot.message().0, message(100).head());
        slot.store(&mut message(10));
        assert!(
            slot.cold.take_message().capacity() >= 100,
            "for the next one"
        );
        slot.store(&mut message(100));
        slot.store(&mut message(10));
        slot.confirm(200);
        assert_eq!(slot.message().0, message(10).head());
        assert_eq!(slot.confirmed_at(), 200);
        assert_eq!(slot.cold.take_message().capacity(), 0);
    }

    #[test]
    fn what_was_confirmed_after_an_absence_was_not_in_the_future() {
        let mut slot = Slot {
            phase: Phase::Single,
            retries: 1,
            ..Slot::default()
        };
        slot.confirm(100);
        slot.discount_absence(1000, 500);
        assert_eq!(slot.confirmed_at(), 600);
        slot.confirm(1000);
        slot.discount_absence(1000, 500);
        assert_eq!(slot.confirmed_at(), 1000);
    }
}
