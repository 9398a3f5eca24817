//! The call log of a run with bare protocols: everything that crosses the protocol's interface at
//! any host is recorded here and goes to the checkers.

use std::collections::HashMap;

use starling_proto::{Msgbuf, NotMadeReason, Rejection, RequestError, SessionError, SessionId};

use crate::check::content::{self, Expected};
use crate::check::{AtMostOnce, Buffers, Calls, Tag, Violation};
use crate::fabric::{HostId, SharedFabric};
use crate::harness::plan::ResponseLimits;
use crate::harness::{PlantedBug, RunPlan};

/// How the calls of a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// With a response.
    pub answered: u64,
    /// With an error.
    pub failed: u64,
    /// The caller gave up.
    pub cancelled: u64,
    /// Not made: the queue was full, or the message too large.
    pub not_made: u64,
    /// The caller died.
    pub abandoned: u64,
    /// Made again because they were not sent.
    pub made_again: u64,
    /// Their server had no memory for them.
    pub out_of_memory: u64,
    /// Their response was no longer kept when they asked for it again.
    pub expired: u64,
    /// Handlers run.
    pub executed: u64,
    /// Streams that ended at their client with the handler's status.
    pub streams_ended: u64,
    /// Streams that ended at their client otherwise.
    pub streams_failed: u64,
    /// Items of streams that arrived.
    pub items: u64,
}

pub(super) struct CallLog {
    pub(super) fabric: SharedFabric,
    pub(super) planted_bug: Option<PlantedBug>,
    struck: bool,
    pub(super) outcomes: Outcomes,
    pub(super) calls: Calls,
    buffers: Buffers,
    pub(super) executions: AtMostOnce,
    /// What was asked, and whether a hostile host was asked.
    expected: HashMap<Tag, (Expected, bool)>,
    /// Whether the server of each channel is hostile.
    hostile: Vec<bool>,
    /// The channels that handlers of requests, by key, call on before they answer.
    relays: HashMap<u64, usize>,
    /// There are hostile hosts.
    pub(super) attacked: bool,
    next_tag: Tag,
    heal_ns: u64,
    bound_ns: u64,
    /// Bits may have flipped on the way, so the content of messages proves nothing.
    distrusts_content: bool,
    /// The limits of the responses: how long a handler takes, and how long a response is.
    most: ResponseLimits,
    /// A call has no reason to fail.
    survivable: bool,
    /// See [`RunPlan::may_be_reset`].
    may_be_reset: bool,
}

impl CallLog {
    pub(super) fn new(
        fabric: SharedFabric,
        plan: &RunPlan,
        planted_bug: Option<PlantedBug>,
    ) -> Self {
        Self {
            fabric,
            planted_bug,
            struck: false,
            outcomes: Outcomes::default(),
            calls: Calls::default(),
            buffers: Buffers::default(),
            executions: AtMostOnce::default(),
            expected: HashMap::new(),
            hostile: plan.hostile_channels(),
            relays: HashMap::new(),
            attacked: !plan.attacks.is_empty(),
            next_tag: 1,
            heal_ns: plan.heal_ns,
            bound_ns: plan.bound_ns(),
            distrusts_content: plan.corrupts(),
            most: plan.most(),
            survivable: plan.is_survivable(),
            may_be_reset: plan.may_be_reset(),
        }
    }

    /// A tag that no call had before.
    pub(super) fn new_tag(&mut self) -> Tag {
        self.next_tag += 1;
        self.next_tag - 1
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.fabric.lock().now_ns()
    }

    pub(super) fn record(&self, host: HostId, text: &'static str, a: u64, b: u64) {
        self.fabric.lock().record(host, text, a, b);
    }

    /// A request is about to be handed to the protocol.
    pub(super) fn issue(
        &mut self,
        host: HostId,
        channel: usize,
        tag: Tag,
        expected: Expected,
        message: &Msgbuf,
    ) {
        self.record(host, "calls: tag, bytes", tag, message.len() as u64);
        let now_ns = self.now_ns();
        let deadline_ns = now_ns.max(self.heal_ns) + self.bound_ns;
        self.calls.issued(tag, now_ns, deadline_ns);
        self.buffers.lent(tag, message.head(), message.tail());
        self.executions.issued(expected.key);
        let is_hostile = self.hostile[channel];
        self.expected.insert(tag, (expected, is_hostile));
    }

    /// The handler of this request will call on `channel` before it answers.
    pub(super) fn plan_relay(&mut self, expected: Expected, channel: usize) {
        self.relays.insert(expected.key, channel);
    }

    /// The channel that a request's handler has to call on.
    pub(super) fn relay(&self, expected: Expected) -> Option<usize> {
        self.relays.get(&expected.key).copied()
    }

    /// The protocol did not make the call. An ended session is no valid reason: the caller handles
    /// all session events before it calls.
    pub(super) fn not_made(
        &mut self,
        host: HostId,
        tag: Tag,
        reason: NotMadeReason,
        message: &Msgbuf,
    ) -> Result<(), Violation> {
        // This text is in the hashes of recorded runs, so it keeps its first wording.
        self.record(host, "call rejected: tag", tag, 0);
        self.outcomes.not_made += 1;
        if reason == NotMadeReason::UnknownSession {
            let text = format!("the session of call {tag} ended without an event");
            return Err(Violation::new("nothing stays stuck", text));
        }
        let (expected, is_hostile) = self.end(tag, Some(message))?;
        if self.survivable && !is_hostile {
            return Err(unexpected_error("a call", &reason));
        }
        self.executions.promised_not_to_run(expected.key)
    }

    /// Records that a handler begins. Returns the response that the request asks for.
    pub(super) fn execute(&mut self, host: HostId, body: &[u8]) -> Result<Expected, Violation> {
        self.outcomes.executed += 1;
        let expected = match content::read_request(body) {
            Ok(expected) => self.most.of(expected),
            Err(_) if self.distrusts_content => Expected {
                key: 0,
                response_len: 8,
                delay_us: 0,
            },
            Err(violation) => return Err(violation),
        };
        self.record(host, "handles: key, bytes", expected.key, body.len() as u64);
        match self.executions.executed(expected.key) {
            Err(violation) if !self.distrusts_content => Err(violation),
            _ => Ok(expected),
        }
    }

    /// A response came.
    pub(super) fn answered(
        &mut self,
        host: HostId,
        tag: Tag,
        ext: bool,
        body: &[u8],
    ) -> Result<(), Violation> {
        self.record(host, "answered: tag, bytes", tag, body.len() as u64);
        self.outcomes.answered += 1;
        let (expected, is_hostile) = self.end(tag, None)?;
        if self.distrusts_content || is_hostile {
            return Ok(());
        }
        self.executions.must_have_run(expected.key)?;
        self.check_ext(expected, ext)?;
        content::check_response(expected, body)
    }

    /// An error came instead.
    pub(super) fn failed(
        &mut self,
        host: HostId,
        tag: Tag,
        error: RequestError,
        request: &Msgbuf,
        may_have_run: bool,
    ) -> Result<(), Violation> {
        self.record(host, error_text(error), tag, 0);
        self.outcomes.failed += 1;
        let is = |rejection| u64::from(error == RequestError::Rejected(rejection));
        self.outcomes.expired += is(Rejection::ResponseExpired);
        self.outcomes.out_of_memory += is(Rejection::NoMemory);
        let (expected, is_hostile) = self.end(tag, Some(request))?;
        let explained = match error {
            RequestError::Session(error) => self.ends_sessions(error),
            _ => false,
        };
        if self.survivable && !is_hostile && !explained {
            return Err(unexpected_error("a call", &error));
        }
        if self.distrusts_content {
            return Ok(());
        }
        let rejected = matches!(
            error,
            RequestError::Rejected(Rejection::NoMemory | Rejection::TooLarge)
        );
        if rejected || !may_have_run {
            return self.executions.promised_not_to_run(expected.key);
        }
        match error {
            RequestError::Session(SessionError::Refused(_) | SessionError::ConnectTimeout) => {
                let text = format!(
                    "call {tag} failed with \"{error}\", but may have run according to the protocol"
                );
                Err(Violation::new("at most once", text))
            }
            _ => Ok(()),
        }
    }

    /// A session is over.
    pub(super) fn session_ended(
        &mut self,
        host: HostId,
        channel: Option<usize>,
        session: SessionId,
        error: SessionError,
    ) -> Result<(), Violation> {
        self.record(host, "session ended", u64::from(session.to_wire()), 0);
        let is_hostile = channel.is_some_and(|channel| self.hostile[channel]);
        if self.survivable && !is_hostile && !self.ends_sessions(error) {
            return Err(unexpected_error("a session", &error));
        }
        Ok(())
    }

    /// Whether sessions may end for that reason in any run.
    fn ends_sessions(&self, error: SessionError) -> bool {
        match error {
            SessionError::Closed => true,
            SessionError::PeerRestarted | SessionError::PeerDropped => self.may_be_reset,
            _ => false,
        }
    }

    /// The caller gave up and has its buffer back.
    pub(super) fn cancelled(
        &mut self,
        host: HostId,
        tag: Tag,
        request: &Msgbuf,
    ) -> Result<(), Violation> {
        self.record(host, "cancelled: tag", tag, 0);
        self.outcomes.cancelled += 1;
        self.end(tag, Some(request)).map(|_| ())
    }

    /// The caller died.
    pub(super) fn abandon(&mut self, tag: Tag) {
        self.outcomes.abandoned += 1;
        self.calls.abandon(tag);
        self.buffers.abandon(tag);
        self.expected.remove(&tag);
    }

    /// The checks that only hold when no call is open.
    pub(super) fn check_all_ended(&self) -> Result<(), Violation> {
        self.buffers.check_all_returned()
    }

    fn end(&mut self, tag: Tag, request: Option<&Msgbuf>) -> Result<(Expected, bool), Violation> {
        self.calls.ended(tag, self.now_ns())?;
        if !self.bug_triggers(PlantedBug::LeakedBuffer) {
            match request {
                Some(request) => self.buffers.returned(tag, request.head(), request.tail())?,
                None => self.buffers.abandon(tag),
            }
        }
        Ok(self
            .expected
            .remove(&tag)
            .expect("an open call has an expected request"))
    }

    /// Whether this is the moment for a bug that happens once in a run.
    pub(super) fn bug_triggers(&mut self, planted_bug: PlantedBug) -> bool {
        let strikes = self.planted_bug == Some(planted_bug) && !self.struck;
        self.struck |= strikes;
        strikes
    }

    /// The extension bit, which the protocol only carries, must arrive as it was sent.
    pub(super) fn check_ext(&self, expected: Expected, ext: bool) -> Result<(), Violation> {
        if ext == ext_of(expected) || self.distrusts_content {
            return Ok(());
        }
        Err(Violation::new(
            "content",
            format!("the extension bit of {:#x} arrived as {ext}", expected.key),
        ))
    }
}

fn unexpected_error(what: &str, error: &dyn std::fmt::Display) -> Violation {
    Violation::new(
        "no failure without a cause",
        format!("{what} failed without a reason in this run: {error}"),
    )
}

/// The text of an error in the trace.
fn error_text(error: RequestError) -> &'static str {
    match error {
        RequestError::Session(error) => match error {
            SessionError::Refused(_) => "call failed, refused: tag",
            SessionError::NotAdmitted(_) => "call failed, not admitted: tag",
            SessionError::ConnectTimeout => "call failed, connect timeout: tag",
            SessionError::Unreachable => "call failed, unreachable: tag",
            SessionError::PeerSilent => "call failed, peer silent: tag",
            SessionError::PeerRestarted => "call failed, peer restarted: tag",
            SessionError::PeerLeft => "call failed, peer shut down: tag",
            SessionError::PeerDropped => "call failed, peer dropped it: tag",
            SessionError::Closed => "call failed, closed: tag",
        },
        RequestError::Rejected(_) => "call failed, rejected by the server: tag",
        RequestError::ResponseTooLarge => "call failed, response too large: tag",
        RequestError::NoMemory => "call failed, no memory: tag",
        RequestError::NoSlot => "call failed, no slot: tag",
    }
}

/// The extension bit, which the protocol only carries, as the harness sets it.
pub(super) fn ext_of(expected: Expected) -> bool {
    expected.key & 1 == 1
}
