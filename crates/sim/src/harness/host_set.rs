//! The hosts of a random run, as the run drives them.

use std::collections::BTreeSet;

use starling_proto::{PeerId, Protocol, SessionId};

use super::hostile::HostileRequest;
use super::{Branches, CallPlan, Outcomes, StreamPlan};
use crate::check::{Leftovers, Violation};
use crate::fabric::HostId;

/// An action of a host's application that the plan holds.
#[derive(Debug)]
pub(super) enum PlannedTask {
    /// Issues a call.
    Call(CallPlan),
    /// Begins a stream. Only with whole endpoints.
    Stream(StreamPlan),
    /// Closes a channel's session.
    Close(usize),
    /// Probes a channel with a short call.
    Probe { channel: usize, attempt: u32 },
}

/// A worker of one incarnation of a host that is busy until `until_ns`.
#[derive(Clone, Copy, Debug)]
pub(super) struct BusyWorker {
    pub(super) host: HostId,
    pub(super) incarnation: u32,
    pub(super) worker: usize,
    pub(super) until_ns: u64,
}

/// One host of a set.
pub(super) trait PlannedHost {
    /// Schedules a task of the plan and a turn of the host for it.
    fn plan_task(&mut self, at_ns: u64, task: PlannedTask);

    /// Adds a channel to those that wait for the answer to a probe.
    fn await_probe(&mut self, channel: usize);

    /// Whether no channel waits for the answer to a probe.
    fn probes_ended(&self) -> bool;

    /// Sessions that this host knows of as a client of `server`.
    fn sessions_with(&self, server: HostId) -> usize;

    /// Sessions that this host serves.
    fn server_sessions(&self) -> usize;

    /// The branches that its processes have taken.
    fn branches(&self) -> Branches;

    /// The resources that the host still holds.
    fn leftovers(&self) -> Leftovers;
}

/// Sessions of a client with the servers of its `channels`, in any state: it knows of one that it
/// closes until the server has confirmed that.
pub(super) fn sessions_with_servers(
    protocol: &Protocol,
    channels: impl Iterator<Item = SessionId>,
) -> usize {
    let servers: BTreeSet<PeerId> = channels.filter_map(|it| protocol.peer_of(it)).collect();
    let mut known = 0;
    let mut next = Some(0);
    while let Some(from) = next {
        let page = protocol.client_sessions(from, usize::MAX);
        let sessions = page.sessions.iter();
        known += sessions.filter(|it| servers.contains(&it.peer)).count();
        next = page.next;
    }
    known
}

/// The hosts of a run, with the records of its calls.
pub(super) trait HostSet {
    type Host: PlannedHost;

    fn hosts(&self) -> &[Self::Host];

    fn hosts_mut(&mut self) -> &mut [Self::Host];

    fn host(&mut self, id: HostId) -> &mut Self::Host {
        &mut self.hosts_mut()[id.0 as usize]
    }

    /// `host` is to make a call when its plan says so.
    fn call(&mut self, host: HostId, plan: CallPlan) {
        self.host(host)
            .plan_task(plan.at_ns, PlannedTask::Call(plan));
    }

    /// `host` is to begin a stream when its plan says so.
    fn stream(&mut self, host: HostId, plan: StreamPlan) {
        self.host(host)
            .plan_task(plan.at_ns, PlannedTask::Stream(plan));
    }

    /// `host` is to close its end of a channel.
    fn close(&mut self, host: HostId, channel: usize, at_ns: u64) {
        self.host(host)
            .plan_task(at_ns, PlannedTask::Close(channel));
    }

    /// `host` probes a channel with a short call, and again if it gets no answer.
    fn probe(&mut self, host: HostId, channel: usize, at_ns: u64) {
        let host = self.host(host);
        host.await_probe(channel);
        let attempt = 1;
        host.plan_task(at_ns, PlannedTask::Probe { channel, attempt });
    }

    /// A hostile host sends a request that it may send: it runs at most once.
    fn expect_hostile(&mut self, request: &HostileRequest);

    /// One turn of `host`. Returns workers that began something.
    fn turn(&mut self, host: HostId) -> Result<Vec<BusyWorker>, Violation>;

    /// A worker's time is over. Returns workers that began something.
    fn finish(&mut self, _: BusyWorker) -> Vec<BusyWorker> {
        Vec::new()
    }

    /// The process on `host` dies.
    fn crash(&mut self, host: HostId);

    /// The process on `host` drains, if it can.
    fn drain(&mut self, host: HostId, at_ns: u64);

    /// Another process takes the place of one that died or drained.
    fn restart(&mut self, host: HostId);

    /// Whether no call is overdue.
    fn check_overdue(&self, now_ns: u64) -> Result<(), Violation>;

    /// Calls and streams that have not ended.
    fn open_calls(&self) -> usize;

    /// Whether every probe has ended.
    fn all_probes_ended(&self) -> bool {
        self.hosts().iter().all(Self::Host::probes_ended)
    }

    /// Sessions that `host` serves.
    fn served(&self, host: HostId) -> usize {
        self.hosts()[host.0 as usize].server_sessions()
    }

    /// Sessions with `host` that its clients know of.
    fn known(&self, host: HostId) -> usize {
        self.hosts().iter().map(|it| it.sessions_with(host)).sum()
    }

    /// The resources that each host still holds.
    fn leftovers(&self) -> Vec<Leftovers> {
        self.hosts().iter().map(Self::Host::leftovers).collect()
    }

    /// The branches that the processes of all hosts have taken.
    fn branches(&self) -> Branches {
        let mut sum = Branches::default();
        for host in self.hosts() {
            sum.add(&host.branches());
        }
        sum
    }

    /// How the calls ended, all of which have: no buffer of theirs may be missing.
    fn outcomes(&self) -> Result<Outcomes, Violation>;
}
