//! Random runs of whole endpoints: the event loop that ships, with handlers inline, in workers and
//! deferred, calls with deadlines, streams, cancellation, and endpoints that drain, under the faults
//! that the protocol's own runs have.
//!
//! The checkers hold endpoints to the promises to users: a handler runs at most once and not after
//! its deadline; every call ends once and in time, with a reason if it fails; answers are right; an
//! endpoint without work sleeps; nothing is left in the end.

mod call_records;
mod host;
mod process;

use super::host_set::{BusyWorker, HostSet};
use super::hostile::HostileRequest;
use super::{Outcomes, PlantedBug, RunPlan};
use crate::check::Violation;
use crate::fabric::{HostId, SharedFabric};
use crate::rng::Rng;
use crate::threads::OneProcessor;
use call_records::{CallRecords, SharedCallRecords};
use host::{Host, Task};

/// Hosts with whole endpoints.
pub(super) struct Endpoints {
    hosts: Vec<Host>,
    records: SharedCallRecords,
    _one_processor: Option<OneProcessor>,
}

impl Endpoints {
    pub(super) fn new(
        fabric: &SharedFabric,
        plan: &RunPlan,
        planted_bug: Option<PlantedBug>,
        ids: Vec<HostId>,
    ) -> Self {
        let mut rng = Rng::new(plan.seed ^ 0x656e_6470_6f69_6e74);
        let records = CallRecords::new(fabric, plan, planted_bug);
        // Before their threads are made.
        let one_processor = plan.threads.then(OneProcessor::begin);
        let host = |id| Host::new(fabric, &records, id, plan, rng.fork());
        Self {
            hosts: ids.into_iter().map(host).collect(),
            records,
            _one_processor: one_processor,
        }
    }
}

impl HostSet for Endpoints {
    type Host = Host;

    fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    fn hosts_mut(&mut self) -> &mut [Host] {
        &mut self.hosts
    }

    /// Workers may run the requests of a slot in another order.
    fn expect_hostile(&mut self, request: &HostileRequest) {
        self.records.lock().executions.issued(request.key);
    }

    fn turn(&mut self, host: HostId) -> Result<Vec<BusyWorker>, Violation> {
        self.host(host).turn()
    }

    fn finish(&mut self, busy: BusyWorker) -> Vec<BusyWorker> {
        self.host(busy.host).finish(busy)
    }

    fn crash(&mut self, host: HostId) {
        self.host(host).crash();
    }

    fn drain(&mut self, host: HostId, at_ns: u64) {
        self.host(host).plan(at_ns, Task::Drain);
    }

    fn restart(&mut self, host: HostId) {
        // A process that drains still exists.
        self.crash(host);
        self.host(host).restart();
    }

    fn check_overdue(&self, now_ns: u64) -> Result<(), Violation> {
        let records = self.records.lock();
        records.calls.check(now_ns)?;
        records.streams.check(now_ns)
    }

    fn open_calls(&self) -> usize {
        let records = self.records.lock();
        records.calls.open_count() + records.streams.open_count()
    }

    fn outcomes(&self) -> Result<Outcomes, Violation> {
        Ok(self.records.lock().outcomes)
    }
}
