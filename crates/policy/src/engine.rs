//! What an engine sees of calls, and what it may do.

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
    /// When it came to the first policy, in nanoseconds of the same clock.
    pub since_ns: u64,
    /// Bytes of its request.
    pub request_bytes: usize,
    /// Bytes of its response, if there was one.
    pub response_bytes: Option<usize>,
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

/// A policy at work: it sees the requests in its scope, and the ends of the calls that it let pass. One thread drives
/// it. It must not block.
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

    /// Takes in how a call that it let pass has ended.
    fn on_end(&mut self, _end: &PolicyEnd<'_>) {}

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
