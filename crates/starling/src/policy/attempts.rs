//! Calls that are made once, and calls that are made again when they fail.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use starling_balance::{Failure, Retry, RetryPolicy};
use starling_endpoint::Status;

use super::buffer::Kept;
use super::throttle_of;
use crate::balancing::random;
use crate::channel_call::{DeadlineTimer, RawCall, Shared};
use crate::plane::{CallResult, Operation};

/// The status of a call of which an attempt may have run, if one may have: that the last one did not says nothing
/// of those before it.
pub(crate) fn with_attempts(status: Status, may_have_run: bool) -> Status {
    if !may_have_run {
        return status;
    }
    if status.may_have_run() {
        return status.with_run();
    }
    let text = format!("{}; but another attempt may have run", status.message());
    status.with_run().with_message(text)
}

/// A call that is made once, of a channel whose calls are counted.
pub(super) async fn once(shared: Arc<Shared>, mut call: RawCall) -> CallResult {
    let response = poll_fn(|cx| call.poll(cx)).await?;
    if let Some(throttle) = throttle_of(&shared) {
        throttle.record_success();
    }
    Ok(response)
}

/// A call that is made again when it fails.
pub(super) async fn retry(
    shared: Arc<Shared>,
    mut call: RawCall,
    kept: Option<Kept>,
    policy: RetryPolicy,
) -> CallResult {
    let (mut retry, mut may_have_run) = (Retry::default(), false);
    loop {
        let status = match poll_fn(|cx| call.poll(cx)).await {
            Ok(response) => {
                if let Some(throttle) = throttle_of(&shared) {
                    throttle.record_success();
                }
                return Ok(response);
            }
            Err(status) => status,
        };
        may_have_run |= status.may_have_run();
        let status = with_attempts(status, may_have_run);
        let throttle = throttle_of(&shared);
        let failure = Failure::of(&status);
        let pause_ns = retry.handle_failure(&policy, failure, throttle, &mut random());
        let (Some(pause_ns), Some(kept)) = (pause_ns, &kept) else {
            return Err(status);
        };
        let Some(until) = shared.time.after(Some(Duration::from_nanos(pause_ns))) else {
            return Err(status);
        };
        // What failed says more than that there was no time for another attempt.
        if kept
            .call()
            .message
            .deadline
            .is_some_and(|deadline| until >= deadline)
        {
            return Err(status);
        }
        let mut timer = DeadlineTimer::default();
        poll_fn(|cx| timer.poll(Some(until), &shared, cx)).await;
        let avoid = vec![call.backend()];
        let again = kept.again(retry.failed(), avoid);
        // Nor does it count that the channel has no room for it.
        call = match RawCall::again(&shared, Operation::Call(again)) {
            Some(call) => call,
            None => return Err(status),
        };
    }
}
