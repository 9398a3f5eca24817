//! Notices that a handler held up the event loop.
//!
//! A clock for each handler would cost as much as a small handler. So the loop compares two readings
//! that it takes anyway, one before a turn and one after it, and names the handler that ran last.

use std::time::Duration;

use starling_call::MethodId;
use starling_io::{Clock, PacketIo};

use crate::endpoint::Endpoint;

/// A turn that takes so long held up all clients of the thread. Below this, the host may have been
/// busy.
pub(crate) const STALL_NS: u64 = 50_000_000;

/// A handler that held up its dispatch thread, as far as the thread knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The method whose inline or nested handler ran last.
    pub method: MethodId,
    /// Requests that were handled meanwhile. If there were several, one of the others may have taken
    /// the time.
    pub requests: u64,
    /// How long.
    pub lasted: Duration,
}

impl<I: PacketIo, C: Clock> Endpoint<I, C> {
    /// The last stall since this was asked, if there was one; [`Stats::stalls`] counts them.
    ///
    /// [`Stats::stalls`]: crate::Stats::stalls
    #[inline]
    pub fn take_stall(&mut self) -> Option<Stall> {
        self.stall.take()
    }

    /// Takes in that so much time has passed since the clock was read, at least [`SLICE_NS`]. Without a
    /// request in this time, no handler took it.
    #[cold]
    pub(crate) fn record_long_turn(&mut self, lasted_ns: u64) {
        let requests = self.parts.core.stats.requests - self.requests_seen;
        if requests == 0 {
            return;
        }
        self.requests_seen = self.parts.core.stats.requests;
        let parts = &mut self.parts;
        let now_ns = parts.clock.now_ns();
        let began_ns = now_ns.saturating_sub(lasted_ns);
        if (parts.shares).record_run(requests as usize, &parts.clock, now_ns, began_ns) {
            parts.apply_sharing();
        }
        if lasted_ns >= STALL_NS {
            self.parts.core.stats.stalls += 1;
            self.stall = Some(Stall {
                method: self.parts.tables.last_method(),
                requests,
                lasted: Duration::from_nanos(lasted_ns),
            });
        }
    }
}
