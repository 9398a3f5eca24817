//! The call records of a run with whole endpoints: the results that users saw, and the results that
//! the promises allow.

mod streams;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use starling_endpoint::{Code, Status};

use super::super::plan::ResponseLimits;
use super::super::{HostFaultKind, Outcomes, PlantedBug, RunPlan};
use crate::check::content::{self, Expected};
use crate::check::{AtMostOnce, Calls, StreamId, Streams, Tag, Violation};
use crate::fabric::{HostId, SharedFabric};
use streams::StreamRecord;

/// A call with a deadline ends at most this long after it, if its host suffers no fault, ns.
const SLACK_NS: u64 = 20_000_000;
/// Resolution of a timestamp on the wire, ns.
const STAMP_NS: u64 = 1_000;

/// A call that has not ended.
struct Open {
    host: HostId,
    channel: usize,
    expected: Expected,
    /// When it was made and when it expires, by its caller's clock.
    deadline_ns: Option<u64>,
    /// Its caller has given it up, or closed its session.
    given_up: bool,
}

/// The records of one run.
pub(super) struct CallRecords {
    fabric: SharedFabric,
    pub(super) planted_bug: Option<PlantedBug>,
    struck: bool,
    pub(super) outcomes: Outcomes,
    pub(super) calls: Calls,
    pub(super) executions: AtMostOnce,
    pub(super) streams: Streams,
    stream_records: BTreeMap<StreamId, StreamRecord>,
    /// The calls of streams, with the hosts that made them.
    stream_calls: BTreeMap<Tag, HostId>,
    open: HashMap<Tag, Open>,
    /// Whether the server of each channel is hostile.
    hostile: Vec<bool>,
    /// The channels that handlers of requests, by key, call on before they answer.
    relays: HashMap<u64, usize>,
    next_tag: Tag,
    heal_ns: u64,
    bound_ns: u64,
    /// See [`RunPlan::forgetting_ns`].
    forgetting_ns: u64,
    most: ResponseLimits,
    distrusts_content: bool,
    /// No call without a deadline has a reason to fail.
    survivable: bool,
    /// Limits are tight, which is a reason for a call to fail.
    tight: bool,
    /// The hosts themselves suffer no faults.
    steady: bool,
    /// The hosts' clocks neither drift nor jump.
    steady_clocks: bool,
    /// The first promise that was broken in a handler or continuation.
    pub(super) broken: Option<Violation>,
}

pub(super) type SharedCallRecords = Arc<Mutex<CallRecords>>;

impl CallRecords {
    pub(super) fn new(
        fabric: &SharedFabric,
        plan: &RunPlan,
        planted_bug: Option<PlantedBug>,
    ) -> SharedCallRecords {
        let faults = &plan.host_faults;
        let clock = |kind: HostFaultKind| {
            matches!(
                kind,
                HostFaultKind::ClockDrift { .. } | HostFaultKind::ClockJump { .. }
            )
        };
        Arc::new(Mutex::new(Self {
            fabric: fabric.clone(),
            planted_bug,
            struck: false,
            outcomes: Outcomes::default(),
            calls: Calls::default(),
            executions: AtMostOnce::default(),
            streams: Streams::default(),
            stream_records: BTreeMap::new(),
            stream_calls: BTreeMap::new(),
            open: HashMap::new(),
            hostile: plan.hostile_channels(),
            relays: HashMap::new(),
            next_tag: 1,
            heal_ns: plan.heal_ns,
            bound_ns: plan.bound_ns(),
            forgetting_ns: plan.forgetting_ns(),
            most: plan.most(),
            distrusts_content: plan.corrupts(),
            // Of a status its code is looked at, not the reason behind it.
            survivable: plan.is_survivable() && !plan.may_be_reset(),
            tight: plan.tight,
            steady: faults.is_empty(),
            steady_clocks: !faults.iter().any(|fault| clock(fault.kind)),
            broken: None,
        }))
    }

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

    /// A call is about to be made.
    pub(super) fn issue(
        &mut self,
        host: HostId,
        channel: usize,
        tag: Tag,
        expected: Expected,
        timeout_ns: Option<u64>,
    ) {
        self.record(
            host,
            "calls: tag, timeout in ns",
            tag,
            timeout_ns.unwrap_or(0),
        );
        let now_ns = self.now_ns();
        let bound_ns = match timeout_ns {
            Some(timeout_ns) if self.steady => now_ns + timeout_ns + SLACK_NS,
            _ => now_ns.max(self.heal_ns) + self.bound_ns + timeout_ns.unwrap_or(0),
        };
        self.calls.issued(tag, now_ns, bound_ns);
        self.executions.issued(expected.key);
        let clock_ns = self.fabric.lock().host_now_ns(host);
        let open = Open {
            host,
            channel,
            expected,
            deadline_ns: timeout_ns.map(|timeout_ns| clock_ns + timeout_ns),
            given_up: false,
        };
        self.open.insert(tag, open);
    }

    /// The handler of this request will call on `channel` before it answers.
    pub(super) fn plan_relay(&mut self, expected: Expected, channel: usize) {
        self.relays.insert(expected.key, channel);
    }

    /// The channel that a request's handler has to call on.
    pub(super) fn relay(&self, expected: Expected) -> Option<usize> {
        self.relays.get(&expected.key).copied()
    }

    /// The endpoint did not make the call.
    pub(super) fn not_made(&mut self, host: HostId, tag: Tag) -> Result<(), Violation> {
        // This text is in the hashes of recorded runs, so it keeps its first wording.
        self.record(host, "call rejected: tag", tag, 0);
        self.outcomes.not_made += 1;
        let open = self.end(tag)?;
        if self.survivable && !self.hostile[open.channel] {
            let text = format!("call {tag} was not made, without a reason in this run");
            return Err(Violation::new("no failure without a cause", text));
        }
        self.executions.promised_not_to_run(open.expected.key)
    }

    /// A handler begins. By its host's clock it must not begin at `deadline_ns` or later.
    pub(super) fn execute(
        &mut self,
        host: HostId,
        body: &[u8],
        deadline_ns: Option<u64>,
    ) -> Expected {
        self.outcomes.executed += 1;
        let expected = match content::read_request(body) {
            Ok(expected) => self.most.of(expected),
            Err(violation) => {
                if !self.distrusts_content {
                    self.report_violation(violation);
                }
                Expected {
                    key: 0,
                    response_len: 8,
                    delay_us: 0,
                }
            }
        };
        self.record(host, "handles: key, bytes", expected.key, body.len() as u64);
        let clock_ns = self.fabric.lock().host_now_ns(host);
        if deadline_ns.is_some_and(|deadline_ns| deadline_ns <= clock_ns) {
            let text = format!(
                "request {:#x} is run {clock_ns} ns after its deadline",
                expected.key
            );
            self.report_violation(Violation::new("deadlines", text));
        }
        let times = if self.bug_triggers(PlantedBug::HandlerTwice) {
            2
        } else {
            1
        };
        for _ in 0..times {
            if let Err(violation) = self.executions.executed(expected.key)
                && !self.distrusts_content
            {
                self.report_violation(violation);
            }
        }
        expected
    }

    /// A call ended.
    pub(super) fn ended(
        &mut self,
        host: HostId,
        tag: Tag,
        result: &Result<&[u8], &Status>,
    ) -> Result<(), Violation> {
        let open = self.end(tag)?;
        match result {
            Ok(body) => {
                self.record(host, "answered: tag, bytes", tag, body.len() as u64);
                self.outcomes.answered += 1;
                if self.distrusts_content || self.hostile[open.channel] {
                    return Ok(());
                }
                self.executions.must_have_run(open.expected.key)?;
                content::check_response(open.expected, body)
            }
            Err(status) => {
                self.record(host, status.code().name(), tag, 0);
                self.outcomes.failed += u64::from(status.code() != Code::Cancelled);
                self.outcomes.cancelled += u64::from(status.code() == Code::Cancelled);
                if !status.may_have_run() && !self.distrusts_content {
                    self.executions.promised_not_to_run(open.expected.key)?;
                }
                self.has_cause(host, tag, &open, status)
            }
        }
    }

    /// Fails on a status that nothing in the run explains.
    fn has_cause(
        &self,
        host: HostId,
        tag: Tag,
        open: &Open,
        status: &Status,
    ) -> Result<(), Violation> {
        if self.distrusts_content || self.hostile[open.channel] {
            return Ok(());
        }
        let clock_ns = self.fabric.lock().host_now_ns(host);
        let explained = match status.code() {
            Code::Cancelled => open.given_up,
            Code::DeadlineExceeded => match open.deadline_ns {
                Some(deadline_ns) => !self.steady_clocks || clock_ns + STAMP_NS >= deadline_ns,
                None => false,
            },
            // A full queue of workers or of requests with deadlines, or a limit.
            Code::ResourceExhausted => true,
            // A clock that jumps is like an absence: a server may forget a response meanwhile.
            Code::Unavailable | Code::Unknown => !self.survivable,
            Code::Internal => self.tight,
            _ => false,
        };
        if explained {
            return Ok(());
        }
        let early_ns = open
            .deadline_ns
            .unwrap_or(clock_ns)
            .saturating_sub(clock_ns);
        let text = format!(
            "call {tag} ended without a reason, {early_ns} ns before its deadline: {}",
            status.message()
        );
        Err(Violation::new("no failure without a cause", text))
    }

    /// The caller gives a call up.
    pub(super) fn record_give_up(&mut self, tag: Tag) {
        if let Some(open) = self.open.get_mut(&tag) {
            open.given_up = true;
        }
    }

    /// The caller closes a channel's session.
    pub(super) fn record_close(&mut self, host: HostId, channel: usize) {
        let of = |open: &&mut Open| open.host == host && open.channel == channel;
        for open in self.open.values_mut().filter(of) {
            open.given_up = true;
        }
        self.close_streams(host, channel);
    }

    /// The caller died.
    pub(super) fn abandon(&mut self, host: HostId) {
        let (calls, outcomes) = (&mut self.calls, &mut self.outcomes);
        self.open.retain(|&tag, open| {
            if open.host == host {
                outcomes.abandoned += 1;
                calls.abandon(tag);
            }
            open.host != host
        });
        self.abandon_streams(host);
    }

    fn end(&mut self, tag: Tag) -> Result<Open, Violation> {
        self.calls.ended(tag, self.now_ns())?;
        Ok(self
            .open
            .remove(&tag)
            .expect("both records have the same open calls"))
    }

    pub(super) fn report_violation(&mut self, violation: Violation) {
        self.broken.get_or_insert(violation);
    }

    /// Whether the planted bug makes a call without its deadline.
    pub(super) fn bug_forgets(&mut self, timeout_ns: Option<u64>) -> bool {
        // The bug affects every call, since most end in time anyway.
        timeout_ns.is_some() && self.planted_bug == Some(PlantedBug::ForgottenDeadline)
    }

    /// Whether this is the moment for a bug that happens once in a run.
    pub(super) fn bug_triggers(&mut self, planted_bug: PlantedBug) -> bool {
        let strikes = self.planted_bug == Some(planted_bug) && !self.struck;
        self.struck |= strikes;
        strikes
    }
}
