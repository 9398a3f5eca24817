//! Operations that wait for a backend. The channel's permits bound them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use starling_endpoint::Status;

use super::placement::Routing;
use crate::metrics::QueueMeasure;
use crate::plane::{CallHandle, Operation, OutgoingCall, Reply};

/// An operation on its way to a backend.
pub(super) struct Entry {
    pub(super) reply: Reply,
    pub(super) kind: Kind,
    /// Whether it waits while no backend can be reached.
    pub(super) waits: bool,
    pub(super) deadline: Option<Instant>,
    pub(super) routing: Option<Box<Routing>>,
    /// If calls are measured.
    measure: Option<QueueMeasure>,
}

/// What is asked for.
pub(super) enum Kind {
    /// A call, with its place on a ring, if there is one.
    Call(Option<u64>),
    Connect,
}

impl Entry {
    /// None: the caller has given up. `place` says where on a ring a call is.
    pub(super) fn new(
        reply: Reply,
        mut routing: Option<Box<Routing>>,
        channel: &Arc<str>,
        place: impl FnOnce(&OutgoingCall) -> Option<u64>,
    ) -> Option<Self> {
        let (kind, waits, deadline, measure) = reply.call().0.with_operation(|operation| {
            let call = match operation {
                Operation::Connect { wait_for_ready } => {
                    return (Kind::Connect, *wait_for_ready, None, None);
                }
                Operation::Call(call) => call,
            };
            if let Some(avoid) = call.avoid.take() {
                routing.get_or_insert_default().avoid = avoid.0;
            }
            let (waits, deadline) = (call.wait_for_ready, call.message.deadline);
            let measure = QueueMeasure::begin(channel, call);
            (Kind::Call(place(call)), waits, deadline, measure)
        })?;
        Some(Self {
            reply,
            kind,
            waits,
            deadline,
            routing,
            measure,
        })
    }

    /// Whether another backend is better for it than this one.
    pub(super) fn avoids(&self, backend: u64) -> bool {
        let routing = self.routing.as_ref();
        routing.is_some_and(|routing| routing.avoid.contains(&backend))
    }

    pub(super) fn avoids_any(&self) -> bool {
        let routing = self.routing.as_ref();
        routing.is_some_and(|routing| !routing.avoid.is_empty())
    }

    /// Whether this backend has given the call back.
    pub(super) fn has_tried(&self, backend: u64) -> bool {
        let routing = self.routing.as_ref();
        routing.is_some_and(|routing| routing.tried.contains(&backend))
    }

    pub(super) fn forget_tried(&mut self) {
        if let Some(routing) = &mut self.routing {
            routing.tried.clear();
        }
    }

    /// The end of an operation that waited until its deadline. `is_resolved`: it is known which backends there are, or
    /// why not.
    #[cold]
    pub(super) fn expire(self, name: &str, is_resolved: bool) {
        let text = match is_resolved {
            true => format!("no backend of {name} could be reached in time; the call did not run"),
            false => format!(
                "the resolver of {name} has not answered in time with its backends; the call did not run"
            ),
        };
        self.fail(Status::deadline_exceeded(text));
    }

    /// The end of an operation that no backend makes.
    #[cold]
    pub(super) fn fail(self, status: Status) {
        if let Some(measure) = self.measure {
            measure.end(status.code());
        }
        self.reply.finish(Err(status.with_not_run()));
    }

    /// A backend makes the call, and counts it.
    pub(super) fn leave(&mut self) {
        if let Some(measure) = self.measure.take() {
            measure.leave();
        }
    }
}

#[derive(Default)]
struct State {
    entries: VecDeque<Entry>,
    /// The snapshot by which they were last looked at.
    version: u64,
    /// The earliest deadline that the background knows of.
    earliest: Option<Instant>,
}

#[derive(Default)]
pub(super) struct Queue(Mutex<State>);

/// What becomes of an operation that is to wait.
pub(super) enum Queued {
    /// It waits, or its caller has given it up. If true, the background has to hear of its deadline.
    Waits(bool),
    /// There is a newer snapshot than that by which it was to wait: it may not have to.
    Again(Entry),
}

impl Queue {
    /// Adds an operation that was to wait by a snapshot of this version.
    pub(super) fn push(&self, entry: Entry, version: u64) -> Queued {
        let mut state = self.0.lock();
        if state.version > version {
            return Queued::Again(entry);
        }
        if let Some(placement) = entry.reply.call().0.placement() {
            placement.leave();
        }
        // What gave it up meanwhile went to the backend that had it before.
        if entry.reply.call().is_abandoned() {
            drop(state);
            // Without the lock: its permit wakes a caller.
            drop(entry);
            return Queued::Waits(false);
        }
        let is_earlier = entry.deadline.is_some_and(|deadline| {
            let is_earlier = state.earliest.is_none_or(|earliest| deadline < earliest);
            if is_earlier {
                state.earliest = Some(deadline);
            }
            is_earlier
        });
        state.entries.push_back(entry);
        Queued::Waits(is_earlier)
    }

    /// Takes all operations, to be looked at by a snapshot of this version.
    pub(super) fn take(&self, version: u64) -> VecDeque<Entry> {
        let mut state = self.0.lock();
        state.version = version;
        state.earliest = None;
        std::mem::take(&mut state.entries)
    }

    /// The earliest deadline.
    pub(super) fn earliest(&self) -> Option<Instant> {
        self.0.lock().earliest
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().entries.is_empty()
    }

    /// Removes the operation of a caller that gives up.
    pub(super) fn remove(&self, call: &CallHandle) {
        let mut state = self.0.lock();
        let is_meant = |entry: &Entry| Arc::ptr_eq(&entry.reply.call().0, &call.0);
        let at = state.entries.iter().position(is_meant);
        let removed = at.and_then(|at| state.entries.remove(at));
        drop(state);
        // Without the lock: its permit wakes a caller.
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> (CallHandle, Entry) {
        let wait_for_ready = true;
        let call = CallHandle::unattended(Operation::Connect { wait_for_ready });
        let entry = Entry::new(Reply::new(call.clone()), None, &"a channel".into(), |_| {
            None
        });
        (call, entry.expect("its caller waits"))
    }

    #[test]
    fn an_operation_that_its_caller_has_given_up_does_not_wait() {
        let queue = Queue::default();
        let (call, waits) = entry();
        assert!(matches!(queue.push(waits, 0), Queued::Waits(false)));
        assert!(!queue.is_empty());
        call.0.abandon();
        queue.remove(&call);
        assert!(queue.is_empty());
        // Given up between two backends: what cancels it may have come before.
        let (call, moves) = entry();
        call.0.abandon();
        queue.remove(&call);
        assert!(matches!(queue.push(moves, 0), Queued::Waits(false)));
        assert!(queue.is_empty());
    }
}
