//! The slots that the streams of a connection may have.
//!
//! Each stream has a request at its server all the time, which takes a slot of the connection's session or of one that
//! has joined that. If requests at rest had all slots, none of their streams could go on. So a stream begins only
//! where slots stay free beside it:
//!
//! ```text
//!  a stream begins ── is a slot left? ── yes ─▶ StreamSlot, until the stream is over
//!                          │  ▲
//!                          no └───────────────── Enough ─┐
//!                          ▼                             │
//!               the endpoint opens further sessions ─────┤
//!                                                        └─ None ─▶ RESOURCE_EXHAUSTED
//! ```
//! A server bounds the streams of a client, too, by the slots that it gives. It cannot know that the client has several
//! channels to it, or takes fewer slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use starling_endpoint::{ProtocolConfig, Status};
use starling_stream::MAX_HELD;

use super::limits::SLOTS;

/// One of so many slots stays free for requests that streams make beside the one that is held.
const SPARE: usize = 64;
/// Slots of a stream that has several requests held, beside its first.
const EXTRA: usize = MAX_HELD as usize - 1;

/// Of one session of a connection, and those that join it.
#[derive(Debug, Default)]
pub(crate) struct StreamSlots {
    /// Slots of all sessions, as far as is known.
    slots: AtomicUsize,
    /// Those of streams.
    taken: AtomicUsize,
    /// Streams that wait for a slot.
    waiting: AtomicUsize,
    /// There are no more slots to be had.
    is_full: AtomicBool,
    /// The endpoint is to get more slots.
    is_asked: AtomicBool,
    /// Streams hold one request each: the client has chosen to have few slots.
    has_few: bool,
}

/// The slot of a stream. As small as can be: thousands may be at rest.
#[derive(Debug)]
pub(crate) struct StreamSlot(Arc<StreamSlots>);

impl StreamSlots {
    /// That of a connection with these settings.
    pub(crate) fn of(protocol: &ProtocolConfig) -> Arc<Self> {
        let slots = usize::from(protocol.slots) * usize::from(protocol.group_sessions);
        Arc::new(Self {
            has_few: slots < SLOTS,
            ..Self::default()
        })
    }

    /// A stream begins. None: there is no slot for it now.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<StreamSlot> {
        let slots = self.slots.load(Ordering::Relaxed);
        let most = slots.saturating_sub(slots.div_ceil(SPARE));
        self.take(1, most).then(|| StreamSlot(Arc::clone(self)))
    }

    fn take(&self, slots: usize, most: usize) -> bool {
        let more = |taken: usize| Some(taken + slots).filter(|all| *all <= most);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    /// Those of the next session.
    pub(crate) fn of_next_session(&self) -> Arc<Self> {
        Arc::new(Self {
            has_few: self.has_few,
            ..Self::default()
        })
    }

    /// A stream waits for a slot.
    pub(crate) fn wait(self: &Arc<Self>) -> WaitingStream {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        WaitingStream(Arc::clone(self))
    }

    /// The endpoint is to get more slots. False: it knows.
    pub(crate) fn ask(&self) -> bool {
        self.is_full.store(false, Ordering::Relaxed);
        !self.is_asked.swap(true, Ordering::Relaxed)
    }

    /// The slots that are asked for, if any are.
    pub(crate) fn wanted(&self) -> Option<usize> {
        let streams = || self.taken.load(Ordering::Relaxed) + self.waiting.load(Ordering::Relaxed);
        let is_asked = self.is_asked.load(Ordering::Relaxed);
        is_asked.then(|| streams() + streams() / (SPARE - 1) + 1)
    }

    /// So many slots there are. To be called for each change.
    pub(crate) fn set_slots(&self, slots: usize) {
        self.slots.store(slots, Ordering::Relaxed);
    }

    /// What was asked for is there, or there is no more.
    pub(crate) fn answer(&self, slots: usize, is_full: bool) {
        self.set_slots(slots);
        self.is_full.store(is_full, Ordering::Relaxed);
        self.is_asked.store(false, Ordering::Relaxed);
    }

    /// Whether there was no more when it was asked for last.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Why a stream does not begin.
    #[cold]
    pub(crate) fn full(&self, address: &str) -> Status {
        let slots = self.slots.load(Ordering::Relaxed);
        Status::resource_exhausted(format!(
            "the connection to {address} has {slots} slots, and gets no more; each stream takes one, and some stay \
             free: end some streams, or raise the server's `ProtocolConfig::max_sessions_per_client` or \
             `max_sessions`, or the client's `group_sessions` or `slots`"
        ))
        .with_not_run()
    }
}

/// A stream that waits for a slot until this is dropped.
pub(crate) struct WaitingStream(Arc<StreamSlots>);

impl WaitingStream {
    /// Whether it waits for one of these.
    pub(crate) fn is_for(&self, slots: &Arc<StreamSlots>) -> bool {
        Arc::ptr_eq(&self.0, slots)
    }
}

impl Drop for WaitingStream {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl StreamSlot {
    /// Whether it is one of this session.
    pub(super) fn is_of(&self, slots: &Arc<StreamSlots>) -> bool {
        Arc::ptr_eq(&self.0, slots)
    }

    /// Whether the stream may have several requests held from now on: unless half of the slots would be taken.
    pub(super) fn hold_more(&self) -> bool {
        let slots = self.0.slots.load(Ordering::Relaxed);
        !self.0.has_few && self.0.take(EXTRA, slots / 2)
    }

    /// The stream is over, which has several requests held or has not.
    pub(super) fn leave(self, holds_more: bool) {
        let taken = if holds_more { 1 + EXTRA } else { 1 };
        self.0.taken.fetch_sub(taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(slots: usize) -> Arc<StreamSlots> {
        let bound = Arc::new(StreamSlots::default());
        bound.set_slots(slots);
        bound
    }

    fn fill(bound: &Arc<StreamSlots>) -> Vec<StreamSlot> {
        std::iter::from_fn(|| bound.begin()).collect()
    }

    fn leave(taken: Vec<StreamSlot>) {
        taken.into_iter().for_each(|slot| slot.leave(false));
    }

    #[test]
    fn some_slots_stay_free_however_few_there_are() {
        for (slots, streams) in [(0, 0), (1, 0), (2, 1), (32, 31), (64, 63), (65, 63)] {
            let bound = bound(slots);
            let taken = fill(&bound);
            assert_eq!(taken.len(), streams);
            leave(taken);
            assert_eq!(fill(&bound).len(), streams);
        }
    }

    #[test]
    fn what_is_asked_for_is_enough() {
        for streams in 0..2_000 {
            let bound = bound(0);
            let waiting: Vec<_> = (0..streams).map(|_| bound.wait()).collect();
            assert!(bound.ask() && !bound.ask());
            let wanted = bound.wanted().expect("asked for");
            bound.answer(wanted, false);
            assert_eq!(bound.wanted(), None);
            drop(waiting);
            assert!(fill(&bound).len() >= streams);
        }
    }

    #[test]
    fn a_slot_of_a_session_that_has_ended_is_none_of_the_next() {
        let former = bound(32);
        let slot = former.begin().expect("a slot");
        let next = former.of_next_session();
        assert!(slot.is_of(&former) && !slot.is_of(&next));
        assert!(former.ask() && next.ask(), "nobody has asked for these");
        next.answer(32, false);
        assert_eq!(fill(&next).len(), 31);
        slot.leave(false);
        assert_eq!(fill(&former).len(), 31);
    }

    #[test]
    fn several_requests_of_a_stream_take_half_of_the_slots_at_most() {
        let bound = bound(32);
        let mut taken = fill(&bound);
        assert!(taken.iter().all(|slot| !slot.hold_more()));
        leave(taken.split_off(4));
        assert!(taken.iter().all(StreamSlot::hold_more));
        let more = fill(&bound);
        assert_eq!(more.len(), 31 - 16);
        assert!(!more[0].hold_more());
        taken.into_iter().for_each(|slot| slot.leave(true));
        leave(more);
        assert_eq!(fill(&bound).len(), 31);
    }
}
