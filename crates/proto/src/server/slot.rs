//! A slot of a server session: the last request's number and its response.
use starling_msgbuf::Msgbuf;

use super::displace;
use crate::cold_state;
use crate::holdings::HoldingId;
use crate::inline_message::InlineMessage;
use crate::msgbuf_pool::is_bulky;
use crate::shared::Shared;
use crate::table::SessionHandle;
use crate::transfer::ReceiveWindow;
use crate::wire::flags;
use crate::{RequestId, RequestNumber};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No request yet.
    Idle,
    /// Some fragments of the request arrived.
    Receiving,
    /// The handler runs it.
    Executing,
    /// Answered; the response is kept for a client that missed it.
    Done,
    /// Answered or cancelled, and no response is kept.
    Over,
    /// Some fragments arrived, but there was no memory for the request, or other requests got the
    /// memory while no more fragments came. It was not run, and never is.
    GivenUp,
    /// It came while this endpoint shuts down. It was not run, and never is.
    Refused,
}

/// State that only messages of several packets need.
#[derive(Debug)]
pub(crate) enum Large {
    /// The request, and the memory promised for it.
    Receive(ReceiveWindow, HoldingId),
    /// Fragments of the response that the client asked for and that are not sent yet.
    Unsent { base: u32, want: u64 },
}

/// The response, if it is not a small one, and the memory that it holds, if it is bulky.
pub(super) type ColdState = cold_state::ColdState<Large, HoldingId>;

/// A request reads only the fields before `small`, and only writes the line that is `small`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Slot {
    pub(crate) number: RequestNumber,
    /// When the request was complete; while it is not, when its last new fragment arrived.
    pub(crate) arrived_at: u64,
    pub(crate) cold: ColdState,
    /// Fragments that the request had; zero for one of a single packet.
    pub(crate) fragments: u32,
    pub(crate) phase: Phase,
    /// The flags of the response. [`flags::LATE`]: it comes from a later turn than the request, so
    /// its RTT is not the network's. Before there is a response: [`flags::ECHO`] if a mark must be
    /// echoed, and [`flags::LATE`] if a worker claimed the request.
    pub(crate) flags: u8,
    /// A credit return is due at the next flush.
    pub(crate) credit_return_due: bool,
    /// The slot is in the queue of responses that are kept for a limited time.
    pub(crate) in_retention_queue: bool,
    inline: InlineMessage,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            number: 0,
            arrived_at: 0,
            cold: ColdState::default(),
            fragments: 0,
            phase: Phase::Idle,
            flags: 0,
            credit_return_due: false,
            in_retention_queue: false,
            inline: InlineMessage::default(),
        }
    }
}

impl Slot {
    /// The slot is used again, so the client has its last response. Gives back the memory that the
    /// last request held, but for what the next one is likely to need.
    #[inline]
    pub(crate) fn recycle(&mut self, shared: &mut Shared) {
        if self.cold.is_bulky() {
            self.release_memory(shared);
        }
    }

    /// Whether a later request came to the slot in the very turn of the slot's last one: its client cannot
    /// have the answer to that one, and has more requests on their way than slots. An honest client that has
    /// just cancelled the last one repeats it.
    #[cold]
    pub(crate) fn overruns(&self, shared: &mut Shared, now: u64) -> bool {
        let is_taken = matches!(self.phase, Phase::Executing | Phase::Done | Phase::Over);
        // If the clock stood still since the last turn with requests, it does not tell the turns apart.
        let overruns = is_taken && self.arrived_at == now && shared.requests_at != now;
        shared.stats.slots_overrun += u64::from(overruns);
        overruns
    }

    /// Whether the slot takes a later request. The one that it executes is then abandoned.
    #[cold]
    pub(crate) fn may_take_another(
        &self,
        shared: &mut Shared,
        now: u64,
        session: SessionHandle,
        index: u8,
    ) -> bool {
        if self.overruns(shared, now) {
            return false;
        }
        if self.phase == Phase::Executing {
            displace(shared, RequestId::new(session, index, self.number));
        }
        true
    }

    /// The client asks for fragments of the response: bit *i* of `want` for fragment `base + i`. If fragments
    /// that it asked for before are not sent and lie too far away, it has to ask for those again.
    pub(crate) fn want(&mut self, base: u32, want: u64) {
        let before = match self.cold.large() {
            Some(&Large::Unsent { base, want }) => (base, want),
            _ => (base, 0),
        };
        let (base, want) = union_of(before, (base, want)).unwrap_or((base, want));
        self.cold.set_large(Some(Large::Unsent { base, want }));
    }

    /// Gives back all memory that the last request held.
    pub(crate) fn release_memory(&mut self, shared: &mut Shared) {
        self.inline.clear();
        let Some((response, large)) = self.cold.take_all() else {
            return;
        };
        let kept = std::mem::take(self.cold.extra_mut());
        debug_assert_eq!(is_bulky(&response), kept != HoldingId::default());
        shared.kept.remove(kept);
        shared.pool.put(response);
        if let Some(Large::Receive(window, holding)) = large {
            shared.receiving.remove(holding);
            shared.pool.put(window.into_buffer());
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

    /// Stores a contiguous response, and leaves an empty buffer.
    #[inline]
    pub(crate) fn store(&mut self, response: &mut Msgbuf) {
        debug_assert!(response.tail().is_empty());
        if self.inline.store(response.head()) {
            response.head_mut().clear();
        } else {
            self.store_buffer(response);
        }
    }

    /// Stores a response together with its buffer, in exchange for an empty buffer.
    #[inline(never)]
    pub(crate) fn store_buffer(&mut self, response: &mut Msgbuf) {
        self.inline.clear();
        self.cold.swap_message(response);
        response.clear();
    }

    /// The response, as two parts.
    pub(crate) fn response(&self) -> (&[u8], &[u8]) {
        self.cold.message(&self.inline)
    }

    /// A range of the response, as two parts.
    pub(crate) fn response_range(&self, from: usize, to: usize) -> (&[u8], &[u8]) {
        self.cold.message_range(&self.inline, from, to)
    }

    /// Length of the response in bytes.
    pub(crate) fn response_len(&self) -> usize {
        self.cold.message_len(&self.inline)
    }

    /// Whether the response is kept for a limited time only.
    pub(crate) fn is_bulky(&self) -> bool {
        self.inline.get().is_none() && self.cold.has_bulky_message()
    }
}

/// All fragments of two sets, each a base and a bit for each fragment from there on. `None`: they do not fit into
/// one.
fn union_of(one: (u32, u64), other: (u32, u64)) -> Option<(u32, u64)> {
    let (low, high) = if one.0 <= other.0 {
        (one, other)
    } else {
        (other, one)
    };
    let distance = high.0 - low.0;
    let shifted = high.1.checked_shl(distance).unwrap_or(0);
    (high.1 == 0 || (distance < 64 && shifted >> distance == high.1))
        .then_some((low.0, low.1 | shifted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_asks_for_twice_in_a_turn_is_sent_together_if_it_fits() {
        assert_eq!(union_of((7, 0b101), (7, 0b10)), Some((7, 0b111)));
        assert_eq!(union_of((9, 0b1), (7, 0b1)), Some((7, 0b101)));
        assert_eq!(union_of((0, 1), (63, 1)), Some((0, 1 | 1 << 63)));
        assert_eq!(union_of((0, 1), (64, 1)), None);
        assert_eq!(union_of((0, 1), (1, 1 << 63)), None);
        assert_eq!(union_of((0, 0b11), (u32::MAX, 0)), Some((0, 0b11)));
        assert_eq!(union_of((u32::MAX, 1), (u32::MAX, 1)), Some((u32::MAX, 1)));
    }

    #[test]
    fn the_later_wish_counts_if_two_do_not_fit() {
        let mut slot = Slot::default();
        for (base, want, has) in [
            (0, 0b11, (0, 0b11)),
            (4, 0b1, (0, 0b1_0011)),
            (500, 1, (500, 1)),
        ] {
            slot.want(base, want);
            let Some(&Large::Unsent { base, want }) = slot.cold.large() else {
                panic!("nothing is unsent");
            };
            assert_eq!((base, want), has);
        }
    }
}
