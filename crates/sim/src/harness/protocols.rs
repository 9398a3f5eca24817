//! Random runs of the bare protocol: hosts that drive it as an endpoint's event loop does, with an
//! application that answers each request when the plan says so.
//!
//! The checkers hold the protocol to its promises: at most once, every call ends in time, answers
//! are right, credits and buffers conserved, nothing left in the end.

mod call_log;
mod host;
mod schedule;
mod sink;

use super::host_set::{BusyWorker, HostSet};
use super::hostile::HostileRequest;
use super::{PlantedBug, RunPlan};
use crate::check::Violation;
use crate::fabric::{HostId, SharedFabric};
use crate::rng::Rng;
use call_log::CallLog;
pub use call_log::Outcomes;
use host::Host;

/// Hosts with nothing but the protocol.
pub(super) struct Protocols {
    hosts: Vec<Host>,
    log: CallLog,
}

impl Protocols {
    pub(super) fn new(
        fabric: &SharedFabric,
        plan: &RunPlan,
        planted_bug: Option<PlantedBug>,
        ids: Vec<HostId>,
    ) -> Self {
        let mut rng = Rng::new(plan.seed);
        let host = |id| Host::new(fabric, id, plan, rng.fork());
        Self {
            hosts: ids.into_iter().map(host).collect(),
            log: CallLog::new(fabric.clone(), plan, planted_bug),
        }
    }
}

impl HostSet for Protocols {
    type Host = Host;

    fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    fn hosts_mut(&mut self) -> &mut [Host] {
        &mut self.hosts
    }

    fn expect_hostile(&mut self, request: &HostileRequest) {
        let &HostileRequest { key, slot, number } = request;
        self.log.executions.issued_in_slot(key, slot, number);
    }

    fn turn(&mut self, host: HostId) -> Result<Vec<BusyWorker>, Violation> {
        self.hosts[host.0 as usize].turn(&mut self.log)?;
        Ok(Vec::new())
    }

    fn crash(&mut self, host: HostId) {
        self.hosts[host.0 as usize].crash(&mut self.log);
    }

    /// Draining is a feature of the endpoint. A bare protocol tells its clients that it ends, and does.
    fn drain(&mut self, host: HostId, _: u64) {
        self.hosts[host.0 as usize].leave(&mut self.log);
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

    fn outcomes(&self) -> Result<Outcomes, Violation> {
        self.log.check_all_ended()?;
        Ok(self.log.outcomes)
    }
}
