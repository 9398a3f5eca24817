//! This endpoint's own absence, and what is done at intervals: silent peers and idle sessions are looked for.

use super::{Protocol, TICK_NS};
use crate::FrameSink;

impl Protocol {
    /// Whether [`Protocol::flush`] comes so late that peers may have dropped this endpoint. Then
    /// [`Protocol::handle_overdue`] must be called before anything is received or requested.
    #[inline]
    pub fn is_overdue(&self, now: u64) -> bool {
        now >= self.overdue_at
    }

    /// All that had arrived is read, or nothing waits to be. Between two of these moments, clients that went on with
    /// what they had begun may not have been heard, and they do not count as silent if that was tens of milliseconds.
    #[inline]
    pub fn caught_up(&mut self, now: u64) {
        self.shared.absences.caught_up(now);
    }

    /// Since [`Protocol::caught_up`], this endpoint has slept: anything that arrived would have woken it.
    #[inline]
    pub fn woken(&mut self, now: u64) {
        self.shared.absences.woken(now);
    }

    /// This endpoint was away for long: pings the peers, and holds back requests to a peer until
    /// the peer answers.
    #[cold]
    pub fn handle_overdue<S: FrameSink>(&mut self, now: u64, sink: &mut S) {
        self.shared.ask_flush();
        self.tick(now, sink);
    }

    #[cold]
    pub(super) fn tick<S: FrameSink>(&mut self, now: u64, sink: &mut S) {
        // A turn that comes much later than planned means that this thread was away. The peers'
        // datagrams of that time are not read yet, so their silence means nothing.
        let late = now - self.next_tick;
        if late >= self.shared.config.keepalive_ns {
            self.client
                .suspect_silent_peers(&mut self.shared, now, sink);
        }
        if late > 2 * TICK_NS {
            self.shared.peers.discount_absence(late);
            self.client.discount_absence(now, late);
        }
        let pings_at = self.client.ping(&mut self.shared, now, sink);
        let drops_at = self.server.drop_silent(&mut self.shared, now);
        let idle_at = self.server.check_idle(&mut self.shared, now, sink);
        if self.server.draining || self.server.drains_some {
            self.server.announce_drain(&mut self.shared, sink);
        }
        let keepalive = self.shared.config.keepalive_ns;
        let soonest = now + TICK_NS;
        // An idle endpoint sleeps from ping to ping.
        let next = pings_at.min(drops_at).min(idle_at).min(now + keepalive);
        self.next_tick = match self.server.draining || self.server.drains_some {
            true => soonest,
            false => next.max(soonest),
        };
        self.overdue_at = self.next_tick + keepalive;
    }
}
