//! What a server has said of requests that it executes, in its answers to repeats.

use super::session::ClientSession;
use super::slot::{Phase, Slot};

impl ClientSession {
    /// The server has said which slots have a request that it executes. Those that were confirmed before are
    /// so again; the server cannot have another request in their slots. Returns those that it has answered
    /// meanwhile, though nothing has come.
    pub(crate) fn confirm_others(&mut self, now: u64, index: usize, executing: u64) -> u64 {
        let mut answered = 0;
        let mut others = self.busy() & !(1 << index);
        while others != 0 {
            let other = others.trailing_zeros() as usize;
            others &= others - 1;
            let slot = &mut self.slots[other];
            if !slot.is_confirmed() || slot.phase == Phase::Receiving {
                continue;
            }
            if executing & 1 << other == 0 {
                answered |= 1 << other;
                continue;
            }
            // As if it had been asked for itself.
            slot.retries = slot.retries.saturating_add(1);
            slot.active_at = now;
            slot.confirm(now);
            if slot.phase == Phase::Single {
                self.set_credits(other, 0);
            }
        }
        answered
    }

    /// The same of those that were not confirmed before. Whether it is of their requests is not certain.
    pub(crate) fn hear_of_others(&mut self, index: usize, executing: u64) {
        let mut others = self.busy() & executing & !(1 << index);
        while others != 0 {
            let other = others.trailing_zeros() as usize;
            others &= others - 1;
            self.slots[other].is_said_busy = true;
        }
    }

    /// Requests in slots that the server has executed for this long. One that waits in the server's
    /// receive queue is not among them: it would only wait with more company there.
    pub(crate) fn slow_requests(&self, now: u64, slow_ns: u64) -> usize {
        // The server's answer to a repeated request took at least a retransmission timeout.
        let is_long =
            |slot: &Slot| slot.retries > 0 || now.saturating_sub(slot.active_at) >= slow_ns;
        let is_slow =
            |slot: &&Slot| slot.phase != Phase::Idle && slot.may_execute() && is_long(slot);
        self.slots.iter().filter(is_slow).count()
    }

    /// The slot of the request of one packet that was sent first of those that hold a credit for so long, if nobody has
    /// asked for it yet.
    pub(crate) fn longest_with_credit(&self, now: u64, slow_ns: u64) -> Option<usize> {
        let is_it = |(_, slot): &(usize, &Slot)| {
            let is_long = now.saturating_sub(slot.active_at) >= slow_ns;
            slot.phase == Phase::Single && slot.credits > 0 && slot.retries == 0 && is_long
        };
        let unasked = self.slots.iter().enumerate().filter(is_it);
        let first = unasked.min_by_key(|(_, slot)| slot.active_at);
        first.map(|(index, _)| index)
    }

    /// The slot of the request that was sent first of those that have had no answer for so long, if nobody has asked
    /// for it yet.
    pub(crate) fn longest_unasked(&self, now: u64, slow_ns: u64) -> Option<usize> {
        let is_sent = |slot: &Slot| match slot.phase {
            Phase::Single => slot.credits > 0,
            Phase::Sending => slot.has_arrived(),
            Phase::Idle | Phase::Receiving => false,
        };
        let is_it = |(_, slot): &(usize, &Slot)| {
            let is_long = now.saturating_sub(slot.active_at) >= slow_ns;
            slot.retries == 0 && !slot.may_execute() && is_long && is_sent(slot)
        };
        let unasked = self.slots.iter().enumerate().filter(is_it);
        let first = unasked.min_by_key(|(_, slot)| slot.active_at);
        first.map(|(index, _)| index)
    }
}
