//! Random runs of the bare protocol: hosts that drive it as an endpoint's event loop does, with an
//! application that answers each request when the scenario says so.
//!
//! What is watched is what the protocol promises: at most once, every call ends in time, answers
//! are right, credits and buffers conserved, nothing left in the end.

mod agenda;
mod host;
mod ledger;
mod sink;

use super::world::{Busy, Population};
use super::{CallPlan, Sabotage, Scenario};
use crate::check::{Remains, Violation};
use crate::fabric::{HostId, SharedFabric};
use crate::rng::Rng;
use agenda::Task;
use host::Host;
use ledger::Ledger;
pub use ledger::Outcomes;

/// Hosts with nothing but the protocol.
pub(super) struct Protocols {
    hosts: Vec<Host>,
    ledger: Ledger,
}

impl Protocols {
    pub(super) fn new(
        fabric: &SharedFabric,
        scenario: &Scenario,
        sabotage: Option<Sabotage>,
        ids: Vec<HostId>,
    ) -> Self {
        let mut rng = Rng::new(scenario.seed);
        let host = |id| Host::new(fabric, id, scenario, rng.fork());
        Self {
            hosts: ids.into_iter().map(host).collect(),
            ledger: Ledger::new(fabric.clone(), scenario, sabotage),
        }
    }

    fn host(&mut self, id: HostId) -> &mut Host {
        &mut self.hosts[id.0 as usize]
    }
}

impl Population for Protocols {
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

    fn turn(&mut self, host: HostId) -> Result<Vec<Busy>, Violation> {
        self.hosts[host.0 as usize].turn(&mut self.ledger)?;
        Ok(Vec::new())
    }

    fn crash(&mut self, host: HostId) {
        self.hosts[host.0 as usize].crash(&mut self.ledger);
    }

    /// Draining is the endpoint's business: here it comes to the same as dying.
    fn drain(&mut self, host: HostId, _: u64) {
        self.crash(host);
    }

    fn restart(&mut self, host: HostId) {
        self.hosts[host.0 as usize].restart(&self.ledger);
    }

    fn check_overdue(&self, now_ns: u64) -> Result<(), Violation> {
        self.ledger.calls.check(now_ns)
    }

    fn open_calls(&self) -> usize {
        self.ledger.calls.open_count()
    }

    fn is_heard(&self) -> bool {
        self.hosts.iter().all(|host| host.unheard.is_empty())
    }

    fn served(&self, host: HostId) -> usize {
        self.hosts[host.0 as usize].server_sessions()
    }

    fn known(&self, host: HostId) -> usize {
        self.hosts.iter().map(|it| it.sessions_with(host)).sum()
    }

    fn remains(&self) -> Vec<Remains> {
        self.hosts.iter().map(Host::remains).collect()
    }

    fn outcomes(&self) -> Result<Outcomes, Violation> {
        self.ledger.check_all_ended()?;
        Ok(self.ledger.outcomes)
    }
}
