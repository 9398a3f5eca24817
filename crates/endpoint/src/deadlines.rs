//! The deadlines of calls. A call without one costs nothing here.

use crate::client::CallId;
use crate::slab::Slab;
use crate::timers::Timers;

/// The calls with a deadline.
#[derive(Debug)]
pub(crate) struct Deadlines {
    timers: Timers,
    /// With their deadlines.
    calls: Slab<(CallId, u64)>,
}

impl Deadlines {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            timers: Timers::default(),
            calls: Slab::new(limit),
        }
    }

    /// The place of the next call that is armed, which disarms it; never zero. `None` if the table
    /// is full.
    pub(crate) fn next_place(&self) -> Option<u32> {
        self.calls.next_key().map(|key| key as u32 + 1)
    }

    /// Adds the deadline of a call at [`Deadlines::next_place`].
    pub(crate) fn arm(&mut self, at_ns: u64, call: CallId) {
        let key = self.calls.insert((call, at_ns));
        let key = key.expect("next_place returned a place");
        let calls = &self.calls;
        self.timers.arm(at_ns, key, |key| calls.get(key).is_some());
    }

    /// The deadline of a call.
    pub(crate) fn at_ns(&self, place: u32) -> Option<u64> {
        let key = self.calls.key_at(place.checked_sub(1)?)?;
        self.calls.get(key).map(|(_, at_ns)| *at_ns)
    }

    /// Removes the deadline of a call that is over.
    pub(crate) fn disarm(&mut self, place: u32) {
        let key = self.calls.key_at(place - 1).expect("armed before");
        self.calls.remove(key);
        self.timers.disarm();
    }

    /// When a deadline comes next.
    pub(crate) fn next(&mut self) -> Option<u64> {
        let calls = &self.calls;
        self.timers.next(|key| calls.get(key).is_some())
    }

    /// When [`Deadlines::pop_due`] may return a call, at the earliest.
    pub(crate) fn earliest_ns(&self) -> u64 {
        self.timers.earliest_ns()
    }

    /// A call whose deadline has come. Its end disarms it.
    pub(crate) fn pop_due(&mut self, now_ns: u64) -> Option<CallId> {
        while let Some(key) = self.timers.pop_due(now_ns) {
            if let Some((call, _)) = self.calls.get(key) {
                return Some(*call);
            }
        }
        None
    }
}
