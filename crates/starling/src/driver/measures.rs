//! The measures of a loop's calls. The time at hand is that of the loop's turns, so no clock is read for a call.

use std::collections::HashMap;
use std::sync::Arc;

use starling_endpoint::Code;

use crate::binding::IdHasher;
use crate::connection::Connection;
use crate::metrics::{ClientMetrics, Measured};
use crate::plane::{CallHandle, Reply};
use crate::retry::Made;

/// The metrics of the loop's channels, if they are enabled. A channel is here until it is closed, and each of its
/// calls has ended by then or was cancelled.
#[derive(Default)]
pub(super) struct Measures {
    all: HashMap<u64, Arc<ClientMetrics>, IdHasher>,
    /// Those of one of the channels: the last whose call has ended.
    last: Option<(u64, Arc<ClientMetrics>)>,
}

impl Measures {
    pub(super) fn open(&mut self, channel: u64, connection: &Connection) {
        if let Some(metrics) = &connection.metrics {
            self.all.insert(channel, Arc::clone(metrics));
        }
    }

    pub(super) fn close(&mut self, channel: u64) {
        self.all.remove(&channel);
        self.last = None;
    }

    /// A call that was begun has ended, if it is measured: with the bytes of its response or with a code.
    #[inline]
    pub(super) fn end(
        &mut self,
        channel: u64,
        call: &CallHandle,
        result: Result<usize, Code>,
        now_ns: impl FnOnce() -> u64,
    ) {
        if let Some((metrics, measured)) = self.of(channel, call) {
            metrics.end(measured, result, now_ns());
        }
    }

    /// A call that was begun has come to its end here, perhaps to be made by another server.
    pub(super) fn end_made(
        &mut self,
        channel: u64,
        reply: &Reply,
        made: &Made,
        now_ns: impl FnOnce() -> u64,
    ) {
        let call = reply.call();
        match made {
            Ok((response, _)) => self.end(channel, call, Ok(response.body().len()), now_ns),
            Err(failed) if failed.unsent.is_some() && reply.may_go_elsewhere() => {
                self.leave(channel, call);
            }
            Err(failed) => self.end(channel, call, Err(failed.status.code()), now_ns),
        }
    }

    /// A call that was begun did not run, and another server makes it.
    #[cold]
    pub(super) fn leave(&mut self, channel: u64, call: &CallHandle) {
        if let Some((metrics, measured)) = self.of(channel, call) {
            metrics.leave(measured);
        }
    }

    /// The measure of a call, which ends, and where it counts.
    #[inline]
    fn of(&mut self, channel: u64, call: &CallHandle) -> Option<(&ClientMetrics, Measured)> {
        let measured = call.0.measure.take()?;
        if !matches!(&self.last, Some((last, _)) if *last == channel) {
            self.find(channel);
        }
        let (_, metrics) = self.last.as_ref()?;
        Some((metrics, measured))
    }

    #[inline(never)]
    fn find(&mut self, channel: u64) {
        let found = self.all.get(&channel);
        self.last = found.map(|metrics| (channel, Arc::clone(metrics)));
    }
}
