//! Shutting down gracefully.

use std::time::Duration;

use starling_io::{Clock, IoError, PacketIo};

use crate::endpoint::Endpoint;
use crate::sink::Sink;

/// Clients that said nothing for this long have what they were sent: longer than the longest
/// retransmission timeout by default.
const QUIET_NS: u64 = 100_000_000;
/// Whether they did is asked this often while nothing arrives.
const QUIET_CHECK_NS: u64 = QUIET_NS / 10;
/// Clients that are never quiet are left after this long.
const LINGER_MAX_NS: u64 = 1_000_000_000;

impl<I: PacketIo, C: Clock> Endpoint<I, C> {
    /// Begins to shut down: sessions and requests that arrive from now on are refused with
    /// UNAVAILABLE, so that their callers go elsewhere. Requests that are being worked on go on.
    pub fn start_drain(&mut self) {
        self.core.draining = true;
        self.core.proto.drain();
        if let Some(dispatch) = &mut self.dispatch {
            dispatch.drain();
        }
    }

    /// Whether nothing is left to be done: no request is worked on, no call is outstanding.
    pub fn is_drained(&self) -> bool {
        let claimed = self
            .dispatch
            .as_ref()
            .map_or(0, |dispatch| dispatch.claimed());
        self.requests_pending() + claimed == 0 && self.calls_outstanding() == 0 && !self.has_work()
    }

    /// Shuts down gracefully: refuses new requests, finishes those that are being worked on and
    /// the calls outstanding, sends what is to be sent, closes the client sessions, and tells those
    /// who have sessions with it that it ends, so that their next call goes elsewhere or waits
    /// instead of running into silence. Gives up after `timeout`. True if everything was finished. Afterwards the endpoint is to be dropped.
    ///
    /// A client fetches a large response packet by packet and says when it has all of it. It may
    /// miss a small one over a device that loses packets, and asks again then: such an endpoint
    /// stays until the clients that it answered last are quiet for 100 ms, but at most one second.
    pub fn drain(&mut self, timeout: Duration) -> Result<bool, IoError> {
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = self.clock.now_ns().saturating_add(timeout_ns);
        self.start_drain();
        let finished = self.run_until_ns(until_ns, None, Self::is_drained)?;
        let quiet_until_ns = until_ns.min(self.core.now_ns.saturating_add(LINGER_MAX_NS));
        self.run_until_ns(quiet_until_ns, Some(QUIET_CHECK_NS), |endpoint| {
            !endpoint.core.proto.has_undelivered(QUIET_NS)
        })?;
        for session in self.core.sessions.alive() {
            self.close(session);
        }
        let closed = self.run_until_ns(until_ns, None, |endpoint| {
            endpoint.is_drained() && endpoint.core.sessions.alive().is_empty()
        })?;
        // The last word: whoever has a session here need not find out by silence.
        while !self.leave() && self.core.now_ns < until_ns {
            self.poll()?;
        }
        self.poll()?;
        Ok(finished && closed)
    }

    fn leave(&mut self) -> bool {
        let context = self.context();
        context.core.proto.announce_shutdown(&mut Sink(context.tx))
    }

    /// Turns until `done` or the time is over; says whether it was `done`, which is asked at
    /// least every `interval_ns`.
    fn run_until_ns(
        &mut self,
        until_ns: u64,
        interval_ns: Option<u64>,
        done: impl Fn(&Self) -> bool,
    ) -> Result<bool, IoError> {
        loop {
            let turn = self.poll()?;
            if done(self) {
                return Ok(true);
            }
            let now_ns = self.core.now_ns;
            if now_ns >= until_ns {
                return Ok(false);
            }
            if turn.is_idle() {
                let left_ns = until_ns - now_ns;
                let limit_ns = interval_ns.map_or(left_ns, |interval_ns| interval_ns.min(left_ns));
                self.wait(Some(Duration::from_nanos(limit_ns)))?;
            }
        }
    }
}
