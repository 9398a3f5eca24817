//! What a person sees of a client session.

use super::session::{ClientSession, State};
use crate::ClientSessionReport;

impl ClientSession {
    pub(crate) fn report(&self) -> ClientSessionReport {
        let limits = self.control.limits();
        ClientSessionReport {
            id: self.id,
            peer: self.peer,
            state: match self.state {
                State::Connecting => "connecting",
                State::Open => "open",
                State::Closing => "closing",
            },
            first: self.is_member().then_some(self.first),
            is_suspected: self.suspected,
            slots: self.slot_count.into(),
            busy_slots: self.busy().count_ones() as usize,
            queued: self.queue.len(),
            credits: self.credits,
            credits_in_use: self.in_flight,
            window: limits.map(|(window, _)| window),
            rate_bps: limits.map(|(_, rate_bps)| rate_bps),
            rtt_ns: self.rtt.smoothed_ns(),
        }
    }
}
