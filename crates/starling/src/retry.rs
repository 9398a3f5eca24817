//! Calls that wait for their connection, and calls that are made again because they were never sent.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use starling_endpoint::{Code, Encoding, LocalHandle, Status, unsent_message};

use crate::connection::Connection;
use crate::executor::Executor;
use crate::message::{convert, convert_items};
use crate::plane::{CallResult, OutgoingCall};

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

/// Makes a call when the connection is ready for it. If the session ends before the call was sent,
/// makes the call again, once, within its deadline.
pub(crate) async fn call_when_ready(
    connection: &Arc<Connection>,
    executor: &Arc<Executor>,
    call: OutgoingCall,
    mut attempt: Attempt,
) -> CallResult {
    let OutgoingCall {
        mut message,
        types,
        wait_for_ready,
    } = call;
    loop {
        let ready = connection.prepare(types, wait_for_ready);
        let ready = within(
            &executor.local,
            message.remaining(|| executor.time.now()),
            connection,
            ready,
        )
        .await;
        // Whatever failed, it was not this call: not even the call that asks for the schema.
        let (session, encoding) = ready.map_err(Status::with_not_run)?;
        let mut options = message.header_options(|| executor.time.now());
        options.encoding = encoding;
        // The next session may take the native layout where this one takes protobuf.
        let mut original = None;
        let payload = std::mem::take(&mut message.payload);
        let ready_payload = match types {
            Some(types) if encoding == Encoding::Protobuf => {
                if attempt == Attempt::First {
                    original = Some(payload.clone());
                }
                let (from, to) = (message.headroom, options.header_len());
                let convert = match message.stream {
                    None => convert,
                    Some(_) => convert_items,
                };
                convert(types.request, payload, from, to).map_err(Status::with_not_run)?
            }
            _ if message.headroom == options.header_len() => payload,
            _ => {
                let mut payload = payload;
                payload.set_headroom(message.headroom, options.header_len());
                message.headroom = options.header_len();
                payload
            }
        };
        let method = message.method;
        let call = (executor.local).call_message(session, method, &options, ready_payload);
        let mut status = match call.await {
            Ok(response) => return Ok((response, encoding)),
            Err(status) => status,
        };
        connection.suspect(status.code());
        match unsent_message(&mut status) {
            Some(unsent) if attempt == Attempt::First && is_retryable(&status) => {
                message.payload = original.unwrap_or(unsent);
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
