//! What an engine sees of calls, and what it may do.

use starling_balance::Retry;
use starling_call::{CallOptions, Code, MethodId, Status};

use crate::datapath::Datapath;
use crate::recorded::{Series, Span};
use crate::saved::{RestoreError, Saved, SavedReader};
use crate::schema::{PolicyMessage, PolicyMethod};

/// A request on its way to the server.
#[derive(Debug)]
pub struct PolicyRequest<'a> {
    /// The time, in nanoseconds of the service's clock.
    pub now_ns: u64,
    /// Which call it is: its end has the same number.
    pub call: u64,
    /// The method.
    pub method: MethodId,
    /// Whose call it is.
    pub datapath: &'a Datapath,
    /// The deadline, metadata and so on. An engine may change them.
    pub options: &'a mut CallOptions,
    /// The body as it came, in the service's own memory: no application can change it any more.
    pub body: &'a [u8],
    /// The body as a message, for an engine that [`PolicyEngine::reads_messages`].
    pub message: Option<PolicyMessage<'a>>,
}

/// A call that an engine let pass is over.
#[derive(Clone, Copy, Debug)]
pub struct PolicyEnd<'a> {
    /// The time, in nanoseconds of the service's clock.
    pub now_ns: u64,
    /// Which call it was.
    pub call: u64,
    /// The method.
    pub method: MethodId,
    /// How the call ended. `Cancelled`: that says nothing of its server, for its caller gave it up, or makes it
    /// elsewhere.
    pub code: Code,
    /// Whose call it was.
    pub datapath: &'a Datapath,
    /// When it came to the first policy, in nanoseconds of the same clock. Behind a policy that makes calls again:
    /// when this attempt came from there.
    pub since_ns: u64,
    /// Bytes of its request.
    pub request_bytes: usize,
    /// Bytes of its response, if there was one.
    pub response_bytes: Option<usize>,
}

/// An attempt of a call has failed, and another one may be made.
#[derive(Clone, Copy, Debug)]
pub struct PolicyFailure<'a> {
    /// The time, in nanoseconds of the service's clock.
    pub now_ns: u64,
    /// When its caller gives up, by the same clock.
    pub deadline_ns: Option<u64>,
    /// How it has ended.
    pub status: &'a Status,
}

/// Which calls that have failed a policy makes again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retries {
    /// None.
    #[default]
    None,
    /// Those that did not run.
    NotRun,
    /// Also those that may have run. Its scope has to name their methods.
    All,
}

/// What becomes of a call of which an attempt has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAttempt {
    /// It ends so.
    None,
    /// It ends so, for too many calls were made again.
    OverBudget,
    /// It is made again.
    At {
        /// When, in nanoseconds of the service's clock: before its deadline.
        at_ns: u64,
        /// There will be no further attempt.
        is_last: bool,
    },
}

/// What becomes of a request.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It goes on to the next engine.
    Pass,
    /// It goes on to the next engine at this time, in nanoseconds of the service's clock. If the policy is detached
    /// meanwhile, at once.
    Hold(u64),
    /// It goes on to the next engine behind the requests that do not wait, a few each round of the service. If the
    /// policy is detached meanwhile, at once.
    Behind,
    /// The call ends with this status. It did not run.
    Refuse(Status),
}

/// A policy at work: it sees the requests in its scope, and the ends of the calls that it let pass. One thread at a
/// time drives it, of several whose times differ a little: the time may go back. It must not block.
///
/// Requests of a caller that came together are asked about together: of the end of one of them it hears after that.
pub trait PolicyEngine: Send {
    /// Decides about a request. `held`: so many that it has held are still waiting.
    fn on_request(&mut self, request: &mut PolicyRequest<'_>, held: usize) -> Verdict;

    /// Whether it looks into requests. Its scope has to name their methods.
    fn reads_messages(&self) -> bool {
        false
    }

    /// Checks that it can work with a method whose requests it reads.
    ///
    /// # Errors
    /// Why it cannot.
    fn check_method(&self, _method: &PolicyMethod) -> Result<(), String> {
        Ok(())
    }

    /// Whether it hears of the ends of calls. To one that does not, a call costs less.
    fn hears_ends(&self) -> bool {
        true
    }

    /// Takes in how a call that it let pass has ended.
    fn on_end(&mut self, _end: &PolicyEnd<'_>) {}

    /// Which calls that have failed it makes again. The service keeps the requests that such an engine lets pass.
    fn retries(&self) -> Retries {
        Retries::None
    }

    /// Decides whether a call that it let pass is made again. Asked only about those that it [`PolicyEngine::retries`].
    /// `retry`: the attempts of the call.
    fn on_failure(&mut self, _failure: &PolicyFailure<'_>, _retry: &mut Retry) -> NextAttempt {
        NextAttempt::None
    }

    /// Adds what it has counted.
    fn series(&self, _into: &mut Vec<Series>) {}

    /// Whether it records spans. Such an engine is of use only where they are exported.
    fn records_spans(&self) -> bool {
        false
    }

    /// The span of a call that is over, if it has recorded one. It is asked for each call that has passed, also for
    /// one that is not in its scope any more.
    fn end_span(&mut self, _end: &PolicyEnd<'_>) -> Option<Span> {
        None
    }

    /// A random number, from which all follows that it draws. It gets one before it gets requests, and before
    /// [`PolicyEngine::restore`].
    fn seed(&mut self, _random: u64) {}

    /// The state that a successor goes on with: another version of the engine, or the same with other settings.
    fn save(&self) -> Saved {
        Saved::default()
    }

    /// Why it does not work any more, if it has failed. Its requests are refused then, or pass.
    fn failure(&self) -> Option<&str> {
        None
    }

    /// Goes on with what a predecessor of the same kind has saved.
    ///
    /// # Errors
    /// If it is of a later version, or not what [`PolicyEngine::save`] makes. Nothing has changed then.
    fn restore(&mut self, saved: &mut SavedReader<'_>) -> Result<(), RestoreError> {
        saved.check_version(0)
    }
}
