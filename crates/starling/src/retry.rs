//! Calls that wait for their connection, and calls that are made again because they did not run.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use starling_compress::AlgorithmSet;
use starling_endpoint::{
    Code, Encoding, LocalHandle, OwnedMessage, SessionId, Status, StreamFlags, unsent_message,
};
use starling_message::MethodDescriptor;

use crate::call_cell::CallCell;
use crate::coding::{Fitted, fit, packed_by};
use crate::connection::{Connection, Patience};
use crate::executor::Executor;
use crate::plane::{CallResult, OutgoingCall, Reply};
use crate::streaming::ClientEnd;

/// Whether a call may be made again if it turns out never to have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// Yes, once.
    First,
    /// No: it was already.
    Last,
    /// No: another server makes it.
    Elsewhere,
}

impl Attempt {
    /// The first one in this channel.
    pub(crate) fn first(reply: &Reply) -> Self {
        match reply.may_go_elsewhere() {
            true => Self::Elsewhere,
            false => Self::First,
        }
    }
}

/// A call that failed.
pub(crate) struct Failed {
    pub(crate) status: Status,
    /// If it did not run, what it takes to make it at another server.
    pub(crate) unsent: Option<Box<OutgoingCall>>,
}

impl From<Status> for Failed {
    fn from(status: Status) -> Self {
        let unsent = None;
        Self { status, unsent }
    }
}

/// How a call ended, or failed.
pub(crate) type Made = Result<(OwnedMessage, Encoding), Failed>;

/// Whether another session may succeed where this one failed.
pub(crate) fn is_retryable(status: &Status) -> bool {
    status.code() == Code::Unavailable
}

/// Makes a call that no other server can make, when the connection is ready for it.
pub(crate) async fn call_here(
    connection: &Arc<Connection>,
    executor: &Arc<Executor>,
    call: OutgoingCall,
    attempt: Attempt,
) -> CallResult {
    let made = call_when_ready(connection, executor, call, attempt, None).await;
    made.map_err(|failed| failed.status)
}

/// Makes the call of a cell, as [`call_when_ready`] does.
pub(crate) async fn call_of(
    cell: &CallCell,
    connection: &Arc<Connection>,
    executor: &Arc<Executor>,
    call: OutgoingCall,
    attempt: Attempt,
) -> Made {
    call_when_ready(connection, executor, call, attempt, cell.opened_stream()).await
}

/// Makes a call when the connection is ready for it, and has a slot for the stream that begins with it. If the session
/// ends before the call was sent, makes the call again, once, within its deadline.
async fn call_when_ready(
    connection: &Arc<Connection>,
    executor: &Arc<Executor>,
    call: OutgoingCall,
    mut attempt: Attempt,
    stream: Option<&ClientEnd>,
) -> Made {
    let mut call = call;
    let mut accepts_unknown = true;
    let continues = (call.message.stream).is_some_and(|position| position.number != 0);
    // A session to come knows nothing of the stream that is given up.
    let gives_up = (call.message.stream).is_some_and(|it| it.flags.has(StreamFlags::CANCEL));
    let patience = match attempt {
        Attempt::Elsewhere => Patience::None,
        Attempt::First | Attempt::Last if gives_up => Patience::None,
        Attempt::First | Attempt::Last => Patience::of(call.wait_for_ready),
    };
    loop {
        let now = || executor.time.now();
        let ready = prepare(connection, call.types, patience, (continues, stream));
        let left = call.message.remaining(now);
        let ready = within(&executor.local, left, connection, ready).await;
        // Whatever failed, it was not this call: not even the call that asks for the schema.
        let (session, encoding) = match ready {
            Ok(ready) => ready,
            Err(status) => {
                // Another server's connection may have a slot for the stream.
                let lacks_slot = stream.is_some() && status.code() == Code::ResourceExhausted;
                let goes_elsewhere = is_retryable(&status) || lacks_slot;
                let may_go = goes_elsewhere && attempt == Attempt::Elsewhere;
                let unsent = may_go.then(|| Box::new(call));
                let status = status.with_not_run();
                return Err(Failed { status, unsent });
            }
        };
        let known = connection.accepts();
        let accepts = match known {
            Some(accepts) => accepts,
            None if accepts_unknown => AlgorithmSet::AVAILABLE,
            None => AlgorithmSet::NONE,
        };
        let payload = std::mem::take(&mut call.message.payload);
        // A server that has not said what it has may refuse what is packed.
        let is_guess = known.is_none() && accepts_unknown && packed_by(&call.message).is_some();
        let kept = is_guess.then(|| payload.clone());
        let fitted = fit(&mut call, payload, (encoding, accepts), now);
        let Fitted {
            options,
            payload,
            original,
        } = fitted.map_err(Status::with_not_run)?;
        let method = call.message.method;
        let made = (executor.local).call_message(session, method, &options, payload);
        let mut status = match made.await {
            Ok(response) => return Ok((response, encoding)),
            Err(status) => status,
        };
        if let Some(kept) = kept
            && is_refusal_of_packed(&status)
        {
            call.message.payload = kept;
            accepts_unknown = false;
            continue;
        }
        connection.suspect(status.code());
        match unsent_message(&mut status) {
            Some(unsent) if attempt != Attempt::Last && is_retryable(&status) => {
                // The next session may take it in its own form.
                call.message.payload = original.unwrap_or(unsent);
                if attempt == Attempt::Elsewhere {
                    let unsent = Some(Box::new(call));
                    return Err(Failed { status, unsent });
                }
                attempt = Attempt::Last;
            }
            _ => return Err(status.into()),
        }
    }
}

/// Waits until the connection is ready for a call, and has a slot for the stream that begins with it.
async fn prepare(
    connection: &Arc<Connection>,
    method: Option<&'static MethodDescriptor>,
    patience: Patience,
    (continues, stream): (bool, Option<&ClientEnd>),
) -> Result<(SessionId, Encoding), Status> {
    loop {
        let (session, encoding) = connection.prepare(method, patience, continues).await?;
        match stream {
            Some(stream) if !connection.admit(session, stream).await? => {}
            _ => return Ok((session, encoding)),
        }
    }
}

/// Whether a server may have refused a request because it is packed: one that lacks the algorithm, or one of an
/// earlier version, which does not know that field of the call header.
fn is_refusal_of_packed(status: &Status) -> bool {
    let says_so = matches!(status.code(), Code::Unimplemented | Code::InvalidArgument);
    says_so && !status.may_have_run()
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
