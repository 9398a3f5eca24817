//! Commands of callers to the loop behind their channels.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use atomic_waker::AtomicWaker;
use parking_lot::Mutex;
use starling_endpoint::{Msgbuf, Status};
use starling_message::MethodDescriptor;

use super::deadline_waker::DeadlineWaker;
use crate::address::Address;
use crate::call_cell::{CallCell, CallResult};
use crate::channel_state::StateCell;
use crate::options::CallOptions;
use crate::permits::Permit;
use crate::stats::ThreadStats;

pub(crate) enum Command {
    Open {
        channel: u64,
        address: Address,
        state: Arc<StateCell>,
    },
    Close {
        channel: u64,
    },
    Call(Submission),
    Cancel(Arc<CallCell>),
    /// Connects the channel. The response is empty.
    Connect {
        channel: u64,
        wait_for_ready: bool,
        reply: Reply,
    },
    /// Says what the endpoint has done.
    Report(Arc<Report>),
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

/// Ends what a command asks for, because there is no endpoint any more.
pub(super) fn refuse(command: Command, failure: &str) {
    match command {
        Command::Call(Submission { reply, .. }) | Command::Connect { reply, .. } => {
            reply.finish(Err(stopped(Some(failure)).with_not_run()));
        }
        Command::Report(report) => report.set(None),
        Command::Open { .. }
        | Command::Close { .. }
        | Command::Cancel(_)
        | Command::WakeAt { .. } => {}
    }
}

/// A call on its way to the driver.
pub(crate) struct Submission {
    pub(crate) channel: u64,
    pub(crate) method: &'static MethodDescriptor,
    /// In the native layout, after `room` bytes for the call header.
    pub(crate) message: Msgbuf,
    pub(crate) room: usize,
    pub(crate) options: CallOptions,
    pub(crate) deadline: Option<Instant>,
    pub(crate) reply: Reply,
}

/// The result that the driver owes a caller. If it is dropped, the call ends because the driver
/// has stopped.
pub(crate) struct Reply {
    pub(crate) cell: Arc<CallCell>,
    pub(crate) permit: Option<Permit>,
}

impl Reply {
    pub(crate) fn finish(mut self, result: CallResult) {
        // First: the caller may make the next call as soon as it has the result.
        self.permit = None;
        self.cell.finish(result);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.permit = None;
        // Has no effect on a call that has a result.
        self.cell.finish(Err(stopped(None)));
    }
}

/// The status of calls whose driver has stopped.
#[cold]
pub(crate) fn stopped(why: Option<&str>) -> Status {
    let why = why.unwrap_or("its endpoint was dropped");
    Status::unavailable(format!(
        "the channel's endpoint has ended: {why}; make a new channel"
    ))
}
