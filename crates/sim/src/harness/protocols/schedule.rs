//! The schedule of a host's application: tasks and their times.

use std::collections::BTreeMap;

use starling_proto::{Claim, Msgbuf, PeerId, RequestId};

use crate::check::Tag;
use crate::check::content::Expected;
use crate::harness::CallPlan;
use crate::harness::host_set::PlannedTask;

/// An action of a host's application.
#[derive(Debug)]
pub(super) enum Task {
    /// An action of the plan, or the repetition of a probe.
    Planned(PlannedTask),
    /// Makes a call again that was not sent.
    Recall(CallPlan),
    /// Gives up on a call.
    Cancel(Tag),
    /// Answers a request.
    Respond {
        incarnation: u32,
        id: RequestId,
        expected: Expected,
        response: Msgbuf,
    },
    /// A handler makes a call of its own, and answers when it has ended.
    Relay {
        incarnation: u32,
        id: RequestId,
        expected: Expected,
        response: Msgbuf,
        channel: usize,
    },
    /// A worker does something.
    Worker { incarnation: u32, step: Step },
}

/// A worker's next step.
#[derive(Debug)]
pub(super) enum Step {
    /// Looks at a datagram that it got.
    Begin {
        peer: PeerId,
        marked: bool,
        datagram: Vec<u8>,
    },
    /// Gives it to the event loop.
    HandOver {
        peer: PeerId,
        marked: bool,
        datagram: Vec<u8>,
    },
    /// Its handler returns.
    Finish { claim: Claim, expected: Expected },
    /// Its report is read.
    Report {
        claim: Claim,
        expected: Expected,
        response: Msgbuf,
        sent: bool,
    },
}

/// Tasks by (time, order of entry).
#[derive(Debug, Default)]
pub(super) struct Schedule {
    tasks: BTreeMap<(u64, u64), Task>,
    entries: u64,
}

impl Schedule {
    pub(super) fn add(&mut self, at_ns: u64, task: Task) {
        self.entries += 1;
        self.tasks.insert((at_ns, self.entries), task);
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        self.tasks.keys().next().map(|&(at_ns, _)| at_ns)
    }

    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<Task> {
        let first = self.tasks.first_entry()?;
        (first.key().0 <= now_ns).then(|| first.remove())
    }

    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }
}
