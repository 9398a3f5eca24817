//! The policies that a call has to pass, and which of them it has passed.

use std::sync::Arc;

use starling_endpoint::Status;
use starling_policy::Datapath;

use crate::attempts::Attempts;

/// One policy, in all runtimes. A place is used again, an id is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PolicyId {
    pub(crate) place: u32,
    pub(crate) id: u32,
}

/// A policy that calls have to pass, and whose they are to it: their caller's, or their server's.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) policy: PolicyId,
    pub(crate) datapath: Arc<Datapath>,
}

/// The policies of a route, in the order in which requests pass them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chain {
    pub(crate) steps: Arc<[Step]>,
    /// Whether one of them has to know of a call after it has let it pass. If none has, calls do not remember them.
    pub(crate) is_remembered: bool,
}

/// The policies that a call has passed, which hear of its end. None for most calls.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    /// Whether it has begun to pass any.
    is_begun: bool,
    chain: Option<Chain>,
    count: usize,
    /// Which call it is, to them.
    pub(crate) call: u64,
    /// When it came here.
    pub(crate) since_ns: u64,
    /// Bytes of its messages.
    pub(crate) request_bytes: usize,
    pub(crate) response_bytes: Option<usize>,
    /// If one of them makes it again when it fails.
    pub(crate) attempts: Option<Box<Attempts>>,
}

impl Passed {
    /// A call begins to pass policies.
    pub(crate) fn begin(&mut self, call: u64, since_ns: u64, request_bytes: usize) {
        self.is_begun = true;
        self.call = call;
        self.since_ns = since_ns;
        self.request_bytes = request_bytes;
    }

    /// Remembers of which policies it is that it has passed some.
    pub(crate) fn remember(&mut self, chain: &Chain) {
        self.chain = Some(chain.clone());
    }

    /// The call has a response of so many bytes.
    pub(crate) fn set_response(&mut self, bytes: usize) {
        self.response_bytes = Some(bytes);
    }

    /// Whether none has to know of it.
    pub(crate) fn is_empty(&self) -> bool {
        self.chain.is_none() || self.count == 0
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// The policies of which it has passed some.
    pub(crate) fn chain(&self) -> Option<Chain> {
        self.chain.clone()
    }

    /// The next one is passed.
    pub(crate) fn advance(&mut self) {
        self.count += 1;
    }

    /// The last one that was passed is asked again.
    pub(crate) fn step_back(&mut self) {
        self.count = self.count.saturating_sub(1);
    }

    /// How many are passed.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Only the first ones of them are passed: another attempt passes the others again.
    pub(crate) fn rewind(&mut self, count: usize) {
        self.count = self.count.min(count);
    }

    /// The status with which the call ends, if this is how its last attempt did.
    pub(crate) fn end_with(&self, status: Status) -> Status {
        match &self.attempts {
            Some(attempts) => attempts.end_with(status),
            None => status,
        }
    }

    /// Whether an attempt before this one may have run.
    pub(crate) fn may_have_run(&self) -> bool {
        (self.attempts.as_ref()).is_some_and(|attempts| attempts.may_have_run)
    }

    /// Those that are passed beyond the first ones, the last one first, and when the call came to each: those that see
    /// each attempt have not seen the one before.
    pub(crate) fn reversed(&self, beyond: usize) -> impl Iterator<Item = (&Step, u64)> {
        let chain = self.chain.as_ref().map_or(&[][..], |chain| &chain.steps);
        let came = |place: usize| match &self.attempts {
            Some(attempts) if place >= attempts.passed => attempts.began_ns,
            _ => self.since_ns,
        };
        let passed = chain.iter().take(self.count).enumerate().skip(beyond);
        passed.rev().map(move |(place, step)| (step, came(place)))
    }
}
