//! Commands of callers to the loop behind their channels.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use super::deadline_waker::DeadlineWaker;
use crate::address::Address;
use crate::channel_state::StateCell;
use crate::executor::Executor;
use crate::health::HealthCell;
use crate::interceptor::BoxFuture;
use crate::plane::{CallHandle, Reply, stopped};
use crate::stats::ThreadStats;
use atomic_waker::AtomicWaker;
use parking_lot::Mutex;

/// Makes a task of what the event loop has for its tasks.
pub(crate) type MakeTask = Box<dyn FnOnce(Arc<Executor>) -> BoxFuture<'static, ()> + Send>;

pub(crate) enum Command {
    Open {
        channel: u64,
        address: Address,
        state: Arc<StateCell>,
    },
    Close {
        channel: u64,
    },
    Start {
        channel: u64,
        reply: Reply,
    },
    Cancel(CallHandle),
    /// Says what the endpoint has done.
    Report(Arc<Report>),
    /// Watches the health of a service of a channel's server.
    WatchHealth {
        channel: u64,
        service: Box<str>,
        health: Arc<HealthCell>,
    },
    /// Runs a task in the event loop.
    Spawn(MakeTask),
    /// Wakes a caller that waits for a permit when its deadline passes.
    WakeAt {
        deadline: Instant,
        waker: Arc<DeadlineWaker>,
    },
}

/// The counters of an endpoint, on their way to a caller.
#[derive(Default)]
pub(crate) struct Report {
    /// `Some(None)`: there is no endpoint any more.
    stats: Mutex<Option<Option<ThreadStats>>>,
    waker: AtomicWaker,
}

impl Report {
    pub(super) fn set(&self, stats: Option<ThreadStats>) {
        *self.stats.lock() = Some(stats);
        self.waker.wake();
    }

    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<Option<ThreadStats>> {
        self.waker.register(cx.waker());
        match self.stats.lock().take() {
            Some(stats) => Poll::Ready(stats),
            None => Poll::Pending,
        }
    }
}

impl starling_share::Command for Command {
    fn refuse(self, failure: &str) {
        match self {
            Self::Start { reply, .. } => {
                reply.finish(Err(stopped(Some(failure)).with_not_run()));
            }
            Self::Report(report) => report.set(None),
            Self::Open { .. }
            | Self::Close { .. }
            | Self::Cancel(_)
            | Self::WatchHealth { .. }
            | Self::Spawn(_)
            | Self::WakeAt { .. } => {}
        }
    }
}
