//! Interceptors of channels: single calls.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Instant;

use starling_endpoint::{CallDescriptor, CallNumber, Encoding, SessionId, Status, unsent_message};
use starling_message::MethodDescriptor;

use super::call::Method;
use super::timer::{Alarm, Timer};
use super::{
    BoxFuture, Callee, InterceptedCall, InterceptedResponse, Interceptors, Outcome, Side,
    body::Body,
};
use crate::channel_call::RawCall;
use crate::coding::{CallCoding, open_response};
use crate::connection::Connection;
use crate::executor::Executor;
use crate::plane::{CallResult, OutgoingCall};
use crate::retry::{Attempt, call_here, is_retryable};
use crate::streaming::Route;

impl Route {
    /// Makes a single call.
    async fn call(&self, mut call: OutgoingCall, coding: Option<&CallCoding>) -> CallResult {
        match self {
            Self::Channel(shared, _) => {
                let mut raw = RawCall::direct(shared, call, coding);
                poll_fn(|cx| raw.poll(cx)).await
            }
            Self::Local(connection, executor) => {
                let bound = CallCoding::seal(coding, &mut call.message, true)?;
                let ready = call
                    .types
                    .and_then(|types| connection.ready(types.id, false));
                let result = match ready {
                    Some((session, Encoding::Native)) if connection.takes(&call) => {
                        call_now(connection, executor, session, call).await
                    }
                    _ => later(connection, executor, call, Attempt::First).await,
                };
                open_response(result, bound)
            }
        }
    }

    pub(super) fn timer(&self) -> Timer {
        match self {
            Self::Channel(shared, _) => Timer::Channel(Arc::clone(shared)),
            Self::Local(_, executor) => Timer::Endpoint(Arc::clone(executor)),
        }
    }
}

/// Makes a call in the thread of an endpoint whose connection is ready.
async fn call_now(
    connection: &Arc<Connection>,
    executor: &Arc<Executor>,
    session: SessionId,
    mut call: OutgoingCall,
) -> CallResult {
    let options = call.message.header_options(|| executor.time.now());
    let payload = std::mem::take(&mut call.message.payload);
    let made = executor
        .local
        .call_message(session, call.message.method, &options, payload);
    let mut status = match made.await {
        Ok(response) => return Ok((response, Encoding::Native)),
        Err(status) => status,
    };
    connection.suspect(status.code());
    match unsent_message(&mut status) {
        Some(unsent) if is_retryable(&status) => {
            call.message.payload = unsent;
            later(connection, executor, call, Attempt::Last).await
        }
        _ => Err(status),
    }
}

/// Boxed, because it is large and rare.
fn later<'a>(
    connection: &'a Arc<Connection>,
    executor: &'a Arc<Executor>,
    call: OutgoingCall,
    attempt: Attempt,
) -> BoxFuture<'a, CallResult> {
    Box::pin(call_here(connection, executor, call, attempt))
}

/// What stands behind a channel's interceptors.
struct Behind {
    route: Route,
    types: Option<&'static MethodDescriptor>,
    wait_for_ready: bool,
    /// What interceptors do not see.
    template: CallDescriptor,
    coding: Option<CallCoding>,
    /// Calls that were handed on, but for those that have not run.
    runs: AtomicUsize,
    /// Calls that were handed on and have not ended.
    running: AtomicUsize,
}

impl Behind {
    /// The call that leaves.
    fn outgoing(&self, call: InterceptedCall) -> Result<OutgoingCall, Status> {
        let mut message = CallDescriptor {
            call: CallNumber::next(),
            deadline: earlier(call.deadline, self.template.deadline),
            metadata: call.metadata,
            ..self.template.clone()
        };
        message.headroom = message.header_len();
        if let Some(body) = call.body {
            body.check(self.types.map(|method| method.request))?;
            message.payload = body.into_buffer(message.encoding, message.headroom)?;
        }
        let mut call = OutgoingCall::new(message, self.types, self.wait_for_ready);
        call.counted_by_caller = true;
        Ok(call)
    }

    async fn run(&self, call: InterceptedCall) -> Outcome {
        let call = self.outgoing(call).map_err(Status::with_not_run)?;
        self.runs.fetch_add(1, Ordering::Relaxed);
        let running = CountOne::of(&self.running);
        let result = self.route.call(call, self.coding.as_ref()).await;
        drop(running);
        if result.as_ref().is_err_and(|status| !status.may_have_run()) {
            self.runs.fetch_sub(1, Ordering::Relaxed);
        }
        let (message, encoding) = result?;
        Ok(InterceptedResponse {
            method: self.types,
            metadata: message.to_metadata(),
            body: Some(Body::received(message, encoding).within(|| self.route.decode_limits())),
        })
    }

    /// The end of a call that an interceptor holds beyond its deadline. None: it ends by itself then.
    fn late(&self) -> Option<Status> {
        if self.running.load(Ordering::Relaxed) > 0 {
            return None;
        }
        Some(late("the call"))
    }

    /// A status of the interceptors, which says whether anything has run.
    #[cold]
    fn ended(&self, status: Status) -> Status {
        match self.runs.load(Ordering::Relaxed) {
            0 => status.with_not_run(),
            _ => status.with_run(),
        }
    }
}

/// Counts while it lives.
struct CountOne<'a>(&'a AtomicUsize);

impl<'a> CountOne<'a> {
    fn of(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for CountOne<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A client's calls do not last beyond the deadline that the caller has set.
pub(super) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

#[cold]
pub(super) fn late(what: &str) -> Status {
    Status::deadline_exceeded(format!(
        "the deadline passed while an interceptor of the channel worked on {what}"
    ))
}

/// The output of `chain`, or `late` if it is Some after the deadline.
pub(super) async fn within_deadline(
    chain: impl Future<Output = Outcome>,
    timer: &Timer,
    deadline: Option<Instant>,
    late: impl Fn() -> Option<Status>,
) -> Outcome {
    let (mut chain, mut alarm) = (pin!(chain), Alarm::default());
    poll_fn(|cx| {
        if let Poll::Ready(result) = chain.as_mut().poll(cx) {
            return Poll::Ready(result);
        }
        // A call that is under way has its own alarm.
        match late() {
            Some(status) if alarm.poll(timer, deadline, cx).is_ready() => Poll::Ready(Err(status)),
            _ => Poll::Pending,
        }
    })
    .await
}

impl Callee for Behind {
    fn run(&self, call: InterceptedCall) -> BoxFuture<'_, Outcome> {
        Box::pin(self.run(call))
    }
}

/// Makes a call through interceptors.
pub(crate) fn call_through(
    interceptors: &Interceptors,
    route: Route,
    outgoing: OutgoingCall,
    coding: Option<CallCoding>,
) -> BoxFuture<'static, CallResult> {
    let OutgoingCall {
        mut message,
        types,
        wait_for_ready,
        ..
    } = outgoing;
    let payload = std::mem::take(&mut message.payload);
    let timer = route.timer();
    let call = InterceptedCall {
        side: Side::Client,
        timer: timer.clone(),
        method: Method {
            path: message.path.clone(),
            descriptor: types,
        },
        metadata: std::mem::take(&mut message.metadata),
        deadline: message.deadline,
        peer: None,
        body: Some(Body::new(payload, message.headroom, message.encoding)),
        hooks: None,
    };
    let behind = Behind {
        route,
        types,
        wait_for_ready,
        template: message,
        coding,
        runs: AtomicUsize::new(0),
        running: AtomicUsize::new(0),
    };
    let interceptors = interceptors.clone();
    Box::pin(async move {
        let deadline = call.deadline;
        let chain = interceptors.run(call, &behind);
        let response = within_deadline(chain, &timer, deadline, || behind.late());
        let response = response.await.and_then(|it| it.into_message(types));
        response.map_err(|status| behind.ended(status))
    })
}
