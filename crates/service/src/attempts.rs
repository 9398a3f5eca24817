//! What a call has that a policy may make again when it fails.

use std::time::Duration;

use starling::PREVIOUS_ATTEMPTS_KEY;
use starling_endpoint::{CallOptions, Status};
use starling_io::PeerId;
use starling_policy::Retry;

use crate::datapath::PolicyId;
use crate::forwarded::ForwardedRequest;
use crate::link::Arrived;

/// The longest body of a request that is kept. Calls with longer ones are made once.
const MAX_KEPT: usize = 256 << 10;

/// The attempts of one call. The last of the policies that it has passed makes it again that makes calls again.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    pub(crate) by: PolicyId,
    /// The scope in which it is made again.
    pub(crate) scope_id: u32,
    /// Policies that it has passed, up to that one: those behind see each attempt.
    pub(crate) passed: usize,
    pub(crate) retry: Retry,
    /// There is none after this one.
    pub(crate) is_last: bool,
    /// Whether one that has ended may have run.
    pub(crate) may_have_run: bool,
    /// When this one began.
    pub(crate) began_ns: u64,
    pub(crate) deadline_ns: Option<u64>,
    /// Those with which each attempt begins.
    options: CallOptions,
    /// The request, while a server has it.
    kept: Option<(PeerId, ForwardedRequest)>,
    /// Whether the application's quota has room for it.
    is_charged: bool,
}

impl Attempts {
    /// The request that was kept, and whose it was.
    pub(crate) fn take_kept(&mut self) -> Option<(PeerId, ForwardedRequest)> {
        self.kept.take()
    }

    /// The status with which the call ends: that its last attempt did not run says nothing of those before it.
    pub(crate) fn end_with(&self, status: Status) -> Status {
        if !self.may_have_run || status.may_have_run() {
            return status;
        }
        let text = format!("{}; an earlier attempt may have run", status.message());
        status.with_message(text).with_run()
    }

    /// Gives a request the options of another attempt, which begins at a time. It says how many came before it.
    fn renew(&mut self, request: &mut ForwardedRequest, now_ns: u64, at_ns: u64) {
        self.began_ns = at_ns;
        let metadata = &mut self.options.metadata;
        // Its caller may make it again, too.
        let value = metadata.value(PREVIOUS_ATTEMPTS_KEY);
        let text = value.and_then(|value| std::str::from_utf8(value).ok());
        let before = text.and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
        // Without room for it, the server does not learn the number.
        let _ = metadata.set(PREVIOUS_ATTEMPTS_KEY, before.saturating_add(1).to_string());
        let left = |deadline_ns: u64| Duration::from_nanos(deadline_ns.saturating_sub(now_ns));
        self.options.timeout = self.deadline_ns.map(left);
        request.options.clone_from(&self.options);
    }
}

impl Arrived {
    /// A policy has let the request pass that makes calls again. What begins a stream, or goes on with one, is not.
    pub(crate) fn begin_attempts(&mut self, by: PolicyId, scope_id: u32, now_ns: u64) {
        let options = &self.request.options;
        if options.stream.is_some() || self.request.body().len() > MAX_KEPT {
            return;
        }
        let in_ns = |timeout: Duration| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let deadline_ns = options
            .timeout
            .map(|timeout| now_ns.saturating_add(in_ns(timeout)));
        let (passed, options) = (self.passed.count(), options.clone());
        let attempts = self.passed.attempts.get_or_insert_default();
        attempts.by = by;
        attempts.scope_id = scope_id;
        attempts.passed = passed;
        attempts.is_last = false;
        attempts.began_ns = now_ns;
        attempts.deadline_ns = deadline_ns;
        attempts.options = options;
    }

    /// Keeps the request, which is handed on, if there may be another attempt and its application's quota has room.
    pub(crate) fn keep(&mut self) {
        let Some(attempts) = &mut self.passed.attempts else {
            return;
        };
        if attempts.is_last {
            return;
        }
        if !attempts.is_charged
            && let Some(charge) = &mut self.charge
            && !charge.grow(self.request.bytes())
        {
            return;
        }
        attempts.is_charged = true;
        attempts.kept = Some((self.peer, self.request.copy()));
    }

    /// Makes it the next attempt, which begins at a time: the policies behind the one that makes it have not seen it.
    pub(crate) fn renew(&mut self, now_ns: u64, at_ns: u64) {
        if let Some(attempts) = &mut self.passed.attempts {
            attempts.renew(&mut self.request, now_ns, at_ns);
            let passed = attempts.passed;
            self.passed.rewind(passed);
        }
    }
}
