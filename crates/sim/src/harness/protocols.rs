//! Random runs of the bare protocol: hosts that drive it as an endpoint's event loop does, with an
//! application that answers each request when the scenario says so.
//!
//! The checkers hold the protocol to its promises: at most once, every call ends in time, answers
//! are right, credits and buffers conserved, nothing left in the end.

mod call_log;
mod host;
mod schedule;
mod sink;

use super::simulation::{BusyWorker, HostSet};
use super::{CallPlan, PlantedBug, Scenario};
use crate::check::{Leftovers, Violation};
use crate::fabric::{HostId, SharedFabric};
use crate::rng::Rng;
use call_log::CallLog;
pub use call_log::Outcomes;
use host::Host;
use schedule::Task;

/// Hosts with nothing but the protocol.
pub(super) struct Protocols {
    hosts: Vec<Host>,
    log: CallLog,
}

impl Protocols {
    pub(super) fn new(
        fabric: &SharedFabric,
        scenario: &Scenario,
        planted_bug: Option<PlantedBug>,
        ids: Vec<HostId>,
    ) -> Self {
        let mut rng = Rng::new(scenario.seed);
        let host = |id| Host::new(fabric, id, scenario, rng.fork());
        Self {
            hosts: ids.into_iter().map(host).collect(),
            log: CallLog::new(fabric.clone(), scenario, planted_bug),
        }
    }

    fn host(&mut self, id: HostId) -> &mut Host {
        &mut self.hosts[id.0 as usize]
    }
}

impl HostSet for Protocols {
    fn call(&mut self, host: HostId, plan: CallPlan) {
        self.host(host).plan(plan.at_ns, Task::Call(plan));
    }

    fn close(&mut self, host: HostId, channel: usize, at_ns: u64) {
        self.host(host).plan(at_ns, Task::Close(channel));
    }

    fn probe(&mut self, host: HostId, channel: usize, at_ns: u64) {
        let host = self.host(host);
        host.unheard.insert(channel);
        let attempt = 1;
        host.plan(at_ns, Task::Probe { channel, attempt });
    }

    fn turn(&mut self, host: HostId) -> Result<Vec<BusyWorker>, Violation> {
        self.hosts[host.0 as usize].turn(&mut self.log)?;
        Ok(Vec::new())
    }

    fn crash(&mut self, host: HostId) {
        self.hosts[host.0 as usize].crash(&mut self.log);
    }

    /// Draining is the endpoint's business: here it comes to the same as dying.
    fn drain(&mut self, host: HostId, _: u64) {
        self.crash(host);
    }

    fn restart(&mut self, host: HostId) {
        self.hosts[host.0 as usize].restart(&self.log);
    }

    fn check_overdue(&self, now_ns: u64) -> Result<(), Violation> {
        self.log.calls.check(now_ns)
    }

    fn open_calls(&self) -> usize {
        self.log.calls.open_count()
    }

    fn all_probes_ended(&self) -> bool {
        self.hosts.iter().all(|host| host.unheard.is_empty())
    }

    fn served(&self, host: HostId) -> usize {
        self.hosts[host.0 as usize].server_sessions()
    }

    fn known(&self, host: HostId) -> usize {
        self.hosts.iter().map(|it| it.sessions_with(host)).sum()
    }

    fn leftovers(&self) -> Vec<Leftovers> {
        self.hosts.iter().map(Host::leftovers).collect()
    }

    fn outcomes(&self) -> Result<Outcomes, Violation> {
        self.log.check_all_ended()?;
        Ok(self.log.outcomes)
    }
}
