//! What a server makes of the traces that its clients' calls come with.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use starling_endpoint::MetadataView;

use super::{TraceContext, of_metadata};
use crate::time::Time;

/// What a server makes of the traces that its clients' calls come with: see
/// [`ServerBuilder::client_traces`](crate::ServerBuilder::client_traces).
///
/// A client says itself whether its call is sampled, and a sampled call costs its server a span, and each call that the
/// handler makes two more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientTraces {
    /// A call is in its client's trace, whatever that costs. For clients that are trusted to sample few calls.
    Follow,
    /// The same, but of so many sampled calls a second at most, as many at once, all threads of the server together.
    /// Further ones stay in their traces and count as not sampled: they have no spans here, nor have the calls that
    /// their handlers make.
    FollowAtMost(u32),
    /// The server does not look at what clients send. Calls begin traces here by the share of
    /// [`enable`](super::enable).
    Ignore,
}

impl Default for ClientTraces {
    /// At most 1,000 sampled calls a second.
    fn default() -> Self {
        Self::FollowAtMost(1000)
    }
}

/// A second, in nanoseconds.
const SECOND_NS: u64 = 1_000_000_000;

/// The setting of a server, and how much of its bound is used up: the generic cell rate algorithm (ITU-T I.371).
pub(crate) struct ClientBound {
    setting: ClientTraces,
    /// Times are counted from here.
    begun: OnceLock<Instant>,
    /// The calls so far use up the bound until this time.
    used_until_ns: AtomicU64,
}

impl ClientBound {
    pub(crate) fn new(setting: ClientTraces) -> Self {
        Self {
            setting,
            begun: OnceLock::new(),
            used_until_ns: AtomicU64::new(0),
        }
    }

    /// The trace of a call that came with this metadata, as the server sees it.
    #[inline]
    pub(super) fn trace_of(&self, metadata: MetadataView<'_>, time: &Time) -> Option<TraceContext> {
        if self.setting == ClientTraces::Ignore {
            return None;
        }
        let context = of_metadata(metadata)?;
        match self.setting {
            ClientTraces::FollowAtMost(rate) if context.is_sampled() && !self.takes(rate, time) => {
                Some(context.not_sampled())
            }
            _ => Some(context),
        }
    }

    /// Whether the bound has room for one more sampled call now.
    fn takes(&self, rate: u32, time: &Time) -> bool {
        let now = time.now();
        let since = now.saturating_duration_since(*self.begun.get_or_init(|| now));
        let now_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let Some(each_ns) = SECOND_NS.checked_div(rate.into()) else {
            return false;
        };
        let (order, until) = (Ordering::Relaxed, now_ns.saturating_add(SECOND_NS));
        let next = |used: u64| Some(used.max(now_ns) + each_ns).filter(|next| *next <= until);
        let taken = self.used_until_ns.fetch_update(order, order, next);
        taken.is_ok()
    }
}
