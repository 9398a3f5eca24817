//! Calls that wait for their connection, and calls that are made again because they were never sent.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use starling_endpoint::{Code, Encoding, LocalHandle, MethodId, Msgbuf, Status, unsent_message};
use starling_message::MethodDescriptor;

use crate::call_cell::CallResult;
use crate::connection::Connection;
use crate::executor::Executor;
use crate::message::convert;
use crate::options::CallOptions;

/// Whether a call may be made again if it turns out never to have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// Yes, once.
    First,
    /// No: it was already.
    Last,
}

/// Whether another session may succeed where this one failed.
pub(crate) fn is_retryable(status: &Status) -> bool {
    status.code() == Code::Unavailable
}

/// A call that waits for its connection.
pub(crate) struct WaitingCall {
    pub(crate) method: &'static MethodDescriptor,
    /// In the native layout, after `room` bytes for the call header.
    pub(crate) message: Msgbuf,
    pub(crate) room: usize,
    pub(crate) options: CallOptions,
    pub(crate) attempt: Attempt,
}

impl WaitingCall {
    /// The last attempt of a call that was never sent. `options` are those of the first attempt, by
    /// which `message` has its room. `timeout` is the time that is left.
    pub(crate) fn last_attempt(
        method: &'static MethodDescriptor,
        message: Msgbuf,
        options: CallOptions,
        timeout: Option<Duration>,
    ) -> Self {
        let room = options
            .lower(Encoding::Native, options.timeout)
            .header_len();
        Self {
            method,
            message,
            room,
            options: CallOptions { timeout, ..options },
            attempt: Attempt::Last,
        }
    }
}

/// Makes a call when the connection is ready for it. If the session ends before the call was sent,
/// makes the call again, once, within its timeout.
pub(crate) async fn call_when_ready(
    connection: &Arc<Connection>,
    executor: &Arc<Executor>,
    call: WaitingCall,
) -> CallResult {
    let WaitingCall {
        method,
        mut message,
        mut room,
        options,
        mut attempt,
    } = call;
    let begun_ns = executor.now_ns();
    let left = || {
        options.timeout.map(|timeout| {
            let passed = Duration::from_nanos(executor.now_ns().saturating_sub(begun_ns));
            timeout.saturating_sub(passed)
        })
    };
    loop {
        let ready = connection.prepare(method, options.waits_for_ready());
        let ready = within(&executor.local, left(), connection, ready).await;
        // Whatever failed, it was not this call: not even the call that asks for the schema.
        let (session, encoding) = ready.map_err(Status::with_not_run)?;
        let lowered = options.lower(encoding, left());
        // The next session may take the native layout where this one takes protobuf.
        let mut original = None;
        let ready_message = match encoding {
            Encoding::Protobuf => {
                if attempt == Attempt::First {
                    original = Some((message.clone(), room));
                }
                convert(method.request, message, room, lowered.header_len())
                    .map_err(Status::with_not_run)?
            }
            Encoding::Native if room == lowered.header_len() => message,
            Encoding::Native => {
                let (mut head, tail) = message.into_parts();
                head.splice(..room, std::iter::repeat_n(0, lowered.header_len()));
                Msgbuf::from_parts(head, tail)
            }
        };
        let id = MethodId(method.id);
        let call = (executor.local).call_message(session, id, &lowered, ready_message);
        let mut status = match call.await {
            Ok(response) => return Ok((response, encoding)),
            Err(status) => status,
        };
        connection.suspect(status.code());
        match unsent_message(&mut status) {
            Some(unsent) if attempt == Attempt::First && is_retryable(&status) => {
                (message, room) = original.unwrap_or((unsent, lowered.header_len()));
                attempt = Attempt::Last;
            }
            _ => return Err(status),
        }
    }
}

/// Waits for `future`, at most `timeout`.
async fn within<T>(
    local: &LocalHandle,
    timeout: Option<Duration>,
    connection: &Connection,
    future: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let Some(timeout) = timeout else {
        return future.await;
    };
    let (mut future, mut over) = (pin!(future), pin!(local.sleep(timeout)));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(result) = future.as_mut().poll(cx) {
            return Poll::Ready(result);
        }
        over.as_mut().poll(cx).map(|()| {
            Err(Status::deadline_exceeded(format!(
                "{} could not be reached in time; the call did not run",
                connection.address()
            )))
        })
    })
    .await
}
