//! The measure of a call that a future of an endpoint makes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

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

/// The time at which futures make calls in their endpoint's thread: the clock is read for one of several calls that
/// follow one another quickly in a turn. A future that makes calls quickly and then computes, before it makes others in
/// the same turn, may have up to 15 of those begin too early.
#[derive(Default)]
pub(crate) struct CallClock {
    /// The time that was read last.
    now_ns: AtomicU64,
    /// Further calls that have it.
    left: AtomicU32,
    /// The calls that it is for. 1: calls do not follow quickly.
    calls: AtomicU32,
    /// Whether it is of this turn.
    is_of_turn: AtomicBool,
}

/// Calls that have one time, at most, and at the beginning of a turn.
const CALLS_OF_ONE_TIME: u32 = 16;
const CALLS_AT_FIRST: u32 = 4;
/// How long each of them may take for that.
const QUICK_NS: u64 = 1_000;

impl CallClock {
    /// A turn begins, or the endpoint's owner polls a future. Only the endpoint's thread says so.
    #[inline]
    pub(crate) fn begin_turn(&self) {
        self.left.store(0, Ordering::Relaxed);
        self.is_of_turn.store(false, Ordering::Relaxed);
    }

    /// The time of a call. Only the endpoint's thread asks.
    #[inline]
    pub(crate) fn time_of_call(&self, clock: &impl Clock) -> u64 {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
            return self.now_ns.load(Ordering::Relaxed);
        }
        self.read(clock.now_ns())
    }

    fn read(&self, now_ns: u64) -> u64 {
        let order = Ordering::Relaxed;
        let calls = self.calls.load(order);
        let took_ns = now_ns.saturating_sub(self.now_ns.load(order));
        let next = match self.is_of_turn.load(order) {
            false if calls == 1 => 1,
            false => CALLS_AT_FIRST,
            true if took_ns <= u64::from(calls) * QUICK_NS => CALLS_OF_ONE_TIME.min(2 * calls),
            true => 1,
        };
        self.is_of_turn.store(true, order);
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
        let call_at = |now_ns| {
            clock.now_ns.set(now_ns);
            calls.time_of_call(&clock)
        };
        // Quick calls: the clock is read for the first one, the fifth, and the thirteenth.
        calls.begin_turn();
        let times: Vec<_> = (0..28).map(|call| call_at(1_000 + 100 * call)).collect();
        let expected = [(1_000, 4), (1_400, 8), (2_200, 16)];
        let expected = expected.map(|(time, count)| vec![time; count]).concat();
        assert_eq!((times, clock.reads.get()), (expected, 3));
        // A new turn has a time of its own, however the one before it ended.
        calls.begin_turn();
        assert_eq!(call_at(900_000), 900_000);
        assert_eq!(call_at(900_100), 900_000);
        calls.begin_turn();
        assert_eq!(call_at(900_200), 900_200);
        // A future computes for long: of the calls that are quick before that, three more have their time.
        let times = [(); 3].map(|()| call_at(1_000_000));
        assert_eq!(times, [900_200; 3]);
        for call in 2..6 {
            assert_eq!(call_at(1_000_000 * call), 1_000_000 * call);
        }
        // So do the calls of the turns that follow, until calls are quick again.
        calls.begin_turn();
        for call in 7..9 {
            assert_eq!(call_at(1_000_000 * call), 1_000_000 * call);
        }
        assert_eq!(call_at(8_000_100), 8_000_100);
        assert_eq!(call_at(8_000_200), 8_000_100);
    }
}
