//! Shutting down gracefully.

use std::time::Duration;

use starling_io::{Clock, IoError, PacketIo};

use crate::endpoint::Endpoint;
use crate::sink::Sink;

/// Clients that sent nothing for this long have received all responses: it is longer than the
/// default of the longest retransmission timeout.
const QUIET_NS: u64 = 100_000_000;
/// The clients are checked this often while nothing arrives.
const QUIET_CHECK_NS: u64 = QUIET_NS / 10;
/// The endpoint does not wait longer than this for clients to be quiet.
const LINGER_MAX_NS: u64 = 1_000_000_000;

impl<I: PacketIo, C: Clock> Endpoint<I, C> {
    /// Begins to shut down: sessions and requests that arrive from now on are refused, so that their callers
    /// go elsewhere. The clients are told, so that they make no more. Pending requests are still answered.
    pub fn start_drain(&mut self) {
        self.begin_owner_work();
        self.parts.core.draining = true;
        let (proto, sink) = (&mut self.parts.core.proto, &mut Sink(self.io.split().1));
        proto.drain();
        proto.announce_drain(sink);
        if let Some(dispatch) = &mut self.parts.dispatch {
            dispatch.drain();
        }
    }

    /// Whether nothing is left to do: no request is pending, no call is outstanding.
    pub fn is_drained(&self) -> bool {
        let claimed = self
            .parts
            .dispatch
            .as_ref()
            .map_or(0, |dispatch| dispatch.claimed());
        self.requests_pending() + claimed == 0 && self.calls_outstanding() == 0 && !self.has_work()
    }

    /// Shuts down gracefully: refuses new requests, finishes pending requests and outstanding
    /// calls, sends what is left to send, and closes the client sessions. It notifies the clients
    /// that have sessions here, so that their next call goes elsewhere or waits instead of timing
    /// out. Gives up after `timeout`. True if everything was finished. Drop the endpoint
    /// afterwards.
    ///
    /// A client fetches a large response packet by packet and acknowledges the last one. It may
    /// miss a small one if the device loses packets, and then asks again. Over such a device the
    /// endpoint stays until the clients that it answered last are quiet for 100 ms, but at most one
    /// second.
    ///
    /// # Errors
    /// If the device fails.
    pub fn drain(&mut self, timeout: Duration) -> Result<bool, IoError> {
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = self.parts.clock.now_ns().saturating_add(timeout_ns);
        self.start_drain();
        let finished = self.run_until_ns(until_ns, None, Self::is_drained)?;
        let quiet_until_ns = until_ns.min(self.parts.core.now_ns.saturating_add(LINGER_MAX_NS));
        self.run_until_ns(quiet_until_ns, Some(QUIET_CHECK_NS), |endpoint| {
            let proto = &endpoint.parts.core.proto;
            proto.is_left() && !proto.has_undelivered(QUIET_NS)
        })?;
        for session in self.parts.core.sessions.alive() {
            self.close(session);
        }
        let closed = self.run_until_ns(until_ns, None, |endpoint| {
            endpoint.is_drained() && endpoint.parts.core.sessions.alive().is_empty()
        })?;
        // The clients learn of the end from a frame, not from a timeout.
        while !self.leave() && self.parts.core.now_ns < until_ns {
            self.poll()?;
        }
        self.poll()?;
        Ok(finished && closed)
    }

    fn leave(&mut self) -> bool {
        let context = self.context();
        context.core.proto.announce_shutdown(&mut Sink(context.tx))
    }

    /// Takes turns until `done` returns true (then the result is true) or the time is over. `done`
    /// is called at least every `interval_ns`.
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
            let now_ns = self.parts.core.now_ns;
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
