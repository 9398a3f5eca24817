//! Streams that begin again, by the retry policy of their channel (gRPC A6).
//!
//! A client sends the first request of a stream, and nothing else until it has a response (PROTOCOL.md 9.5). While
//! there is none but a failure, a stream is begun again with that request, under another id. What is kept is one
//! request, whatever the stream sends later.
//!
//! A server answers the first request at once if its client sends on: a message and then the end are two requests. So
//! it is streams of responses that begin again after a failure of their handler; streams of requests, mostly, do so
//! only if the server could not take them.

use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use starling_balance::{Attempts, Failure, PUSHBACK_KEY, Pushback, Retry, RetryPolicy};
use starling_endpoint::{CallNumber, Status, StreamFlags};
use starling_message::MethodDescriptor;

use super::ClientEnd;
use crate::balancing::random;
use crate::channel_call::Shared;
use crate::driver::DeadlineWaker;
use crate::plane::{CallResult, OutgoingCall};
use crate::policy::{CallPolicy, Kept, with_attempts};

/// The first request of a stream that may begin again.
pub(super) struct FirstRequest {
    policy: RetryPolicy,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// None before it is sent, and when the stream cannot begin again any more.
    kept: Option<Kept>,
    retry: Retry,
    /// The call that has it now. Not a handle: that has the stream, which has this.
    call: Option<CallNumber>,
    /// The stream may have run where it began first.
    may_have_run: bool,
    /// While the stream waits to begin again.
    timer: Option<Arc<DeadlineWaker>>,
}

impl FirstRequest {
    /// None: a stream of this method begins once.
    ///
    /// # Errors
    /// UNIMPLEMENTED: the service config wants it to be hedged, and streams are not.
    pub(super) fn of(
        policy: Option<&CallPolicy>,
        method: &'static MethodDescriptor,
    ) -> Result<Option<Self>, Status> {
        let attempts = policy.map(|policy| policy.attempts_of(method.path, Some(method)));
        match attempts.unwrap_or(&Attempts::Once) {
            Attempts::Once => Ok(None),
            Attempts::Retry(policy) => Ok(Some(Self {
                policy: policy.clone(),
                state: Mutex::default(),
            })),
            Attempts::Hedge(_) => Err(Status::unimplemented(format!(
                "the service config has a hedgingPolicy for {}, and streams are not hedged: give the method an \
                 entry of its own; the call was not made",
                method.path
            ))
            .with_not_run()),
        }
    }

    /// Keeps the request that begins the stream.
    pub(super) fn keep(&self, shared: &Shared, call: &OutgoingCall) {
        let policy = shared.policy.as_ref();
        let mut state = self.state.lock();
        state.kept = policy.and_then(|policy| policy.keep(call));
        state.call = Some(call.message.call);
    }

    /// Takes in the end of one of the stream's calls. If the stream begins again, returns when.
    pub(super) fn handle_end(
        &self,
        shared: &Shared,
        call: CallNumber,
        result: &CallResult,
    ) -> Option<Instant> {
        let mut state = self.state.lock();
        let State {
            kept,
            retry,
            call: own,
            may_have_run,
            ..
        } = &mut *state;
        own.take_if(|own| *own == call)?;
        let throttle = shared.policy.as_ref().and_then(|policy| policy.throttle());
        let Some(failure) = failure_to_begin(result) else {
            if let Some(throttle) = throttle {
                throttle.record_success();
            }
            *kept = None;
            return None;
        };
        let deadline = kept.as_ref().and_then(|kept| kept.call().message.deadline);
        let pause_ns = retry.handle_failure(&self.policy, failure, throttle, &mut random());
        let until = pause_ns
            .filter(|_| kept.is_some())
            .and_then(|ns| shared.time.after(Some(Duration::from_nanos(ns))))
            .filter(|until| deadline.is_none_or(|deadline| *until < deadline));
        match until {
            Some(_) => *may_have_run |= result.as_ref().err().is_none_or(Status::may_have_run),
            None => *kept = None,
        }
        until
    }

    /// The status of the stream: that it did not run the last time says nothing of those before.
    pub(super) fn with_attempts(&self, status: Status) -> Status {
        with_attempts(status, self.state.lock().may_have_run)
    }

    /// What begins the stream again when its time has come.
    pub(super) fn timer(&self, end: Weak<ClientEnd>) -> Arc<DeadlineWaker> {
        let timer = Arc::new(DeadlineWaker::default());
        timer.register(&Waker::from(Arc::new(Alarm(end))));
        self.state.lock().timer = Some(Arc::clone(&timer));
        timer
    }

    /// The request once more, for a stream with this id.
    pub(super) fn again(&self, id: u64) -> Option<OutgoingCall> {
        let mut state = self.state.lock();
        let State {
            kept, retry, call, ..
        } = &mut *state;
        let mut again = kept.as_ref()?.again(retry.failed(), Vec::new());
        if let Some(position) = &mut again.message.stream {
            position.id = id;
        }
        *call = Some(again.message.call);
        Some(again)
    }

    /// The stream is over.
    pub(super) fn cancel(&self) {
        let mut state = self.state.lock();
        state.kept = None;
        let timer = state.timer.take();
        drop(state);
        if let Some(timer) = timer {
            timer.cancel();
        }
    }
}

/// How a stream failed before anything of it came. None: it did not.
fn failure_to_begin(result: &CallResult) -> Option<Failure> {
    let (message, _) = match result {
        Ok(response) => response,
        Err(status) => return Some(Failure::of(status)),
    };
    let position = message.stream()?;
    let status = message.stream_status()?;
    let is_end = position.flags.has(StreamFlags::END) && position.number == 0;
    (is_end && message.body().is_empty()).then(|| Failure {
        code: status.code(),
        pushback: Pushback::parse(message.metadata().value(PUSHBACK_KEY)),
    })
}

/// Begins a stream again.
struct Alarm(Weak<ClientEnd>);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        if let Some(end) = self.0.upgrade() {
            end.begin_again();
        }
    }
}
