//! What a person sees of a server session.

use super::session::ServerSession;
use crate::ServerSessionReport;

impl ServerSession {
    pub(crate) fn report(&self, now: u64) -> ServerSessionReport {
        let (executing, receiving) = self.requests();
        ServerSessionReport {
            id: self.handle.id(),
            peer: self.peer,
            slots: self.slots.count(),
            executing,
            receiving,
            credits: self.granted,
            credits_wanted: self.wanted,
            idle_ns: now.saturating_sub(self.active_at),
        }
    }
}
