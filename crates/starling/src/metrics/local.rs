//! The measure of a call that a future of an endpoint makes.

use std::sync::Arc;

use starling_endpoint::Code;
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
    let at = match runs_endpoint(executor) {
        true => Place::Endpoint,
        false => Place::Elsewhere,
    };
    metrics.begin_call(method.id, method.path, bytes, at, executor.now_ns())
}

/// A call of a connection with metrics ends, with the bytes of its response or with a code.
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
    // In the endpoint's thread the response came in this turn.
    let (at, now_ns) = match runs_endpoint(executor) {
        true => (Place::Endpoint, executor.local.turn_ns()),
        false => (Place::Elsewhere, executor.now_ns()),
    };
    metrics.end_call(call, method.path, result, at, now_ns);
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
