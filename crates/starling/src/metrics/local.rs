//! The measure of a call that a future of an endpoint makes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use starling_endpoint::Code;
use starling_io::Clock;
use starling_message::{Message, MethodDescriptor};

use super::client::{ClientMetrics, Measured, Place};
use crate::connection::Connection;
use crate::executor::Executor;
use crate::plane::CallResult;
use crate::wait::runs_endpoint;

/// A call begins. `None` if its connection has no metrics.
#[inline]
pub(crate) fn begin_local<Q: Message>(
    connection: &Connection,
    executor: &Arc<Executor>,
    method: &'static MethodDescriptor,
    request: &Q,
) -> Option<Measured> {
    let metrics = connection.metrics.as_ref()?;
    Some(begin_measured(metrics, executor, method, request))
}

#[inline(never)]
fn begin_measured<Q: Message>(
    metrics: &ClientMetrics,
    executor: &Arc<Executor>,
    method: &'static MethodDescriptor,
    request: &Q,
) -> Measured {
    let (head, tail) = request.parts();
    let bytes = head.len() + tail.map_or(0, |tail| tail.len());
    let (at, now_ns) = match runs_endpoint(executor) {
        true => (Place::Endpoint, executor.call_ns()),
        false => (Place::Elsewhere, executor.now_ns()),
    };
    metrics.begin_call(method.id, method.path, bytes, at, now_ns)
}

/// A call of a connection with metrics ends, with the bytes of its response or with a code.
#[inline]
pub(crate) fn end_local(
    connection: &Connection,
    executor: &Arc<Executor>,
    method: &'static MethodDescriptor,
    call: Measured,
    result: Result<usize, Code>,
) {
    let Some(metrics) = &connection.metrics else {
        return;
    };
    match runs_endpoint(executor) {
        // The response came in this turn.
        true => metrics.end_in_turn(call, method.path, result, executor.local.turn_ns()),
        false => metrics.end_elsewhere(call, method.path, result, executor.now_ns()),
    }
}

/// The time at which futures make calls in their endpoint's turns: the clock is read for one of several calls that
/// follow one another quickly in a turn.
#[derive(Default)]
pub(crate) struct CallClock {
    /// The turn of the last time that was read, and that time.
    turn_ns: AtomicU64,
    now_ns: AtomicU64,
    /// Further calls that have this time.
    left: AtomicU32,
    /// The calls that the last time was for.
    calls: AtomicU32,
}

/// Calls that have one time, at most.
const CALLS_OF_ONE_TIME: u32 = 16;
/// How long each of them may take for that.
const QUICK_NS: u64 = 1_000;

impl CallClock {
    /// The time of a call in this turn. Only the endpoint's thread asks.
    #[inline]
    pub(crate) fn time_of_call(&self, turn_ns: u64, clock: &impl Clock) -> u64 {
        let order = Ordering::Relaxed;
        let left = self.left.load(order);
        if left > 0 && self.turn_ns.load(order) == turn_ns {
            self.left.store(left - 1, order);
            return self.now_ns.load(order);
        }
        self.read(turn_ns, clock.now_ns())
    }

    fn read(&self, turn_ns: u64, now_ns: u64) -> u64 {
        let order = Ordering::Relaxed;
        let (before_ns, calls) = match self.turn_ns.load(order) == turn_ns {
            true => (self.now_ns.load(order), self.calls.load(order)),
            false => (turn_ns, CALLS_OF_ONE_TIME),
        };
        let took_ns = now_ns.saturating_sub(before_ns);
        let next = match took_ns <= u64::from(calls) * QUICK_NS {
            true => CALLS_OF_ONE_TIME,
            false => 1,
        };
        self.turn_ns.store(turn_ns, order);
        self.now_ns.store(now_ns, order);
        self.calls.store(next, order);
        self.left.store(next - 1, order);
        now_ns
    }
}

/// A call that is being measured, if it is. If this is dropped before the call has a result, it was cancelled.
pub(crate) struct LocalMeasure {
    connection: Arc<Connection>,
    executor: Arc<Executor>,
    method: &'static MethodDescriptor,
    call: Option<Measured>,
}

impl LocalMeasure {
    /// The measure of a call that was begun.
    pub(crate) fn new(
        connection: &Arc<Connection>,
        executor: &Arc<Executor>,
        method: &'static MethodDescriptor,
        call: Option<Measured>,
    ) -> Self {
        Self {
            connection: Arc::clone(connection),
            executor: Arc::clone(executor),
            method,
            call,
        }
    }

    /// The call has this result.
    pub(crate) fn end(mut self, result: CallResult) -> CallResult {
        let response = result.as_ref().map(|(message, _)| message.body().len());
        self.record(response.map_err(|status| status.code()));
        result
    }

    fn record(&mut self, result: Result<usize, Code>) {
        if let Some(call) = self.call.take() {
            end_local(&self.connection, &self.executor, self.method, call, result);
        }
    }
}

impl Drop for LocalMeasure {
    fn drop(&mut self) {
        self.record(Err(Code::Cancelled));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Counts how often it is read.
    #[derive(Default)]
    struct Counted {
        now_ns: Cell<u64>,
        reads: Cell<u32>,
    }

    impl Clock for Counted {
        fn now_ns(&self) -> u64 {
            self.reads.set(self.reads.get() + 1);
            self.now_ns.get()
        }
    }

    #[test]
    fn calls_that_follow_quickly_have_one_time_and_others_their_own() {
        let (clock, calls) = (Counted::default(), CallClock::default());
        let call_at = |turn_ns, now_ns| {
            clock.now_ns.set(now_ns);
            calls.time_of_call(turn_ns, &clock)
        };
        // Sixteen calls, and one more that reads the clock again.
        for call in 0..CALLS_OF_ONE_TIME.into() {
            assert_eq!(call_at(1_000, 1_500 + 100 * call), 1_500);
        }
        assert_eq!((call_at(1_000, 3_100), clock.reads.get()), (3_100, 2));
        // A new turn has a time of its own.
        assert_eq!((call_at(4_000, 4_200), clock.reads.get()), (4_200, 3));
        // A future that computes for long has each call's time read.
        for call in 1..5 {
            let now_ns = 1_000_000 * call;
            let _ = call_at(900_000, now_ns);
            assert_eq!(call_at(900_000, now_ns + 500_000), now_ns + 500_000);
        }
    }
}
